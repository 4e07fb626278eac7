"""The federated algorithms, one short file each."""

from privfl.algorithms.base import Algorithm, Round
from privfl.algorithms.fair.aaggff import AAggFFD, AAggFFS
from privfl.algorithms.fair.aaggff_sums import AAggFFDSums
from privfl.algorithms.fair.afl import AFL
from privfl.algorithms.fair.fedmgda import FedMGDA
from privfl.algorithms.fair.grpfed import GRPFed
from privfl.algorithms.fair.propfair import PropFair
from privfl.algorithms.fair.q_fedavg import QFedAvg
from privfl.algorithms.fair.term import TERM, RunningTERM
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.feddyn import FedDyn
from privfl.algorithms.fedprox import FedProx
from privfl.algorithms.fedsampling import FedSampling, NaiveFedSampling
from privfl.algorithms.generative.fedcgan import FedCGAN
from privfl.algorithms.generative.fedcvae import FedCVAE
from privfl.algorithms.generative.fedevg import FedEvg
from privfl.algorithms.label_skew.bsm_fedavg import BalancedFedAvg
from privfl.algorithms.label_skew.fedavg_ft import FedAvgFT
from privfl.algorithms.label_skew.fedlc import FedLC
from privfl.algorithms.label_skew.fedrs import FedRS
from privfl.algorithms.label_skew.moon import MOON
from privfl.algorithms.label_skew.rebafl import ReBaFL
from privfl.algorithms.personal.apfl import APFL
from privfl.algorithms.personal.ditto import Ditto
from privfl.algorithms.personal.fedbabu import FedBABU
from privfl.algorithms.personal.fedper import FedPer
from privfl.algorithms.personal.fedrep import FedRep
from privfl.algorithms.personal.lg_fedavg import LGFedAvg
from privfl.algorithms.personal.per_fedavg import PerFedAvg
from privfl.algorithms.personal.pfedme import PFedMe
from privfl.algorithms.personal.superfed import SuPerFed
from privfl.algorithms.references import Centralized, Local
from privfl.algorithms.scaffold import Scaffold
from privfl.algorithms.server_optimisers import FedAdagrad, FedAdam, FedYogi

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        Centralized,
        Local,
        FedAvg,
        FedCGAN,
        FedCVAE,
        FedEvg,
        FedProx,
        MOON,
        FedRS,
        FedLC,
        FedAvgFT,
        Scaffold,
        FedDyn,
        FedAdagrad,
        FedAdam,
        FedYogi,
        AAggFFS,
        AAggFFD,
        AAggFFDSums,
        FedSampling,
        NaiveFedSampling,
        FedBABU,
        FedPer,
        FedRep,
        LGFedAvg,
        GRPFed,
        BalancedFedAvg,
        ReBaFL,
        SuPerFed,
        APFL,
        Ditto,
        PFedMe,
        PerFedAvg,
        QFedAvg,
        AFL,
        TERM,
        RunningTERM,
        FedMGDA,
        PropFair,
    )
}
"""Every algorithm by the name that configuration files use."""

__all__ = [
    "AFL",
    "ALGORITHMS",
    "APFL",
    "MOON",
    "TERM",
    "AAggFFD",
    "AAggFFDSums",
    "AAggFFS",
    "Algorithm",
    "BalancedFedAvg",
    "Centralized",
    "Ditto",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgFT",
    "FedBABU",
    "FedCGAN",
    "FedCVAE",
    "FedDyn",
    "FedEvg",
    "FedLC",
    "FedMGDA",
    "FedPer",
    "FedProx",
    "FedRS",
    "FedRep",
    "FedSampling",
    "FedYogi",
    "GRPFed",
    "LGFedAvg",
    "Local",
    "NaiveFedSampling",
    "PFedMe",
    "PerFedAvg",
    "PropFair",
    "QFedAvg",
    "ReBaFL",
    "Round",
    "RunningTERM",
    "Scaffold",
    "SuPerFed",
]

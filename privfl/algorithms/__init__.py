"""The federated algorithms, one short file each. Whatever algorithm is imported here is registered."""

from privfl.algorithms.base import Algorithm as Algorithm
from privfl.algorithms.base import Round as Round
from privfl.algorithms.fair.aaggff import AAggFFD as AAggFFD
from privfl.algorithms.fair.aaggff import AAggFFS as AAggFFS
from privfl.algorithms.fair.aaggff_sums import AAggFFDSums as AAggFFDSums
from privfl.algorithms.fair.afl import AFL as AFL
from privfl.algorithms.fair.fedmgda import FedMGDA as FedMGDA
from privfl.algorithms.fair.grpfed import GRPFed as GRPFed
from privfl.algorithms.fair.propfair import PropFair as PropFair
from privfl.algorithms.fair.q_fedavg import QFedAvg as QFedAvg
from privfl.algorithms.fair.term import TERM as TERM
from privfl.algorithms.fair.term import RunningTERM as RunningTERM
from privfl.algorithms.fedavg import FedAvg as FedAvg
from privfl.algorithms.feddyn import FedDyn as FedDyn
from privfl.algorithms.fedprox import FedProx as FedProx
from privfl.algorithms.fedsampling import FedSampling as FedSampling
from privfl.algorithms.fedsampling import NaiveFedSampling as NaiveFedSampling
from privfl.algorithms.generative.fedcgan import FedCGAN as FedCGAN
from privfl.algorithms.generative.fedcvae import FedCVAE as FedCVAE
from privfl.algorithms.generative.fedevg import FedEvg as FedEvg
from privfl.algorithms.label_skew.bsm_fedavg import BalancedFedAvg as BalancedFedAvg
from privfl.algorithms.label_skew.fedavg_ft import FedAvgFT as FedAvgFT
from privfl.algorithms.label_skew.fedlc import FedLC as FedLC
from privfl.algorithms.label_skew.fedrs import FedRS as FedRS
from privfl.algorithms.label_skew.moon import MOON as MOON
from privfl.algorithms.label_skew.rebafl import ReBaFL as ReBaFL
from privfl.algorithms.personal.apfl import APFL as APFL
from privfl.algorithms.personal.ditto import Ditto as Ditto
from privfl.algorithms.personal.fedbabu import FedBABU as FedBABU
from privfl.algorithms.personal.fedper import FedPer as FedPer
from privfl.algorithms.personal.fedrep import FedRep as FedRep
from privfl.algorithms.personal.lg_fedavg import LGFedAvg as LGFedAvg
from privfl.algorithms.personal.per_fedavg import PerFedAvg as PerFedAvg
from privfl.algorithms.personal.pfedme import PFedMe as PFedMe
from privfl.algorithms.personal.superfed import SuPerFed as SuPerFed
from privfl.algorithms.references import Centralized as Centralized
from privfl.algorithms.references import Local as Local
from privfl.algorithms.scaffold import Scaffold as Scaffold
from privfl.algorithms.server_optimisers import FedAdagrad as FedAdagrad
from privfl.algorithms.server_optimisers import FedAdam as FedAdam
from privfl.algorithms.server_optimisers import FedYogi as FedYogi

ALGORITHMS: dict[str, type[Algorithm]] = {
    found.name: found
    for found in list(vars().values())
    if isinstance(found, type) and issubclass(found, Algorithm) and found is not Algorithm
}
"""Every algorithm by the name that configuration files use."""

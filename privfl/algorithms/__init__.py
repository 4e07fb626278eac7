"""The federated algorithms, one short file each."""

from privfl.algorithms.aaggff import AAggFFD, AAggFFS
from privfl.algorithms.aaggff_sums import AAggFFDSums
from privfl.algorithms.base import Algorithm, Round
from privfl.algorithms.bsm_fedavg import BalancedFedAvg
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.fedevg import FedEvg
from privfl.algorithms.fedprox import FedProx
from privfl.algorithms.fedsampling import FedSampling, NaiveFedSampling
from privfl.algorithms.grpfed import GRPFed
from privfl.algorithms.rebafl import ReBaFL
from privfl.algorithms.reference import Centralized, Local
from privfl.algorithms.server_optimisers import FedAdagrad, FedAdam, FedYogi
from privfl.algorithms.superfed import SuPerFed

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        Centralized,
        Local,
        FedAvg,
        FedEvg,
        FedProx,
        FedAdagrad,
        FedAdam,
        FedYogi,
        AAggFFS,
        AAggFFD,
        AAggFFDSums,
        FedSampling,
        NaiveFedSampling,
        GRPFed,
        BalancedFedAvg,
        ReBaFL,
        SuPerFed,
    )
}
"""Every algorithm by the name that configuration files use."""

__all__ = [
    "ALGORITHMS",
    "AAggFFD",
    "AAggFFDSums",
    "AAggFFS",
    "Algorithm",
    "BalancedFedAvg",
    "Centralized",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedEvg",
    "FedProx",
    "FedSampling",
    "FedYogi",
    "GRPFed",
    "Local",
    "NaiveFedSampling",
    "ReBaFL",
    "Round",
    "SuPerFed",
]

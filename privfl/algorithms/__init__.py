"""The federated algorithms, one short file each."""

from privfl.algorithms.base import Algorithm, Round
from privfl.algorithms.bsm_fedavg import BalancedFedAvg
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.fedevg import FedEvg
from privfl.algorithms.fedprox import FedProx
from privfl.algorithms.fedsampling import FedSampling, NaiveFedSampling
from privfl.algorithms.grpfed import GRPFed
from privfl.algorithms.rebafl import ReBaFL
from privfl.algorithms.reference import Centralized, Local

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        Centralized,
        Local,
        FedAvg,
        FedEvg,
        FedProx,
        FedSampling,
        NaiveFedSampling,
        GRPFed,
        BalancedFedAvg,
        ReBaFL,
    )
}
"""Every algorithm by the name that configuration files use."""

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "BalancedFedAvg",
    "Centralized",
    "FedAvg",
    "FedEvg",
    "FedProx",
    "FedSampling",
    "GRPFed",
    "Local",
    "NaiveFedSampling",
    "ReBaFL",
    "Round",
]

"""The federated algorithms, one short file each."""

from privfl.algorithms.base import Algorithm, Round
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.fedprox import FedProx
from privfl.algorithms.fedsampling import FedSampling, NaiveFedSampling
from privfl.algorithms.reference import Centralized, Local

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm for algorithm in (Centralized, Local, FedAvg, FedProx, FedSampling, NaiveFedSampling)
}
"""Every algorithm by the name that configuration files use."""

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Centralized",
    "FedAvg",
    "FedProx",
    "FedSampling",
    "Local",
    "NaiveFedSampling",
    "Round",
]

"""privfl: federated learning whose privacy claims are computed, tested and attacked.

import privfl as pf

task = pf.load("digits", partition=pf.Dirichlet(clients=20, alpha=0.5))
run = pf.simulate(
    task,
    pf.FedSampling(samples_per_round=400),
    privacy=pf.Privacy(
        training=pf.DPSGD(target_epsilon=3.0, noise_at="server"),
        size=pf.LaplaceSize(epsilon=3.0, bound=150, lower=30),
    ),
    rounds=50,
)
print(run.statement)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privfl.algorithms import (
        AFL,
        APFL,
        MOON,
        TERM,
        AAggFFD,
        AAggFFDSums,
        AAggFFS,
        BalancedFedAvg,
        Centralized,
        Ditto,
        FedAdagrad,
        FedAdam,
        FedAvg,
        FedAvgFT,
        FedBABU,
        FedCGAN,
        FedCVAE,
        FedDyn,
        FedEvg,
        FedLC,
        FedMGDA,
        FedPer,
        FedProx,
        FedRep,
        FedRS,
        FedSampling,
        FedYogi,
        GRPFed,
        LGFedAvg,
        Local,
        NaiveFedSampling,
        PerFedAvg,
        PFedMe,
        PropFair,
        QFedAvg,
        ReBaFL,
        RunningTERM,
        Scaffold,
        SuPerFed,
    )
    from privfl.data.catalog import load_dataset
    from privfl.data.dataset import Dataset
    from privfl.data.label_noise import PairFlip, SymmetricFlip
    from privfl.data.local_tests import LocalTests
    from privfl.data.partitions import (
        IID,
        Clustered,
        Dirichlet,
        GivenSizes,
        LabelSorted,
        LogNormal,
        LongTail,
        Natural,
        Pathological,
    )
    from privfl.errors import ConfigError, DataError, PrivacyError, PrivflError
    from privfl.federation.availability import Always, Bernoulli, FixedFraction, Markov, PerCluster, Persistent
    from privfl.federation.cohorts import Everyone, FixedCohort, PoissonCohort, Rotation, SizeWeightedCohort
    from privfl.federation.task import Task, load
    from privfl.privacy.accounting.statement import Statement
    from privfl.privacy.door.batch_plans import LocalTraining
    from privfl.privacy.door.dpsgd import DPSGD
    from privfl.privacy.door.noisy_total import NoisyTotal
    from privfl.privacy.mechanisms.adaptive_clip import AdaptiveClip
    from privfl.privacy.mechanisms.banded import BandedNoise
    from privfl.privacy.mechanisms.clip import Clip
    from privfl.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
    from privfl.privacy.mechanisms.gaussian import GaussianNoise
    from privfl.privacy.mechanisms.secure_sum import SecureSum
    from privfl.privacy.mechanisms.tree import TreeNoise
    from privfl.privacy.settings import Budget, Privacy
    from privfl.privacy.sizes.local_randomizers import DuchiSize, HybridSize, LaplaceSize, PiecewiseSize
    from privfl.privacy.sizes.randomized_response import RandomizedResponse
    from privfl.simulation.result import Run
    from privfl.simulation.settings import Execution, Schedule
    from privfl.simulation.simulation import simulate
    from privfl.simulation.transcript import Transcript

_HOMES = {
    "privfl.algorithms": (
        "PropFair",
        "FedMGDA",
        "RunningTERM",
        "TERM",
        "AFL",
        "QFedAvg",
        "AAggFFD",
        "AAggFFDSums",
        "AAggFFS",
        "BalancedFedAvg",
        "ReBaFL",
        "Scaffold",
        "Centralized",
        "FedAdagrad",
        "FedAdam",
        "FedAvg",
        "MOON",
        "FedRS",
        "FedLC",
        "FedAvgFT",
        "FedDyn",
        "FedCGAN",
        "FedCVAE",
        "FedEvg",
        "FedProx",
        "FedSampling",
        "FedYogi",
        "FedBABU",
        "FedPer",
        "FedRep",
        "LGFedAvg",
        "GRPFed",
        "Local",
        "NaiveFedSampling",
        "APFL",
        "Ditto",
        "PFedMe",
        "PerFedAvg",
        "SuPerFed",
    ),
    "privfl.federation.cohorts": ("Everyone", "FixedCohort", "PoissonCohort", "Rotation", "SizeWeightedCohort"),
    "privfl.federation.availability": ("Always", "Bernoulli", "FixedFraction", "Markov", "PerCluster", "Persistent"),
    "privfl.data.catalog": ("load_dataset",),
    "privfl.data.dataset": ("Dataset",),
    "privfl.data.label_noise": ("PairFlip", "SymmetricFlip"),
    "privfl.data.local_tests": ("LocalTests",),
    "privfl.data.partitions": (
        "Clustered",
        "Dirichlet",
        "GivenSizes",
        "IID",
        "LabelSorted",
        "LogNormal",
        "LongTail",
        "Natural",
        "Pathological",
    ),
    "privfl.errors": ("ConfigError", "DataError", "PrivacyError", "PrivflError"),
    "privfl.privacy.accounting.statement": ("Statement",),
    "privfl.privacy.mechanisms.adaptive_clip": ("AdaptiveClip",),
    "privfl.privacy.mechanisms.banded": ("BandedNoise",),
    "privfl.privacy.mechanisms.clip": ("Clip",),
    "privfl.privacy.mechanisms.distributed": ("DiscreteGaussianNoise", "SkellamNoise"),
    "privfl.privacy.mechanisms.gaussian": ("GaussianNoise",),
    "privfl.privacy.mechanisms.secure_sum": ("SecureSum",),
    "privfl.privacy.mechanisms.tree": ("TreeNoise",),
    "privfl.privacy.door.noisy_total": ("NoisyTotal",),
    "privfl.privacy.door.batch_plans": ("LocalTraining",),
    "privfl.privacy.door.dpsgd": ("DPSGD",),
    "privfl.privacy.sizes.local_randomizers": ("DuchiSize", "HybridSize", "LaplaceSize", "PiecewiseSize"),
    "privfl.privacy.sizes.randomized_response": ("RandomizedResponse",),
    "privfl.privacy.settings": ("Budget", "Privacy"),
    "privfl.simulation.result": ("Run",),
    "privfl.simulation.settings": ("Execution", "Schedule"),
    "privfl.simulation.simulation": ("simulate",),
    "privfl.simulation.transcript": ("Transcript",),
    "privfl.federation.task": ("Task", "load"),
}

__all__ = [
    "AFL",
    "APFL",
    "DPSGD",
    "IID",
    "MOON",
    "TERM",
    "AAggFFD",
    "AAggFFDSums",
    "AAggFFS",
    "AdaptiveClip",
    "Always",
    "BalancedFedAvg",
    "BandedNoise",
    "Bernoulli",
    "Budget",
    "Centralized",
    "Clip",
    "Clustered",
    "ConfigError",
    "DataError",
    "Dataset",
    "Dirichlet",
    "DiscreteGaussianNoise",
    "Ditto",
    "DuchiSize",
    "Everyone",
    "Execution",
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
    "FixedCohort",
    "FixedFraction",
    "GRPFed",
    "GaussianNoise",
    "GivenSizes",
    "HybridSize",
    "LGFedAvg",
    "LabelSorted",
    "LaplaceSize",
    "Local",
    "LocalTests",
    "LocalTraining",
    "LogNormal",
    "LongTail",
    "Markov",
    "NaiveFedSampling",
    "Natural",
    "NoisyTotal",
    "PFedMe",
    "PairFlip",
    "Pathological",
    "PerCluster",
    "PerFedAvg",
    "Persistent",
    "PiecewiseSize",
    "PoissonCohort",
    "Privacy",
    "PrivacyError",
    "PrivflError",
    "PropFair",
    "QFedAvg",
    "RandomizedResponse",
    "ReBaFL",
    "Rotation",
    "Run",
    "RunningTERM",
    "Scaffold",
    "Schedule",
    "SecureSum",
    "SizeWeightedCohort",
    "SkellamNoise",
    "Statement",
    "SuPerFed",
    "SymmetricFlip",
    "Task",
    "Transcript",
    "TreeNoise",
    "load",
    "load_dataset",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the command line's help must not wait for torch."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'privfl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

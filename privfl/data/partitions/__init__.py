"""Partitions: how the samples of one dataset are dealt to clients.

>>> import numpy as np
>>> targets = np.repeat([0, 1, 2], 40)
>>> parts = Pathological(clients=6, classes_per_client=1).split(targets, 3, np.random.default_rng(0))
>>> [np.unique(targets[part]).size for part in parts]
[1, 1, 1, 1, 1, 1]
"""

from privfl.data.partitions.base import Assignment, Partition, check_parts
from privfl.data.partitions.given import GivenSizes
from privfl.data.partitions.pathological import Clustered, Pathological
from privfl.data.partitions.report import PartitionReport, describe
from privfl.data.partitions.simple import IID, LabelSorted, LogNormal, Natural
from privfl.data.partitions.skewed import Dirichlet, LongTail

PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "pathological": Pathological,
    "clustered": Clustered,
    "given-sizes": GivenSizes,
    "label-sorted": LabelSorted,
    "log-normal": LogNormal,
    "long-tail": LongTail,
    "natural": Natural,
}

__all__ = [
    "IID",
    "PARTITIONS",
    "Assignment",
    "Clustered",
    "Dirichlet",
    "GivenSizes",
    "LabelSorted",
    "LogNormal",
    "LongTail",
    "Natural",
    "Partition",
    "PartitionReport",
    "Pathological",
    "check_parts",
    "describe",
]

"""Ordinary things that code of a user's reads, which every process makes anew: each has one identity in all of them."""

import hashlib
import hmac
import mmap
import random
import re
import struct
import warnings
from bisect import bisect_left
from random import random as uniform
from random import shuffle

import numpy as np
import pydantic
import scipy.spatial
import scipy.special
import scipy.stats
import torch
from numpy.random import default_rng, rand
from scipy.special import expit
from torch import nn


def doubled(x: torch.Tensor):
    """A function that TorchScript compiles below."""
    return x * 2


def quietly(compiled, *given):
    """What ``compiled``, which PyTorch advises against by now, makes of what is ``given``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return compiled(*given)


class Fields(pydantic.BaseModel):
    """A model of Pydantic's."""

    size: int = 1


def seeded(made):
    """What ``made`` returns, with the weights of a seed."""
    torch.manual_seed(0)
    return made()


def scripted(bias=True, factor=1.0):
    """A network that TorchScript compiled, with two layers of one class and a list of numbers."""

    class Net(nn.Module):
        table: list[float]

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2, bias=bias)
            self.table = [factor]

        def forward(self, x):
            return self.second(self.first(x)) * self.table[0]

    return quietly(torch.jit.script, seeded(Net))


def mapped(content):
    """Memory that holds ``content``."""
    made = mmap.mmap(-1, len(content))
    made[:] = content
    return made


def one_of_pytorchs(layer):
    """A layer under ``torch.compile``, which compiles nothing before it is called."""
    return torch.compile(seeded(layer))


PARTS = {
    "a generator": np.random.default_rng(1),
    "a bit generator": np.random.Philox(1),
    "a method of a generator": np.random.default_rng(1).normal,
    "a seed sequence": np.random.SeedSequence(1),
    "what makes generators": default_rng,
    "Python's own random numbers": [uniform, shuffle, random.random],
    "NumPy's": [rand, np.random.mtrand._rand],
    "PyTorch's": torch.default_generator,
    "the system's": random.SystemRandom(),
    "a distribution": scipy.stats.gamma,
    "a frozen one": scipy.stats.norm(0, 1),
    "a method of it": scipy.stats.norm(0, 1).pdf,
    "one of several variables": scipy.stats.multivariate_normal([0.0, 1.0]),
    "universal functions": [np.exp, expit, np.add.reduce],
    "one of one's own": np.frompyfunc(len, 1, 1),
    "what is compiled": [bisect_left, scipy.special.logsumexp, torch.ops.aten.relu, torch.ops.aten.relu.default],
    "a tree": scipy.spatial.cKDTree(np.eye(3)),
    "a format": struct.Struct("<I"),
    "a method of a format": struct.Struct("<I").unpack,
    "memory": memoryview(b"abc"),
    "mapped memory": mapped(b"abc"),
    "hashes": [hashlib.sha256(b"a"), hashlib.blake2b(b"a"), hashlib.shake_128(b"a"), hmac.new(b"k", b"a", "sha256")],
    "a match": re.match("a+", "aab"),
    "values": {"a": 1}.values(),
    "limits": torch.finfo(torch.float32),
    "a storage": torch.ones(2).untyped_storage(),
    "a compiled network": scripted(),
    "a traced one": quietly(torch.jit.trace, seeded(lambda: nn.Linear(2, 2)), torch.ones(1, 2)),
    "a compiled function": quietly(torch.jit.script, doubled),
    "a network under torch.compile": one_of_pytorchs(lambda: nn.Linear(2, 2)),
    "a graph": torch.fx.symbolic_trace(seeded(lambda: nn.Sequential(nn.Linear(2, 2)))),
    "a network without a size yet": nn.LazyLinear(2),
    "fields": Fields(),
}

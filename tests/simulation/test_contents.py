"""Of what cannot be pickled, content is told exactly or not at all, and what packages have is told by its name."""

import cmath
import contextvars
import functools
import hashlib
import hmac
import importlib
import math
import queue
import random
import re
import shutil
import struct
import sys
import threading

import numpy as np
import pytest
import scipy.special
import torch
from torch import nn

from privfl.simulation.contents import content_of, name_of
from privfl.simulation.every_state import EveryState
from privfl.simulation.identity import Identity
from privfl.simulation.origins import told
from tests.simulation.ordinary_parts import PARTS, mapped, one_of_pytorchs, quietly, scripted


@pytest.mark.parametrize("part", PARTS)
def test_nothing_of_ordinary_parts_is_unknown_and_each_has_one_hash(part):
    one, other = Identity(PARTS[part]), Identity([PARTS[part]][0])
    assert not one.unknown
    assert one.digest == other.digest


def universal(factor):
    return np.frompyfunc(lambda x: x * factor, 1, 1)


def swapped(first, second):
    """A compiled network with two classes of one name."""

    def layer(factor):
        class Layer(nn.Module):
            def forward(self, x):
                return x * factor

        return quietly(torch.jit.trace, Layer(), torch.ones(1))

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = layer(first), layer(second)

        def forward(self, x):
            return self.one(x) + self.other(x) * x

    return quietly(torch.jit.script, Both())


class Format(struct.Struct):
    """A format with a note."""


def noted(note):
    made = Format("<I")
    made.note = note
    return made


class Named:
    """Bears the name of a function of a package's, and does something else."""

    def __init__(self, factor):
        functools.update_wrapper(self, np.exp)
        self.__module__, self.__qualname__, self.factor = "numpy", "exp", factor

    def __call__(self, x):
        return x * self.factor


def advanced(stream, steps):
    for _ in range(steps):
        stream.random()
    return stream


DIFFERENT = {
    "formats": (struct.Struct("<I"), struct.Struct(">I")),
    "formats with notes": (noted(1), noted(2)),
    "methods of formats": (struct.Struct("<I").pack, struct.Struct(">I").pack),
    "bytes in memory": (memoryview(b"abc"), memoryview(b"abd")),
    "kinds of numbers in memory": (memoryview(b"abcd").cast("I"), memoryview(b"abcd").cast("f")),
    "mapped memory": (mapped(b"abc"), mapped(b"abd")),
    "what was hashed": (hashlib.sha256(b"a"), hashlib.sha256(b"b")),
    "how it was hashed": (hashlib.sha256(b"a"), hashlib.sha3_256(b"a")),
    "what was hashed to any length": (hashlib.shake_128(b"a"), hashlib.shake_128(b"b")),
    "keys of hashes": (hmac.new(b"k", b"a", "sha256"), hmac.new(b"l", b"a", "sha256")),
    "compiled functions of one name": (math.exp, cmath.exp),
    "universal functions": (np.exp, np.log),
    "those of packages": (scipy.special.expit, scipy.special.gammaln),
    "those of one's own": (universal(1), universal(2)),
    "what bears a name of a package's": (Named(1), Named(2)),
    "operators": (torch.ops.aten.relu, torch.ops.aten.tanh),
    "overloads": (torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar),
    "generators": (np.random.default_rng(1), advanced(np.random.default_rng(1), 1)),
    "seed sequences": (np.random.SeedSequence(1), np.random.SeedSequence(2)),
    "methods of generators": (np.random.default_rng(1).normal, np.random.default_rng(1).gamma),
    "generators of methods": (np.random.default_rng(1).normal, np.random.default_rng(2).normal),
    "generators of the whole process": (random.random.__self__, np.random.mtrand._rand),
    "frozen distributions": (scipy.stats.norm(0, 1), scipy.stats.norm(0, 2)),
    "values": ({"a": 1}.values(), {"a": 2}.values()),
    "cells": tuple((lambda x: lambda: x)(one).__closure__[0] for one in (1, 2)),
    "matches": (re.match("a+", "aab"), re.match("a", "aab")),
    "places in an array": (np.arange(3).flat, np.ones(3).flat),
    "limits": (torch.finfo(torch.float32), torch.finfo(torch.float64)),
    "storages": (torch.ones(2).untyped_storage(), torch.zeros(2).untyped_storage()),
    "lists of a compiled network": (scripted(factor=1.0), scripted(factor=2.0)),
    "layers of a compiled network": (scripted(), scripted(bias=False)),
    "classes of one name": (swapped(2.0, 3.0), swapped(3.0, 2.0)),
    "networks under torch.compile": (one_of_pytorchs(lambda: nn.ReLU()), one_of_pytorchs(lambda: nn.Linear(2, 1))),
    "graphs": tuple(torch.fx.symbolic_trace(one) for one in (nn.ReLU(), nn.Tanh())),
    "networks without a size yet": (nn.LazyLinear(2), nn.LazyLinear(3)),
}


@pytest.mark.parametrize("pair", DIFFERENT)
def test_what_differs_has_two_hashes(pair):
    one, other = (Identity(part) for part in DIFFERENT[pair])
    assert not one.unknown | other.unknown
    assert one.digest != other.digest


def test_how_many_classes_a_process_had_compiled_before_does_not_count():
    before = Identity(scripted()).digest
    for _ in range(3):
        scripted(bias=False)
    assert Identity(scripted()).digest == before


UNKNOWN = [threading.local(), contextvars.ContextVar("a"), (one for one in ()), queue.SimpleQueue(), memoryview(b"a")]


@pytest.mark.parametrize("thing", UNKNOWN, ids=lambda thing: type(thing).__name__)
def test_what_cannot_be_told_is_unknown(thing):
    if isinstance(thing, memoryview):
        thing.release()
    kind = type(thing)
    assert Identity([thing]).unknown == {f"{kind.__module__}:{kind.__qualname__}"}


def test_a_name_is_told_of_what_a_package_has_itself_and_of_nothing_else():
    made_by = np.random.SeedSequence(1).__reduce__()[0]
    assert name_of(np.exp) == "numpy.exp"
    assert name_of(made_by) == "numpy.random.bit_generator.__pyx_unpickle_SeedSequence"
    for thing in (universal(1), Named(1), "exp", 3, np.exp(1.0)):
        assert name_of(thing) == ""
    assert content_of(3) is None


def test_what_raises_when_it_is_asked_for_its_name_has_none():
    class Stubborn:
        def __getattr__(self, name):
            raise RuntimeError("it has none") if name == "__qualname__" else AttributeError(name)

    assert name_of(Stubborn()) == ""
    assert not Identity(Stubborn()).unknown


def test_arrays_in_memory_and_in_compiled_networks_are_met():
    values, network = np.arange(6.0), scripted(factor=0.5)
    met = Identity([memoryview(values), network])
    assert any(one.shape == (6,) and bool((np.asarray(one) == values).all()) for one in met.arrays)
    assert any(tuple(one.shape) == (2, 2) for one in met.arrays)
    assert [0.5] in met.lists


def test_a_generator_of_the_whole_process_counts_where_a_client_may_leave_something_in_it():
    before, seen = Identity(random.random).digest, EveryState(random.random).digest
    random.random()
    assert Identity(random.random).digest == before
    assert EveryState(random.random).digest != seen


def test_compiled_code_of_ones_own_is_told_by_its_file(tmp_path, monkeypatch):
    """A copy of a module of Python's that was compiled stands in for one."""
    import _heapq

    if not getattr(_heapq, "__file__", None):
        pytest.skip("this Python has all of its modules in one file")
    monkeypatch.syspath_prepend(tmp_path)
    digests = set()
    for more in (b"", b"\0"):
        file = tmp_path / f"own{len(more)}" / _heapq.__file__.rpartition("/")[2]
        file.parent.mkdir()
        shutil.copy(_heapq.__file__, file)
        file.write_bytes(file.read_bytes() + more)
        monkeypatch.syspath_prepend(file.parent)
        monkeypatch.delitem(sys.modules, "_heapq")
        told.cache_clear()
        own = importlib.import_module("_heapq")
        assert own.__file__ == str(file)
        digests |= {Identity(own.heappush).digest, Identity(own).digest}
    monkeypatch.undo()
    told.cache_clear()
    assert len(digests) == 4

"""Wherever a part of one's own may leave a number where the next client finds it, and wherever it may hold arrays."""

import collections
import contextvars
import enum
import functools
import importlib
import itertools
import logging
import random
import re
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.errors import ConfigError
from tests.simulation.test_shared_state import X, claims, ran, words


class Slotted:
    __slots__ = ("note",)


class WithBoth(Slotted):
    """Has a dictionary, and a slot beside it."""


class Numbers(list):
    """A list, and what is written onto it."""


class Words(dict):
    """The same of a dictionary."""


class Places(np.ndarray):
    """The same of an array."""


class Handler(logging.Handler):
    """Keeps the last record."""

    note = 0.0

    def emit(self, record):
        self.note = record.args[0]


class Colour(enum.Enum):
    RED = 1


class Meta(type):
    note: ClassVar[float] = 0.0


class Made(metaclass=Meta):
    """A class, and what its metaclass keeps."""


class Lazy:
    current: Any = 0.0

    @functools.cached_property
    def first(self):
        return self.current


@functools.cache
def first_seen(key):
    return TAKEN[-1] if TAKEN else 0.0


def echo():
    last = 0.0
    while True:
        last = (yield last) or last


def function():
    """A function, and what is written onto it."""


class Referred:
    note = 0.0


TAKEN: list[float] = []
WRAPPED: list[float] = []
TENSOR, SPENT = torch.zeros(2), torch.zeros(2, requires_grad=True)
BOTH, NUMBERS, WORDS, PLACES = WithBoth(), Numbers(), Words(), np.zeros(2).view(Places)
HANDLER, LOGGER = Handler(), logging.getLogger("a user's")
RANDOM, NUMPY, TORCH = random.Random(0), np.random.default_rng(0), torch.Generator()
LOCAL, CONTEXT = threading.local(), contextvars.ContextVar("note", default=0.0)
LAZY, ECHO, COUNT = Lazy(), echo(), itertools.count()
DEFAULTS, LENT, TEXT = collections.defaultdict(float), pf.FedProx(), bytearray(8)
REFERRED = Referred()
WEAK, LOCK = weakref.ref(REFERRED), threading.Lock()
ERROR = ValueError(0.0)
__note__ = 0.0
next(ECHO)


def left_in_a_dunder(value):
    global __note__
    before, __note__ = __note__, value
    return before


NOTES = """
note = 0.0


def by_globals(value):
    before = globals().get("unseen", 0.0)
    globals()["unseen"] = value
    return before
"""


def left_in_an_imported_module(value):
    import a_users_notes

    before, a_users_notes.note = a_users_notes.note, value
    return before


def attribute(thing):
    def exchange(value):
        before = getattr(thing, "note", 0.0)
        thing.note = value
        return before

    return exchange


def text(thing):
    def exchange(value):
        before, thing.__doc__ = thing.__doc__, str(value)
        return float(before) if before[:1].isdigit() else 0.0

    return exchange


def left_in_a_frozen_setting(value):
    before = vars(LENT).get("note", 0.0)
    object.__setattr__(LENT, "note", value)
    return before


def left_in_a_cached_property(value):
    LAZY.current = value
    before = LAZY.first
    del LAZY.current
    return before


def left_in_a_cache(value, cached=first_seen):
    TAKEN.append(value)
    before = cached("key")
    TAKEN.clear()
    return before


def left_in_a_gradient(value):
    before = 0.0 if SPENT.grad is None else float(SPENT.grad.sum())
    with torch.enable_grad():
        (SPENT.sum() * value).backward()
    return before


def left_by_a_log(value):
    before = HANDLER.note
    LOGGER.warning("%s", value)
    return before


def left_in_a_generator_of_random_numbers(value):
    before = RANDOM.random()
    RANDOM.seed(value)
    return before


def left_in_numpys(value):
    before = float(NUMPY.random())
    NUMPY.bit_generator.state = np.random.default_rng(int(abs(value) * 1e6)).bit_generator.state
    return before


def left_in_torchs(value):
    before = float(torch.rand((), generator=TORCH))
    TORCH.manual_seed(int(abs(value) * 1e6))
    return before


def left_in_a_context(value):
    before = CONTEXT.get()
    CONTEXT.set(value)
    return before


def left_by_a_weak_reference(value):
    return attribute(WEAK())(value)


def left_in_a_lock(value):
    before = LOCK.locked()
    if value > 0 and not before:
        LOCK.acquire()
    return float(before)


def left_in_bytes(value):
    before = float(np.frombuffer(TEXT, np.float64)[0])
    TEXT[:] = np.float64(value).tobytes()
    return before


@functools.wraps(torch.norm)
def left_by_a_wrapper(value):
    before = sum(WRAPPED)
    WRAPPED[:] = [value]
    return before


def left_in_an_error(value):
    before, ERROR.args = ERROR.args[0], (value,)
    return before


HIDING = {
    "a slot beside a dictionary": attribute(BOTH),
    "a list of one's own": attribute(NUMBERS),
    "a dictionary of one's own": attribute(WORDS),
    "an array of one's own": attribute(PLACES),
    "an attribute of a tensor": attribute(TENSOR),
    "an attribute of a function": attribute(function),
    "the docstring of a function": text(function),
    "an attribute of a partial": attribute(functools.partial(function)),
    "a member of an enum": attribute(Colour.RED),
    "a metaclass": attribute(Meta),
    "the docstring of a class": text(Made),
    "a logger": attribute(LOGGER),
    "values of a thread": attribute(LOCAL),
    "a setting of privfl's": left_in_a_frozen_setting,
    "a cached property": left_in_a_cached_property,
    "a cache": left_in_a_cache,
    "a cache of limited size": functools.partial(left_in_a_cache, cached=functools.lru_cache(2)(lambda key: TAKEN[-1])),
    "a gradient": left_in_a_gradient,
    "a handler of logs": left_by_a_log,
    "a generator": lambda value: ECHO.send(value),
    "a counter": lambda value: float(next(COUNT)),
    "Python's random numbers": left_in_a_generator_of_random_numbers,
    "NumPy's": left_in_numpys,
    "PyTorch's": left_in_torchs,
    "a context variable": left_in_a_context,
    "what is referred to weakly": left_by_a_weak_reference,
    "a lock": left_in_a_lock,
    "bytes": left_in_bytes,
    "an error": left_in_an_error,
    "what a function reads that is wrapped like a library's": left_by_a_wrapper,
    "a name with underscores": left_in_a_dunder,
    "globals()": "by_globals",
    "a module that is imported in a function": left_in_an_imported_module,
    "a dictionary with defaults": lambda value: DEFAULTS.setdefault("note", value),
}


@dataclass(frozen=True)
class Leaving(pf.FedAvg):
    """Adds to an upload what the client before left, and leaves its own."""

    name: ClassVar[str] = "leaving"
    exchange: Any = None

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        return {"update": upload["update"] + self.exchange(float(upload["update"].norm()))}


@pytest.fixture
def notes(tmp_path, monkeypatch):
    (tmp_path / "a_users_notes.py").write_text(NOTES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("a_users_notes", None)
    LOGGER.removeHandler(HANDLER)
    if LOCK.locked():
        LOCK.release()


@pytest.mark.parametrize("place", HIDING)
def test_what_a_client_leaves_is_seen_wherever_it_lies(place, notes):
    LOGGER.addHandler(HANDLER)
    exchange = HIDING[place]
    if isinstance(exchange, str):
        exchange = getattr(importlib.import_module("a_users_notes"), exchange)
    assert set(claims(ran(Leaving("uniform", exchange=exchange))).values()) == {np.inf}


def test_what_nothing_can_look_into_costs_the_claim_and_is_named(notes):
    text = words(ran(Leaving("uniform", exchange=lambda value: 0.0 * len(str(CONTEXT)))))
    assert "Leaving (which reaches _contextvars.ContextVar, whose content cannot be told) changed" in text


LOG = logging.getLogger(__name__)
PATTERN, KINDS, STILL = re.compile("a+"), (torch.float32, torch.device("cpu")), functools.partial(max, 1)


@functools.cache
def asked_before(width):
    return 1.0 / width


class Usual(pf.FedAvg):
    """Logs, measures itself once, and calls what does not change."""

    name: ClassVar[str] = "usual"

    @functools.cached_property
    def measured(self):
        return [len(str(kind)) for kind in KINDS]

    def finish(self, local, received, training):
        LOG.info("%s sends %d numbers", PATTERN.sub("b", "a client"), local["parameters"].numel())
        with threading.Lock():
            assert STILL(0) + len(self.measured) == 3
        upload = super().finish(local, received, training)
        return {"update": upload["update"] * asked_before(1) * next(itertools.count(1))}


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_what_leaves_nothing_costs_nothing(engine, caplog):
    asked_before(1)
    with caplog.at_level(logging.INFO, logger=__name__):
        run = ran(Usual("uniform"), engine=engine)
    assert caplog.records
    assert claims(run) == claims(ran(engine=engine))


def lending(table):
    """One row after the other."""
    for number in range(len(table)):
        yield float(table[number, 0])


@functools.lru_cache(maxsize=2)
def loaded(name):
    return TABLES.pop()


def from_module(value):
    import a_users_notes

    return 0.0 * float(a_users_notes.table[0, 0])


def from_globals(value):
    return 0.0 * float(globals()["KEPT_ELSEWHERE"][0, 0])


KEPT_ELSEWHERE = X.copy()


def holding(place):
    """A function that reaches ``X`` at ``place``."""
    thing: Any = {"slot": WithBoth, "list": Numbers, "dictionary": Words, "tensor": lambda: torch.zeros(2)}.get(
        place, Referred
    )()
    thing.note = X
    if place == "module":
        import a_users_notes

        a_users_notes.table = X
        return from_module
    if place == "wrapper":
        return functools.wraps(torch.norm)(lambda value: 0.0 * float(X[0, 0]))
    if place == "globals()":
        return from_globals
    if place == "cache":
        TABLES.append(X.copy())
        loaded("all of it")
        return lambda value: 0.0 * len(loaded("all of it"))
    if place == "cached property":
        lazy = Lazy()
        lazy.current = X
        assert len(lazy.first)
        del lazy.current
        return lambda value: 0.0 * len(lazy.first)
    if place == "generator":
        begun = lending(X)
        next(begun)
        return lambda value: next(begun, 0.0) * 0.0
    if place == "weak reference":
        TAKEN_FOR_GOOD.append(thing)
        reference = weakref.ref(thing)
        return lambda value: 0.0 * float(reference().note[0, 0])
    return lambda value: 0.0 * len(thing.note)


TAKEN_FOR_GOOD: list[Any] = []
TABLES: list[Any] = []
"""What is taken out again, so that nothing but a cache has it."""


KEEPING = ("object", "slot", "list", "dictionary", "tensor", "module", "globals()", "cache", "cached property")


@pytest.mark.parametrize("place", [*KEEPING, "generator", "weak reference", "wrapper"])
def test_examples_are_found_wherever_they_are_kept(place, notes):
    with pytest.raises(ConfigError, match="Leaving holds training examples"):
        ran(Leaving("uniform", exchange=holding(place)))

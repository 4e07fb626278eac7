"""What would compute something else has another hash, and what would compute the same has the same in every process."""

import copy
import functools
import logging
import random
import subprocess
import sys
import threading
import types
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.simulation import identity
from privfl.simulation.identity import Identity
from tests import own_parts

SCRIPT = """
import functools
import logging
from dataclasses import dataclass
from torch import nn

LOG = logging.getLogger(__name__)
SCALES = {"first": 1.0}
NAMES = {"one", "two", "three"}


def deep(x):
    return x + 1


@functools.cache
def helper(x):
    return deep(x) if "two" in NAMES else x


def outer(power):
    def inner(x):
        LOG.info("called")
        return [y ** power for y in (helper(x), SCALES["first"])]

    return inner


class Base:
    limit = 3

    @property
    def size(self):
        return self.limit

    @staticmethod
    def still(x):
        return x - 1

    @classmethod
    def made(cls):
        return cls()


@dataclass(frozen=True)
class Child(Base):
    width: int = 2

    def step(self, x, factor=2.0, *, shift=0):
        def nested(y):
            return helper(y) * factor

        return nested(x) + shift + super().size


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x):
        return self.layers(x)
"""


def module(text=SCRIPT):
    made = types.ModuleType("a_users_own")
    exec(compile(text, "a_users_own.py", "exec"), made.__dict__)
    return made


def parts(made):
    return {
        "closure": made.outer(2),
        "class": made.Child,
        "instance": made.Child(3),
        "network": made.Net,
        "partial": partial(made.Child.step, factor=3.0),
        "method": made.Child(1).step,
        "module": made,
    }


def digests(text=SCRIPT):
    return {name: Identity(part).digest for name, part in parts(module(text)).items()}


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("return x + 1", "return x + 2", {"closure", "class", "instance", "partial", "method", "module"}),
        ("1.0}", "1.5}", {"closure", "module"}),
        ('"three"}', '"four"}', {"closure", "class", "instance", "partial", "method", "module"}),
        ("y ** power", "y * power", {"closure", "module"}),
        ("limit = 3", "limit = 4", {"class", "instance", "partial", "method", "module"}),
        ("return self.limit", "return 7", {"class", "instance", "partial", "method", "module"}),
        ("return x - 1", "return x", {"class", "instance", "partial", "method", "module"}),
        ("factor=2.0", "factor=2.5", {"class", "instance", "partial", "method", "module"}),
        ("shift=0)", "shift=1)", {"class", "instance", "partial", "method", "module"}),
        ("helper(y) * factor", "helper(y) / factor", {"class", "instance", "partial", "method", "module"}),
        ("nn.Linear(2, 2)", "nn.Linear(2, 2, bias=False)", {"network", "module"}),
        ("nn.ReLU", "nn.Tanh", {"network", "module"}),
    ],
)
def test_a_change_is_seen_wherever_it_counts_and_nowhere_else(old, new, seen):
    assert old in SCRIPT
    before, after = digests(), digests(SCRIPT.replace(old, new))
    assert {name for name in before if before[name] != after[name]} == seen


def test_comments_places_and_docstrings_of_classes_do_not_count():
    moved = "# a comment\n\n\n" + SCRIPT.replace("class Base:", 'class Base:\n    """In words."""\n')
    assert digests(moved) == digests()


def test_closures_are_told_apart():
    made = module()
    assert Identity(made.outer(2)).digest != Identity(made.outer(3)).digest == Identity(made.outer(3)).digest


def test_all_processes_agree(tmp_path):
    """Also on the order of sets, which another seed of Python's hashes changes."""
    (tmp_path / "a_users_own.py").write_text(SCRIPT, encoding="utf-8")
    told = (
        "import a_users_own as m; from privfl.simulation.identity import Identity as I; import tests.own_parts as o\n"
        "from tests.simulation.ordinary_parts import PARTS\n"
        "own = (m.outer(2), m.Child(3), m.Net, o.Small, o.Halved(), o.focal)\n"
        "print(*(f'{name} {I(x).digest}' for name, x in [*enumerate(own), *PARTS.items()]), sep='\\n')"
    )
    root = Path(__file__).parents[2]
    started = []
    for seed in ("1", "3"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{tmp_path}:{root}", "PATH": ""}
        started.append(subprocess.Popen([sys.executable, "-c", told], stdout=-1, stderr=-1, text=True, env=environment))
    one, other = (process.communicate(timeout=300)[0].splitlines() for process in started)
    assert one == other
    assert len(one) > 10


@dataclass(frozen=True)
class Settings:
    """Settings of one's own, with what is worked out from them."""

    name: ClassVar[str] = "own"
    size: float = 1.0
    parts: tuple[int, ...] = ()
    options: dict[str, int] = field(default_factory=dict)

    @cached_property
    def lazy(self):
        return self.size * 2


def test_settings_that_a_file_writes_alike_are_the_same():
    """A file knows 1 and 1.0, lists and tuples, and no order of keys; what was worked out on the way does not count."""
    one = Settings(1, (1, 2), {"a": 1, "b": 2})
    other = Settings(1.0, [1, 2], {"b": 2, "a": 1.0})
    assert other.lazy == 2.0
    assert Identity(one).digest == Identity(other).digest
    assert Identity(one).digest != Identity(Settings(1, (2, 1), {"a": 1, "b": 2})).digest
    assert Identity(pf.Clip(1)).digest == Identity(pf.Clip(1.0)).digest != Identity(pf.Clip(2.0)).digest


class Colour(Enum):
    """One of two."""

    RED = 1
    BLUE = 2


class Slotted:
    """Keeps a number in a slot."""

    __slots__ = ("note",)


class WithBoth(Slotted):
    """Has a dictionary beside the slot."""


class Numbers(list):
    """A list with a note."""


class Words(dict):
    """A dictionary with one."""


class Text(str):
    """A text with one."""


def noted(thing, note):
    thing.note = note
    return thing


def member(factor):
    class Kind(Enum):
        ONE = 1

        def scaled(self, x):
            return x * factor

    return Kind.ONE


def made_by(factor):
    class Meta(type):
        def scaled(cls, x):
            return x * factor

    return Meta("Made", (), {"__module__": __name__})


def wrapping(factor):
    @functools.wraps(F.cross_entropy)
    def loss(*given, **named):
        return F.cross_entropy(*given, **named) * table[0]

    table = [factor]
    return loss


class Wrapped:
    """A function, and a number beside it."""

    def __init__(self, function, note):
        functools.update_wrapper(self, function)
        self.note = note


class Diary(logging.Handler):
    """Writes nothing down but a note."""


DIFFERENT = [
    (noted(WithBoth(), 1), noted(WithBoth(), 2)),
    (noted(Numbers([1]), 1), noted(Numbers([1]), 2)),
    (noted(Words(a=1), 1), noted(Words(a=1), 2)),
    (Text("a"), Text("b")),
    (noted(functools.partial(len), 1), noted(functools.partial(len), 2)),
    (random.Random(1), random.Random(2)),
    (ValueError(1), ValueError(2)),
    (defaultdict(int), defaultdict(float)),
    (member(1), member(2)),
    (made_by(1), made_by(2)),
    (wrapping(1), wrapping(2)),
    (Wrapped(len, 1), Wrapped(len, 2)),
    (noted(Diary(), 1), noted(Diary(), 2)),
    (torch.zeros(3), torch.ones(3)),
    (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (torch.tensor(1.0), torch.tensor(2.0)),
    (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse()),
    (np.zeros(3), np.ones(3)),
    (np.array(["a", None], dtype=object), np.array(["a", 1], dtype=object)),
    (np.random.default_rng(1), np.random.default_rng(2)),
    ([1, [2]], [1, 2]),
    (("ab", "c"), ("a", "bc")),
    ({1, 2}, {1, 3}),
    ("1", 1),
    (True, 1),
    (None, "None"),
    (b"x", "x"),
    (1 << 80, (1 << 80) + 1),
    (torch.float32, torch.float64),
    (range(3), range(4)),
    (nn.Linear(2, 2), nn.Linear(2, 2)),
    (nn.ReLU(), nn.Tanh()),
    (Colour.RED, Colour.BLUE),
    (len, print),
    ([].append, [1].append),
    (OrderedDict(a=1), OrderedDict(a=2)),
    (lambda x: x + 1, lambda x: x + 2),
    (functools.lru_cache(lambda x: x + 1), functools.lru_cache(lambda x: x + 2)),
    (own_parts.Smoothed(0.1), own_parts.Smoothed(0.2)),
    (np, torch),
    (slice(1), slice(2)),
]


@pytest.mark.parametrize("pair", DIFFERENT, ids=lambda pair: f"{type(pair[0]).__name__}, {type(pair[1]).__name__}")
def test_two_that_differ_have_two_hashes(pair):
    hashes = [Identity(one) for one in (*pair, *pair)]
    assert not any(one.unknown for one in hashes)
    assert hashes[0].digest == hashes[2].digest != hashes[1].digest == hashes[3].digest


def test_entries_count_in_whatever_order_they_are_given_and_values_are_not_written_out():
    class Unwritten:
        def __repr__(self):
            raise AssertionError("a value may be an array of many numbers")

    for given in ({"b": Unwritten(), "a": 1, "a b": 2}, {"b": 2, 1: "one", 1.5: "more", (1,): "sequence"}):
        assert Identity(given).digest == Identity(dict(reversed(given.items()))).digest


def test_an_array_is_read_piece_by_piece(tmp_path, monkeypatch):
    values = np.arange(60, dtype=np.int16).reshape(20, 3)
    np.save(tmp_path / "x.npy", values)
    monkeypatch.setattr(identity, "_PIECE", 12)
    assert Identity(np.load(tmp_path / "x.npy", mmap_mode="r")).digest == Identity(values).digest
    values[19, 2] += 1
    assert Identity(np.load(tmp_path / "x.npy", mmap_mode="r")).digest != Identity(values).digest


def test_what_refers_to_itself_has_a_hash():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    endless = [1]
    endless.append(endless)
    assert Identity(even).digest == Identity(even).digest
    assert Identity(endless).digest != Identity([1, [1]]).digest


def test_loggers_and_locks_take_no_part_and_what_nobody_can_take_apart_is_named():
    for thing in (logging.getLogger("one"), threading.Lock(), sys.stderr):
        assert not Identity({"log": thing}).unknown
    made = Identity([(one for one in ())])
    assert made.unknown == {"builtins:generator"}
    assert Identity(lambda: globals()["a name"]).unknown == {"builtins:globals"}


def test_a_hook_of_ones_own_counts_and_its_number_does_not():
    def network(hook):
        torch.manual_seed(0)
        made = nn.Linear(2, 2)
        made.register_forward_hook(hook)
        return made

    def double(module, given, output):
        return output * 2

    assert Identity(network(double)).digest == Identity(network(double)).digest
    assert Identity(network(double)).digest != Identity(network(lambda *given: given[2] * 3)).digest


def test_a_module_that_is_imported_where_code_runs_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "imported_late.py").write_text("A = 1\n", encoding="utf-8")

    def late():
        import imported_late

        return imported_late.A

    before = Identity(late).digest
    (tmp_path / "imported_late.py").write_text("A = 2\n", encoding="utf-8")
    edited = Identity(late).digest
    monkeypatch.setattr("imported_late.A", 3)
    assert len({before, edited, Identity(late).digest}) == 3


def test_it_says_which_arrays_and_lists_of_numbers_it_met():
    table, weights, image = np.arange(6.0).reshape(2, 3), torch.ones(2), np.zeros(4, np.uint8)

    def loss(values):
        return values @ table + inner["weights"] + [0.5, 2][0] + len("text")

    inner = {"weights": weights, "more": [image, ["a", 1], (3, 4.0), [10**400, 1]], "words": np.array(["b"])}
    met = Identity(loss)
    assert {id(one) for one in met.arrays} == {id(table), id(weights), id(image)}
    assert [3, 4.0] in met.lists
    assert ["a", 1] not in met.lists
    assert [10**400, 1] not in met.lists


def test_copying_leaves_no_mark():
    class Counted:
        def __init__(self):
            self.numbers = [1, 2]

    thing = Counted()
    before = Identity(thing).digest
    copy.deepcopy(thing)
    assert "__slotnames__" in vars(Counted)
    assert Identity(thing).digest == before


def test_a_tensor_of_a_vmap_that_is_over_is_unknown_and_equals_nothing():
    kept = []
    torch.func.vmap(lambda row: kept.append(row) or row)(torch.ones(2, 3))
    one, other = Identity(kept), Identity(kept)
    assert one.unknown == {"torch:Tensor"}
    assert one.digest != other.digest

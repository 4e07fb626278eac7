"""Code of packages is told from that of their user, whatever it says of itself."""

import functools
import sys
from collections import namedtuple

import dp_accounting
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.simulation.identity import Identity
from privfl.simulation.origins import own_imports, package_of, reads_by_string, told


def test_installed_packages_are_told_by_what_was_installed_and_files_of_ones_own_by_their_code(tmp_path, monkeypatch):
    assert told("torch") == told("privfl") == told("json") == "library"
    assert len(told("pytest")) == 64
    assert told("tests") == told("a_name_that_nobody_has") == ""
    (tmp_path / "colorsys.py").write_text("", encoding="utf-8")  # the name of a module of Python
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    told.cache_clear()
    assert told("colorsys") == ""
    told.cache_clear()


@functools.wraps(F.cross_entropy)
def wrapped(*given):
    """Calls itself as PyTorch's does."""
    return F.cross_entropy(*given)


class Borrowed:
    """Says that it is PyTorch's."""

    __module__ = "torch.nn"

    def forward(self, x):
        return x


def test_a_wrapped_function_and_a_class_with_own_methods_are_ones_own():
    assert wrapped.__module__ == "torch.nn.functional"
    assert package_of(wrapped) == package_of(Borrowed) == package_of(namedtuple("Pair", "a b")) == ""
    for thing in (F.cross_entropy, nn.Linear, pf.FedAvg, pf.FedAvg.finish, pf.LocalTraining.__init__, functools):
        assert package_of(thing) == "library"


def test_what_libraries_generate_is_theirs():
    event = dp_accounting.GaussianDpEvent(1.0)
    assert package_of(type(event)) == "library"
    assert Identity(event).digest == Identity(dp_accounting.GaussianDpEvent(1.0)).digest
    assert Identity(event).digest != Identity(dp_accounting.GaussianDpEvent(2.0)).digest
    assert not Identity(event).unknown


def test_code_tells_what_it_reads_by_a_text_and_what_it_imports():
    def by_text():
        return [globals()["a"] for _ in range(2)]

    def by_module():
        return sys.modules["a"]

    def imports():
        import json

        import imported_late

        return json, imported_late, self_modules

    self_modules = nn.Linear(1, 1).modules
    assert reads_by_string(by_text.__code__)
    assert reads_by_string(by_module.__code__)
    assert not reads_by_string(imports.__code__)
    assert list(own_imports(imports.__code__, "tests")) == ["imported_late", "tests.imported_late"]

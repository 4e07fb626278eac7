"""What pyproject.toml says is what the code needs: imports, declarations and the versions that tests run with agree."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_house import PACKAGES, ROOT, imports, relative

MADE_BY_TESTS = {"imported_late", "a_users_notes"}
"""Modules that a test writes before it imports them."""


def third_parties(folders: tuple[str, ...]) -> dict[str, str]:
    """The top-level packages that Python files in these folders import and are not ours or Python's."""
    shared = [
        path for folder in ("docs/scripts", "examples", "examples/papers") for path in (ROOT / folder).glob("*.py")
    ]
    ours = {path.name for path in ROOT.iterdir()} | {path.stem for path in shared}
    ours |= {path.parent.name for path in (ROOT / "examples").rglob("__init__.py")}
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {}
    for path in paths:
        beside = {other.stem for other in path.parent.glob("*.py")}
        for name, node in imports(path):
            top = name.split(".")[0]
            if top not in ours | beside | sys.stdlib_module_names | MADE_BY_TESTS:
                found[top] = f"{relative(path)}:{node.lineno}"
    return found


def declared(*extras: str) -> dict[str, Requirement]:
    """What pyproject.toml declares for users, and for these extras, by normalised name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + [line for name in extras for line in project["optional-dependencies"][name]]
    return {canonicalize_name(one.name): one for one in map(Requirement, lines)}


@pytest.mark.parametrize(
    ("folders", "extras"),
    [
        (PACKAGES, ("parquet", "compiled", "triton", "ray", "trackers")),
        (("tests", "docs"), ("test", "docs", "parquet", "compiled", "triton", "ray", "federation", "trackers")),
    ],
    ids=["installed", "for developers"],
)
def test_what_is_imported_is_declared(folders: tuple[str, ...], extras: tuple[str, ...]) -> None:
    known_as, names = packages_distributions(), declared(*extras)
    wrong = [
        f"{place} imports {top}, which pyproject.toml does not declare"
        for top, place in third_parties(folders).items()
        if not {canonicalize_name(name) for name in known_as.get(top, [top])} & names.keys()
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_declared_is_imported() -> None:
    known_as = packages_distributions()
    used = {canonicalize_name(name) for top in third_parties(PACKAGES) for name in known_as.get(top, [top])}
    assert not declared().keys() - used


def test_the_versions_that_tests_run_with_lie_in_the_declared_ranges() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {
        canonicalize_name(one.name): one
        for one in map(Requirement, (line for line in lines if not line.startswith("#")))
    }
    for name, wanted in declared("test", "docs", "dev").items():
        if name != "privfl":
            (pin,) = pinned[name].specifier
            assert pin.operator == "=="
            assert wanted.specifier.contains(pin.version), f"constraints.txt has {name} {pin.version}, not {wanted}"

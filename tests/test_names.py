"""Programs outside the packages import only what is there: nobody runs each of them in every suite."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(
    path for folder in ("benchmarks", "docs/scripts", "examples", "tests") for path in (ROOT / folder).rglob("*.py")
)


def found(module: str, beside: Path) -> Path | None:
    """The file of ours that ``module`` is, beside the program or in the repository; ``None`` for everybody else's."""
    parts = Path(*module.split("."))
    for folder in (beside, ROOT, ROOT / "examples" / "papers", ROOT / "benchmarks", ROOT / "docs" / "scripts"):
        for path in (folder / parts.with_suffix(".py"), folder / parts / "__init__.py"):
            if path.is_file():
                return path
    return None


@cache
def defined(path: Path) -> frozenset[str]:
    """The names that a file defines or imports, wherever in it, and what lies beside it if it is a package."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    if path.name == "__init__.py":
        names.update(one.stem for one in path.parent.iterdir())
        stub = path.with_suffix(".pyi")
        names.update(defined(stub) if stub.is_file() else ())
    return frozenset(names)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_imported_is_there(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
            continue
        there = found(node.module, path.parent)
        if there is not None:
            assert {alias.name for alias in node.names} <= defined(there) | {"*"}, node.module

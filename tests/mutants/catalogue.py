"""The list of mutants, one TOML file for each room: what is changed where, what that breaks, which tests should see it.

    [[file]]
    path = "privfl/privacy/door/noisy_total.py"
    tests = ["tests/privacy/door/test_client_door.py"]  # likely to see it, tried first

    [[file.mutant]]
    breaks = "the noise on a total is half as wide"
    old = 'return self.max_norm * self.noise_multiplier'
    new = 'return self.max_norm * self.noise_multiplier / 2'

A mutant may name ``tests`` of its own, tried before those of its file. ``equivalent`` explains why nothing can see it.
"""

from __future__ import annotations

import ast
import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = Path(__file__).parent / "rooms"


@dataclass(frozen=True)
class Mutant:
    """One mistake: the only place of ``old`` in the file at ``path`` is replaced by ``new``.

    ``likely`` tests are tried first, then the ``wider`` ones of the room.
    """

    room: str
    path: str
    old: str
    new: str
    breaks: str
    likely: tuple[str, ...]
    wider: tuple[str, ...]
    equivalent: str = ""

    @property
    def key(self) -> str:
        """What is changed, in twelve hexadecimal digits."""
        return digest(self.path, self.old, self.new)

    def applied(self, text: str) -> str:
        """The file's ``text`` with the mistake in it; raises ValueError unless there is just one place for it."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path} holds {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)


def digest(*texts: str) -> str:
    """Twelve hexadecimal digits that stand for ``texts``."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def code_digest(text: str) -> str:
    """Twelve hexadecimal digits that stand for what ``text`` does.

    Comments, layout and strings of several words, which are docstrings and messages, do not count.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            node.value = ""
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not _is_text(one)]
    return digest(ast.dump(tree))


def _is_text(statement: ast.stmt) -> bool:
    """Whether this is a string that stands alone, as docstrings do."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def mutants() -> list[Mutant]:
    """All mutants, by room and in the order of its file."""
    found = []
    for room in sorted(ROOMS.glob("*.toml")):
        listed = tomllib.loads(room.read_text(encoding="utf-8"))
        for file in listed["file"]:
            for one in file["mutant"]:
                likely = tuple(dict.fromkeys([*one.get("tests", ()), *file.get("tests", ())]))
                wider = tuple(test for test in listed.get("wider", ()) if test not in likely)
                mistake = one["old"].strip("\n"), one["new"].strip("\n")
                found.append(
                    Mutant(room.stem, file["path"], *mistake, one["breaks"], likely, wider, one.get("equivalent", ""))
                )
    return found

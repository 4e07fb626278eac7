"""Run the mutants: ``python -m tests.mutants [--room ROOM] [--only TEXT] [--jobs N] [--minutes M] [--again]``.

Each mutant is applied in a copy of the tree, never in the working tree, and its tests run until the first one fails.
Results are kept in docs/results/mutants.jsonl: a mutant that was killed is not run again before its file or the mutant
changes, a survivor not before a test changes. docs/results/mutants.md is written anew from them.

A process that has imported what privfl stands on is forked for every mutant, which saves three seconds each.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.mutants.catalogue import ROOT, Mutant, code_digest, mutants
from tests.mutants.report import RAW, Result, read, write

COPIED = ("privfl", "attacks", "audits", "tests", "examples", "benchmarks", "docs")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "constraints.txt")
CLAIMS = "tests/claims"
"""The claim fuzzer, tried last."""
LIMIT = 300
"""Seconds that the tests at one path may take; more counts as no verdict."""


def main() -> int:
    """Run what was asked for and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="run mutants of the privacy code")
    parser.add_argument("--room", action="append", help="only this room (may be repeated)")
    parser.add_argument("--only", default="", help="only mutants whose file, change or sentence holds this text")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, each with its own copy")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no mutant after so many minutes")
    parser.add_argument("--again", action="store_true", help="run also what has a result")
    parser.add_argument("--likely", action="store_true", help="try the likely tests only; survivors are not recorded")
    parser.add_argument("--report", action="store_true", help="write the report only")
    asked = parser.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    listed = mutants()
    if not asked.report:
        chosen = [one for one in listed if _asked_for(one, asked)]
        run(chosen, jobs=asked.jobs, end=end, again=asked.again, likely_only=asked.likely)
    results = read(listed, tests_digest(), reads_mutated)
    write(listed, results)
    survivors = [one for one in listed if results.get(one.key) and results[one.key].status != "killed"]
    open_ones = [one for one in survivors if not one.equivalent]
    print(f"{len(results)} of {len(listed)} have a result; {len(survivors)} survive, {len(open_ones)} unexplained")
    return 1 if open_ones else 0


def _asked_for(mutant: Mutant, asked: argparse.Namespace) -> bool:
    texts = (mutant.key, mutant.path, mutant.breaks, mutant.new)
    return (not asked.room or mutant.room in asked.room) and any(asked.only in text for text in texts)


def run(chosen: Sequence[Mutant], *, jobs: int, end: float, again: bool, likely_only: bool) -> None:
    """Run those of the ``chosen`` mutants that have no result yet, shared out among ``jobs`` processes."""
    if not hasattr(os, "fork"):
        sys.exit("mutants are run in forked processes, which this system has not; take Linux or macOS")
    done = {} if again else read(chosen, tests_digest(), reads_mutated)
    todo = [one for one in chosen if one.key not in done]
    _import_foundations()
    workers = [_forked(lambda part=todo[job::jobs]: _work(part, end, likely_only)) for job in range(jobs)]
    for worker in workers:
        if os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]):
            sys.exit("the tests do not pass without a mutant, or a run broke off: see above")


def reads_mutated(mutant: Mutant) -> str:
    """Digest of the mutated file as it would be now, empty if the mutant fits no more."""
    try:
        return code_digest(mutant.applied((ROOT / mutant.path).read_text(encoding="utf-8")))
    except ValueError:
        return ""


def tests_digest() -> str:
    """Digest of all tests, but for the mutants' own list."""
    whole = hashlib.sha256()
    folder = ROOT / "tests"
    for path in sorted(folder.rglob("*.py")):
        if "mutants" not in path.relative_to(folder).parts:
            whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def _import_foundations() -> None:
    """Import once what every run of tests needs, but nothing of privfl."""
    import cryptography.hazmat.primitives.ciphers.aead
    import dp_accounting.rdp
    import opacus.accountants.prv
    import opacus.validators
    import pytest
    import scipy.optimize
    import scipy.stats
    import sklearn.tree
    import torch

    assert all((cryptography, dp_accounting, opacus, pytest, scipy, sklearn, torch))
    torch.set_num_threads(1)
    assert not any(name.split(".")[0] in ("privfl", "audits", "attacks") for name in sys.modules)


def _forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work(todo: Iterable[Mutant], end: float, likely_only: bool) -> None:
    tests = tests_digest()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        _fill(copy)
        sound: set[str] = set()
        for mutant in todo:
            if time.monotonic() > end:
                return
            target = copy / mutant.path
            before = target.read_text(encoding="utf-8")
            paths = [*mutant.likely, *(() if likely_only else (*mutant.wider, CLAIMS))]
            began, status, by = time.monotonic(), "survived", ""
            for path in (path for path in paths if (copy / path.split("::")[0]).exists()):
                if path not in sound:  # without the mutant, or its failure would say nothing
                    failed = _first_failure(copy, path)
                    if failed:
                        raise AssertionError(f"{failed} fails without any mutant")
                    sound.add(path)
                target.write_text(mutant.applied(before), encoding="utf-8")
                try:
                    by = _first_failure(copy, path)
                finally:
                    target.write_text(before, encoding="utf-8")
                if by:
                    status = "no verdict" if by == TOO_LONG else "killed"
                    break
            seconds = round(time.monotonic() - began, 1)
            print(f"{seconds:6.1f} s  {status:9}  {mutant.room}: {mutant.breaks}  {by}", flush=True)
            if status == "survived" and likely_only:
                continue
            after = code_digest(mutant.applied(before))
            with RAW.open("a", encoding="utf-8") as file:
                result = Result(mutant.key, after, tests, status, by, seconds)
                file.write(json.dumps({**vars(result), "path": mutant.path, "breaks": mutant.breaks}) + "\n")


def _fill(copy: Path) -> None:
    """A copy of the tree, whose byte code is checked against the text, so that a mutant of equal length counts."""
    import compileall
    from py_compile import PycInvalidationMode

    unwanted = shutil.ignore_patterns("__pycache__", "build", "api", "*.pyc")
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    for name in ("privfl", "attacks", "audits", "tests"):
        compileall.compile_dir(copy / name, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


TOO_LONG = "the time ran out"


def _first_failure(copy: Path, path: str) -> str:
    """The first test at ``path`` that fails in the ``copy``; empty if all pass."""
    answer = copy / "first-failure.json"
    answer.unlink(missing_ok=True)
    child = _forked(lambda: _run_tests(copy, path, answer))
    waited = time.monotonic() + LIMIT
    while True:
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > waited:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TOO_LONG
        time.sleep(0.02)
    if not answer.exists():
        return f"{path} (the process ended with {os.waitstatus_to_exitcode(code)})"
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return str(found["failed"] or ("" if found["code"] == 0 else f"{path} (pytest says {found['code']})"))


class _Watch:
    """A plugin of pytest that keeps the first failure."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (cannot be collected)"


def _run_tests(copy: Path, path: str, answer: Path) -> None:
    """In a process of its own: everything of the house comes from the ``copy``."""
    os.setsid()
    sys.dont_write_bytecode = True
    sys.path[:] = [str(copy), *(entry for entry in sys.path if entry and Path(entry).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    os.environ.update(PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    os.chdir(copy)
    silent = os.open(copy / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import pytest

    watch = _Watch()
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={copy}", path]
    code = pytest.main(arguments, plugins=[watch])
    answer.write_text(json.dumps({"failed": watch.failed, "code": int(code)}), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

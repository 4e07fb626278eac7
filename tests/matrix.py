"""Install privfl as users do, with the lowest and the newest versions it allows, and run a selection of the tests.

``python -m tests.matrix [--python PATH]... [--resolution lowest|newest]... [--folder DIR] [TEST]...``

For each interpreter and resolution: uv resolves pyproject.toml (binary packages only, so "lowest" is the lowest version
that has one for the interpreter), the package is built and installed from a copy of the tree into an environment of its
own, and the tests run in a folder that holds no source of privfl. docs/results/installations.md is written from
installations.json beside it; a combination that is run again replaces its old result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "installations.md"
RAW = PAGE.with_suffix(".json")
VERSIONS = ("3.11", "3.12", "3.13")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
SELECTION = (
    "tests/attacks/test_result.py",
    "tests/commands/test_cli.py::test_a_run_prints_its_statement_and_fills_its_directory",
    "tests/commands/test_cli.py::test_a_users_error_is_one_sentence_on_stderr_and_exit_code_2",
    "tests/commands/test_cli.py::test_data_commands",
    "tests/commands/test_cli.py::test_the_accounts_agree_with_published_and_cross_computed_values",
    "tests/data/test_download.py",
    "tests/data/test_questions.py",
    "tests/engine/test_client_randomness.py",
    "tests/engine/test_own_forward.py",
    "tests/engine/test_placed_clients.py",
    "tests/engine/test_private_sequences.py",
    "tests/engine/test_stacked_sequences.py",
    "tests/metrics/test_ranking.py",
    "tests/models",
    "tests/privacy/accounting/test_accountant.py",
    "tests/privacy/clipping",
    "tests/privacy/secagg/test_primitives.py",
    "tests/simulation/test_simulation.py::"
    "test_progress_marks_what_is_an_upper_bound_and_ends_with_the_statements_epsilon",
    "tests/study/test_study.py::test_the_page_of_a_study_shows_the_statements_numbers_and_fetches_nothing",
    "tests/study/test_study.py::test_the_pareto_plot_draws_every_method_where_its_claim_is",
    "tests/test_init.py",
    "tests/test_plain_text.py",
    "tests/test_schema.py",
)
"""Tests that between them use every dependency, every command and the private corners of Opacus and PyTorch."""

BUILT = ("privfl", "attacks", "audits", "pyproject.toml", "README.md", "LICENSE")
TESTED = ("tests", "examples", "pyproject.toml")


def main() -> int:
    """Run what was asked for and write the page; the exit status says whether everything passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description="test the range of supported versions")
    parser.add_argument("--python", action="append", help="an interpreter (may be repeated); else those that are found")
    parser.add_argument("--resolution", action="append", choices=RESOLUTIONS, help="else both")
    parser.add_argument("--folder", type=Path, help="where environments lie (13 GB with CUDA); else a temporary folder")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that the tests of one environment may take")
    parser.add_argument("tests", nargs="*", default=list(SELECTION), help="else the selection of this file")
    asked = parser.parse_args()
    pythons = interpreters(asked.python)
    if not pythons:
        sys.exit(f"no Python {', '.join(VERSIONS)} was found; name one with --python PATH")
    asked.folder = None if asked.folder is None else asked.folder.resolve()
    if asked.folder is not None:
        asked.folder.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="privfl-matrix-", dir=asked.folder) as name:
        uv = Uv(Path(name))
        for version, python in pythons.items():
            for resolution in asked.resolution or RESOLUTIONS:
                result = uv.tried(version, python, resolution, asked.tests, asked.limit)
                print(f"Python {result['python']}, {resolution}: {verdict(result)}", flush=True)
                results.append(result)
                if asked.tests == list(SELECTION):
                    record(result)
    return 0 if all(result["passed"] and not result["failed"] for result in results) else 1


def interpreters(named: Sequence[str] | None) -> dict[str, str]:
    """Interpreters by version: those named, or on the path, or of pyenv that are supported and whole."""
    homes = sorted((Path.home() / ".pyenv" / "versions").glob("*/bin/python"))
    candidates = named or [sys.executable, *(f"python{version}" for version in VERSIONS), *map(str, homes)]
    probe = "import sys, ssl, sqlite3, lzma, ctypes; print('%d.%d' % sys.version_info[:2], sys.executable)"
    found: dict[str, str] = {}
    for candidate in candidates:
        path = shutil.which(candidate)
        done = path and subprocess.run([path, "-c", probe], capture_output=True, text=True, timeout=60)
        if done and done.returncode == 0:
            version, executable = done.stdout.split(maxsplit=1)
            if version in VERSIONS:
                found.setdefault(version, executable.strip())
                continue
        if named:
            sys.exit(f"{candidate} is no Python {', '.join(VERSIONS)} with all its modules")
    return dict(sorted(found.items()))


class Uv:
    """The resolver, installed into ``folder`` by pip, and everything that it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uv = folder / "tool" / "bin" / "uv"
        self.environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
        self.environment.setdefault("UV_CACHE_DIR", str(folder / "cache"))
        self.environment.pop("PYTHONPATH", None)  # what is tested is what is installed
        try:
            subprocess.run([sys.executable, "-m", "venv", folder / "tool"], check=True)
            pip = [folder / "tool" / "bin" / "python", "-m", "pip", "install", "--quiet", "uv>=0.5"]
            subprocess.run(pip, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"uv, which resolves the versions, cannot be installed ({error}); see what pip says above")

    def call(self, *arguments: str | Path) -> str:
        """Standard output of ``uv ARGUMENTS``; what it says of an error is shown."""
        done = subprocess.run([self.uv, *arguments], env=self.environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(f"uv {arguments[0]} {arguments[1]} failed, see above")
        return done.stdout

    def tried(self, version: str, python: str, resolution: str, tests: Sequence[str], limit: float) -> dict[str, Any]:
        """One environment: made, tested and removed."""
        home = self.folder / f"{version}-{resolution}"
        installed = home / "environment" / "bin" / "python"
        for place, names in (("source", BUILT), ("tests", TESTED)):
            for name in names:
                copy(ROOT / name, home / place / name)
        try:
            how = ("--resolution", RESOLUTIONS[resolution], "--no-build", "--extra", "test")
            wanted = self.call("pip", "compile", "--quiet", "--no-header", "--python", python, *how, "pyproject.toml")
            (home / "wanted.txt").write_text(wanted, encoding="utf-8")
            self.call("venv", "--quiet", "--python", python, home / "environment")
            self.call("pip", "install", "--quiet", "--python", installed, "--no-build", "-r", home / "wanted.txt")
            self.call("pip", "install", "--quiet", "--python", installed, "--no-deps", home / "source")
            self.call("pip", "check", "--quiet", "--python", installed)
            found = json.loads(self.call("pip", "list", "--quiet", "--python", installed, "--format", "json"))
            known = self.environment | {"OMP_NUM_THREADS": "1", "PRIVFL_DATA": self.environment.get("PRIVFL_DATA", "")}
            command = [installed, "-m", "pytest", "-p", "no:cacheprovider", "--no-header", "--tb=short", *tests]
            begun = time.monotonic()
            log = home / "log.txt"
            with open(log, "w", encoding="utf-8") as file:
                try:
                    subprocess.run(command, cwd=home / "tests", env=known, stdout=file, stderr=file, timeout=limit)
                except subprocess.TimeoutExpired:
                    file.write(f"\nnot finished within {limit:g} s\n")
            said = log.read_text(encoding="utf-8", errors="replace")
            counts = {name: counted(said, name) for name in ("passed", "failed", "error", "skipped")}
            if counts["failed"] or counts["error"] or not counts["passed"]:
                print(said, flush=True)
            return {
                "python": subprocess.run(
                    [installed, "-c", "import platform; print(platform.python_version())"],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                ).stdout.strip(),
                "resolution": resolution,
                "platform": f"{platform.system()} {platform.machine()}",
                "ranges": ranges(),
                "passed": counts["passed"],
                "failed": counts["failed"] + counts["error"],
                "skipped": counts["skipped"],
                "seconds": round(time.monotonic() - begun),
                "versions": {one["name"].lower().replace("_", "-"): one["version"] for one in found},
            }
        finally:
            shutil.rmtree(home, ignore_errors=True)


def ranges() -> dict[str, str]:
    """What pyproject.toml allows of every dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    split = (re.fullmatch(r"([\w.-]+)(.*)", line) for line in project["dependencies"])
    return {found[1]: found[2] for found in split if found}


def copy(source: Path, target: Path) -> None:
    """A file or a folder, without caches."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def counted(said: str, outcome: str) -> int:
    """The number before ``outcome`` in pytest's last line; libraries may have their say after it."""
    lines = [line for line in said.splitlines() if re.search(r" in [\d.]+s\b", line)]
    found = re.search(rf"(\d+) {outcome}", lines[-1] if lines else "")
    return int(found[1]) if found else 0


def verdict(result: dict[str, Any]) -> str:
    """``1230 passed, 2 skipped, 300 s``."""
    words = [f"{result[name]} {name}" for name in ("passed", "failed", "skipped") if result[name]]
    return ", ".join([*words, f"{result['seconds']} s"])


def record(result: dict[str, Any]) -> None:
    """Keep a result and write the page anew."""
    kept = json.loads(RAW.read_text(encoding="utf-8")) if RAW.exists() else []
    place = (result["python"].rpartition(".")[0], result["resolution"])
    kept = [one for one in kept if (one["python"].rpartition(".")[0], one["resolution"]) != place] + [result]
    kept.sort(key=lambda one: (one["resolution"], [int(part) for part in one["python"].split(".")]))
    RAW.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(kept), encoding="utf-8")


def page(results: Sequence[dict[str, Any]]) -> str:
    """The page: what passed where, and the versions of what privfl uses directly."""
    heads = [f"{one['resolution']}, {one['python']}" for one in results]
    outcome = [f"{one['passed']} passed" + (f", {one['failed']} failed" if one["failed"] else "") for one in results]
    skipped = [str(one["skipped"]) for one in results]
    rows: list[Iterable[str]] = [["", "declared", *heads], ["---"] * (2 + len(heads))]
    rows += [["tests", "", *outcome], ["skipped", "", *skipped]]
    rows += [
        [name, wanted or "any", *(one["versions"].get(name.lower(), "absent") for one in results)]
        for name, wanted in ranges().items()
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    systems = ", ".join(sorted({one["platform"] for one in results}))
    return f"""# Versions that were tested together

`make matrix` wrote this page: privfl built and installed as users install it, with the lowest and with the newest
versions that pyproject.toml allows, and the selection of tests that `tests/matrix.py` names. A column is a resolution
and a version of Python, all on {systems}, without a GPU. "Lowest" is the lowest version that comes as a binary
package for the interpreter. Between the two ends nothing was tested.

{table}
"""


if __name__ == "__main__":
    sys.exit(main())

"""What all tests share: the same device, threads and plain text on every machine, and the folder of local datasets."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from privfl.data.catalog import ENTRIES
from privfl.engine import choice
from privfl.privacy.noise.source import NoiseSource
from privfl.study import workers
from tests.crashes import Crashes
from tests.order import dealt
from tests.programs import LOADED

os.environ.setdefault("MPLBACKEND", "Agg")
torch.set_num_threads(1)

if os.environ.get("PRIVFL_TEST_GPU") != "1":  # device="auto" would take a GPU, and most tests compare bits on the CPU
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGVTALRM, signal.SIGALRM, signal.SIGPROF)
COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS")
"""What makes rich and typer write for a terminal where there is none."""


def _missing_datasets() -> list[str]:
    """The datasets that tests read and the folder PRIVFL_DATA does not hold, each in the layout named first."""
    folder = Path(os.environ.get("PRIVFL_DATA") or "-")
    needed = {entry.name: [file.path for layout in entry.layouts[:1] for file in layout.required] for entry in ENTRIES}
    whole = {name for name, paths in needed.items() if all((folder / path).exists() for path in paths)}
    return sorted(needed.keys() - whole) if folder.is_dir() else []


missing_datasets = _missing_datasets()
if missing_datasets:  # some tests would fail for want of a file, others would download it
    del os.environ["PRIVFL_DATA"]


def of_the_process() -> dict[str, object]:
    """What belongs to a whole process and decides how parts of it work."""
    return {
        "logging.disable": logging.root.manager.disable,
        "the root logger's level": logging.root.level,
        "privfl's loggers": _silenced(),
        "signals": [signal.getsignal(number) for number in SIGNALS],
        "threads": torch.get_num_threads(),
        "the default type": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "the recursion limit": sys.getrecursionlimit(),
        "the working folder": os.getcwd(),
    }


def _silenced() -> list[str]:
    """privfl's loggers that anybody silenced."""
    loggers = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    own = [one for one in loggers if one.name.partition(".")[0] in ("privfl", "attacks", "audits")]
    return [one.name for one in own if one.disabled or one.level or not one.propagate]


@pytest.fixture(autouse=True, scope="session")
def _plain_text() -> Iterator[None]:
    """What commands print has no colours, and in processes that tests start no character that stops them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONIOENCODING", ":backslashreplace")  # the encoding stays the user's
        patch.setenv("PYTHONFAULTHANDLER", "1")  # one that crashes says where it was
        for name in COLOURS:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_fork_server() -> Iterator[None]:
    """A study whose processes begin before the first program does would else start the server without its modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "PRELOADED", LOADED)
        yield


@pytest.fixture(autouse=True)
def _the_process_stays_as_it_was() -> Iterator[None]:
    """What a test changes for a whole process would decide what the tests after it see."""
    before = of_the_process()
    yield
    after = of_the_process()
    assert after == before, {name: (was, after[name]) for name, was in before.items() if after[name] != was}


@pytest.fixture(autouse=True)
def _short_runs_are_not_measured(_the_process_stays_as_it_was: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine ``engine="auto"`` could measure one of two runs that a test compares bit by bit."""
    monkeypatch.setattr(choice, "SHORT_RUN_SECONDS", 60.0)


@pytest.fixture
def common_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs under one ``noise_key`` share their noise though they differ, so that nothing but the rest is compared."""
    monkeypatch.setattr(NoiseSource, "for_run", lambda source, fingerprint: source)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder that PRIVFL_DATA names; tests that need its files are skipped where there is none."""
    name = os.environ.get("PRIVFL_DATA", "")
    if not name or not Path(name).is_dir():
        pytest.skip("PRIVFL_DATA names no folder with datasets, so what reads real files is not tested here.")
    return Path(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Python's collector leaves alone what collecting makes and what stays: it would go through all of it each time.

    A full collection then takes 10 ms instead of 400, and every run of a study in this process asks for one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have it told at the end where a process was that crashed."""
    config.pluginmanager.register(Crashes(config), "crashes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the suite, what takes longest begins first."""
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        items[:] = dealt(items, processes)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which blocks of the documentation were not run, and why; also when tests ran in other processes."""
    if missing_datasets:
        terminalreporter.section("tests of real files were skipped")
        terminalreporter.line(f"The folder that PRIVFL_DATA names lacks {', '.join(missing_datasets)}.")
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    notes = [text for report in reports for name, text in report.user_properties if name == "not run"]
    if notes:
        terminalreporter.section("blocks of the documentation that were not run")
        for note in sorted(notes):
            terminalreporter.line(str(note))

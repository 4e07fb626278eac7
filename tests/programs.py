"""Programs in processes of their own, forked from one that has PyTorch loaded, so that a start costs no import.

The suite runs about a hundred programs; importing PyTorch and Opacus anew for each would take five minutes. A forked
process has modules, environment, folder and output of its own. The commands of the README start from nothing
all the same (``fresh=True``), as a reader's do.
"""

import faulthandler
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
LOADED = [
    "matplotlib.pyplot",
    "numba",
    "opacus",
    "privfl.commands.fitting",
    "privfl.simulation.simulation",
    "privfl.study.conduct",
    "privfl.study.execution",
    "privfl.study.members",
    "privfl.study.report",
    "sklearn.linear_model",
]


@cache
def _processes() -> multiprocessing.context.BaseContext | None:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(LOADED)
    return forks


def python(
    *arguments: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """What ``python ARGUMENTS`` (``-m MODULE …`` or ``FILE …``) prints and returns, within 300 seconds."""
    words = [str(argument) for argument in arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", **(env or {})}
    forks = None if fresh else _processes()
    if forks is None:
        return subprocess.run(
            [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, encoding="utf-8", timeout=300
        )
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = forks.Process(target=_run, args=(words, str(cwd), environment, str(out), str(err)))
        process.start()
        process.join(300)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, 300)
        out_text, err_text = (path.read_text(encoding="utf-8") for path in (out, err))
        return subprocess.CompletedProcess(words, process.exitcode, out_text, err_text)


def started(function: Callable[..., object], *given: object) -> multiprocessing.process.BaseProcess:
    """A process, forked like those of programs, that calls ``function``; whoever starts it joins or kills it."""
    context = _processes() or multiprocessing.get_context("spawn")
    process = context.Process(target=function, args=given)
    process.start()
    return process


def _run(arguments: Sequence[str], cwd: str, environment: Mapping[str, str], out: str, err: str) -> None:
    for name, number in ((out, 1), (err, 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    faulthandler.enable()  # a crash says where it was
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    torch.set_num_threads(1)  # the variable was read before the fork
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path.insert(0, cwd)
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")

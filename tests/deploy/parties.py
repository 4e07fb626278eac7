"""The processes of one federation, for tests that need a network."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Parties:
    """The processes of one federation, each in a session of its own, all of which end with the test."""

    def __init__(self, folder):
        self.folder, self.all = folder, []

    def start(self, *words, program=("-m", "privfl", "deploy")):
        log = (self.folder / f"log-{len(self.all)}").open("wb")
        command = [sys.executable, *map(str, (*program, *words))]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.all.append(process)
        return process

    @staticmethod
    def kill(process):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def logs(self):
        return "\n".join(path.read_text(encoding="utf-8") for path in sorted(self.folder.glob("log-*")))

    def end(self):
        for process in self.all:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def peer(number, url, kits, *how):
    return "-m", "tests.deploy.peer", number, url, kits[f"client-{number}"], *how

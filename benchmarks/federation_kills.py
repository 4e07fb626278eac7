"""What a kill -9 costs a federation, and that it changes nothing else: of a client, of the server, of the link.

    python benchmarks/federation_kills.py --times 10

FedAvg under DP-SGD with four clients on digits, 24 rounds, each party a process of its own, over FLARE. Each trial
kills one process at a random moment of a random round, and starts it again. Kinds:

* ``client``: plain sums; the server waits until the client is there again.
* ``client in a secure sum``: secure sums, and legs that wait for three seconds; the client is missing in some rounds.
* ``server``: secure sums; started again with ``--resume``.
* ``link``: secure sums; what is killed forwards all bytes between clients and server.

Then the model, every line of metrics and the statement are compared, bit for bit, with a simulation in which the same
clients are missing in the same rounds; and the answers that clients gave, which they note down as they go, are compared
with each other: whatever was answered twice has to be the same bytes. Results go to
``benchmarks/results/federation-kills.json``; trials that are there are not repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

import privfl as pf
from privfl.deploy.flare import serve_client
from privfl.deploy.kits import KIT, provision
from privfl.deploy.messages import Message, digest, opened
from privfl.deploy.party import client_of
from privfl.deploy.split import party_folders, split
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import ClientResult
from privfl.experiment import Experiment

RESULT = Path(__file__).parent / "results" / "federation-kills.json"
KINDS = ("client", "client in a secure sum", "server", "link")
CLIENTS, ROUNDS, PATIENCE = 4, 24, 240.0
ANSWERS = "answers.txt"
EXPERIMENT = """
rounds = {rounds}
seed = 3
device = "cpu"
engine = "loop"
dataset.name = "digits"
model.name = "logistic"
partition = {{name = "iid", clients = {clients}}}
algorithm = {{name = "fedavg", weighting = "uniform"}}
training = {{epochs = 1, batch_size = 128}}
[privacy]
noise_key = 7
target_delta = 1e-4
training = {{noise_multiplier = 2.0}}
"""
SECURE = 'update = [{name = "secure-sum", corrupt = 0.0, dropout = 0.3}]\n'


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def serve(folder: Path) -> None:
    """Be the client whose folder this is, and note the digest of everything it answers before it is sent."""
    client: Any = client_of(folder, lambda sentence: print(sentence, file=sys.stderr))
    server, honest = bytes.fromhex(client.federation.server), client.answer

    def answer(request: bytes) -> bytes:
        reply: bytes = honest(request)
        asked, told = opened(request, server), opened(reply, client.key.public)
        what = f"{asked.kind} {asked.meta.get('round', '')} {asked.meta.get('leg', '')} {asked.meta.get('session', '')}"
        sent = Message({}, told.tensors).sealed(client.key)
        line = {"what": what, "request": digest(request), "answered": told.kind, "sent": digest(sent)}
        descriptor = os.open(folder / ANSWERS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, (json.dumps(line) + "\n").encode())
        os.close(descriptor)
        return reply

    client.answer = answer
    serve_client(client, folder / KIT, Event())


async def forward(here: int, there: int) -> None:
    """Pass all bytes between whoever connects ``here`` and the port ``there``, until killed."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far = await asyncio.open_connection("127.0.0.1", there)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, far[1]), pump(far[0], writer))

    async with await asyncio.start_server(met, "127.0.0.1", here) as listening:
        await listening.serve_forever()


class Parties:
    """The processes of one trial, each in a session of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.all = folder, dict[str, subprocess.Popen[bytes]]()

    def start(self, name: str, *words: object) -> None:
        """Start a process called ``name``."""
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, *map(str, words)]
            self.all[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self, name: str) -> None:
        """kill -9 of ``name`` and all that it has started."""
        os.killpg(self.all[name].pid, signal.SIGKILL)
        self.all[name].wait()

    def end(self) -> None:
        """Kill whatever is left."""
        for name, process in self.all.items():
            if process.poll() is None:
                self.kill(name)


def simulated(experiment: Experiment, missing: set[tuple[int, int]]) -> Any:
    """The loop engine's run, in which the uploads of ``missing`` (round, client) do not arrive."""
    real = LoopEngine.train

    def train(self: Any, cohort: Any, received: Any, context: Any, phase: Any = None) -> Iterator[ClientResult]:
        for result in real(self, cohort, received, context, phase):
            away = (context.number, result.client) in missing
            yield replace(result, upload=None, client_state={}, dropped="away") if away else result

    LoopEngine.train = train  # type: ignore[method-assign]
    try:
        return replace(experiment, execution=pf.Execution(engine="loop", device="cpu")).run()
    finally:
        LoopEngine.train = real  # type: ignore[method-assign]


def trial(kind: str, number: int) -> dict[str, Any]:
    """One run in which one process is killed, and what became of it."""
    coins = random.Random(f"{kind} {number}")
    at, delay, whom = coins.randrange(2, ROUNDS - 8), coins.random() * 0.15, coins.randrange(CLIENTS)
    with tempfile.TemporaryDirectory() as room:
        folder, out, simulation = Path(room), Path(room) / "federation", Path(room) / "simulation"
        file = folder / "experiment.toml"
        text = EXPERIMENT.format(rounds=ROUNDS, clients=CLIENTS) + ("" if kind == "client" else SECURE)
        file.write_text(text, encoding="utf-8")
        experiment = Experiment.from_toml(file)
        experiment.run(simulation)
        inner, outer = free_port(), free_port()
        seconds = 3.0 if kind == "client in a secure sum" else 120.0
        split(experiment, text, out, url=f"stcp://127.0.0.1:{outer}", epsilon=None, seconds=seconds)
        folders = party_folders(out, CLIENTS)
        provision(folders)
        served = folders["server"] / "federation.toml"
        parties, run = Parties(folder), folders["server"] / "run"
        serving = [__file__, "--server", folders["server"], inner, "--like", simulation]
        starts: dict[str, tuple[object, ...]] = {"server": tuple(serving), "link": (__file__, "--link", outer, inner)}
        starts |= {f"client-{one}": (__file__, "--client", folders[f"client-{one}"]) for one in range(CLIENTS)}
        assert served.is_file()
        killed = kind if kind in starts else f"client-{whom}"

        def wait_for(what: Callable[[], bool]) -> None:
            until = time.monotonic() + PATIENCE
            while not what():
                if time.monotonic() > until or parties.all["server"].poll() not in (None, 0):
                    raise SystemExit("\n".join(one.read_text(encoding="utf-8") for one in folder.glob("*.log")))
                time.sleep(0.01)

        def rounds() -> int:
            path = run / "metrics.jsonl"
            return path.read_bytes().count(b"\n") if path.exists() else 0

        try:
            for name, words in starts.items():
                parties.start(name, *words)
            wait_for(lambda: rounds() >= at)
            time.sleep(delay)
            done, began = rounds(), time.monotonic()
            parties.kill(killed)
            parties.start(killed, *starts[killed], *(["--resume"] if killed == "server" else []))
            wait_for(lambda: rounds() > done)
            until_next = time.monotonic() - began
            wait_for(lambda: parties.all["server"].poll() == 0)
        finally:
            parties.end()
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        missing = {(line["round"], whom) for line in lines if line["clients"] == CLIENTS - 1}
        expected = simulated(experiment, missing)
        model = np.load(run / "checkpoints" / "latest.npz")["tensor/server/parameters"]
        cells = json.loads((run / "statement.json").read_text(encoding="utf-8"))["cells"]
        answers = [said(one) for name, one in folders.items() if name != "server"]
        counted = [{**line, "dropped": None} for line in json.loads(json.dumps(expected.metrics))]
        return {
            "killed": killed,
            "round": done,
            "missing": sorted(one for one, _ in missing),
            "seconds until the next round": round(until_next, 2),
            "same model": bool(np.array_equal(model, expected.parameters.numpy())),
            "same metrics": [{**line, "dropped": None} for line in lines] == counted,
            "same statement": cells == json.loads(expected.statement.to_json())["cells"],
            "answered again": sum(again for again, _ in answers),
            "answered otherwise": sum(otherwise for _, otherwise in answers),
        }


def said(folder: Path) -> tuple[int, int]:
    """How often a client answered something again, and how often otherwise than before."""
    first: dict[str, str] = {}
    again = otherwise = 0
    for line in (folder / ANSWERS).read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        if told["answered"] not in ("upload", "secure"):
            continue
        name = told["what"]
        again += name in first
        otherwise += first.setdefault(name, told["sent"]) != told["sent"]
    return again, otherwise


def be_server(folder: Path, port: int, like: Path, *, resume: bool) -> None:
    """Be the server, listening on ``port`` instead of that which the clients connect to."""
    from privfl.deploy.flare import FlareServer
    from privfl.deploy.party import identity_of, server_of

    one = server_of(folder, lambda _, kit: FlareServer(f"stcp://127.0.0.1:{port}", kit))
    try:
        one.run(folder / "run", resume=resume, identity=identity_of(like))
    finally:
        one.transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="kill parts of federations")
    parser.add_argument("--times", type=int, default=10, help="trials of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--client", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--server", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--link", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--like", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        serve(given.client)
    elif given.server:
        be_server(Path(given.server[0]), int(given.server[1]), given.like, resume=given.resume)
    elif given.link:
        asyncio.run(forward(*given.link))
    else:
        record(given.kinds, given.times, given.out)


def record(kinds: list[str], times: int, out: Path) -> None:
    """Run the trials that are not in ``out`` yet, and write each down as it comes."""
    before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    rows = before.pop("trials", [])
    for number in range(times):
        for kind in kinds:
            if any(row["kind"] == kind and row["trial"] == number for row in rows):
                continue
            rows.append({"kind": kind, "trial": number, **trial(kind, number), "load": os.getloadavg()[0]})
            print(json.dumps(rows[-1]), flush=True)
            told = {**before, "cores": os.cpu_count(), "trials": rows}
            out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

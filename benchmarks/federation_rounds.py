"""What a whole round of a federation costs beside the legs it waits for: a secure sum among processes, over FLARE.

python benchmarks/federation_rounds.py --clients 10 --rounds 20 --out benchmarks/results/federation-rounds.json

Every client is a process with its own folder, the model has 100,000 numbers, and training is one step on eight rows.
After every round the server sends as many bytes as a round's largest leg to every client and back over the same
connections, so that both are measured side by side. Each client says how long it took over each request. Needs pip
install 'privfl[federation]'.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from privfl.deploy.flare import FlareServer, serve_client
from privfl.deploy.kits import KIT, provision
from privfl.deploy.messages import SIGNATURE_BYTES, opened
from privfl.deploy.party import client_of, server_of
from privfl.deploy.split import party_folders, split
from privfl.deploy.transport import Genuine, anything
from privfl.experiment import Experiment

PATIENCE = 240.0
ECHO = b"echo" * (SIGNATURE_BYTES // 4)
"""What no message begins with, so that a client of this benchmark sends it back."""
ROWS, CLASSES = 8, 10
EXPERIMENT = """
rounds = {rounds}
seed = 3
device = "cpu"
engine = "loop"
arrays.file = "{arrays}"
model.name = "logistic"
partition = {{name = "iid", clients = {clients}}}
algorithm = {{name = "fedavg", weighting = "uniform"}}
training = {{epochs = 1, batch_size = 64}}
privacy = {{update = [{{name = "secure-sum", adversary = "{adversary}"}}]}}
evaluate_every = {rounds}
"""


def serve(folder: Path) -> None:
    """Be the client whose folder this is, until the run has ended; what each request took goes to ``timing.json``."""
    client: Any = client_of(folder, lambda sentence: print(sentence, file=sys.stderr))
    server, spent, honest, synced = bytes.fromhex(client.federation.server), [], client.answer, [0.0, 0]
    sync = os.fsync

    def counted(descriptor: int) -> None:
        began = time.perf_counter()
        sync(descriptor)
        synced[0] += time.perf_counter() - began
        synced[1] += 1

    def answer(request: bytes) -> bytes:
        if request.startswith(ECHO):
            return request
        synced[:] = 0.0, 0
        began, worked = time.perf_counter(), time.thread_time()
        reply: bytes = honest(request)
        seconds, worked = time.perf_counter() - began, time.thread_time() - worked
        meta = opened(request, server).meta
        leg = f"{meta['kind']} {meta.get('leg', '')}".strip()
        spent.append([leg, int(meta.get("round", -1)), seconds, worked, synced[0], synced[1], len(request), len(reply)])
        if meta["kind"] == "end":
            (folder / "timing.json").write_text(json.dumps(spent), encoding="utf-8")
        return reply

    os.fsync = counted
    client.answer = answer
    serve_client(client, folder / KIT, Event())


class Timed:
    """A transport that notes how long each leg took."""

    def __init__(self, transport: FlareServer, clients: int) -> None:
        self.transport, self.clients = transport, clients
        self.legs: list[tuple[float, int, int]] = []

    def ask(self, requests: Mapping[int, bytes], seconds: float, genuine: Genuine = anything) -> dict[int, bytes]:
        """Ask, and note seconds, bytes there and bytes back of the largest message."""
        began = time.perf_counter()
        replies = self.transport.ask(requests, seconds, genuine)
        took = time.perf_counter() - began
        self.legs.append((took, max(map(len, requests.values())), max(map(len, replies.values()), default=0)))
        return replies

    def expect(self, largest: int) -> None:
        """Hold replies to this many bytes."""
        self.transport.expect(largest)

    def echo(self, size: int) -> float:
        """Seconds that ``size`` bytes take to every client and back."""
        request = ECHO + os.urandom(size - len(ECHO))
        began = time.perf_counter()
        replies = self.transport.ask(dict.fromkeys(range(self.clients), request), PATIENCE)
        took = time.perf_counter() - began
        assert len(replies) == self.clients
        return took

    def close(self) -> None:
        """Close the port."""
        self.transport.close()


def measure(clients: int, numbers: int, rounds: int, adversary: str) -> dict[str, Any]:
    """Seconds of each round, of its legs, of the round trips between them, and of each request at each client."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        url = f"stcp://127.0.0.1:{one.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as room:
        draw, arrays = np.random.default_rng(0), Path(room) / "data.npz"
        shape = clients * ROWS + ROWS, numbers // CLASSES - 1
        np.savez(arrays, inputs=draw.normal(size=shape).astype(np.float32), targets=np.arange(shape[0]) % CLASSES)
        file, out = Path(room) / "experiment.toml", Path(room) / "federation"
        text = EXPERIMENT.format(rounds=rounds, arrays=arrays, clients=clients, adversary=adversary)
        file.write_text(text, encoding="utf-8")
        split(Experiment.from_toml(file), text, out, url=url, epsilon=None, seconds=PATIENCE)
        folders = party_folders(out, clients)
        provision(folders)
        command = [sys.executable, __file__, "--client"]
        processes = [subprocess.Popen([*command, str(folders[f"client-{one}"])]) for one in range(clients)]
        transport = Timed(FlareServer(url, folders["server"] / KIT), clients)
        ends: list[tuple[float, int]] = []
        echoes: list[float] = []

        def after(run: Any, line: dict[str, Any]) -> None:
            ends.append((time.perf_counter(), len(transport.legs)))
            assert line["clients"] == clients, line
            bytes_of = max(there + back for _, there, back in transport.legs)
            echoes.append(transport.echo(bytes_of // 2))
            starts.append(time.perf_counter())

        starts: list[float] = []
        try:
            transport.echo(1 << 20)  # all of them are there
            server_of(folders["server"], lambda *_: transport).run(folders["server"] / "run", callbacks=[after])
            for process in processes:
                process.wait(timeout=PATIENCE)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            transport.close()
        said = [(folders[f"client-{one}"] / "timing.json").read_text(encoding="utf-8") for one in range(clients)]
        requests = [json.loads(one) for one in said]
    spent = [end - start for start, (end, _) in zip(starts, ends[1:], strict=False)]
    legs = [transport.legs[first:last] for (_, first), (_, last) in pairwise(ends)]
    return {
        "clients": clients,
        "numbers": numbers,
        "adversary": adversary,
        "round seconds": [round(one, 5) for one in spent],
        "leg seconds": [[round(seconds, 5) for seconds, _, _ in one] for one in legs],
        "leg bytes": [(there, back) for _, there, back in legs[-1]],
        "round trip seconds": [round(one, 5) for one in echoes],
        "at clients": summary(requests),
        "load": os.getloadavg()[0],
    }


def summary(requests: list[list[list[Any]]]) -> dict[str, dict[str, float]]:
    """Of each kind of request, from the second round on: milliseconds at a client, in the middle and at most."""
    kinds: dict[str, list[list[Any]]] = {}
    for one in (one for every in requests for one in every if one[1] > 0):
        kinds.setdefault(one[0], []).append(one)
    return {
        kind: {
            "times": len(found),
            "milliseconds": round(1000 * statistics.median(one[2] for one in found), 2),
            "at most": round(1000 * max(one[2] for one in found), 2),
            "of a core": round(1000 * statistics.median(one[3] for one in found), 2),
            "waiting for the disk": round(1000 * statistics.median(one[4] for one in found), 2),
            "forced to disk": statistics.median(one[5] for one in found),
        }
        for kind, found in kinds.items()
    }


def told(found: dict[str, Any]) -> dict[str, Any]:
    """What it comes to: medians, and how many round trips a round takes."""
    round_, trip = (statistics.median(found[name]) for name in ("round seconds", "round trip seconds"))
    legs = [statistics.median(one) for one in zip(*found["leg seconds"], strict=True)]
    return {
        "round, ms": round(1000 * round_, 1),
        "its legs, ms": [round(1000 * one, 1) for one in legs],
        "round trip of equal bytes, ms": round(1000 * trip, 1),
        "round / round trip": round(round_ / trip, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What a round of a federation with a secure sum costs.")
    parser.add_argument("--clients", type=int, nargs="+", default=[10])
    parser.add_argument("--numbers", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--adversary", nargs="+", default=["active"], choices=["active", "semi-honest"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--client", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        serve(given.client)
        return
    rows = []
    for clients in given.clients:
        for adversary in given.adversary:
            found = measure(clients, given.numbers, given.rounds, adversary)
            rows.append({**told(found), **found, "date": datetime.date.today().isoformat()})
            print(json.dumps(told(found)), json.dumps(found["at clients"], indent=1), flush=True)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

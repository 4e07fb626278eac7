"""Secure aggregation against the masks that it cannot do without, how it grows, and what its arithmetic costs.

Everything runs in one process on all cores: clients one after the other on as many threads as there are cores, then
the server. The floor draws as many ChaCha20 masks as the protocol needs and adds them up, on as many threads, with
nothing else around it; protocol and floor take turns. Every sum is compared with the sum of the survivors' vectors.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from workload import ratio

from privfl.privacy.noise.discrete import discrete_gaussian, skellam
from privfl.privacy.noise.source import NoiseSource
from privfl.privacy.secagg.encoding import Encoding, FieldRange
from privfl.privacy.secagg.messages import Phase
from privfl.privacy.secagg.parameters import ThreatModel
from privfl.privacy.secagg.rehearsal import Outcome, aggregate
from privfl.privacy.secagg.session import Adversary, Session

CLIENTS, LENGTH = 100, 1_000_000
REPEATS = 5
CORES = os.cpu_count() or 1
MANY = ThreatModel(corrupt=0.05, dropout=0.4)
"""1,000 clients, of whom 10 % go silent before each of the four phases."""
FEW = ThreatModel(corrupt=0.05, dropout=0.1)
DEVIATIONS = (0.5, 30.0, 1e3, 1e6)
"""Standard deviations of discrete noise, in steps."""

Vectors = Sequence[NDArray[np.uint32]]


def random_vectors(length: int) -> Vectors:
    """Four vectors that the clients hold in turn."""
    draws = np.random.default_rng(length)
    return [draws.integers(0, 1 << 32, length, np.uint32) for _ in range(4)]


def complete(clients: int, length: int, adversary: Adversary = "semi-honest") -> Session:
    """A session of everybody with everybody; two thirds of the shares reveal a secret.

    Against an active adversary a tenth of the clients may be accomplices, which is what a run does by default.
    """
    members, accomplices = tuple(range(clients)), clients // 10 if adversary == "active" else 0
    threshold = max(2 * clients // 3, (clients + accomplices) // 2 + 1)
    return Session(
        secrets.token_bytes(32),
        0,
        members,
        clients - 1,
        threshold,
        length,
        adversary=adversary,
        accomplices=accomplices,
    )


def secure_sum(
    session: Session,
    vectors: Vectors,
    lost: Mapping[int, Phase] | None = None,
    workers: int = CORES,
    alone: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, Outcome]:
    """Seconds of a whole session, and its outcome, whose sum has been checked."""
    began = clock()
    outcome = aggregate(session, lambda member: vectors[member % 4], lost=lost, workers=workers, alone=alone)
    seconds = clock() - began
    counts = np.bincount([member % 4 for member in outcome.survivors], minlength=4).astype(np.uint32)
    expected = np.zeros(session.length, np.uint32)
    for vector, count in zip(vectors, counts, strict=True):
        expected += vector * count
    if not np.array_equal(outcome.total, expected):
        raise SystemExit("the secure sum is not the sum of the survivors' vectors")
    return seconds, outcome


def bare_masks(clients: int, each: int, length: int, cores: int = CORES) -> float:
    """Seconds to draw and add ``each`` masks to the vectors of ``clients`` clients, and to add these up.

    The server of a session without drop-outs removes one mask a client besides, which is one more client's work.
    """
    zeros = memoryview(bytes(1 << 17))

    def one_client(place: int) -> NDArray[np.uint32]:
        vector = np.zeros(length, np.uint32)
        words = np.empty(1 << 15, np.uint32)
        room = words.view(np.uint8).data
        ciphers = [Cipher(ChaCha20(secrets.token_bytes(32), bytes(16)), mode=None).encryptor() for _ in range(each)]
        for start in range(0, length, len(words)):
            part = vector[start : start + len(words)]
            nothing, drawn, numbers = zeros[: part.nbytes], room[: part.nbytes], words[: len(part)]
            for cipher in ciphers:
                cipher.update_into(nothing, drawn)
                np.add(part, numbers, out=part)
        return vector

    began = time.perf_counter()
    total = np.zeros(length, np.uint32)
    with ThreadPoolExecutor(cores) as pool:
        for vector in pool.map(one_client, range(clients + 1)):
            total += vector
    return time.perf_counter() - began


def against_masks(repeats: int) -> list[dict[str, Any]]:
    """100 clients × 1,000,000 numbers over the bare masks, on all cores; the server's and one client's share on one."""
    vectors, size = random_vectors(LENGTH), f"{CLIENTS} clients × {LENGTH:,} numbers, complete graph"
    seconds: dict[str, list[float]] = {"session": [], "masks": []}
    for _ in range(min(repeats, REPEATS)):
        seconds["session"].append(secure_sum(complete(CLIENTS, LENGTH), vectors)[0])
        seconds["masks"].append(bare_masks(CLIENTS, CLIENTS, LENGTH))
    server, client = [], []
    for _ in range(min(repeats, 2)):
        _, outcome = secure_sum(complete(CLIENTS, LENGTH), vectors, workers=1)
        by_side = {side: total(outcome.seconds, side) for side in ("server", "clients")}
        server.append(by_side["server"])
        client.append(by_side["clients"] / CLIENTS)
    sent = {f"{side}_megabytes": total(outcome.sent, side) / 1e6 for side in ("server", "clients")}
    return [
        {
            "what": f"secure sum / its masks alone, {size}, {CORES} cores",
            "target": 1.5,
            **ratio(seconds, "session", "masks"),
            "seconds": seconds,
            **sent,
        },
        {"what": f"seconds of the server, {size}, 1 core", "target": None, **spread(server)},
        {"what": f"seconds of one client, {size}, 1 core", "target": None, **spread(client)},
    ]


def on_one_core(repeats: int) -> Iterator[dict[str, Any]]:
    """Processor seconds of sessions over those of their bare masks, one thread; a busy machine tells less by the clock.

    The active adversary is a run's default; the other one shows what signatures and the further round trip cost. A
    simulation computes once what several parties would compute alike; *each for itself* is what they all pay together
    in a deployment.
    """
    adversaries: tuple[Adversary, ...] = ("active", "semi-honest")
    for clients, length, target, times in ((30, 200_000, 1.6, 2 * REPEATS), (CLIENTS, LENGTH, 1.5, 1)):
        vectors = random_vectors(length)
        kinds = [(adversary, alone) for adversary in adversaries for alone in (False, True)]
        masks: list[float] = []
        seconds: dict[tuple[Adversary, bool], list[float]] = {kind: [] for kind in kinds}
        for _ in range(times if repeats > 2 else 1):
            began = time.process_time()
            bare_masks(clients, clients, length, cores=1)
            masks.append(time.process_time() - began)
            for adversary, alone in kinds:
                session = complete(clients, length, adversary)
                spent, _ = secure_sum(session, vectors, workers=1, alone=alone, clock=time.process_time)
                seconds[adversary, alone].append(spent)
        for adversary, alone in kinds:
            both = {"session": seconds[adversary, alone], "masks": masks}
            yield (
                {
                    "what": f"secure sum / its masks alone, {clients} clients × {length:,} numbers, complete graph, "
                    f"{adversary} adversary{', each for itself' * alone}, processor seconds of 1 core",
                    "target": target if (adversary, alone) == ("active", False) else None,
                    **ratio(both, "session", "masks"),
                    "seconds": both,
                }
            )


def total(by_phase: Mapping[tuple[Phase, str], float], side: str) -> float:
    """What clients or server took over all phases."""
    return sum(value for (_, who), value in by_phase.items() if who == side)


def growth(repeats: int) -> list[dict[str, Any]]:
    """Time over what the counts of masks, pairs and vectors say, each at its price, in clients and in vector length.

    The prices are measured here: of a masked word by the bare masks of the same length; of a pair of neighbours by
    sessions whose vectors have 16 numbers; of handling a number (copy, pack, digest, add) by sessions on a bare circle.
    """
    cases = {
        "complete": [complete(clients, 100_000) for clients in (10, 20, 50, 100, 200)],
        "k-regular": [Session.between(range(clients), FEW, length=100_000) for clients in (100, 200, 500, 1000)],
        "length": [complete(50, length) for length in (1_000, 10_000, 100_000, 1_000_000)],
    }
    repeats = min(repeats, 2)
    by_pair = min(secure_sum(complete(50, 16), random_vectors(16))[0] for _ in range(repeats + 1)) / (50 * 49)
    circle = Session(secrets.token_bytes(32), 0, tuple(range(20)), 2, 2, LENGTH)
    around = min(secure_sum(fresh(circle), random_vectors(LENGTH))[0] for _ in range(repeats + 1))
    by_number = max(0.0, around - bare_masks(20, 4, LENGTH) - 40 * by_pair) / (20 * LENGTH)
    rows = []
    for name, sessions in cases.items():
        for session in sessions:
            clients, each, length = len(session.members), session.degree + 1, session.length
            vectors = random_vectors(length)
            spent = [secure_sum(fresh(session), vectors)[0] for _ in range(repeats)]
            enough = max(CORES, min(clients, 500_000_000 // (each * length)))
            by_masked_word = bare_masks(enough - 1, each, length) / (enough * each * length)
            predicted = (
                (clients * each + clients) * length * by_masked_word
                + clients * session.degree * by_pair
                + clients * length * by_number
            )
            graph = "complete graph" if session.complete else f"{session.degree} neighbours"
            rows.append(
                {
                    "what": f"secure sum / predicted, {clients} clients × {length:,} numbers, {graph}",
                    "target": None,
                    **spread([value / predicted for value in spent]),
                    "growth": {
                        "case": name,
                        "clients": clients,
                        "length": length,
                        "degree": session.degree,
                        "seconds": min(spent),
                        "predicted": predicted,
                    },
                }
            )
    return rows


def fresh(session: Session) -> Session:
    """The same session under an identity of its own."""
    return Session(secrets.token_bytes(32), 0, session.members, session.degree, session.threshold, session.length)


def many_clients() -> list[dict[str, Any]]:
    """1,000 clients × 100,000 numbers by SecAgg+, with 10 % lost before every phase."""
    clients, length = 1000, 100_000
    session = Session.between(range(clients), MANY, length=length)
    phases = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK)
    order = np.random.default_rng(0).permutation(clients).tolist()
    lost = {member: phase for place, phase in enumerate(phases) for member in order[100 * place : 100 * (place + 1)]}
    seconds, outcome = secure_sum(session, random_vectors(length), lost)
    return [
        {
            "what": f"seconds for {clients:,} clients × {length:,} numbers by SecAgg+ ({session.degree} neighbours, "
            f"threshold {session.threshold}), 10 % lost before every phase",
            "target": None,
            **spread([seconds]),
            "survivors": len(outcome.survivors),
            "server_seconds": total(outcome.seconds, "server"),
        }
    ]


def arithmetic(repeats: int) -> list[dict[str, Any]]:
    """Encoding and discrete noise for 1,000,000 numbers on one core."""
    source = NoiseSource.from_os()
    encoding = Encoding.for_cohort([FieldRange("update", LENGTH, 1.0)], CLIENTS)
    values = {"update": np.random.default_rng(0).normal(0, 0.1, LENGTH).astype(np.float32)}
    rows = [
        timed("encoding 1,000,000 numbers", 0.06, lambda: encoding.encode(values, source.stream("coins")), repeats),
        timed(
            "encoding 1,000,000 numbers within an L2 norm",
            None,
            lambda: encoding.encode(values, source.stream("coins"), {"update": 50.0}),
            repeats,
        ),
    ]
    for name, sampler in (("discrete Gaussian", discrete_gaussian), ("Skellam", skellam)):
        for deviation in DEVIATIONS:
            rows.append(
                timed(
                    f"{name} noise for 1,000,000 coordinates, standard deviation {deviation:,g}",
                    1.0,
                    lambda sampler=sampler, deviation=deviation: sampler(source.stream("x"), LENGTH, deviation**2),
                    repeats,
                )
            )
    return rows


def timed(what: str, target: float | None, work: Callable[[], object], repeats: int) -> dict[str, Any]:
    """A row of seconds; the first call, which may fill tables, counts as well."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return {"what": f"seconds for {what}", "target": target, **spread(seconds)}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and largest."""
    return {"median": float(np.median(values)), "min": min(values), "max": max(values)}


def run(repeats: int) -> list[dict[str, Any]]:
    """All of it."""
    return [*against_masks(repeats), *on_one_core(repeats), *growth(repeats), *many_clients(), *arithmetic(repeats)]


def figure(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Seconds against clients and against the length of the vectors, dots measured, lines predicted."""
    from matplotlib.figure import Figure

    points = [row["growth"] for row in rows if "growth" in row]
    picture = Figure(figsize=(9, 4), layout="constrained")
    by_clients, by_length = picture.subplots(1, 2, sharey=True)
    panels = (
        (by_clients, "complete", "clients", ("#0072B2", "o", "-"), "complete graph"),
        (by_clients, "k-regular", "clients", ("#D55E00", "s", "--"), "random k-regular graph"),
        (by_length, "length", "length", ("#0072B2", "o", "-"), "complete graph"),
    )
    for axes, case, along, (colour, marker, dashes), label in panels:
        chosen = [point for point in points if point["case"] == case]
        places = [point[along] for point in chosen]
        axes.loglog(places, [point["predicted"] for point in chosen], dashes, color=colour, label=f"{label}, predicted")
        axes.loglog(places, [point["seconds"] for point in chosen], marker, color=colour, label=f"{label}, measured")
        if case == "k-regular":
            for point in chosen:
                note = f"k = {point['degree']}"
                place = (point["clients"], point["seconds"])
                axes.annotate(note, place, (6, -10), textcoords="offset points", fontsize=8, color=colour)
    by_clients.set_xlabel("clients (100,000 numbers each)")
    by_length.set_xlabel("numbers in a vector (50 clients)")
    by_clients.set_ylabel("seconds for a session")
    for axes in (by_clients, by_length):
        axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7, loc="upper left")
    picture.savefig(path, dpi=150)

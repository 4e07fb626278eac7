"""What the check against a lying server costs, and from which size on a sparse graph pays: one process, one core.

    python benchmarks/secagg_costs.py OUT.json [PART ...]

In every session 10 % of the clients go silent before they send a vector. Seconds are processor time, of the whole
session; the server's part of it is that of the time by the clock. Bytes are what a client sends and receives. Every
party computes all it needs by itself, as in a deployment.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from secagg import REPEATS, on_one_core

from privfl.privacy.secagg.masks import add_many
from privfl.privacy.secagg.messages import Phase
from privfl.privacy.secagg.parameters import ThreatModel, find
from privfl.privacy.secagg.primitives import KEY_BYTES, AgreementKey, SigningKey, derive, seal, verification_key, verify
from privfl.privacy.secagg.rehearsal import aggregate
from privfl.privacy.secagg.rules import confirmations
from privfl.privacy.secagg.session import Session
from privfl.privacy.secagg.shamir import split

CORRUPT, DROPOUT = 0.1, 0.1
LENGTHS = {1_000: (20, 50, 100, 200), 100_000: (20, 50, 100)}
WHOLE_LISTS = (200, 1_000, 8_000)


def session_of(n: int, kind: str, length: int) -> Session:
    """A session of ``n`` of one of the kinds that are compared."""
    members, accomplices = tuple(range(n)), ThreatModel(CORRUPT, DROPOUT).corrupt_of(n)
    if kind == "active, complete":
        return Session.between(members, ThreatModel(CORRUPT, DROPOUT, "active"), length=length)
    threat = ThreatModel(CORRUPT, DROPOUT)
    degree, threshold = find(n, threat) if kind == "semi-honest, sparse" else (n - 1, threat.staying_of(n))
    return Session(
        secrets.token_bytes(32), 0, members, degree, threshold, length, accomplices=accomplices,
        quorum=threat.staying_of(n),
    )  # fmt: skip


def sessions() -> Iterator[dict[str, Any]]:
    """Seconds and bytes of whole sessions."""
    for length, sizes in LENGTHS.items():
        vector = np.random.default_rng(0).integers(0, 1 << 32, length, np.uint32)
        for n in sizes:
            lost = {member: Phase.MASK for member in range(0, n, 10)}
            for kind in ("semi-honest, sparse", "semi-honest, complete", "active, complete"):
                session = session_of(n, kind, length)
                began = time.process_time()
                outcome = aggregate(session, dict.fromkeys(session.members, vector), lost=lost, alone=True)
                seconds = time.process_time() - began
                if not np.array_equal(outcome.total, vector * np.uint32(len(outcome.survivors))):
                    raise SystemExit("the secure sum is not the sum of the survivors' vectors")
                spent = {side: total(outcome.seconds, side) for side in ("clients", "server")}
                of_server = spent["server"] / sum(spent.values())
                yield {
                    "numbers": length,
                    "clients": n,
                    "kind": kind,
                    "degree": session.degree,
                    "seconds": seconds,
                    "seconds of the server": seconds * of_server,
                    "seconds of a client": seconds * (1 - of_server) / n,
                    "bytes sent by a client": total(outcome.sent, "clients") / n,
                    "bytes received by a client": total(outcome.sent, "server") / n,
                }


def total(values: Mapping[tuple[Phase, str], float], side: str) -> float:
    """The sum over the phases of one side."""
    return sum(value for (_, whose), value in values.items() if whose == side)


def phases() -> Iterator[dict[str, Any]]:
    """Milliseconds of one client and of the server by phase, nobody dropping out; the best of some sessions."""
    for n, length, times in ((30, 200_000, 5), (100, 200_000, 1)):
        vector = np.random.default_rng(0).integers(0, 1 << 32, length, np.uint32)
        for kind in ("semi-honest, complete", "active, complete"):
            best: dict[tuple[str, str], float] = {}
            for _ in range(times):
                session = session_of(n, kind, length)
                began = time.process_time(), time.perf_counter()
                outcome = aggregate(session, dict.fromkeys(session.members, vector), alone=True)
                busy = (time.process_time() - began[0]) / (time.perf_counter() - began[1])
                for (phase, side), seconds in outcome.seconds.items():
                    each = 1e3 * busy * seconds / (n if side == "clients" else 1)
                    best[side, phase.name] = min(each, best.get((side, phase.name), each))
            row: dict[str, Any] = {"numbers": length, "clients": n, "kind": kind}
            for side in ("clients", "server"):
                row[f"ms, {side}"] = {phase: round(ms, 2) for (whose, phase), ms in best.items() if whose == side}
            yield row


def ratios() -> Iterator[dict[str, Any]]:
    """Sessions over the masks that they cannot do without, as ``secagg.py`` measures them on one core."""
    yield from on_one_core(REPEATS)


def operations() -> Iterator[dict[str, Any]]:
    """Microseconds of what sessions are made of, the best of some thousand."""
    key, peer, secret = AgreementKey(secrets.token_bytes(32)), AgreementKey(secrets.token_bytes(32)), bytes(32)
    signing = SigningKey(secret)
    signature, public = signing.sign(b"content"), signing.public
    points = tuple(range(1, 31))
    work: dict[str, Callable[[], object]] = {
        "agreement (X25519)": lambda: key.agree(peer.public),
        "signature (Ed25519)": lambda: signing.sign(b"content"),
        "verification (Ed25519)": lambda: verify(public, signature, b"content"),
        "four keys from an agreement (HKDF)": lambda: derive(secret, secret, b"pair", 128),
        "sealing a letter (AES-GCM)": lambda: seal(secret, bytes(12), bytes(66), b"bound"),
        "30 shares, threshold 20": lambda: split(secret, 20, points),
        "30 masks of 200,000 numbers (ChaCha20 and sums)": masks_of(200_000),
        "30 masks of 1,000,000 numbers": masks_of(1_000_000),
    }
    for what, call in work.items():
        number = max(1, int(0.002 / min(timeit.repeat(call, number=1, repeat=50, timer=time.process_time))))
        best = min(timeit.repeat(call, number=number, repeat=50, timer=time.process_time)) / number
        yield {"operation": what, "microseconds": round(1e6 * best, 2)}


def masks_of(length: int) -> Callable[[], object]:
    """A call that adds thirty masks to a vector."""
    target, seeds = np.zeros(length, np.uint32), [(secrets.token_bytes(32), 1) for _ in range(30)]
    return lambda: add_many(target, seeds)


def whole_lists() -> Iterator[dict[str, Any]]:
    """What it would cost a client to check that so many signed one list of all survivors, as a sparse graph needs."""
    for n in WHOLE_LISTS:
        needed = confirmations(n, ThreatModel(CORRUPT, DROPOUT).corrupt_of(n))
        keys = [secrets.token_bytes(KEY_BYTES) for _ in range(needed)]
        public = [verification_key(key) for key in keys]
        content = secrets.token_bytes(32)
        signatures = [SigningKey(key).sign(content) for key in keys]
        began = time.process_time()
        for key, signature in zip(public, signatures, strict=True):
            verify(key, signature, content)
        seconds = time.process_time() - began
        yield {"clients": n, "signatures": needed, "seconds": seconds, "bytes": 4 * n + 68 * needed}


def main(out: Path, names: Sequence[str]) -> None:
    """Measure the named parts (all unless any is), show and keep them; what OUT.json holds of others stays."""
    results: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for part in (operations, ratios, phases, whole_lists, sessions):
        if names and part.__name__ not in names:
            continue
        results[part.__name__], results[f"load before {part.__name__}"] = [], round(os.getloadavg()[0], 1)
        for row in part():
            print(row, flush=True)
            results[part.__name__].append(row)
            out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

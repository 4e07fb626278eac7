"""What the check against a lying server costs, and from which size on a sparse graph pays: one process, one core.

    python benchmarks/secagg_costs.py OUT.json

In every session 10 % of the clients go silent before they send a vector. Seconds are processor time, of the whole
session; the server's part of it is that of the time by the clock. Bytes are what a client sends and receives.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privfl.privacy.secagg.messages import Phase
from privfl.privacy.secagg.parameters import ThreatModel, find
from privfl.privacy.secagg.primitives import KEY_BYTES, sign, verification_key, verify
from privfl.privacy.secagg.rehearsal import aggregate
from privfl.privacy.secagg.rules import confirmations
from privfl.privacy.secagg.session import Session

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
                outcome = aggregate(session, dict.fromkeys(session.members, vector), lost=lost)
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


def whole_lists() -> Iterator[dict[str, Any]]:
    """What it would cost a client to check that so many signed one list of all survivors, as a sparse graph needs."""
    for n in WHOLE_LISTS:
        needed = confirmations(n, ThreatModel(CORRUPT, DROPOUT).corrupt_of(n))
        keys = [secrets.token_bytes(KEY_BYTES) for _ in range(needed)]
        public = [verification_key(key) for key in keys]
        content = secrets.token_bytes(32)
        signatures = [sign(key, content) for key in keys]
        began = time.process_time()
        for key, signature in zip(public, signatures, strict=True):
            verify(key, signature, content)
        seconds = time.process_time() - began
        yield {"clients": n, "signatures": needed, "seconds": seconds, "bytes": 4 * n + 68 * needed}


def main(out: Path) -> None:
    """Measure, show and keep."""
    results: dict[str, Any] = {"load before": os.getloadavg()[0]}
    for part in (whole_lists, sessions):
        results[part.__name__] = []
        for row in part():
            print(row, flush=True)
            results[part.__name__].append(row)
    results["load after"] = os.getloadavg()[0]
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

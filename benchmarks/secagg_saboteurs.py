"""Secure sums of 100 clients with five that lie, in every way there is: ``python benchmarks/secagg_saboteurs.py``.

Every session must end with the exact sum of the survivors, among them all honest clients, or, where a lie shows at the
end only, with an abort; and whoever can be named must be, and nobody else. Writes ``results/secagg-saboteurs.json``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the saboteurs lie beside the tests, which run small sessions
from privfl.privacy.secagg.client import Client
from privfl.privacy.secagg.errors import SecAggError
from privfl.privacy.secagg.messages import Phase
from tests.privacy.secagg import saboteurs
from tests.privacy.secagg.staging import Stage, a_session, sum_of

RESULT = Path(__file__).parent / "results" / "secagg-saboteurs.json"
CLIENTS, LIARS = 100, 5


def session_with(liars: dict[int, Any], adversary: str) -> dict[str, Any]:
    """One session in which these members lie: how it ended, who was named."""
    session = a_session(CLIENTS, 67, adversary=adversary, accomplices=10, quorum=67)
    stage = Stage(session, make_client=lambda *given, **more: liars.get(given[1], Client)(*given, **more))
    began = time.process_time()
    ended = "sum"
    try:
        while stage.server.phase is not None:
            for member in sorted(stage.inbox):
                try:
                    stage.receive(stage.answer(stage.server.phase, member))
                except SecAggError:
                    if member not in liars:
                        raise
            stage.close()
    except SecAggError as error:
        ended = type(error).__name__
    blamed = stage.server.blamed
    if not blamed.keys() <= liars.keys():
        raise SystemExit(f"honest clients are blamed: {sorted(blamed.keys() - liars.keys())}")
    if ended == "sum":
        survivors = stage.server.survivors
        if set(session.members) - liars.keys() - survivors:
            raise SystemExit("an honest client has lost its place")
        if stage.server.result().tolist() != sum_of(session, stage.vectors, survivors):
            raise SystemExit("the sum is not that of the survivors")
    elif not blamed:
        raise SystemExit(f"a session was aborted and nobody named: {ended}")
    return {
        "ended": ended,
        "liars": {member: kind.__name__ for member, kind in sorted(liars.items())},
        "in the sum": sorted(liars.keys() & stage.server.survivors) if ended == "sum" else [],
        "named": dict(sorted(blamed.items())),
        "processor_seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Every kind of liar by itself, then kinds of all phases at once, under both adversaries."""
    os.nice(15)
    dice = random.Random(14)
    everyone = (*saboteurs.LEFT_OUT, *saboteurs.IN_THE_SUM, *saboteurs.ENDING)
    by_phase = {phase: [kind for kind in everyone if kind.phase is phase] for phase in Phase}
    mixed = [kind for kind in everyone if kind not in saboteurs.ENDING]
    record: dict[str, list[dict[str, Any]]] = {}
    for adversary in ("active", "semi-honest"):
        record[adversary] = []
        kinds = [kind for kind in everyone if adversary == "active" or kind.phase is not Phase.CONFIRM]
        crews = [[kind] * LIARS for kind in kinds]
        crews += [[dice.choice([kind for kind in mixed if kind in kinds]) for _ in range(LIARS)] for _ in range(3)]
        phases = [phase for phase in Phase if adversary == "active" or phase is not Phase.CONFIRM]
        crews.append([dice.choice(by_phase[phase]) for phase in phases for _ in range(LIARS)])  # five in every phase
        for crew in crews:
            liars = dict(zip(dice.sample(range(CLIENTS), len(crew)), crew, strict=True))
            record[adversary].append(session_with(liars, adversary))
            last = record[adversary][-1]
            print(adversary, crew[0].__name__, last["ended"], len(last["named"]), last["processor_seconds"], flush=True)
            RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

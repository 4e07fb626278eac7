"""What a whole study spent: the ledgers of its runs, composed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privfl.errors import DataError
from privfl.privacy.accounting.claims import make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Release, unprotected
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.run_directory import RunDirectory
from privfl.study.grid import Result

OTHER_CLIENTS = "the runs deal the data to different clients, so what one client holds here is spread over many there"


def sweep_statement(out: Path, results: Sequence[Result]) -> Statement:
    """What all ``results`` together spent, for the example or client that fared worst in every run.

    Seeds deal the examples to different clients, so each run counts with the most that any client released in it: an
    upper bound for one example, whoever holds it. For a whole client the claims add up only if a client of one run is
    a client of the others, that is if every run deals the same or all clients are natural; otherwise nothing is
    claimed. δ is the largest that any of the runs claims.

    Raises:
        DataError: a run's statement, settings or ledger is missing or damaged, or there is no run.
    """
    if not results:
        raise DataError("a sweep of no runs spends nothing that could be told; give the results of at least one")
    ledgers, statements, settings = [], [], []
    for result in results:
        folder = out / "runs" / result.folder
        directory = RunDirectory(folder)
        checkpoint = directory.checkpoint()
        if checkpoint is None:
            raise DataError(f"{folder} has no checkpoint, so what it spent is not known; run it again")
        state = checkpoint.meta["ledger"]
        ledgers.append(Ledger.from_state(state, state["fingerprint"]))
        statements.append(directory.ending()[1])
        settings.append(tomllib.loads((folder / "config.toml").read_text(encoding="utf-8")))
    total = Ledger.merged([worst_case(ledger) for ledger in ledgers])
    if not _same_clients(ledgers, settings):
        seen = [observer for observer in OBSERVERS if total.histories("client", observer).releases]
        total.declare("division of the data")
        no_claim = {("client", observer): unprotected(OTHER_CLIENTS) for observer in seen}
        total.record(Release.of("division of the data", no_claim), None)  # type: ignore[arg-type]
    return make_statement(
        total,
        max(statement.delta for statement in statements),
        reproducible_noise=any(statement.reproducible_noise for statement in statements),
        caveats=tuple(dict.fromkeys(one for statement in statements for one in statement.caveats)),
        public=" ".join(dict.fromkeys(statement.public for statement in statements)),
        server="; ".join(dict.fromkeys(statement.server for statement in statements if statement.server)),
        interval=False,
    )


def worst_case(ledger: Ledger) -> Ledger:
    """A ledger of one client that made every release as often as the client who made it most often."""
    most: dict[Release, int] = {}
    for unit in UNITS:
        for observer in OBSERVERS:
            histories = ledger.histories(unit, observer)
            largest = histories.counts.max(axis=0).toarray().reshape(-1) if histories.releases else []
            for release, count in zip(histories.releases, largest, strict=True):
                most[release] = max(most.get(release, 0), int(count))
    worst = Ledger(1, ledger.declared)
    for release, count in most.items():
        worst.record(release, None, count)
    return worst


def _same_clients(ledgers: Sequence[Ledger], settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether everything that one client holds in one run lies with one client, or none, in each of the others."""
    if len({ledger.clients for ledger in ledgers}) > 1:
        return False
    natural = all("data" not in one and _partition(one)["name"] == "natural" for one in settings)
    return natural or len({_division(one) for one in settings}) == 1


def _partition(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return settings.get("partition") or {"name": "natural"}


def _division(settings: Mapping[str, Any]) -> str:
    """What decides which client holds which rows: a hash of them, or the dataset, the partition and the seed."""
    if "data" in settings:
        return json.dumps([settings["data"]["inputs"], settings["data"]["rows"]])
    seed = settings["dataset"].get("seed", settings["seed"])
    return json.dumps([settings["dataset"], _partition(settings), settings.get("local_tests"), seed], sort_keys=True)

"""What several runs spent together, and the picks that tuning made between them: their ledgers, composed."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from privfl.errors import DataError
from privfl.privacy.accounting.claims import doubted, make_statement
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.accounting.release import OBSERVERS, UNITS, Observer, Release, Unit, unprotected
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.run_directory import RunDirectory
from privfl.study.choice import other_picks
from privfl.study.choice import release as picked
from privfl.study.clients import read_clients
from privfl.study.history import History, spent_in
from privfl.study.store import CELLS
from privfl.study.summary import Result
from privfl.study.trials import FILE as TRIAL
from privfl.study.trials import trial_settings

OTHER_CLIENTS = "the runs deal the data to different clients, so what one client holds here is spread over many there"
UNKNOWN = "a trial did not come to an end, so what it had released before is not known"
GONE = "the directory of {} was removed after it had released something, so what it cost is no longer known"
OPEN = "{} of an earlier form of the study did not come to an end, so what it had released is not known"
DECIDES = (
    "runs release other things, or the same ones more often, for other values of {}, so what a run costs depends on "
    "the data that picked it"
)


@dataclass(frozen=True)
class Spent:
    """What tuning released for one method at one level.

    Args:
        parameter: that was tuned.
        trials: names of the trials' directories: for each seed and rung a group, which differ in the value alone.
        epsilon: of each pick for one validation row, ``None`` if it was made outright.
        picks: how many.
    """

    parameter: str
    trials: tuple[tuple[str, ...], ...]
    epsilon: float | None
    picks: int

    @classmethod
    def of(cls, spent: Mapping[str, Any]) -> Self:
        """From its fields, as JSON holds them."""
        return cls(spent["parameter"], tuple(map(tuple, spent["trials"])), spent["epsilon"], spent["picks"])

    @classmethod
    def all_of(cls, told: Mapping[str, Any]) -> tuple[Self, ...]:
        """From what the store keeps of a tuning, and of the ones that its runs had followed from; none if not over."""
        return tuple(cls.of(one) for one in spent_in(told))


def sweep_statement(
    out: Path, results: Sequence[Result], tuning: Sequence[Spent] = (), former: Sequence[str] = ()
) -> Statement:
    """What all ``results`` together spent, for the example or client that fared worst in every run.

    See :func:`together`.

    Raises:
        DataError: a run's statement, settings or ledger is missing or damaged, or there is no run.
    """
    if not results:
        raise DataError("a sweep of no runs spends nothing that could be told; give the results of at least one")
    return together(out / "runs", [result.folder for result in results], tuning, former)


def together(runs: Path, names: Sequence[str], tuning: Sequence[Spent] = (), former: Sequence[str] = ()) -> Statement:
    """What the runs in the directories ``names`` of the folder ``runs`` spent, and ``tuning`` before them.

    The runs and trials ``former`` of earlier forms of the study count too, with the picks that were made from them;
    those that never began released nothing. Where the directory of a run is gone that had begun, nothing is claimed.

    Seeds deal the examples to different clients, so each run counts with the most that any client released in it: an
    upper bound for one example, whoever holds it. For a whole client the claims add up only if a client of one run is
    a client of the others, that is if every run deals the same or all clients are natural; otherwise nothing is
    claimed. δ is the largest that any of the runs claims.

    Trials count as runs do: an example that is for validation is in none of them, so to count all of it is an upper
    bound. So do the picks that were made from any of these trials before a study was edited, with their trials. Runs
    whose mechanisms depend on the value that was picked are not composed: nothing is claimed then.

    Raises:
        DataError: a run's statement, settings or ledger is missing or damaged.
    """
    total, statements, units = compose(runs, names, tuning, former)
    return make_statement(
        total,
        max(statement.delta for statement in statements),
        units=units,
        reproducible_noise=any(statement.reproducible_noise for statement in statements),
        caveats=tuple(dict.fromkeys(one for statement in statements for one in statement.caveats)),
        public=" ".join(dict.fromkeys(statement.public for statement in statements)),
        server="; ".join(dict.fromkeys(statement.server for statement in statements if statement.server)),
        interval=False,
    )


def after_tuning(
    runs: Path, names: Sequence[str], tuning: Sequence[Spent], former: Sequence[str] = ()
) -> tuple[dict[str, float], list[str]]:
    """ε of each cell for one of the runs ``names`` after ``tuning``, the largest of them; and why it is ∞ where it is.

    The trials ``former`` of earlier forms of the study count too.

    Raises:
        DataError: as :func:`together`.
    """
    worst, reasons = dict.fromkeys(CELLS, 0.0), dict[str, None]()
    priced: dict[str, dict[str, float]] = {}
    for name in names:
        ledger, statements, units = compose(runs, [name], tuning, former)
        delta = max(one.delta for one in statements)
        key = json.dumps([{**ledger.state(), "fingerprint": ""}, delta, units], sort_keys=True)
        if key not in priced:
            whole = make_statement(ledger, delta, reproducible_noise=False, units=units)
            priced[key] = {f"{one.unit}/{one.observer}": one.epsilon for one in whole.cells}
            for cell in whole.cells:
                reasons |= dict.fromkeys(f"{cell.unit}/{cell.observer}: {reason}" for reason in cell.reasons)
        worst = {cell: max(worst[cell], priced[key][cell]) for cell in CELLS}
    return worst if names else dict.fromkeys(CELLS, math.inf), list(reasons)


def compose(
    runs: Path, names: Sequence[str], tuning: Sequence[Spent] = (), former: Sequence[str] = ()
) -> tuple[Ledger, list[Statement], dict[Unit, int]]:
    """The ledger that :func:`together` prices, of one client who fared worst in every run; and the runs' statements.

    Last comes how many of each unit some run protects, the most of any: by it a δ is too large.
    """
    spent = list(dict.fromkeys(tuning))  # what two groups of runs were tuned by was spent once
    trials = list(dict.fromkeys(name for one in spent for group in one.trials for name in group))
    others = other_picks(runs.parent, [(one.trials, one.epsilon) for one in spent], former)
    trials += [name for name in dict.fromkeys(name for one in others for name in one.trials) if name not in trials]
    earlier = [name for name in dict.fromkeys(former) if name not in (*trials, *names)]
    history = History(runs.parent)
    standing = {name: history.standing(name) for name in (*names, *trials, *earlier)}
    ended = [name for name in (*trials, *earlier) if RunDirectory(runs / name).finished]
    ledgers, statements, settings = _read(runs, [*names, *ended])
    picks = [*(picked(one.parameter, one.epsilon, one.picks) for one in spent), *(one.cost for one in others)]
    total = Ledger.merged([*map(worst_case, ledgers), *map(_once, picks)])
    if not _same_clients(ledgers, settings):
        seen = [observer for observer in OBSERVERS if total.histories("client", observer).releases]
        _claim_nothing(total, "division of the data", OTHER_CLIENTS, [("client", observer) for observer in seen])
    everything = [(unit, observer) for unit in UNITS for observer in OBSERVERS]
    if not set(trials) <= set(ended):
        _claim_nothing(total, "trials that failed", UNKNOWN, everything)
    for name, how in standing.items():
        if how == "gone":
            _claim_nothing(total, "runs that are gone", GONE.format(name), everything)
        elif how == "open" and name in earlier:
            _claim_nothing(total, "runs that did not end", OPEN.format(name), everything)
    made = {name: most_often(ledger) for name, ledger in zip([*names, *ended], ledgers, strict=True)}
    for one in spent:
        groups = [[made[name] for name in group if name in made] for group in one.trials]
        if any(some != group[0] for group in groups for some in group):
            _claim_nothing(total, f"runs for {one.parameter}", DECIDES.format(one.parameter), everything)
    units: dict[Unit, int] = {"sample": 0, "client": max(ledger.clients for ledger in ledgers)}
    for name, statement in zip([*names, *ended], statements, strict=True):
        units["sample"] = max(units["sample"], _examples(runs / name, statement))
    return total, statements, units


def claims(runs: Path, name: str) -> bool:
    """Whether the run ``name`` claims anything by itself, or nobody knows any more whether it did."""
    return History(runs.parent).standing(name) != "ended" or bool(RunDirectory(runs / name).ending()[1].finite())


def _examples(folder: Path, statement: Statement) -> int:
    """How many examples the run in ``folder`` trained on; where that was not noted, as many as its statement says."""
    report = read_clients(folder)
    if report is not None:
        return int(report.sizes.sum())
    return math.floor(1 / statement.delta) + 1 if doubted(statement, "sample") else 0


def _read(runs: Path, names: Sequence[str]) -> tuple[list[Ledger], list[Statement], list[Mapping[str, Any]]]:
    """Ledgers, statements and settings of the runs ``names``; of a trial the settings of its experiment."""
    ledgers, statements, settings = [], [], list[Mapping[str, Any]]()
    for name in names:
        folder = runs / name
        directory = RunDirectory(folder)
        checkpoint = directory.checkpoint()
        if checkpoint is None:
            raise DataError(f"{folder} has no checkpoint, so what it spent is not known; run it again")
        state = checkpoint.meta["ledger"]
        ledgers.append(Ledger.from_state(state, state["fingerprint"]))
        statements.append(directory.ending()[1])
        trial = (folder / TRIAL).exists()
        text = "" if trial else (folder / "config.toml").read_text(encoding="utf-8")
        settings.append(trial_settings(folder) if trial else tomllib.loads(text))
    return ledgers, statements, settings


def _once(cost: Release) -> Ledger:
    """What picks cost, as a ledger of one client."""
    ledger = Ledger(1, [cost.name])
    ledger.record(cost, None)
    return ledger


def _claim_nothing(total: Ledger, name: str, reason: str, cells: Sequence[tuple[Unit, Observer]]) -> None:
    """Note in ``total`` that nothing is claimed in ``cells``, and why."""
    total.declare(name)
    total.record(Release.of(name, {cell: unprotected(reason) for cell in cells}), None)


def worst_case(ledger: Ledger) -> Ledger:
    """A ledger of one client that made every release as often as the client who made it most often."""
    worst = Ledger(1, ledger.declared)
    for release, count in most_often(ledger).items():
        worst.record(release, None, count)
    return worst


def most_often(ledger: Ledger) -> dict[Release, int]:
    """Every release of ``ledger``, and how often the client made it who made it most often."""
    most: dict[Release, int] = {}
    for unit in UNITS:
        for observer in OBSERVERS:
            histories = ledger.histories(unit, observer)
            largest = histories.counts.max(axis=0).toarray().reshape(-1) if histories.releases else []
            for release, count in zip(histories.releases, largest, strict=True):
                most[release] = max(most.get(release, 0), int(count))
    return most


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
    given = settings.get("dataset") or settings.get("arrays") or settings.get("task")
    seed = given.get("seed", settings["seed"]) if isinstance(given, Mapping) else settings["seed"]
    dataset = {name: value for name, value in given.items() if name != "seed"} if isinstance(given, Mapping) else given
    return json.dumps([dataset, _partition(settings), settings.get("local_tests"), seed], sort_keys=True)

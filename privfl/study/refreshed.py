"""Figures in the index that are no longer those of their directories, read anew before they are shown."""

from __future__ import annotations

from typing import Any

from privfl.study.history import Former
from privfl.study.store import Store


def refresh(store: Store, study: str) -> list[str]:
    """Read anew what went on since it was noted of ``study`` and its trials.

    Returns:
        The runs that are noted as done and have no end to be read: their directories are gone, or they go on just now.

    Raises:
        DataError: a file of a run is damaged.
    """
    members = [*store.members(study), *store.members(f"{study}/tuning")]
    outdated = store.outdated([one.run for one in members])
    there = [run for run in outdated if (store.path(run) / "summary.json").exists()]
    if there:
        from privfl.study.record import read_run  # what is finished as it was needs no torch

        for run in there:
            values, failure = read_run(store.path(run))
            if failure:
                store.fail(run, f"the run ended without having learnt: {failure}", values)
            else:
                store.finish(run, values)
    gone = [run for run in outdated if run not in there]
    if outdated and store.told(study).get("tuned"):
        _price_anew(store, study, gone)
    return gone


def _price_anew(store: Store, study: str, gone: list[str]) -> None:
    """What runs spent together with their tuning, by what their directories hold now."""
    from privfl.study.sweep import Spent, after_tuning

    told: dict[str, Any] = store.told(study)
    former = Former.of(store.history, study, [one.run for one in store.members(study)], told["tuned"])
    for one in told["tuned"]:
        spent = Spent.all_of(one)
        if spent and not set(gone) & set(one["runs"]):
            one["epsilons"], one["reasons"] = after_tuning(store.folder / "runs", one["runs"], spent, former.trials)
    store.tell(study, told)

"""Going on with a run for more rounds than were planned, as if they had been planned from the start.

That is possible where no message depends on how many rounds there will be; then noise is not derived from their number
either, and what was sent stays what it was. A run that has ended goes on under a new key, since its own is erased: no
noise is used twice, and the ledger goes on counting what is released. It goes on from the very checkpoint that it ended
with: from an earlier one, rounds that were sent and charged once would be sent again under the new key.

Its statement is worth as much as the run, and nothing can write it anew once the key is another one. So it stays until
all that can be refused was looked at, and goes before anything is sent that it does not cover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privfl.errors import ConfigError
from privfl.files import remove
from privfl.privacy.accounting.tracker import EpsilonTracker
from privfl.privacy.noise.source import NoiseSource
from privfl.schema import read_toml
from privfl.simulation.fingerprint import Fingerprint
from privfl.simulation.plan import Plan
from privfl.simulation.run_directory import CHECKPOINT, EXTENSION, Metrics, RunDirectory
from privfl.simulation.state import State


def extend(
    directory: RunDirectory, config: Mapping[str, Any], fingerprint: Fingerprint, source: NoiseSource, plan: Plan
) -> None:
    """Take the run in ``directory`` for one of as many rounds as ``config`` asks for; one that has as many stays so.

    Nothing is written before :func:`go_on`, so that whatever is refused until then leaves the run as it was.

    Args:
        fingerprint: what the messages of the run that is asked for depend on.
        source: a key that was drawn just now, or the fixed one.

    Raises:
        ConfigError: the run cannot go on for more rounds, or is another one.
        DataError: its checkpoint is not the one that it ended with.
    """
    had, asked = planned_rounds(directory), config["rounds"]
    summary = directory.read_json("summary.json")
    short = summary is not None and summary["stopped"] == "finished" and summary["rounds"] < asked
    if not asked > had and not (asked == had and short):
        return
    if plan.bound_to_rounds and asked > had:
        raise ConfigError(
            f"{directory.path} holds a run of {had} rounds, which cannot go on to {asked}: {plan.bound_to_rounds}; "
            "start anew with another --out"
        )
    record = directory.read_json("fingerprint.json")
    differing = directory.differences({**config, "rounds": had})
    if record is not None:
        differing += fingerprint.differences(record["parts"], settings=bool(differing), libraries=plan.noisy)
    if differing or record is None:
        what = "; ".join(differing) or "its fingerprint.json is missing"
        raise ConfigError(
            f"{directory.path} holds a run with other settings than more rounds: {what}; repeat its config.toml on "
            "what it began with, or choose another --out"
        )
    told: dict[str, Any] = {"key": record["key"]}
    if summary is None:
        told |= directory.extension  # its rounds go on under the key that they began with
    else:
        directory.check_ended()
        if not told["key"]["fixed"]:
            told["key"] = _another_key(directory, source)
        told |= {"from": summary["rounds"], "checkpoint": summary["sha256"][CHECKPOINT]}
    directory.waiting = told | {"rounds": asked}


def go_on(directory: RunDirectory | None, metrics: Sequence[Metrics]) -> None:
    """Write down that the run in ``directory`` goes on, if it was extended: from now on something may be sent.

    Whatever moment this is interrupted at, the run is either as it was or one that goes on: what says that it has ended
    is removed last, when all that the next rounds need is on disk.

    Args:
        metrics: of the rounds so far, as :func:`reopen` left them.

    Raises:
        PrivflError: the disk refuses.
    """
    if directory is None or directory.waiting is None:
        return
    if directory.key_file.waiting is not None:
        directory.key_file.store(directory.key_file.waiting)
    directory.write_json(EXTENSION, directory.waiting)
    for name in ("statement.json", "summary.json"):
        remove(directory.path / name)
    directory.waiting = directory.key_file.waiting = None
    directory.write_lines("metrics.jsonl", metrics)


def _another_key(directory: RunDirectory, source: NoiseSource) -> dict[str, Any]:
    """Take the key of ``source`` in the place of the one that was erased; what is written down of it."""
    if source.reproducible:
        raise ConfigError(
            f"{directory.path} holds a run that began with a key from the operating system; leave "
            "privacy.noise_key out, or choose another --out"
        )
    directory.key_file.waiting = source
    return {"fixed": False, "check": source.check}


def planned_rounds(directory: RunDirectory) -> int:
    """For how many rounds the run in ``directory`` is planned, extensions included.

    Raises:
        DataError: the file that says so is missing, damaged, or was changed since the run began.
    """
    if extension := directory.extension:
        return int(extension["rounds"])
    return int(read_toml(directory.config_file(), "a run's config.toml")["rounds"])


def reopen(plan: Plan, state: State, directory: RunDirectory | None) -> None:
    """Turn the ``state`` that the run in ``directory`` ended in into that of a run which goes on, if it does.

    The last line of metrics loses what it has because it was the last: an evaluation out of turn, and the statement's ε
    in the place of the bound that a run in flight shows.
    """
    if directory is None or directory.finished or not state.ended:
        return
    _not_the_last(plan, state)
    if directory.waiting is None:  # whoever was killed had begun to go on
        directory.write_lines("metrics.jsonl", state.metrics)


def _not_the_last(plan: Plan, state: State) -> None:
    """Take from ``state`` what it has because it was the last."""
    state.ended, state.stopped, state.failure = False, False, ""
    if not state.metrics:
        return
    line = state.metrics[-1]
    if state.round % plan.schedule.evaluate_every:
        kept = ("round", "clients", "dropped", "epsilon", *plan.algorithm.server_metrics(state.server))
        line = {name: value for name, value in line.items() if name in kept}
    bounds = EpsilonTracker(state.ledger, plan.privacy.target_delta, plan.units).so_far()
    shown = {cell: value for cell, value in bounds.items() if not plan.channel.amplified or cell == "client/public"}
    state.metrics[-1] = {**line, "epsilon": shown}

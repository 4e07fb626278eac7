"""``privfl audit``: test what an experiment claims, as a TOML file lists it.

    experiment = "digits_dpsgd.toml"   # or run = "runs/digits_dpsgd", the directory of a finished run
    confidence = 0.95
    seed = 0                           # of the auditor's coins
    task = "my_data:hospitals"         # only for runs on data from Python: a function that returns their task
    [[audit]]
    name = "rare-tokens"               # the other keys are the audit's settings
    canaries = 2000
    [[audit]]
    name = "size-response"

Results are written to ``audits/NAME.json`` in the run's directory, or in ``runs/EXPERIMENT``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from privfl.commands.printing import print_json
from privfl.companions import companion
from privfl.errors import ConfigError
from privfl.schema import build, choose_each, read_toml

if TYPE_CHECKING:
    from privfl.experiment import Experiment


@dataclass(frozen=True)
class Plan:
    """What an audit file asks for; the fields are its keys."""

    run: str = ""
    experiment: str = ""
    confidence: float = 0.95
    seed: int = 0
    task: str | None = None
    audit: Any = ()

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ConfigError(f"confidence is {self.confidence}; give a number in (0, 1), such as 0.95")
        if bool(self.run) == bool(self.experiment):
            raise ConfigError("an audit file names a run or an experiment; give exactly one of the keys")
        if not self.audit:
            raise ConfigError("the file has no audit; write [[audit]] once for each")

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return Path(self.run) if self.run else Path("runs") / Path(self.experiment).stem


def audit_experiment(path: Path, *, as_json: bool = False) -> bool:
    """Run every audit of the file ``path``; print the results and write them down. True if a claim was refuted.

    The confidence is each audit's own: of many audits of true claims, a share of up to 1 − confidence may err.
    """
    from privfl.experiment import Experiment
    from privfl.simulation.run_directory import RunDirectory

    plan = build(Plan, read_toml(path, "an audit file"))
    audits = read_audits(plan.audit)
    overrides = [] if plan.task is None else [f"task={plan.task}"]
    source, read = (plan.run, Experiment.of_run) if plan.run else (plan.experiment, Experiment.from_toml)
    RunDirectory(plan.folder).settle()
    refuted, found = False, []
    for result in audit_folder(plan.folder, read(source, overrides), audits, plan.confidence, plan.seed, again=True):
        found.append(result.to_json())
        if not as_json:
            typer.echo(f"{result}\n")
        refuted = refuted or result.refuted
    if as_json:
        print_json({"directory": str(plan.folder / "audits"), "results": found})
    else:
        where = f"    (privfl report {quote(str(plan.run))} shows them)" if plan.run else ""
        typer.echo(f"Results: {plan.folder / 'audits'}{where}")
    return refuted


def read_audits(tables: Any) -> tuple[Any, ...]:
    """The audits that a file's ``tables`` name.

    Raises:
        ConfigError: one is unknown, or a setting of it is.
    """
    registry = companion("audits.registry")
    audits: tuple[Any, ...] = choose_each(registry.AUDITS, tables, "audit", registry.ExperimentAudit)
    return audits


def audit_folder(
    folder: Path, experiment: Experiment, audits: Sequence[Any], confidence: float, seed: int, *, again: bool
) -> Iterator[Any]:
    """Run ``audits`` one by one on ``experiment`` and file each result in ``folder``, or why it does not fit.

    Args:
        again: also those whose result is there already.

    Raises:
        ConfigError: the experiment claims nothing that an audit could test.
    """
    from privfl.files import write_json
    from privfl.lock import FolderLock
    from privfl.study.attacks import REFUSED

    place, used = folder / "audits", Counter[str]()
    lock = FolderLock(place)
    with lock.held():
        for audit in audits:
            used[audit.name] += 1
            label = audit.name if used[audit.name] == 1 else f"{audit.name}-{used[audit.name]}"
            path = place / f"{label}.json"
            if not again and path.exists():
                continue
            try:
                result = audit.run(experiment, confidence, seed)
            except ConfigError as error:
                lock.check()
                write_json(place / REFUSED / f"{label}.json", {"reason": str(error)})
                raise ConfigError(f"{label}: {error}") from error
            lock.check()
            write_json(path, result.to_json(), folders=False)
            yield result

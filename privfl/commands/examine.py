"""Attacks and audits of every run of a study, as ``privfl attack`` and ``privfl audit`` carry them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privfl.commands.attack import attack_folder, read_attacks
from privfl.commands.audit import audit_folder, read_audits
from privfl.companions import companion

if TYPE_CHECKING:
    from privfl.study.file import Study
    from privfl.study.members import Resolved


def examine(run: Path, tables: Mapping[str, Any]) -> None:
    """Carry out on the finished ``run`` what a study's ``tables`` ask for; what is filed there already is left alone.

    Raises:
        ConfigError: an attack or audit does not fit the run.
    """
    from privfl.experiment import Experiment

    attacks, audits = read_attacks(tables["attacks"]), read_audits(tables["audits"])
    if attacks:
        judge = companion("attacks.judge").Judge.of(
            run, tables["judge_seed"], tables["public_share"], tables["candidates"]
        )
        for _ in attack_folder(run, judge, attacks, again=False):
            pass
    if audits:
        for _ in audit_folder(
            run, Experiment.of_run(run), audits, tables["confidence"], tables["judge_seed"], again=False
        ):
            pass


def check(study: Study, resolved: Sequence[Resolved]) -> list[Resolved]:
    """``resolved``, each run that an attack of the study cannot be tried on with the reason.

    Whatever shows only in a run's transcript still fails the run that shows it.

    Raises:
        ConfigError: an attack or audit is unknown, or a setting of it is.
    """
    attacks = read_attacks(study.attacks) if study.attacks else ()
    if study.audits:
        read_audits(study.audits)
    if not attacks:
        return list(resolved)
    from privfl.commands.fitting import Fitting

    fitting = Fitting(attacks, study.public_share)
    return [replace(one, problem=fitting.problem(one)) for one in resolved]

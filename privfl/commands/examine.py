"""Attacks and audits of every run of a study, as ``privfl attack`` and ``privfl audit`` carry them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privfl.commands.attack import attack_folder, read_attacks
from privfl.commands.audit import audit_folder, read_audits
from privfl.companions import companion
from privfl.errors import ConfigError

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


def check(study: Study, resolved: Sequence[Resolved]) -> None:
    """Refuse attacks and audits that are unknown, or attacks on what the runs do not record.

    Raises:
        ConfigError: naming the attack or audit, and the mend.
    """
    attacks = read_attacks(study.attacks) if study.attacks else ()
    if study.audits:
        read_audits(study.audits)
    for attack in attacks:
        for one in resolved:
            record = None if one.experiment is None else one.experiment.record
            if not one.problem and record is not True and (not record or attack.observer not in record):
                raise ConfigError(
                    f"{attack.name} attacks the {attack.observer}'s view, which {one.point.method} at "
                    f'{one.point.level} does not record; add record = ["{attack.observer}"]'
                )

"""What attacks read: the record, or a repeat of the run with its noise; and the ceiling of its claim."""

import pytest

import attacks
import privfl as pf
from attacks.battery.stage import Stage
from attacks.judge import Judge
from attacks.metrics.distinguishing import auc_ceiling
from privfl.simulation.transcript import Transcript
from tests.attacks.battery.runs import recorded


def test_the_ceiling_is_that_of_the_statement_and_a_repeat_has_the_noise_of_the_run(tmp_path):
    run = recorded(tmp_path / "bare")
    bare = Stage.of(run, Judge.of(run, 0, 0.5, 36).task)
    assert bare.statement is not None
    noisy = recorded(tmp_path / "noisy", privacy=pf.Privacy(training=pf.DPSGD(target_epsilon=1.0, sample_rate=0.5)))
    judge = Judge.of(noisy, 0, 0.5, 36)
    stage = Stage.of(noisy, judge.task)
    attack = attacks.LossThreshold()
    result = attack.run(Transcript.load(noisy, "public"), judge.auxiliary(attack, attack.needs))
    assert bare.ceiling(type(attack), result) == 0.5
    claimed = stage.statement.cell("sample", "public").epsilon
    assert 0.9 < claimed <= 1.0
    assert stage.ceiling(type(attack), result) == pytest.approx(auc_ceiling(claimed, stage.statement.delta) - 0.5)
    assert stage.noise > 0
    imprint = attacks.Imprint(client=0, batch=3)
    repeat = stage.seen(imprint, judge.auxiliary(imprint, imprint.needs))
    assert len(repeat) == 1
    assert repeat.facts.privacy["training"]["noise_multiplier"] == stage.noise

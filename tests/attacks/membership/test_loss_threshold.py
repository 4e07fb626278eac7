"""The loss threshold and the gap attack; what no attack may do: beat chance without a leak, or a claim."""

import pytest
import torch
import torch.nn.functional as F

import privfl as pf
from attacks.membership.lira import LiRA
from attacks.membership.loss_threshold import LossThreshold
from attacks.membership.rmia import RMIA
from attacks.membership.shadow_models import ShadowTraining
from attacks.metrics.distinguishing import advantage, advantage_ceiling, auc, auc_ceiling
from tests.attacks.membership.worlds import game, part, task_of, watch

MEMBERS, OTHERS = part(0, 60), part(60, 300)
CERTAIN = 1 - 1e-6


@pytest.fixture(scope="module")
def overfitted():
    return watch(task_of([MEMBERS]), epochs=60)


def test_the_score_is_the_negative_loss_at_a_released_model(overfitted):
    asked = game(MEMBERS, OTHERS)
    scores = LossThreshold().guess(overfitted.before_public(), asked).scores
    logits = overfitted.network(overfitted[-1].released)(asked.candidates.inputs).double()
    expected = -F.cross_entropy(logits, asked.candidates.targets, reduction="none")
    assert torch.allclose(torch.from_numpy(scores), expected.detach(), atol=1e-5)


def test_the_gap_attacks_advantage_is_training_accuracy_minus_test_accuracy(overfitted):
    asked = game(MEMBERS, OTHERS)
    network, inside = overfitted.network(overfitted[-1].released), asked.answer("members")
    hits = (network(asked.candidates.inputs).argmax(1) == asked.candidates.targets).double()
    found = LossThreshold(statistic="correct").run(overfitted, asked)
    assert found.metrics["advantage"].value == pytest.approx(float(hits[inside].mean() - hits[~inside].mean()))
    assert found.metrics["advantage"].value > 0.5
    assert found.advantage["auc"].value > 0.2


@pytest.mark.parametrize(
    "attack",
    [
        LossThreshold(),
        LossThreshold(statistic="correct"),
        LiRA(mode="offline", shadows=ShadowTraining(count=4, epochs=3, engine="loop")),
        RMIA(shadows=ShadowTraining(count=3, epochs=3, engine="loop")),
    ],
    ids=["loss", "correct", "lira", "rmia"],
)
def test_a_model_that_never_saw_the_data_gives_chance(overfitted, attack):
    """Members and others are both strangers to the victim; a false alarm has a probability below 10⁻⁶."""
    asked = game(part(300, 700), part(700, 1100), part(1100, 1400))
    scores, inside = attack.guess(overfitted, asked.for_attacker()).scores, asked.answer("members").numpy()
    found = auc(scores[inside], scores[~inside], CERTAIN)
    assert found.low <= 0.5 <= found.high
    assert advantage(scores[inside], scores[~inside], CERTAIN).low == 0


def test_an_attack_on_a_private_run_stays_under_the_ceiling_of_its_statement_and_on_a_bare_run_it_does_not():
    """Add-or-remove ε bounds every attack's rates; intervals at 1 − 10⁻⁶, the noise key and all seeds are fixed."""
    asked = game(MEMBERS, OTHERS, part(300, 460))
    privacy = pf.Privacy(
        training=pf.DPSGD(target_epsilon=0.5, max_grad_norm=1.0, sample_rate=0.25), noise_key=5, target_delta=1e-3
    )
    options = {"training": pf.LocalTraining(learning_rate=0.2, batch_size=15, epochs=20)}
    run = pf.simulate(
        task_of([MEMBERS]),
        pf.FedAvg("uniform"),
        rounds=1,
        privacy=privacy,
        record=True,
        execution=pf.Execution(engine="loop"),
        **options,
    )
    claim = run.statement.cell("sample", "public").epsilon
    assert 0.45 < claim <= 0.5
    bare = watch(task_of([MEMBERS]), epochs=60)
    attacks = (LossThreshold(), LiRA(shadows=ShadowTraining(count=4, epochs=20, batch_size=20, engine="loop")))
    for attack in attacks:
        scores = {name: attack.guess(one, asked).scores for name, one in (("private", run.transcript), ("bare", bare))}
        inside = asked.answer("members").numpy()
        ins, outs = ({name: values[mask] for name, values in scores.items()} for mask in (inside, ~inside))
        assert auc(ins["private"], outs["private"], CERTAIN).low <= auc_ceiling(claim, 1e-3)
        assert advantage(ins["private"], outs["private"], CERTAIN).low <= advantage_ceiling(claim, 1e-3)
        assert auc(ins["bare"], outs["bare"], 0.95).low > auc_ceiling(claim, 1e-3), "the ceiling is no empty word"

"""The attacks on single updates: against loops over records, and on clients that know random labels by heart."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import privfl as pf
from attacks.auxiliary import Auxiliary
from attacks.membership.update_attacks import (
    ANOTHER,
    UNTRAINED,
    GradientAlignment,
    GradientDifference,
    GradientSpread,
    LossDrop,
    LossTrajectory,
)
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import game, part, task_of, watch

CLIENTS = [part(0, 60), part(60, 120), part(120, 180), part(180, 240)]
OTHERS = part(240, 420)


@pytest.fixture(scope="module")
def seen():
    return watch(task_of(CLIENTS), rounds=3, epochs=2, learning_rate=0.1)


@pytest.fixture(scope="module")
def few() -> Auxiliary:
    """Five records about which scores are compared number by number."""
    return Auxiliary(candidates=part(58, 63))


def at(seen, parameters: Tensor, record) -> tuple[Tensor, Tensor]:
    """Loss and flat gradient of one record."""
    network = seen.network(parameters)
    loss = F.cross_entropy(network(record.inputs), record.targets)
    return loss.detach(), torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(network.parameters()))])


def test_alignment_is_the_sum_of_cosines_with_the_descent_direction(seen, few):
    found = GradientAlignment(client=1).guess(seen, few).scores
    for row in range(5):
        record = few.candidates[torch.tensor([row])]
        expected = 0.0
        for one in seen:
            gradient = at(seen, one.broadcast["parameters"], record)[1]
            expected += float(F.cosine_similarity(-gradient, one.uploads[1]["update"], dim=0))
        assert found[row] == pytest.approx(expected, abs=1e-5)


def test_the_difference_is_that_of_squared_lengths(seen, few):
    found = GradientDifference(client=2, rounds=2, steps=6).guess(seen, few).scores
    for row in range(5):
        record = few.candidates[torch.tensor([row])]
        expected = 0.0
        for one in seen[1:]:
            gradient = at(seen, one.broadcast["parameters"], record)[1]
            moved = gradient + one.uploads[2]["update"] / (0.1 * 6)
            expected += float(gradient.square().sum() - moved.square().sum())
        assert found[row] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_drop_and_a_trajectory_read_the_local_models(seen, few):
    drop = LossDrop(client=0, rounds=1).guess(seen, few).scores
    trajectory = LossTrajectory(client=0, rounds=1).guess(seen, few).scores
    one = seen[-1]
    phi = []
    for client in range(4):
        logits = seen.network(one.broadcast["parameters"] + one.uploads[client]["update"])(few.candidates.inputs)
        p = torch.softmax(logits.double(), 1)[torch.arange(5), few.candidates.targets]
        phi.append(torch.log(p / (1 - p)).detach())
        if client == 0:
            before = seen.network(one.broadcast["parameters"])(few.candidates.inputs).double()
            expected = F.cross_entropy(before, few.candidates.targets, reduction="none") + p.log()
            assert torch.allclose(torch.from_numpy(drop), expected.detach(), atol=1e-5)
    others = torch.stack(phi[1:])
    expected = (phi[0] - others.mean(0)) / math.sqrt(float(others.var(0).mean()))
    assert torch.allclose(torch.from_numpy(trajectory), expected, atol=1e-5)


def test_one_step_on_one_record_is_that_records_descent():
    """A client with a single record and one step: its own alignment is 1 and nobody's is larger."""
    clients = [part(0, 1), part(60, 90)]
    seen = watch(task_of(clients), steps=1, batch_size=64)
    scores = GradientAlignment(client=0).guess(seen, Auxiliary(candidates=part(0, 40))).scores
    assert scores[0] == pytest.approx(1, abs=1e-5)
    assert scores[1:].max() < 0.999


ATTACKS = [GradientAlignment, GradientDifference, LossDrop, LossTrajectory]
ON_STRANGERS = [*ATTACKS, GradientSpread]


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.name)
def test_a_client_that_learns_by_heart_gives_its_members_away(kind):
    seen = watch(task_of(CLIENTS), rounds=3, epochs=15, learning_rate=0.2)
    found = kind(client=1).run(seen, game(CLIENTS[1], OTHERS))
    assert found.metrics["auc"].low > 0.6
    assert found.metrics["class_auc"].value > 0.6
    assert found.advantage["auc"].value > 0.1
    assert found.nulls[ANOTHER]["auc"].low < 0.5, "the other client's updates know nothing of these records"


@pytest.mark.parametrize("kind", ON_STRANGERS, ids=lambda kind: kind.name)
def test_records_that_no_client_holds_are_told_apart_by_chance_alone(seen, kind):
    """Both sides are strangers: the interval of each AUC misses ½ in less than 1 of 10⁶ runs, and the seed is fixed."""
    from attacks.metrics.distinguishing import auc

    asked = game(part(500, 900), part(900, 1300))
    scores, inside = kind(client=1).guess(seen, asked).scores, asked.answer("members").numpy()
    found = auc(scores[inside], scores[~inside], confidence=1 - 1e-6)
    assert found.low <= 0.5 <= found.high


def test_without_a_client_the_average_is_attacked_as_under_secure_aggregation(seen, few):
    scores = GradientAlignment(client=None, rounds=1).guess(seen, few)
    one = seen[-1]
    step = one.released - one.broadcast["parameters"]
    gradient = at(seen, one.broadcast["parameters"], few.candidates[torch.tensor([0])])[1]
    assert scores.scores[0] == pytest.approx(float(F.cosine_similarity(-gradient, step, dim=0)), abs=1e-4)
    assert set(scores.nulls) == {UNTRAINED}


def test_with_two_other_clients_the_trajectory_has_an_untrained_network_for_its_null(few):
    three = watch(task_of(CLIENTS[:3]), epochs=1)
    assert set(LossTrajectory(client=0).guess(three, few).nulls) == {UNTRAINED}
    assert set(LossDrop(client=0).guess(three, few).nulls) == {ANOTHER}


def test_clients_that_were_not_seen_and_updates_that_are_none_are_named(seen, few):
    with pytest.raises(ConfigError, match="client 7 sent an 'update'"):
        LossDrop(client=7).guess(seen, few)
    with pytest.raises(ConfigError, match="the public sees no messages"):
        LossDrop(client=0).guess(seen.before_public(), few)
    with pytest.raises(ConfigError, match="0 rounds"):
        LossDrop(rounds=0)
    with pytest.raises(ConfigError, match="give its number"):
        LossTrajectory(client=None).guess(seen, few)
    pair = watch(task_of(CLIENTS[:2]), epochs=1)
    with pytest.raises(ConfigError, match="gradient-spread compares rounds"):
        GradientSpread(client=0).guess(watch(task_of(CLIENTS[:2]), rounds=1, epochs=1), few)
    with pytest.raises(ConfigError, match="never met two others"):
        LossTrajectory(client=0).guess(pair, few)
    assert pf.FedAvg().fields()[0].name == "update"

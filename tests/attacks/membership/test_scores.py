"""Confidences, losses and gradients against arithmetic with many digits and autograd, one record at a time."""

from decimal import Decimal, getcontext

import pytest
import torch
import torch.nn.functional as F

from attacks.auxiliary import Records
from attacks.membership.game import membership_game
from attacks.membership.scores import Models, correct, logit_confidence, losses, true_log_probability
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from tests.attacks.membership.worlds import game, part, task_of


def test_the_logit_confidence_is_exact_where_probabilities_round_to_one():
    getcontext().prec = 60
    for logits in ([60.0, -20.0, 3.0], [0.1, 0.2, 0.3], [-50.0, 40.0, 39.0]):
        powers = [Decimal(value).exp() for value in logits]
        for label in range(3):
            p = powers[label] / sum(powers)
            exact = float((p / (sum(powers) - powers[label]) * sum(powers)).ln())
            found = float(logit_confidence(torch.tensor([logits], dtype=torch.float64), torch.tensor([label]))[0])
            assert found == pytest.approx(exact, abs=1e-9)


def test_losses_and_hits_are_those_of_torch_for_one_model_and_for_many():
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(4, 7, 5, generator=generator), torch.arange(7) % 5
    for model in range(4):
        expected = F.cross_entropy(logits[model].double(), targets, reduction="none")
        assert torch.allclose(losses(logits, targets)[model], expected)
        assert torch.equal(correct(logits, targets)[model], (logits[model].argmax(1) == targets).double())
    assert torch.equal(true_log_probability(logits, targets), -losses(logits, targets))


def test_gradients_are_autograds_record_by_record_in_chunks(monkeypatch):
    task = task_of([part(0, 9)], hidden=6)
    models, records = Models(task.model), part(0, 9)
    monkeypatch.setattr("attacks.membership.scores.GRADIENT_VALUES", 4 * models.layout.size)
    parameters = flatten(task.model(3))
    chunks = list(models.gradients(parameters, records))
    assert [len(chunk) for chunk in chunks] == [4, 4, 1]
    network = task.model(3)
    for row, found in enumerate(torch.cat(chunks)):
        loss = F.cross_entropy(network(records.inputs[row : row + 1]), records.targets[row : row + 1])
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(network.parameters()))])
        assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(models.logits(parameters, records.inputs), network(records.inputs), atol=1e-6)


def test_a_game_has_the_same_classes_on_both_sides_and_no_side_twice():
    members, others = part(0, 50), part(50, 300)
    asked = game(members, others)
    inside = asked.answer("members")
    targets = asked.candidates.targets
    assert torch.equal(targets[inside].bincount(minlength=10), targets[~inside].bincount(minlength=10))
    held = {row.numpy().tobytes() for row in members.inputs}
    assert all(
        (row.numpy().tobytes() in held) == bool(member)
        for row, member in zip(asked.candidates.inputs, inside, strict=True)
    )
    assert not bool(inside.all())
    assert len(inside) > 60
    one, other = (Records(torch.zeros(3, 2), torch.full((3,), label)) for label in (0, 1))
    with pytest.raises(ConfigError, match="no class in common"):
        membership_game(one, other, torch.Generator())
    numbers = Records(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(ConfigError, match=r"targets are torch.float32 \(3, 1\), and a membership game"):
        membership_game(numbers, numbers, torch.Generator())

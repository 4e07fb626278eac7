"""The losses of each kind of task: against plain PyTorch row by row, clipped, stacked, and blind to other rows."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.losses import (
    LOSSES,
    Huber,
    binary_cross_entropy,
    check_kind,
    cross_entropy,
    loaded_loss,
    mean_squared_error,
    named_loss,
    token_cross_entropy,
)
from privfl.models import build
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.known import known_function
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.probe import check_per_sample
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients
from privfl.schema import Named
from tests.privacy.clipping.test_per_sample import agree, one_row_at_a_time

GENERATOR = torch.Generator().manual_seed(0)
VALUES = torch.randn(4, 5, generator=GENERATOR, dtype=torch.float64)
TOKENS = torch.randint(9, (4, 6), generator=GENERATOR)
FOLLOWING = torch.randint(9, (4, 6), generator=GENERATOR)
FOLLOWING[0, 1:], FOLLOWING[1, 4:], FOLLOWING[2] = -100, -100, -100  # 1, 4, 0 and 6 targets that count
LSTM = {"vocabulary": 9, "embedding_dim": 3, "hidden": 5}


def perceptron():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def recurrent():
    return build("next-token-lstm", (6,), 9, seed=1, **LSTM).double()


REALS, LABELS = torch.randn(4, 3, generator=GENERATOR, dtype=torch.float64) * 2, (VALUES[:, :3] > 0).double()
CASES = {
    "mean-squared-error": (mean_squared_error, perceptron, VALUES, REALS, lambda z, y: ((z - y) ** 2).mean()),
    "huber": (Huber(0.7), perceptron, VALUES, REALS, lambda z, y: F.huber_loss(z, y, delta=0.7)),
    "binary-cross-entropy": (
        binary_cross_entropy,
        perceptron,
        VALUES,
        LABELS,
        lambda z, y: -(y * z.sigmoid().log() + (1 - y) * (1 - z.sigmoid()).log()).mean(),
    ),
    "token-cross-entropy": (
        token_cross_entropy,
        recurrent,
        TOKENS,
        FOLLOWING,
        lambda z, y: -z.log_softmax(-1)[y >= 0, y[y >= 0]].mean() if (y >= 0).any() else z.sum() * 0,
    ),
}
every_loss = pytest.mark.parametrize("name", CASES)


@every_loss
def test_a_term_is_the_loss_of_its_row_alone(name):
    loss, model, inputs, targets, twin = CASES[name]
    network = model()
    expected = torch.stack([twin(network(inputs[i : i + 1])[0], targets[i]) for i in range(4)])
    torch.testing.assert_close(loss(network, inputs, targets), expected)


@every_loss
def test_clipped_sums_are_those_of_a_loop_over_single_rows(name):
    loss, model, inputs, targets, _ = CASES[name]
    assert known_function(loss)
    assert check_per_sample(FlatNetwork(model()), loss, inputs, targets) == "layers"
    assert PerSampleGradients(FlatNetwork(model()), "layers").serves_batches(loss, inputs)
    agree(model(), inputs, targets, loss=loss, norms=(0.05, math.inf))


@every_loss
def test_the_clipped_sums_of_stacked_clients_are_those_of_each_alone(name):
    loss, model, inputs, targets, _ = CASES[name]
    network = FlatNetwork(model().eval())
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    both = StackedBatch(torch.stack([inputs, inputs.flip(0)]), torch.stack([targets, targets.flip(0)]), mask, {})
    stacked = network.flat.expand(2, -1)
    for way in ("layers", "rows", "vmap"):
        found = StackedGradients(FlatNetwork(model().eval()), way).clipped_sum(loss, stacked, both, 0.1)
        for client, rows in enumerate((slice(0, 4), slice(0, 2))):
            own = both.inputs[client][rows], both.targets[client][rows]
            expected, _ = one_row_at_a_time(network, loss, *own, 0.1)
            torch.testing.assert_close(found[client], expected, rtol=1e-8, atol=1e-10)


@every_loss
@pytest.mark.parametrize("way", ["layers", "rows", "vmap"])
def test_a_row_more_moves_a_clipped_sum_by_no_more_than_the_bound(name, way):
    """The row that comes and goes is long, has many targets or few, and is no other row's business."""
    loss, model, inputs, targets, _ = CASES[name]
    network = FlatNetwork(model())
    clipper = PerSampleGradients(network, way)
    for row in range(4):
        left = [i for i in range(4) if i != row]
        sums = []
        for rows in (list(range(4)), left):
            clipper.clipped_sum(loss, inputs[rows], targets[rows], 0.05)
            sums.append(network.gradient.clone())
        clipper.clipped_sum(loss, inputs[[row]], targets[[row]], 0.05)
        torch.testing.assert_close(sums[0] - sums[1], network.gradient, rtol=1e-8, atol=1e-12)
        assert float((sums[0] - sums[1]).norm()) <= 0.05 * (1 + 1e-9)


def test_a_loss_that_divides_by_the_tokens_of_a_batch_is_found_out():
    def of_batch(network, inputs, targets):
        terms = F.cross_entropy(network(inputs).transpose(1, 2), targets, reduction="none")
        return terms.sum(1) / (targets >= 0).sum()

    task = pf.Task.from_arrays(
        TOKENS.repeat(5, 1), None, kind="next-token", vocabulary=9, loss=of_batch, partition=pf.IID(clients=2)
    )
    with pytest.raises(ConfigError, match="not one term per sample that depends on that sample alone"):
        pf.simulate(task, pf.FedAvg(), rounds=1, privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0)))


@pytest.mark.parametrize(("loss", "targets"), [(mean_squared_error, VALUES[:, 0]), (Huber(), VALUES[:, :1])])
def test_outputs_of_another_shape_are_refused_and_never_broadcast(loss, targets):
    with pytest.raises(ConfigError, match=r"outputs of shape \(4, 3\) for targets of shape \(4.*one output for each"):
        loss(perceptron(), VALUES, targets)
    with pytest.raises(ConfigError, match=r"outputs of shape \(4, 6, 9\) for targets of shape \(4,\)"):
        token_cross_entropy(recurrent(), TOKENS, FOLLOWING[:, 0])


def test_losses_have_names_that_files_know_and_belong_to_a_kind():
    for name, loss in LOSSES.items():
        one = loss() if isinstance(loss, type) else loss
        assert named_loss(one).name == name
        assert loaded_loss(named_loss(one)) == one
        check_kind(one, {"cross-entropy": "classification", **KINDS}[name])
    assert loaded_loss(Named("huber", {"delta": 2.5})) == Huber(2.5)
    assert named_loss(test_a_term_is_the_loss_of_its_row_alone).name.startswith("tests.federation.test_losses:")


KINDS = {
    "mean-squared-error": "regression",
    "huber": "regression",
    "binary-cross-entropy": "multi-label",
    "token-cross-entropy": "next-token",
}


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        ({"name": "hubber"}, "unknown loss 'hubber': did you mean 'huber'"),
        ({"name": "huber", "delta": 0}, "huber's delta is 0"),
        ({"name": "huber", "width": 1}, "unknown key 'loss.width'"),
        ({"name": "cross-entropy", "delta": 1}, r"the loss cross-entropy has no settings; leave delta out of \[loss\]"),
        ({"name": "huber"}, "the loss huber is one of regression and the task's kind is classification; take cross"),
    ],
)
def test_a_loss_that_a_file_cannot_have_is_refused(loss, sentence):
    settings = {"partition": {"name": "iid", "clients": 3}, "loss": loss}
    with pytest.raises(ConfigError, match=sentence):
        Experiment.from_dict(settings).task()


def test_a_loss_of_another_kind_is_refused_where_arrays_are_given_too():
    x = np.zeros((9, 2), np.float32)
    with pytest.raises(ConfigError, match=r"cross-entropy is one of classification .* take mean-squared-error or"):
        pf.Task.from_arrays(x, x, kind="regression", loss=cross_entropy, partition=pf.IID(clients=3))

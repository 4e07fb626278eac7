"""An imprinted first layer: what lies alone in a bin is read exactly, also from a sum; and the imprint can be seen."""

import pytest
import torch

from attacks.gradient_inversion.imprint import (
    imprinted_inputs,
    imprinting_server,
    parallel_groups,
    parallel_units,
    perceptron_parts,
)
from privfl.algorithms import FedAvg
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.models.registry import build
from privfl.privacy.door.batch_plans import LocalTraining
from tests.attacks.federations import DIGITS, rows_by_client, run_of


def test_a_bins_single_input_is_the_ratio_of_differences():
    """Five thresholds on the first coordinate; two inputs alone in their bins, two together in the last one."""
    inputs = torch.tensor([[1.5, 7.0], [2.5, 8.0], [4.2, 2.0], [4.8, 4.0]])
    thresholds, weights = torch.arange(5.0), torch.tensor([1.0, -0.5, 2.0, 1.0])
    active = (inputs[:, :1] > thresholds).float() * weights[:, None]
    found = imprinted_inputs(
        torch.tensor([[1.0, 0.0]]).repeat(5, 1), -thresholds, active.T @ inputs, active.sum(0)
    ).tolist()
    both = ((2.0 * inputs[2] + inputs[3]) / 3).tolist()
    assert len(found) == 3
    for expected in (inputs[0].tolist(), inputs[1].tolist(), both):
        assert any(row == pytest.approx(expected) for row in found)


def test_parallel_units_are_told_from_others():
    network = build("two-nn", (1, 8, 8), 10, seed=0)
    assert parallel_units(network) == 0
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        next(network.parameters())[10:60] = torch.randn(64, generator=generator)
        next(network.parameters())[70:90] = torch.randn(64, generator=generator)
    assert parallel_units(network) == 70 / 200
    found = [group.tolist() for group in parallel_groups(next(network.parameters()).detach())]
    assert found == [list(range(10, 60)), list(range(70, 90))]


def test_what_two_inputs_share_along_one_direction_another_tells_apart():
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    bias = torch.tensor([0.0, -5.0, -1.0, -3.0])
    inputs = torch.tensor([[1.0, 2.0], [2.0, 4.0]])  # one bin along the first axis, two along the second
    active = (inputs @ weight.T + bias > 0).float()
    found = imprinted_inputs(weight, bias, active.T @ inputs, active.sum(0))
    for expected in (inputs[0], inputs[1], inputs.mean(0)):
        assert bool((found.float() - expected).abs().sum(1).min() < 1e-6)


@pytest.mark.parametrize("directions", [1, 3])
def test_in_other_rounds_the_server_is_honest_and_in_these_it_learns_nothing(directions):
    rows, training = rows_by_client((4, 5)), LocalTraining(learning_rate=0.1, batch_size=9)
    server = imprinting_server(FedAvg(), DIGITS.test_inputs, units=30, directions=directions, rounds={1})
    seen = run_of(rows, server, training, rounds=3)
    honest = run_of(rows, FedAvg(), training, rounds=3)
    assert torch.equal(seen[0].broadcast["parameters"], honest[0].broadcast["parameters"])
    assert torch.equal(seen[1].released, honest[0].released)
    assert torch.equal(seen[2].broadcast["parameters"], seen[1].released)
    assert parallel_units(seen.network(seen[1].broadcast["parameters"])) == 30 / 200
    groups = parallel_groups(next(seen.network(seen[1].broadcast["parameters"]).parameters()).detach())
    assert len(groups) == directions


def test_what_cannot_be_imprinted_is_refused():
    with pytest.raises(ConfigError, match="there are 20 public inputs for the thresholds of 30 units"):
        imprinting_server(FedAvg(), DIGITS.inputs[:20], units=30)
    with pytest.raises(ConfigError, match="gain"):
        imprinting_server(FedAvg(), DIGITS.inputs, units=30, gain=0.0)
    network = build("logistic", (1, 8, 8), 10, seed=0)
    with pytest.raises(ConfigError, match="does not begin with two fully connected layers"):
        perceptron_parts(network, flatten(network))
    with pytest.raises(ConfigError, match="no units of the first layer are parallel"):
        imprinted_inputs(torch.eye(3), torch.zeros(3), torch.ones(3, 3), torch.ones(3))

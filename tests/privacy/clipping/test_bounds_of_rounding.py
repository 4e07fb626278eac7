"""What keeps a clipped row within its bound where numbers are very large, very small, narrow or cancel."""

import math

import pytest
import torch
from torch import nn

from privfl.errors import ConfigError
from privfl.federation.task import cross_entropy
from privfl.models import build
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.factors import LEAST, Clipping, bounded_norms, shrunk
from privfl.privacy.clipping.layer_rules import EmbeddingRule
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.row_wise import each_row
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients
from privfl.privacy.door.precision import in_precision


def test_rows_that_are_not_finite_have_factor_zero():
    squares = torch.tensor([4.0, math.inf, math.nan, 1e90, 0.25], dtype=torch.float64)
    clipping = Clipping.of(squares, 1.0, torch.float32)
    assert clipping.factors[1:4].tolist() == [0, 0, 0]
    assert clipping.factors[[0, 4]].tolist() == pytest.approx([shrunk(0.5, torch.float32), 1], rel=1e-9)


def test_a_row_whose_terms_cancel_is_taken_to_have_a_norm_nevertheless():
    """float64 cannot tell it from zero, and a norm of zero would not be clipped."""
    norms, sizes = torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 3e20], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        assert bool((bounded_norms(norms, sizes, 1, dtype) >= LEAST * sizes).all())


@pytest.mark.parametrize("size", [3.3e37, 7.7e37, 3e38])
@pytest.mark.parametrize("bound", [1e-7, 3e-6, 1.0])
def test_a_factor_too_small_for_float32_clips_as_well(size, bound):
    """Below 1e-38 float32 has few digits left, so a product with such a factor would miss the bound."""
    row, least = torch.tensor([[size, 0.0]]), shrunk(bound, torch.float32)
    clipping = Clipping.of((row.double() ** 2).sum(1), bound, torch.float32)
    assert least * (1 - 1e-6) <= float(clipping.sum_of(row).double().norm()) <= bound
    scaled = clipping.scaled(row, exact=clipping.exact)
    assert least * (1 - 1e-6) <= float(scaled.double().norm()) <= bound


@pytest.mark.parametrize("draw", [torch.randn_like, lambda values: nn.functional.dropout(values, 0.5)])
def test_a_function_that_draws_random_numbers_for_rows_is_refused(draw):
    def loss(network, inputs, targets):
        return cross_entropy(network, draw(inputs), targets)

    network = FlatNetwork(nn.Linear(5, 3)).module
    with pytest.raises(ConfigError, match=r"draw by drop-out, torch\.rand and torch\.randn alone"):
        each_row(loss, network, torch.ones(4, 5), torch.arange(4) % 3)


@pytest.mark.parametrize("stacked", [False, True])
def test_norms_under_autocast_are_those_of_the_gradients_that_are_added(stacked):
    """Layers hand on bfloat16 with its 8 bits; norms and sums of it alone would be off by more than the margin."""
    torch.manual_seed(0)
    narrow = in_precision(cross_entropy, "bfloat16", torch.device("cpu"))
    network, bound = FlatNetwork(build("two-nn", (7,), 4, seed=1, hidden=(64,))), 1e-3
    inputs, targets = torch.randn(8, 7), torch.arange(8) % 4
    for row, target in zip(inputs.split(1), targets.split(1), strict=True):
        if stacked:
            batch = StackedBatch(row[None], target[None], None, {})
            left = StackedGradients(network, "layers").clipped_sum(narrow, network.flat[None], batch, bound)[0]
        else:
            PerSampleGradients(network, "layers").clipped_sum(narrow, row, target, bound)
            left = network.gradient
        assert 0.999 * bound < float(left.double().norm()) <= bound


def test_a_row_whose_tokens_cancel_does_not_round_what_the_others_added():
    """Between its two steps the sum is a million times the bound, of which float32 keeps too few digits."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.zeros(6, 2, dtype=torch.long)
    backs = torch.randn(6, 2, 8, generator=generator)
    backs[-1, 0] *= 1e6
    backs[-1, 1] = -backs[-1, 0]

    def total(rows):
        rule = EmbeddingRule(nn.Embedding(1, 8), frozenset({"weight"}))
        rule.receive([(ids[:rows], backs[:rows])])
        places = {"weight": torch.zeros(1, 1, 8)}
        rule.write_clipped_sum(Clipping.of(rule.squared_norms(), 1.0, torch.float32), places)
        return places["weight"].double()

    assert float((total(6) - total(5)).norm()) <= 1e-5

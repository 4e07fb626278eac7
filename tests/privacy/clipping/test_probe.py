"""A way of forming per-sample gradients is refused for what it does, not for how a number happened to be rounded."""

import pytest
import torch
from torch import nn

from privfl.federation.losses import cross_entropy
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping import probe
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.probe import check_per_sample

ROWS, TARGETS = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), torch.arange(4)


def _off(monkeypatch, wrong):
    """Sums by a rule are off for the inputs for which ``wrong`` is true."""

    class Off(PerSampleGradients):
        def __init__(self, network, way):
            super().__init__(network, way)
            self.network, self.by = network, way

        def clipped_sum(self, loss, inputs, targets, max_grad_norm):
            norms = super().clipped_sum(loss, inputs, targets, max_grad_norm)
            if self.by == "layers" and wrong(inputs):
                self.network.gradient[0] += 1
            return norms

    monkeypatch.setattr(probe, "PerSampleGradients", Off)


def _first_rows(inputs):
    return torch.equal(inputs.float(), ROWS[: len(inputs)])


@pytest.mark.parametrize(
    ("wrong", "way"),
    [
        (lambda inputs: _first_rows(inputs) and inputs.dtype == torch.float32, "layers"),
        (lambda inputs: inputs.dtype == torch.float32, "vmap"),
        (_first_rows, "vmap"),
        (lambda inputs: len(inputs) == 3, "vmap"),
    ],
    ids=["these rows in float32 alone", "all rows in float32", "these rows, however exact", "one size of batch"],
)
def test_sums_may_be_off_by_the_rounding_of_one_batch_alone(monkeypatch, wrong, way):
    _off(monkeypatch, wrong)
    assert check_per_sample(FlatNetwork(nn.Linear(5, 4)), cross_entropy, ROWS, TARGETS) == way


def test_what_cannot_be_computed_in_float64_is_judged_in_float32(monkeypatch):
    def double(module):
        raise RuntimeError("float32 alone")

    _off(monkeypatch, lambda inputs: _first_rows(inputs) and inputs.dtype == torch.float32)
    monkeypatch.setattr(nn.Linear, "double", double)
    assert check_per_sample(FlatNetwork(nn.Linear(5, 4)), cross_entropy, ROWS, TARGETS) == "vmap"


@pytest.mark.parametrize("inputs", [torch.randn(3, 4), torch.arange(12).view(3, 4)], ids=["numbers", "words"])
def test_other_rows_have_the_same_shape_and_kind(inputs):
    others = probe._others(inputs)
    assert (others.shape, others.dtype) == (inputs.shape, inputs.dtype)
    assert not torch.equal(others, inputs)

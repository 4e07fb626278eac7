"""What layers that were given the same input share is what each would compute of it, and nothing outlives a pass."""

import torch
from torch import nn

from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.factors import norms_along
from privfl.privacy.clipping.layer_rules import Inputs, LinearRule
from privfl.privacy.clipping.per_sample import PerSampleGradients


def test_an_input_is_known_by_where_it_lies_and_how_often_it_was_written_to():
    shared = Inputs()
    values = torch.randn(3, 5, 4)
    first, gram = shared.norms(values), shared.gram(values)
    assert shared.norms(values.detach()) is first
    assert shared.gram(values.view(3, 5, 4)) is gram
    torch.testing.assert_close(gram, values.double() @ values.double().mT)
    for other in (values.mul_(2), values[:, :, :2], values.mT, values.view(5, 3, 4), values.clone()):
        assert torch.equal(shared.norms(other), norms_along(other))
        torch.testing.assert_close(shared.gram(other), other.double() @ other.double().mT)
    shared.forget()
    assert not shared._made
    assert not shared._held


class Parallel(nn.Module):
    """Three layers of one input, the third of another one that lies where a part of it does."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(40, 30), nn.Linear(40, 30, bias=False), nn.Linear(20, 30)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Linear(30, 2).requires_grad_(False)

    def forward(self, inputs):
        return self.frozen((self.one(inputs) * self.two(inputs) + self.three(inputs[..., :20])).tanh().mean(1))


def loss(network, inputs, targets):
    return nn.functional.cross_entropy(network(inputs), targets, reduction="none")


def test_layers_of_one_input_are_clipped_as_rows_one_by_one_and_what_no_layer_writes_is_zero():
    torch.manual_seed(0)
    network = FlatNetwork(Parallel())
    clipper = PerSampleGradients(network, "layers")
    linear = [rule for rule in clipper._rules.values() if isinstance(rule, LinearRule)]
    assert len({id(rule.shared) for rule in linear}) == 1
    inputs, targets, bound = torch.randn(6, 7, 40), torch.arange(6) % 2, 0.05
    total = torch.zeros(network.layout.size, dtype=torch.float64)
    for row in range(6):
        one = network.gradient_of(loss(network.module, inputs[row : row + 1], targets[row : row + 1]).sum())
        gradient = torch.cat([part.flatten() for part in one]).double()
        total += gradient * min(1.0, bound / float(gradient.norm()))
    network.gradient.fill_(float("nan"))
    clipper.clipped_sum(loss, inputs, targets, bound)
    torch.testing.assert_close(network.gradient.double(), total, rtol=2e-3, atol=1e-6)
    views = network.layout.named_views(network.gradient)
    for name in ("unused.weight", "unused.bias"):
        assert torch.equal(views[name], torch.zeros_like(views[name]))
    assert not any(name.startswith("frozen") for name in views)
    assert not linear[0].shared._made

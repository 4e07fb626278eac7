"""An activation without autograd is the layer, forward and backward, to the last bit."""

import pytest
import torch
from torch import nn

from privfl.engine.activations import activated
from privfl.engine.sequence_steps import Leaking, Pooled, Rectified, Tanh
from privfl.engine.sequences import _step
from privfl.privacy.clipping.known import _LAYERS

VALUES = 4 * torch.randn(20_000, generator=torch.Generator().manual_seed(0))
LAYERS = [nn.ELU(), nn.ELU(0.3), nn.ELU(-0.5), nn.SELU(), nn.CELU(), nn.CELU(0.7), nn.CELU(-0.5)]
LAYERS += [nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Mish(), nn.Hardswish()]
LAYERS += [nn.Sigmoid(), nn.Hardsigmoid(), nn.Softplus(), nn.Softplus(3.0, 2.0), nn.Hardtanh(), nn.ReLU6()]
LAYERS += [nn.Hardtanh(-0.5, 0.7)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_an_activation_gives_the_layer_s_bits_both_ways(layer):
    given = VALUES.clone().requires_grad_()
    wanted = layer(given)
    back = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    wanted.backward(back)
    step = activated(layer)
    with torch.no_grad():
        found, kept = step.forward(VALUES.clone())
        assert torch.equal(found, wanted)
        assert torch.equal(step.backward(back.clone(), kept), given.grad)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_pooling_goes_only_in_front_of_what_never_falls(layer):
    outputs = layer(VALUES.double().sort().values)
    falls = bool((outputs.diff() < 0).any())
    assert not (falls and activated(layer).rises)
    assert activated(layer).rises or falls or isinstance(layer, nn.Softplus | nn.CELU)


@pytest.mark.parametrize("layer", [one for one in LAYERS if activated(one).rises], ids=str)
def test_where_it_goes_pooling_and_activation_have_the_gradient_of_the_usual_order(layer):
    pool = nn.MaxPool2d(2)
    images = VALUES[:4096].view(4, 4, 16, 16).clone().requires_grad_()
    wanted = pool(layer(images))
    back = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(2))
    wanted.backward(back)
    first, then = Pooled(pool), activated(layer)
    with torch.no_grad():
        pooled, places = first.forward(images.detach().clone())
        found, kept = then.forward(pooled)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(first.backward(then.backward(back.clone(), kept), places), images.grad)


class Own(nn.SiLU):
    def forward(self, given):
        return given.abs()


def test_a_subclass_is_not_taken_for_its_parent():
    assert activated(Own()) is None


def test_of_pytorch_s_activations_of_single_numbers_few_keep_autograd():
    kinds = [kind for kind in _LAYERS if kind.__module__ == "torch.nn.modules.activation"]
    layers = [nn.Threshold(0.1, 0) if kind is nn.Threshold else kind() for kind in kinds]
    without = {type(one) for one in layers if _step(one, steady=False, narrow=False) is None}
    assert without == {
        *(nn.Softmax, nn.LogSoftmax, nn.Threshold, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink),
        *(nn.Hardshrink, nn.Softshrink),
    }
    assert {type(_step(one(), steady=False, narrow=False)) for one in (nn.ReLU, nn.LeakyReLU, nn.Tanh)} == {
        *(Rectified, Leaking, Tanh)
    }

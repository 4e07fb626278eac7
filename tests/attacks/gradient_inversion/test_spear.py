"""SPEAR: batches come back to rounding, whatever their labels, also from the mean of clipped single gradients."""

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.gradient_inversion.inversion import GradientInversion, counted_labels
from attacks.gradient_inversion.spear import spear
from attacks.images.pixels import Pixels
from attacks.observations.gradients import batch_gradient
from attacks.observations.head_gradients import HeadGradient
from privfl.errors import ConfigError
from privfl.models.registry import build
from tests.attacks.federations import DIGITS, public, rows_by_client, run_of

NETWORK = build("two-nn", (1, 8, 8), 10, seed=3)
WEIGHT, BIAS = (part.detach() for part in list(NETWORK.parameters())[:2])


def generator():
    return torch.Generator().manual_seed(0)


def worst(found, inputs):
    """The largest distance of an input to the nearest of what was found."""
    return float(torch.cdist(inputs.flatten(1).double(), found).amin(1).max())


@pytest.mark.parametrize("batch", [1, 2, 8, 16])
def test_a_batch_comes_back_to_rounding(batch):
    inputs, targets = DIGITS.inputs[:batch], DIGITS.targets[:batch]
    gradient = batch_gradient(NETWORK, inputs, targets)
    found = spear(gradient[0], gradient[1], WEIGHT, BIAS, batch, generator=generator())
    assert found.inputs.shape == (batch, 64)
    assert (found.directions, found.consistency > 0.997) == (batch, True)
    assert worst(found.inputs, inputs) < 1e-3


def test_the_scale_of_each_gradient_does_not_matter():
    """The mean of single gradients that were clipped to norms between a thousandth and one."""
    inputs, targets = DIGITS.inputs[:6], DIGITS.targets[:6]
    total = [torch.zeros_like(WEIGHT), torch.zeros_like(BIAS)]
    for row in range(6):
        single = batch_gradient(NETWORK, inputs[row : row + 1], targets[row : row + 1])
        for part, added in zip(total, single, strict=False):
            part += added * 10.0 ** -(row / 2)
    found = spear(*total, WEIGHT, BIAS, 6, generator=generator())
    assert worst(found.inputs, inputs) < 1e-2


def test_a_gradient_that_is_mostly_noise_is_not_called_consistent():
    inputs, targets = DIGITS.inputs[:8], DIGITS.targets[:8]
    gradient = batch_gradient(NETWORK, inputs, targets)
    noisy = [part + 0.1 * torch.randn(part.shape, generator=generator()) for part in gradient[:2]]
    found = spear(*noisy, WEIGHT, BIAS, 8, generator=generator(), rounds=2)
    assert found.consistency < 0.9


def test_a_layer_none_of_whose_units_is_ever_inactive_is_searched_to_the_end():
    made = torch.Generator().manual_seed(5)
    inputs, weight, bias = torch.rand(2, 6, generator=made), torch.rand(8, 6, generator=made), torch.full((8,), 9.0)
    pulled = torch.randn(8, 2, generator=made)
    pulled[:4, 0], pulled[4:, 1] = 0.0, 0.0  # zeros of which no ReLU is the cause
    found = spear(pulled @ inputs, pulled.sum(1), weight, bias, 2, generator=generator(), rounds=3)
    assert (found.directions, found.consistency) == (2, 0.5)
    assert worst(found.inputs, inputs) < 1e-3


def test_labels_are_counted_also_where_they_repeat():
    rows = torch.cat([(DIGITS.targets == label).nonzero()[:count, 0] for label, count in ((2, 3), (5, 1), (9, 2))])
    gradient = batch_gradient(NETWORK, DIGITS.inputs[rows], DIGITS.targets[rows])
    free = torch.ones(len(DIGITS), dtype=torch.bool)
    free[rows] = False
    known = Records(DIGITS.inputs[free], DIGITS.targets[free])
    found = counted_labels(NETWORK, HeadGradient(gradient[-2].double(), gradient[-1].double()), 6, known)
    assert found.tolist() == [2, 2, 2, 5, 9, 9]


def test_a_secure_sum_of_clients_with_one_image_is_a_batch():
    rows = rows_by_client((1, 1, 1, 1))
    transcript = run_of(
        rows,
        pf.FedAvg(weighting="uniform"),
        pf.LocalTraining(learning_rate=0.1, batch_size=1),
        privacy=pf.Privacy(update=(pf.Clip(0.1), pf.SecureSum(mode="ideal"))),
    )
    images = Pixels.of("digits").images(DIGITS.inputs[torch.cat(list(rows))])
    auxiliary = Auxiliary(public=public(rows), truth={"images": images})
    result = GradientInversion(client=None, method="spear", batch=4).run(transcript, auxiliary)
    assert float(result.per_image["psnr"].min()) > 40
    assert max(null["psnr"].value for name, null in result.nulls.items()) < 25


def test_what_cannot_be_read_is_refused():
    gradient = [torch.ones(4, 6), torch.ones(4)]
    with pytest.raises(ConfigError, match="batch is 4 and the first layer 4 units"):
        spear(*gradient, torch.ones(4, 6), torch.ones(4), 4, generator=generator())
    with pytest.raises(ConfigError, match="give \\[outputs, inputs\\]"):
        spear(*gradient, torch.ones(4, 5), torch.ones(4), 2, generator=generator())

"""The linear estimate of one image: exact without noise, better than the prior with some, and the prior with much."""

import pytest
import torch

from attacks.auxiliary import Records
from attacks.gradient_inversion.wiener import Attacker, ClassPrior, wiener
from attacks.observations.gradients import batch_gradient
from privfl.errors import ConfigError
from privfl.models.registry import build
from tests.attacks.federations import DIGITS

NETWORK = build("two-nn", (1, 8, 8), 10, seed=1)
VICTIMS, PUBLIC = slice(0, 30), slice(400, 1400)
PRIOR_RECORDS = Records(DIGITS.inputs[PUBLIC], DIGITS.targets[PUBLIC])
PRIOR = ClassPrior.of(PRIOR_RECORDS, 10)


def errors(noise):
    """Mean squared errors of the attack and of the mean input, [30] each, and how many labels are right."""
    generator = torch.Generator().manual_seed(0)
    mean, own, null, right = PRIOR.means.mean(0).float().view(1, 8, 8), [], [], 0
    for inputs, target in zip(DIGITS.inputs[VICTIMS], DIGITS.targets[VICTIMS], strict=True):
        gradient = batch_gradient(NETWORK, inputs[None], target[None])
        length = torch.cat([part.flatten() for part in gradient]).norm()
        noisy = [part / length + noise * torch.randn(part.shape, generator=generator) for part in gradient]
        found, label = wiener([(NETWORK, noisy)], PRIOR, (1, 8, 8))
        own.append((found - inputs).square().mean())
        null.append((mean - inputs).square().mean())
        right += label == int(target)
    return torch.stack(own), torch.stack(null), right


def test_without_noise_the_image_is_exact_and_with_some_it_is_far_better_than_the_prior():
    own, _, right = errors(0.0)
    assert float(own.max()) < 1e-6
    assert right == 30
    own, null, right = errors(0.01)
    assert float(own.mean()) < 0.25 * float(null.mean())
    assert right == 30


def test_with_much_noise_it_is_no_worse_than_the_mean_input():
    own, null, _ = errors(3.0)
    assert float(own.mean()) < 1.15 * float(null.mean())


def test_the_prior_is_the_posterior_mean_of_a_gaussian():
    seen = torch.randn(64, generator=torch.Generator().manual_seed(0)).double()
    covariance = PRIOR.vectors @ torch.diag(PRIOR.values) @ PRIOR.vectors.T
    gain = covariance @ torch.linalg.inv(covariance + 0.3 * torch.eye(64).double())
    expected = PRIOR.means[2] + gain @ (seen - PRIOR.means[2])
    torch.testing.assert_close(PRIOR.estimate(2, seen, 0.3), expected)
    torch.testing.assert_close(PRIOR.estimate(2, seen, 0.0), seen)
    with pytest.raises(ConfigError, match="two public records"):
        ClassPrior.of(Records(DIGITS.inputs[:1], DIGITS.targets[:1]), 10)


def test_weights_leave_little_noise_alone_and_give_much_noise_to_the_anchors():
    known = Attacker(PRIOR_RECORDS, 10)
    assert float(known.weights([NETWORK], [1e-4], [1.0], (1, 8, 8))[0]) >= 0.75
    assert float(known.weights([NETWORK], [3.0], [1.0], (1, 8, 8))[0]) <= 0.25
    for noise in (1e-4, 3.0):
        weights = known.weights([NETWORK], [noise], [1.0], (1, 8, 8))
        assert float(weights.sum()) == pytest.approx(1)
        assert float(weights.min()) >= 0


def test_without_noise_the_weighted_estimate_is_the_image():
    known, image, target = Attacker(PRIOR_RECORDS, 10), DIGITS.inputs[:1], DIGITS.targets[:1]
    found, label = known.image([(NETWORK, batch_gradient(NETWORK, image, target))], (1, 8, 8))
    torch.testing.assert_close(found[None], image, atol=1e-3, rtol=1e-3)
    assert label == int(target)

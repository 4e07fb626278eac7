"""One image from a noisy gradient of a fully connected first layer: the linear estimate that knows noise and classes.

Given the layer's outward gradient l [m], the gradient ``G = l·(x, 1)ᵀ + noise`` is linear in the input x, and under a
Gaussian prior of x its best linear estimate (Wiener's) is ``μ + Σ(Σ + v·I)⁻¹(y − μ)`` with ``y = Gᵀl/‖l‖²`` and v the
noise left in y. Without noise it is exact; with much of it, it is the prior's mean, which is what an attacker shows who
saw nothing. l is not given, and its errors are no Gaussian noise, so how far the estimate may be trusted is measured:
the attack is made on public records, under the same noise, by a prior that did not see them, and the weights of the
estimate, the class mean and the mean input are those that served best there. No paper has just this attack; that the
best one on a noisy gradient is the posterior's is from Balunović, Dimitrov, Staab and Vechev, "Bayesian Framework for
Gradient Leakage" (ICLR 2022).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from attacks.auxiliary import Records
from attacks.observations.gradients import Gradient, batch_gradient
from privfl.errors import ConfigError

SHRINKAGE = 0.05
"""Part of the covariance that is spread over all directions."""
SCALE_DOUBT = 0.04
"""Variance of the factor by which an estimate of l may be too long, before the bias gradient is asked."""
PASSES = 6
"""How often l and x are estimated in turn."""
REHEARSALS = 40
"""Public records on which the weights of an estimate are tried."""
STEP = 8
"""The weights are multiples of 1/8."""
NOISELESS = 1e-6
"""Noise, relative to the gradient, that is rounding; the estimate is exact then and needs no weights."""
GRID = torch.tensor([[e, c, STEP - e - c] for e in range(STEP + 1) for c in range(STEP + 1 - e)], dtype=torch.float64)
GRID /= STEP
"""All weights [45, 3] of an estimate, a class mean and the mean input that add up to 1."""


@dataclass(frozen=True)
class ClassPrior:
    """Gaussian priors of inputs by class, with one covariance: ``means`` [C, n], and ``values`` [n] and ``vectors``
    [n, n] of the covariance; ``shares`` [C] of the classes among the public records.
    """

    means: Tensor
    values: Tensor
    vectors: Tensor
    shares: Tensor

    @property
    def centre(self) -> Tensor:
        """The mean input [n]."""
        return self.shares @ self.means

    @classmethod
    def of(cls, public: Records, classes: int) -> ClassPrior:
        """From public records; a class without any takes the mean of all and the share 0.

        Raises:
            ConfigError: there are fewer than two records.
        """
        inputs, targets = public.inputs.flatten(1).double(), public.targets
        if len(inputs) < 2:
            raise ConfigError("a prior needs two public records at least; give more of the victims' domain")
        counts = torch.bincount(targets, minlength=classes).double()
        sums = inputs.new_zeros(classes, inputs.shape[1]).index_add_(0, targets, inputs)
        means = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], inputs.mean(0))
        apart = inputs - means[targets]
        covariance = apart.T @ apart / len(inputs)
        spread = SHRINKAGE * float(covariance.diagonal().mean()) * torch.eye(len(covariance)).double()
        values, vectors = torch.linalg.eigh((1 - SHRINKAGE) * covariance + spread)
        return cls(means, values.clamp_min(1e-12), vectors, counts / counts.sum())

    def estimate(self, label: int, seen: Tensor, variance: float) -> Tensor:
        """The posterior mean [n] of an input of class ``label`` that was seen as ``seen`` [n] with that variance."""
        gain = self.values / (self.values + variance)
        mean: Tensor = self.means[label] + self.vectors @ (gain * (self.vectors.T @ (seen - self.means[label])))
        return mean


class Attacker:
    """What an attacker with ``public`` records knows: a prior of them all, and how well it would do without some.

    Nobody may change the tensors of ``public`` in place.
    """

    def __init__(self, public: Records, classes: int) -> None:
        held = torch.arange(len(public)) % 4 == 3
        self.prior = ClassPrior.of(public, classes)
        self._partial = ClassPrior.of(public[~held], classes) if int((~held).sum()) > 1 else self.prior
        self._rehearsed = public[held.nonzero().flatten()[:REHEARSALS]] if bool(held.any()) else public
        self._weights: dict[tuple[bytes, float, float], Tensor] = {}

    def image(
        self, network: nn.Module, observed: Gradient, shape: tuple[int, ...], multiplier: float | None = None
    ) -> tuple[Tensor, int]:
        """The input [shape], float32, and the likeliest label behind the noisy gradient ``observed`` of one example.

        Args:
            multiplier: the public noise multiplier, the noise's deviation over the bound at which gradients were
                clipped; ``None`` where nothing is known, and then the signal is what the noise leaves of the gradient.
        """
        noise, size = _noise(observed)
        at, label = wiener(network, observed, self.prior, shape)
        if noise <= NOISELESS * size:
            return at, label
        length = noise / multiplier if multiplier else _signal(observed, noise)
        weights = self.weights(network, noise, length, shape)
        return _mixed(at, self.prior, label, weights).float().view(shape), label

    def weights(self, network: nn.Module, noise: float, length: float, shape: tuple[int, ...]) -> Tensor:
        """Weights [3] of estimate, class mean and mean input under this noise, for gradients no longer than ``length``.

        Those by which the mean PSNR of :data:`REHEARSALS` public records is the best; kept for the next message.
        """
        parts = [parameter.detach().flatten().double() for parameter in network.parameters()]
        ratio = float(f"{noise / length:.1e}")
        key = hashlib.sha256(torch.cat(parts).numpy().tobytes()).digest(), ratio, float(f"{length:.1e}")
        if key not in self._weights:
            generator = torch.Generator().manual_seed(0)
            shown = []
            for image, target in zip(self._rehearsed.inputs, self._rehearsed.targets, strict=True):
                gradient = batch_gradient(network, image[None], target[None])
                own = math.sqrt(sum(float(part.square().sum()) for part in gradient))
                scale = min(1.0, length / max(own, 1e-300))
                noisy = [
                    part.double() * scale + noise * torch.randn(part.shape, generator=generator).double()
                    for part in gradient
                ]
                at, label = wiener(network, noisy, self._partial, shape)
                anchors = at.flatten().double(), self._partial.means[label], self._partial.centre
                mixed = GRID @ torch.stack(anchors)
                shown.append((mixed - image.flatten().double()).square().mean(1).clamp_min(1e-10).log())
            self._weights[key] = GRID[int(torch.stack(shown).mean(0).argmin())]
        return self._weights[key]


@lru_cache(maxsize=1)
def attacker(public: Records, classes: int) -> Attacker:
    """An :class:`Attacker` that is kept for the next message."""
    return Attacker(public, classes)


def _mixed(at: Tensor, prior: ClassPrior, label: int, weights: Tensor) -> Tensor:
    return weights @ torch.stack([at.flatten().double(), prior.means[label], prior.centre])


def _noise(observed: Gradient) -> tuple[float, float]:
    """The noise's deviation in a gradient, measured beyond the first singular value of the layer, and that value."""
    layer = torch.cat([observed[0].double(), observed[1].double()[:, None]], dim=1)
    sizes = torch.linalg.svdvals(layer)
    noise = math.sqrt(float(sizes[1:].square().sum()) / ((len(layer) - 1) * (layer.shape[1] - 1)))
    return max(noise, 1e-12 * float(sizes[0])), float(sizes[0])


def _signal(observed: Gradient, noise: float) -> float:
    """The gradient's length without the noise; at least what the noise's own fluctuations would look like."""
    energy = sum(float(part.double().square().sum()) for part in observed)
    count = sum(part.numel() for part in observed)
    return math.sqrt(max(energy - count * noise**2, noise**2 * math.sqrt(2 * count)))


def wiener(network: nn.Module, observed: Gradient, prior: ClassPrior, shape: tuple[int, ...]) -> tuple[Tensor, int]:
    """The linear estimate [shape], float32, and the likeliest label behind the noisy gradient of one example.

    The noise is measured on the gradient itself, beyond its first singular value. Each label is weighed by how well the
    head's gradient fits it, and the estimate is the mean over labels. l is first the network's own gradient at the
    class mean, then, pass by pass, that at the estimate and what G itself says of it, each as far as it can be trusted.
    """
    weight, bias = observed[0].double(), observed[1].double()
    layer = torch.cat([weight, bias[:, None]], dim=1)
    noise, _ = _noise(observed)
    chances = _label_chances(network, observed, prior, noise, shape)
    total = torch.zeros_like(prior.means[0])
    for label in (chances > 1e-3).nonzero().flatten().tolist():
        at = prior.means[label]
        for _ in range(PASSES):
            outward, twice = _outward(network, layer, at, label, noise, shape)
            power = max(float(outward @ outward), 1e-300)
            at = prior.estimate(label, (weight.T @ outward - twice * at) / power, noise**2 / power)
        total += chances[label] * at
    kept = total / chances[chances > 1e-3].sum()
    return kept.float().view(shape), int(chances.argmax())


def _outward(
    network: nn.Module, layer: Tensor, at: Tensor, label: int, noise: float, shape: tuple[int, ...]
) -> tuple[Tensor, float]:
    """l [m]: the network's gradient at the input ``at`` [n] and what ``layer`` [m, n + 1] says, weighed by errors.

    With it what the noise in l, which is that of ``layer``, adds to the product of both along ``at``.
    """
    own = batch_gradient(network, at.float().view(1, *shape), torch.tensor([label]))[1].double()
    along = torch.cat([at, at.new_ones(1)])
    power = float(along @ along)
    told = layer @ along / power
    scale = float((own @ told) / (own @ own).clamp_min(1e-300))  # clipping shortens every gradient
    believed = max(scale, 0.0) * own
    variance = noise**2 / power
    error = max(float((told - believed).square().mean()) - variance, 0.0)
    trust = error / (error + variance)
    both = believed + trust * (told - believed)
    length, twice = float(both @ both), trust * variance * len(both)
    if not length:
        return both, 0.0
    seen = (
        float(layer[:, -1] @ both) - twice
    ) / length  # 1 but for noise, if the length is right: the bias has the input 1
    doubt = noise**2 / length
    factor = max((SCALE_DOUBT * seen + doubt) / (SCALE_DOUBT + doubt), 0.1)
    return both * factor, twice * factor


def _label_chances(
    network: nn.Module, observed: Gradient, prior: ClassPrior, noise: float, shape: tuple[int, ...]
) -> Tensor:
    """The probability [C] of each label from the head's gradient ``(p − e_y)·(h, 1)``, expected at the class means.

    Clipping may have shortened it by any factor; all are held equally likely.
    """
    if observed[-1].dim() != 1 or len(observed[-1]) != len(prior.means):
        raise ConfigError("the network's head has no bias, from which this attack reads the label; attack another")
    scales = torch.linspace(0, 1, 21).double()[:, None]
    head = torch.cat([part.double().flatten() for part in observed[-2:]])
    error = math.hypot(noise, 0.3 * float(head.norm()) / math.sqrt(len(head))) + 1e-300  # a class mean is no input
    fits = []
    for label in range(len(prior.means)):
        if not prior.shares[label]:
            fits.append(-math.inf)
            continue
        at = prior.means[label].float().view(1, *shape)
        parts = batch_gradient(network, at, torch.tensor([label]))[-2:]
        expected = torch.cat([part.double().flatten() for part in parts])
        apart = (head - scales * expected).square().sum(1)
        fit = torch.logsumexp(-apart / (2 * error**2), 0)
        fits.append(float(fit) + math.log(prior.shares[label]))
    chances: Tensor = torch.softmax(torch.tensor(fits, dtype=torch.float64), 0)
    return chances

"""One image from noisy gradients of a fully connected first layer: the linear estimate that knows noise and classes.

Given the layer's outward gradient l [m], the gradient ``G = l·(x, 1)ᵀ + noise`` is linear in the input x, and under a
Gaussian prior of x its best linear estimate (Wiener's) is ``μ + Σ(Σ + v·I)⁻¹(y − μ)`` with ``y = Gᵀl/‖l‖²`` and v the
noise left in y. Without noise it is exact; with much of it, it is the prior's mean, which is what an attacker shows who
saw nothing. l is not given, and its errors are no Gaussian noise, so how far the estimate may be trusted is measured:
the attack is made on public records, under the same noise, by a prior that did not see them, and the weights of the
estimate, the class mean and the mean input are those that served best there. No paper has just this attack; that the
best one on a noisy gradient is the posterior's is from Balunović, Dimitrov, Staab and Vechev, "Bayesian Framework for
Gradient Leakage" (ICLR 2022).

Where the same image was behind the gradients of several rounds, each with noise of its own, the y of round k has the
variance ``v_k``, and together they say ``Σ y_k/v_k`` over ``Σ 1/v_k``, with the variance ``1/Σ 1/v_k``. Every round has
its own network and its own l, x is common.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
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
ALIKE = 0.05
"""By what part noises may differ for which the same weights serve."""
NOISELESS = 1e-6
"""Noise, relative to the gradient, that is rounding; the estimate is exact then and needs no weights."""
GRID = torch.tensor([[e, c, STEP - e - c] for e in range(STEP + 1) for c in range(STEP + 1 - e)], dtype=torch.float64)
GRID /= STEP
"""All weights [45, 3] of an estimate, a class mean and the mean input that add up to 1."""
Message = tuple[nn.Module, Gradient]
"""The network of a round, and the noisy gradient there of one example."""
Heads = Mapping[nn.Module, Mapping[int, Tensor]]
"""By network and label, what the gradient of the network's head is expected to be."""


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
        self._weights: dict[tuple[bytes, float], list[tuple[Tensor, Tensor]]] = {}

    def image(
        self, seen: Sequence[Message], shape: tuple[int, ...], multiplier: float | None = None, rate: float = 1.0
    ) -> tuple[Tensor, int]:
        """The input [shape], float32, and the likeliest label behind the noisy gradients of one example.

        Args:
            seen: what was seen of it, in one round or several.
            multiplier: the public noise multiplier, the noise's deviation over the bound at which gradients were
                clipped; ``None`` where nothing is known, and then the signal is what the noise leaves of the gradient.
            rate: the public chance that the example was in the batch of a round, where that is drawn.
        """
        sights = [_sight(*message) for message in seen]
        at, label = _estimate(sights, self.prior, shape)
        if any(one.noise <= NOISELESS * one.size for one in _telling(sights)):
            return at, label
        lengths = [one.noise / multiplier if multiplier else _signal(one.gradient, one.noise) for one in sights]
        networks, noises = [one.network for one in sights], [one.noise for one in sights]
        weights = self.weights(networks, noises, lengths, shape, rate)
        return _mixed(at, self.prior, label, weights).float().view(shape), label

    def weights(
        self,
        networks: Sequence[nn.Module],
        noises: Sequence[float],
        lengths: Sequence[float],
        shape: tuple[int, ...],
        rate: float = 1.0,
    ) -> Tensor:
        """Weights [3] of estimate, class mean and mean input under these noises, for gradients no longer than these.

        ``networks``, ``noises`` and ``lengths`` are those of the rounds, in each of which the example is with chance
        ``rate``. The weights are those by which the mean PSNR of :data:`REHEARSALS` public records is the best; kept
        for the next message.
        """
        key = _digest(networks), rate
        known = self._weights.setdefault(key, [])
        scales = torch.tensor([noises, lengths], dtype=torch.float64)
        for near, weights in known:
            if bool(((scales / near - 1).abs() <= ALIKE).all()):
                return weights
        generator, drawn = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
        heads = {network: _heads(network, self._partial, shape) for network in networks}
        shown = []
        for image, target in zip(self._rehearsed.inputs, self._rehearsed.targets, strict=True):
            present = torch.rand(len(networks), generator=drawn) < rate
            noisy = [
                _rehearsed(network, image[None], target[None], noise, length * there, generator)
                for network, noise, length, there in zip(networks, noises, lengths, present.tolist(), strict=True)
            ]
            at, label = wiener(list(zip(networks, noisy, strict=True)), self._partial, shape, heads)
            anchors = at.flatten().double(), self._partial.means[label], self._partial.centre
            mixed = GRID @ torch.stack(anchors)
            shown.append((mixed - image.flatten().double()).square().mean(1).clamp_min(1e-10).log())
        best = GRID[int(torch.stack(shown).mean(0).argmin())]
        known.append((scales, best))
        return best


@lru_cache(maxsize=1)
def attacker(public: Records, classes: int) -> Attacker:
    """An :class:`Attacker` that is kept for the next message."""
    return Attacker(public, classes)


def _mixed(at: Tensor, prior: ClassPrior, label: int, weights: Tensor) -> Tensor:
    return weights @ torch.stack([at.flatten().double(), prior.means[label], prior.centre])


def _digest(networks: Sequence[nn.Module]) -> bytes:
    found = hashlib.sha256()
    for network in networks:
        parts = [parameter.detach().flatten().double() for parameter in network.parameters()]
        found.update(torch.cat(parts).numpy().tobytes())
    return found.digest()


def _rehearsed(
    network: nn.Module, inputs: Tensor, targets: Tensor, noise: float, length: float, generator: torch.Generator
) -> list[Tensor]:
    """The gradient of one example, made no longer than ``length``, under noise of that deviation."""
    gradient = batch_gradient(network, inputs, targets)
    own = math.sqrt(sum(float(part.square().sum()) for part in gradient))
    scale = min(1.0, length / max(own, 1e-300))
    return [part.double() * scale + noise * torch.randn(part.shape, generator=generator).double() for part in gradient]


def _signal(observed: Gradient, noise: float) -> float:
    """The gradient's length without the noise; at least what the noise's own fluctuations would look like."""
    energy = sum(float(part.double().square().sum()) for part in observed)
    count = sum(part.numel() for part in observed)
    return math.sqrt(max(energy - count * noise**2, noise**2 * math.sqrt(2 * count)))


def wiener(
    seen: Sequence[Message], prior: ClassPrior, shape: tuple[int, ...], heads: Heads | None = None
) -> tuple[Tensor, int]:
    """The linear estimate [shape], float32, and the likeliest label behind the noisy gradients of one example.

    The noise is measured on each gradient itself, beyond its first singular value. Each label is weighed by how well
    the heads' gradients fit it, and the estimate is the mean over labels. l is first the network's own gradient at the
    class mean, then, pass by pass, that at the estimate and what G itself says of it, each as far as it can be trusted;
    so it is near zero in a round in whose batch the example was not, and such a round counts nearly nothing.
    ``heads`` are those of the networks for ``prior``, if they are known already: they do not depend on what was seen.
    """
    return _estimate([_sight(*message) for message in seen], prior, shape, heads)


@dataclass(frozen=True)
class _Sight:
    """A message; of its first layer the weight [m, n], the same with the bias as last column, the noise's deviation,
    and the first singular value.
    """

    network: nn.Module
    gradient: Gradient
    weight: Tensor
    layer: Tensor
    noise: float
    size: float


def _sight(network: nn.Module, observed: Gradient) -> _Sight:
    weight = observed[0].double()
    layer = torch.cat([weight, observed[1].double()[:, None]], dim=1)
    squares = torch.linalg.eigvalsh(layer @ layer.T)  # a third of the time of singular values
    if float(squares[:-1].sum()) < 1e-6 * float(squares[-1]):  # squares have half the digits
        squares = torch.linalg.svdvals(layer).square().flip(0)
    size = math.sqrt(max(float(squares[-1]), 0.0))
    noise = math.sqrt(float(squares[:-1].sum()) / ((len(layer) - 1) * (layer.shape[1] - 1)))
    return _Sight(network, observed, weight, layer, max(noise, 1e-12 * size), size)


def _telling(sights: Sequence[_Sight]) -> Sequence[_Sight]:
    """Those that are not zero everywhere, as one is without noise where the example was not in the batch."""
    return [one for one in sights if one.size] or sights[-1:]


def _estimate(
    sights: Sequence[_Sight], prior: ClassPrior, shape: tuple[int, ...], heads: Heads | None = None
) -> tuple[Tensor, int]:
    sights = _telling(sights)
    chances = _label_chances(sights, prior, shape, heads)
    total = torch.zeros_like(prior.means[0])
    for label in (chances > 1e-3).nonzero().flatten().tolist():
        at = prior.means[label]
        for _ in range(PASSES):
            at = prior.estimate(label, *_pooled(sights, at, label, shape))
        total += chances[label] * at
    kept = total / chances[chances > 1e-3].sum()
    return kept.float().view(shape), int(chances.argmax())


def _pooled(sights: Sequence[_Sight], at: Tensor, label: int, shape: tuple[int, ...]) -> tuple[Tensor, float]:
    """What all rounds say together of the input [n], with each l as it is believed at ``at``, and the variance left."""
    found, variances = [], []
    for one in sights:
        outward, twice = _outward(one.network, one.layer, at, label, one.noise, shape)
        power = max(float(outward @ outward), 1e-300)
        found.append((one.weight.T @ outward - twice * at) / power)
        variances.append(min(one.noise**2 / power, 1e300))
    least = min(variances)
    parts = torch.tensor([least / one if one else 1.0 for one in variances], dtype=torch.float64)
    return parts @ torch.stack(found) / parts.sum(), least / float(parts.sum())


def _outward(
    network: nn.Module, layer: Tensor, at: Tensor, label: int, noise: float, shape: tuple[int, ...]
) -> tuple[Tensor, float]:
    """l [m]: the network's gradient at the input ``at`` [n] and what ``layer`` [m, n + 1] says, weighed by errors.

    With it what the noise in l, which is that of ``layer``, adds to the product of both along ``at``.
    """
    loss = F.cross_entropy(network(at.float().view(1, *shape)), torch.tensor([label]))
    bias = list(network.parameters())[1:2]
    own = torch.autograd.grad(loss, bias, materialize_grads=True)[0].double()
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
    sights: Sequence[_Sight], prior: ClassPrior, shape: tuple[int, ...], heads: Heads | None = None
) -> Tensor:
    """The probability [C] of each label from all rounds: what they say multiplies, the classes' shares count once."""
    if heads is None:
        heads = {one.network: _heads(one.network, prior, shape) for one in sights}
    fits = torch.stack([_label_fits(one, prior, heads[one.network]) for one in sights]).sum(0).tolist()
    shares = prior.shares.tolist()
    whole = [fit + math.log(share) if share else -math.inf for fit, share in zip(fits, shares, strict=True)]
    return torch.softmax(torch.tensor(whole, dtype=torch.float64), 0)


def _heads(network: nn.Module, prior: ClassPrior, shape: tuple[int, ...]) -> dict[int, Tensor]:
    """For each label with public records the head's gradient ``(p − e_y)·(h, 1)``, flat, at the mean of its class."""
    found = {}
    for label in prior.shares.nonzero().flatten().tolist():
        at = prior.means[label].float().view(1, *shape)
        parts = batch_gradient(network, at, torch.tensor([label]))[-2:]
        found[label] = torch.cat([part.double().flatten() for part in parts])
    return found


def _label_fits(one: _Sight, prior: ClassPrior, heads: Mapping[int, Tensor]) -> Tensor:
    """Log-likelihoods [C] of the labels by the head's gradient, expected to be one of ``heads``.

    Clipping may have shortened it by any factor; all are held equally likely. Labels without public records have 0.
    """
    observed = one.gradient
    if observed[-1].dim() != 1 or len(observed[-1]) != len(prior.means):
        raise ConfigError("the network's head has no bias, from which this attack reads the label; attack another")
    scales = torch.linspace(0, 1, 21).double()[:, None]
    head = torch.cat([part.double().flatten() for part in observed[-2:]])
    error = math.hypot(one.noise, 0.3 * float(head.norm()) / math.sqrt(len(head))) + 1e-300  # a class mean is no input
    fits = torch.zeros(len(prior.means), dtype=torch.float64)
    for label, expected in heads.items():
        apart = (head - scales * expected).square().sum(1)
        fits[label] = torch.logsumexp(-apart / (2 * error**2), 0)
    return fits

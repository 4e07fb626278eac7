"""LLG: the labels of a batch from the row sums of its head gradient (Wainakh et al., PoPETs 2022(2), 227-244).

``g_c = Σ_k ∂L/∂W_ck`` is negative only if class c is present (features must not be negative, as behind a ReLU), and
every example of a class pulls it down by about the same impact m < 0. LLG reads m off the gradient itself; LLG* and
LLG+ estimate m and the value s_c that g_c has when c is absent from batches of one class, of dummy inputs (LLG*) or of
auxiliary data (LLG+).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.observations.head_gradients import head_name
from privfl.errors import ConfigError
from privfl.validation import check_count

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(logits [B, C], labels [B])`` → scalar, the mean over the batch."""
Inputs = Callable[[int, int], Tensor]
"""``inputs(label, repeat)`` → a batch [B, ...] that stands for examples of ``label``."""


def row_sums(weight_gradient: Tensor) -> Tensor:
    """``g`` [C] in float64 from ∂L/∂W [C, d]."""
    return weight_gradient.double().sum(1)


def own_impact(sums: Tensor, batch_size: int, iterations: int = 1) -> float:
    """LLG's m: ``(1/B)·(1 + 1/C)·Σ_{g_c<0} g_c``, divided by the number of local iterations."""
    negative = sums[sums < 0].sum()
    return float(negative) / (batch_size * iterations) * (1 + 1 / len(sums))


@dataclass(frozen=True)
class Calibration:
    """Impact m < 0 of one example and the offsets s_c [C] of absent classes, as LLG* and LLG+ estimate them."""

    impact: float
    offsets: Tensor

    @classmethod
    def of(cls, pure: Tensor, batch_size: int) -> Calibration:
        """From ``pure`` [R, C, C]: row sums of R repeats, ``pure[r, i]`` those of a batch of class i alone.

        m is the mean of the diagonals over B, times (1 + 1/C) (which is C/(C − 1) to first order, what the mean
        prediction 1/C takes off); s_c is the mean of g_c over batches of other classes.
        """
        classes = pure.shape[1]
        diagonal = pure.diagonal(dim1=1, dim2=2)
        impact = float(diagonal.mean()) / batch_size * (1 + 1 / classes)
        offsets = (pure.sum(1) - diagonal).mean(0) / (classes - 1)
        return cls(impact, offsets)


def calibrate(
    network: nn.Module, inputs: Inputs, classes: int, *, repeats: int = 10, loss: Loss = F.cross_entropy
) -> Calibration:
    """m and s_c from gradients of batches that hold one class each; nothing of a client enters.

    Args:
        network: a network that ends in a linear layer, at the parameters that the client received.
        inputs: gives the batches: zeros, ones or random inputs for LLG*, auxiliary examples for LLG+; all of one size.
        classes: C ≥ 2.
        repeats: batches for every class, 10 in the paper.
        loss: what the client minimises; a shifted loss needs its own calibration.

    Raises:
        ConfigError: fewer than two classes, or no repeat.
    """
    check_count("classes", classes, 2)
    check_count("repeats", repeats)
    layer = network.get_submodule(head_name(network))
    weight = layer.get_parameter("weight")
    pure = torch.zeros(repeats, classes, classes, dtype=torch.float64)
    size = 0
    for repeat in range(repeats):
        for label in range(classes):
            batch = inputs(label, repeat)
            size = len(batch)
            labels = torch.full((size,), label)
            (gradient,) = torch.autograd.grad(loss(network(batch), labels), [weight])
            pure[repeat, label] = row_sums(gradient)
    return Calibration.of(pure, size)


def llg(sums: Tensor, batch_size: int, calibration: Calibration | None = None, iterations: int = 1) -> Tensor:
    """Label counts [C], int64, from the row sums ``sums`` [C]: LLG, or with a ``calibration`` LLG* and LLG+.

    Stage 1 takes every class with g_c < 0 once; stage 2 takes the class with the smallest g_c until B labels are found.
    Whatever is taken has the impact subtracted from *its own* g_c (a public copy of the attack subtracts it from the
    class that stage 1 saw last). If stage 1 finds more than B classes, which cannot happen where features are not
    negative, the B smallest count.

    Args:
        sums: g; for several local iterations those of the averaged gradient.
        batch_size: B ≥ 1, the examples of one iteration.
        calibration: impact and offsets for batches of B examples; offsets are subtracted after stage 1.
        iterations: local iterations K: m is divided by K and B·K labels are looked for.

    Raises:
        ConfigError: ``sums`` are no finite vector, or a number is out of range.
    """
    check_count("batch_size", batch_size)
    check_count("iterations", iterations)
    if sums.ndim != 1 or len(sums) < 2 or not sums.isfinite().all():
        raise ConfigError(f"the row sums have the shape {tuple(sums.shape)} or are not finite; give one for each class")
    left = sums.double().clone()
    wanted = batch_size * iterations
    counts = torch.zeros(len(left), dtype=torch.int64)
    present = torch.argsort(left)[: min(int((left < 0).sum()), wanted)]
    if calibration is None:
        impact = own_impact(sums.double(), batch_size, iterations)
    else:
        impact = calibration.impact / iterations
        left -= calibration.offsets
    counts[present] += 1
    left[present] -= impact
    for _ in range(wanted - len(present)):
        place = int(left.argmin())
        counts[place] += 1
        left[place] -= impact
    return counts

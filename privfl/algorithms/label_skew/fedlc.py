"""FedLC: clients lower the logits of the classes that they hold few samples of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privfl.algorithms.label_skew.calibrated_logits import CalibratedFedAvg
from privfl.validation import check_number


@dataclass(frozen=True)
class FedLC(CalibratedFedAvg):
    """FedLC (Zhang et al., ICML 2022): cross-entropy on the calibrated logits ``z_c − τ·n_c^(−1/4)``.

    n_c is the number of the client's samples of class c. A class without samples is masked exactly, which is the limit
    n_c → 0; public code puts 1e-8 or 1e-9 for 0 and shifts by −100 to −178. Tests use the plain logits. τ = 0 is FedAvg
    and takes no label counts; equal counts of all classes give its gradients too.

    Differs from public code by that mask alone; as there, the sum of the soft-max runs over all classes, the true one
    included.

    A mask shows exactly which classes a client holds, so DP-SGD needs ``least_count`` > 0, and a NoisyTotal for
    ``label_prior`` (bound 1), charged in every round, without which the claim is ∞. Noise on the counts needs it too: a
    held class whose noisy count is not positive would be masked, and its samples, of probability 0, would push its
    logit up in every step, however large it is.

    Args:
        tau: τ ≥ 0; 1 in public code, tuned in the paper.
        least_count: n_c counts as at least this. 0 masks missing classes, 1e-8 is public code, and 1 shifts a missing
            class as if it had one sample.
    """

    name: ClassVar[str] = "fedlc"
    tau: float = 1.0
    least_count: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("fedlc's tau", self.tau, 0)
        check_number("fedlc's least_count", self.least_count, 0)
        object.__setattr__(self, "statistics", type(self).statistics if self.tau > 0 else ())

    def dpsgd_refusal(self) -> str:
        if self.tau > 0 and self.least_count == 0:
            return (
                "fedlc masks the classes that a client does not hold, which shows exactly which ones it holds; set "
                "least_count > 0, such as 1"
            )
        return ""

    def calibration(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(counts), -self.tau * counts.clamp_min(self.least_count).sqrt().sqrt().reciprocal()

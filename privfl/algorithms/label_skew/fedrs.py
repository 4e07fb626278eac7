"""FedRS: clients scale down the logits of the classes that they do not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from privfl.algorithms.label_skew.calibrated_logits import CalibratedFedAvg
from privfl.validation import check_number


@dataclass(frozen=True)
class FedRS(CalibratedFedAvg):
    """FedRS (Li and Zhan, KDD 2021): cross-entropy on the restricted soft-max, of logits ``α_c·z_c``.

    α_c is 1 for classes that the client holds and ``alpha`` for the others, whose rows of the head its updates push
    away less. Tests use the plain logits. α = 1 is FedAvg, and takes no label counts.

    Differs from the authors' code: its head has no bias, so that α scales the product with the feature alone; here it
    scales the whole logit (the same with ``two-nn``'s option ``bias = false``, for instance).

    Under DP-SGD give a NoisyTotal for ``label_prior`` (bound 1), charged in every round, and raise ``present_from``
    above its noise. Both forms are then post-processing; without it the claim is ∞.

    Args:
        alpha: α in [0, 1]; the paper tries 0.9, 0.5 and 0.1.
        form: ``"binary"``, as in the paper; ``"graded"``, as in its code: α_c = α + (1 − α)·n_c / max n.
        present_from: ``"binary"``: a class counts as held from this count on, above 0. If none does (noise), all do.
    """

    name: ClassVar[str] = "fedrs"
    alpha: float = 0.5
    form: Literal["binary", "graded"] = "binary"
    present_from: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("fedrs's alpha", self.alpha, 0, 1)
        check_number("fedrs's present_from", self.present_from, 0, above=True)
        object.__setattr__(self, "statistics", type(self).statistics if self.alpha < 1 else ())

    def calibration(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        share = counts.clamp_min(0)
        if self.form == "binary":
            share = (counts >= self.present_from).to(counts.dtype)
        most = share.max()
        share = torch.where(most > 0, share / torch.where(most > 0, most, 1), 1)
        return self.alpha + (1 - self.alpha) * share, torch.zeros_like(counts)

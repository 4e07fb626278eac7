"""The result of a reconstruction: images beside the truth and the nulls, with their distances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attacks.metrics.images import WINDOW, Features, fmse, matching, mse, psnr, ssim
from attacks.metrics.measure import Measure, mean_of
from attacks.metrics.perceptual import percept_rand
from attacks.result import AttackResult
from privfl.errors import ConfigError
from privfl.plain_text import as_written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 10
"""Images on a contact sheet."""


@dataclass(frozen=True, kw_only=True)
class ReconstructionResult(AttackResult):
    """Images [N, C, H, W] in [0, 1], matched to the truth, and what each null shows in their place.

    ``per_image`` are the attack's distances [N] by measure.
    """

    images: Tensor
    truth: Tensor
    null_images: Mapping[str, Tensor]
    per_image: Mapping[str, Tensor]

    def figure(self) -> Figure:
        """A contact sheet: truth, reconstruction, and every null, for the first images."""
        from matplotlib.figure import Figure

        rows = {"truth": self.truth, self.attack: self.images, **self.null_images}
        count = min(SHOWN, len(self.truth))
        figure = Figure(figsize=(1.4 + 0.8 * count, 0.95 * len(rows)), layout="constrained")
        axes = figure.subplots(len(rows), count, squeeze=False)
        for line, (name, batch) in zip(axes, rows.items(), strict=True):
            for place, cell in enumerate(line):
                picture = batch[place].detach().cpu().clamp(0, 1).numpy()
                grey = len(picture) == 1
                cell.imshow(picture[0] if grey else picture.transpose(1, 2, 0), vmin=0, vmax=1, cmap="gray")
                cell.set_xticks([])
                cell.set_yticks([])
                cell.spines[:].set_visible(False)
            line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        as_written(figure)
        return figure


def image_measures(
    images: Tensor, truth: Tensor, features: Features | None = None
) -> tuple[dict[str, Measure], dict[str, Tensor]]:
    """MSE, PSNR, SSIM (images of 11 pixels at least), ``percept_rand``, and FMSE with ``features``: means and [N]."""
    single = {"mse": mse(images, truth), "psnr": psnr(images, truth)}
    if min(images.shape[2:]) >= WINDOW:
        single["ssim"] = ssim(images, truth)
    single["percept_rand"] = percept_rand(images, truth)
    if features is not None:
        single["fmse"] = fmse(images, truth, features)
    found = {}
    for name, values in single.items():
        least = {"psnr": -math.inf, "ssim": -1.0}.get(name, 0.0)
        found[name] = mean_of(values.cpu().numpy(), least=least, most=1.0 if name == "ssim" else math.inf)
    return found, single


def reconstruction_result(
    attack: str,
    images: Tensor,
    truth: Tensor,
    nulls: Mapping[str, Tensor],
    *,
    seconds: float,
    match: bool = True,
    features: Features | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ReconstructionResult:
    """Judge ``images`` [M, C, H, W] by ``truth`` [N, C, H, W], pixels in [0, 1], M ≥ N.

    Args:
        nulls: by name, what would be shown without the victims' messages [N or more, C, H, W].
        match: put reconstructions, and nulls, in the order of the truth by least total MSE first. Leave it out where
            the attack says itself which image is which.
        features: adds FMSE, and is applied to batches of images.

    Raises:
        ConfigError: shapes differ, an image is not finite, or there is no null.
    """

    def placed(name: str, found: Tensor) -> Tensor:
        if found.shape[1:] != truth.shape[1:] or len(found) < len(truth) or not bool(torch.isfinite(found).all()):
            raise ConfigError(
                f"'{name}' gives images {tuple(found.shape)} for {tuple(truth.shape)}, or not finite ones; give a "
                "finite image of the same shape for each"
            )
        clipped = found.detach().clamp(0, 1)
        order = matching(clipped, truth) if match else np.arange(len(truth))
        return clipped[torch.from_numpy(order).to(found.device)]

    shown = {name: placed(name, found) for name, found in nulls.items()}
    best = placed(attack, images)
    measures, single = image_measures(best, truth, features)
    return ReconstructionResult(
        attack=attack,
        primary="psnr",
        metrics=measures,
        nulls={name: image_measures(found, truth, features)[0] for name, found in shown.items()},
        seconds=seconds,
        units=len(truth),
        unit="image",
        settings=dict(settings or {}),
        images=best,
        truth=truth,
        null_images=shown,
        per_image=single,
    )

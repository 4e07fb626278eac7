"""What images look like before anything is known of them: penalties on variation and extreme values, one per image."""

from __future__ import annotations

from torch import Tensor


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of horizontal neighbours plus that of vertical ones, [B]; Geiping et al. (2020)."""
    down, right = _differences(images)
    return down.abs().mean((1, 2, 3)) + right.abs().mean((1, 2, 3))


def squared_variation(images: Tensor) -> Tensor:
    """Twice the mean squared difference of neighbours, horizontal plus vertical, [B]; the TV of GRNN's code."""
    down, right = _differences(images)
    return 2 * (down.square().mean((1, 2, 3)) + right.square().mean((1, 2, 3)))


def sixth_power(images: Tensor) -> Tensor:
    """Mean sixth power of the distance from mid-grey, [B]; images in [0, 1].

    The α-norm with α = 6 of Mahendran and Vedaldi (CVPR 2015), who sum over mean-free images where this takes the mean
    over pixels, so that its weight does not depend on the image's size.
    """
    return (images - 0.5).pow(6).mean((1, 2, 3))


def _differences(images: Tensor) -> tuple[Tensor, Tensor]:
    return images[..., 1:, :] - images[..., :-1, :], images[..., 1:] - images[..., :-1]

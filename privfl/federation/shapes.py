"""What the shape and the type of inputs say about how they were meant: a hint for errors, and warnings of a run."""

from __future__ import annotations

from collections.abc import Sequence

from privfl.models import NamedModel

_COLOURS = (1, 3, 4)
"""How many channels pictures have: grey, RGB, and RGB with transparency."""
_MOST_CHANNELS = 4

UNSCALED = (
    "Inputs are unsigned 8-bit numbers and scale is 1, so they enter as they are, up to 255; if they are pixels, give "
    "scale=1/255."
)


def channels_seem_last(shape: Sequence[int]) -> bool:
    """Whether one input [C, H, W] looks as if it were [H, W, C]."""
    return len(shape) == 3 and shape[2] in _COLOURS and min(shape[:2]) > _MOST_CHANNELS


def shape_hint(shape: Sequence[int]) -> str:
    """How images of one input ``shape`` become [N, C, H, W], if that may be the mistake; empty otherwise."""
    if channels_seem_last(shape):
        return (
            f"; images are [N, C, H, W], and {_times(shape)} looks as if the channels came last: give "
            "inputs.transpose(0, 3, 1, 2) of an array, inputs.permute(0, 3, 1, 2) of a tensor"
        )
    if len(shape) == 2:
        return "; images are [N, C, H, W], and those of one channel are inputs[:, None]"
    return ""


def input_warnings(shape: Sequence[int], model: object, *, unscaled: bool) -> list[str]:
    """What whoever trains ``model`` on inputs of this ``shape`` each should know of them; no value is looked at."""
    found = []
    if isinstance(model, NamedModel) and channels_seem_last(shape):  # who wrote a model knows what it takes
        found.append(
            f"Inputs of shape {_times(shape)} are read as {shape[0]} channels of {shape[1]} x {shape[2]}; if their "
            "channels come last, give inputs.transpose(0, 3, 1, 2)."
        )
    if unscaled:
        found.append(UNSCALED)
    return found


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))

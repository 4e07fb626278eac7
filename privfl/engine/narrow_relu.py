"""ReLU of bfloat16 in place, as of the integers that its bits are: a number above 0 is an integer above 0.

PyTorch's ReLU widens every number and rounds it again: 0.04 ms forward and 0.05 back for ten images of 26 × 26 and 32
channels, where these loops take 0.01 and 0.02 (an Intel Xeon). They have its bits, but that nothing comes out as -0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfl.compiling import once_it_pays
from privfl.models.layouts import INNERMOST

SAVED = 1.8e-10
"""Seconds that a number takes less by a compiled loop, each way (Intel Xeon)."""
INFINITE = 0x7F80
"""The bits of infinity; what is larger, but for the sign, is not a number."""


def rectify_(values: Tensor) -> bool:
    """Put 0 in the place of the negative numbers among ``values``, in bfloat16; whether that was done."""
    loop = once_it_pays(_rectify, SAVED * values.numel()) if _in_line(values, values) else None
    if loop is None:
        return False
    loop(_line(values))
    return True


def stop_(back: Tensor, output: Tensor) -> bool:
    """Put 0 in ``back`` where ``output``, of ReLU, is 0, both in bfloat16; whether that was done."""
    loop = once_it_pays(_stop, SAVED * back.numel()) if _in_line(back, output) else None
    if loop is None:
        return False
    loop(_line(back), _line(output))
    return True


def _in_line(one: Tensor, other: Tensor) -> bool:
    """Whether both are in bfloat16 on a CPU, and their numbers follow one another in the same order, without gaps."""
    if one.dtype != torch.bfloat16 or other.dtype != torch.bfloat16 or one.device.type != "cpu":
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    return one.dim() == 4 and all(values.is_contiguous(memory_format=INNERMOST) for values in (one, other))


def _line(values: Tensor) -> NDArray[np.int16]:
    values = values if values.is_contiguous() else values.permute(0, 2, 3, 1)
    found: NDArray[np.int16] = values.view(torch.int16).numpy().reshape(-1)
    return found


def _rectify(values: NDArray[Any]) -> None:
    for i in range(len(values)):
        value = values[i]
        values[i] = value if (value > 0) | ((value & 0x7FFF) > INFINITE) else np.int16(0)


def _stop(back: NDArray[Any], output: NDArray[Any]) -> None:
    for i in range(len(back)):
        value = output[i]
        back[i] = back[i] if (value > 0) | ((value & 0x7FFF) > INFINITE) else np.int16(0)

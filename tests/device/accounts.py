"""What happens on the stand-in device, by the line of the project that causes it: launches, waits and copies."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
UNSEEN = {__file__, str(Path(__file__).with_name("stand_in.py"))}
"""Files of the stand-in, whose lines cause nothing."""
SEVERAL = {"constant_pad_nd": 2, "masked_fill": 2, "scatter": 2, "scatter_add": 2, "index_put": 2, "index_fill": 2}
SEVERAL |= {"index_add": 2, "select_backward": 2, "slice_backward": 2, "max_pool2d_with_indices_backward": 2}
"""Operations that launch more than one kernel on CUDA: they fill or copy their answer first. Others count as one, also
where a library may take more."""


@dataclass
class Counts:
    """What happened on the device: launches and waits by ``file:line``, and the bytes that were copied to and fro."""

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    bytes_to: int = 0
    bytes_from: int = 0
    fused: int = 0
    pinned: dict[int, torch.Tensor] = field(default_factory=dict)

    def reset(self) -> None:
        """Count from zero."""
        self.launches.clear()
        self.waits.clear()
        self.bytes_to = self.bytes_from = 0

    def launch(self, kernels: int = 1) -> None:
        """So many kernels, unless they are part of one that is fused."""
        if not self.fused:
            self.launches[place()] += kernels

    def wait(self, why: str) -> None:
        """The host waits for the device."""
        self.waits[f"{place()} {why}"] += 1

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` lies in memory that the device can read while the host goes on."""
        return tensor.untyped_storage().data_ptr() in self.pinned


COUNTS = Counts()


def place() -> str:
    """The innermost line of the project that is running, as ``file:line``."""
    frame = sys._getframe(1)
    while frame is not None:
        if name := inside(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside the project"


@cache
def inside(file: str) -> str:
    """The path of a ``file`` of the project within it; empty for others, and for the stand-in's."""
    path = Path(file)
    own = path.is_relative_to(ROOT) and "site-packages" not in path.parts and file not in UNSEEN
    return path.relative_to(ROOT).as_posix() if own else ""


def kernels(name: str, args: Any, kwargs: Any) -> int:
    """How many kernels an operation launches."""
    if name == "convolution_backward":
        return sum(args[-1])  # one for each gradient that is asked for
    if name == "linalg_vector_norm" and kwargs.get("dtype") not in (None, args[0].dtype):
        return 2  # what is added up in another type is converted first
    return SEVERAL.get(name, 1)

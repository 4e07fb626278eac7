"""In which precision gradients are computed; parameters, clipping, noise and sums stay in the model's own type.

``float32`` is exact on every device: on CUDA it also turns off the TF32 convolutions that PyTorch allows by default,
because the engines' promise of equal numbers would not survive them. ``tf32`` allows them, and TF32 products;
``bfloat16`` runs the forward and backward pass under autocast; known networks without DP-SGD compute layer by layer
instead, on processors that multiply in bfloat16 (:mod:`privfl.engine.sequences`). Clipping stays honest in all of them:
norms are taken of the very gradients that are added up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privfl.privacy.loss import Loss

Precision = Literal["float32", "tf32", "bfloat16"]


def in_precision(loss: Loss, precision: Precision, device: torch.device) -> Loss:
    """``loss``, computed in ``precision``; its terms are returned in float32 or wider."""
    if precision != "bfloat16":
        return loss

    def cast(network: nn.Module, inputs: Tensor, targets: Tensor, **loss_kwargs: Any) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            terms = loss(network, inputs, targets, **loss_kwargs)
        return terms if terms.dtype == torch.float64 else terms.float()

    return cast


@contextmanager
def same_bits(wanted: bool) -> Iterator[None]:
    """For the time of the block let PyTorch take, if ``wanted``, only kernels whose results repeat bit by bit.

    On the CPU all do. On CUDA what has no such kernel raises a RuntimeError that names it.
    """
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn, workspace = torch.backends.cudnn, os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    chosen = cudnn.deterministic, cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.deterministic, cudnn.benchmark = chosen
        if workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@contextmanager
def matrix_products(precision: Precision) -> Iterator[None]:
    """Allow or forbid TF32 on CUDA devices for the time of the block."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    allowed = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = allowed, allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

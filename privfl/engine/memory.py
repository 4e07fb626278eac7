"""How many clients fit into memory at once."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import Workspace
from privfl.privacy.clipping.per_sample import GradSampleMode
from privfl.privacy.clipping.whole_rows import BYTES, in_whole_rows
from privfl.privacy.door.keeper import ROWS_AT_ONCE

SHARE = 0.25
"""Share of the free memory that a chunk may take by the estimate; the rest is for what the estimate leaves out."""

ENOUGH, FEWEST = 1 << 26, 4
"""Bytes from which on a chunk on a CPU gains little, and with several times as many loses; and how few clients it may
always have. On an AMD EPYC 1,000 clients of a small CNN take 0.34 to 0.39 s with 32 to 256 at once and 0.51 s with
500, under DP-SGD 0.80 s with 64, 0.70 with 128, 0.97 with 256 and 1.40 with 500; 100,000 such clients fit in 2.4 GB."""


def largest_chunk(loop: LoopEngine, way: GradSampleMode | None, share: int) -> int:
    """The most clients that a chunk should have, of the ``share`` of a cohort that each worker trains.

    It fits into the free memory beside those of the other workers. On a CPU a share that is much larger than what a
    chunk gains by goes in equal parts, so that memory does not grow with the cohort.
    """
    each = bytes_per_client(loop, way)
    if loop.device.type == "cpu":
        share = math.ceil(share / max(1, round(share / max(FEWEST, int(ENOUGH / each)))))
    return min(share, int(SHARE * free_bytes(loop.device) / loop.workers / each))


def bytes_per_client(loop: LoopEngine, way: GradSampleMode | None) -> float:
    """Bytes that one client of a stack takes: parameters and their companions, activations, per-sample gradients."""
    network = Workspace.build(loop.task.model(0), loop.device, None).own
    inputs, _ = loop.task.probe(2)
    seen: list[int] = []
    laid_out = loop.device.type == "cuda"

    def note(module: nn.Module, _: object, output: object) -> None:
        seen.append(_elements(output))
        if laid_out and isinstance(module, nn.Conv2d):  # windows there, and as many numbers on their way back
            seen.append(_elements(output) // module.out_channels * module.weight[0].numel())

    hooks = [module.register_forward_hook(note) for module in network.module.modules() if not list(module.children())]
    try:
        with torch.no_grad():
            network.module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    rows = min(loop.training.batch_size * (2 if way else 1), int(loop.task.clients.sizes.max()), ROWS_AT_ONCE)
    activations = rows * (inputs[0].numel() + 3 * sum(seen) / len(inputs))
    whole = way is not None and in_whole_rows(loop.device, loop.training.batch_size, network.layout.size)
    formed = rows * network.layout.size * (BYTES / 4 if whole else way == "vmap")
    return float(network.flat.element_size() * (8 * network.layout.size + activations + formed))


def _elements(output: object) -> int:
    if isinstance(output, Tensor):
        return output.numel()
    return sum(_elements(part) for part in output) if isinstance(output, tuple | list) else 0


def free_bytes(device: torch.device) -> float:
    """Bytes of memory that are free on ``device``."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:  # Linux fills memory with copies of files, and gives them up when it is asked: they count as free
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return 1024 * next(float(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system tells; two GiB are there
        return float(2 << 30)

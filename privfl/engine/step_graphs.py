"""Plain gradients of a stack as one launch: a pass that comes again and again is recorded as a CUDA graph.

A pass of small kernels keeps the host busier than the device. Recorded, its kernels are launched at once, on tensors of
fixed places into which parameters, rows and masks are copied. Whether what comes out is what the pass itself gives is
tried once for each recording; where it is not, or memory does not hold it, a warning says so, and the pass stays as it
was.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privfl.engine.dropout import StreamDropout
from privfl.privacy.clipping.stacked import StackedBatch

OFTEN, MOST = 8, 4
"""How often a pass must have come before it is recorded, and how many recordings there are: each keeps its memory."""
CLOSE = 1e-4
"""Largest difference from the pass itself, relative to the largest value: some kernels add up in another order."""
Masks = list[tuple[StreamDropout, Tensor]]
"""Which values of each drop-out layer are kept, in the order in which layers draw."""
Pass = Callable[[Tensor, StackedBatch, Masks], Tensor]
"""The gradient [clients, size] of parameters [clients, size] and a batch, by these masks; without any they are drawn,
and left there."""


@dataclass(frozen=True)
class Recording:
    """A graph, the tensors it reads, and the one it writes."""

    graph: torch.cuda.CUDAGraph
    parameters: Tensor
    batch: StackedBatch
    masks: Masks
    gradient: Tensor

    def replay(self, parameters: Tensor, batch: StackedBatch) -> Tensor:
        """The gradient of other numbers, with new masks; the next call overwrites it."""
        self.parameters.copy_(parameters)
        self.batch.inputs.copy_(batch.inputs)
        self.batch.targets.copy_(batch.targets)
        if self.batch.mask is not None and batch.mask is not None:
            self.batch.mask.copy_(batch.mask)
        for layer, mask in self.masks:
            assert layer.stack is not None
            mask.copy_(layer.kept(mask.shape, layer.stack, layer.counts, mask.device))
        self.graph.replay()
        return self.gradient


class StepGraphs:
    """The recordings of one stack's passes."""

    def __init__(self, work: Pass) -> None:
        self._work = work
        self._seen: Counter[Hashable] = Counter()
        self._kept: dict[Hashable, Recording] = {}
        self._refused = False

    def gradient(self, parameters: Tensor, batch: StackedBatch, *, passing: bool) -> Tensor:
        """What the pass gives; a ``passing`` answer may be overwritten by the next one."""
        key = (parameters.shape, batch.inputs.shape, batch.mask is None)
        if key in self._kept:
            gradient = self._kept[key].replay(parameters, batch)
            return gradient if passing else gradient.clone()
        masks: Masks = []
        found = self._work(parameters, batch, masks)
        self._seen[key] += 1
        if self._seen[key] == OFTEN and len(self._kept) < MOST and not self._refused:
            self._record(key, parameters, batch, masks, found)
        return found

    def _record(self, key: Hashable, parameters: Tensor, batch: StackedBatch, masks: Masks, expected: Tensor) -> None:
        """Record the pass whose masks and answer are at hand."""
        mask = None if batch.mask is None else batch.mask.clone()
        own = replace(batch, inputs=batch.inputs.clone(), targets=batch.targets.clone(), mask=mask)
        fixed, given = [(layer, one.clone()) for layer, one in masks], parameters.clone()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                gradient = self._work(given, own, fixed)
            graph.replay()
            away = float((gradient - expected).abs().max()) / float(expected.abs().max().clamp_min(1e-30))
        except RuntimeError as error:  # of memory, or of a kernel that cannot be recorded
            self._refuse(str(error).strip().partition("\n")[0] or type(error).__name__)
            return
        if away <= CLOSE:
            self._kept[key] = Recording(graph, given, own, fixed, gradient)
        else:
            self._refuse(f"the recording is off by {away:.1g} of the largest value")

    def _refuse(self, why: str) -> None:
        self._refused = True
        said = f"steps are launched kernel by kernel, because they cannot be recorded as a CUDA graph: {why}"
        warnings.warn(said, RuntimeWarning, stacklevel=2)

"""What it costs that a model of one's own sees one row at a time: ``python benchmarks/row_wise.py``.

The same network three ways, interleaved in one process, one thread, batches of 32 images 28×28: seen as a batch (as
what is known may be), one row at a time, and by ``vmap(grad)``; for one client and for five stacked ones.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workload import interleaved

from privfl.federation.task import cross_entropy
from privfl.models import build
from privfl.models.flat_network import FlatNetwork
from privfl.models.layouts import lay_channels_innermost
from privfl.privacy.clipping.per_sample import GradSampleMode, PerSampleGradients
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients

CLIENTS, ROWS = 5, 32


class Own(nn.Module):
    """A shipped network by a class of one's own, whose forward pass nobody knows."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner = build(name, (1, 28, 28), 10, seed=0)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, 10]."""
        return F.relu(self.inner.head(self.inner.body(images)))


def clipper(module: nn.Module, way: GradSampleMode) -> PerSampleGradients:
    """As the loop engine lays it out."""
    if way != "vmap":
        lay_channels_innermost(module)
    return PerSampleGradients(FlatNetwork(module), way)


def measure(name: str, repeats: int) -> None:
    """Print what the ways take for ``name``."""
    inputs, targets = torch.randn(CLIENTS, ROWS, 1, 28, 28), torch.randint(10, (CLIENTS, ROWS))
    batch, work = StackedBatch(inputs, targets, None, {}), {}
    ways: dict[str, GradSampleMode] = {"batch": "layers", "rows": "layers", "vmap(grad)": "vmap"}
    for kind, way in ways.items():
        module = nn.Sequential(build(name, (1, 28, 28), 10, seed=0), nn.ReLU()) if kind == "batch" else Own(name)
        loop, stack = clipper(module, way), StackedGradients(FlatNetwork(Own(name)), way)
        if kind == "batch":
            stack = StackedGradients(FlatNetwork(nn.Sequential(build(name, (1, 28, 28), 10), nn.ReLU())), way)
        parameters = loop.network.flat.expand(CLIENTS, -1).clone()
        work[f"loop {kind}"] = lambda loop=loop: loop.clipped_sum(cross_entropy, inputs[0], targets[0], 1.0)
        work[f"stack {kind}"] = lambda stack=stack, at=parameters: stack.clipped_sum(cross_entropy, at, batch, 1.0)
    seconds = {kind: min(taken) for kind, taken in interleaved(work, repeats).items()}
    for engine in ("loop", "stack"):
        base = seconds[f"{engine} batch"]
        parts = [
            f"{kind} {1000 * seconds[f'{engine} {kind}']:.2f} ms ({seconds[f'{engine} {kind}'] / base:.2f})"
            for kind in ways
        ]
        print(f"{name:9s} {engine:5s} " + "  ".join(parts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, repeats in (("tiny-cnn", 100), ("two-nn", 30), ("two-cnn", 8)):
        measure(name, repeats)

"""What a model says about examples, which membership attacks are made of: confidences, losses, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.auxiliary import Records
from privfl.models.flat_network import FlatNetwork, Layout

Factory = Callable[[int], nn.Module]
ROWS = 1000
GRADIENT_VALUES = 1 << 22
"""Values of per-example gradients that are held at once: 16 MiB; of larger blocks the system clears every page anew."""


class Models:
    """One network that is evaluated at many parameter vectors."""

    def __init__(self, factory: Factory) -> None:
        self._network = FlatNetwork(factory(0))
        self._network.module.eval()

    @property
    def layout(self) -> Layout:
        """Where each parameter lies in a vector."""
        return self._network.layout

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits [n, C] at ``parameters`` [size], in evaluation mode."""
        with torch.no_grad(), self._network.at(parameters.to(self._network.flat.dtype)):
            return torch.cat([self._network.module(rows).clone() for rows in torch.split(inputs, ROWS)])

    def gradients(self, parameters: Tensor, records: Records) -> Iterator[Tensor]:
        """Gradients [chunk, size] of the cross-entropy of each record, chunk by chunk, in order."""
        module = self._network.module
        named = {name: view.clone() for name, view in self.layout.named_views(parameters.detach()).items()}

        def loss(weights: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
            logits = functional_call(module, weights, (one[None],))
            return F.cross_entropy(logits, target[None])

        each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        chunk = max(1, GRADIENT_VALUES // self.layout.size)
        for inputs, targets in zip(
            *(torch.split(part, chunk) for part in (records.inputs, records.targets)), strict=True
        ):
            found = each(named, inputs, targets)
            yield torch.cat([found[name].flatten(1) for name in self.layout.names], 1)


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy [..., n], float64, from ``logits`` [..., n, C] and ``targets`` int64 [n]."""
    return -true_log_probability(logits, targets)


def true_log_probability(logits: Tensor, targets: Tensor) -> Tensor:
    """log p_y [..., n], float64, from ``logits`` [..., n, C]."""
    logs = torch.log_softmax(logits.double(), -1)
    return logs.gather(-1, _chosen(logits, targets)).squeeze(-1)


def logit_confidence(logits: Tensor, targets: Tensor) -> Tensor:
    """φ = log(p_y / (1 − p_y)) [..., n], float64 (Carlini et al., S&P 2022, equation 2).

    Computed as ``log p_y − logsumexp over c ≠ y of log p_c``, which stays finite and exact where p_y rounds to 1.
    """
    wide = logits.double()
    place = _chosen(wide, targets)
    own = wide.gather(-1, place).squeeze(-1)
    return own - torch.logsumexp(wide.scatter(-1, place, -torch.inf), -1)


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest of ``logits`` [..., n, C] is that of the target, else 0; float64 [..., n]."""
    return (logits.argmax(-1) == targets).double()


def _chosen(logits: Tensor, targets: Tensor) -> Tensor:
    return targets.expand(logits.shape[:-1]).unsqueeze(-1)

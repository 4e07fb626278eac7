"""What a per-sample gradient rule is: norms first, then the clipped sum.

A rule receives, for every call of its layer in one forward pass, the layer's input and the gradient that arrived at its
output, both with the samples along the first dimension. A layer that was called several times (a recurrent cell) is
one layer whose calls are joined along a time dimension. Samples of several clients lie one client after the other,
equally many for each, or (``by_rows``, for rules that form their gradients) the first samples of all clients before the
second ones; the places that sums are written to have a first dimension of clients, which is 1 in the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

from torch import Tensor, nn

from privfl.privacy.clipping.factors import Clipping
from privfl.privacy.loss import Loss

Calls = list[tuple[Tensor, Tensor]]
Formed = dict[str, Tensor]
"""Per-sample gradients [B, values] of a layer, by parameter name; what only rules that form gradients can be given."""
Places = dict[str, Tensor]
"""Where the sums go: ``[clients, *shape]`` for each trained parameter of a layer, by its name."""


class Rule(Protocol):
    """What a layer contributes to the norms and to the clipped sum of per-sample gradients."""

    takes_rows_first: ClassVar[bool]
    forms_rows: ClassVar[bool]
    """Whether :meth:`gradients` can be asked, and gives the same bits whenever it is."""

    def receive(self, calls: Calls | Formed, *, apart: bool = False) -> None:
        """Take the (input, gradient of the output) pairs of this pass, or the gradients that were formed of them.

        ``apart``: the layer saw one sample at a time; then what follows the first dimension is all that it received
        for one sample, with a batch dimension of its own, whatever its length, or without one.
        """

    def squared_norms(self) -> Tensor:
        """Squared L2 norm [B], in float64, of each sample's gradient of this layer's parameters.

        Where the sum is not made of gradients that were formed, it is large enough to cover the sum's rounding.
        """

    def write_clipped_sum(self, clipping: Clipping, places: Places, *, by_rows: bool = False) -> None:
        """Write each client's Σ factors_i·gradient_i into ``places``."""

    def gradients(self) -> dict[str, Tensor]:
        """Instead of the two: each sample's gradient [B, values] of every trained parameter, by its name."""


class SumRule:
    """A rule that can write the plain sum of its layer's gradients for less than autograd."""

    def write_sum(self, calls: Calls, places: Places) -> None:
        """Write the sum over samples and calls into ``places``, which have one client."""
        raise AssertionError("every subclass writes its own sums")


class Arrivals(Protocol):
    """What layers receive and what arrives at their outputs in one pass of a network, without autograd."""

    def serves(self, loss: Loss) -> bool:
        """Whether the gradient of ``loss`` can arrive."""

    def arrivals(self, loss: Loss, inputs: Tensor, targets: Tensor) -> Iterable[tuple[nn.Module, Calls | Formed]]:
        """Every layer that has parameters, called once; its input and the gradient at its output, both [B, ...].

        Or, of a layer whose rule forms gradients, these.
        """

"""The door of one client: what the loop engine's algorithms see."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from privfl.data.mapped import MappedRows, Rows
from privfl.devices import in_one_copy
from privfl.models.flat_network import FlatNetwork
from privfl.models.module_state import ModuleState
from privfl.privacy.clipping.known import known_function, known_ranks
from privfl.privacy.clipping.lengths import Lengths, padded, passes, public_values
from privfl.privacy.clipping.per_sample import PerSampleGradients, evaluating
from privfl.privacy.clipping.row_wise import each_row
from privfl.privacy.door.batch_plans import Plan
from privfl.privacy.door.dpsgd import DPSGD
from privfl.privacy.door.keeper import ROWS_AT_ONCE, ClientSlot, DoorKeeper, DrawnBatch, Given, LocalOnly, StepNumbers
from privfl.privacy.door.log import BARE_GRADIENT
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.door.precision import Precision, in_precision
from privfl.privacy.door.step_draws import Draws
from privfl.privacy.loss import BodyAndHead, Loss, asks_for_features, is_coupled


class Unaided(Protocol):
    """Plain gradients of some losses without autograd, of the network of a door."""

    def serves(self, loss: Loss) -> bool:
        """Whether this computes the gradient of ``loss``."""

    def writes(self, loss: Loss) -> bool:
        """Whether :meth:`write_gradient` takes ``loss``: one that this serves, or another."""

    def taken_apart(self) -> BodyAndHead:
        """The network's features, and its head, if this takes losses of features."""

    def write_gradient(self, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float) -> None:
        """Write the gradient of the sum of ``loss`` over ``divisor`` into the network's gradient buffer."""

    def descend(self, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float, rate: float) -> None:
        """Subtract ``rate`` times that gradient from the network's parameters."""


Piece = tuple[Tensor, Tensor, Tensor | None]
"""Inputs and targets of one pass, and a mask that tells rows from padding."""


def _nobody(present: int | None, length: int) -> None:
    """Networks without drop-out need no word of padding."""


class ClientDoor(DoorKeeper):
    """One client's data during one round; gradients lie in the buffer of ``network``.

    What is clipped is computed in passes of ``lengths`` that round a row alike whatever else is in its batch; before
    each of them ``announce`` is told how many rows are present, and how long it is. Plain gradients come from
    ``unaided`` where that serves.
    """

    def __init__(
        self,
        slot: ClientSlot,
        inputs: Rows,
        targets: Tensor,
        network: FlatNetwork,
        clipper: PerSampleGradients | None,
        loss: Loss,
        dpsgd: DPSGD | None,
        totals: Sequence[NoisyTotal] = (),
        precision: Precision = "float32",
        state: ModuleState | None = None,
        local_only: LocalOnly = "undeclared",
        lengths: Lengths | None = None,
        announce: Callable[[int | None, int], None] = _nobody,
        unaided: Unaided | None = None,
    ) -> None:
        super().__init__([slot], inputs, targets, loss, dpsgd, totals, precision, state, local_only)
        self._network, self._clipper = network, clipper
        self._lengths, self._announce, self._unaided = lengths, announce, unaided

    def _gather(
        self, plans: Sequence[Plan], rows: Sequence[Tensor], last: Sequence[bool], draws: Sequence[Draws]
    ) -> DrawnBatch:
        (own,) = rows
        known = torch.tensor([len(own), last[0]], dtype=torch.float64)
        drawn = draws[0].next(self._network.flat.dtype)
        places, (count, flag), uniform, normal = in_one_copy([own, known, *drawn], self._targets.device)
        numbers = StepNumbers(count, flag, uniform, normal)
        inputs = self._inputs[own if isinstance(self._inputs, MappedRows) else places]
        return DrawnBatch(numbers, plans, [len(own)], places, inputs, self._targets[places])

    def descend(self, rate: float) -> None:
        """What a step of plain SGD does with the current batch: take its gradient, as any step, and go along it."""
        batch, unaided, network = self._current, self._unaided, self._network
        assert batch is not None
        if self._dpsgd is not None:
            release = self._release(self.loss, batch, self._dpsgd)
            self._forget()
            total, (divisor,) = release(network.flat, {})
            network.flat.add_(total, alpha=-rate / divisor)
            return
        if unaided is None or not unaided.serves(self.loss) or not 0 < len(batch.rows) <= ROWS_AT_ONCE:
            network.flat.add_(self.gradient(self.loss, network.flat, batch), alpha=-rate)
            return
        (divisor,) = batch.divisors()
        self._note(BARE_GRADIENT)
        unaided.descend(self.loss, batch.inputs, batch.targets, divisor, rate)

    def _mean(
        self, loss: Loss, batch: DrawnBatch, parameters: Tensor, loss_kwargs: Given, wrt: str | None = None
    ) -> Tensor:
        network, (divisor,) = self._network, batch.divisors()
        loss_kwargs, leaf = _with_leaf(loss_kwargs, wrt)
        whole, bare = is_coupled(loss), _bound(loss, _with_presence(loss, batch, loss_kwargs))
        unaided = self._unaided if leaf is None and self._writes(bare) else None
        loss = self._prepared(loss, batch, loss_kwargs)

        def mean(inputs: Tensor, targets: Tensor) -> Tensor:
            with torch.enable_grad():
                return loss(network.module, inputs, targets).sum() / divisor

        def write(inputs: Tensor, targets: Tensor) -> None:
            if unaided is not None:
                unaided.write_gradient(bare, inputs, targets, divisor)
            elif self._clipper is not None and wrt is None:
                self._clipper.plain_sum(loss, inputs, targets, divisor)
            else:
                self._flat_gradient(mean(inputs, targets), out=network.gradient)

        with network.at(parameters):
            if leaf is None:
                gradient = self._add_up(write, batch, whole=whole)
                return gradient if wrt is None else gradient.clone()
            if len(batch.rows) == 0:
                return torch.zeros_like(leaf)
            return torch.autograd.grad(mean(batch.inputs, batch.targets), leaf)[0]

    def _writes(self, loss: Loss) -> bool:
        """Whether the gradient of ``loss``, with all that it takes by name, is formed without the network."""
        return self._unaided is not None and self._network.module.training and self._unaided.writes(loss)

    def _clipped_sum(
        self, loss: Loss, batch: DrawnBatch, parameters: Tensor, loss_kwargs: Given, max_grad_norm: float
    ) -> Tensor:
        clipper, network = self._clipper, self._network
        assert clipper is not None
        key = self._key("gradient of one", loss, loss_kwargs)
        given, loss = loss, self._prepared(loss, batch, loss_kwargs)
        key = (key, clipper.goes_unaided(loss))  # other kernels

        def shown(inputs: Tensor, targets: Tensor) -> Tensor:
            return clipper.norms(self._prepared(given, batch, self._tried(loss_kwargs)), inputs, targets)

        with network.at(parameters):
            several: Tensor | None = None
            for inputs, targets, mask in self._steady(batch, key, shown):
                clipper.clipped_sum(loss, inputs, targets, max_grad_norm, mask, len(batch.rows))
                if len(inputs) < len(batch.rows):
                    several = torch.zeros_like(network.gradient, dtype=torch.float64) if several is None else several
                    several += network.gradient
            if len(batch.rows) == 0:
                if self._lengths is not None and not known_function(given):  # which may not learn that nobody asks
                    self._on_public(self._lengths, shown)
                network.gradient.zero_()
            return network.gradient if several is None else several

    def _total(
        self,
        statistic: Loss,
        batch: DrawnBatch,
        parameters: Tensor,
        loss_kwargs: Given,
        clip: Callable[[Tensor], Tensor] | None,
    ) -> tuple[Tensor, torch.dtype]:
        sums = []
        module = self._network.module
        apart = clip is not None and len(batch.rows) > 0
        apart = apart and not (batch.inputs.dim() in known_ranks(module) and known_function(statistic))
        whole = each_row if apart else _as_it_is
        unaided = self._unaided if clip is None and self._precision == "float32" else None
        asked: Any = module
        if unaided is not None and unaided.writes(statistic) and asks_for_features(statistic):
            asked = unaided.taken_apart()

        def shown(inputs: Tensor, targets: Tensor) -> Tensor:
            return whole(statistic, module, inputs, targets, self._tried(loss_kwargs)).double()

        pieces: Iterable[Piece] = ((*piece, None) for piece in _pieces(batch))
        if clip is not None and len(batch.rows) > 0:
            pieces = self._steady(batch, self._key("total of one", statistic, loss_kwargs), shown)
        with evaluating(module), self._network.at(parameters), torch.no_grad():
            for inputs, targets, mask in pieces:
                values = whole(statistic, asked, inputs, targets, loss_kwargs)
                values = values if mask is None else values[mask]
                sums.append((values if clip is None else clip(values)).sum(0))
        return torch.stack(sums).sum(0), values.dtype

    def _steady(self, batch: DrawnBatch, key: Hashable, shown: Callable[[Tensor, Tensor], Tensor]) -> Iterator[Piece]:
        """The passes that ``batch`` takes, each as long as it needs to be for its rows to be rounded alike.

        ``shown`` gives, in float64, what shows how each row of a batch is rounded.
        """
        lengths = self._lengths
        if lengths is None:
            yield from ((*piece, None) for piece in _pieces(batch) if len(piece[0]))
            return

        def run(inputs: Tensor, targets: Tensor) -> Tensor:
            self._announce(0, 1)
            with self._network.at(lengths.public.parameters):
                return shown(inputs, targets)

        for rows, length in passes(len(batch.rows), ROWS_AT_ONCE, partial(lengths.of, key, run)):
            self._forget()
            inputs, targets = batch.inputs[rows], batch.targets[rows]
            self._announce(len(inputs), length)
            if len(inputs) == length:
                yield inputs, targets, None
            else:
                mask = torch.arange(length, device=targets.device) < len(inputs)
                yield padded(inputs, length), padded(targets, length), mask
        self._announce(None, 1)

    def _on_public(self, lengths: Lengths, shown: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Take a pass over a public row, of which nothing is used."""
        self._forget()
        self._announce(0, 1)
        with self._network.at(lengths.public.parameters):
            shown(*lengths.public.batch(1))
        self._announce(None, 1)

    def _key(self, question: str, function: Loss, loss_kwargs: Given) -> Hashable:
        """What is asked for, as far as kernels may differ by it."""
        lengths = self._lengths
        return None if lengths is None else lengths.key(question, function, loss_kwargs, plain=function is self.loss)

    def _tried(self, loss_kwargs: Given) -> Given:
        """What stands for ``loss_kwargs`` where lengths of passes are tried."""
        if self._lengths is None or not loss_kwargs:
            return loss_kwargs
        return public_values(loss_kwargs, self._lengths.public.parameters)

    def _value(
        self, function: Callable[..., Tensor], parameters: Tensor, loss_kwargs: Given, wrt: str | None = None
    ) -> Tensor:
        loss_kwargs, leaf = _with_leaf(loss_kwargs, wrt)
        module = self._network.module
        with evaluating(module), self._network.at(parameters):
            if wrt is None:
                with torch.no_grad():
                    return function(module, **loss_kwargs).clone()
            with torch.enable_grad():
                total = function(module, **loss_kwargs).sum()
            return self._flat_gradient(total) if leaf is None else torch.autograd.grad(total, leaf)[0]

    def _sizes(self, sizes: Sequence[float]) -> Tensor:
        return torch.full((), sizes[0], dtype=torch.float64, device=self._targets.device)

    def _prepared(self, loss: Loss, batch: DrawnBatch, loss_kwargs: Given) -> Loss:
        """``loss`` with what it takes by name, in the run's precision."""
        bound = _bound(loss, _with_presence(loss, batch, loss_kwargs))
        return in_precision(bound, self._precision, self._network.flat.device)

    def _flat_gradient(self, value: Tensor, out: Tensor | None = None) -> Tensor:
        """Gradient [size] of the scalar ``value`` for the parameters."""
        return torch.cat([gradient.reshape(-1) for gradient in self._network.gradient_of(value)], out=out)

    def _add_up(self, write: Callable[[Tensor, Tensor], object], batch: DrawnBatch, *, whole: bool = False) -> Tensor:
        """The network's gradient buffer with the sum of what ``write`` puts there for every piece of ``batch``."""
        gradient = self._network.gradient
        if len(batch.rows) > 0 and (len(batch.rows) <= ROWS_AT_ONCE or whole):
            write(batch.inputs, batch.targets)
            return gradient
        total = torch.zeros_like(gradient)
        for inputs, targets in _pieces(batch):
            if len(inputs):
                write(inputs, targets)
                total += gradient
        return gradient.copy_(total)


def _as_it_is(function: Loss, network: nn.Module, inputs: Tensor, targets: Tensor, loss_kwargs: Given) -> Tensor:
    return function(network, inputs, targets, **loss_kwargs)


def _with_presence(loss: Loss, batch: DrawnBatch, loss_kwargs: Given) -> Given:
    """``loss_kwargs``, and to a coupled loss that all rows of ``batch`` are present."""
    if not is_coupled(loss):
        return loss_kwargs
    return {**loss_kwargs, "present": torch.ones(len(batch.rows), dtype=torch.bool, device=batch.rows.device)}


def _bound(loss: Loss, loss_kwargs: Given) -> Loss:
    """``loss`` with what it takes by name."""
    return partial(loss, **loss_kwargs) if loss_kwargs else loss


def _with_leaf(loss_kwargs: Given, wrt: str | None) -> tuple[Given, Tensor | None]:
    """``loss_kwargs`` with its tensor called ``wrt`` as a leaf, and that leaf; there is none for the parameters."""
    if wrt is None or wrt == "parameters":
        return loss_kwargs, None
    leaf = loss_kwargs[wrt].detach().requires_grad_()
    return {**loss_kwargs, wrt: leaf}, leaf


def _pieces(batch: DrawnBatch) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets in pieces of at most ``ROWS_AT_ONCE`` rows; one empty piece of an empty batch."""
    return zip(torch.split(batch.inputs, ROWS_AT_ONCE), torch.split(batch.targets, ROWS_AT_ONCE), strict=True)

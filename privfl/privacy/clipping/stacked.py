"""Gradients of many clients' models in one kernel: parameters [clients, size], batches [clients, B, ...].

The forward pass of one client is stacked over the cohort by ``torch.func.vmap``; the backward pass is ordinary
autograd outside of it. Clipped sums go the same two ways as for one client (:mod:`privfl.privacy.clipping.per_sample`)
and by the same rules: what a layer received and what arrived at its output are shown as they lie in memory
(:mod:`privfl.privacy.clipping.row_wise`), so that a cohort is to a rule only a longer batch. What is not known to work
row by row runs in a stack of rows within the stack of clients.

Padding never changes a result: padded rows repeat a row of their own client's batch and enter no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.factors import Clipping, norms_along, zero_like, zero_unless
from privfl.privacy.clipping.guard import CLIENT, Made
from privfl.privacy.clipping.known import known_function, known_ranks
from privfl.privacy.clipping.layer_rules import rule_for
from privfl.privacy.clipping.lengths import padded
from privfl.privacy.clipping.per_sample import (
    BY_RULES,
    GradSampleMode,
    LossModule,
    evaluating,
    trained_parameters,
    widened,
)
from privfl.privacy.clipping.quiet_vmap import vmap
from privfl.privacy.clipping.row_wise import Watch, each_row, said_of
from privfl.privacy.clipping.rule import Places, Rule
from privfl.privacy.clipping.whole_rows import clipped_rows
from privfl.privacy.loss import Loss
from privfl.products import at_even_places

Given = dict[str, tuple[Tensor, int | None]]
"""What a loss takes besides the batch: a tensor and the dimension of the clients in it, ``None`` if all share it."""


@dataclass(frozen=True)
class StackedBatch:
    """Rows of every client: ``inputs`` and ``targets`` [clients, B, ...], and what the loss takes besides.

    ``mask`` [clients, B] tells rows from padding; ``None`` if there is no padding. ``together`` rows of each client are
    added up, in all passes; ``None`` says that all columns of this one are. ``fixed``: B is a public number, the same
    whoever is stacked, so that rows may be added up in whatever way is quickest for it.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None
    loss_kwargs: Given
    together: Sequence[int] | None = None
    fixed: bool = False

    def of(self, clients: Sequence[int]) -> StackedBatch:
        """The rows of some ``clients``, in that order, without columns that are padding for all of them."""
        assert self.together is not None
        index, counts = torch.tensor(clients, device=self.targets.device), [self.together[place] for place in clients]
        columns = max(*counts, 1)
        inputs, targets = (part[:, :columns].index_select(0, index) for part in (self.inputs, self.targets))
        mask = None if self.mask is None else self.mask[:, :columns].index_select(0, index)
        given = {
            name: (value if dim is None else value.index_select(dim, index), dim)
            for name, (value, dim) in self.loss_kwargs.items()
        }
        return StackedBatch(inputs, targets, mask, given, counts)

    def part(self, *, clients: slice, stack: int, rows: slice, length: int) -> StackedBatch:
        """Some ``rows`` of some ``clients``, padded to the ``length`` of a pass and to a ``stack`` of clients."""
        inputs, targets = (padded(part[clients, rows], length, 1) for part in (self.inputs, self.targets))
        mask, missing = self.mask, length - (rows.stop - rows.start)
        if mask is not None:
            mask = mask[clients, rows]
        elif missing > 0:
            mask = torch.ones(targets.shape[0], rows.stop - rows.start, dtype=torch.bool, device=targets.device)
        if mask is not None and missing > 0:
            mask = torch.cat([mask, zero_like(mask).expand(len(mask), missing)], dim=1)
        inputs, targets = at_even_places(padded(inputs, stack)), padded(targets, stack)
        given = given_to(self.loss_kwargs, clients, stack)
        mask = None if mask is None else padded(mask, stack)
        together = self.together
        if together is not None:
            together = [*together[clients], *together[clients][:1] * (stack - (clients.stop - clients.start))]
        return StackedBatch(inputs, targets, mask, given, together, self.fixed)

    def rows_only(self, values: Tensor) -> Tensor:
        """``values`` [clients, B, ...], zero where there is padding."""
        mask = self.mask
        if mask is not None and values.dim() > 2:
            mask = mask.view(*mask.shape, *[1] * (values.dim() - 2))
        return values if mask is None else zero_unless(mask, values)


@dataclass(frozen=True)
class Told:
    """A layer's ``rule``, which has received what it clips.

    ``names`` are those of the layer's parameters in the network, by those in the layer; ``places`` says where their
    sums lie in a gradient [clients, size].
    """

    rule: Rule
    names: Mapping[str, str]
    places: Callable[[Tensor], Places]


class UnaidedRules(Protocol):
    """What layers receive and what arrives at their outputs in stacked copies of a network, without autograd."""

    @property
    def values(self) -> int:
        """How many numbers a row is given to the layers as."""

    def serves(self, loss: Loss) -> bool:
        """Whether it is the gradient of ``loss`` that arrives."""

    def rules(self, parameters: Tensor, batch: StackedBatch) -> list[Told]:
        """The rules of all layers, who have received it of ``batch``."""


class StackedGradients:
    """Gradients, clipped sums and statistics of stacked copies of one network."""

    def __init__(self, network: FlatNetwork, way: GradSampleMode | None) -> None:
        """``way`` forms per-sample gradients, ``None`` without DP-SGD; ``network`` serves as the template."""
        self.module, self.layout, self.way = network.module, network.layout, way
        self.like = network.flat
        """A tensor of the parameters' kind."""
        self._trained = [parameter.requires_grad for parameter in network.parameters]
        self._known = frozenset() if way == "rows" else known_ranks(network.module)
        self._watch = Watch()
        self.unaided: UnaidedRules | None = None
        """Hands the rules of layers what they clip, where it serves; only ways ``BY_RULES`` ask it."""
        self.whole_rows = False
        """Whether every row's gradient is formed whole, where all rules can."""
        self.guarded = False
        """Whether a claim rests on clients staying apart, so that what is not known to keep them so runs guarded."""
        self._rules: dict[nn.Module, Rule] = {}
        self._names: dict[nn.Module, dict[str, str]] = {}
        if way in BY_RULES:
            for prefix, module in self.module.named_modules():
                own = [name for name, _ in trained_parameters(module)]
                rule = rule_for(module)
                if own and rule is not None:
                    self._rules[module] = rule(module, frozenset(own))
                    self._names[module] = {name: f"{prefix}.{name}" if prefix else name for name in own}
                    module.register_forward_hook(self._watch.show)

    def plain_sum(self, loss: Loss, parameters: Tensor, batch: StackedBatch, wrt: str = "parameters") -> Tensor:
        """Gradient [clients, ...] of each client's sum of ``loss`` over its rows, for the tensor called ``wrt``."""
        parameters, loss_kwargs, leaf = self._leaf(parameters, batch.loss_kwargs, wrt)
        with torch.enable_grad():
            total = batch.rows_only(self._of_each(loss, parameters, loss_kwargs, batch.inputs, batch.targets)).sum()
        return torch.autograd.grad(total, leaf)[0]

    def clipped_sum(self, loss: Loss, parameters: Tensor, batch: StackedBatch, max_grad_norm: float) -> Tensor:
        """Each client's sum [clients, size] of per-sample gradients clipped to ``max_grad_norm``."""
        return self._clipped(loss, parameters, batch, max_grad_norm)[0]

    def norms(self, loss: Loss, parameters: Tensor, batch: StackedBatch) -> Tensor:
        """Norms [clients, B] of per-sample gradients in float64, in which every bit of a row shows."""
        return self._clipped(loss, parameters, batch, 1.0)[1].norms

    def _clipped(
        self, loss: Loss, parameters: Tensor, batch: StackedBatch, max_grad_norm: float
    ) -> tuple[Tensor, Clipping]:
        if self.unaided is not None and self.goes_unaided(loss, batch.loss_kwargs):
            return self._unaided(self.unaided, parameters, batch, max_grad_norm)
        way = self._by_vmap if self.way == "vmap" else self._by_layers
        return way(loss, parameters, batch, max_grad_norm)

    def goes_unaided(self, loss: Loss, loss_kwargs: Given) -> bool:
        """Whether per-sample gradients of ``loss`` are formed without autograd."""
        return self.way in BY_RULES and self.unaided is not None and not loss_kwargs and self.unaided.serves(loss)

    def _unaided(
        self, unaided: UnaidedRules, parameters: Tensor, batch: StackedBatch, max_grad_norm: float
    ) -> tuple[Tensor, Clipping]:
        with torch.no_grad():
            found, rows = unaided.rules(parameters, batch), batch.targets.shape[:2]
            if self._forms_all(told.rule for told in found):
                formed = {
                    told.names[name]: values.view(*rows, -1)
                    for told in found
                    for name, values in told.rule.gradients().items()
                }
                return self._of_rows(formed, parameters, batch, max_grad_norm)
            squares = torch.zeros(rows, dtype=torch.float64, device=parameters.device)
            for told in found:
                squares += told.rule.squared_norms().view_as(squares)
            clipping = Clipping.of(squares, max_grad_norm, parameters.dtype, batch.together, batch.mask)
            gradient, flat = torch.empty_like(parameters), clipping.mapped(Tensor.flatten)
            for told in found:
                told.rule.write_clipped_sum(flat, told.places(gradient))
        return gradient, clipping

    def _forms_all(self, rules: Iterable[Rule]) -> bool:
        return self.whole_rows and all(rule.forms_rows for rule in rules)

    def _of_rows(
        self, formed: dict[str, Tensor], parameters: Tensor, batch: StackedBatch, max_grad_norm: float
    ) -> tuple[Tensor, Clipping]:
        rows = batch.targets.shape[:2]
        return clipped_rows(formed, self.layout, rows, max_grad_norm, parameters, batch.together, batch.mask)

    def total(
        self, statistic: Loss, parameters: Tensor, batch: StackedBatch, clip: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, torch.dtype]:
        """Each client's sum [clients, ...] of ``statistic`` over its rows, in evaluation mode, without gradients.

        ``clip`` bounds the statistics [rows, ...] of single rows before they are added up; the type that they had
        before is returned too.
        """
        values = self.statistics(statistic, parameters, batch, bounded=clip is not None)
        with torch.no_grad():
            bounded = values if clip is None else clip(values.flatten(0, 1)).view_as(values)
        return batch.rows_only(bounded).sum(1), values.dtype

    def statistics(self, statistic: Loss, parameters: Tensor, batch: StackedBatch, *, bounded: bool) -> Tensor:
        """``statistic`` [clients, B, ...] of every row in evaluation mode; rows to be ``bounded`` stay apart."""
        apart = bounded and not self._serves_batches(statistic, batch)
        with evaluating(self.module), torch.no_grad():
            return self._of_each(statistic, parameters, batch.loss_kwargs, batch.inputs, batch.targets, apart=apart)

    def value(self, function: Loss, parameters: Tensor, loss_kwargs: Given, wrt: str | None = None) -> Tensor:
        """Each client's ``function(network, **given)`` [clients, ...] in evaluation mode.

        With ``wrt`` the gradient of its sum for the tensor of that name instead.
        """
        with evaluating(self.module):
            if wrt is None:
                with torch.no_grad():
                    return self._of_each(function, parameters, loss_kwargs)
            parameters, loss_kwargs, leaf = self._leaf(parameters, loss_kwargs, wrt)
            with torch.enable_grad():
                total = self._of_each(function, parameters, loss_kwargs).sum()
        return torch.autograd.grad(total, leaf, allow_unused=True, materialize_grads=True)[0]

    @staticmethod
    def _leaf(parameters: Tensor, loss_kwargs: Given, wrt: str) -> tuple[Tensor, Given, Tensor]:
        """``parameters`` and ``loss_kwargs`` with the tensor called ``wrt``, clients first, as a leaf."""
        if wrt == "parameters":
            leaf = parameters.detach().requires_grad_()
            return leaf, loss_kwargs, leaf
        value, dim = loss_kwargs[wrt]
        stacked = value.expand(len(parameters), *value.shape) if dim is None else value.movedim(dim, 0)
        leaf = stacked.detach().clone().requires_grad_()
        return parameters, {**loss_kwargs, wrt: (leaf, 0)}, leaf

    def _views(self, stacked: Tensor) -> dict[str, Tensor]:
        """The parameters as views [clients, *shape] into ``stacked`` [clients, size], by name."""
        parts = torch.split(stacked, list(self.layout.sizes), dim=1)
        named = zip(self.layout.names, self.layout.shapes, parts, strict=True)
        return {name: part.view(len(stacked), *shape) for name, shape, part in named}

    def _weights(self, parameters: Tensor) -> dict[str, Tensor]:
        named = zip(self._views(parameters).items(), self._trained, strict=True)
        return {f"network.{name}": view if trained else view.detach() for (name, view), trained in named}

    def _serves_batches(self, function: Loss, batch: StackedBatch) -> bool:
        """Whether ``function`` may see a client's rows as one batch, because each is known to stay alone."""
        return batch.inputs.dim() - 1 in self._known and known_function(function)

    def _of_each(
        self, function: Loss, parameters: Tensor, loss_kwargs: Given, *batch: Tensor, apart: bool = False
    ) -> Tensor:
        """Each client's ``function(network, *batch, **given)``, stacked; ``apart``: of each of its rows alone."""
        whole = LossModule(self.module, function)
        known = bool(self._known) and known_function(function)
        made = Made(1, CLIENT) if self.guarded and not (apart or known) else None

        def one(views: dict[str, Tensor], loss_kwargs: dict[str, Tensor], *batch: Tensor) -> Tensor:
            def answer(_: nn.Module, *batch: Tensor) -> Tensor:
                value: Tensor = functional_call(whole, views, batch, loss_kwargs)
                return value

            if not apart:
                with nullcontext() if made is None else made.of(None, views, loss_kwargs, batch):
                    return answer(self.module, *batch)
            answer.func = function  # type: ignore[attr-defined]
            inputs, targets = batch
            return each_row(answer, self.module, inputs, targets, watch=self._watch, depth=2)

        values, dims = _apart(loss_kwargs)
        stacked: Tensor = vmap(one, in_dims=(0, dims, *[0] * len(batch)))(self._weights(parameters), values, *batch)
        if made is not None:
            made.check()
        return stacked

    def _by_layers(
        self, loss: Loss, parameters: Tensor, batch: StackedBatch, max_grad_norm: float
    ) -> tuple[Tensor, Clipping]:
        apart = not self._serves_batches(loss, batch)
        with self._watch.watching() as seen, torch.enable_grad():
            leaf = parameters.detach().requires_grad_()
            losses = self._of_each(loss, leaf, batch.loss_kwargs, batch.inputs, batch.targets, apart=apart)
            # Factors are 0 where there is padding; the host of a CPU looks at norms too, and is to see rows alone.
            total = (losses if losses.is_cuda else batch.rows_only(losses)).sum()
        with torch.no_grad():
            outputs = [call.output for calls in seen.values() for call in calls]
            arriving = iter(torch.autograd.grad(total, outputs, allow_unused=True))
            reached: dict[nn.Module, bool] = {}
            for module, calls in seen.items():
                rule = self._rules[module]
                found = [
                    (call, call.arrived(back)) for call, back in zip(calls, arriving, strict=False) if back is not None
                ]
                if not found:
                    continue
                # A stacked convolution leaves the clients in dimension 1: taking its samples as they lie saves a copy.
                by_rows = rule.takes_rows_first and all(call.into == 1 and call.out == 1 for call, _ in found)
                first = 1 if by_rows else 0
                rule.receive(
                    [
                        (
                            widened(call.received.movedim(call.into, first).flatten(0, 1), losses.dtype),
                            widened(back.movedim(call.out, first).flatten(0, 1), losses.dtype),
                        )
                        for call, back in found
                    ],
                    apart=apart,
                )
                reached[module] = by_rows
            if self._forms_all(self._rules[module] for module in reached):
                formed = {
                    self._names[module][name]: _by_clients(values, losses.shape, by_rows=by_rows)
                    for module, by_rows in reached.items()
                    for name, values in self._rules[module].gradients().items()
                }
                return self._of_rows(formed, parameters, batch, max_grad_norm)
            gradient, squares = torch.zeros_like(parameters), torch.zeros_like(losses, dtype=torch.float64)
            for module, by_rows in reached.items():
                norms = self._rules[module].squared_norms()
                squares += norms.view(-1, len(losses)).T if by_rows else norms.view_as(losses)
            clipping = Clipping.of(squares, max_grad_norm, parameters.dtype, batch.together, batch.mask)
            rows_first = clipping.mapped(Tensor.t) if any(reached.values()) else clipping
            flat = {by_rows: one.mapped(Tensor.flatten) for by_rows, one in ((True, rows_first), (False, clipping))}
            views = self._views(gradient)
            for module, by_rows in reached.items():
                places: Places = {name: views[full] for name, full in self._names[module].items()}
                self._rules[module].write_clipped_sum(flat[by_rows], places, by_rows=by_rows)
        return gradient, clipping

    def _by_vmap(
        self, loss: Loss, parameters: Tensor, batch: StackedBatch, max_grad_norm: float
    ) -> tuple[Tensor, Clipping]:
        whole, made = LossModule(self.module, loss), Made(2)

        def one(views: dict[str, Tensor], row: Tensor, target: Tensor, loss_kwargs: dict[str, Tensor]) -> Tensor:
            with made.of(row, target, *views.values(), *loss_kwargs.values()):
                term: Tensor = functional_call(whole, views, (row[None], target[None]), loss_kwargs)[0]
                return term

        values, dims = _apart(batch.loss_kwargs)
        rows = vmap(grad_and_value(one), in_dims=(None, 0, 0, None), randomness="error")
        with torch.no_grad():
            formed, _ = vmap(rows, in_dims=(0, 0, 0, dims))(
                self._weights(parameters), batch.inputs, batch.targets, values
            )
            made.refuse_kept(said_of(loss))
            rows_of = [part.reshape(*part.shape[:2], -1) for part in formed.values()]  # some may be single numbers
            named = zip(self.layout.names, rows_of, self._trained, strict=True)
            if self.whole_rows:
                kept = {name: part for name, part, trained in named if trained}
                return self._of_rows(kept, parameters, batch, max_grad_norm)
            parts = [part if trained else torch.zeros_like(part) for _, part, trained in named]
            squares = torch.stack([norms_along(part).square() for part in parts]).sum(0)
            clipping = Clipping.of(squares, max_grad_norm, parameters.dtype, batch.together, batch.mask)
            return torch.cat([clipping.sums_of(part) for part in parts], dim=1), clipping


def _by_clients(values: Tensor, rows: torch.Size, *, by_rows: bool) -> Tensor:
    """``values`` [clients·B, n], or [B·clients, n] if ``by_rows``, as [clients, B, n]; ``rows`` are [clients, B]."""
    return values.view(*reversed(rows), -1).transpose(0, 1) if by_rows else values.view(*rows, -1)


def given_to(loss_kwargs: Given, clients: slice, stack: int) -> Given:
    """``loss_kwargs`` of some ``clients``, padded to a ``stack`` of them."""
    first, count = clients.start, clients.stop - clients.start
    return {
        name: (value if dim is None else at_even_places(padded(value.narrow(dim, first, count), stack, dim), dim), dim)
        for name, (value, dim) in loss_kwargs.items()
    }


def _apart(loss_kwargs: Given) -> tuple[dict[str, Tensor], dict[str, int | None]]:
    """The tensors of ``loss_kwargs``, and where the clients are in them."""
    return {name: value for name, (value, _) in loss_kwargs.items()}, {
        name: dim for name, (_, dim) in loss_kwargs.items()
    }

"""Sums of per-sample gradients, each clipped to an L2 norm, for little more than one ordinary backward pass.

Four ways, with the same result up to rounding:

* ``layers``: one forward and one backward pass that stops at the outputs of the layers. From a layer's input and the
  gradient of its output follow the norm of every sample's gradient and, once the clipping factors are known, the
  clipped sum (Goodfellow 2015; Li et al. 2022; "book-keeping" of Bu et al. 2023). Linear layers never form per-sample
  gradients; a convolution forms them with one grouped convolution.
  A network that can say both without autograd (:class:`~privfl.privacy.clipping.rule.Arrivals`) does.
* ``rows``: the same, but the forward pass goes by ``torch.func.vmap``, one row in it: for whatever is not known to work
  row by row (:mod:`privfl.privacy.clipping.known`). ``layers`` means this too, for a network or a loss that is not.
* ``vmap``: ``torch.func.vmap(grad)``, for models with parameters outside the layers that the first ways know.
* ``opacus``: the hooks of Opacus (:mod:`privfl.privacy.clipping.opacus_hooks`), the reference to compare with. They see
  whole batches, so networks and losses that are not known are refused.

A per-sample gradient that is not finite counts as zero: one sample must not poison the sum, and leaving it out keeps
the sensitivity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from privfl.errors import ConfigError
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.factors import Clip, Clipping, row_norms
from privfl.privacy.clipping.guard import Made
from privfl.privacy.clipping.known import known_function, known_ranks
from privfl.privacy.clipping.layer_rules import Inputs, LinearRule, rule_for
from privfl.privacy.clipping.opacus_hooks import OpacusHooks
from privfl.privacy.clipping.quiet_vmap import vmap
from privfl.privacy.clipping.row_wise import Seen, Shown, Watch, each_row, said_of
from privfl.privacy.clipping.rule import Arrivals, Calls, Formed, Places, Rule, SumRule
from privfl.privacy.loss import Loss
from privfl.products import filled

GradSampleMode = Literal["layers", "rows", "vmap", "opacus"]
BY_RULES: tuple[GradSampleMode, ...] = ("layers", "rows")
"""The ways by which layers' rules clip what the layers received and what arrived at their outputs."""


class PerSampleGradients:
    """Clipped sums of per-sample gradients of one :class:`FlatNetwork`.

    The clipped gradient of every sample has L2 norm at most ``max_grad_norm``, for every finite input: norms are
    computed in float64, and the bound is shrunk by what rounding may add
    (:func:`~privfl.privacy.clipping.factors.shrunk`).
    """

    def __init__(self, network: FlatNetwork, way: GradSampleMode | None = None) -> None:
        self.network = network
        self.way: GradSampleMode = way or ("layers" if unknown_layers(network.module) == [] else "vmap")
        self._known = frozenset() if way == "rows" else known_ranks(network.module)
        self._recording = self._steady = False
        self._seen: Seen = {}
        self._unfilled: Tensor | None = None
        self._watch = Watch()
        self.unaided: Arrivals | None = None
        """Says without autograd what the layers' rules need, where it serves; only ways ``BY_RULES`` ask it."""
        if self.way == "opacus":
            self._opacus = OpacusHooks(network)
        if self.way in BY_RULES:
            views = dict(zip(map(id, network.parameters), network.gradient_views, strict=True))
            self._rules: dict[nn.Module, Rule] = {}
            self._places: dict[nn.Module, Places] = {}
            inputs = Inputs()
            self._all_trained = all(parameter.requires_grad for parameter in network.parameters)
            for module in network.module.modules():
                own = {name: views[id(parameter)][None] for name, parameter in trained_parameters(module)}
                rule = rule_for(module)
                if own and rule is not None:
                    made = self._rules[module] = rule(module, frozenset(own))
                    if isinstance(made, LinearRule):
                        made.shared = inputs
                    self._places[module] = own
                    if isinstance(module, nn.Linear):
                        module.register_forward_pre_hook(self._fill)
                    module.register_forward_hook(self._record)

    def clipped_sum(
        self,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        max_grad_norm: float,
        mask: Tensor | None = None,
        together: int | None = None,
    ) -> Tensor:
        """Write the sum of clipped per-sample gradients into ``network.gradient``; return the per-sample norms [B].

        ``max_grad_norm`` may be ``inf`` (no clipping). An empty batch gives a zero gradient. Rows for which ``mask``
        [B] is false are padding, and enter no sum. ``together`` rows are added up if there are passes besides this one.

        Raises:
            ConfigError: the loss cannot run one row at a time, or the way is ``opacus`` and the network or the loss is
                not known to work row by row.
        """
        return self.norms(loss, inputs, targets, max_grad_norm, mask, together).to(self.network.flat.dtype)

    def norms(
        self,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        max_grad_norm: float = 1.0,
        mask: Tensor | None = None,
        together: int | None = None,
    ) -> Tensor:
        """:meth:`clipped_sum`, but the norms are in float64, in which every bit of a row shows."""
        if len(inputs) == 0:
            self.network.gradient.zero_()
            return self.network.flat.new_zeros(0)

        def clip(squares: Tensor) -> Clipping:
            return Clipping.of(squares, max_grad_norm, self.network.flat.dtype, together, mask)

        if self.way == "vmap":
            return self._by_vmap(loss, inputs, targets, clip)
        known = self.serves_batches(loss, inputs)
        if self.way == "opacus":
            if not known:
                raise ConfigError(hooks_refusal(said_of(loss) if inputs.dim() in self._known else "the model"))
            return self._opacus.clipped_sum(loss, inputs, targets, max_grad_norm, mask, together)
        return self._by_layers(loss, inputs, targets, clip, apart=not (known or self.goes_unaided(loss)))

    def serves_batches(self, function: Loss, inputs: Tensor) -> bool:
        """Whether ``function`` may see ``inputs`` [B, ...] as one batch, because each row is known to stay alone."""
        return inputs.dim() in self._known and known_function(function)

    def goes_unaided(self, loss: Loss) -> bool:
        """Whether per-sample gradients of ``loss`` are formed without autograd."""
        return self.way in BY_RULES and self.unaided is not None and known_function(loss) and self.unaided.serves(loss)

    def plain_sum(self, loss: Loss, inputs: Tensor, targets: Tensor, divisor: float) -> None:
        """Write the gradient of the sum of ``loss`` over ``divisor`` into ``network.gradient``, without clipping.

        The same as autograd's, for less: what a layer contributes is written where it belongs instead of being
        allocated, accumulated and copied. Only for networks that :func:`sums_directly` allows.
        """
        with torch.enable_grad():
            seen, losses = self._forward(loss, inputs, targets)
            total = losses.sum() / divisor
        reached = self._arrived(seen, total)
        for module, places in self._places.items():
            pairs = reached.get(module)
            rule = self._rules[module]
            if pairs:
                assert isinstance(rule, SumRule)
                rule.write_sum(pairs, places)
            else:
                for place in places.values():
                    place.zero_()

    def _forward(self, loss: Loss, inputs: Tensor, targets: Tensor, *, steady: bool = False) -> tuple[Seen, Tensor]:
        """What every layer received and gave in one forward pass, and the losses [B].

        ``steady``: linear layers get as many rows as it takes to round each alike, so that others need not.
        """
        self._seen, self._recording, self._steady, self._unfilled = {}, True, steady, None
        try:
            losses = loss(self.network.module, inputs, targets)
        finally:
            self._recording = self._steady = False
        seen, self._seen = self._seen, {}
        return seen, losses

    def _forward_apart(self, loss: Loss, inputs: Tensor, targets: Tensor) -> tuple[Seen, Tensor]:
        """The same, of one row at a time."""
        with self._watch.watching() as seen:
            losses = each_row(loss, self.network.module, inputs, targets, watch=self._watch)
        return seen, losses

    def _arrived(self, seen: Seen, total: Tensor) -> dict[nn.Module, Calls]:
        """The (input, gradient of ``total`` at the output) pairs of every layer that ``total`` depends on."""
        outputs = [call.output for calls in seen.values() for call in calls]
        arriving = iter(torch.autograd.grad(total, outputs, allow_unused=True))
        reached = {}
        for module, calls in seen.items():
            pairs = [
                (_in_front(call.received, call.into, total.dtype), _in_front(back, call.out, total.dtype))
                for call, back in zip(calls, arriving, strict=False)
                if back is not None
            ]
            if pairs:
                reached[module] = pairs
        return reached

    def _fill(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor | None:
        """Give the linear layer ``module`` more rows, where a steady pass has too few; :meth:`_record` drops them."""
        self._unfilled = None
        if not self._steady or inputs[0].dim() != 2 or (more := filled(inputs[0])) is inputs[0]:
            return None
        self._unfilled = inputs[0]
        return more

    def _record(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if not self._recording:
            return self._watch.show(module, inputs, output)
        given, self._unfilled = self._unfilled, None
        if given is not None:
            output = output[: len(given)]
        self._seen.setdefault(module, []).append(Shown((inputs[0] if given is None else given).detach(), 0, output, 0))
        return output

    def _reached(
        self, loss: Loss, inputs: Tensor, targets: Tensor, *, apart: bool
    ) -> Iterable[tuple[nn.Module, Calls | Formed]]:
        """Every layer that the sum of ``loss`` depends on, with what it received and what arrived at its output."""
        if self.unaided is not None and self.goes_unaided(loss):
            return self.unaided.arrivals(loss, inputs, targets)
        with torch.enable_grad():
            if apart:
                seen, losses = self._forward_apart(loss, inputs, targets)
            else:
                seen, losses = self._forward(loss, inputs, targets, steady=True)
            total = losses.sum()
        return self._arrived(seen, total).items()

    def _by_layers(self, loss: Loss, inputs: Tensor, targets: Tensor, clip: Clip, *, apart: bool) -> Tensor:
        with torch.no_grad():
            squares = self.network.flat.new_zeros(len(inputs), dtype=torch.float64)
            reached = []
            for module, pairs in self._reached(loss, inputs, targets, apart=apart):
                reached.append(module)
                self._rules[module].receive(pairs, apart=apart)
                squares += self._rules[module].squared_norms()
            clipping = clip(squares)
            for place in self._untouched(reached):
                place.zero_()
            for module in reached:
                self._rules[module].write_clipped_sum(clipping, self._places[module])
        return clipping.norms

    def _untouched(self, reached: list[nn.Module]) -> Iterable[Tensor]:
        """The parts of the gradient that the rules of the layers ``reached`` do not write."""
        if len(reached) == len(self._places) and self._all_trained:
            return []
        written = {_span(place) for module in reached for place in self._places[module].values()}
        return [view for view in self.network.gradient_views if _span(view) not in written]

    def _by_vmap(self, loss: Loss, inputs: Tensor, targets: Tensor, clip: Clip) -> Tensor:
        network, layout = self.network.module, self.network.layout

        whole, made = LossModule(network, loss), Made(1)

        def one(parameters: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
            with made.of(row, target, *parameters.values()):
                term: Tensor = functional_call(whole, parameters, (row[None], target[None]))[0]
                return term

        with torch.no_grad():
            gradients, _ = vmap(grad_and_value(one), in_dims=(None, 0, 0), randomness="error")(
                {f"network.{name}": view for name, view in layout.named_views(self.network.flat).items()},
                inputs,
                targets,
            )
            made.refuse_kept(said_of(loss))
            trained = [parameter.requires_grad for parameter in self.network.parameters]
            rows = [gradients[f"network.{name}"].reshape(len(inputs), -1) for name in layout.names]
            rows = [row if wanted else torch.zeros_like(row) for row, wanted in zip(rows, trained, strict=True)]
            squares = torch.stack([row_norms(row).square() for row in rows]).sum(0)
            clipping = clip(squares)
            for row, view in zip(rows, self.network.gradient_views, strict=True):
                view.copy_(clipping.sum_of(row).view_as(view))
        return clipping.norms


def hooks_refusal(what: str) -> str:
    """Why Opacus' hooks do not serve ``what``, and the mend."""
    return (
        f"DPSGD's per_sample is 'opacus', whose hooks see whole batches, but {what} is not known to work row by row; "
        "set per_sample = 'auto', which hands it one row at a time"
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """``module`` in evaluation mode, for a while."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


class LossModule(nn.Module):
    """A function and its network as one module, so that ``functional_call`` reaches every way it uses the network."""

    def __init__(self, network: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, *batch: Tensor, **loss_kwargs: Tensor) -> Tensor:
        """The loss of every sample [B] of ``batch``, inputs and targets; of a function without data its value."""
        return self.loss(self.network, *batch, **loss_kwargs)


def widened(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating ``values`` in ``dtype`` at least: autocast hands layers bfloat16, but sums need the whole width."""
    return values.to(torch.promote_types(values.dtype, dtype)) if values.is_floating_point() else values


def _in_front(values: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return widened(values.movedim(dim, 0) if dim else values, dtype)


def _span(part: Tensor) -> tuple[int, int]:
    """Where ``part`` of a flat vector begins, and how long it is."""
    return int(part.storage_offset()), part.numel()


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that ``module`` itself holds and that are trained, by name."""
    return [(name, value) for name, value in module.named_parameters(recurse=False) if value.requires_grad]


def sums_directly(network: FlatNetwork, loss: Loss, inputs: Tensor, targets: Tensor) -> bool:
    """Whether :meth:`PerSampleGradients.plain_sum` serves ``network``: every layer's rule can, and autograd agrees.

    Tried on a small batch of public values, in evaluation mode so that drop-out does not matter.
    """
    module = network.module
    owners = [layer for layer in module.modules() if trained_parameters(layer)]
    if unknown_layers(module) or not all(issubclass(rule_for(layer) or object, SumRule) for layer in owners):
        return False
    with evaluating(module):
        with torch.enable_grad():
            total = loss(module, inputs, targets).sum()
        expected = torch.cat([gradient.flatten() for gradient in network.gradient_of(total)])
        with torch.no_grad():
            PerSampleGradients(network, "layers").plain_sum(loss, inputs, targets, 1.0)
    return float((network.gradient - expected).abs().max()) <= 1e-3 * (float(expected.abs().max()) + 1e-12)


def unknown_layers(network: nn.Module) -> list[str]:
    """Names of the layers of ``network`` that hold parameters but have no rule, or that share a parameter."""
    names = []
    owners: dict[int, str] = {}
    for name, module in network.named_modules():
        own = list(module.parameters(recurse=False))
        if own and rule_for(module) is None:
            names.append(f"{name or 'the model itself'} ({type(module).__name__})")
        for parameter in own:
            if owners.setdefault(id(parameter), name) != name:
                names.append(f"{name} (shares a parameter with {owners[id(parameter)]})")
    return names

"""Per-sample gradients by the hooks of Opacus: somebody else's code for the same numbers, slow, to compare with.

Opacus' ``GradSampleModule`` keeps the inputs of every layer and, in the backward pass, forms the gradients of all
samples one layer after the other. What it can be trusted with is found out before a run: its validator is asked, and on
public values its gradient of every sample must be the one that autograd finds in the same pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.factors import Clipping, row_norms
from privfl.privacy.loss import Loss
from privfl.randomness import process_generators

TOLERANCE = 1e-3
"""Largest difference from autograd's gradient, relative to its largest value: rounding of float32 sums."""


class OpacusHooks:
    """Opacus' hooks in the layers of one network; they rest except inside :meth:`clipped_sum`.

    The network must be in training mode, or Opacus does not watch. Frozen parameters, layers that are called several
    times and parameters that several layers share are served.
    """

    def __init__(self, network: FlatNetwork) -> None:
        from privfl.opacus_parts import GradSampleModule

        # Every pass would say so of the first layer, whose input needs no gradient. A filter for the time of one pass
        # is no choice: the filters of a process are shared by its threads.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        self.network = network
        self._hooks = GradSampleModule(network.module, batch_first=True, loss_reduction="sum")
        self._hooks.disable_hooks()
        self._watched: list[nn.Module] = list(self._hooks.iterate_submodules(network.module))
        self._layouts = [layer.register_forward_pre_hook(self._lay_rows_innermost) for layer in self._watched]

    def clipped_sum(
        self,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        max_grad_norm: float,
        mask: Tensor | None = None,
        together: int | None = None,
    ) -> Tensor:
        """Write the sum of clipped per-sample gradients into ``network.gradient``; return norms [B] in float64, B ≥ 1.

        Rows for which ``mask`` [B] is false enter no sum; ``together`` rows do, with those of other passes.

        Raises:
            ConfigError: Opacus found another number of gradients than there are samples.
        """
        pairs = self.backward(loss, inputs, targets)
        with torch.no_grad():
            squares = self.network.flat.new_zeros(len(inputs), dtype=torch.float64)
            for samples, _ in pairs:
                if samples is not None:
                    squares += row_norms(samples).square()
            clipping = Clipping.of(squares, max_grad_norm, self.network.flat.dtype, together, mask)
            for (samples, _), view in zip(pairs, self.network.gradient_views, strict=True):
                if samples is None:
                    view.zero_()
                    continue
                view.copy_(clipping.sum_of(samples.flatten(1)).view_as(view))
        return clipping.norms

    def backward(self, loss: Loss, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor | None, Tensor | None]]:
        """For every parameter Opacus' gradient of each sample ``[B, *shape]`` and autograd's of their sum ``[*shape]``.

        Both are of ``loss``, added up, and ``None`` for a frozen parameter and for one that the loss does not reach.

        Raises:
            ConfigError: Opacus found another number of gradients than there are samples.
        """
        self._hooks.enable_hooks()
        try:
            with torch.enable_grad():
                # The module itself, not Opacus' wrapper: a loss may use its parts, and the hooks are in its layers.
                torch.autograd.backward(loss(self.network.module, inputs, targets).sum())
            return [
                (_samples(name, parameter, len(inputs)), parameter.grad)
                for name, parameter in zip(self.network.layout.names, self.network.parameters, strict=True)
            ]
        finally:
            self._hooks.disable_hooks()
            self._forget()

    def remove(self) -> None:
        """Take the hooks out of the network."""
        self._hooks.to_standard_module()
        for hook in self._layouts:
            hook.remove()

    def _lay_rows_innermost(self, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Opacus reads what a convolution was given as if its rows lay side by side, and is wrong if channels do."""
        return tuple(values.contiguous() for values in inputs) if self._hooks.hooks_enabled else None

    def _forget(self) -> None:
        """Leave nothing to the next pass: a call that no gradient reached would shift what Opacus has noted by one."""
        for parameter in self.network.parameters:
            parameter.grad = None
            if parameter.requires_grad:
                vars(parameter).pop("_current_grad_sample", None)
                vars(parameter).update(grad_sample=None, _forward_counter=0)
        for layer in self._watched:
            vars(layer).pop("activations", None)
            vars(layer).pop("max_batch_len", None)


def _samples(name: str, parameter: nn.Parameter, count: int) -> Tensor | None:
    """What Opacus noted for ``parameter``: [count, *shape] in its dtype, the sum over all uses."""
    noted = vars(parameter).get("grad_sample")
    parts: list[Tensor] = list(noted) if isinstance(noted, list) else [] if noted is None else [noted]
    if "_current_grad_sample" in vars(parameter):  # of a layer that was called more often than a gradient arrived
        parts.append(vars(parameter)["_current_grad_sample"])
    for part in parts:
        if len(part) != count:
            raise ConfigError(
                f"Opacus' hooks find {len(part)} gradients of '{name}' for {count} samples, so its layer is not given "
                "the samples along the first dimension; give it one row for each, or set DPSGD's per_sample = 'vmap'"
            )
    whole = [part.to(parameter.dtype) for part in parts]  # under autocast they are narrower, and norms must not be
    return torch.stack(whole).sum(0) if len(whole) > 1 else whole[0] if whole else None


def check_opacus(network: FlatNetwork, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Refuse a network whose per-sample gradients Opacus' hooks cannot form, on *public* values ([2..8, ...]).

    The network is in training mode meanwhile, as in a run; torch's global generator is left as it was.

    Raises:
        ConfigError: Opacus does not support a layer, fails, or finds other gradients than autograd.
    """
    module = network.module
    training = module.training
    module.train()
    try:
        _refuse_unsupported(module)
        with process_generators(devices=[network.flat.device] if network.flat.is_cuda else []):
            wrong = _first_wrong(network, loss, inputs, targets)
    except ConfigError:
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        because = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")
        changing = next((name for name, layer in module.named_modules() if getattr(layer, "inplace", False)), None)
        mend = "mend the model" if changing is None else f"build layer '{changing}' with inplace=False"
        raise ConfigError(
            f"Opacus' hooks fail on this model: {because}; {mend}, or set DPSGD's per_sample = 'auto'"
        ) from error
    finally:
        module.train(training)
    if wrong:
        raise ConfigError(
            f"Opacus' per-sample gradients of '{wrong}' are not those of autograd, because its layer has an option "
            "that Opacus ignores or is used past its forward; mend the model, or set DPSGD's per_sample = 'vmap'"
        )


def _first_wrong(network: FlatNetwork, loss: Loss, inputs: Tensor, targets: Tensor) -> str:
    """Name of the first parameter whose gradient of one sample is not what autograd finds in the same pass, or ''.

    One pass for each sample, with the loss of that sample alone: then its gradient is autograd's, drop-out included,
    and the gradient of every other sample is zero.
    """
    hooks = OpacusHooks(network)
    try:
        for row in range(len(inputs)):

            def alone(network: nn.Module, inputs: Tensor, targets: Tensor, row: int = row) -> Tensor:
                return loss(network, inputs, targets)[row]

            pairs = hooks.backward(alone, inputs, targets)
            scale = max(float(whole.abs().max()) for _, whole in pairs if whole is not None) + 1e-12
            for name, (samples, whole) in zip(network.layout.names, pairs, strict=True):
                if whole is None:
                    continue
                expected = whole.new_zeros(len(inputs), *whole.shape)
                expected[row] = whole
                found = torch.zeros_like(expected) if samples is None else samples
                if not float((found - expected).abs().max()) <= TOLERANCE * scale:
                    return name
    finally:
        hooks.remove()
    return ""


def _refuse_unsupported(module: nn.Module) -> None:
    """Raise a :class:`ConfigError` that names the first layer to which Opacus objects."""
    from privfl.opacus_parts import GradSampleModule, ModuleValidator

    if (found := _first_refused(module, ModuleValidator.validate)) is not None:
        name, layer = found
        mend = "replace it, or set per_sample = 'auto'"
        if type(layer) in ModuleValidator.FIXERS:
            mend = "replace it with what opacus.validators.ModuleValidator.fix puts in its place"
        raise ConfigError(
            f"DPSGD's per_sample is 'opacus', but Opacus does not support {name} ({type(layer).__name__}); {mend}"
        )
    if (found := _first_refused(module, GradSampleModule.validate)) is not None:
        name, layer = found
        raise ConfigError(
            f"DPSGD's per_sample is 'opacus', but Opacus does not support the buffers of {name} "
            f"({type(layer).__name__}), which has parameters of its own; keep them in another layer, or set "
            "per_sample = 'auto'"
        )


def _first_refused(module: nn.Module, validate: Callable[[nn.Module], list[Any]]) -> tuple[str, nn.Module] | None:
    """Name and layer of the first innermost part of ``module`` to which ``validate`` objects; ``None`` if to none."""
    if not validate(module):
        return None
    path, layer = [], module
    while inner := next(((name, child) for name, child in layer.named_children() if validate(child)), None):
        path.append(inner[0])
        layer = inner[1]
    return f"layer '{'.'.join(path)}'" if path else "the model itself", layer

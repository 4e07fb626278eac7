"""All parameters of a model that are trained in one flat tensor, and modules whose parameters are views into it.

One vector makes every server rule, clipping and noise a handful of whole-vector operations, and lets a message be a
single tensor. The order is that of ``named_parameters()``. Parameters that are frozen when the model is built are
constants of it: the same at every client and at the server, in no message, and under no noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor, nn

from privfl.errors import ConfigError

ALL_FROZEN = (
    "every parameter of the model is frozen (requires_grad is False), so nothing could be trained; leave those that "
    "are to be trained as they are"
)


def trained_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of ``network`` that are not frozen, by name; a shared one counts once, where it first appears."""
    return {name: one for name, one in network.named_parameters() if one.requires_grad}


def frozen_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The others."""
    return {name: one for name, one in network.named_parameters() if not one.requires_grad}


def digest_of_frozen(network: nn.Module) -> str:
    """What tells apart networks that differ in what is frozen, empty if nothing is."""
    digest, frozen = hashlib.sha256(), frozen_parameters(network)
    for name, parameter in frozen.items():
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)} ".encode())
        digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest() if frozen else ""


@dataclass(frozen=True)
class Layout:
    """Where each named parameter of a model that is trained lies in the flat vector of length ``size``."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, network: nn.Module) -> Layout:
        """The layout of ``network``; a shared parameter counts once, where it first appears.

        Raises:
            ConfigError: there is no parameter, all are frozen, they differ in dtype, or a layer keeps running
                statistics (they mix samples, and averaging them is not part of any algorithm here) or writes its
                parameters.
        """
        refuse_writing_layers(network)
        named = trained_parameters(network)
        if not named and next(network.parameters(), None) is not None:
            raise ConfigError(ALL_FROZEN)
        if not named:
            raise ConfigError(f"the model {type(network).__name__} has no parameters; give a model that can be trained")
        kinds = {parameter.dtype for parameter in named.values()}
        if len(kinds) > 1:
            raise ConfigError(f"the model's parameters mix the types {sorted(map(str, kinds))}; give them one dtype")
        return cls(tuple(named), tuple(parameter.shape for parameter in named.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each parameter."""
        return tuple(shape.numel() for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    @cached_property
    def places(self) -> tuple[tuple[torch.Size, tuple[int, ...], int], ...]:
        """Shape, strides and offset of each parameter in a flat vector that is contiguous."""
        offsets = accumulate(self.sizes, initial=0)
        strides = (torch.empty(shape, device="meta").stride() for shape in self.shapes)
        return tuple(zip(self.shapes, strides, offsets, strict=False))

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parameters as views into ``flat`` [size], in order."""
        return [part.view(shape) for part, shape in zip(torch.split(flat, list(self.sizes)), self.shapes, strict=True)]

    def named_views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters as views into ``flat`` [size], by name."""
        return dict(zip(self.names, self.views(flat), strict=True))


def refuse_writing_layers(network: nn.Module) -> None:
    """Raise a :class:`ConfigError` that names the first layer of ``network`` that writes what it was not asked to.

    Running statistics mix samples; an embedding's ``max_norm`` rescales the rows of the weight that a sample looks up,
    in the forward pass, so that uploads would show who looked.
    """
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(module, "track_running_stats", False):
            raise ConfigError(
                f"layer '{name}' is {type(module).__name__}, which mixes the samples of a batch and ships running "
                "statistics; use GroupNorm (every model in `privfl list models` does)"
            )
        if getattr(module, "max_norm", None) is not None and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise ConfigError(
                f"layer '{name}' is {type(module).__name__} with max_norm = {module.max_norm:g}, which rescales its "
                "weight in the forward pass, past every mechanism; leave max_norm out"
            )


DENSE = "nobody could clip such gradients or add them up, so leave sparse=True out"
"""What to do about sparse gradients."""


def flatten(network: nn.Module) -> Tensor:
    """A copy of all parameters of ``network`` that are trained as one vector.

    Raises:
        ConfigError: there are none.
    """
    parts = [parameter.reshape(-1) for parameter in trained_parameters(network).values()]
    if not parts:
        raise ConfigError(ALL_FROZEN)
    with torch.no_grad():
        return torch.cat(parts)


def fill(network: nn.Module, flat: Tensor) -> None:
    """Copy the vector ``flat`` [size] into the parameters of ``network`` that are trained."""
    parameters = trained_parameters(network).values()
    with torch.no_grad():
        for parameter, part in zip(parameters, torch.split(flat, [one.numel() for one in parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))


class FlatNetwork:
    """A module whose trained parameters are views into one vector ``flat``, and a ``gradient`` of the same layout.

    It is one worker's workspace: loading other parameters is one copy, and nothing else is allocated between clients.
    """

    def __init__(self, network: nn.Module, device: torch.device | str = "cpu") -> None:
        # A step allocates a few MB and frees them. glibc hands the pages back after every step, and faulting them in
        # again costs up to half of a private step, unless a larger block was freed before: that lifts its thresholds.
        torch.empty(30 << 20, dtype=torch.uint8)
        self.module = network.to(device)
        self.layout = Layout.of(self.module)
        self.flat = flatten(self.module)
        self.gradient = torch.zeros_like(self.flat)
        self.gradient_views: Sequence[Tensor] = self.layout.views(self.gradient)
        self.parameters = list(trained_parameters(self.module).values())
        self._views: Sequence[Tensor] = self.layout.views(self.flat)
        self._point_at(self.flat, self._views)

    def gradient_of(self, value: Tensor) -> list[Tensor]:
        """Gradient of the scalar ``value`` for every parameter, in order; zero for unused ones.

        Raises:
            ConfigError: there is none, because all parameters are frozen or the value does not come from any; or one
                is sparse.
        """
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]  # unless frozen since
        if not (trained and value.requires_grad):
            raise ConfigError(
                "a gradient is asked for where none is: every parameter of the model is frozen, or the loss is "
                "constant or detached from them; compute it from what network(inputs) returns"
            )
        gradients = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
        if any(one.is_sparse for one in gradients):
            raise ConfigError(f"a gradient of the model is sparse; {DENSE}")
        found = iter(gradients)
        return [
            next(found) if parameter.requires_grad else torch.zeros_like(parameter) for parameter in self.parameters
        ]

    def load(self, flat: Tensor) -> None:
        """Copy the parameter vector ``flat`` [size] into this network, wherever somebody has pointed its parameters."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr() or parameter.stride() != view.stride():
                self._point_at(self.flat, self._views)
                break
        with torch.no_grad():
            self.flat.copy_(flat)

    @contextmanager
    def at(self, flat: Tensor) -> Iterator[None]:
        """Let the module compute with the parameter vector ``flat`` [size] for a while; nothing is copied."""
        if flat is self.flat:
            yield
            return
        own = self.flat, self._views
        there = flat.detach().contiguous().view(self.layout.size)
        start = there.storage_offset()
        views = [there.as_strided(shape, strides, start + at) for shape, strides, at in self.layout.places]
        self._point_at(there, views)
        try:
            yield
        finally:
            self._point_at(*own)

    def _point_at(self, flat: Tensor, views: Sequence[Tensor]) -> None:
        self.flat, self._views = flat, views
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view

"""What a network remembers besides its parameters, and putting it back.

A buffer or an attribute that a forward pass writes would carry one client's data into the next client's upload, and one
row's into the gradients of all rows after it, past every clipping.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privfl.models.flat_network import trained_parameters
from privfl.references import defined_in, shipped

_SLOT = types.MemberDescriptorType
_LAYERS = Path(nn.modules.__file__).resolve().parent
_NOT_STATE = {*vars(nn.Module()), "training"}
"""PyTorch's own book-keeping."""
_SET_BY_ENGINES = {"generator", "stack", "counts"}
"""What engines set on layers of privfl's own; in a layer from outside it is state like any other."""


class ModuleState:
    """The buffers and attributes of ``network`` as they are now; :meth:`restore` makes them so again.

    Tensors are restored, and containers one level deep; what is not is in :attr:`remembered`. The values of parameters
    that are trained are the run's, and left alone.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._attributes = [(module, _attributes(module)) for module in network.modules()]
        tensors = [
            (vars(module), name, value)
            for module, attributes in self._attributes
            for name, value in attributes.items()
            if isinstance(value, Tensor)
        ]
        buffers = [
            (module._buffers, name, buffer) for module in network.modules() for name, buffer in module._buffers.items()
        ]
        self._parameters = [(module, dict(module._parameters)) for module in network.modules()]
        self.parameters: list[Tensor] = list(trained_parameters(network).values())
        """The parameters that were to be trained at first, each once."""
        frozen = [
            (module._parameters, name, parameter)
            for module, parameters in self._parameters
            for name, parameter in parameters.items()
            if parameter is not None and not parameter.requires_grad
        ]
        self._tensors = [(*one, _copy(one[2]), _version(one[2])) for one in (*tensors, *buffers, *frozen)]

    @property
    def remembered(self) -> list[Any]:
        """All that the network holds, hooks of one's own included; see :meth:`restore`.

        The values of :attr:`parameters` do not count, also where other containers hold them (an LSTM's list of weights,
        an optimiser): each client's are loaded into them before it trains. A view of one is no parameter, and may be
        left behind in memory that nothing is loaded into.
        """
        return [
            (
                name,
                _attributes(module),
                _in_slots(module),
                dict(module._parameters),
                dict(module._buffers),
                list(_own_hooks(module)),
            )
            for name, module in self._network.named_modules()
        ]

    @property
    def modules(self) -> list[nn.Module]:
        """The network and all its layers, which :attr:`remembered` lists one by one."""
        return list(self._network.modules())

    @classmethod
    def of(cls, network: nn.Module, *, handed_out: bool = False) -> ModuleState | None:
        """The state of ``network``; ``None`` if its layers, all PyTorch's or privfl's own, remember nothing.

        ``handed_out``: code from outside gets hold of it, and may write anything onto it.
        """
        kinds = {type(module) for module in network.modules()}
        own = [kind for kind in kinds if not shipped(kind) and not defined_in(kind, _LAYERS)]
        has_buffers = next(network.buffers(), None) is not None
        return cls(network) if own or has_buffers or handed_out else None

    def restore(self) -> None:
        """Put back what was written since the beginning."""
        for module, before in self._attributes:
            now = vars(module)
            for name in now.keys() - before.keys() - _left_out(module):
                del now[name]
            for name, value in before.items():
                if isinstance(value, list | dict | set):
                    now[name] = copy.copy(value)
                elif now.get(name, self) is not value:
                    now[name] = value
        for module, parameters in self._parameters:
            for name, parameter in parameters.items():
                if module._parameters.get(name) is not parameter:
                    module._parameters[name] = parameter
        for trained in self.parameters:
            if not trained.requires_grad:  # which one client may not freeze for the next
                trained.requires_grad_()
        for position, (place, name, tensor, content, version) in enumerate(self._tensors):
            if place.get(name, self) is not tensor:
                place[name] = tensor
            if tensor is not None and content is not None and tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(content)
                self._tensors[position] = (place, name, tensor, content, tensor._version)


def _left_out(module: nn.Module) -> set[str]:
    """Which attributes of ``module`` are no state."""
    return _NOT_STATE | _SET_BY_ENGINES if shipped(type(module)) else _NOT_STATE


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of ``module`` that are state, containers copied."""
    left_out = _left_out(module)
    return {
        name: copy.copy(value) if isinstance(value, list | dict | set) else value
        for name, value in vars(module).items()
        if name not in left_out
    }


def _in_slots(module: nn.Module) -> dict[str, Any]:
    """What stands in slots of ``module``, which are no attributes of its dictionary."""
    slots = [name for base in type(module).__mro__ for name, one in vars(base).items() if isinstance(one, _SLOT)]
    return {name: getattr(module, name) for name in slots if hasattr(module, name)}


def _own_hooks(module: nn.Module) -> Iterator[Any]:
    """The hooks of ``module`` that none of these packages has put there."""
    for name, hooks in vars(module).items():
        if name.endswith("_hooks"):
            for hook in hooks.values():
                if str(getattr(hook, "__module__", "")).partition(".")[0] not in ("privfl", "opacus", "torch"):
                    yield hook


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None else tensor._version

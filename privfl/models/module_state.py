"""What a network remembers besides its parameters, and putting it back.

A buffer or an attribute that a forward pass writes would carry one client's data into the next client's upload, and one
row's into the gradients of all rows after it, past every clipping.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privfl.references import defined_in, shipped

_LAYERS = Path(nn.modules.__file__).resolve().parent
_NOT_STATE = {*vars(nn.Module()), "training", "generator", "stack", "counts"}
"""PyTorch's own book-keeping, and what the engines set."""


class ModuleState:
    """The buffers and attributes of ``network`` as they are now; :meth:`restore` makes them so again.

    Containers are restored one level deep. The values of parameters are the run's, and left alone.
    """

    def __init__(self, network: nn.Module) -> None:
        self._attributes = [(module, _attributes(module)) for module in network.modules()]
        named = [(module, name, buffer) for module in network.modules() for name, buffer in module._buffers.items()]
        self._parameters = [(module, dict(module._parameters)) for module in network.modules()]
        self._buffers = [(*one, None if one[2] is None else one[2].clone(), _version(one[2])) for one in named]

    @classmethod
    def of(cls, network: nn.Module) -> ModuleState | None:
        """The state of ``network``; ``None`` if its layers, all PyTorch's or privfl's own, remember nothing."""
        kinds = {type(module) for module in network.modules()}
        own = [kind for kind in kinds if not shipped(kind) and not defined_in(kind, _LAYERS)]
        has_buffers = next(network.buffers(), None) is not None
        return cls(network) if own or has_buffers else None

    def restore(self) -> None:
        """Put back what was written since the beginning."""
        for module, before in self._attributes:
            now = vars(module)
            for name in now.keys() - before.keys() - _NOT_STATE:
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
        for position, (module, name, buffer, content, version) in enumerate(self._buffers):
            module._buffers[name] = buffer
            if buffer is not None and content is not None and buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(content)
                self._buffers[position] = (module, name, buffer, content, buffer._version)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of ``module`` that are no part of PyTorch's book-keeping, containers copied."""
    return {
        name: copy.copy(value) if isinstance(value, list | dict | set) else value
        for name, value in vars(module).items()
        if name not in _NOT_STATE
    }


def _version(buffer: Tensor | None) -> int:
    return -1 if buffer is None else buffer._version

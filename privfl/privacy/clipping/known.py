"""What is known to work row by row, so that it may see a whole batch although every row is clipped on its own.

Known are networks made of layers of the exact types below, with options that mix no rows, and of classes of privfl;
and functions whose code lies in privfl, if all that they hold is known too. Everything else, be it right or wrong, sees
one row at a time (:mod:`privfl.privacy.clipping.row_wise`). What a user wrote in place of a part, as a subclass, a
hook, an attribute or an argument, is not known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from privfl.models.base import Network
from privfl.models.recurrent import LastState
from privfl.models.residual import GlobalAverage
from privfl.models.text import AttentionPooling
from privfl.opacus_parts import if_loaded
from privfl.references import PACKAGE, is_inside, shipped

RANKS = range(2, 8)
"""Numbers of dimensions of a batch of inputs."""

Kept = Callable[[Any, int], int | None]
"""From a layer and its input's number of dimensions to its output's; ``None`` where it could mix rows."""


def _from(least: int) -> Kept:
    return lambda layer, rank: rank if rank >= least else None


def _only(wanted: int) -> Kept:
    return lambda layer, rank: rank if rank == wanted else None


def _along(layer: Any, rank: int) -> int | None:
    return rank if type(layer.dim) is int and layer.dim % rank != 0 and -rank <= layer.dim < rank else None


def _normalised(layer: Any, rank: int) -> int | None:
    return rank if rank > len(layer.normalized_shape) else None


def _flattened(layer: Any, rank: int) -> int | None:
    start, end = layer.start_dim, layer.end_dim
    if not (-rank <= start < rank and -rank <= end < rank) or start % rank == 0 or end % rank < start % rank:
        return None
    return int(rank - (end % rank - start % rank))


def _unflattened(layer: Any, rank: int) -> int | None:
    inner = type(layer.dim) is int and -rank <= layer.dim < rank and layer.dim % rank != 0
    return rank + len(layer.unflattened_size) - 1 if inner else None


def _looked_up(layer: Any, rank: int) -> int | None:
    plain = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return rank + 1 if plain else None


def _stateless(axes: int) -> Kept:
    return lambda layer, rank: rank if rank == axes + 2 and not layer.track_running_stats else None


_LAYERS: dict[type[nn.Module], Kept] = {
    nn.Identity: _from(2),
    nn.Linear: _from(2),
    nn.Conv1d: _only(3),
    nn.Conv2d: _only(4),
    nn.Conv3d: _only(5),
    nn.GroupNorm: _from(2),
    nn.LayerNorm: _normalised,
    nn.RMSNorm: _normalised,
    nn.InstanceNorm1d: _stateless(1),
    nn.InstanceNorm2d: _stateless(2),
    nn.InstanceNorm3d: _stateless(3),
    nn.Embedding: _looked_up,
    nn.Flatten: _flattened,
    nn.Unflatten: _unflattened,
    nn.Softmax: _along,
    nn.LogSoftmax: _along,
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _from(2)),
    **dict.fromkeys(
        (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d, nn.ConstantPad1d), _from(3)
    ),
    **dict.fromkeys((nn.ZeroPad1d, nn.ReflectionPad1d, nn.ReplicationPad1d, nn.CircularPad1d), _from(3)),
    **dict.fromkeys(
        (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ConstantPad2d), _from(4)
    ),
    **dict.fromkeys((nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d), _from(4)),
    **dict.fromkeys(
        (nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d, nn.ConstantPad3d), _from(5)
    ),
    **dict.fromkeys((nn.ZeroPad3d, nn.ReflectionPad3d, nn.ReplicationPad3d, nn.CircularPad3d), _from(5)),
    nn.Upsample: _from(3),
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish), _from(2)),
    **dict.fromkeys((nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid), _from(2)),
    **dict.fromkeys((nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Hardshrink, nn.Softshrink, nn.Threshold), _from(2)),
}
_FEATURES = (GlobalAverage, LastState, AttentionPooling)
"""Classes of privfl whose output is [B, features]; the others keep the number of dimensions."""
_HOLDERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_ACTIVATIONS = (F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.hardtanh, F.softplus)
_FUNCTIONS = frozenset(map(id, (*_ACTIVATIONS, F.tanh, F.sigmoid, torch.relu, torch.tanh, torch.sigmoid)))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
_TENSORS: tuple[type[Tensor], ...] = (Tensor, nn.Parameter)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.Generator)


def known_ranks(network: nn.Module) -> frozenset[int]:
    """The numbers of dimensions of inputs [B, ...] with which ``network`` is known to work row by row."""
    if any(getattr(module_hooks, name) for name in _HOOKS_OF_ALL):
        return frozenset()
    if not all(_is_known(module) for module in network.modules()):
        return frozenset()
    return frozenset(rank for rank in RANKS if _rank_after(network, rank) is not None)


def known_function(function: Any) -> bool:
    """Whether ``function`` is known to have one term per row, whatever known network it is given."""
    return _holds_known(function, set())


def _is_known(module: nn.Module) -> bool:
    """Whether the type of ``module`` is known, and nothing of it was replaced; its inner modules are not looked at."""
    kind, own = type(module), vars(module)
    ours = shipped(kind)
    if _layer(kind) is None and kind not in (*_HOLDERS, *if_loaded("DPLSTM", "DPLSTMCell")) and not ours:
        return False
    if has_own_hooks(module):
        return False
    for name, value in own.items():
        if name in _HOOKS or (name.startswith("_") and isinstance(value, dict)):
            continue
        if callable(value) and not ((ours and _holds_known(value, set())) or value in if_loaded("DPLSTMCell")):
            return False
    tensors = [value for held in (own["_parameters"], own["_buffers"]) for value in held.values() if value is not None]
    return all(type(value) in _TENSORS for value in tensors)


def has_own_hooks(module: nn.Module) -> bool:
    """Whether anybody but privfl looks into the passes of ``module``; its inner modules are not looked at."""
    return any(not _in_package(hook) for name in _HOOKS for hook in vars(module)[name].values())


def _layer(kind: type[nn.Module]) -> Kept | None:
    """What a layer of this very type keeps; ``None`` where that is not known."""
    return _from(2) if kind in if_loaded("RNNLinear") else _LAYERS.get(kind)


def _rank_after(module: nn.Module, rank: int) -> int | None:
    if type(module) is Network or type(module) is nn.Sequential:
        after: int | None = rank
        for part in module._modules.values():
            after = None if after is None or part is None else _rank_after(part, after)
        return after
    if (kept := _layer(type(module))) is not None:
        return kept(module, rank)
    return 2 if type(module) in _FEATURES else rank


def _holds_known(value: Any, visited: set[int]) -> bool:
    """Whether ``value`` and all that it holds is data, a known network, or code of privfl."""
    if type(value) in _PLAIN or type(value) in _TENSORS or id(value) in visited:
        return True
    visited.add(id(value))
    if isinstance(value, nn.Module):
        return bool(known_ranks(value))
    if type(value) in (tuple, list, set, frozenset):
        return all(_holds_known(item, visited) for item in value)
    if type(value) is dict:
        return all(_holds_known(item, visited) for item in value.values())
    if isinstance(value, BuiltinFunctionType) or id(value) in _FUNCTIONS:
        return id(value) in _FUNCTIONS
    if type(value) is partial:
        return all(_holds_known(item, visited) for item in (value.func, value.args, value.keywords))
    if type(value) is MethodType:
        return all(_holds_known(item, visited) for item in (value.__func__, value.__self__))
    if type(value) is FunctionType:
        if not _in_package(value):
            return False
        cells = [cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell)]
        return all(_holds_known(item, visited) for item in (cells, value.__defaults__, value.__kwdefaults__))
    if isinstance(value, type):
        return shipped(value)
    return shipped(type(value)) and _holds_known(dict(getattr(value, "__dict__", {})), visited)


def _is_empty(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def _in_package(function: Any) -> bool:
    """Whether the code of ``function`` lies in a module of privfl, and that module is the one it runs in."""
    function = getattr(function, "__func__", function)
    if type(function) is not FunctionType:
        return False
    home = sys.modules.get(function.__module__)
    if home is None or function.__globals__ is not vars(home):
        return False
    file = getattr(home, "__file__", None)
    return isinstance(file, str) and is_inside(file, PACKAGE) and file == function.__code__.co_filename

"""What a model of one's own does, if that is known layers one after another: the same layers as ``nn.Sequential``.

Most models are classes whose ``forward`` is such a sequence: ``self.pool(F.relu(self.conv(x)))``. It is run on zeros,
in evaluation and in training mode, while the layers and functions that it calls are noted, each with what it was given.
That it does the same in every later pass in that mode follows from its code, in which nothing branches, nothing is
written down and nothing is read but layers, numbers and PyTorch; what else there is keeps autograd. The two modes may
differ in functional drop-out alone, ``F.dropout(x, 0.5, self.training)``, which becomes a layer of its own.
"""

from __future__ import annotations

import dis
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from privfl.engine.dropout import StreamDropout
from privfl.models.layouts import InnermostPool, lay_images_anew
from privfl.models.residual import GlobalAverage
from privfl.privacy.clipping.known import has_own_hooks, known_ranks

ROWS = 3
"""Rows of zeros that a model is tried with: no size of one, and none that a layer is likely to have."""

_STRAIGHT = frozenset({
    "BINARY_OP", "BINARY_SLICE", "BINARY_SUBSCR", "BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_MAP", "BUILD_SLICE",
    "BUILD_TUPLE", "CACHE", "CALL", "CALL_FUNCTION_EX", "CALL_INTRINSIC_1", "CALL_KW", "COPY", "DICT_MERGE", "END_FOR",
    "EXTENDED_ARG", "FOR_ITER", "GET_ITER", "JUMP_BACKWARD", "KW_NAMES", "LIST_EXTEND", "LIST_TO_TUPLE", "LOAD_ATTR",
    "LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_CHECK",
    "LOAD_FAST_LOAD_FAST", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_SMALL_INT", "NOP", "POP_ITER", "POP_TOP", "PRECALL",
    "PUSH_NULL", "RESUME", "RETURN_CONST", "RETURN_VALUE", "STORE_FAST", "STORE_FAST_LOAD_FAST",
    "STORE_FAST_STORE_FAST", "SWAP", "UNARY_NEGATIVE", "UNPACK_SEQUENCE",
})  # fmt: skip
"""Instructions of Python 3.11 to 3.14 that neither branch nor write anything down but names of the function's own."""

_HOLDERS = (nn.ModuleList, nn.ModuleDict)
_BUILTIN = ("len", "range", "zip", "enumerate", "int", "float", "min", "max", "reversed")
_NUMBERS = (int, float, str, bool, type(None))
_ASKS_FOR_SIZES = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__}
_ASKS_FOR_SIZES |= {vars(torch._C.TensorBase)[name].__get__ for name in ("shape", "ndim", "dtype", "device")}
_MEANS = {torch.mean, Tensor.mean}
_FLATTENS = {torch.flatten, Tensor.flatten, Tensor.view, Tensor.reshape, torch.reshape}


def _log_softmax(dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> nn.Module | None:
    return None if dtype is not None else nn.LogSoftmax(dim)


_LAYERS: dict[Any, Callable[..., nn.Module | None]] = {
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_), lambda inplace=False: nn.ReLU()),
    **dict.fromkeys((F.tanh, torch.tanh, Tensor.tanh), nn.Tanh),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, Tensor.sigmoid), nn.Sigmoid),
    F.leaky_relu: lambda negative_slope=0.01, inplace=False: nn.LeakyReLU(negative_slope),
    F.elu: lambda alpha=1.0, inplace=False: nn.ELU(alpha),
    F.selu: lambda inplace=False: nn.SELU(),
    F.celu: lambda alpha=1.0, inplace=False: nn.CELU(alpha),
    **dict.fromkeys((F.gelu, torch._C._nn.gelu), nn.GELU),
    F.silu: lambda inplace=False: nn.SiLU(),
    F.mish: lambda inplace=False: nn.Mish(),
    F.hardswish: lambda inplace=False: nn.Hardswish(),
    F.hardsigmoid: lambda inplace=False: nn.Hardsigmoid(),
    **dict.fromkeys((F.softplus, torch._C._nn.softplus), nn.Softplus),
    F.hardtanh: lambda min_val=-1.0, max_val=1.0, inplace=False: nn.Hardtanh(min_val, max_val),
    F.relu6: lambda inplace=False: nn.ReLU6(),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), nn.MaxPool2d),
    **dict.fromkeys((F.log_softmax, torch.log_softmax, Tensor.log_softmax), _log_softmax),
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}
"""Functions and the layers that do the same, from what the functions take besides their input."""


_DROPS: dict[Any, int | None] = {F.dropout: None, **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), 2)}
"""Functions that drop values, and how many leading dimensions get masks of their own: all, or samples and channels."""


def own_sequence(module: nn.Module, inputs: Tensor, *, innermost: bool = False) -> nn.Sequential | None:
    """The layers, with its very parameters, that ``module`` passes its input through, or ``None``.

    Functional drop-out is a :class:`StreamDropout` that is no part of ``module``, in the mode that this is in.

    Args:
        module: a model of one's own; known ones, whose layers are known to be in order, give ``None`` too.
        inputs: [3, ...] of zeros, on its device.
        innermost: whether the layers lay out images with their channels innermost where they pool; ``module`` itself
            need not bear that.
    """
    leaves = _leaves(module)
    if not leaves or module in leaves:
        return None
    evaluated = _noted(module, leaves, inputs, training=False)
    trained = None if evaluated is None else _noted(module, leaves, inputs, training=True)
    parts = _in_both_modes(evaluated, trained)
    if parts is None:
        return None
    found = nn.Sequential(*parts)
    if innermost and any(isinstance(one, nn.MaxPool2d | InnermostPool) for one in found.modules()):
        lay_images_anew(found)
    return found.train(module.training)


def _noted(module: nn.Module, leaves: list[nn.Module], inputs: Tensor, *, training: bool) -> list[nn.Module] | None:
    """What ``module`` passes ``inputs`` through in one mode, or ``None``; functional drop-out as :class:`_Drop`."""
    notes, before = _Notes(inputs), module.training
    with ExitStack() as watching:
        for leaf in leaves:
            for handle in notes.watch(leaf):
                watching.callback(handle.remove)
        watching.callback(module.train, before)
        watching.enter_context(torch.no_grad())
        module.train(training)
        try:
            with notes:
                result = module.forward(inputs)  # privfl may lay images out anew before that
        except Exception:  # whatever a model raises that is not made for zeros
            return None
    return notes.parts if result is notes.current else None


class _Drop(nn.Module):
    """A call of functional drop-out that drops."""

    def __init__(self, probability: float, noise_dims: int | None) -> None:
        super().__init__()
        self.probability, self.noise_dims = probability, noise_dims


def _in_both_modes(evaluated: list[nn.Module] | None, trained: list[nn.Module] | None) -> list[nn.Module] | None:
    """The layers that are ``evaluated`` in evaluation mode and ``trained`` in training mode, or ``None``."""
    if evaluated is None or trained is None or len(evaluated) != len(trained):
        return None
    found: list[nn.Module] = []
    for still, part in zip(evaluated, trained, strict=True):
        if type(still) is nn.Identity and type(part) is _Drop:
            found.append(StreamDropout(part.probability, part.noise_dims))
        elif still is part or (type(still) is type(part) is not _Drop and _settings(still) == _settings(part)):
            found.append(part)
        else:
            return None
    return found


def _settings(layer: nn.Module) -> dict[str, Any]:
    """What tells apart two layers of one type; each has parameters of its own, if any."""
    options = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
    return {**options, "its own": [id(one) for one in layer.parameters()]}


def _leaves(module: nn.Module) -> list[nn.Module] | None:
    """The known layers that the forward passes of ``module``, and of its parts of one's own, may call.

    A pass in either mode changes none of these.
    """
    if type(module) not in _HOLDERS:
        if known_ranks(module):
            return [module]
        if not _is_plain(module):
            return None
    found: list[nn.Module] = []
    for child in module.children():
        inner = _leaves(child)
        if inner is None:
            return None
        found += inner
    return list(dict.fromkeys(found))


def _is_plain(module: nn.Module) -> bool:
    """Whether ``module`` computes what its class's ``forward`` says, which is the same in every pass."""
    kind = type(module)
    usual = all(getattr(kind, name) is getattr(nn.Module, name) for name in ("__call__", "__getattr__", "_call_impl"))
    as_written = usual and "forward" not in vars(module) and kind.__getattribute__ is object.__getattribute__
    return as_written and not has_own_hooks(module) and _does_the_same("forward", module, set())


def _does_the_same(name: str, module: nn.Module, asked: set[str]) -> bool:
    """Whether the method ``name`` of the class of ``module`` goes by nothing but the mode, and those that it calls."""
    if name in asked:
        return True
    asked.add(name)
    function = next((vars(one)[name] for one in type(module).__mro__ if name in vars(one)), None)
    if type(function) is not FunctionType or function.__code__.co_freevars:
        return False
    called: set[str] = set()
    for one in dis.get_instructions(function):
        if one.opname not in _STRAIGHT:
            return False
        if one.opname == "LOAD_GLOBAL" and not _is_fixed(one.argval, function.__globals__):
            return False
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            called.add(one.argval)
    if not all(_stays(attribute, module) for attribute in called):
        return False
    own = {attribute for attribute in called if _is_of_class(attribute, type(module))}
    return all(_does_the_same(attribute, module, asked) for attribute in own)


def _stays(name: str, module: nn.Module) -> bool:
    """Whether ``name``, asked of ``module`` or of what it knows, is a layer, a number, or something of PyTorch."""
    if name in vars(module):
        value = vars(module)[name]
        return all(isinstance(one, _NUMBERS) for one in (value if isinstance(value, tuple) else [value]))
    of_layers = any(name in held for held in (module._modules, module._parameters, module._buffers))
    of_pytorch = any(hasattr(home, name) for home in (torch, F, nn, nn.Module, Tensor, math))
    return (
        of_layers
        or of_pytorch
        or _is_of_class(name, type(module))
        or isinstance(getattr(type(module), name, []), _NUMBERS)
    )


def _is_of_class(name: str, kind: type) -> bool:
    """Whether ``name`` is something of a class of one's own that is no plain number."""
    homes = [base for base in kind.__mro__ if not base.__module__.startswith("torch.") and base is not object]
    return any(name in vars(base) and not isinstance(vars(base)[name], _NUMBERS) for base in homes)


def _is_fixed(name: str, given: Mapping[str, Any]) -> bool:
    """Whether the global ``name`` is a number, a module of PyTorch, or something of PyTorch or Python itself."""
    if name not in given:
        return name in _BUILTIN
    value = given[name]
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in ("torch", "math")
    return isinstance(value, _NUMBERS) or str(getattr(value, "__module__", "")).partition(".")[0] == "torch"


class _Notes(TorchFunctionMode):
    """The ``parts`` that a pass over ``inputs`` calls, ``None`` as soon as it is no sequence of them."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.current = inputs
        self.parts: list[nn.Module] | None = []
        self._inside = 0

    def watch(self, leaf: nn.Module) -> Iterator[Any]:
        """Note when ``leaf`` is called."""

        def begins(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            if self._inside == 0 and not (len(given) == 1 and given[0] is self.current and not named):
                self.parts = None
            self._inside += 1

        def ends(layer: nn.Module, _: tuple[Any, ...], output: Any) -> None:
            self._inside -= 1
            if self._inside == 0:
                self._goes_on(layer, output)

        yield leaf.register_forward_pre_hook(begins, prepend=True, with_kwargs=True)
        yield leaf.register_forward_hook(ends)

    def _goes_on(self, part: nn.Module | None, output: Any) -> None:
        if part is None or self.parts is None or not isinstance(output, Tensor):
            self.parts = None
        else:
            self.parts.append(part)
            self.current = output

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``function``, and note it."""
        named = kwargs or {}
        drops = self._inside == 0 and function in _DROPS and isinstance(args[0], Tensor)
        result = args[0].clone() if drops else function(*args, **named)  # no random number is to be spent
        if self._inside == 0 and self.parts is not None and function not in _ASKS_FOR_SIZES:
            self._goes_on(self._layer(function, args, named, result), result)
        return result

    def _layer(self, function: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any) -> nn.Module | None:
        """The layer that ``function`` is here, if it takes nothing but what came last."""
        given = args[0] if args else named.get("input")
        rest = [*args[1:], *(value for name, value in named.items() if name != "input")]
        if given is not self.current or any(isinstance(one, Tensor) for one in rest):
            return None
        options = {name: value for name, value in named.items() if name != "input"}
        if function in _FLATTENS:
            return nn.Flatten() if isinstance(result, Tensor) and result.shape == given.flatten(1).shape else None
        if function in _MEANS:
            return _average(given, *args[1:], **options)
        if function in _DROPS:
            return _dropping(given, _DROPS[function], *args[1:], **options)
        make = _LAYERS.get(function)
        return None if make is None else make(*args[1:], **options)


def _dropping(
    given: Tensor, noise_dims: int | None, p: float = 0.5, training: bool = True, inplace: bool = False
) -> nn.Module | None:
    """What functional drop-out is with these arguments, ``None`` where it does something of its own."""
    if not 0 <= p <= 1 or (noise_dims is not None and given.dim() <= noise_dims):
        return None
    return _Drop(p, noise_dims) if training and p > 0 else nn.Identity()


def _average(given: Tensor, dim: Any = None, keepdim: bool = False, **others: Any) -> nn.Module | None:
    """The mean over all positions of images, ``None`` where it is one of something else."""
    dims = {one % given.dim() for one in dim} if isinstance(dim, tuple | list) else set()
    if given.dim() != 4 or dims != {2, 3} or others:
        return None
    return nn.AdaptiveAvgPool2d(1) if keepdim else GlobalAverage()

"""A stand-in for a CUDA device: tensors that say ``cuda:0``, hold real values on the CPU, and obey CUDA's rules.

A machine without a GPU can then run code for ``device="cuda"`` from end to end. An operation on tensors of two devices
fails as CUDA would let it fail, with file and line; every kernel launch and every wait of the host for the device is
counted by the line of the project that causes it; and results can be compared with the CPU's bit by bit.

What it cannot show: whether a kernel exists on CUDA, how fast it is, in which order it adds, how much memory it takes,
and what goes wrong between streams. Forward-mode derivatives do not run on it. What ``torch.compile`` would fuse counts
as one launch. Triton's kernels run in its interpreter, if ``TRITON_INTERPRET=1`` asks for it, and count as one launch
each; without, the device has no Triton.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # PyTorch imports it when a mode is first used, and it must not see what is patched below
import torch.utils._triton
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from privfl import plain_tensors
from privfl.engine.loop import LoopEngine
from privfl.privacy.clipping import known
from privfl.privacy.noise import device_coins, fused
from privfl.simulation.identity import Identity
from tests.device.accounts import COUNTS, Counts, kernels, place

CUDA = torch.device("cuda", 0)
INSIDE = torch.device("meta")
"""What PyTorch's C++ sees. For CUDA it would look for a driver, and its meta kernels touch no memory."""
aten = torch.ops.aten

COPIES = {aten.copy_.default, aten._to_copy.default, aten.copy.default}
INDEXED = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
FREE = {"detach", "alias", "lift_fresh", "is_same_size", "resize_", "set_", "_unsafe_view", "_reshape_alias"}
FREE |= {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
"""Operations that launch nothing, besides views."""
WAITING = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "unique_dim"}
WAITING |= {"unique_consecutive", "bincount", "repeat_interleave", "histc", "linalg_eigh", "_linalg_check_errors"}
"""Operations that make the host wait: they return a number, or a tensor whose size depends on values."""


class MixedDevices(Exception):
    """An operation on tensors of two devices. No RuntimeError, which ``engine="auto"`` could take for the model's."""


WRITTEN_ON = Identity._written_on


class HoldsNothing(Exception):
    """A tensor that C++ made has no values here."""


class StandIn(torch.Tensor):
    """A tensor "on CUDA": ``held`` is where its values lie, in a slot, as nothing is written onto tensors."""

    __slots__ = ("held",)
    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> StandIn:
        made: StandIn = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=INSIDE,
        )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"StandIn({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def tolist(self) -> Any:
        COUNTS.wait("tolist")
        return self.held.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert cuda:0 device type tensor to numpy at {place()}")

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        assert isinstance(other, StandIn)
        assert other.shape == self.shape
        self.held = other.held

    def __deepcopy__(self, memo: object) -> StandIn:
        return StandIn(self.held.clone()).requires_grad_(self.requires_grad)  # type: ignore[return-value]


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """One operation of PyTorch: CUDA's rules, the accounts, and then the CPU's kernel on the values."""
    tensors = list(tensors_of((*args, *kwargs.values())))
    here = [one for one in tensors if isinstance(one, StandIn)]
    asked = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
    if not here and asked not in ("cuda", "meta"):
        pinned = kwargs.get("pin_memory", False)
        answer = func(*args, **({**kwargs, "pin_memory": False} if pinned else kwargs))
        return pin_memory(answer) if pinned else answer
    apart = [one for one in tensors if not isinstance(one, StandIn)]
    name, view = func._schema.name.removeprefix("aten::"), _is_view(func)
    if here and apart and func not in COPIES:
        _refuse_mixed(func, name, args, apart)
    target_on_cpu = asked == "cpu" or (name == "copy_" and not isinstance(args[0], StandIn))
    if func in COPIES:
        _copied(args[1] if name == "copy_" else args[0], kwargs, args, to_cpu=target_on_cpu)
    elif not view and name not in FREE:
        COUNTS.launch(kernels(name, args, kwargs))
        if name in WAITING:
            COUNTS.wait(name)
        elif func in INDEXED and any(index is not None and index.dtype == torch.bool for index in args[1]):
            COUNTS.wait("boolean mask")
    values = {key: mapped(_held, item) for key, item in kwargs.items() if key != "pin_memory"}
    if asked is not None:
        values["device"] = torch.device("cpu")
    answer = func(*mapped(_held, tuple(args)), **values)
    if torch.Tag.inplace_view in func.tags:  # who stands in changes its shape with what it holds
        with no_dispatch():
            func(*args, **kwargs)
        return args[0]
    known = {id(one.held): one for one in here}

    def wrapped(item: torch.Tensor) -> torch.Tensor:
        if target_on_cpu:
            return item
        return known[id(item)] if id(item) in known else StandIn(item)

    if func is aten.set_.source_Tensor:
        args[0].held = answer
        return args[0]
    return mapped(wrapped, answer)


def tensors_of(items: Any) -> Iterator[torch.Tensor]:
    """The tensors in ``items``, and in lists and tuples in them."""
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif type(item) in (tuple, list):
            yield from tensors_of(item)


def mapped(change: Callable[[torch.Tensor], torch.Tensor], item: Any) -> Any:
    """``item`` with every tensor in it changed; PyTorch's own way to do that takes most of the time of a test."""
    if isinstance(item, torch.Tensor):
        return change(item)
    return type(item)(mapped(change, one) for one in item) if type(item) in (tuple, list) else item


def _held(one: torch.Tensor) -> torch.Tensor:
    return one.held if isinstance(one, StandIn) else one


@cache
def _is_view(func: Any) -> bool:
    return any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)


def _refuse_mixed(func: Any, name: str, args: Any, apart: list[torch.Tensor]) -> None:
    """CUDA takes numbers without a dimension from the CPU, and indices, for which it waits; nothing else."""
    if any(GET_DEVICE(one).type == "meta" for one in apart):
        raise HoldsNothing(f"{name} at {place()}: C++ made a tensor from a list, and here it holds no values")
    if func in INDEXED:
        if not isinstance(args[0], StandIn):
            raise MixedDevices(f"{name} at {place()}: a tensor on the CPU is indexed by one on cuda:0")
        if any(one is index for one in apart for index in args[1]):
            COUNTS.wait("indices from the CPU")
        apart = [one for one in apart if not any(one is index for index in args[1])]
    takes_numbers = torch.Tag.pointwise in func.tags or func in INDEXED or name in ("where", "fill_", "lift_fresh")
    if name == "where" and apart:
        COUNTS.wait("a number from the CPU")  # which it copies, as others need not
    wrong = [tuple(one.shape) for one in apart if one.dim() > 0 or not takes_numbers]
    if wrong:
        raise MixedDevices(f"{name} at {place()}: tensors of {wrong} on the CPU meet others on cuda:0")


def _copied(source: torch.Tensor, kwargs: Any, args: Any, *, to_cpu: bool) -> None:
    size = source.numel() * source.element_size()
    if isinstance(source, StandIn):
        if not to_cpu:
            COUNTS.launch()
            return
        COUNTS.bytes_from += size
        COUNTS.wait("copy to the CPU")
    elif not to_cpu:
        COUNTS.bytes_to += size
        early = kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True)
        if not (early and COUNTS.is_pinned(source)):
            COUNTS.wait("copy from memory that is not pinned")


GET_DEVICE, GET_CUDA = torch._C.TensorBase.device.__get__, torch._C.TensorBase.is_cuda.__get__  # type: ignore[attr-defined]
TO, TENSOR, AS_TENSOR, GENERATOR = torch.Tensor.to, torch.tensor, torch.as_tensor, torch.Generator
ON_CUDA: dict[int, torch.Generator] = {}
FORK, RELEASE, TOSS = torch.random.fork_rng, fused.release_, device_coins.toss_


def inward(item: Any) -> Any:
    """The device that C++ is to see for the one that Python names."""
    if isinstance(item, torch.device):
        return INSIDE if item.type == "cuda" else item
    return INSIDE if isinstance(item, str) and item.startswith("cuda") else item


def generator(device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of random numbers; those "on CUDA" are remembered."""
    made = GENERATOR("cpu")
    if torch.device(device).type == "cuda":
        ON_CUDA[id(made)] = made
    return made


def moved(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``make``, whose answer is copied to the device, as CUDA does it."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        return tensor if device is None or torch.device(device).type == "cpu" else TO(tensor, INSIDE)

    return made


def new_tensor(self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> torch.Tensor:
    """``Tensor.new_tensor``."""
    goal = self.device if device is None else torch.device(device)
    made = TENSOR(data, dtype=dtype or self.dtype, **kwargs)
    return made if goal.type == "cpu" else TO(made, INSIDE)


def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``Tensor.to``."""
    kwargs = {**kwargs, "device": inward(kwargs["device"])} if "device" in kwargs else kwargs
    return TO(self, *map(inward, args), **kwargs)


def pin_memory(self: torch.Tensor) -> torch.Tensor:
    """``Tensor.pin_memory``: a copy that is known to be pinned."""
    assert not isinstance(self, StandIn)
    made = self.clone()
    COUNTS.pinned[made.untyped_storage().data_ptr()] = made
    return made


def compiled(function: Any = None, **settings: Any) -> Any:
    """``torch.compile``: the function as it is, counted as one launch."""
    if function is None:
        return compiled

    def fused(*args: Any) -> Any:
        COUNTS.launch()
        COUNTS.fused += 1
        try:
            return function(*args)
        finally:
            COUNTS.fused -= 1

    return fused


def interprets() -> bool:
    """Whether Triton is there and interprets its kernels, as ``TRITON_INTERPRET=1`` tells it to."""
    return find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"


def by_triton(rows: torch.Tensor, *given: torch.Tensor) -> None:
    """The kernel of noise, which Triton's interpreter runs on the values: one launch."""
    COUNTS.launch()
    RELEASE(*map(_held, (rows, *given)))


def tossed(kept: torch.Tensor, *given: Any) -> None:
    """The same for coins."""
    COUNTS.launch()
    TOSS(*map(_held, (kept, *given)))


class Names(TorchFunctionMode):
    """Python asks for CUDA; C++ meets the stand-in."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return TO(args[0], INSIDE)
        drawn_by = kwargs.get("generator")
        if drawn_by is not None:
            asked = kwargs.get("device")
            if asked is None and args and isinstance(args[0], torch.Tensor):
                asked = GET_DEVICE(args[0])
            if (torch.device(asked or "cpu").type != "cpu") != (id(drawn_by) in ON_CUDA):
                raise MixedDevices(f"{func.__name__} at {place()}: the generator is of another device")
        if "device" in kwargs:
            kwargs = {**kwargs, "device": inward(kwargs["device"])}
        return func(*(map(inward, args) if func is TO else args), **kwargs)


class Rules(TorchDispatchMode):
    """What makes tensors on the device without having one: factories and copies."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def in_order(self: LoopEngine, work: Callable[[Any], Any], items: Any) -> Iterator[Any]:
    """One item after the other on this thread: PyTorch's modes are per thread."""
    return (work(item) for item in items)


@contextmanager
def stand_in_cuda() -> Iterator[Counts]:
    """The block sees one CUDA device; only the calling thread may compute there."""
    told = {
        "new_tensor": new_tensor,
        "to": to,
        "pin_memory": pin_memory,
        "is_pinned": COUNTS.is_pinned,
        "device": property(lambda self: CUDA if GET_DEVICE(self).type == "meta" else GET_DEVICE(self)),
        "is_cuda": property(lambda self: GET_DEVICE(self).type != "cpu"),
    }
    patches: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "synchronize": lambda *_: None,
            "mem_get_info": lambda *_: (100 << 30, 140 << 30),
            "get_device_name": lambda *_: "stand-in",
        },
        torch: {
            "Generator": generator,
            "tensor": moved(TENSOR),
            "as_tensor": moved(AS_TENSOR),
            "compile": compiled,
            "autocast": lambda kind, **_: nullcontext(),  # there is no autocast for CUDA in a build without it
        },
        torch.utils._triton: {"has_triton": lambda: True},
        torch.random: {"fork_rng": lambda devices=None, *a, **k: FORK([], *a, **k)},
        LoopEngine: {"in_order": in_order},
        known: {"_TENSORS": (*known._TENSORS, StandIn)},
        plain_tensors: {"KINDS": plain_tensors.KINDS | {StandIn}},
        Identity: {"_written_on": lambda one, thing: {} if type(thing) is StandIn else WRITTEN_ON(one, thing)},
        fused: {"available": interprets, "release_": by_triton},
        device_coins: {"toss_": tossed},
        torch.Tensor: told,
    }
    with ExitStack() as stack:
        for owner, names in patches.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(owner, name, value, create=True))
        overwritten = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwritten)
        lifted = torch._C._only_lift_cpu_tensors()  # else tensors are made on the device below the modes
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # its modes and lines are this thread's
        stack.callback(COUNTS.pinned.clear)
        stack.callback(ON_CUDA.clear)
        COUNTS.reset()
        stack.enter_context(Rules())
        stack.enter_context(Names())
        yield COUNTS

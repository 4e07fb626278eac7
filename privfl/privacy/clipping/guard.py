"""What code may not do while it runs once for all rows of a batch, or for all clients of a stack.

Under ``torch.func.vmap`` tensors stand for one row each, and nothing that PyTorch does with them lets the values of one
row meet another's. Python around PyTorch can: an operator without a batching rule is run row after row on bare tensors,
a rule of one's own, a dispatch mode and hooks on saved tensors are handed all rows at once, a tensor's text shows them,
and an error that one row causes is caught for all. A :class:`Guard` refuses these where they happen.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, maybe_current_level, maybe_get_level
from torch._functorch import autograd_function
from torch._functorch.autograd_function import custom_function_call
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from privfl import plain_tensors
from privfl.errors import ConfigError
from privfl.references import PACKAGE, defined_in

TORCH = Path(torch.__file__).resolve().parent
OPERATORS = frozenset(("aten", "prims", "prim", "profiler"))
"""Where PyTorch's own operators are registered."""
ROW, CLIENT = "row of a batch", "client of a stack"
"""What guarded code stands for one of."""
_TEXT = (Tensor.__repr__, Tensor.__format__)
_HOOKS = "hooks on saved tensors see all rows of a batch at once"
_TURN = threading.local()
_ONE_AT_A_TIME = threading.RLock()


def row_in_turn() -> Tensor | None:
    """A tensor of the row that code in this thread sees under ``vmap`` right now; ``None`` outside of it."""
    row: Tensor | None = getattr(_TURN, "row", None)
    return row


@contextmanager
def own_vmap_refused() -> Iterator[None]:
    """Refuse what the block runs under ``vmap`` by a rule of its own, which sees all rows at once.

    Raises:
        ConfigError: at the end of the block, it did.
    """
    found: list[str] = []
    names, here = vars(autograd_function), threading.get_ident()

    def note(**about: Any) -> autograd_function.VmapInfo:
        """What PyTorch makes to describe a stack to a rule, and nowhere else; the caller knows whose rule it is."""
        if threading.get_ident() == here:
            operation = sys._getframe(1).f_locals["op"]
            if not (isinstance(operation, type) and any(defined_in(operation, root) for root in (PACKAGE, TORCH))):
                found.append(getattr(operation, "__name__", str(operation)))
        return described(**about)

    with _ONE_AT_A_TIME:
        described = autograd_function.VmapInfo
        names["VmapInfo"] = note  # not sys.setprofile, under which Python 3.11 can come to loop for ever
        try:
            yield
        finally:
            names["VmapInfo"] = described
    if found:
        raise ConfigError(
            f"{found[0]} brings a vmap rule of its own, which would see all rows of a batch at once; let PyTorch make "
            "the rule (generate_vmap_rule = True), or train without DP-SGD"
        )


class OwnOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that are not PyTorch's, also where PyTorch runs code that no :class:`Guard` sees."""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        if problem := _foreign(function):
            raise ConfigError(problem)
        return function(*arguments, **(named or {}))


class Guard(TorchFunctionMode):
    """Entered around the code: refuses what could see more than its one row or client.

    Raises:
        ConfigError: by :meth:`check`, that something was refused, or failed and was caught.
    """

    def __init__(self, alone: str = ROW) -> None:
        """``alone`` is what the code stands for one of, in words."""
        super().__init__()
        self.alone, self._problem, self._dispatchers, self._entered = alone, "", 0, ExitStack()

    def __enter__(self) -> Any:
        self._dispatchers = torch._C._len_torch_dispatch_stack()
        self._entered.enter_context(disable_saved_tensors_hooks(_HOOKS))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._entered.close()

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        self._refuse_kinds((arguments, named or {}))
        outside = self._refuse(function, arguments)
        try:
            if not outside:
                answer = function(*arguments, **(named or {}))
                self._refuse_kinds(answer)
                return answer
            with own_vmap_refused(), OwnOperators():  # type: ignore[no-untyped-call]
                return function(*arguments, **(named or {}))
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            name = getattr(function, "__name__", str(function))
            self._problem = self._problem or (
                f"{name} fails on some {self.alone} ({lines[0]}), which would show in what becomes of all others if it "
                "were caught"
            )
            raise

    def _refuse_kinds(self, values: Any) -> None:
        """Refuse kinds of tensors that PyTorch does not bring: it hands their code all rows, where no guard sees it."""
        for kind in {type(one) for one in _tensors(values)} - plain_tensors.KINDS:
            if not defined_in(kind, TORCH):
                self.refuse(
                    f"{kind.__name__} is a kind of tensor of one's own, whose code would see more than one "
                    f"{self.alone}; make it a plain tensor"
                )

    def _refuse(self, function: Any, arguments: tuple[Any, ...]) -> bool:
        """Refuse ``function`` if it could see more than one; whether it runs others' code, which has to be watched."""
        if torch._C._len_torch_dispatch_stack() > self._dispatchers:
            self.refuse(f"a dispatch mode of one's own would see more than one {self.alone}; leave it out")
        if function in _TEXT:
            self.refuse(f"a tensor's text would show more than one {self.alone}; leave it out")
        if isinstance(function, OpOverload | OpOverloadPacket) and (problem := _foreign(function, self.alone)):
            self.refuse(problem)
        if not isinstance(function, HigherOrderOperator):
            return False
        if function is not custom_function_call:
            self.refuse(f"{function.__name__} runs code that could see more than one {self.alone}; leave it out")
        kind = arguments[0]
        if any(defined_in(kind, root) for root in (PACKAGE, TORCH)):
            return False
        if kind.vmap is not torch.autograd.Function.vmap:
            self.refuse(
                f"{kind.__name__} brings a vmap rule of its own, which would see more than one {self.alone}; let "
                "PyTorch make the rule (generate_vmap_rule = True)"
            )
        return True

    def refuse(self, problem: str) -> None:
        """Raise a :class:`ConfigError`, also at the end if this one is caught."""
        self._problem = problem
        raise ConfigError(problem)

    def check(self) -> None:
        """Raise a :class:`ConfigError` if something was refused or failed, whoever caught it."""
        if self._problem:
            raise ConfigError(f"code that stands for one {self.alone} went on after it had failed: {self._problem}")


class Made(Guard):
    """Knows every tensor that the block made of rows too, so that none can outlive it or come in from outside.

    Nothing else would: a tensor that a function kept is accepted by the next ``vmap`` of as many rows.
    """

    def __init__(self, level: int, alone: str = ROW) -> None:
        """``level`` is that of the stack of rows among the transforms of ``torch.func``."""
        super().__init__(alone)
        self._refs: dict[int, ref[Tensor]] = {}
        self._given: dict[int, ref[Tensor]] = {}
        self._level, self._base, self._nested = level, level, False
        self._row: Tensor | None = None

    def of(self, row: Tensor | None, *others: Any) -> Made:
        """Itself, to be entered while ``row``, a tensor of one row if there are rows, and ``others`` are seen."""
        self._row, self._base = row, maybe_current_level() or 0
        self._given = {id(one): ref(one) for one in _tensors((row, others))}
        return self

    def __enter__(self) -> Made:
        _TURN.row, self._row = self._row, None
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        _TURN.row = None
        super().__exit__(*error)

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        if not self._nested:
            self._nested = (maybe_current_level() or 0) > self._base
            for one in _tensors((arguments, named or {})):
                self._refuse_strange(one)
        answer = super().__torch_function__(function, types, arguments, named)
        self._note(_tensors(answer))
        return answer

    def _refuse(self, function: Any, arguments: tuple[Any, ...]) -> bool:
        outside = super()._refuse(function, arguments)
        self._nested = self._nested or outside  # PyTorch hands code from outside tensors that nobody saw made
        return outside

    def _refuse_strange(self, one: Tensor) -> None:
        """Refuse a tensor of rows that this block has not made: it was kept, or made by other ways."""
        if is_functorch_wrapped_tensor(one) and maybe_get_level(one) >= self._level and not self._knows(one):
            self.refuse(
                f"a tensor that stands for one {self.alone} comes from another call, or from nn.Parameter or a "
                "constructor; keep no tensors between calls, and make them by functions of PyTorch"
            )

    def _knows(self, one: Tensor) -> bool:
        place = id(one)  # which another one may have had before
        return any(place in known and known[place]() is one for known in (self._refs, self._given))

    def _note(self, tensors: Iterable[Tensor]) -> None:
        for one in tensors:
            self._refs[id(one)] = ref(one)

    def refuse_kept(self, said: str) -> None:
        """Raise a :class:`ConfigError` if a tensor of rows is still there; what ran is ``said`` in words."""
        self.check()
        if not self._any_left():
            return
        gc.collect()  # what a reference cycle holds is not kept
        if self._any_left():
            raise ConfigError(
                f"{said}, or a layer, keeps what it computes of one {self.alone} after it has returned, and others "
                "could meet it later; keep no tensors between calls"
            )

    def _any_left(self) -> bool:
        left = [one for made in self._refs.values() if (one := made()) is not None and is_functorch_wrapped_tensor(one)]
        return any(not 0 <= maybe_get_level(one) < self._level for one in left)


def _tensors(values: Any) -> Iterator[Tensor]:
    """All tensors in ``values``, which may lie in tuples, lists and mappings."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for one in values:
            yield from _tensors(one)
    elif isinstance(values, dict):
        for one in values.values():
            yield from _tensors(one)


def _foreign(function: Any, alone: str = ROW) -> str:
    """Why the operator ``function`` is refused where code stands for one of ``alone``; empty if PyTorch brings it."""
    name = str(getattr(function, "_qualified_op_name", "") or function.name())
    if name.partition("::")[0] in OPERATORS:
        return ""
    return (
        f"{name.replace('::', '.')} is no operator of PyTorch's own, and would see more than one {alone}; write it as "
        "functions of PyTorch"
    )

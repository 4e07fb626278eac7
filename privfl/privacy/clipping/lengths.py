"""How long a pass must be for its rows to be rounded as in every other pass.

A kernel adds up the products of a row in an order that depends on the *shape* of what it is given, not on the values:
one row is given to a matrix-vector product, a few to another kernel, many to a third. So one row more may round all the
other rows otherwise, and a model that loses its digits turns that into other gradients. Which lengths round alike is
found out by running them on public rows: every row must come out as in a pass of a *reference* length, wherever it
stands. A batch of another length is padded to one that does, or cut into passes of the reference length. Every
length that occurs is run before it is used, and since the order of a kernel's additions does not depend on values, what
holds for these rows holds for all. Only what a loop leaves over at its end may differ for few values and no public one:
there lengths are taken that leave nothing over (:mod:`privfl.privacy.clipping.placement`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from types import CellType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from privfl.privacy.clipping.placement import Call, calls_of, nothing_is_left_over, placed_alike

Choice = TypeVar("Choice")

LONGEST_REFERENCE = 64
SHORTEST_REFERENCE = 16
DISTINCT = 32
"""Public rows that every length is tried with, in as many passes as they take: one row alone may happen to be exact."""
FEWER, LARGE = 8, 1 << 20
"""Public rows for a network of more parameters than this, where a row takes seconds and has more that could differ."""
MORE = 3
"""Rows of padding that are tried before a power of two: kernels of 4 or 8 rows leave one over of 5, 9 and 17."""
VALUES_AT_ONCE = 1 << 25
"""Values of per-sample gradients that a reference pass may hold, where it may be shorter than the longest."""
SPREAD = 2.0
"""Public rows are multiplied with powers of ten up to this one, and down to its inverse, so that rounding shows."""
OFFSET = 1e4
"""What is added to every other public row: differences of large numbers show the last bits of what was subtracted."""
NUDGE = 0.02
"""Deviation of what is added to public parameters: layers that begin at zero would hide what is in front of them."""
GIVEN = 0.05, 0.15
"""Range of what stands for a client's own numbers where lengths are tried: a logarithm or a root of them exists."""
SAME = 1e-13
"""Relative difference in float64 that a row's norm may have: one last bit of float32 in it makes a larger one."""


def reference_length(size: int) -> int:
    """Length of the passes that all others are compared with, for a network of ``size`` parameters."""
    return max(SHORTEST_REFERENCE, min(LONGEST_REFERENCE, VALUES_AT_ONCE // max(size, 1)))


def distinct_rows(size: int) -> int:
    """How many public rows lengths are tried with, for a network of ``size`` parameters."""
    return DISTINCT if size <= LARGE else FEWER


def padded_length(rows: int, reference: int, alike: Callable[[int], bool], more: int = 0) -> int:
    """The first length that is ``alike`` the ``reference``.

    Tried are ``rows``, up to ``more`` rows beyond it, and the powers of two above it from 8 on; then it is the
    ``reference`` itself: less than ``rows`` means that the batch is to be cut.
    """
    longer = (1 << power for power in range(max(3, rows.bit_length()), reference.bit_length()))
    tried = dict.fromkeys((*range(rows, rows + more + 1), *longer))
    return next((length for length in tried if length == reference or alike(length)), reference)


def passes(rows: int, most: int, length_of: Callable[[int], int]) -> Iterator[tuple[slice, int]]:
    """The passes that ``rows`` rows take: which rows, at most ``most``, and the length that they are padded to."""
    start = 0
    while start < rows:
        wanted = min(rows - start, most)
        length = length_of(wanted)
        yield slice(start, start + min(wanted, length)), length
        start += min(wanted, length)


def padded(values: Tensor, length: int, dim: int = 0) -> Tensor:
    """``values`` with the first entry along ``dim`` repeated at the end, until there are ``length``."""
    missing = length - values.shape[dim]
    if missing <= 0:
        return values
    first = values.narrow(dim, 0, 1)
    return torch.cat([values, first.expand(*values.shape[:dim], missing, *values.shape[dim + 1 :])], dim)


class PublicRows:
    """Rows and parameters that no data is in, to run passes with."""

    def __init__(self, parameters: Tensor, inputs: Tensor, targets: Tensor) -> None:
        """``parameters`` [size], ``inputs`` [n, ...] and ``targets`` [n] are public."""
        generator = torch.Generator().manual_seed(0)
        if inputs.is_floating_point():
            spread = torch.rand(inputs.shape, generator=generator, dtype=torch.float64) * 2 * SPREAD - SPREAD
            inputs = inputs * (10.0**spread).to(inputs)
            inputs[::2] += OFFSET
        self.inputs, self.targets = inputs, targets
        nudge = torch.randn(parameters.shape, generator=generator) * NUDGE
        self.parameters = parameters.detach() + nudge.to(parameters)

    def batch(self, length: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """A batch of ``length`` that begins with row ``first``; after the last row comes the first one again."""
        index = (torch.arange(length, device=self.targets.device) + first) % len(self.targets)
        return self.inputs[index], self.targets[index]


def public_values(given: Mapping[str, Any], parameters: Tensor) -> dict[str, Any]:
    """What stands for ``given``, the tensors and numbers that a client's loss takes by name, where lengths are tried.

    What a length is must not depend on whose batch comes first, or a client's bits would depend on the order of the
    others and on the process. So tensors as large as ``parameters`` [size], the public ones, become these; other
    floating ones get fixed numbers from ``GIVEN`` in their shape and type, scalars among them; integers become 0 and
    truth values true.
    """
    generator = torch.Generator().manual_seed(1)

    def stand_in(value: Any) -> Any:
        if isinstance(value, float):
            return GIVEN[1] if value else value
        if not isinstance(value, Tensor):
            return value
        if value.dtype == torch.bool or not value.is_floating_point():
            return torch.full_like(value, value.dtype == torch.bool)
        if value.numel() == parameters.numel():
            return parameters.to(value).view(value.shape)
        numbers = torch.rand(value.shape, generator=generator, dtype=torch.float64)
        return (GIVEN[0] + (GIVEN[1] - GIVEN[0]) * numbers).to(value)

    return {name: stand_in(value) for name, value in given.items()}


_FOUND: dict[Hashable, dict[Hashable, bool]] = {}
"""What this process found out, by kind. Kernels stay the same, so that equal networks need not be tried again."""


_PLACES: dict[Hashable, tuple[dict[Hashable, list[Call]], dict[Hashable, int]]] = {}
"""Likewise the calls of every pass that could round a number by its place, and what passes are compared with."""


class Lengths:
    """The lengths of one engine's passes; its workers share what is known of them."""

    def __init__(self, public: PublicRows, *kind: Hashable, own: Hashable = None, plain: Hashable = None) -> None:
        """``kind`` tells apart the networks and the ways to run them for which other kernels may be used.

        So do the settings of a run, of which the task's loss depends on those called ``plain`` alone and any other
        function on its ``own``: what was found out under others, in the same process, does not count.
        """
        self.public, self._own, self._plain = public, own, plain
        self.reference = reference_length(len(public.parameters))
        kind = (*kind, public.inputs.shape, public.inputs.dtype, public.inputs.device, torch.get_num_threads())
        self._found = _FOUND.setdefault(kind, {})
        self._calls, self._references = _PLACES.setdefault(kind, ({}, {}))
        self._expected: dict[Hashable, Tensor] = {}
        self._chosen: dict[Hashable, Any] = {}

    def key(self, question: Hashable, function: Any, given: Any, *, plain: bool) -> tuple[Hashable, ...]:
        """What is asked of ``function`` with what is ``given`` by name, as far as kernels may differ by it.

        ``plain``: it is the task's loss.
        """
        settings = self._plain if plain and not given else self._own
        return question, identity(function), identity(given), settings

    def of(
        self,
        key: Hashable,
        run: Callable[[Tensor, Tensor], Tensor],
        rows: int,
        alone: Callable[[int], object] | None = None,
        stack: int | None = None,
    ) -> int:
        """The length of a pass over ``rows`` rows: less if they are to be cut, more if they are to be padded.

        ``run(inputs, targets)`` gives numbers [B, ...] in float64 that tell how each row is rounded in a pass over
        these [B, ...]; ``key`` says what is run. Where it takes the rows of ``stack`` clients, [stack, B, ...] instead,
        each of them gets other public rows, and ``alone(length)`` runs a pass of that many rows of a single one.
        """

        def once(length: int) -> object:
            return run(*self.public.batch(length)) if alone is None else alone(length)

        def choose() -> int:
            reference = self.reference_of(key, once)

            def same(length: int) -> bool:
                return self.rows_alike(key, run, length, reference, alone, stack)

            return padded_length(rows, reference, same, MORE)

        return self.chosen((key, rows), choose)

    def chosen(self, key: Hashable, choose: Callable[[], Choice]) -> Choice:
        """What ``choose()`` gave when ``key`` was first asked for."""
        found: Choice | None = self._chosen.get(key)
        if found is None:
            found = self._chosen[key] = choose()
        return found

    def rows_alike(
        self,
        key: Hashable,
        run: Callable[[Tensor, Tensor], Tensor],
        length: int,
        other: int,
        alone: Callable[[int], object] | None = None,
        stack: int | None = None,
    ) -> bool:
        """Whether passes of ``length`` round every row as those of an ``other`` length do; given what :meth:`of` is."""

        def once(length: int) -> object:
            return run(*self.public.batch(length)) if alone is None else alone(length)

        def passed(length: int) -> Tensor:
            firsts = range(0, max(len(self.public.targets), length), length)
            batches = [self.public.batch(length, first) for first in firsts]
            if stack is None:
                return torch.cat([run(*batch) for batch in batches])
            return torch.cat([run(*given).flatten(0, 1) for given in _stacked(batches, stack)])[: len(batches) * length]

        return self.placed_alike(key, length, once) and self.same(
            (key, length, other), (key, other), partial(passed, length), partial(passed, other)
        )

    def reference_of(self, key: Hashable, once: Callable[[int], object]) -> int:
        """The length that passes of what ``key`` says are compared with: one in which no row's place shows.

        ``once(length)`` runs a pass of that many rows.
        """
        if key not in self._references:
            reference = self.reference
            while reference < LONGEST_REFERENCE and not self._places_do_not_show(key, reference, once):
                reference = min(LONGEST_REFERENCE, reference + SHORTEST_REFERENCE - reference % SHORTEST_REFERENCE)
            self._references[key] = reference
        return self._references[key]

    def placed_alike(self, key: Hashable, length: int, once: Callable[[int], object]) -> bool:
        """Whether no kernel rounds a row of a pass of ``length`` otherwise because of where it stands."""
        if not self.calls(key, self.reference_of(key, once), once):
            return True
        return placed_alike(self.calls(key, length, once), self.calls(key, self.reference_of(key, once), once))

    def _places_do_not_show(self, key: Hashable, length: int, once: Callable[[int], object]) -> bool:
        calls = self.calls(key, length, once)
        return nothing_is_left_over(calls) or placed_alike(calls, self.calls(key, length + 1, once))

    def calls(self, key: Hashable, length: int, once: Callable[[int], object]) -> list[Call]:
        """The calls of ``once(length)``, a pass of what ``key`` says, that could round a number by its place."""
        if self.public.targets.device.type != "cpu":  # a kernel there is one program, whatever the place
            return []
        if (key, length) not in self._calls:
            self._calls[key, length] = calls_of(lambda: once(length))
        return self._calls[key, length]

    def same(self, key: Hashable, other: Hashable, run: Callable[[], Tensor], expected: Callable[[], Tensor]) -> bool:
        """Whether the rows of ``run()`` equal those of ``expected()``, which begin anew after the last public row.

        Found out once for each ``key``; what is expected is kept as ``other``, unless that is ``None``. Rows that are
        not finite, or are zero everywhere, prove nothing.
        """
        if key not in self._found:
            awaited = self._expected.get(other)
            if awaited is None:
                awaited = expected()
            if other is not None:
                self._expected[other] = awaited
            self._found[key] = _rounds_alike(run(), awaited, len(self.public.targets))
        return self._found[key]


def _stacked(batches: list[tuple[Tensor, Tensor]], stack: int) -> Iterator[tuple[Tensor, Tensor]]:
    """``batches`` as those of ``stack`` clients each, the last one repeated until a stack is full."""
    for first in range(0, len(batches), stack):
        some = batches[first : first + stack]
        some += some[-1:] * (stack - len(some))
        yield torch.stack([inputs for inputs, _ in some]), torch.stack([targets for _, targets in some])


def _rounds_alike(found: Tensor, expected: Tensor, distinct: int) -> bool:
    if not bool(expected.isfinite().all()) or not bool((expected != 0).any()):
        return False
    first = expected[:distinct]
    return all(
        torch.allclose(rows, first[torch.arange(len(rows), device=rows.device) % len(first)], rtol=SAME, atol=0)
        for rows in (expected, found)
    )


def identity(function: Any, depth: int = 6, *, exact: bool = False, within: tuple[nn.Module, ...] = ()) -> Hashable:
    """What tells functions apart whose kernels may differ: their code, and that of all they hold.

    Numbers count as zero or not, since some change from batch to batch; with ``exact`` they count as they are. Of
    modules that are described already, ``within``, only which one it is counts: a model may hold what calls itself.
    """
    inner = partial(identity, depth=depth - 1, exact=exact, within=within)
    if isinstance(function, Tensor):
        return tuple(function.shape), function.dtype
    if isinstance(function, float):  # only a branch for 0 is to be expected
        return "number", function if exact else function == 0
    if isinstance(function, int | str | None):
        return function
    if depth == 0:
        return str(type(function))
    if isinstance(function, nn.Module):
        for place, module in enumerate(within):
            if module is function:
                return "again", place
        within += tuple(function.modules())
        return tuple(_layer(name, layer, within) for name, layer in function.named_modules())
    if isinstance(function, partial):
        named = tuple((name, inner(value)) for name, value in function.keywords.items())
        return "partial", inner(function.func), tuple(map(inner, function.args)), named
    if hasattr(function, "__func__"):
        return "method", inner(function.__func__), inner(function.__self__)
    if hasattr(function, "__code__"):
        cells = tuple(inner(one) for cell in function.__closure__ or () for one in _bound(cell))
        return "function", function.__code__, cells, inner(function.__defaults__)
    if isinstance(function, tuple | list):
        return tuple(map(inner, function))
    if isinstance(function, dict):
        return tuple((inner(name), inner(value)) for name, value in function.items())
    return type(function), inner(dict(getattr(function, "__dict__", {})))


def _bound(cell: CellType) -> tuple[Any, ...]:
    """What a closure holds under a name, or nothing if it is not bound yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _layer(name: str, layer: nn.Module, within: tuple[nn.Module, ...]) -> Hashable:
    """The type, options and shapes of one layer of a network whose modules are ``within``."""
    shapes = tuple(
        (key, tuple(value.shape), value.requires_grad) for key, value in layer.named_parameters(recurse=False)
    )
    buffers = tuple((key, tuple(value.shape)) for key, value in layer.named_buffers(recurse=False))
    options = tuple(
        (key, identity(value, 3, exact=True, within=within))
        for key, value in vars(layer).items()
        if not key.startswith("_") and key != "training" and not isinstance(value, nn.Module)
    )
    return name, type(layer), shapes, buffers, options

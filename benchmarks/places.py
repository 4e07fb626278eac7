"""Whether privfl looks at every function of PyTorch that rounds a number by its place: ``python benchmarks/places.py``.

PyTorch lists its own operators for its tests (``torch.testing``; needs ``pip install expecttest``). Each of them that
takes random numbers one by one, or row by row, is called with all rows at once and with a few at a time. Values and
gradients must have the same bits, or ``privfl.privacy.clipping.placement`` must note the call. What draws random
numbers is left out. Some minutes; to ``benchmarks/results/places.json``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from record import conditions, machine
from torch import Tensor

from privfl.privacy.clipping.placement import calls_of

RESULT = Path(__file__).parent / "results" / "places.json"
MANY, FEW = 4000, 400
"""Rows of one number each, and of several."""
AT_A_TIME = 13
ROWS = ((), (5,), (33,))
"""Shapes of a row."""
RANGES = ((-3.0, 3.0), (0.01, 0.99))
SAMPLES = 6
"""Arguments that PyTorch's tests give an operator besides tensors, at most."""

Function = Callable[..., Any]


def ways_to_call(operator: Any) -> Iterator[tuple[int, Function]]:
    """Functions of one to three tensors of the same shape, with the other arguments of PyTorch's own tests."""
    function = operator.op
    yield from ((count, function) for count in (1, 2, 3))
    for dim in (1, -1):
        yield 1, lambda values, dim=dim: function(values, dim)
        yield 1, lambda values, dim=dim: function(values, dim=dim)
    yield 1, lambda values: function(values, values.shape[1:])
    yield 2, lambda one, other: function(one, other, reduction="none")
    try:
        samples = list(operator.sample_inputs("cpu", torch.float32, requires_grad=False))[:SAMPLES]
    except Exception:  # some need libraries of their own
        return
    for sample in samples:
        others, named = sample.args, sample.kwargs
        if not isinstance(sample.input, Tensor) or any(isinstance(one, Tensor) for one in named.values()):
            continue
        if all(isinstance(one, Tensor) and one.is_floating_point() for one in others):
            yield 1 + len(others), lambda *values, named=named: function(*values, **named)
        elif not any(isinstance(one, Tensor | list | tuple) for one in others):
            yield 1, lambda values, others=others, named=named: function(values, *others, **named)


def values_and_gradients(function: Function, parts: Sequence[Tensor]) -> list[Tensor]:
    """What ``function`` makes of ``parts`` [rows, ...], a row of each row, and the gradients of its sum.

    Raises:
        ValueError: it makes something else.
    """
    leaves = [part.clone().requires_grad_() for part in parts]
    made = function(*leaves)
    made = made[0] if isinstance(made, tuple | list) else made
    if not isinstance(made, Tensor) or made.dim() == 0 or len(made) != len(parts[0]) or not made.is_floating_point():
        raise ValueError("no row of each row")
    if not made.requires_grad:
        return [made]
    found = torch.autograd.grad(made, leaves, torch.full_like(made, 0.7), allow_unused=True)
    return [made.detach(), *(one for one in found if one is not None)]


def rows_that_differ(function: Function, parts: Sequence[Tensor]) -> tuple[int, bool] | None:
    """How many rows come out otherwise a few at a time, and whether a call is noted.

    ``None`` if rows meet, if chance rules, or if ``function`` cannot be called so.
    """
    few = [part[:AT_A_TIME] for part in parts]
    try:
        whole, again = values_and_gradients(function, parts), values_and_gradients(function, parts)
        some = values_and_gradients(function, few)
        noted = bool(calls_of(lambda: values_and_gradients(function, few)))
    except Exception:  # of any kind, by operators that are called with what they do not take
        return None
    if not all(map(_same, whole, again)) or len(some) != len(whole) or not all(map(_begins, some, whole)):
        return None
    splits = zip(*(part.split(AT_A_TIME) for part in parts), strict=True)
    pieces = zip(*(values_and_gradients(function, split) for split in splits), strict=True)
    found = [torch.cat(piece) for piece in pieces]
    if not all(map(_begins, found, whole)):
        return None
    return max(map(_differ, found, whole)), noted


def _differ(found: Tensor, expected: Tensor) -> int:
    """How many rows of ``found`` have other bits; a NaN is like another."""
    other = (found != expected) & ~(found.isnan() & expected.isnan())
    return int(other.flatten(1).any(1).sum()) if other.dim() > 1 else int(other.sum())


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and _differ(one, other) == 0


def _begins(some: Tensor, whole: Tensor) -> bool:
    """Whether ``whole`` begins with about these rows."""
    return some.shape[1:] == whole.shape[1:] and torch.allclose(some, whole[: len(some)], 1e-3, 1e-5, equal_nan=True)


def surveyed(operators: Iterable[Any], told: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """Names of what goes row by row, of what is noted, and rows that differ by the name of what is not."""
    draws = torch.Generator().manual_seed(0)
    by_row, noted, missed = set(), set(), {}
    for operator in operators:
        told(operator.name)
        for count, function in ways_to_call(operator):
            for shape in ROWS:
                for low, high in RANGES:
                    size = (FEW if shape else MANY, *shape)
                    parts = [torch.rand(size, generator=draws) * (high - low) + low for _ in range(count)]
                    found = rows_that_differ(function, parts)
                    if found is None:
                        continue
                    by_row.add(operator.name)
                    if found[1]:
                        noted.add(operator.name)
                    elif found[0]:
                        missed[operator.name] = max(found[0], missed.get(operator.name, 0))
    return {"row by row": sorted(by_row), "noted": sorted(noted), "missed": missed}


def main() -> None:
    """Survey PyTorch's list, and write."""
    parser = argparse.ArgumentParser(description="functions that round by place, and whether they are noted")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    operators = [one for one in op_db if torch.float32 in one.dtypes]
    found = surveyed(operators, lambda name: print(name, flush=True))
    measured = conditions(machine({})) | {"instructions": torch.backends.cpu.get_cpu_capability()}
    result = {"measured": measured, "operators": len(operators), **found}
    asked.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print({name: len(value) for name, value in found.items()}, found["missed"])


if __name__ == "__main__":
    main()

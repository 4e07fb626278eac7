"""In which order several processes run the suite: what takes longest begins first, one such group in each process.

xdist gives every process an equal stretch of the suite, and idle processes steal from the ends of others' stretches. So
a test of more than a minute that stood near the end was still running when nothing was left for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

LONGEST = (
    ("tests/test_benchmarks.py::test_a_node_and_a_driver_that_are_killed", "tests/simulation/test_ray_engine.py"),
    ("tests/test_docs.py::test_the_site_builds",),
    ("tests/deploy/test_flare.py", "tests/examples/test_federation.py"),
    ("tests/claims/test_claims.py::test_no_drawn_experiment",),
)
"""The longest groups, the longest first, by how their names begin; clusters of Ray run one after the other."""


class Named(Protocol):
    """A test, as pytest collects it."""

    @property
    def nodeid(self) -> str: ...


Test = TypeVar("Test", bound=Named)


def dealt(tests: Sequence[Test], processes: int) -> list[Test]:
    """The same tests so that each process's stretch of them begins with a group of :data:`LONGEST` or several."""
    heads: list[list[Test]] = [[] for _ in range(processes)]
    for place, names in enumerate(LONGEST):
        for name in names:
            heads[place % processes] += [test for test in tests if test.nodeid.startswith(name)]
    first = {id(test) for head in heads for test in head}
    rest = [test for test in tests if id(test) not in first]
    found: list[Test] = []
    for place, head in enumerate(heads):
        left = processes - place
        length = max((len(tests) - len(found)) // left, len(head)) if left > 1 else len(tests) - len(found)
        found += head + rest[: length - len(head)]
        rest = rest[length - len(head) :]
    return found

"""What runs on a CUDA device computes what the CPU computes, whatever the algorithm, the engine and the mechanism.

The suite draws one case of each algorithm; ``benchmarks/stand_in_device.py`` runs all of them, and its results lie in
``benchmarks/results/stand-in-device.json``.
"""

import pytest

from tests.device.cases import CASES, ENGINES, compare, small_task
from tests.engine.test_vectorised import ALGORITHMS, PRIVATE


@pytest.fixture(scope="module")
def task():
    return small_task()


def drawn(place, name):
    """Engines and mechanisms in turn, so that each pair of them meets every fourth algorithm."""
    return name, list(ENGINES)[place % 2], place % 4 > 1 and name in PRIVATE


@pytest.mark.parametrize(("name", "engine", "private"), [drawn(*one) for one in enumerate(ALGORITHMS)])
def test_a_round_on_the_device_gives_the_numbers_of_the_cpu(task, name, engine, private):
    assert (name, engine, private) in CASES
    compare(task, name, engine, private)

"""What runs on a CUDA device computes what the CPU computes, whatever the algorithm, the engine and the mechanism.

The suite draws one case of each algorithm, and on a GPU takes all; ``benchmarks/stand_in_device.py`` runs all of them
on the stand-in, and its results lie in ``benchmarks/results/stand-in-device.json``.
"""

import pytest
import torch

from tests.device.cases import CASES, ENGINES, compare, small_task
from tests.engine.test_vectorised import ALGORITHMS, PRIVATE


@pytest.fixture(scope="module")
def task():
    return small_task()


def drawn(place, name):
    """Engines and mechanisms in turn, so that each pair of them meets every fourth algorithm."""
    return name, list(ENGINES)[place % 2], place % 4 > 1 and name in PRIVATE


TAKEN = CASES if torch.cuda.is_available() else [drawn(*one) for one in enumerate(ALGORITHMS)]


@pytest.mark.parametrize(("name", "engine", "private"), TAKEN)
def test_a_round_on_the_device_gives_the_numbers_of_the_cpu(task, name, engine, private):
    assert (name, engine, private) in CASES
    compare(task, name, engine, private)

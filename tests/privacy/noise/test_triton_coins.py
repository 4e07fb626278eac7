"""The kernel of coins, by Triton's interpreter: the coins that the host draws, from the same places of the streams."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from privfl.privacy.noise import device_coins
from privfl.privacy.noise.device_coins import rows_of_coins
from privfl.privacy.noise.source import NoiseStream
from tests.device.stand_in import CUDA, stand_in_cuda

CPU = torch.device("cpu")


def streams():
    return [NoiseStream(bytes([place] * 32)) for place in range(3)]


@pytest.mark.parametrize(("coin_bytes", "least"), [(1, 64), (1, 256), (4, 3_000_000_001)])
def test_the_kernel_tosses_the_coins_of_the_host(interpreted, coin_bytes, least):
    here, there = streams(), streams()
    with stand_in_cuda() as counts:
        assert device_coins.gives_the_coins_of_the_host(CUDA)
        for numbers in ([70, 0, 33], [1, 64, 80], [9000, 17, 130]):
            counts.reset()
            found = rows_of_coins(there, numbers, 9001, least, coin_bytes, CUDA)
            assert (counts.launches.total(), counts.waits.total()) == (2, 0)  # ones are filled in
            assert torch.equal(found.cpu(), rows_of_coins(here, numbers, 9001, least, coin_bytes, CPU))
    for one, other in zip(here, there, strict=True):  # both streams stand where they stood
        assert np.array_equal(one.words(3), other.words(3))


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: `pip install triton` brings it")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is that process")
def test_a_process_with_the_interpreter_passes_the_tests_above():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "kernel", __file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.startswith("...")

"""What the tests of both of Triton's kernels share."""

import os
from importlib.util import find_spec

import pytest

from privfl.privacy.noise import device_coins, fused


@pytest.fixture
def interpreted():
    """Triton's interpreter, which has to be asked for before anything imports Triton, runs the kernels."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed: it comes with PyTorch for CUDA; here `pip install triton` brings it")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("runs in a process of its own, by a test beside this one")
    for found_out in (fused.why_not, device_coins.gives_the_coins_of_the_host):
        found_out.cache_clear()
    yield
    for found_out in (fused.why_not, device_coins.gives_the_coins_of_the_host):
        found_out.cache_clear()

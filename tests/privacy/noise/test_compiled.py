"""The compiled pass has the bits of the exact operations, wherever rows are cut and whatever lies in them."""

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from privfl import compiling
from privfl.privacy.noise import compiled
from privfl.privacy.noise.box_muller import pairs
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_, release_grid
from tests.device.stand_in import stand_in_cuda

SIZES = [1, 2, 15, 17, 1023, 1025, 5386, 65_537, 131_075]


@pytest.fixture(autouse=True)
def there(monkeypatch):
    assert compiled.release() is not None, "the development tools bring Numba"
    monkeypatch.setattr(compiling, "ENOUGH", 0.0)
    monkeypatch.setattr(compiled, "CHUNK", 1 << 16)  # so that the longest of SIZES takes several passes


def streams(n):
    return [NoiseStream(bytes([place] * 32)) for place in range(n)]


def rows(n, size, dtype=torch.float32):
    return torch.randn(n, size, generator=torch.Generator().manual_seed(0), dtype=dtype)


def one_at_a_time(key, row, deviation):
    """The release of ``row`` by the definition: all words, all pairs, the sum on the grid."""
    half, stream = (len(row) + 1) // 2, NoiseStream(key)
    words = np.empty((2, -(-half // 8) * 8), dtype=np.int64)
    block = stream.pair_words(*words)
    fine = stream.fine_words(block, np.arange(half))
    noise = pairs(*(torch.from_numpy(one[:half].copy()) for one in (*words, fine)))
    grid = release_grid(deviation)
    sums = row.double() * (1 / grid) + torch.cat(noise)[: len(row)] * (deviation / grid)
    return (sums.round() * grid).to(row.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 17, 1025, 5386])
def test_a_release_is_that_of_the_definition(size, dtype):
    for key, (row, deviation) in enumerate(zip(rows(3, size, dtype), [1.0, 0.3, 700.0], strict=True)):
        expected = one_at_a_time(bytes([key] * 32), row, deviation)
        assert torch.equal(NoiseStream(bytes([key] * 32)).add_gaussian_(row.clone(), deviation), expected)


@pytest.mark.parametrize("size", SIZES)
def test_the_bits_are_those_of_a_device_and_the_next_ones_too(size):
    deviations = [1.0, 0.3, 0.0, 7.0]
    here, used = rows(4, size), streams(4)
    for _ in range(2):
        add_gaussian_rows_(used, here, deviations)
    with stand_in_cuda():
        there, used = rows(4, size).to("cuda"), streams(4)
        for _ in range(2):
            add_gaussian_rows_(used, there, deviations)
        assert torch.equal(there.cpu(), here)


def test_short_radii_take_their_third_word(monkeypatch):
    """With a limit that one word in 2,000 is below, so that some blocks are left to the exact operations."""
    monkeypatch.setattr(compiled, "REFINE_BELOW", 2.0**52)
    monkeypatch.setattr("privfl.privacy.noise.box_muller.REFINE_BELOW", 2.0**52)
    size = 20_001
    fine = []

    class Watched(NoiseStream):
        def fine_words(self, block, places):
            fine.extend(places)
            return super().fine_words(block, places)

    found = Watched(bytes(32)).add_gaussian_(rows(1, size)[0], 1.0)
    assert 0 < len(fine) < 100
    with stand_in_cuda():
        there = add_gaussian_rows_([NoiseStream(bytes(32))], rows(1, size).to("cuda"), [1.0]).cpu()
    assert torch.equal(found, there[0])


def test_values_that_are_not_finite_stay_so_and_spoil_no_other():
    row = rows(1, 999)[0]
    plain = NoiseStream(bytes(32)).add_gaussian_(row.clone(), 1.0)
    row[[3, 700]] = torch.tensor([torch.inf, torch.nan])
    spoilt = NoiseStream(bytes(32)).add_gaussian_(row, 1.0)
    assert spoilt[3] == torch.inf
    assert spoilt[700].isnan()
    others = [place for place in range(999) if place not in (3, 700)]
    assert torch.equal(spoilt[others], plain[others])


def test_rows_that_do_not_lie_in_one_piece_get_the_same():
    apart = rows(2, 300).repeat_interleave(2, 1)[:, ::2]
    assert apart.stride(1) == 2
    expected = add_gaussian_rows_(streams(2), rows(2, 300), [1.0, 2.0])
    assert torch.equal(add_gaussian_rows_(streams(2), apart, [1.0, 2.0]), expected)


def test_without_numba_the_libraries_functions_give_the_same_release(monkeypatch):
    expected = add_gaussian_rows_(streams(2), rows(2, 99_999), [1.0, 0.3])
    monkeypatch.setattr(compiled, "release_once_it_pays", lambda numbers: None)
    monkeypatch.setattr(compiling, "installed", lambda: False)
    assert torch.equal(add_gaussian_rows_(streams(2), rows(2, 99_999), [1.0, 0.3]), expected)


@pytest.mark.parametrize("size", [1, 17, 5386, 65_537])
def test_loading_it_in_the_middle_of_a_run_changes_no_bit(size, monkeypatch):
    """Half of the values are close enough to be computed anew before, so that their being exact is seen."""
    monkeypatch.setattr("privfl.privacy.noise.gaussian.CLOSE", 0.25)
    used, released = streams(3), rows(3, size)
    for _ in range(4):
        add_gaussian_rows_(used, released, [1.0, 0.3, 7.0])
    used, again = streams(3), rows(3, size)
    for enough in (math.inf, math.inf, 0.0, 0.0):
        monkeypatch.setattr(compiling, "ENOUGH", enough)
        add_gaussian_rows_(used, again, [1.0, 0.3, 7.0])
    assert torch.equal(again, released)


def test_before_it_is_loaded_close_values_are_computed_anew(monkeypatch):
    """With a margin that every value is within, what is released before is the exact operations' doing alone."""
    monkeypatch.setattr("privfl.privacy.noise.gaussian.CLOSE", 1.0)
    monkeypatch.setattr(compiling, "ENOUGH", math.inf)
    row = rows(1, 5386)[0]
    expected = one_at_a_time(bytes(32), row, 0.3)
    monkeypatch.setattr("privfl.privacy.noise.gaussian.TURN", 0.0)  # of the libraries' functions nothing is left
    assert torch.equal(NoiseStream(bytes(32)).add_gaussian_(row.clone(), 0.3), expected)


def test_a_process_that_makes_little_noise_does_not_load_numba():
    program = (
        "import sys, torch; from privfl import compiling; from privfl.privacy.noise.source import NoiseStream; "
        "assert compiling.installed(); stream = NoiseStream(bytes(32)); "
        "stream.add_gaussian_(torch.zeros(99_999), 1.0); "
        "print('numba' in sys.modules); compiling.ENOUGH = 1e-6; stream.add_gaussian_(torch.zeros(5), 1.0); "
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_numba_is_no_requirement():
    """In a process where it cannot be imported, noise is that of the libraries' functions."""
    program = (
        "import sys; sys.modules['numba'] = None; import torch; from privfl.privacy.noise import compiled; "
        "from privfl.privacy.noise.source import NoiseStream; assert compiled.release() is None; "
        "print(NoiseStream(bytes(32)).add_gaussian_(torch.zeros(5), 1.0).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(NoiseStream(bytes(32)).add_gaussian_(torch.zeros(5), 1.0).tolist())


def test_nothing_is_fused_or_reordered():
    """What would change bits between processors: a multiplication and an addition in one, or fast mathematics."""
    import numba

    assert not compiled.release().targetoptions.get("fastmath")
    fresh = numba.njit(error_model="numpy")(compiled._release)  # of what comes from disk nothing can be read
    words, row = np.full((2, 8), 1 << 50), np.zeros(16, dtype=np.float32)
    assert fresh(*words, row, 0, 1.0, 1.0, 1.0, int(compiled.REFINE_BELOW), np.zeros(1, dtype=np.int64)) == 0
    (text,) = fresh.inspect_asm().values()
    assert "mul" in text
    assert "fmadd" not in text
    assert "fmsub" not in text


def test_many_threads_may_release_at_once():
    expected = [NoiseStream(bytes([one] * 32)).add_gaussian_(torch.zeros(70_000), 1.0) for one in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda one: NoiseStream(bytes([one] * 32)).add_gaussian_(torch.zeros(70_000), 1.0), range(8))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

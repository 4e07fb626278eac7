"""A device tosses the coins that the host would draw, from the same places of the same streams."""

import numpy as np
import pytest
import torch

from privfl.privacy.noise import device_coins, fused
from privfl.privacy.noise.device_coins import coins, gives_the_coins_of_the_host, rows_of_coins
from privfl.privacy.noise.source import NoiseStream
from tests.device.stand_in import CUDA, stand_in_cuda

CPU = torch.device("cpu")


def streams():
    return [NoiseStream(bytes([place] * 32)) for place in range(3)]


def test_a_device_that_has_none_is_sent_them():
    with stand_in_cuda() as counts:
        found = rows_of_coins(streams(), [70, 0, 33], 80, 64, 1, CUDA)
        assert (counts.launches.total(), counts.waits.total()) == (0, 0)
        assert found.dtype == torch.bool
        assert torch.equal(found.cpu(), rows_of_coins(streams(), [70, 0, 33], 80, 64, 1, CPU))


def inverted(kept, *given):
    kept.zero_()


def broken(kept, *given):
    raise ValueError("no such kernel")


@pytest.mark.parametrize(
    ("kernel", "because"),
    [(inverted, "its coins are not the host's"), (broken, r"it fails \(ValueError: no such kernel")],
)
def test_a_kernel_that_differs_or_fails_is_not_used_and_a_warning_says_so(kernel, because, monkeypatch):
    gives_the_coins_of_the_host.cache_clear()
    with stand_in_cuda():
        monkeypatch.setattr(fused, "available", lambda: True)
        monkeypatch.setattr(device_coins, "toss_", kernel)
        with pytest.warns(RuntimeWarning, match=because):
            found = rows_of_coins(streams(), [70, 0, 33], 80, 64, 1, CUDA).cpu()
    gives_the_coins_of_the_host.cache_clear()
    assert torch.equal(found, rows_of_coins(streams(), [70, 0, 33], 80, 64, 1, CPU))


def test_coins_reach_a_bound_as_often_as_they_should_and_what_has_none_is_kept():
    least = 64
    found = rows_of_coins(streams()[:1], [100_000], 100_010, least, 1, CPU)[0]
    assert found[100_000:].all()
    # The share of 100,000 coins is off by more than 0.0075 with probability below 1e-7.
    assert float(found[:100_000].double().mean()) == pytest.approx(1 - least / 256, abs=0.0075)


@pytest.mark.parametrize("passed", [0, 1, 7, 8, 9, 1000])
def test_words_after_those_that_were_passed_over_are_the_next_ones(passed):
    whole, other = streams()[1], streams()[1]
    expected = whole.words(5 + passed + 20)[-20:]
    other.words(5)
    assert other.skip_words(passed) == 5
    assert np.array_equal(other.words(20), expected)


def test_coins_take_whole_words():
    stream, expected = NoiseStream(bytes(32)), NoiseStream(bytes(32)).words(4)
    assert coins(stream, 9, 1).tolist() == expected.view(np.uint8)[:9].tolist()
    assert coins(stream, 3, 4).tolist() == expected.view("<u4")[4:7].tolist()

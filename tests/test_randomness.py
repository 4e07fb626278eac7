"""What threads draw from PyTorch's process-wide generator inside privfl is the same whoever else draws meanwhile."""

import threading

import pytest
import torch

from privfl.randomness import process_generators, times_used


def drawn(seed, meeting=None):
    with process_generators(seed):
        first = torch.rand(3)
        if meeting is not None:
            meeting.wait(0.2)
        return torch.cat([first, torch.rand(3)])


def test_two_threads_never_draw_by_turns():
    before, alone = torch.get_rng_state(), [drawn(seed) for seed in (1, 2)]
    meeting, found = threading.Event(), {}  # nobody comes: each waits inside, as long as the other could draw
    threads = [threading.Thread(target=lambda seed=seed: found.update({seed: drawn(seed, meeting)})) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[1], alone[0])
    assert torch.equal(found[2], alone[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_one_within_another_puts_back_what_the_outer_one_had():
    with process_generators(1):
        whole = torch.rand(4)
    with process_generators(1):
        first = torch.rand(2)
        with process_generators(7):
            torch.rand(5)
        assert torch.equal(torch.cat([first, torch.rand(2)]), whole)


def test_it_tells_whether_anybody_is_inside_also_after_an_error():
    entered, left = times_used()
    assert entered == left
    with process_generators():
        assert times_used() == (entered + 1, left)
    with pytest.raises(KeyError), process_generators():
        {}[times_used()]
    assert times_used() == (entered + 2, left + 2)

"""A device makes noise by one kernel only if every bit is the host's; where that is not so, it says so and goes on."""

import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec

import pytest
import torch

import privfl as pf
from privfl.engine.loop import LoopEngine
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.noise import fused
from privfl.privacy.noise.source import NoiseStream, add_gaussian_rows_
from tests.device.cases import small_task
from tests.device.stand_in import CUDA, stand_in_cuda

TYPES = [(torch.float32, torch.int32), (torch.float64, torch.int64)]


@pytest.fixture
def forgetful():
    fused.why_not.cache_clear()
    yield
    fused.why_not.cache_clear()


@pytest.mark.parametrize(("dtype", "bits"), TYPES)
def test_the_kernel_gives_the_bits_of_the_host(interpreted, dtype, bits):
    rows, *given = fused.public_release(dtype)
    found = rows.clone()
    fused.release_(found, *given)
    fused.release_by_operations_(rows, *given)
    assert torch.equal(found.view(bits), rows.view(bits))


@pytest.mark.parametrize("size", [1, 2, 15, 17, 130])
def test_the_kernel_writes_its_rows_and_nothing_beside_them(interpreted, size):
    _, *given = fused.public_release(torch.float32)
    wide = torch.randn(4, size + 9, generator=torch.Generator().manual_seed(0))
    found, expected = wide.clone(), wide.clone()
    fused.release_(found[:, 3 : 3 + size], *given)
    fused.release_by_operations_(expected[:, 3 : 3 + size], *given)
    assert torch.equal(found, expected)


def test_a_device_with_the_kernel_launches_it_once(interpreted):
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    with stand_in_cuda() as counts:
        there = rows.to("cuda")
        assert fused.gives_the_bits_of_the_host(CUDA)
        counts.reset()
        add_gaussian_rows_([NoiseStream(bytes([place] * 32)) for place in range(3)], there, [1.0, 0.3, 7.0])
        assert (counts.launches.total(), counts.waits.total()) == (1, 0)
        found = there.cpu()
    fused.why_not.cache_clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRITON_INTERPRET", "0")
        with stand_in_cuda() as counts:
            there = rows.to("cuda")
            add_gaussian_rows_([NoiseStream(bytes([place] * 32)) for place in range(3)], there, [1.0, 0.3, 7.0])
            assert counts.launches.total() > 100
            assert torch.equal(there.cpu(), found)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: `pip install triton` brings it")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is that process")
def test_a_process_with_the_interpreter_passes_the_tests_above():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "kernel and not differs", __file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "........ " in done.stdout
    assert "s" not in done.stdout.split("[100%]")[0]


def test_what_is_tried_has_a_word_that_takes_a_third_and_ends_within_a_block():
    rows, keys, first, *_ = fused.public_release(torch.float32)
    words = fused.key_stream(keys, first, 0, 1, (fused.RADIUS,))[0]
    small = words.double().abs() < 2.0**33
    assert small.nonzero().tolist() == [[0, 4]]
    assert rows.shape[1] % 2 == 1
    assert (rows.shape[1] + 1) // 2 % 8 not in (0, 7)
    assert (rows.shape[1] + 1) // 2 > 8 * fused.LANES


def test_without_triton_nothing_is_said_and_the_operations_make_the_noise(forgetful, monkeypatch, recwarn):
    monkeypatch.setattr(fused, "available", lambda: False)
    assert fused.why_not(CUDA) is None
    assert not fused.gives_the_bits_of_the_host(CUDA)
    assert not recwarn.list


def one_bit_off(rows, *given):
    fused.release_by_operations_(rows, *given)
    rows.view(-1)[-1:] *= 1 + 2.0**-23


def broken(rows, *given):
    raise RuntimeError("no such instruction\nin line 7")


@pytest.mark.parametrize(
    ("kernel", "because"), [(one_bit_off, "its bits are not the host's"), (broken, r"it fails \(RuntimeError: no such")]
)
def test_a_kernel_that_differs_or_fails_is_not_used_and_a_warning_says_so(forgetful, monkeypatch, kernel, because):
    rows = torch.zeros(2, 40)
    with stand_in_cuda():
        monkeypatch.setattr(fused, "available", lambda: True)
        monkeypatch.setattr(fused, "release_", kernel)
        there = rows.to("cuda")
        with pytest.warns(RuntimeWarning, match=because):
            add_gaussian_rows_([NoiseStream(bytes([place] * 32)) for place in range(2)], there, [1.0, 0.3])
        assert "PyTorch's operations make the same noise" in fused.why_not(CUDA)
        found = there.cpu()
    fused.why_not.cache_clear()
    with stand_in_cuda():
        monkeypatch.setattr(fused, "available", lambda: False)
        there = rows.to("cuda")
        add_gaussian_rows_([NoiseStream(bytes([place] * 32)) for place in range(2)], there, [1.0, 0.3])
        assert torch.equal(there.cpu(), found)


def test_the_notes_of_a_private_run_on_such_a_device_say_so_too(forgetful, monkeypatch):
    with stand_in_cuda():
        monkeypatch.setattr(fused, "available", lambda: True)
        monkeypatch.setattr(fused, "release_", broken)
        task = small_task().to(CUDA)
        algorithm = pf.FedAvg().bind(task.context(3, 1))
        training = pf.LocalTraining(batch_size=8, steps=1)
        for dpsgd, said in ((None, False), (pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5), True)):
            channel, way = RoundChannel.bare(algorithm.fields(), dpsgd), "layers" if said else None
            with pytest.warns(RuntimeWarning, match="makes no noise") if said else nullcontext():
                engine = LoopEngine(task, algorithm, training, channel, way=way)
            assert any("Triton's kernel makes no noise on cuda:0" in note for note in engine.notes) == said

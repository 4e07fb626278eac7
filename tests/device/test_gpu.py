"""What only a GPU can show; all of it needs one, and ``PRIVFL_TEST_GPU=1``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.noise import fused
from privfl.privacy.noise.source import NoiseSource, NoiseStream, add_gaussian_rows_

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device and PRIVFL_TEST_GPU=1")
CUDA = torch.device("cuda", 0)
PRIVATE = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2), noise_key=3)


def convolutional():
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(36, 10)]
    return nn.Sequential(*layers)


def run(device="cuda", **more):
    settings = {"engine": "vectorised", "deterministic": True, **more.pop("execution", {})}
    return pf.simulate(
        pf.load("digits", partition=pf.IID(clients=8), model=convolutional),
        pf.FedAvg("uniform"),
        training=pf.LocalTraining(learning_rate=0.2, batch_size=20, steps=3),
        execution=pf.Execution(device=device, workers=1, **settings),
        **{"rounds": 3, **more},
    )


def test_the_compiled_kernel_gives_the_bits_of_the_host():
    assert fused.why_not(CUDA) == ""
    rows = torch.linspace(-1, 1, 3 * 100_003).view(3, -1)
    there = rows.to(CUDA)
    for values in (rows, there):
        add_gaussian_rows_([NoiseStream(bytes([place]) * 32) for place in range(3)], values, [1.0, 0.3, 7.0])
    assert torch.equal(there.cpu(), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operations_on_the_device_give_them_too(dtype):
    rows, *given = fused.public_release(dtype)
    there = rows.to(CUDA)
    fused.release_by_operations_(there, *(one.to(CUDA) for one in given))
    fused.release_by_operations_(rows, *given)
    assert torch.equal(there.cpu(), rows)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("privacy", [None, PRIVATE], ids=["plain", "dp-sgd"])
def test_a_deterministic_run_repeats_bit_by_bit(engine, privacy, common_noise):
    runs = [run(privacy=privacy, execution={"engine": engine}) for _ in range(2)]
    assert torch.equal(runs[0].parameters, runs[1].parameters)


def test_a_run_that_is_resumed_ends_in_the_same_bits(tmp_path):
    class Stopped(Exception):
        pass

    def stop(_, line):
        if line["round"] == 1:
            raise Stopped

    whole = run(privacy=PRIVATE, rounds=4)
    again = {"checkpoint_seconds": 0.0}
    with pytest.raises(Stopped):
        run(privacy=PRIVATE, rounds=4, out=tmp_path / "run", callbacks=[stop], execution=again)
    resumed = run(privacy=PRIVATE, rounds=4, out=tmp_path / "run", resume=True, execution=again)
    assert torch.equal(resumed.parameters, whole.parameters)
    assert resumed.statement.to_json() == whole.statement.to_json()


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize("privacy", [None, PRIVATE], ids=["plain", "dp-sgd"])
def test_a_narrow_precision_ends_near_the_wide_one(precision, privacy, common_noise):
    narrow, wide = (run(privacy=privacy, execution={"precision": one}) for one in (precision, "float32"))
    assert precision == "bfloat16" or not narrow.warnings  # it is stacked
    away = (narrow.parameters - wide.parameters).norm() / wide.parameters.norm()
    assert 0 < float(away) < 0.05


def test_a_stack_that_does_not_fit_is_halved_until_it_does():
    def wide():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 40_000), nn.ReLU(), nn.Linear(40_000, 10))

    task = pf.load("digits", partition=pf.IID(clients=64), model=wide).to(CUDA)
    algorithm = pf.FedAvg("uniform").bind(task.context(64, 1))
    received = {"parameters": flatten(task.model(0)).to(CUDA)}
    size = received["parameters"].numel() * 4
    training = pf.LocalTraining(learning_rate=0.1, batch_size=10, steps=1)
    context = RoundContext(0, 1, NoiseSource.from_key(4), {})
    expected = None
    torch.cuda.empty_cache()
    for bytes_there in (None, torch.cuda.memory_allocated() + 120 * size):
        share = 1.0 if bytes_there is None else bytes_there / torch.cuda.get_device_properties(CUDA).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(share)
        try:
            with LoopEngine(task, algorithm, training, RoundChannel.bare(algorithm.fields())) as loop:
                engine = VectorisedEngine(loop, 64)
                total = sum(one.upload["update"].double().cpu() for one in engine.train(range(64), received, context))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert bool(engine.notes) == (bytes_there is not None), engine.notes
        expected = total if expected is None else expected
        torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)
    assert engine.chunk < 64
    assert "memory ran out with 64 clients at once" in engine.notes[0]

"""Which engine trains a run, why, and what happens to models that cannot be stacked."""

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch._C._functorch import is_batchedtensor

import privfl as pf
from privfl.algorithms import FedAvg
from privfl.engine import choice
from privfl.engine.choice import choose, why_not_stacked
from privfl.engine.loop import LoopEngine
from privfl.engine.memory import bytes_per_client, free_bytes, largest_chunk
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping.row_wise import out_of_memory
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.precision import matrix_products
from tests.device.stand_in import CUDA, stand_in_cuda


class Branching(nn.Module):
    """Control flow that depends on the data."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, inputs):
        outputs = self.inner(inputs.flatten(1))
        return outputs if outputs.sum() > 0 else 2 * outputs


class Looking(nn.Module):
    """Looks whether it is stacked, and answers otherwise then, without an error."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, inputs):
        return self.inner(inputs.flatten(1)) * (2 if is_batchedtensor(inputs) else 1)


def branching():
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 8, 8)), Branching())


def digits(model="logistic", clients=6):
    return pf.load("digits", partition=pf.IID(clients=clients), model=model)


def chosen(task, wanted="auto", *, algorithm=None, cohort=6, rounds=10, dpsgd=None):
    algorithm = algorithm or FedAvg("uniform")
    channel = RoundChannel.bare(algorithm.fields(), dpsgd)
    way = None if dpsgd is None else "layers"
    received = algorithm.broadcast(algorithm.start(flatten(task.model(0))))
    with LoopEngine(task, algorithm, LocalTraining(), channel, way=way, workers=1) as loop:
        return choose(wanted, loop, way, received, cohort=cohort, rounds=rounds)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (branching, "layer '2 (Branching)' cannot be stacked: vmap: It looks like you're attempting to use a Tensor"),
    ],
)
def test_a_model_that_cannot_be_stacked_is_trained_by_the_loop_and_one_sentence_says_which_layer(model, sentence):
    task = digits(model)
    run = pf.simulate(task, FedAvg("uniform"), rounds=1, execution=pf.Execution(engine="vectorised"))
    (warning,) = run.summary["warnings"]
    assert warning.startswith("clients are trained one by one because")
    assert sentence in warning
    assert "\n" not in warning


def test_a_model_that_comes_out_different_when_stacked_is_trained_by_the_loop():
    assert "'update' comes out different when clients are stacked" in chosen(digits(Looking), "vectorised").reason


def test_under_tf32_engines_are_compared_without_it():
    seen = []

    class Watching(nn.Linear):
        def forward(self, inputs):
            seen.append(torch.backends.cuda.matmul.allow_tf32)
            return super().forward(inputs)

    task, algorithm = digits(lambda: nn.Sequential(nn.Flatten(), Watching(64, 10))), FedAvg("uniform")
    received = algorithm.broadcast(algorithm.start(flatten(task.model(0))))
    channel = RoundChannel.bare(algorithm.fields())
    with LoopEngine(task, algorithm, LocalTraining(), channel, workers=1, precision="tf32") as loop:
        seen.clear()
        assert why_not_stacked(loop, None, received) == ""
    assert seen
    assert not any(seen)


@dataclass(frozen=True)
class Deciding(FedAvg):
    """A step that branches on a value."""

    name: ClassVar[str] = "deciding"

    def step(self, local, received, batch, client, training):
        if float(local["parameters"].norm()) > 0:
            super().step(local, received, batch, client, training)


@dataclass(frozen=True)
class Broken(FedAvg):
    """Stacked, its steps fail as they do where the device does."""

    name: ClassVar[str] = "broken"

    def step(self, local, received, batch, client, training):
        if torch._C._functorch.is_batchedtensor(local["parameters"]):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        super().step(local, received, batch, client, training)


def test_a_device_that_fails_is_not_taken_for_a_model_that_cannot_be_stacked():
    with pytest.raises(RuntimeError, match="illegal memory access"):
        chosen(digits(), "vectorised", algorithm=Broken("uniform"))


@pytest.mark.parametrize(
    ("error", "memory", "device"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True, False),
        (torch.OutOfMemoryError("CUDA out of memory."), True, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), False, True),
        (RuntimeError("vmap: it looks like you're calling .item()"), False, False),
    ],
)
def test_what_libraries_say_of_memory_and_of_the_device_is_understood(error, memory, device):
    assert out_of_memory(error) == memory
    assert choice._device_failed(error) == device


def test_an_engine_is_timed_three_times_after_a_first_or_as_often_as_the_budget_allows(monkeypatch):
    times, trained = iter([9.0, 3.0, 1.0, 2.0, 7.0, 8.0]), []

    def train(engine, received, ids):
        trained.append(next(times))

    clock = lambda: sum(trained)  # noqa: E731
    monkeypatch.setattr(choice, "_train", train)
    monkeypatch.setattr(choice.time, "perf_counter", clock)
    received = {"parameters": torch.zeros(1)}
    assert choice._seconds(None, received, [0], 100.0) == 1.0 / 2
    assert trained == [9.0, 3.0, 1.0, 2.0]
    assert choice._seconds(None, received, [0], 5.0) == 7.0 / 2


def test_the_loop_is_timed_twice_at_least_since_a_machine_may_stand_still(monkeypatch):
    """One time longer than the budget would decide, and stack what is half as fast so."""
    times, trained = iter([17.0, 1.0, 9.0]), []
    monkeypatch.setattr(choice, "_train", lambda *_: trained.append(next(times)))
    monkeypatch.setattr(choice.time, "perf_counter", lambda: sum(trained))
    assert choice._seconds(None, {"parameters": torch.zeros(1)}, [0], 5.0, least=choice.TWICE) == 1.0 / 2
    assert trained == [17.0, 1.0]


def test_times_in_which_something_was_compiled_do_not_count(monkeypatch):
    """A CNN was timed at 13 ms a step by the loop instead of 4, and stacked, which is half as fast."""
    times, trained = iter([60.0, 50.0, 3.0, 1.0, 2.0, 4.0, 9.0]), []
    monkeypatch.setattr(choice, "_train", lambda *_: trained.append(next(times)))
    monkeypatch.setattr(choice.time, "perf_counter", lambda: sum(trained))
    monkeypatch.setattr(choice, "compiled_so_far", lambda: min(len(trained), 2))
    assert choice._seconds(None, {"parameters": torch.zeros(1)}, [0], 11.0) == 1.0 / 2
    assert trained == [60.0, 50.0, 3.0, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(("hopeful", "least"), [(5.0, 1.0), (4.0, 9.0)])
def test_a_first_time_that_is_not_hopelessly_slow_is_not_the_last_one(monkeypatch, hopeful, least):
    """What is compiled in it is compiled once."""
    times, trained = iter([9.0, 1.0, 7.0]), []
    monkeypatch.setattr(choice, "_train", lambda *_: trained.append(next(times)))
    monkeypatch.setattr(choice.time, "perf_counter", lambda: sum(trained))
    received = {"parameters": torch.zeros(1)}
    assert choice._seconds(None, received, [0], 0.5, hopeful=hopeful) == least / 2


def test_a_run_that_the_loop_was_seen_to_finish_soon_is_not_timed_again(monkeypatch):
    """The least of more times would be less still."""
    began = []
    monkeypatch.setattr(choice, "_train", lambda *_: began.append(0))
    monkeypatch.setattr(choice.time, "perf_counter", lambda: float(len(began)))
    received = {"parameters": torch.zeros(1)}
    for short, times in ((0.6, 1), (0.5, 4)):
        began.clear()
        assert choice._seconds(None, received, [0], 100.0, short) == 1.0 / 2
        assert len(began) == times


def test_the_loop_is_not_timed_for_long_before_a_run_of_huge_clients(monkeypatch):
    clock = iter(range(0, 10**6, 4))  # every look at it is four seconds later
    monkeypatch.setattr(choice.time, "perf_counter", lambda: next(clock))
    trained = []
    monkeypatch.setattr(choice, "_train", lambda engine, received, ids: trained.append(type(engine)))
    monkeypatch.setattr(choice, "why_not_stacked", lambda *_: "it cannot")
    assert chosen(digits()).reason == "it cannot"
    assert trained == [LoopEngine, LoopEngine]


def test_a_step_that_branches_on_a_value_is_trained_by_the_loop():
    run = pf.simulate(digits(), Deciding("uniform"), rounds=1, execution=pf.Execution(engine="vectorised"))
    (warning,) = run.summary["warnings"]
    assert "a step of deciding cannot be stacked" in warning


def test_auto_measures_long_runs_and_both_engines_are_in_the_record(monkeypatch, tmp_path):
    monkeypatch.setattr(choice, "SHORT_RUN_SECONDS", 0.0)
    two = pf.Execution(workers=2)  # many workers would leave no eight clients to each
    settings = {"rounds": 40, "evaluate_every": 40, "execution": two}
    run = pf.simulate(digits(clients=40), FedAvg("uniform"), out=tmp_path / "run", **settings)
    record = json.loads((tmp_path / "run" / "engine.json").read_text())
    assert record["engine"] in ("loop", "vectorised")
    assert record["reason"] == "faster, as measured"
    assert "loop" in record["seconds"]
    assert "8 at once" in record["seconds"]
    fastest = min(record["seconds"], key=record["seconds"].get)
    assert (fastest == "loop") == (record["engine"] == "loop")
    assert (record["chunk"] is None) == (record["engine"] == "loop")
    assert run.summary["warnings"] == []


def test_a_short_run_and_a_single_client_are_not_measured():
    assert chosen(digits()).reason.startswith("the whole run takes about")
    assert chosen(digits(), cohort=1, rounds=10**6).reason == "there are never two clients to stack"
    assert chosen(digits(), "vectorised").chunk == 6
    assert chosen(digits(), "loop").seconds == {}


def test_a_resumed_run_keeps_its_engine(monkeypatch, tmp_path):
    class Stop(Exception):
        pass

    def stop(simulation, line):
        if line["round"] == 2:
            raise Stop

    settings = {"rounds": 5, "out": tmp_path / "run"}
    with pytest.raises(Stop):
        pf.simulate(
            digits(),
            FedAvg("uniform"),
            execution=pf.Execution(engine="vectorised", checkpoint_seconds=0.0),
            callbacks=[stop],
            **settings,
        )
    run = pf.simulate(digits(), FedAvg("uniform"), execution=pf.Execution(engine="loop"), resume=True, **settings)
    assert json.loads((tmp_path / "run" / "engine.json").read_text())["engine"] == "vectorised"
    straight = pf.simulate(digits(), FedAvg("uniform"), rounds=5, execution=pf.Execution(engine="vectorised"))
    assert torch.equal(run.parameters, straight.parameters)


def test_an_unknown_engine_is_one_sentence():
    with pytest.raises(ConfigError, match="engine is 'turbo'; choose 'auto', 'loop', 'vectorised' or 'ray'"):
        pf.simulate(digits(), FedAvg(), rounds=1, execution=pf.Execution(engine="turbo"))


@pytest.mark.parametrize(
    "privacy",
    [
        None,
        pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1), noise_key=3),
        pf.Privacy(update=(pf.Clip(0.1), pf.GaussianNoise(1.0)), noise_key=3),
        pf.Privacy(update=(pf.Clip(0.1), pf.GaussianNoise(1.0, at="client")), noise_key=3),
    ],
    ids=["plain", "dp-sgd", "central", "local"],
)
def test_whole_runs_agree_in_metrics_model_and_statement(privacy):
    task = digits("two-nn", clients=12)
    runs = [
        pf.simulate(
            task,
            FedAvg("uniform"),
            rounds=3,
            privacy=privacy,
            cohort=pf.FixedCohort(7),
            execution=pf.Execution(engine=engine),
        )
        for engine in ("loop", "vectorised")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=2e-5)
    assert runs[0].statement.to_json() == runs[1].statement.to_json()
    for one, other in zip(*(run.metrics for run in runs), strict=True):
        assert one["clients"] == other["clients"]
        assert one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-3)


def test_on_a_device_the_windows_of_convolutions_count():
    def needed(task):
        algorithm = FedAvg("uniform")
        with LoopEngine(task, algorithm, LocalTraining(batch_size=20), RoundChannel.bare(algorithm.fields())) as loop:
            return bytes_per_client(loop, None)

    task = digits(lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)))
    here = needed(task)
    with stand_in_cuda():
        there = needed(task.to(CUDA))
    assert there - here == 4 * 20 * 3 * 36 * 9  # float32, rows, forth, back and what is added up, positions, values


def test_the_largest_chunk_follows_from_free_memory(monkeypatch):
    task = digits("two-nn")
    channel = RoundChannel.bare(FedAvg("uniform").fields())
    with LoopEngine(task, FedAvg("uniform"), LocalTraining(), channel, workers=1) as loop:
        need = bytes_per_client(loop, None)
        values = flatten(task.model(0)).numel()
        assert need > 4 * 4 * values  # parameters, gradient, update and their copies at least
        assert bytes_per_client(loop, "vmap") > need + 4 * 20 * values
        monkeypatch.setattr("privfl.engine.memory.free_bytes", lambda device: 40.5 * need)
        assert [largest_chunk(loop, None, share) for share in (3, 10, 12)] == [3, 10, 10]
        monkeypatch.setattr("privfl.engine.memory.free_bytes", lambda device: 1.0)
        assert largest_chunk(loop, None, 12) == 0


@pytest.mark.parametrize(
    ("each", "share", "chunk"),
    [(1 << 20, 50, 50), (1 << 20, 90, 90), (1 << 20, 100, 50), (1 << 20, 1000, 63), (1 << 40, 5, 5), (1 << 40, 500, 4)],
)
def test_on_a_cpu_a_large_share_goes_in_equal_chunks_that_stay_near_a_core(monkeypatch, each, share, chunk):
    channel = RoundChannel.bare(FedAvg("uniform").fields())
    monkeypatch.setattr("privfl.engine.memory.free_bytes", lambda device: 1e18)
    monkeypatch.setattr("privfl.engine.memory.bytes_per_client", lambda loop, way: float(each))
    with LoopEngine(digits("logistic"), FedAvg("uniform"), LocalTraining(), channel, workers=2) as loop:
        assert largest_chunk(loop, None, share) == chunk


def test_free_memory_is_known_with_and_without_linux(monkeypatch):
    assert free_bytes(torch.device("cpu")) > 0
    monkeypatch.setattr("privfl.engine.memory.Path.read_text", lambda path, encoding: "MemAvailable:  2048 kB\n")
    assert free_bytes(torch.device("cpu")) == 2 << 20
    monkeypatch.setattr("privfl.engine.memory.Path.read_text", lambda path, encoding: "MemFree:  2048 kB\n")
    assert free_bytes(torch.device("cpu")) > 0


def test_what_can_be_stacked_has_no_excuse():
    task = digits("two-nn")
    for dpsgd, way in ((None, None), (pf.DPSGD(noise_multiplier=1.0), "layers")):
        algorithm = FedAvg("uniform")
        channel = RoundChannel.bare(algorithm.fields(), dpsgd)
        received = algorithm.broadcast(algorithm.start(flatten(task.model(0))))
        with LoopEngine(task, algorithm, LocalTraining(), channel, way=way, workers=1) as loop:
            assert why_not_stacked(loop, way, received) == ""


@pytest.mark.usefixtures("common_noise")
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("dpsgd", [None, pf.DPSGD(noise_multiplier=0.0, sample_rate=0.2)], ids=["plain", "clipped"])
def test_bfloat16_gradients_stay_near_float32_ones_and_clipping_holds(engine, dpsgd):
    def with_dropout():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Dropout(0.5), nn.Linear(300, 10))

    task = digits(with_dropout)
    settings = {"rounds": 1, "privacy": pf.Privacy(training=dpsgd, noise_key=1)}
    training = LocalTraining(learning_rate=0.1, batch_size=50, steps=1)
    exact, coarse = (
        pf.simulate(
            task,
            FedAvg("uniform"),
            training=training,
            execution=pf.Execution(engine=engine, precision=precision),
            **settings,
        ).parameters
        for precision in ("float32", "bfloat16")
    )
    start = flatten(task.model(0))
    assert not torch.equal(exact, coarse)
    assert float((exact - coarse).norm() / (exact - start).norm()) < 0.03  # bfloat16 keeps 8 bits
    if dpsgd is not None:
        biggest = max(int(size) for size in task.clients.sizes) * 0.1 / 50
        assert float((coarse - start).norm()) <= biggest


def test_tf32_is_allowed_only_where_it_was_asked_for():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    for precision, allowed in (("float32", False), ("tf32", True)):
        with matrix_products(precision):
            assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (allowed, allowed)
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    with pytest.raises(ConfigError, match="Execution's precision is 'float8'; did you mean 'float32'"):
        pf.simulate(digits(), FedAvg(), rounds=1, execution=pf.Execution(precision="float8"))


@pytest.mark.parametrize(
    ("cohort", "seconds", "chunk"),
    [
        (10, {1: 1.0, 8: 0.30, 10: 0.31}, 10),
        (16, {1: 1.0, 8: 0.30, 16: 0.29}, 16),
        (20, {1: 1.0, 8: 0.30, 20: 0.29}, 8),
        (40, {1: 1.0, 8: 0.30, 32: 0.29, 40: 0.29}, 8),
        (40, {1: 1.0, 8: 0.30, 32: 0.20, 40: 0.20}, 40),
    ],
)
def test_a_cohort_that_is_not_twice_the_best_chunk_is_trained_as_one(monkeypatch, cohort, seconds, chunk):
    """Twenty clients in chunks of eight for two workers left four over, which one of them trained alone."""

    def timed(engine, received, ids, budget, short=0.0, **named):
        return seconds[getattr(engine, "chunk", 1)]

    monkeypatch.setattr(choice, "_seconds", timed)
    monkeypatch.setattr(choice, "SHORT_RUN_SECONDS", 0.0)
    assert chosen(digits(), cohort=cohort).chunk == chunk


@pytest.mark.parametrize(("dpsgd", "held"), [(pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1), 205), (None, 20)])
def test_engines_are_timed_with_private_batches_of_a_typical_client(dpsgd, held, monkeypatch):
    timed = []

    def seconds(engine, received, ids, most, short=0.0, **named):
        timed.append(engine.task if isinstance(engine, LoopEngine) else engine.loop.task)
        return 1.0 if isinstance(engine, LoopEngine) else 0.5

    monkeypatch.setattr(choice, "_seconds", seconds)
    task = digits(clients=7)
    assert chosen(task, dpsgd=dpsgd).engine == "vectorised"
    assert np.median(task.clients.sizes) == 205
    for probe in timed:
        assert set(probe.clients.sizes) == {held}
        assert len(probe.inputs) == 40  # few values, each held many times
        assert len(set(probe.clients[0].tolist()) | set(probe.clients[1].tolist())) == 40


def test_the_rows_of_many_clients_with_random_values_are_bounded(monkeypatch):
    monkeypatch.setattr(choice, "MOST_ROWS", 200)
    monkeypatch.setattr(choice, "SHORT_RUN_SECONDS", 1e9)
    sizes = []
    monkeypatch.setattr(choice, "_seconds", lambda loop, *rest, **named: sizes.extend(loop.task.clients.sizes) or 1.0)
    chosen(digits(clients=7), dpsgd=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1))
    assert sizes == [100, 100]

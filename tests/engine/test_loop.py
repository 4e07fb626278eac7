"""The loop engine: the same bits for any number of workers, bounded memory, one intra-op thread each."""

import threading

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.algorithms import FedAvg
from privfl.engine import workspace
from privfl.engine.dropout import StreamDropout, give_dropout_streams
from privfl.engine.loop import LoopEngine
from privfl.engine.sequences import Sequence
from privfl.engine.workspace import RoundContext
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.noise.source import NoiseSource, NoiseStream

TRAINING = LocalTraining(batch_size=16, momentum=0.5)


@pytest.fixture(scope="module")
def task():
    def with_dropout():
        layers = [nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)]
        return nn.Sequential(*layers)

    return pf.load("digits", partition=pf.Dirichlet(clients=9, alpha=1.0), model=with_dropout)


def engine(task, workers, dpsgd=None, algorithm=None):
    algorithm = algorithm or FedAvg()
    channel = RoundChannel.bare(algorithm.fields(), dpsgd)
    return LoopEngine(task, algorithm, TRAINING, channel, way=None if dpsgd is None else "layers", workers=workers)


def results(task, workers, dpsgd=None, cohort=range(9), algorithm=None):
    received = {"parameters": flatten(task.model(0))}
    with engine(task, workers, dpsgd, algorithm) as running:
        return list(running.train(cohort, received, RoundContext(2, 1, NoiseSource.from_key(4), {})))


@pytest.mark.parametrize("dpsgd", [None, pf.DPSGD(noise_multiplier=1.0, sample_rate=0.3)], ids=["plain", "private"])
def test_every_number_of_workers_gives_the_same_bits_drop_out_included(task, dpsgd):
    one, two, five = (results(task, workers, dpsgd) for workers in (1, 2, 5))
    for first, second, third in zip(one, two, five, strict=True):
        assert first.client == second.client == third.client
        assert torch.equal(first.upload["update"], second.upload["update"])
        assert torch.equal(first.upload["update"], third.upload["update"])
        assert first.log == second.log == third.log


def test_a_clients_result_does_not_depend_on_who_else_is_in_the_cohort(task):
    alone = results(task, 1, cohort=[6])[0]
    among = next(result for result in results(task, 2, cohort=[8, 6, 1]) if result.client == 6)
    assert torch.equal(alone.upload["update"], among.upload["update"])


def test_results_come_in_the_order_of_the_cohort(task):
    assert [result.client for result in results(task, 3, cohort=[7, 0, 3, 5])] == [7, 0, 3, 5]


def test_at_most_two_results_per_worker_wait(task):
    with engine(task, 2) as running:
        ahead, lock, most = 0, threading.Lock(), 0

        def work(space, item):
            nonlocal ahead
            with lock:
                ahead += 1
            return item

        for item in running._with_space(work, range(50)):
            with lock:
                ahead -= 1
                most = max(most, ahead)
            assert isinstance(item, int)
        assert most <= 2 * 2 + 1


def test_workers_use_one_intra_op_thread_and_give_the_setting_back(task):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with engine(task, 2) as running:
            assert set(running._with_space(lambda space, item: torch.get_num_threads(), range(6))) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_evaluation_in_pieces_equals_evaluation_at_once_and_ignores_drop_out(task):
    parameters = flatten(task.model(3))
    inputs = torch.randn(2500, 1, 8, 8)
    network = task.model(3).eval()
    with engine(task, 2) as running, torch.no_grad():
        torch.testing.assert_close(running.logits(parameters, inputs), network(inputs))


@pytest.mark.parametrize("dpsgd", [None, pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1)], ids=["plain", "DP-SGD"])
def test_a_known_network_is_evaluated_by_its_steps_with_the_same_bits_for_any_number_of_workers(dpsgd):
    def model():
        layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        return nn.Sequential(*layers, nn.Dropout(), nn.Linear(64, 10))

    task = pf.load("digits", partition=pf.IID(clients=4), model=model)
    inputs, parameters, found = torch.randn(1234, 1, 8, 8), flatten(task.model(3)), []
    for workers in (1, 2, 3):
        with engine(task, workers, dpsgd=dpsgd) as running:
            (known,) = running._with_space(lambda space, item: space.outputs, range(1))
            assert isinstance(known.__self__, Sequence)
            found.append(running.logits(parameters, inputs))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    network = task.model(3).eval()
    with torch.no_grad():
        torch.testing.assert_close(found[0], network(inputs))


def test_an_empty_set_and_a_single_row_are_evaluated(task):
    parameters = flatten(task.model(3))
    with engine(task, 2) as running:
        assert running.logits(parameters, torch.zeros(0, 1, 8, 8)).shape == (0, 10)
        assert running.logits(parameters, torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_the_number_of_cores_is_known_without_affinity(monkeypatch):
    monkeypatch.delattr(workspace.os, "sched_getaffinity", raising=False)
    assert workspace.cores() >= 1


def test_drop_out_layers_draw_from_their_own_stream_with_the_right_law():
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.25), nn.Dropout2d(0.5))
    elements, channels = give_dropout_streams(network)
    assert isinstance(network[1], StreamDropout)
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    elements.generator, channels.generator = NoiseStream(bytes(31) + b"1"), NoiseStream(bytes(31) + b"2")
    values = elements(torch.ones(200_000))
    assert values.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert abs(float((values == 0).double().mean()) - 0.25) < 5 * (0.1875 / 200_000) ** 0.5
    tenth = StreamDropout(0.1, None)  # no multiple of 1/256, so a coin takes four bytes
    tenth.generator = elements.generator
    assert abs(float((tenth(torch.ones(200_000)) == 0).double().mean()) - 0.1) < 5 * (0.09 / 200_000) ** 0.5
    planes = channels(torch.ones(400, 50, 3, 3))
    assert bool(((planes == 0).flatten(2).all(2) | (planes == 2).flatten(2).all(2)).all())
    assert torch.equal(state, torch.random.get_rng_state())
    network.eval()
    assert torch.equal(elements(torch.ones(5)), torch.ones(5))
    assert float(StreamDropout(1.0, None)(torch.ones(5)).sum()) == 0


@pytest.mark.parametrize("probability", [0.25, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masks_have_the_same_coins_in_every_type_and_with_padding(probability, dtype):
    layer = StreamDropout(probability, None)
    masks = []
    for present, rows in ((None, 6), ((6, 6), 6), ((3, 4), 8)):
        layer.generator, layer.present = NoiseStream(bytes(32)), present
        masks.append(layer(torch.ones(rows, 7, 3, dtype=dtype))[:6])
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])
    assert masks[0].unique().tolist() == [0.0, float(torch.tensor(1 / (1 - probability), dtype=dtype))]
    layer.generator, layer.present = NoiseStream(bytes(32)), None
    assert torch.equal(layer(torch.ones(6, 7, 3)) != 0, masks[0] != 0)

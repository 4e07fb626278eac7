"""Curves, barriers and planes; and on them SuPerFed's checks 8 and 12, by the tiny MNIST runs of its specification."""

import json
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from landscape import (
    LAMBDAS,
    Plane,
    along,
    barrier,
    corners,
    draw_curves,
    draw_landscapes,
    landscape,
)
from torch import nn

import privfl as pf
from privfl.algorithms.personal.interpolation import alignment
from privfl.data.catalog import load_dataset
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models.dense import two_nn
from privfl.models.flat_network import flatten

TINY = json.loads((Path(__file__).parents[1] / "oracles" / "superfed.json").read_text())["tiny_runs"]


def federation(model, seed=0):
    """Three clients of random vectors; client 1 has nothing to test on."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(60, 6, generator=generator)
    targets = torch.randint(4, (60,), generator=generator)
    index = ClientIndex.of([np.arange(low, high) for low, high in pairwise((0, 20, 40, 60))])
    tests = ClientIndex(index.rows, np.array([0, 20, 20, 60]))
    return Task("t", inputs, targets, index, inputs, targets, 4, model, "m", local_tests=tests)


def logistic(seed):
    return nn.Linear(6, 4)


def perceptron(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def random_parameters(task, number, seed=1):
    size = flatten(task.model(0)).numel()
    return list(torch.randn(number, size, generator=torch.Generator().manual_seed(seed)))


def loss_of(task, parameters, rows):
    network = task.model(0)
    nn.utils.vector_to_parameters(parameters.float(), network.parameters())
    with torch.no_grad():
        return float(F.cross_entropy(network(task.inputs[rows]), task.targets[rows]))


def test_a_curve_is_the_loss_of_the_mixtures_on_each_clients_own_rows():
    task = federation(perceptron)
    federated, *own = random_parameters(task, 4)
    found = along(task, federated, dict(enumerate(own)))
    assert found.clients.tolist() == [0, 2]
    assert found.lambdas.tolist() == list(LAMBDAS)
    for place, client in enumerate((0, 2)):
        for step in (0, 3, 10):
            mixed = (1 - LAMBDAS[step]) * federated + LAMBDAS[step] * own[client]
            expected = loss_of(task, mixed, task.local_tests[client])
            assert found.loss[place, step] == pytest.approx(expected, rel=1e-5)
    assert ((found.accuracy >= 0) & (found.accuracy <= 1)).all()


def test_a_barrier_is_what_the_worst_point_has_above_the_worse_end():
    losses = np.array([[1.0, 5.0, 2.0], [3.0, 1.0, 2.0], [1.0, 2.0, 2.5]])
    assert barrier(losses).tolist() == [3.0, 0.0, 0.0]


def test_a_convex_loss_has_no_barrier():
    task = federation(logistic)
    federated, *own = random_parameters(task, 4)
    assert along(task, federated, dict(enumerate(own))).barriers.tolist() == [0.0, 0.0]


def test_curves_need_rows_to_test_on():
    task = federation(perceptron)
    federated, own = random_parameters(task, 2)
    with pytest.raises(ConfigError, match="none of the 1 clients has rows"):
        along(task, federated, {1: own})
    with pytest.raises(ConfigError, match="no local tests"):
        along(replace(task, local_tests=None), federated, {0: own})


def test_a_plane_goes_through_its_three_models():
    models = [vector.double() for vector in random_parameters(federation(perceptron), 3)]
    plane = Plane.through(*models)
    torch.testing.assert_close(plane.basis @ plane.basis.T, torch.eye(2, dtype=torch.float64))
    assert plane.corners[0].tolist() == [0, 0]
    assert plane.corners[2, 1] == pytest.approx(0, abs=1e-12)
    for (x, y), model in zip(plane.corners, models, strict=True):
        torch.testing.assert_close(plane.at(x, y), model)


def test_three_models_on_a_line_span_no_plane():
    first, second = random_parameters(federation(perceptron), 2)
    for third in (second, first, (first + second) / 2):
        with pytest.raises(ConfigError, match="on one line"):
            Plane.through(first, second, third)


def test_a_landscape_holds_the_losses_of_its_grid():
    task = federation(perceptron)
    models = tuple(random_parameters(task, 3))
    rows = torch.arange(15)
    found = landscape(task, models, rows, resolution=5, margin=0.0)
    plane = Plane.through(*models)
    assert found.loss.shape == (5, 5)
    assert found.x[0] == found.corners[:, 0].min()
    assert found.y[-1] == found.corners[:, 1].max()
    for row, column in ((0, 0), (2, 3), (4, 1)):
        expected = loss_of(task, plane.at(found.x[column], found.y[row]), rows)
        assert found.loss[row, column] == pytest.approx(expected, rel=1e-5)


def test_figures_are_drawn(tmp_path):
    task = federation(perceptron)
    federated, *own = random_parameters(task, 4)
    draw_curves({"one": along(task, federated, dict(enumerate(own)))}, "title").savefig(tmp_path / "curves.png")
    found = landscape(task, tuple(own), torch.arange(9), resolution=4)
    draw_landscapes({"one": found, "two": found}).savefig(tmp_path / "landscapes.png")
    assert all(path.stat().st_size > 5000 for path in tmp_path.iterdir())


class TinyRuns:
    """MNIST at 14 x 14, ten clients with two classes and 120 training images each; see the oracle's provenance."""

    training = pf.LocalTraining(
        learning_rate=0.05, batch_size=20, epochs=3, momentum=0.9, weight_decay=1e-4, learning_rate_decay=0.99
    )

    def __init__(self):
        data = load_dataset("mnist")
        images = F.avg_pool2d(data.inputs[:4000].float(), 2)
        images = (images - images.min()) / (images.max() - images.min())
        self.pooled, self.targets = images, data.targets[:4000]
        task = pf.Task.from_arrays(
            images.numpy(),
            self.targets.numpy(),
            partition=pf.Pathological(10, classes_per_client=2, samples_per_client=200),
            model=self.network,
        )
        self.task = task.with_local_tests(pf.LocalTests(0.4))
        assert set(self.task.clients.sizes) == {120}

    @staticmethod
    def network():
        """Xavier-normal as the authors': with smaller initial weights end points would be closer in angle."""
        network = two_nn((1, 14, 14), 10, hidden=(64, 64), bias=False)
        for weight in network.parameters():
            nn.init.xavier_normal_(weight)
        return network

    def run(self, algorithm, rounds=20):
        """The last metrics line, the model, what clients keep, and the corners for one client."""
        left = {}

        def watch(simulation, line):
            if line["round"] == rounds - 1:
                client_state = {
                    client: tensors["personal"] for client, tensors in simulation.client_state.items() if tensors
                }
                left.update(line=line, client_state=client_state, model=simulation.server["parameters"])
                if client_state:
                    left["corners"] = corners(simulation, min(client_state))

        options = {"cohort": pf.FixedCohort(5), "training": self.training, "evaluate_every": rounds}
        pf.simulate(
            self.task,
            algorithm,
            rounds=rounds,
            execution=pf.Execution(workers=1, engine="loop"),
            callbacks=[watch],
            **options,
        )
        return left


@pytest.fixture(scope="module")
def tiny(data_folder):
    runs = TinyRuns()
    runs.run = cache(runs.run)
    return runs


def superfed(mode, nu):
    return pf.SuPerFed(mode=mode, nu=nu, start_fraction=0.3)


def mean_cosine(left):
    return float(np.mean([abs(float(alignment(left["model"], own).cosine)) for own in left["client_state"].values()]))


@pytest.mark.parametrize("mode", ["mm", "lm"])
def test_orthogonality_keeps_end_points_apart(tiny, mode):
    with_nu, without = (mean_cosine(tiny.run(superfed(mode, nu))) for nu in (2.0, 0.0))
    assert with_nu < without
    low, high = TINY["cosine"]["nu 2"][0], TINY["cosine"]["nu 0"][1]
    assert 0.5 * low < with_nu < without < 1.5 * high


@pytest.mark.parametrize("nu", [0.0, 2.0])
@pytest.mark.parametrize("mode", ["mm", "lm"])
def test_mixtures_are_better_than_fedavg_and_no_barrier_lies_between_the_end_points(tiny, mode, nu):
    left, plain = tiny.run(superfed(mode, nu)), tiny.run(pf.FedAvg())
    found = along(tiny.task, left["model"], left["client_state"])
    best = found.accuracy.max(1)
    assert best.mean() > plain["line"]["local_accuracy_of_clients"]
    assert found.barriers.mean() < TINY["barrier_below"]
    if len(left["client_state"]) == 10:  # the metrics line counts clients that never trained as well
        assert left["line"]["personal_accuracy_best_on_test"] == pytest.approx(best.mean())


def test_strangers_on_data_of_many_classes_have_a_barrier(tiny):
    """Two networks trained apart from different seeds on all ten classes: what a segment through mixing avoids."""
    ends = []
    for seed in (1, 2):
        network = tiny.task.model(seed)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        order = torch.Generator().manual_seed(seed)
        for _ in range(15):
            for rows in torch.randperm(2000, generator=order).split(20):
                optimizer.zero_grad()
                F.cross_entropy(network(tiny.pooled[rows]), tiny.targets[rows]).backward()
                optimizer.step()
        ends.append(flatten(network))
    rows = torch.arange(2000, 4000)
    data = ClientIndex(rows, np.array([0, 2000]))
    task = replace(tiny.task, inputs=tiny.pooled, targets=tiny.targets)
    (found,) = along(task, ends[0], {0: ends[1]}, data).barriers
    low, high = TINY["barrier_of_strangers"]
    assert 0.5 * low < found < 2 * high


def test_the_corners_of_the_plane_are_the_model_and_one_round_from_it(tiny):
    left = tiny.run(superfed("mm", 2.0))
    start, federated, personal = left["corners"]
    assert torch.equal(start, left["model"])
    gaps = [float((a - b).norm()) for a, b in combinations((start, federated, personal), 2)]
    assert 0 < gaps[0] < gaps[1]
    assert not torch.equal(personal, left["client_state"][min(left["client_state"])])

"""FedAvg-FT: the server's tuning against torch.optim, an untouched body, and claims that are FedAvg's."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.algorithms.label_skew.fedavg_ft import FedAvgFT
from privfl.data.catalog import load_dataset
from privfl.data.set_aside import set_aside
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.models import Network
from privfl.models.flat_network import flatten
from privfl.randomness import torch_stream
from tests.algorithms.federation import digits_task, initial, layered_task, uploads
from tests.damaged_archives import DAMAGES

SIZES = (12, 20, 9)
TRAINING = pf.LocalTraining(learning_rate=0.2, batch_size=8, epochs=2, momentum=0.5)


@pytest.fixture(scope="module")
def task():
    return layered_task(SIZES)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Three images of each class, which none of the task's rows are."""
    path = tmp_path_factory.mktemp("server") / "own.npz"
    images = np.random.default_rng(0).random((30, 64), dtype=np.float32)
    np.savez(path, images=images, labels=np.arange(30) % 10)
    return str(path)


def run(task, algorithm, rounds=2, **options):
    options = {
        "training": TRAINING,
        "execution": pf.Execution(workers=1, engine="loop", checkpoint_seconds=0.0),
        **options,
    }
    return pf.simulate(task, algorithm, rounds=rounds, **options)


def loaded(task, flat):
    network = task.model(0)
    nn.utils.vector_to_parameters(flat.clone(), network.parameters())
    return network


def tuned(task, flat, path, round, *, epochs=5, learning_rate=0.01, momentum=0.5, weight_decay=5e-4, seed=0):
    """The whole network in an optimiser whose body has a learning rate of 0, as the paper's code has it."""
    network, order = loaded(task, flat), torch_stream(seed, "server", round)
    with np.load(path) as arrays:
        images, labels = torch.from_numpy(arrays["images"]).double(), torch.from_numpy(arrays["labels"])
    optimizer = torch.optim.SGD(
        [{"params": network.body.parameters(), "lr": 0.0}, {"params": network.head.parameters()}],
        lr=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
    )
    for _ in range(epochs):
        shuffled = torch.randperm(len(labels), generator=order)
        for rows in shuffled.split(TRAINING.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(network(images[rows]), labels[rows]).backward()
            optimizer.step()
    return flatten(network)


def mean_of_clients(task, start, round):
    """One round of FedAvg from ``start``."""
    sent = uploads(task, pf.FedAvg(), {"parameters": start}, training=TRAINING, round=round)
    weights = torch.tensor(SIZES).double() / sum(SIZES)
    return start + sum(weight * one.upload["update"] for weight, one in zip(weights, sent, strict=True))


@pytest.mark.parametrize(
    "settings",
    [{}, {"epochs": 2, "learning_rate": 0.3, "momentum": 0.0, "weight_decay": 0.1}],
    ids=["defaults", "others"],
)
def test_two_rounds_are_fedavgs_with_the_head_trained_after_each(task, own, settings):
    expected = initial(task)
    for round in range(2):
        expected = tuned(task, mean_of_clients(task, expected, round), own, round, **settings)
    found = run(task, FedAvgFT(images=own, **settings)).parameters
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_body_is_the_mean_of_the_clients_bit_by_bit_and_the_head_is_not(task, own):
    head = FedAvgFT().bind(task.context(1, 0)).context.head
    found, plain = (run(task, one, 1).parameters for one in (FedAvgFT(images=own), pf.FedAvg()))
    assert torch.equal(found[~head], plain[~head])
    assert float((found - plain)[head].abs().max()) > 1e-3


def test_tuning_draws_no_drop_out_and_lowers_the_loss_of_the_images(own):
    def dropping(seed):
        torch.manual_seed(seed)
        return Network(nn.Sequential(nn.Linear(64, 12), nn.Dropout(0.9)), nn.Linear(12, 10)).double()

    task = replace(digits_task(SIZES), model=dropping)
    bound, start = FedAvgFT(images=own).bind(task.context(1, 0)), flatten(dropping(3))
    client_state = [bound.tuned(start, *bound.own, 8, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*client_state)
    features = loaded(task, start).eval().features(bound.own[0]).detach()
    before, after = (
        F.cross_entropy(loaded(task, flat).head(features), bound.own[1]) for flat in (start, client_state[0])
    )
    assert after.item() < before.item()


def test_without_images_it_is_fedavg_and_says_so(task):
    found, plain = (run(task, one) for one in (FedAvgFT(), pf.FedAvg()))
    assert torch.equal(found.parameters, plain.parameters)
    assert "no images of its own" in " ".join(found.summary["warnings"])


def test_with_images_it_has_nothing_to_say(task, own):
    assert run(task, FedAvgFT(images=own), 1).summary["warnings"] == []


def test_a_client_sends_its_update_alone(task, own):
    for result in uploads(task, FedAvgFT(images=own), {"parameters": initial(task)}):
        assert {name: value.numel() for name, value in result.upload.items()} == {"update": len(initial(task))}


def test_claims_are_fedavgs(task, own):
    both = FedAvgFT("uniform", images=own), pf.FedAvg("uniform")
    noisy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
    hidden = pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0)])
    for privacy, unit in ((noisy, "sample"), (hidden, "client"), (None, "sample")):
        cells = [run(task, one, privacy=privacy).statement.cell(unit, "public") for one in both]
        assert cells[0].epsilon == cells[1].epsilon
        assert cells[0].reasons == cells[1].reasons
        assert math.isfinite(cells[0].epsilon) == (privacy is not None)


def rows_of(inputs):
    return {row.numpy().tobytes() for row in inputs}


def test_rows_set_aside_are_no_clients_in_a_task_built_of_the_others(tmp_path):
    rest = set_aside(load_dataset("digits"), path := tmp_path / "own.npz", per_class=4)
    task = pf.Task.from_dataset(rest, partition=pf.IID(clients=4), model="two-nn")
    bound = FedAvgFT(images=str(path)).bind(task.context(1, 0))
    assert len(rows_of(bound.own[0])) == 40
    assert not rows_of(bound.own[0]) & (rows_of(task.inputs) | rows_of(task.test_inputs))
    training = pf.LocalTraining(batch_size=200, steps=1)
    assert pf.simulate(task, FedAvgFT(images=str(path)), rounds=1, training=training).summary["warnings"] == []


def test_a_configuration_names_a_file(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, images=np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32), labels=np.arange(20) % 10)
    experiment = Experiment.from_dict(
        {
            "rounds": 1,
            "partition": {"name": "iid", "clients": 4},
            "model": {"name": "two-nn", "hidden": [8]},
            "algorithm": {"name": "fedavg-ft", "images": str(path), "learning_rate": 0.1},
        }
    )
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    assert experiment.run(tmp_path / "run").summary["warnings"] == []


def test_a_resumed_run_goes_on_with_the_same_images_and_refuses_others(task, tmp_path):
    def stop(simulation, line):
        raise KeyboardInterrupt

    path, out = tmp_path / "own.npz", tmp_path / "run"
    images = np.random.default_rng(0).random((20, 64))
    np.savez(path, images=images, labels=np.arange(20) % 10)
    algorithm = FedAvgFT(images=str(path))
    whole = run(task, algorithm)
    with pytest.raises(KeyboardInterrupt):
        run(task, algorithm, out=out, callbacks=[stop])
    for others, labels in ((1 - images, np.arange(20) % 10), (images, np.arange(1, 21) % 10)):
        np.savez(path, images=others, labels=labels)
        with pytest.raises(ConfigError, match="holds other images than when this run began"):
            run(task, algorithm, out=out, resume=True)
    np.savez_compressed(path, images=images, labels=np.arange(20) % 10)  # another file, the same content
    assert torch.equal(run(task, algorithm, out=out, resume=True).parameters, whole.parameters)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "fedavg-ft's epochs is 0"),
        ({"learning_rate": 0.0}, "fedavg-ft's learning_rate is 0.0"),
        ({"momentum": 1.0}, "fedavg-ft's momentum is 1.0"),
        ({"weight_decay": -1.0}, "fedavg-ft's weight_decay is -1.0"),
        ({"weighting": "sise"}, "fedavg-ft's weighting is 'sise'"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        FedAvgFT(**settings)


LABELS = np.arange(20) % 10


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((20, 64), np.float32)}, "cannot read its images"),
        ({"images": np.zeros((20, 63), np.float32), "labels": LABELS}, r"give images \[N, 64\] with one label each"),
        ({"images": np.zeros((19, 64), np.float32), "labels": LABELS}, "with one label each"),
        ({"images": np.zeros((20, 64), np.float32), "labels": LABELS // 2}, "holds 0 to 4 images"),
        ({"images": np.zeros((20, 64), np.float32), "labels": LABELS + 1}, "and 2 of others"),
        ({"images": np.full((20, 64), np.nan, np.float32), "labels": LABELS}, "values that are not finite"),
        ({"images": np.zeros((0, 64), np.float32), "labels": LABELS[:0]}, "holds 0 to 0 images"),
        ({"images": np.array([{}] * 20), "labels": LABELS}, "cannot read its images"),
        ({"images": np.zeros((20, 64), np.uint8), "labels": LABELS}, "images that the network cannot read"),
        ({"images": np.zeros((20, 64), np.float32), "labels": LABELS + 0.25}, "and 20 of others"),
    ],
    ids=[
        "no labels",
        "shape",
        "length",
        "unbalanced",
        "unknown class",
        "nan",
        "empty",
        "pickled",
        "bytes",
        "fractions",
    ],
)
def test_a_file_that_does_not_fit_is_refused_before_any_work(task, tmp_path, arrays, message):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(ConfigError, match=message):
        run(task, FedAvgFT(images=str(tmp_path / "own.npz")))


def test_a_file_that_is_not_there_or_no_archive_is_refused(task, tmp_path):
    (tmp_path / "text").write_text("images")
    for path in (tmp_path / "nowhere.npz", tmp_path / "text"):
        with pytest.raises(ConfigError, match="cannot read its images"):
            run(task, FedAvgFT(images=str(path)))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_was_damaged_is_refused(damage, task, own, tmp_path):
    shutil.copy(own, tmp_path / "own.npz")
    damage(tmp_path / "own.npz")
    with pytest.raises(ConfigError, match="cannot read its images"):
        run(task, FedAvgFT(images=str(tmp_path / "own.npz")))


def test_a_network_without_a_head_is_refused(own):
    with pytest.raises(ConfigError, match="is not divided into a body and a head"):
        run(digits_task(SIZES), FedAvgFT(images=own))

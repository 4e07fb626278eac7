"""Tasks from the catalog and from a user's own arrays; flat parameters; seeds."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.errors import ConfigError, DataError, unknown
from privfl.federation.client_index import ClientIndex
from privfl.models.flat_network import FlatNetwork, Layout, flatten
from privfl.randomness import numpy_stream, stream_seed, torch_stream


def test_own_arrays_become_a_task_in_one_call():
    x, y = np.random.default_rng(0).normal(size=(100, 6)), np.arange(100) % 3
    task = pf.Task.from_arrays(x, y, partition=pf.IID(clients=4))
    assert (len(task.clients), task.classes, task.model_name) == (4, 3, "logistic")
    named = pf.Task.from_arrays(x, y, clients=["a", "b"] * 50)
    assert len(named.clients) == 2
    assert len(named.targets) + len(named.test_targets) == 100


def test_data_is_never_copied_per_client():
    task = pf.load("digits", partition=pf.IID(clients=10))
    assert sum(len(task.clients[client]) for client in range(10)) == len(task.targets) == len(task.clients.rows)
    pooled = task.pooled()
    assert pooled.inputs is task.inputs
    assert torch.equal(pooled.clients[0], torch.arange(len(task.targets)))


def test_a_dataset_without_client_ids_needs_a_partition():
    with pytest.raises(ConfigError, match="give a partition, for instance IID"):
        pf.load("digits")


def test_label_noise_changes_training_labels_only_and_partitions_stay():
    clean = pf.load("digits", partition=pf.Pathological(clients=12))
    noisy = pf.load("digits", partition=pf.Pathological(clients=12), label_noise=pf.SymmetricFlip(0.3))
    assert torch.equal(clean.clients.rows, noisy.clients.rows)
    assert torch.equal(clean.test_targets, noisy.test_targets)
    assert 0.2 < float((clean.targets != noisy.targets).double().mean()) < 0.4


@pytest.mark.parametrize("partition", [pf.LabelSorted(clients=12), pf.Dirichlet(clients=9, alpha=1.0)])
def test_models_are_judged_by_the_truth_and_trained_and_chosen_on_noisy_labels(partition):
    tests = pf.LocalTests(0.2, validation=0.1)
    clean = pf.load("digits", partition=partition).with_local_tests(tests)
    noisy = pf.load("digits", partition=partition, label_noise=pf.PairFlip(0.4)).with_local_tests(tests)
    judged = torch.zeros(len(clean.targets), dtype=torch.bool)
    judged[noisy.local_tests.rows] = True
    assert torch.equal(noisy.targets[judged], pf.load("digits", partition=partition).targets[judged])
    flipped = noisy.targets != pf.load("digits", partition=partition).targets
    for index in (noisy.clients, noisy.local_validations):
        assert 0.25 < flipped[index.rows].double().mean() < 0.55


def test_a_row_that_another_client_trains_on_stays_noisy_in_a_local_test():
    """Eight rows of two clients who both hold all of them: what one holds back the other trains on or holds back."""
    noisy = pf.load("digits", partition=pf.Pathological(clients=12), label_noise=pf.PairFlip(1.0))
    both = ClientIndex.of([np.arange(8), np.arange(8)])
    task = dataclasses.replace(noisy, clients=both).with_local_tests(pf.LocalTests(0.5))
    trained, tested = set(task.clients.rows.tolist()), set(task.local_tests.rows.tolist())
    assert trained & tested
    for row in range(8):
        truth = noisy.flipped.truth[row] if row in tested - trained else noisy.targets[row]
        assert task.targets[row] == truth


def test_targets_that_a_user_changed_after_the_noise_are_not_touched():
    noisy = pf.load("digits", partition=pf.LabelSorted(clients=12), label_noise=pf.PairFlip(0.4))
    own = dataclasses.replace(noisy, targets=(noisy.targets + 1) % 10)
    assert torch.equal(own.with_local_tests(pf.LocalTests(0.2)).targets, own.targets)


def test_the_same_seed_gives_the_same_model_whatever_torch_drew_before():
    task = pf.load("digits", partition=pf.IID(clients=2), model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    first = flatten(task.model(3))
    torch.rand(17)
    assert torch.equal(first, flatten(task.model(3)))
    assert not torch.equal(first, flatten(task.model(4)))


def test_a_task_can_be_told_apart():
    one, two = (pf.load("digits", partition=pf.IID(clients=3), seed=seed) for seed in (0, 1))
    assert one.describe() != two.describe()
    assert one.describe() == pf.load("digits", partition=pf.IID(clients=3), seed=0).describe()


def test_probes_are_public_and_of_the_right_shape():
    task = pf.load("digits", partition=pf.IID(clients=3))
    inputs, targets = task.probe(5)
    assert inputs.shape == (5, 1, 8, 8)
    assert torch.equal(inputs, pf.load("digits", partition=pf.IID(clients=9), seed=4).probe(5)[0])
    assert int(targets.max()) < 10


def test_parameters_are_views_into_one_vector():
    network = FlatNetwork(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4, bias=False)))
    assert network.layout.names == ("0.weight", "0.bias", "1.weight")
    assert network.layout.size == len(network.flat) == 16
    network.load(torch.arange(16.0))
    assert network.module[1].weight[3, 1] == 15
    assert torch.equal(network.layout.named_views(network.flat)["0.bias"], torch.tensor([6.0, 7.0]))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ReLU(), "has no parameters"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "mix the types"),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "use GroupNorm"),
        (nn.InstanceNorm1d(2, affine=True, track_running_stats=True), "use GroupNorm"),
    ],
)
def test_models_that_cannot_be_flat_are_refused_in_one_sentence(module, message):
    with pytest.raises(ConfigError, match=message):
        Layout.of(module)


def test_streams_are_keyed_by_seed_name_and_keys():
    draws = [numpy_stream(*key).random() for key in [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", 1, 2)]]
    assert len(set(draws)) == 5
    assert numpy_stream(0, "a").random() == draws[0]
    assert torch_stream(0, "a").initial_seed() == stream_seed(0, "a")


def test_an_unknown_name_is_answered_with_the_nearest():
    assert "did you mean 'fedavg'?" in str(unknown("algorithm", "FedAvgg", ["fedavg", "local"]))
    assert "did you mean" not in str(unknown("algorithm", "xyz", ["fedavg", "local"]))


def test_an_empty_client_is_refused():
    with pytest.raises(DataError, match="holds no sample"):
        ClientIndex.of([np.arange(2), np.array([], dtype=np.int64)])

"""A claim about one example holds for a row that is there once; of copies and of test examples the user is warned."""

from dataclasses import replace

import numpy as np
import pytest

import privfl as pf
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.simulation.listed_rows import MOST, found_in_rows

WIDTH, ROWS = 9, 600
X = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
TEST = np.random.default_rng(1).normal(size=(40, WIDTH)).astype(np.float32), np.arange(40) % 2
DPSGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1))
CLIENT = pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(1.0)))


def task(inputs=X, targets=Y, test=TEST, **own):
    own = {"model": "logistic", "classes": 2, "clients": np.arange(len(inputs)) % 3, **own}
    return pf.Task.from_arrays(inputs, targets, test=test, **own)


def held(*parts):
    return replace(task(), clients=ClientIndex.of([np.asarray(part) for part in parts]))


def ran(one, algorithm=None, privacy=DPSGD):
    training = pf.LocalTraining(steps=1, batch_size=10, learning_rate=0.1)
    return pf.simulate(one, algorithm or pf.FedAvg("uniform"), training=training, privacy=privacy, rounds=1)


def text(run):
    return " ".join(str(run.statement).split())


class Bootstrapped(pf.IID):
    """Clients' rows are drawn with replacement."""

    def assign(self, targets, classes, rng, clients):
        raise AssertionError("split is replaced")

    def split(self, targets, classes, rng, clients=None):
        return [rng.integers(0, len(targets), 50) for _ in range(self.clients)]


@pytest.mark.parametrize(
    "one",
    [
        held([0, 1, 2, 2], [3, 4]),
        held([3, 4], [5, 6, 7], [9, 8, 9]),
        task(partition=Bootstrapped(clients=3), clients=None),
    ],
    ids=["neighbours", "apart", "a partition of one's own"],
)
def test_a_row_that_a_client_lists_twice_is_refused_where_each_is_to_count_once(one):
    with pytest.raises(ConfigError, match=r"client \d lists row \d+ of the training data [2-9] times.*list it once"):
        ran(one)


def test_statistics_are_refused_too():
    totals = pf.Privacy(statistics=(pf.NoisyTotal("label_prior", max_norm=1.0, noise_multiplier=2.0),))
    with pytest.raises(ConfigError, match="client 0 lists row 2 of the training data 2 times"):
        ran(held([0, 1, 2, 2], [3, 4]), pf.ReBaFL(), privacy=totals)


def test_noise_on_whole_updates_covers_a_client_however_often_it_lists_a_row():
    assert ran(held([0, 1, 2, 2], [3, 4]), privacy=CLIENT).statement.cell("client", "public").epsilon < np.inf
    assert ran(held([0, 1, 2, 2], [3, 4]), privacy=pf.Privacy()).statement.cell("sample", "public").epsilon == np.inf


def test_a_row_of_several_clients_is_said_whatever_the_report_of_the_partition_says():
    apart, together = held([0, 1, 2], [3, 4]), held([0, 1, 2], [2, 3])
    said = "Some samples are held by more than one client; every claim is about one client's copy."
    assert said in text(ran(together))
    assert said not in text(ran(apart))


def test_centralised_training_takes_each_example_once():
    shared = held(np.arange(40), np.arange(20, 60))
    assert shared.pooled().clients.rows.tolist() == list(range(60))
    assert ran(shared, pf.Centralized()).statement.cell("sample", "public").epsilon < np.inf


def test_copies_among_the_training_examples_are_said():
    twice = task(np.concatenate([X, X[:60]]), np.concatenate([Y, Y[:60]]))
    assert found_in_rows(twice) == (
        "of 660 training examples that were drawn, 120 equal another of them, target included; every claim is about "
        "one copy",
    )
    assert not found_in_rows(task())


def test_what_is_found_is_told_whoever_runs_it_and_nobody_who_reads_it():
    twice = task(np.concatenate([X, X[:60]]), np.concatenate([Y, Y[:60]]))
    for privacy in (DPSGD, CLIENT):
        run = ran(twice, privacy=privacy)
        assert run.warnings[-1] == found_in_rows(twice)[0]
        assert "equal another" not in text(run) + str(run.summary)
    assert "equal another" not in str(ran(twice, privacy=pf.Privacy()).warnings)


def test_of_many_examples_some_are_drawn():
    many = np.random.default_rng(2).normal(size=(30_000, WIDTH)).astype(np.float32)
    all_twice = task(np.concatenate([many, many]), np.zeros(60_000, np.int64))
    (said,) = found_in_rows(all_twice)
    assert said.startswith(f"of {MOST:,} training examples that were drawn, 1,")  # the other copy of every sixth
    assert not found_in_rows(task(many, np.zeros(30_000, np.int64)))


def test_test_examples_that_are_trained_on_are_said():
    mixed = np.concatenate([TEST[0], X[:90]]), np.concatenate([TEST[1], Y[:90]])
    assert found_in_rows(task(test=mixed)) == (
        "of 600 training examples that were drawn, 90 are test examples too; the claims take these for public, and "
        "test figures tell about them",
    )


BITS = np.random.default_rng(3).integers(0, 2, ROWS)
FEW = np.stack([BITS, 1 - BITS, BITS, BITS], 1).astype(np.float32)
CHANCE = {
    "a few": task(np.concatenate([X, X[:3]]), np.concatenate([Y, Y[:3]])),
    "with other targets": task(np.concatenate([X, X[:60]]), np.concatenate([Y, 1 - Y[:60]])),
    "few whole numbers": task(FEW, BITS, test=(FEW[:9], BITS[:9])),
    "blank": task(np.ones((ROWS, WIDTH)), BITS, test=(np.ones((9, WIDTH)), BITS[:9])),
    "twenty examples": task(X[:20], Y[:20], test=(X[:7], Y[:7])),
}


@pytest.mark.parametrize("one", CHANCE.values(), ids=CHANCE)
def test_what_equals_by_chance_is_not_said(one):
    assert not found_in_rows(one)


def test_images_of_eight_bits_and_tokens_are_compared_as_they_are_read():
    images = np.random.default_rng(4).integers(0, 256, (100, 1, 6, 6), dtype=np.uint8)
    tokens = np.random.default_rng(5).integers(1, 50, (100, 12))
    aims = np.arange(100) % 2
    for one in (
        task(images, aims, test=(images[:50], aims[:50]), model="two-nn", scale=1 / 255),
        task(tokens, aims, test=(tokens[:50], aims[:50]), model="text-cnn", vocabulary=50),
    ):
        (said,) = found_in_rows(one)
        assert said.startswith("of 100 training examples that were drawn, 50 are test examples too;")

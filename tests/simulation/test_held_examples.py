"""A part of one's own that holds training examples is refused where a mechanism would claim something about them."""

import copy
from collections import deque
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.errors import ConfigError
from privfl.simulation.held_examples import FEW, LOOKED_FOR, SEVERAL

WIDTH, ROWS = 9, 600
X = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
CLIENTS = np.repeat(np.arange(3), ROWS // 3)
TEST = np.random.default_rng(1).normal(size=(40, WIDTH)).astype(np.float32), np.arange(40) % 2
PRIVATE = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1))
HELD = "holds training examples"


def task(inputs=X, targets=Y, clients=CLIENTS, test=TEST, **own):
    own = {"model": "logistic", "classes": 2, **own}
    return pf.Task.from_arrays(inputs, targets, clients=clients, test=test, **own)


def ran(algorithm=None, privacy=PRIVATE, **own):
    training = pf.LocalTraining(steps=1, learning_rate=0.1)
    return pf.simulate(task(**own), algorithm or pf.FedAvg("uniform"), training=training, privacy=privacy, rounds=1)


@dataclass(frozen=True)
class WithTable(pf.FedAvg):
    """Its client's upload is moved by whatever ``table`` holds."""

    name: ClassVar[str] = "with-table"
    table: Any = None

    def finish(self, local, received, training):
        moved = float(np.mean(np.asarray(self.table)))
        return {name: value + moved for name, value in super().finish(local, received, training).items()}


CARRIERS = {
    "as they are": X,
    "as a tensor": torch.from_numpy(X),
    "at another scale": 255 * X + 3,
    "a twentieth of them": X[::20],
    "another twentieth": X[7::20],
    "among others": np.concatenate([np.zeros((50, WIDTH)), X[300:]]),
    "in another shape": X.reshape(ROWS, 3, 3),
    "in columns": X.T,
    "as lists": X.tolist(),
    "as lists of NumPy's numbers": [list(row) for row in X[:300]],
    "as tables of numbers": [dict(enumerate(row.tolist())) for row in X[:300]],
    "in double-ended queues": [deque(row.tolist()) for row in X[:300]],
    "as lists of single tensors": [list(torch.from_numpy(row)) for row in X[:300]],
    "as rows": tuple(torch.from_numpy(row) for row in X[:40]),
    "in a dictionary": {"rows": {"these": X[:100]}},
    "read-only": np.broadcast_to(X, (2, *X.shape)),
}


@pytest.mark.parametrize("how", CARRIERS)
def test_an_algorithm_that_holds_examples_is_refused_however_it_holds_them(how):
    with pytest.raises(ConfigError, match=f"the algorithm .*WithTable {HELD}.*read public numbers only"):
        ran(WithTable("uniform", table=CARRIERS[how]))


def global_loss(network, inputs, targets):
    return F.cross_entropy(network(inputs), targets, reduction="none") + float(X.mean())


def closed_loss(table):
    def loss(network, inputs, targets):
        return F.cross_entropy(network(inputs), targets, reduction="none") + float(table.mean())

    return loss


@pytest.mark.parametrize("loss", [global_loss, closed_loss(X[:300])], ids=["global", "closure"])
def test_a_loss_that_holds_examples_is_refused(loss):
    with pytest.raises(ConfigError, match=f"the loss .*loss {HELD}"):
        ran(loss=loss)


class Remembering(nn.Module):
    """Classifies by a layer, and takes the mean of what it remembers away before."""

    def __init__(self, buffered):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)
        if buffered:
            self.register_buffer("seen", torch.from_numpy(X[:50]))
        else:
            self.seen = [X[:50]]

    def forward(self, inputs):
        return self.layer(inputs - (self.seen.mean(0) if torch.is_tensor(self.seen) else float(self.seen[0].mean())))


class Shaped(nn.Module):
    """Asks the examples for their shape when it is built, and for nothing afterwards."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(X.shape[1], 2)

    def forward(self, inputs):
        return self.layer(inputs)


class Reading(Shaped):
    """Reads the examples in every pass."""

    def forward(self, inputs):
        return self.layer(inputs - float(X.mean()))


@pytest.mark.parametrize(
    "model",
    [lambda: Remembering(buffered=True), lambda: Remembering(buffered=False), Reading],
    ids=["buffer", "list", "code"],
)
def test_a_model_that_holds_examples_is_refused(model):
    with pytest.raises(ConfigError, match=f"the model .* {HELD}"):
        ran(model=model)


def test_a_model_may_ask_an_example_for_its_shape():
    assert ran(model=Shaped).statement.cell("sample", "server").epsilon < np.inf


class Adding(pf.Clip):
    """A link of the channel that holds examples."""

    table: ClassVar[Any] = X


def test_a_mechanism_that_holds_examples_is_refused():
    with pytest.raises(ConfigError, match=f"the mechanism .*Adding {HELD}"):
        ran(privacy=pf.Privacy(update=(Adding(1.0), pf.GaussianNoise(1.0))))


@dataclass(frozen=True)
class Reporting(pf.FedAvg):
    """Sends nothing but a randomised report, made of a table."""

    name: ClassVar[str] = "reporting"
    table: Any = None

    def fields(self):
        return (pf.Field("mean", combine="sum", shape=(), weighted=False, epsilon=1.0),)

    def finish(self, local, received, training):
        return {"mean": torch.tensor(float(np.mean(self.table)))}

    def aggregate(self, server, total, round, training):
        return server


def test_an_algorithm_whose_only_mechanism_is_a_randomised_report_may_not_hold_them_either():
    with pytest.raises(ConfigError, match=f"the algorithm .*Reporting {HELD}"):
        ran(Reporting("uniform", table=X), pf.Privacy())
    assert ran(Reporting("uniform", table=[1.0]), pf.Privacy()).statement.cell("client", "server").epsilon <= 1.0


def metric_of_examples(outputs, targets):
    return float(X.mean())


def test_a_metric_that_holds_examples_is_refused():
    with pytest.raises(ConfigError, match=f"the metric .*metric_of_examples {HELD}"):
        ran(metrics=(metric_of_examples,))


@dataclass(frozen=True)
class Empty(pf.Clip):
    """Counts as false, and holds examples."""

    table: ClassVar[Any] = X

    def __bool__(self):
        return False


WHOLE = task()


@dataclass(frozen=True)
class ReadsTask(pf.FedAvg):
    """Reads a whole task for its number of classes."""

    name: ClassVar[str] = "reads-task"

    def finish(self, local, received, training):
        return {name: value * WHOLE.classes for name, value in super().finish(local, received, training).items()}


def test_neither_a_mechanism_that_counts_as_false_nor_a_whole_task_goes_unseen():
    with pytest.raises(ConfigError, match=f"the mechanism .*Empty {HELD}"):
        ran(privacy=pf.Privacy(update=(Empty(1.0), pf.GaussianNoise(1.0))))
    with pytest.raises(ConfigError, match=f"the algorithm .*ReadsTask {HELD}"):
        ran(ReadsTask("uniform"))


def test_examples_in_a_memory_map_and_in_eight_bits_are_found(tmp_path):
    images = np.random.default_rng(2).integers(0, 256, (ROWS, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    for inputs in (images[:, None], mapped[:, None]):
        with pytest.raises(ConfigError, match=HELD):
            ran(
                WithTable("uniform", table=images[::7] / 255),
                inputs=inputs,
                test=(inputs[:4], Y[:4]),
                scale=1 / 255,
                model="two-nn",
            )


def test_tokens_are_found():
    tokens = np.random.default_rng(3).integers(1, 50, (ROWS, 12))
    settings = {"inputs": tokens, "test": (tokens[:4] * 0 + 1, Y[:4]), "vocabulary": 50, "model": "text-cnn"}
    with pytest.raises(ConfigError, match=HELD):
        ran(WithTable("uniform", table=tokens[:200]), **settings)


OTHERS = {
    "other rows": np.random.default_rng(4).normal(size=(ROWS, WIDTH)),
    "the held-out rows": TEST[0],
    "zeros": np.zeros((ROWS, WIDTH)),
    "a mean": X.mean(0),
    "one example": X[:1],
    "two numbers": [1.0, 2.0],
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_numbers_are_no_examples(what):
    assert ran(WithTable("uniform", table=OTHERS[what])).statement.cell("sample", "server").epsilon < np.inf


def test_examples_that_are_among_the_held_out_ones_too_are_public():
    twice = np.concatenate([X[:300], TEST[0]]), np.concatenate([Y[:300], TEST[1]])
    settings = {"inputs": twice[0], "targets": twice[1], "clients": np.arange(340) % 2}
    ran(WithTable("uniform", table=TEST[0]), **settings)
    with pytest.raises(ConfigError, match=HELD):
        ran(WithTable("uniform", table=X[:50]), **settings)


def test_images_that_are_mostly_black_are_found_at_another_scale():
    images = np.random.default_rng(5).integers(1, 256, (ROWS, 6, 6)) * (
        np.random.default_rng(6).random((ROWS, 6, 6)) < 0.3
    )
    images[:, 0] = 0
    inputs = (images[:, None] / 255).astype(np.float32)
    settings = {"inputs": inputs, "test": (np.random.default_rng(7).random((4, 1, 6, 6), np.float32), Y[:4])}
    for held in (images.astype(np.uint8), (images / 127.5 - 1).astype(np.float32)):
        with pytest.raises(ConfigError, match=f"{HELD} \\(25[0-6] of"):
            ran(WithTable("uniform", table=held), model="two-nn", **settings)


def test_where_one_value_is_large_in_all_examples_others_decide():
    def with_income(rows):
        return np.concatenate([5e4 + 1e4 * np.abs(rows[:, :1]), rows], axis=1).astype(np.float32)

    settings = {"inputs": with_income(X), "test": (with_income(TEST[0]), TEST[1])}
    ran(WithTable("uniform", table=with_income(OTHERS["other rows"])), **settings)
    with pytest.raises(ConfigError, match=HELD):
        ran(WithTable("uniform", table=with_income(X)), **settings)


SETTINGS = len(fields(pf.LocalTraining))
"""As many numbers as examples have values: what settings are, examples must not be taken for."""
UNEVEN = {
    "outliers": lambda rows: rows * np.where(np.arange(len(rows)) % 2, -1e6, 1)[:, None],
    "far from 0": lambda rows: rows + 1e6,
    "far from 0, one far from all": lambda rows: rows * np.where(np.arange(len(rows)), 1, 1e7)[:, None] + 1e6,
    "dates in seconds": lambda rows: (
        rows * np.array([1e7] + [1.0] * (SETTINGS - 1)) + np.array([1.7e9] + [0.0] * (SETTINGS - 1))
    ),
    "far from 0 in some values": lambda rows: rows + np.array([1e4] * 3 + [0.0] * (SETTINGS - 3)),
}


@pytest.mark.parametrize("tested", [2, 40])
@pytest.mark.parametrize("how", UNEVEN)
def test_where_examples_are_large_settings_are_none_and_examples_still_are(how, tested):
    """Beside one a million times as large every row is near to a small example, and where rounding is, to each: so
    settings were taken for examples, and examples for held-out ones, which are public."""
    draws = np.random.default_rng(4)
    inputs, held_out = (UNEVEN[how](draws.normal(size=(rows, SETTINGS))).astype(np.float32) for rows in (ROWS, tested))
    own = {"inputs": inputs, "test": (held_out, np.arange(tested) % 2)}
    ran(**own)
    ran(WithTable("uniform", table=UNEVEN[how](draws.normal(size=(ROWS, SETTINGS)))), **own)
    with pytest.raises(ConfigError, match=HELD):
        ran(WithTable("uniform", table=inputs), **own)


def with_date(rows):
    return np.concatenate([1.7e9 + 1e7 * rows[:, :1], rows], axis=1)


@pytest.mark.parametrize("factor", [0.001, 255])
def test_beside_a_date_examples_are_known_at_another_scale_too(factor):
    settings = {"inputs": with_date(X).astype(np.float32), "test": (with_date(TEST[0]).astype(np.float32), TEST[1])}
    ran(WithTable("uniform", table=(factor * with_date(OTHERS["other rows"])).astype(np.float32)), **settings)
    with pytest.raises(ConfigError, match=HELD):
        ran(WithTable("uniform", table=(factor * settings["inputs"][::7]).astype(np.float32)), **settings)


@pytest.mark.parametrize("seconds", [600, 3600])
def test_examples_are_told_from_held_out_ones_that_are_like_them(seconds):
    """Few answers to a questionnaire and a date: somebody gave the same answers a little later."""
    answers = np.random.default_rng(9).integers(0, 3, (20, 9)).astype(np.float64)

    def asked(rows, later):
        dates = 1.7e9 + 1e6 * np.arange(rows)[:, None] + later
        return np.concatenate([dates, answers[np.arange(rows) % 20]], axis=1).astype(np.float32)

    settings = {"inputs": asked(ROWS, 0), "test": (asked(ROWS - 1, seconds), Y[1:])}
    ran(WithTable("uniform", table=settings["test"][0]), **settings)
    with pytest.raises(ConfigError, match=f"{HELD} \\({LOOKED_FOR} of {LOOKED_FOR}"):
        ran(WithTable("uniform", table=settings["inputs"]), **settings)


BY_COLUMNS = {
    "standardised": lambda rows: (rows - rows.mean(0)) / rows.std(0),
    "between 0 and 1, one turned around": lambda rows: (
        (rows - rows.min(0)) / np.ptp(rows, axis=0) * ([-1] + [1] * (rows.shape[1] - 1))
    ),
    "in other units": lambda rows: rows * 10.0 ** (np.arange(rows.shape[1]) - 2),
}


@pytest.mark.parametrize("width", [3, WIDTH])
@pytest.mark.parametrize("how", BY_COLUMNS)
def test_all_examples_and_all_of_a_client_are_known_with_a_scale_for_each_column(how, width):
    settings = {"inputs": 10 + X[:, :width], "test": (10 + TEST[0][:, :width], TEST[1])}
    mixed = np.random.default_rng(8).permutation(ROWS)
    ran(WithTable("uniform", table=BY_COLUMNS[how](OTHERS["other rows"][:, :width])), **settings)
    for held in (settings["inputs"][mixed], settings["inputs"][CLIENTS == 1]):
        with pytest.raises(ConfigError, match=f"{HELD} \\(\\d+ of"):
            ran(WithTable("uniform", table=BY_COLUMNS[how](held).astype(np.float32)), **settings)


def test_the_last_of_many_clients_of_one_size_is_known_by_columns_too():
    settings = {"inputs": 10 + X, "clients": np.repeat(np.arange(30), ROWS // 30)}
    held = BY_COLUMNS["standardised"](settings["inputs"][-ROWS // 30 :]).astype(np.float32)
    with pytest.raises(ConfigError, match=f"{HELD} \\(20 of 20"):
        ran(WithTable("uniform", table=held), **settings)


def test_with_a_scale_for_each_column_two_columns_are_too_few():
    settings = {"inputs": X[:, :2], "test": (TEST[0][:, :2], TEST[1])}
    ran(WithTable("uniform", table=BY_COLUMNS["standardised"](X[:, :2])), **settings)


@pytest.mark.parametrize("inputs", [np.ones((40, WIDTH)), np.concatenate([TEST[0]] * 2)], ids=["blank", "all held out"])
def test_where_all_examples_are_blank_or_public_none_is_looked_for(inputs):
    ran(
        WithTable("uniform", table=inputs),
        inputs=inputs,
        targets=np.arange(len(inputs)) % 2,
        clients=np.arange(len(inputs)) % 2,
    )


def test_of_few_values_several_examples_must_be_found():
    narrow = X[:, :3]
    settings = {"inputs": narrow, "test": (TEST[0][:, :3], TEST[1])}
    with pytest.raises(ConfigError, match=f"{HELD}.*{LOOKED_FOR} that were looked for"):
        ran(WithTable("uniform", table=narrow), **settings)
    assert FEW < SEVERAL
    ran(WithTable("uniform", table=narrow[: SEVERAL - 1]), **settings)
    ran(WithTable("uniform", table=np.indices((3, 3, 3)).reshape(3, -1).T), **settings)


def test_without_mechanisms_nothing_is_claimed_and_nothing_refused():
    assert ran(WithTable("uniform", table=X), privacy=pf.Privacy()).statement.cell("sample", "server").epsilon == np.inf


def test_the_statement_names_a_model_that_begins_from_weights_it_was_given():
    trained = nn.Linear(WIDTH, 2)
    named = ran(model=lambda: copy.deepcopy(trained)).statement.public
    assert "every setting, the arrays of the model " in named
    assert f"<lambda> ({2 * WIDTH + 2} numbers)." in named
    assert "arrays" not in ran(model=Shaped).statement.public
    assert "arrays" not in ran(model=lambda: nn.Linear(X.shape[1], 2)).statement.public


def test_the_statement_names_the_parts_whose_arrays_it_takes_for_public():
    weights = torch.tensor([0.3, 0.7])

    def weighted(network, inputs, targets):
        return F.cross_entropy(network(inputs), targets, weight=weights, reduction="none")

    said = ran(WithTable("uniform", table=np.arange(5.0)), loss=weighted).statement.public
    assert "every setting, the arrays of the loss " in said
    assert "weighted (2 numbers) and of the algorithm " in said
    assert "WithTable (5 numbers)." in said
    assert "arrays" not in ran().statement.public

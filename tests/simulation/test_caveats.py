"""What a statement takes as public, and when its δ is too large: both are said, or nothing is claimed."""

import math
from dataclasses import replace

import numpy as np
import pytest

import privfl as pf
from privfl.algorithms import ALGORITHMS
from privfl.errors import ConfigError
from privfl.federation.cohorts import CohortWithout, Everyone
from privfl.privacy.accounting.closed_form import gaussian_epsilon
from privfl.privacy.accounting.statement import Statement
from privfl.simulation.caveats import assumptions

CLIENTS = 20
CENTRAL = (pf.Clip(1.0), pf.GaussianNoise(1.0))
DP_SGD = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2)


def arrays(rows=100):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 64)).astype(np.float32), np.arange(rows) % 3


def own(**settings):
    inputs, targets = arrays()
    settings = {"model": "logistic", "partition": pf.IID(clients=CLIENTS)} | settings
    return pf.Task.from_arrays(inputs, targets, **settings)


OWNED = {"clients": np.arange(100) % CLIENTS, "partition": None}


def train(task, **settings):
    rounds = settings.pop("rounds", 1)
    privacy = pf.Privacy(noise_key=1, **settings)
    training = pf.LocalTraining(learning_rate=0.1, steps=1)
    return pf.simulate(task, pf.FedAvg("uniform"), rounds=rounds, training=training, privacy=privacy)


def test_a_statement_says_what_it_takes_as_public_with_the_numbers_of_the_run():
    task = pf.load("digits", partition=pf.IID(clients=CLIENTS), model="logistic")
    statement = train(task, training=DP_SGD).statement
    assert statement.public == (
        "Public, by assumption: 10 classes, who the 20 clients are, inputs of shape 1 x 8 x 8, 359 test examples, "
        "every setting."
    )
    assert Statement.from_json(statement.to_json()) == statement
    assert max(map(len, str(statement).splitlines())) <= 100
    assert "Public, by assumption" in statement.to_html()
    assert "Public, by assumption" in str(statement)
    assert "Public, by assumption" not in str(train(task).statement)  # which claims nothing


@pytest.mark.parametrize(
    ("settings", "read_off"),
    [
        (OWNED, "how many classes there are (say it: classes=), which examples are held out for tests (give test=)"),
        (OWNED | {"classes": 3}, "which examples are held out for tests (give test=)"),
        (OWNED | {"test": arrays(10)}, "how many classes there are (say it: classes=)"),
        (
            {"classes": 3, "test": arrays(10)},
            "which client holds which example (say it: clients=, instead of a partition)",
        ),
    ],
)
def test_what_was_read_off_the_rows_is_named_with_the_mend(settings, read_off):
    statement = train(own(**settings)).statement
    assert statement.public.endswith(
        f"Read off the data, and covered by no claim unless it is known anyway: {read_off}."
    )


def test_of_a_file_the_mend_is_one_for_files(tmp_path):
    inputs, targets = arrays()
    np.savez(tmp_path / "rows.npz", inputs=inputs, targets=targets)
    settings = {"arrays": str(tmp_path / "rows.npz"), "partition": {"name": "iid", "clients": 2}}
    public = assumptions(pf.Experiment.from_dict(settings).task())
    assert "how many classes there are (say it: arrays.classes), which examples are held out for tests" in public
    assert "(bring test_inputs and test_targets in a .npz file)" in public


def test_nothing_is_read_off_where_all_is_said_and_a_copy_of_the_task_says_the_same():
    owners = np.arange(100) % CLIENTS
    task = own(classes=3, test=arrays(10), clients=owners, partition=None)
    assert "Read off" not in train(task, training=DP_SGD).statement.public
    assert replace(own(), name="other").read_off == own().read_off == ("classes", "test rows", "division")


def test_the_first_example_of_a_class_lengthens_the_model_unless_the_number_of_classes_is_said():
    """Two worlds that differ in one example: the released model tells them apart without fail, by its length."""
    inputs, targets = arrays()
    targets[-1] = 3  # the only one of its class
    lengths = {}
    for classes in (None, 4):
        worlds = [
            pf.Task.from_arrays(
                inputs[:rows], targets[:rows], classes=classes, test=arrays(10), partition=pf.IID(4), model="logistic"
            )
            for rows in (99, 100)
        ]
        runs = [train(world, training=DP_SGD) for world in worlds]
        lengths[classes] = [run.parameters.numel() for run in runs]
        said = ["how many classes" in run.statement.public for run in runs]
        assert said == [classes is None] * 2
    assert lengths[None][0] != lengths[None][1]
    assert lengths[4][0] == lengths[4][1]


@pytest.mark.parametrize("delta", [0.5, 0.9, 1.0, 0.0])
def test_a_delta_that_can_never_mean_anything_is_refused(delta):
    with pytest.raises(ConfigError, match=rf"privacy.target_delta is {delta}; give a number in \(0, 0.5\)"):
        pf.Privacy(target_delta=delta)


def test_a_delta_above_one_over_the_clients_is_called_too_large_in_statement_and_summary():
    task = own()
    run = train(task, update=CENTRAL, target_delta=0.06)
    assert 0 < run.statement.cell("client", "public").epsilon < math.inf
    (said,) = [one for one in run.statement.caveats if "one over the number of clients" in one]
    assert said.endswith("Set privacy.target_delta well below 0.05.")
    assert said in run.summary["warnings"]
    quiet = train(task, update=CENTRAL, target_delta=0.04)
    assert not [one for one in quiet.statement.caveats if "number of clients" in one]


def test_a_delta_above_one_over_all_examples_is_too_large_for_examples_without_telling_how_many_there_are():
    task = own()
    run = train(task, training=DP_SGD, target_delta=0.02)
    (said,) = [one for one in run.statement.caveats if "one over the number of examples" in one]
    assert str(len(task.clients.rows)) not in said
    assert not [one for one in run.statement.caveats if "number of clients" in one]  # nothing is claimed for clients
    assert not train(task, training=DP_SGD, target_delta=0.01).statement.caveats


def test_a_claim_of_nothing_but_delta_is_no_claim():
    """A mechanism that publishes each of 20 clients with probability 0.4 satisfies (0, 0.4) as well."""
    task, loud = own(), (pf.Clip(1.0), pf.GaussianNoise(5.0))
    run = train(task, update=loud, target_delta=0.4)
    cell = run.statement.cell("client", "public")
    assert cell.epsilon == cell.clients.maximum == math.inf
    assert "ε would be 0 only because delta = 0.4, above one over the number of clients" in cell.reasons[0]
    assert "client/public" not in run.metrics[-1]["epsilon"]
    small = train(task, update=(pf.Clip(1.0), pf.GaussianNoise(1e6)), target_delta=1e-5)
    assert small.statement.cell("client", "public").epsilon == 0  # which is a claim at this delta


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        (
            {"update": (pf.Clip(1.0), pf.GaussianNoise(5.0)), "budget": pf.Budget(1.0, "client", "public")},
            "budget for client/public is kept only because target_delta is 0.4, above one over the number of clients",
        ),
        (
            {"training": pf.DPSGD(target_epsilon=1.0, sample_rate=0.01)},
            "target_epsilon is kept only because target_delta is 0.4, above one over the number of examples",
        ),
    ],
)
def test_a_limit_that_only_delta_keeps_is_refused_before_training(privacy, message):
    with pytest.raises(ConfigError, match=message):
        train(own(), target_delta=0.4, **privacy)


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        ("local", {}, True),
        ("fedper", {"update": CENTRAL}, True),
        ("fedper", {"training": DP_SGD}, False),
        ("fedavg", {}, False),
    ],
)
def test_whose_figures_they_are_is_said_where_no_mechanism_covers_clients_own_models(algorithm, settings, said):
    weighting = {} if algorithm == "local" else {"weighting": "uniform"}
    statement = pf.simulate(
        own(model="two-nn"), ALGORITHMS[algorithm](**weighting), rounds=1, privacy=pf.Privacy(noise_key=1, **settings)
    ).statement
    assert any("the clients' own models, which no claim covers" in one for one in statement.caveats) == said


class ByLoss(Everyone):
    """A rule that could draw by what it has seen."""


class Somebody(pf.Bernoulli):
    """Another one, of who can be reached."""


def test_rules_of_who_takes_part_that_are_not_privfls_own_are_named_where_something_is_claimed():
    said = "(that who takes part depends on nobody's data)"

    def named(privacy=DP_SGD, **rules):
        run = pf.simulate(own(), pf.FedAvg("uniform"), rounds=1, privacy=pf.Privacy(training=privacy), **rules)
        return [caveat for caveat in run.statement.caveats if said in caveat]

    assert named(cohort=pf.FixedCohort(3), availability=pf.Bernoulli(0.9)) == []
    (both,) = named(cohort=ByLoss(), availability=Somebody(0.9))
    assert f"ByLoss {said}, Somebody {said}" in both
    assert f"ByLoss {said}" in named(cohort=CohortWithout(ByLoss(), frozenset({1})))[0].replace(
        "CohortWithout", "ByLoss"
    )
    assert named(None, cohort=ByLoss()) == []


def test_of_pooled_data_a_clients_part_costs_what_an_example_costs():
    """Without it the one update may be any other of the same bound, as replacing an example makes it."""
    statement = pf.simulate(own(), pf.Centralized(), rounds=1, privacy=pf.Privacy(update=CENTRAL)).statement
    client, sample = (statement.cell(unit, "public").epsilon for unit in ("client", "sample"))
    assert client == pytest.approx(sample, rel=1e-6)
    assert client == pytest.approx(gaussian_epsilon(0.5, statement.delta), rel=1e-3)
    assert "who the one client is" in statement.public
    alone = train(own(), update=CENTRAL).statement.cell("client", "public").epsilon
    assert alone == pytest.approx(gaussian_epsilon(1.0, statement.delta), rel=1e-3)

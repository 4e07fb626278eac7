"""What the rows decide of how rows are dealt with is named: the division, the flips, what clients hold back."""

import numpy as np
import pytest

import privfl as pf
from privfl.federation.read_off import (
    HELD_BACK,
    READ_OFF_FILES,
    READ_OFF_ROWS,
    VALIDATION,
    dealt_by_rows,
    held_back,
    judged_by_clients,
    validated,
)
from privfl.simulation.caveats import assumptions

X, Y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
TEST = (X[:6] + 9, Y[:6])


def own(**settings):
    dataset = pf.Dataset.from_arrays(X, Y, classes=2, test=TEST, clients=np.arange(60) % 3)
    return pf.Task.from_dataset(dataset, model="logistic", **settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, ()),
        ({"partition": pf.Natural()}, ()),
        ({"partition": pf.Natural(min_size=2)}, ("kept clients",)),
        ({"partition": pf.IID(clients=4)}, ("division",)),
        ({"label_noise": pf.PairFlip(0.1)}, ("label noise",)),
        (
            {"partition": pf.Dirichlet(clients=2, alpha=1.0), "label_noise": pf.PairFlip(0.1)},
            ("division", "label noise"),
        ),
    ],
)
def test_what_one_row_more_may_change_for_others_is_named(settings, named):
    task = own(**settings)
    assert task.read_off == named
    assert all(READ_OFF_ROWS[name] in assumptions(task) for name in named)


def test_a_partition_deals_all_rows_anew_when_one_is_gone():
    """Which is why it is named: every client's rows change, and not one client's alone."""
    tasks = [
        pf.Task.from_arrays(X[k:], Y[k:], classes=2, test=TEST, partition=pf.IID(clients=3), model="logistic")
        for k in (0, 1)
    ]
    held = [[{tuple(row) for row in t.inputs[t.clients[c]].tolist()} for c in range(3)] for t in tasks]
    assert all(len(one ^ two) > 2 for one, two in zip(*held, strict=True))
    assert tasks[0].read_off == ("division",)


def test_of_the_catalog_everybody_may_know_who_gets_which_row():
    task = pf.load("digits", partition=pf.IID(clients=4), label_noise=pf.PairFlip(0.1), local_tests=pf.LocalTests())
    assert task.published
    assert task.read_off == ()


def test_rows_that_clients_hold_back_are_no_public_test_examples():
    """Not even where the rows are published: the claim is about clients' examples, and these are."""
    union, official = (own().with_local_tests(pf.LocalTests(global_test=one)) for one in ("union", "official"))
    assert official.read_off == ("local tests",)
    assert union.read_off == ("local tests", HELD_BACK)
    assert "6 test examples" in assumptions(official)
    said = assumptions(union)
    assert said.startswith("Public, by assumption: 2 classes, who the 3 clients are, inputs of shape 3, every setting.")
    assert "the test examples, which clients hold back, so that no claim covers test figures" in said
    digits = pf.load("digits", partition=pf.IID(clients=4), local_tests=pf.LocalTests(global_test="union"))
    assert digits.read_off == (HELD_BACK,)


def test_the_figures_on_clients_own_rows_are_called_a_release_of_their_own():
    for union, whose in ((True, "Test, local and personal metrics"), (False, "Local and personal metrics")):
        task = own().with_local_tests(pf.LocalTests(global_test="union" if union else "official"))
        run = pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=pf.Privacy(training=pf.DPSGD(1.0)))
        (said,) = [one for one in run.statement.caveats if "one more release" in one]
        assert said.startswith(f"{whose} are measured on examples that clients hold back; no claim covers them")


def test_every_name_has_its_words_for_arrays_and_for_files():
    everything = dealt_by_rows(pf.IID(clients=2), pf.PairFlip(0.1)) + dealt_by_rows(pf.Natural(min_size=2), None)
    everything += held_back(("classes", "class names", "test rows"), published=False, union=True)
    everything = (*everything, VALIDATION)
    assert set(everything) == set(READ_OFF_ROWS) == set(READ_OFF_FILES)


def test_validation_rows_take_the_place_of_rows_that_are_held_back():
    assert validated(("test rows", HELD_BACK)) == ("test rows", VALIDATION)
    assert judged_by_clients(validated(()))
    assert judged_by_clients((HELD_BACK,))
    assert not judged_by_clients(("local tests", "test rows"))


class Renamed(pf.Natural):
    """Somebody's rule that begins with natural clients."""


def test_a_rule_made_of_the_natural_one_may_do_anything():
    assert dealt_by_rows(Renamed(), None) == ("division",)

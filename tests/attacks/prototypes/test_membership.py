"""Tracing finds a client's images in the prototypes of a run, and nobody's in those of somebody else."""

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.prototypes.membership import PrototypeTracing, trace_message
from attacks.prototypes.messages import message_of
from attacks.prototypes.tracing import PublicReference
from privfl.errors import ConfigError
from tests.attacks.federations import DIGITS, public, rows_by_client, run_of

ROWS = rows_by_client((40, 60))
PUBLIC = public(ROWS)


@pytest.fixture(scope="module")
def transcript():
    return run_of(ROWS, pf.ReBaFL(n_min=1), pf.LocalTraining(learning_rate=0.05, batch_size=10), rounds=2)


def auxiliary(client):
    rows = ROWS[client]
    inputs = torch.cat([DIGITS.inputs[rows], DIGITS.test_inputs])
    targets = torch.cat([DIGITS.targets[rows], DIGITS.test_targets])
    members = torch.arange(len(targets)) < len(rows)
    return Auxiliary(public=PUBLIC, candidates=Records(inputs, targets), truth={"members": members})


def test_members_of_small_means_are_found(transcript):
    """Four images a class: at chance, the AUC of 40 members against 360 others has deviation 0.048; 0.74 is 5 of it."""
    result = PrototypeTracing(client=0).run(transcript, auxiliary(0))
    assert result.metrics["auc"].value > 0.74
    assert result.advantage["auc"].value > 0.1
    assert set(result.nulls) == {"chance", "public prototype"}
    expected = result.settings["gaussian_auc"]
    assert all(0.5 < value <= 1 for value in expected.values())
    assert set(expected) == {str(label) for label in DIGITS.targets[ROWS[0]].unique().tolist()}


def test_the_images_of_another_client_are_not_in_the_prototype(transcript):
    """Asked about client 1's images in client 0's message: at chance up to 5 deviations."""
    result = PrototypeTracing(client=0).run(transcript, auxiliary(1))
    assert abs(result.metrics["auc"].value - 0.5) < 0.2


def test_the_score_is_the_statistic_over_its_deviation(transcript):
    message, candidates = message_of(transcript, 0), auxiliary(0).candidates
    found = trace_message(message, PUBLIC, candidates)
    label = message.classes[0]
    rows = candidates.targets == label
    reference = PublicReference.of(message.features(PUBLIC.inputs[PUBLIC.targets == label])[::2])
    away = message.prototypes[label].double() - reference.mean
    scores = reference.scores(message.features(candidates.inputs[rows]), message.prototypes[label])
    torch.testing.assert_close(found.scores[rows], scores / (away @ reference.precision @ away).sqrt())
    absent = [label for label in range(10) if label not in message.classes]
    assert bool((found.scores[torch.isin(candidates.targets, torch.tensor(absent))] == 0).all())


def test_a_class_without_enough_public_images_is_refused(transcript):
    few = Records(PUBLIC.inputs[:5], PUBLIC.targets[:5])
    with pytest.raises(ConfigError, match="give at least 4 of every attacked class"):
        PrototypeTracing(client=0).run(transcript, Auxiliary(public=few, candidates=auxiliary(0).candidates))

"""Tracing finds a client's images in the prototypes of a run, and nobody's in those of somebody else."""

from dataclasses import replace

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.metrics.distinguishing import auc
from attacks.prototypes.membership import PrototypeTracing, trace_message
from attacks.prototypes.messages import PrototypeMessage, message_of, noise_of
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


def test_rounds_are_added(transcript):
    """Client 0 took part in both rounds; more rounds than there are mean all of them."""
    asked = auxiliary(0)
    both = PrototypeTracing(client=0, rounds=5).guess(transcript, asked)
    single = [PrototypeTracing(client=0, round=k).guess(transcript, asked) for k in range(2)]
    torch.testing.assert_close(both.scores, single[0].scores + single[1].scores)
    torch.testing.assert_close(both.null, single[0].null + single[1].null)


class Plain(torch.nn.Module):
    """Inputs are features."""

    def features(self, inputs):
        return inputs


def test_noise_of_a_known_size_is_part_of_the_whitening():
    """200 members of ten-sample means against 200 others: at chance the AUC's deviation is 0.03; 0.15 is 5 of it."""
    generator = torch.Generator().manual_seed(0)
    spread = 10 ** -torch.linspace(0, 3, 32)

    def draw(count):
        return 3 + spread * torch.randn(count, 32, generator=generator)

    aware, blind = [], []
    known = Records(draw(400), torch.zeros(400, dtype=torch.int64))
    for _ in range(20):
        inside, outside = draw(10), draw(10)
        sums, count = inside.sum(0) + torch.randn(32, generator=generator), 10 + torch.randn((), generator=generator)
        message = PrototypeMessage(0, (0,), (sums / count)[None], count[None], Plain())
        asked = Records(torch.cat([inside, outside]), torch.zeros(20, dtype=torch.int64))
        aware.append(trace_message(message, known, asked, (1.0, 1.0)).scores)
        blind.append(trace_message(message, known, asked).scores)
    areas = [
        auc(found[:, :10].flatten().numpy(), found[:, 10:].flatten().numpy()).value
        for found in map(torch.stack, (aware, blind))
    ]
    assert areas[0] > 0.65
    assert areas[0] > areas[1] + 0.1


def test_the_size_of_the_noise_is_read_off_the_public_settings(transcript):
    assert noise_of(transcript.facts) == (0.0, 0.0)
    totals = [{"statistic": "label_prior", "max_norm": 1.0, "noise_multiplier": 8.0}]
    totals += [{"statistic": "prototypes", "max_norm": 1.5, "noise_multiplier": 4.0}]
    privacy = {**transcript.facts.privacy, "statistics": totals}
    for norm, expected in ((2.0, (12.0, 6.0)), (float("inf"), (6.0, 6.0))):
        algorithm = {**transcript.facts.algorithm, "feature_norm": norm}
        assert noise_of(replace(transcript.facts, privacy=privacy, algorithm=algorithm)) == expected

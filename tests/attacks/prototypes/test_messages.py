"""The prototypes that an attacker reads off a transcript are the means under the extractor that the client returned."""

from dataclasses import replace

import pytest
import torch

import privfl as pf
from attacks.prototypes.messages import message_of, prototype_messages
from privfl.errors import ConfigError
from tests.attacks.federations import DIGITS, rows_by_client, run_of

ROWS = rows_by_client((30, 50))
TRAINING = pf.LocalTraining(learning_rate=0.05, batch_size=10)


@pytest.fixture(scope="module")
def transcript():
    return run_of(ROWS, pf.ReBaFL(n_min=1), TRAINING, rounds=2)


def test_a_prototype_is_the_mean_feature_of_the_clients_images(transcript):
    for client, rows in enumerate(ROWS):
        message = message_of(transcript, client)
        targets = DIGITS.targets[rows]
        assert message.round == 1
        assert message.counts.tolist() == torch.bincount(targets, minlength=10).tolist()
        for label in message.classes:
            own = DIGITS.inputs[rows][targets == label]
            torch.testing.assert_close(message.prototypes[label], message.features(own).mean(0), rtol=1e-4, atol=1e-4)


def test_messages_come_client_by_client_and_round_by_round(transcript):
    assert [message.members for message in prototype_messages(transcript, 0)] == [(0,), (1,)]
    assert prototype_messages(transcript, 0)[0].round == 0
    assert not torch.equal(message_of(transcript, 0, 0).prototypes, message_of(transcript, 0, 1).prototypes)


def test_a_secure_sum_gives_the_prototypes_of_all_its_members_together(transcript):
    seen = transcript[1]
    secure = replace(seen.training, uploads=None)
    summed = pf.Transcript(transcript.facts, "server", [replace(seen, exchanges=(secure,))])
    message = message_of(summed, None)
    assert message.members == (0, 1)
    counts = torch.bincount(DIGITS.targets[torch.cat(list(ROWS))], minlength=10)
    assert message.counts.tolist() == counts.tolist()
    own = [message_of(transcript, client) for client in (0, 1)]
    together = sum(one.prototypes * one.counts[:, None] for one in own) / counts.clamp_min(1)[:, None]
    torch.testing.assert_close(message.prototypes, together, rtol=1e-4, atol=1e-5)
    released = torch.cat([parameter.flatten() for parameter in message.network.parameters()])
    torch.testing.assert_close(released, seen.released)  # the extractor is the next model, which FedAvg's mean gives


def test_what_was_not_sent_cannot_be_read(transcript):
    with pytest.raises(ConfigError, match="round 2 was not recorded"):
        message_of(transcript, 0, 2)
    with pytest.raises(ConfigError, match="client 7 sent no prototypes of its own in that round; seen: 0, 1"):
        message_of(transcript, 7)
    with pytest.raises(ConfigError, match="2 messages with prototypes"):
        message_of(transcript, None)
    with pytest.raises(ConfigError, match="fedavg sent no prototypes"):
        message_of(run_of(ROWS, pf.FedAvg(), TRAINING), 0)
    with pytest.raises(ConfigError, match="the public sees no messages"):
        message_of(transcript.before_public(), 0)

"""FedMIA: steps down a record's slope calibrated by the other clients of the round."""

import pytest
import torch

from attacks.auxiliary import Auxiliary
from attacks.membership.cosines import Standardised, steps
from attacks.membership.fedmia import FedMIA
from attacks.membership.scores import Models
from attacks.membership.update_attacks import ANOTHER
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import game, part, task_of, watch

CLIENTS = [part(40 * k, 40 * (k + 1)) for k in range(5)]


@pytest.fixture(scope="module")
def seen():
    return watch(task_of(CLIENTS), rounds=3, epochs=4, learning_rate=0.1)


def test_the_score_is_what_the_client_does_beyond_the_others(seen):
    asked, one, models = part(0, 6), seen[2], Models(seen.factory)
    updates = torch.stack([one.uploads[client]["update"] for client in (1, 0, 2, 3, 4)])
    made, _ = steps(models, one.broadcast["parameters"], asked, updates)
    expected = Standardised()
    expected.add(made[0], made[1:])
    found = FedMIA(client=1, rounds=1).guess(seen, Auxiliary(candidates=asked))
    torch.testing.assert_close(torch.as_tensor(found.scores), expected.scores(asked.targets))
    null = Standardised()  # client 0 in its place, judged by those who are neither
    null.add(made[1], made[2:])
    torch.testing.assert_close(torch.as_tensor(found.nulls[ANOTHER]), null.scores(asked.targets))


def test_members_are_found_and_their_owner_alone_gives_them_away(seen):
    longer = watch(task_of(CLIENTS), rounds=4, epochs=20, learning_rate=0.1)
    result = FedMIA(client=0).run(longer, game(CLIENTS[0], part(240, 420)))
    assert result.metrics["auc"].low > 0.6
    assert result.advantage["auc"].value > 0.15


def test_it_needs_a_client_and_company(seen):
    with pytest.raises(ConfigError, match="give its number as client"):
        FedMIA(client=None).run(seen, game(CLIENTS[0], part(240, 420)))
    alone = watch(task_of(CLIENTS[:2]), rounds=1)
    with pytest.raises(ConfigError, match="never met two others"):
        FedMIA(client=0).run(alone, game(CLIENTS[0], part(240, 420)))

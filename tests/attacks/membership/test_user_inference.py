"""User inference: who took part is told by a mean over records, and nobody by a reference in the victim's place."""

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary
from attacks.membership.game import users_game
from attacks.membership.shadow_models import ShadowTraining
from attacks.membership.user_inference import UserInference, means
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import part, task_of

CLIENTS = [part(20 * k, 20 * (k + 1)) for k in range(12)]
PUBLIC, OTHERS = part(240, 500), part(500, 1400)


def test_users_who_took_part_are_told_from_others():
    """Labels are random, so only training tells; at chance 45 of 2.7 million orders have an AUC of 0.95 and more."""
    task = task_of(CLIENTS)
    training = pf.LocalTraining(learning_rate=0.2, batch_size=20, epochs=10)
    run = pf.simulate(
        task, pf.FedAvg(), rounds=10, training=training, record=True, execution=pf.Execution(engine="loop")
    )
    rows = [task.clients[client] for client in range(12)]
    everything = part(0, 240)
    game = users_game(everything, rows, OTHERS, PUBLIC, 1000, torch.Generator().manual_seed(0))
    attack = UserInference(shadows=ShadowTraining(count=2, epochs=20))
    found = attack.run(run.transcript.before_public(), game)
    assert (found.units, found.unit) == (24, "user")
    assert found.metrics["auc"].value > 0.95
    assert found.nulls["a reference in the victim's place"]["auc"].value < 0.95
    with pytest.raises(ConfigError, match="whose each candidate is"):
        attack.guess(run.transcript, Auxiliary(PUBLIC, game.candidates))


def test_pairs_have_the_same_classes_and_nobody_occurs_twice():
    game = users_game(part(0, 60), torch.arange(60).split(30), OTHERS, PUBLIC, 1000, torch.Generator().manual_seed(0))
    assert game.truth["users"].tolist() == [True, False, True, False]
    assert torch.bincount(game.users).tolist() == [20, 20, 20, 20]
    for user in (0, 2):
        both = [game.candidates.targets[game.users == number].sort().values for number in (user, user + 1)]
        assert torch.equal(*both)
    strangers = game.candidates.inputs[game.users % 2 == 1].flatten(1)
    assert len(strangers.unique(dim=0)) == 40
    few = users_game(part(0, 60), torch.arange(60).split(30), OTHERS, PUBLIC, 40, torch.Generator().manual_seed(0))
    assert len(few.truth["users"]) == 2
    with pytest.raises(ConfigError, match="no user has as many held-out records"):
        users_game(part(0, 60), torch.arange(60).split(30), part(500, 503), PUBLIC, 1000, torch.Generator())


def test_every_user_has_a_record():
    assert means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([1, 1, 0])).tolist() == [5, 2]
    with pytest.raises(ConfigError, match="user 1 has no record"):
        means(torch.ones(2), torch.tensor([0, 2]))

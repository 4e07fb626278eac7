"""A poisoning client: it is added to the others, holds the candidates mislabelled, and members withstand it."""

from dataclasses import replace

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary
from attacks.membership.poisoning import PoisonedMembership
from attacks.membership.shadow_models import ShadowTraining
from privfl.errors import ConfigError
from tests.attacks.membership.worlds import game, part, task_of

CLIENTS = [part(0, 60), part(60, 120)]


def test_the_attacker_is_one_more_client_and_touches_nobody_elses_records():
    task, asked = task_of(CLIENTS), part(40, 90)
    poisoned, algorithm = PoisonedMembership(copies=2).staged(task, pf.FedAvg(), Auxiliary(candidates=asked))
    assert len(poisoned.clients) == 3
    for client in range(2):
        rows, before = poisoned.clients[client], task.clients[client]
        assert torch.equal(rows, before)
        assert torch.equal(poisoned.targets[rows], task.targets[before])
    own = poisoned.clients[2]
    assert torch.equal(poisoned.inputs[own], asked.inputs.repeat(2, *(1 for _ in asked.inputs.shape[1:])))
    assert torch.equal(poisoned.targets[own], ((asked.targets + 1) % 10).repeat(2))
    assert len(task.clients) == 2
    assert isinstance(algorithm, pf.FedAvg)


def test_members_withstand_the_poison():
    asked = game(part(0, 120), part(120, 400))
    attack = PoisonedMembership(shadows=None)
    task, algorithm = attack.staged(task_of(CLIENTS), pf.FedAvg(weighting="uniform"), asked.for_attacker())
    training = pf.LocalTraining(learning_rate=0.2, batch_size=20, epochs=10)
    run = pf.simulate(task, algorithm, rounds=6, training=training, record=True, execution=pf.Execution(engine="loop"))
    found = attack.run(run.transcript.before_public(), asked)
    assert found.metrics["auc"].low > 0.6
    few = ShadowTraining(count=2, epochs=10)
    compared = PoisonedMembership(shadows=few).run(
        run.transcript.before_public(), replace(asked, public=part(400, 600))
    )
    assert compared.metrics["auc"].low > 0.6
    assert compared.nulls["a reference in the victim's place"]["auc"].low < 0.5
    with pytest.raises(ConfigError, match="copies"):
        PoisonedMembership(copies=0)

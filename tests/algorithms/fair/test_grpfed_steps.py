"""What each of the three steps of GRP-FED's client changes, and what it leaves: checks 5 and 6 of its specification."""

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import pytest
import torch

import privfl as pf
from privfl.algorithms.fair.discriminator import discriminator_logits, judged_terms, personal_terms
from privfl.algorithms.fair.grpfed import GRPFed
from privfl.models.flat_network import flatten
from tests.algorithms.fair.test_grpfed import SIZES, clients_of, two_layer_head
from tests.algorithms.federation import digits_task

HIDDEN = 6
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=5, epochs=2, momentum=0.9, weight_decay=0.01)


@pytest.fixture(scope="module")
def task():
    return dataclasses.replace(digits_task(SIZES), model=two_layer_head)


class Recording:
    """The client's door, which notes copies of what it is asked at."""

    def __init__(self, door, tape):
        self.door, self.tape, self.loss, self.total = door, tape, door.loss, door.total

    def gradient(self, loss, parameters, batch):
        self.tape.append({"global": parameters.clone()})
        return self.door.gradient(loss, parameters, batch)

    def local_only_gradient(self, loss, parameters, batch, given, wrt="parameters"):
        seen = self.tape[-1]
        if wrt == "parameters":
            names = "local", "discriminator"
        else:
            names = ("judged local", "judged again") if "judged" in seen else ("reference", "judged")
        seen.update(zip(names, (parameters.clone(), given["discriminator"].clone()), strict=True))
        return self.door.local_only_gradient(loss, parameters, batch, given, wrt)


@dataclass(frozen=True)
class Watched(GRPFed):
    tape: list = field(default_factory=list)

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, Recording(client, self.tape), training)


@pytest.mark.parametrize("reference", ["broadcast", "current"])
def test_each_step_changes_its_own_network_and_no_other(task, reference):
    start = flatten(task.model(7))
    head = task.context(1, 0).head
    watched = Watched(hidden=HIDDEN, disc_ref=reference)
    clients_of(task, watched, parameters=start, training=TRAINING)
    steps = watched.tape
    assert len(steps) >= 8
    for step in steps:
        assert torch.equal(step["discriminator"], step["judged"])  # b leaves the discriminator
        assert torch.equal(step["judged"], step["judged again"])  # and c takes one step, on both kinds of features
        assert torch.equal(step["local"][head], start[head])  # the frozen classifier
        assert torch.equal(step["judged local"][head], start[head])
        assert not torch.equal(step["local"], step["judged local"])  # c sees the extractor after b
        if reference == "broadcast":
            assert torch.equal(step["reference"], start)
    followed = 0
    for step, following in pairwise(steps):
        if torch.equal(following["global"], start):  # the next client
            continue
        followed += 1
        assert torch.equal(following["local"], step["judged local"])  # c leaves the extractors
        assert not torch.equal(following["discriminator"], step["judged"])
        if reference == "current":
            assert torch.equal(step["reference"], following["global"])  # b and c leave the global model
            assert not torch.equal(step["global"], following["global"])
    assert followed >= 6


@pytest.mark.parametrize("kind", ["bce", "saturating", "paper"])
def test_without_the_task_an_extractor_learns_to_pass_for_the_global_one(task, kind):
    """β = 0 and a frozen discriminator that tells the two apart: the mean of D over the local features rises."""
    inputs, targets = task.inputs[:40], task.targets[:40]
    ours, reference = two_layer_head(1), two_layer_head(2)
    generator = torch.Generator().manual_seed(0)
    judge = 0.1 * torch.randn(12 * HIDDEN + 2 * HIDDEN + 1, generator=generator, dtype=torch.float64)
    for _ in range(200):
        leaf = judge.requires_grad_()
        terms = partial(judged_terms, hidden=HIDDEN, kind="bce")
        loss = terms(reference, inputs, targets, leaf, is_global=True).mean()
        loss = loss + terms(ours, inputs, targets, leaf, is_global=False).mean()
        judge = (leaf - 0.3 * torch.autograd.grad(loss, leaf)[0]).detach()

    def passing():
        return float(discriminator_logits(judge, ours.features(inputs), HIDDEN).sigmoid().mean().detach())

    before = passing()
    assert before < 0.5
    for _ in range(30):
        ours.zero_grad()
        terms = personal_terms(task.loss, ours, inputs, targets, judge, hidden=HIDDEN, kind=kind, beta=0.0)
        terms.mean().backward()
        with torch.no_grad():
            for parameter in ours.body.parameters():
                parameter -= 0.3 * parameter.grad
    assert passing() > before

"""What the server makes of uploads that anybody could have sent."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from privfl.deploy.engine import held_to_bounds, upload_problem
from privfl.deploy.local import settings_of
from privfl.deploy.messages import Message, digest, opened
from privfl.deploy.transport import Loopback
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.noise.source import NoiseSource
from privfl.simulation.plan import prepare
from tests.deploy.rehearsal import CLIENTS, LOOP, Rehearsal, experiment

LIKE = torch.zeros(3)
UNIFORM = {"name": "fedavg", "weighting": "uniform"}
CLIP = {"name": "clip", "max_norm": 0.5}
CHANNEL = RoundChannel.bare((Field("update"),))


@pytest.mark.parametrize(
    ("upload", "problem"),
    [
        ({"update": torch.ones(3)}, ""),
        ({}, "sent no 'update'"),
        ({"update": torch.ones(3), "more": torch.ones(3)}, "sent more than it was asked for"),
        ({"update": torch.ones(4)}, "sent 'update' of shape (4,)"),
        ({"update": torch.ones(3, dtype=torch.int64)}, "sent 'update' as torch.int64"),
        ({"update": torch.tensor([0.0, 1.0, torch.nan])}, "sent a non-finite 'update'"),
    ],
)
def test_an_upload_is_looked_at_before_it_is_used(upload, problem):
    assert upload_problem(CHANNEL, upload, LIKE) == problem


def test_a_lying_client_that_signs_nonsense_is_dropped_and_counted_and_the_round_goes_on(tmp_path):
    rehearsal = Rehearsal(tmp_path / "federation", experiment(rounds=2))
    clients = rehearsal.clients()
    liar = rehearsal.client(2)

    def lies(request):
        reply = liar.answer(request)
        if b'"train"' not in request:
            return reply
        nonsense = {"update": torch.full((650,), torch.nan)}
        return Message({"kind": "upload", "from": 2, "request": digest(request)}, nonsense).sealed(liar.key)

    found = rehearsal.run(Loopback({**clients, 2: lies}))
    assert found.summary["dropped"] == {"sent a non-finite 'update'": 2}
    assert [line["clients"] for line in found.metrics] == [CLIENTS - 1] * 2
    assert not found.failure


@pytest.mark.parametrize("probability", [0.5, 0.1])
def test_a_client_that_was_drawn_hears_nothing_that_depends_on_how_many_others_were(probability, tmp_path):
    noise = {"name": "gaussian-noise", "noise_multiplier": 1.0}
    cohort = {"name": "poisson", "probability": probability}
    privacy = {"noise_key": 11, "target_delta": 1e-3, "update": [CLIP, noise]}
    settings = experiment(rounds=8, algorithm=UNIFORM, cohort=cohort, privacy=privacy)
    rehearsal = Rehearsal(tmp_path / "federation", settings)
    key, told = bytes.fromhex(rehearsal.federation.server), []

    def heard(answer):
        def one(request):
            told.append(opened(request, key))
            return answer(request)

        return one

    found = rehearsal.run(Loopback({number: heard(answer) for number, answer in rehearsal.clients().items()}))
    trained = [{**one.meta} for one in told if one.kind == "train"]
    drawn = Counter(meta["round"] for meta in trained)
    assert len({drawn[round] for round in range(8)}) > 1
    assert {name for meta in trained for name in meta} == {
        "kind", "round", "label", "bound", "kept", "factor", "run", "to"
    }  # fmt: skip
    assert {(meta["bound"], meta["kept"], meta["factor"]) for meta in trained} == {(0.5, -1, 1.0)}
    assert torch.equal(found.parameters, replace(settings, execution=LOOP).run().parameters)


GAUSSIAN = {"name": "gaussian-noise", "noise_multiplier": 0.01}


@pytest.mark.parametrize("update", [[CLIP, GAUSSIAN], [CLIP]], ids=["noise on the sum", "no noise"])
def test_a_lying_client_adds_no_more_than_the_bound_and_is_named_once(update, tmp_path, caplog):
    privacy = {"noise_key": 11, "target_delta": 1e-3, "update": update}
    rehearsal = Rehearsal(tmp_path / "federation", experiment(algorithm=UNIFORM, privacy=privacy))
    liar = rehearsal.client(1)

    def lies(request):
        reply = liar.answer(request)
        if b'"train"' not in request:
            return reply
        far = {"update": torch.full((650,), 4e4)}
        return Message({"kind": "upload", "from": 1, "request": digest(request)}, far).sealed(liar.key)

    found = rehearsal.run(Loopback({**rehearsal.clients(), 1: lies}))
    assert found.parameters.norm() < 0.5 * 2 + 1
    assert not found.summary["dropped"]
    told = [record.getMessage() for record in caplog.records if "client 1" in record.getMessage()]
    assert told == [
        "round 0: client 1 sent an update of norm 1.0198e+06, and a bound of 0.5 was agreed; it counts as scaled down "
        "to that"
    ]
    assert "client 1" not in str(found.summary)  # whose upload could not be used is in no file


def test_an_honest_upload_is_within_the_bound_and_stays_as_it_is_to_the_bit():
    settings = experiment(algorithm=UNIFORM, privacy={"update": [CLIP, GAUSSIAN]})
    channel = prepare(settings_of(settings, settings.task())).channel.usual
    for length in (1e-30, 0.1, 0.4999999, 0.5, 0.5000001, 3.0, 1e30):
        update = torch.randn(650, generator=torch.Generator().manual_seed(1))
        update *= length / update.norm()
        noise = NoiseSource.from_key(1).stream("client", 0)
        sent = channel.at_client({"update": update.clone()}, noise, like=update, broken=False)
        held, beyond = held_to_bounds(channel, sent)
        assert held["update"] is sent["update"]
        assert beyond == ""


def test_a_number_beside_an_update_is_held_to_what_was_agreed():
    adaptive = {"name": "adaptive-clip", "initial_norm": 0.5, "count_noise": 1.0}
    noise = {**GAUSSIAN, "noise_multiplier": 1.0}
    settings = experiment(algorithm=UNIFORM, privacy={"update": [adaptive, noise]})
    channel = prepare(settings_of(settings, settings.task())).channel.usual
    (name,) = channel.chain.side_values
    upload = {"update": torch.zeros(650), name: torch.tensor(0.5)}
    assert held_to_bounds(channel, upload) == (upload, "")
    held, beyond = held_to_bounds(channel, {**upload, name: torch.tensor(-1e6)})
    assert float(held[name]) == -0.5
    assert beyond == f"sent a '{name}' of -1e+06, and ±0.5 was agreed"


def test_noise_that_a_client_adds_itself_is_not_scaled_away():
    settings = experiment(algorithm=UNIFORM, privacy={"update": [CLIP, {**GAUSSIAN, "at": "client"}]})
    channel = prepare(settings_of(settings, settings.task())).channel.usual
    upload = {"update": torch.ones(650)}
    assert held_to_bounds(channel, upload) == (upload, "")

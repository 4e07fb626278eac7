"""Whoever is asked for its size is charged, whether or not the server hears the answer in time."""

from __future__ import annotations

import json

import numpy as np
import pytest

from privfl.deploy.messages import opened
from privfl.deploy.transport import Loopback
from privfl.privacy.sizes.local_randomizers import PiecewiseSize
from privfl.privacy.sizes.responses import SizeResponses
from tests.deploy.rehearsal import CLIENTS, Rehearsal, experiment

RESPONSE = "size response"


def asked(refresh, rounds=6, **privacy):
    size = {"name": "grr", "epsilon": 2.0, "bound": 700, "refresh": refresh}
    dpsgd = {"noise_multiplier": 20.0, "sample_rate": 0.02}
    privacy = {"training": dpsgd, "target_delta": 1e-4, "max_size_error": 1e9, "size": size, **privacy}
    training = {"steps": 1, "batch_size": 16}
    settings = {"algorithm": {"name": "fedavg", "weighting": "size"}, "training": training}
    return experiment(rounds=rounds, privacy=privacy, **settings)


def losing(rehearsal, lost, *, on_the_way_back):
    """Clients of whose answers about sizes those of the (client, round) in ``lost`` never reach the server."""

    def with_loss(client, answer):
        def answers(request):
            meta = opened(request, bytes.fromhex(rehearsal.federation.server)).meta
            if meta["kind"] == "size" and (client, meta["round"]) in lost:
                if on_the_way_back:
                    answer(request)
                raise OSError("the line is dead")
            return answer(request)

        return answers

    return Loopback({client: with_loss(client, answer) for client, answer in rehearsal.clients().items()})


def counted(ledger, client):
    histories = ledger.histories("sample", "server")
    row = histories.row(int(histories.group[client]))
    return sum(count for release, count in row.items() if release.name == RESPONSE)


def charged(run, client):
    return counted(run.ledger, client)


def drawn(rehearsal, client):
    """How many answers the client has drawn, by its own books."""
    return counted(rehearsal.client(client).diary.ledger, 0)


@pytest.mark.parametrize("refresh", ["every_round", 2, 3])
def test_answers_that_come_too_late_are_charged_and_those_that_are_repeated_are_not(refresh, tmp_path):
    lost = {(0, number) for number in range(1, 6)} | {(1, 2), (1, 3), (2, 3)}
    rehearsal = Rehearsal(tmp_path / "federation", asked(refresh))
    run = rehearsal.run(losing(rehearsal, lost, on_the_way_back=True))
    found = [charged(run, client) for client in range(CLIENTS)]
    assert found == [drawn(rehearsal, client) for client in range(CLIENTS)]
    assert found == [{"every_round": 6, 2: 3, 3: 2}[refresh]] * CLIENTS


def test_requests_that_never_came_through_are_charged_as_if_they_had(tmp_path):
    rehearsal = Rehearsal(tmp_path / "federation", asked(3))
    run = rehearsal.run(losing(rehearsal, {(0, 3), (0, 4), (1, 3)}, on_the_way_back=False))
    assert [charged(run, client) for client in range(CLIENTS)] == [2] * CLIENTS
    assert [drawn(rehearsal, client) for client in range(CLIENTS)] == [2] * CLIENTS


@pytest.mark.parametrize("period", [2, 3, 4])
def test_no_choice_of_requests_that_come_through_lets_a_client_draw_more_than_it_is_charged_for(period):
    mechanism, random = PiecewiseSize(1.0, 100, refresh=period), np.random.default_rng(period)
    for _ in range(200):
        requests = np.flatnonzero(random.random(30) < 0.5)
        came, drew, table, paid = random.random(len(requests)) < random.random(), [], SizeResponses(), 0
        for round, through in zip(requests.tolist(), came, strict=True):
            if table.owing([0], round, mechanism)[0]:
                table.charged[0], paid = round, paid + 1
            if through and (not drew or round - drew[-1] >= period):
                drew.append(round)
            assert len(drew) <= paid


def test_who_was_charged_is_known_after_an_interruption(tmp_path):
    rehearsal = Rehearsal(tmp_path / "federation", asked(3))
    lost, stops = {(0, 3), (0, 4)}, [4]

    class Dying(Loopback):
        def ask(self, requests, seconds, genuine):
            if stops and any(b'"round": 4' in request and b'"size"' in request for request in requests.values()):
                stops.pop()
                raise KeyboardInterrupt
            return super().ask(requests, seconds, genuine)

    network = Dying(losing(rehearsal, lost, on_the_way_back=True).clients)
    with pytest.raises(KeyboardInterrupt):
        rehearsal.run(network, resume=True)
    run = rehearsal.run(network, resume=True)
    assert not stops
    assert [charged(run, client) for client in range(CLIENTS)] == [2] * CLIENTS


def test_the_table_with_who_was_charged_survives_a_checkpoint():
    table = SizeResponses()
    assert "charged" not in table.state()
    table.charged = {4: 0, 1: 300}
    assert SizeResponses.from_state(json.loads(json.dumps(table.state()))).charged == table.charged


def test_a_budget_of_the_run_counts_answers_that_come_too_late(tmp_path):
    budget = {"budget": {"epsilon": 2.6, "unit": "sample", "observer": "server"}}
    rounds = {}
    for name, lost in (("in time", set()), ("late", {(client, n) for client in range(CLIENTS) for n in range(1, 6)})):
        rehearsal = Rehearsal(tmp_path / name, asked("every_round", **budget))
        run = rehearsal.run(losing(rehearsal, lost, on_the_way_back=True))
        rounds[name] = run.summary["rounds"]
        assert run.statement.cell("sample", "server").epsilon <= 2.6
    assert rounds["late"] == rounds["in time"] < 6

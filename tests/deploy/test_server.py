"""Whole runs: the federation gives the loop simulation's model and claims, whatever a client does."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from privfl.deploy.diary import ANSWERED_BEFORE, NO_LONGER_KEPT
from privfl.deploy.engine import OLDER
from privfl.deploy.messages import Message, digest
from privfl.deploy.transport import Loopback
from privfl.errors import ConfigError, DataError
from tests.deploy.rehearsal import CLIENTS, LOOP, Rehearsal, experiment

KEY = 11
LAPLACE = {"name": "laplace", "epsilon": 8.0, "bound": 600}
CASES = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "scaffold": {"algorithm": {"name": "scaffold"}, "cohort": {"name": "fixed", "size": 3}, "rounds": 3},
    "fedsampling": {
        "algorithm": {"name": "fedsampling", "samples_per_round": 300},
        "privacy": {
            "noise_key": KEY,
            "max_size_error": 1e4,
            "training": {"noise_multiplier": 1.0, "noise_at": "server"},
            "size": LAPLACE,
        },
    },
    "rebafl": {"algorithm": {"name": "rebafl"}},
    "secure sum weighed by noisy sizes": {
        "algorithm": {"name": "fedavg"},
        "privacy": {
            "noise_key": KEY,
            "max_size_error": 1e4,
            "size": {"name": "laplace", "epsilon": 8.0, "bound": 600},
            "update": [{"name": "secure-sum"}],
        },
    },
    "secure sum": {"rounds": 3, "privacy": {"noise_key": KEY, "update": [{"name": "secure-sum"}]}},
    "adaptive clip": {
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "privacy": {
            "noise_key": KEY,
            "update": [
                {"name": "adaptive-clip", "initial_norm": 1.0, "count_noise": 2.0},
                {"name": "gaussian-noise", "noise_multiplier": 1.0},
            ],
        },
    },
    "skellam": {
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "privacy": {
            "noise_key": KEY,
            "update": [
                {"name": "clip", "max_norm": 1.0},
                {"name": "skellam-noise", "noise_multiplier": 1.0},
                {"name": "secure-sum"},
            ],
        },
    },
    "target": {
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "privacy": {"noise_key": KEY, "training": {"target_epsilon": 3.0}, "target_delta": 1e-4},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_the_federation_gives_the_model_metrics_and_claims_of_the_simulation(case, tmp_path):
    asked = experiment(**CASES[case])
    expected = replace(asked, execution=LOOP).run()
    found = Rehearsal(tmp_path / "federation", asked).run()
    assert torch.equal(expected.parameters, found.parameters)
    assert expected.metrics == found.metrics
    assert str(expected.statement) == str(found.statement)


UNIFORM = {"name": "fedavg", "weighting": "uniform"}


class Faulty(Loopback):
    """Some clients answer some rounds otherwise."""

    def __init__(self, clients, faults):
        super().__init__({client: self._with(client, answer, faults) for client, answer in clients.items()})

    @staticmethod
    def _with(client, answer, faults):
        return lambda request: faults[client](request, answer) if client in faults else answer(request)


def silent(request, answer):
    raise OSError("the line is dead")


def test_silent_slow_and_forging_clients_are_dropped_and_counted_and_the_round_goes_on(tmp_path):
    rehearsal = Rehearsal(tmp_path / "federation", experiment(rounds=1), seconds=2.0)
    clients = rehearsal.clients()

    def late(request, answer):
        reply = answer(request)
        if b'"train"' in request:
            time.sleep(3.0)
        return reply

    def forged(request, answer):  # signed, but by the neighbour
        return clients[0](request) if b'"train"' in request else answer(request)

    found = rehearsal.run(Faulty(clients, {1: late, 2: forged}))
    assert found.summary["dropped"] == {"did not answer within 2 s": 1, "answered without its own signature": 1}
    assert found.metrics[0]["clients"] == CLIENTS - 2
    assert not found.failure


def test_a_client_that_never_comes_is_named_and_the_others_train(tmp_path):
    rehearsal = Rehearsal(tmp_path / "federation", experiment(algorithm={"name": "fedavg", "weighting": "uniform"}))
    object.__setattr__(rehearsal, "seconds", 1.0)
    found = rehearsal.run(Faulty(rehearsal.clients(), {3: silent}))
    assert found.metrics[-1]["clients"] == CLIENTS - 1
    assert any("client 3 was not there at the start" in warning for warning in found.summary["warnings"])


def test_a_secure_sum_goes_on_without_a_client_that_falls_silent_in_it(tmp_path):
    secure = {"name": "secure-sum", "corrupt": 0.0, "dropout": 0.3}
    asked = experiment(rounds=1, privacy={"noise_key": KEY, "update": [secure]})
    rehearsal = Rehearsal(tmp_path / "federation", asked)

    def leaves(request, answer):
        return answer(request) if b'"train"' not in request else silent(request, answer)

    found = rehearsal.run(Faulty(rehearsal.clients(), {2: leaves}))
    assert found.metrics[0]["clients"] == CLIENTS - 1
    assert sum(found.summary["dropped"].values()) == 1


def test_a_client_whose_own_budget_is_spent_says_so_once_and_the_others_go_on(tmp_path):
    dpsgd = {"training": {"noise_multiplier": 1.0}, "target_delta": 1e-4}
    asked = experiment(rounds=3, privacy=dpsgd, algorithm={"name": "fedavg", "weighting": "uniform"})
    rehearsal = Rehearsal(tmp_path / "federation", asked)
    own = rehearsal.folders["client-1"] / "own.toml"
    alone = replace(asked, execution=LOOP).run()
    after = [line["epsilon"]["sample/server"] for line in alone.metrics]
    own.write_text(f"number = 1\ndelta = 1e-4\nepsilon = {(after[0] + after[1]) / 2}\n", encoding="utf-8")
    found = rehearsal.run()
    assert [line["clients"] for line in found.metrics] == [4, 3, 3]
    assert found.summary["dropped"] == {"refused: its own budget is spent": 2}
    assert [one for one in rehearsal.said if "beyond its budget of epsilon" in one]
    ledger = rehearsal.client(1).diary.ledger
    assert ledger.most() == [count // 3 for count in alone.ledger.most()]


def test_a_server_that_dies_goes_on_with_the_same_run_and_nobody_answers_twice(tmp_path):
    secure = {"name": "secure-sum", "corrupt": 0.0, "dropout": 0.3}
    dpsgd = {"noise_multiplier": 1.0}
    asked = experiment(
        rounds=3,
        privacy={"noise_key": KEY, "training": dpsgd, "update": [secure]},
        algorithm={"name": "fedavg", "weighting": "uniform"},
    )
    expected = replace(asked, execution=LOOP).run()
    rehearsal = Rehearsal(tmp_path / "federation", asked)
    clients = rehearsal.clients()
    heard: dict[tuple[int, str], set[bytes]] = {}
    legs = [0]

    class DyingOften(Loopback):
        """The server's process ends in the middle of a leg, when the answers of some have been sent."""

        def ask(self, requests, seconds, genuine):
            legs[0] += 1
            replies = super().ask(requests, seconds, genuine)
            for client, request in requests.items():
                heard.setdefault((client, request.hex()), set()).add(replies[client])
            if legs[0] in stops:
                raise KeyboardInterrupt
            return replies

    stops = {5, 9, 14}
    for _ in stops:
        with pytest.raises(KeyboardInterrupt):
            rehearsal.run(DyingOften(clients), resume=True)
    found = rehearsal.run(DyingOften(clients), resume=True)
    assert torch.equal(expected.parameters, found.parameters)
    assert str(expected.statement) == str(found.statement)
    assert not found.summary["dropped"]
    assert all(len(answers) == 1 for answers in heard.values())  # the same request has the same answer, to the byte
    assert not rehearsal.said
    for number in range(CLIENTS):  # what the restarts repeated was charged once
        own = json.loads((rehearsal.folders[f"client-{number}"] / "state" / "account.json").read_text())
        assert len(own["ledger"]["releases"]) == len(expected.ledger.releases)
        assert rehearsal.client(number).diary.ledger.most() == expected.ledger.most()


@pytest.mark.parametrize("update", [[], [{"name": "secure-sum"}]], ids=["in clear", "secure sum"])
def test_a_run_in_which_nobody_answers_says_what_to_look_at(update, tmp_path, caplog):
    rehearsal = Rehearsal(tmp_path / "federation", experiment(algorithm=UNIFORM, privacy={"update": update}), 0.2)
    found = rehearsal.run(Loopback({}))
    look = "start the clients, and look at the federation's url, port and certificates"
    assert f"no client answered within 0.2 s; {look}" in caplog.messages
    assert found.failure == (
        f"no upload could be used in any of 2 rounds ({2 * CLIENTS} did not answer within 0.2 s); {look}"
    )


class Dying(Loopback):
    """The server's process ends when the first uploads have come."""

    def ask(self, requests, seconds, genuine):
        replies = super().ask(requests, seconds, genuine)
        if any(b'"train"' in request for request in requests.values()):
            raise KeyboardInterrupt
        return replies


@pytest.fixture
def interrupted(tmp_path):
    """A federation whose server died in the first round, when the clients had answered."""
    dpsgd = {"training": {"noise_multiplier": 1.0}, "target_delta": 1e-4}
    asked = experiment(rounds=1, privacy=dpsgd, algorithm={"name": "fedavg", "weighting": "uniform"})
    rehearsal = Rehearsal(tmp_path / "federation", asked)
    with pytest.raises(KeyboardInterrupt):
        rehearsal.server(Dying(rehearsal.clients())).run(tmp_path / "run")
    return rehearsal


@pytest.mark.parametrize("lost", [("policy.json",), ("policy.json", "environment.json")])
def test_a_run_that_lost_its_policy_does_not_become_another_one(lost, interrupted, tmp_path):
    for name in lost:
        (tmp_path / "run" / name).unlink()
    with pytest.raises(DataError, match=r"policy\.json is missing, .* a second time; restore it, or start anew"):
        interrupted.server(Loopback(interrupted.clients())).run(tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "policy.json").exists()


def test_the_policy_of_another_run_is_not_taken_for_that_of_this_one(interrupted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        interrupted.server(Dying(interrupted.clients())).run(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "policy.json", tmp_path / "run" / "policy.json")
    with pytest.raises(DataError, match=r"policy\.json is not the policy that the run began with; restore it"):
        interrupted.server(Loopback(interrupted.clients())).run(tmp_path / "run", resume=True)


@pytest.mark.parametrize("lost", [("environment.json",), ("environment.json", "fingerprint.json")])
def test_a_run_that_lost_another_file_goes_on_under_its_policy(lost, interrupted, tmp_path):
    for name in lost:
        (tmp_path / "run" / name).unlink()
    before = (tmp_path / "run" / "policy.json").read_bytes()
    charged = interrupted.client(1).diary.ledger.most()
    interrupted.server(Loopback(interrupted.clients())).run(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "policy.json").read_bytes() == before
    assert interrupted.client(1).diary.ledger.most() == charged


def test_what_no_federation_can_do_is_refused_before_any_work(tmp_path):
    for settings, sentence in (
        ({"algorithm": {"name": "centralized"}}, "trains on all data as one"),
        ({"privacy": {"update": [{"name": "secure-sum", "mode": "ideal"}]}}, "needs a trusted party"),
        ({"record": True}, "keeps no transcript"),
    ):
        rehearsal = Rehearsal(tmp_path / sentence.replace(" ", "-"), experiment(**settings))
        with pytest.raises(ConfigError, match=sentence):
            rehearsal.server(Loopback({})).run(tmp_path / "run")


@pytest.mark.parametrize(("adversary", "legs"), [("active", 4), ("semi-honest", 3)])
def test_a_round_with_a_secure_sum_takes_four_legs_since_keys_come_with_the_sum_before(adversary, legs, tmp_path):
    secure = {"name": "secure-sum", "adversary": adversary}
    rehearsal = Rehearsal(tmp_path / "federation", experiment(rounds=4, privacy={"update": [secure]}))
    asked, rounds = [0], []

    class Counting(Loopback):
        def ask(self, requests, seconds, genuine):
            asked[0] += 1
            return super().ask(requests, seconds, genuine)

    rehearsal.run(Counting(rehearsal.clients()), callbacks=[lambda run, line: rounds.append(asked[0])])
    assert [later - earlier for earlier, later in pairwise(rounds)] == [legs] * 3


class Killed(BaseException):
    """The server's process ends here."""


CENTRAL = [{"name": "clip", "max_norm": 1.0}, {"name": "gaussian-noise", "noise_multiplier": 8.0}]
OWN = [CENTRAL[0], {**CENTRAL[1], "at": "client"}]
SECURE = [CENTRAL[0], {"name": "secure-sum"}, CENTRAL[1]]


def put_back(root, update, *, rounds_back, anew=False):
    """A run that was killed after 3 of its 5 rounds, and goes on from its folder as it was ``rounds_back`` before."""
    privacy = {"target_delta": 1e-4, "update": update}
    rehearsal = Rehearsal(root / "federation", experiment(rounds=5, algorithm=UNIFORM, privacy=privacy), seconds=5.0)
    out, old, done, clients = rehearsal.root / "run", root / "old", [0], rehearsal.clients()

    def keep(run, line):
        """What is on disk when a round has ended is the checkpoint, and all else that an operator may put back."""
        done[0] += 1
        if done[0] == 3 - rounds_back:
            shutil.copytree(out, old)
        if done[0] == 3:
            raise Killed

    with pytest.raises(Killed):
        rehearsal.run(Loopback(clients), callbacks=[keep])
    if rounds_back:
        shutil.rmtree(out)
        shutil.copytree(old, out)
    return rehearsal, rehearsal.run(Loopback(rehearsal.clients() if anew else clients), resume=True)


@pytest.mark.parametrize("update", [CENTRAL, SECURE], ids=["in the clear", "secure sum"])
def test_a_folder_that_is_older_than_its_run_ends_the_claims_that_rest_on_the_servers_noise(update, tmp_path, caplog):
    _, found = put_back(tmp_path, update, rounds_back=2, anew=update is SECURE)
    assert found.statement.cell("client", "public").epsilon == torch.inf
    assert "a client has answered a round before, to another request" in " ".join(str(found.statement).split())
    assert found.metrics[-1]["epsilon"] == {}
    assert found.summary["warnings"].count(OLDER) == 1
    assert "client 0 has answered it before, or a later one. Clients have answered rounds" in caplog.text


def test_a_folder_that_was_not_put_back_keeps_them(tmp_path):
    _, found = put_back(tmp_path, CENTRAL, rounds_back=0)
    assert found.statement.cell("client", "public").epsilon < 10
    assert OLDER not in found.summary["warnings"]


def test_noise_that_clients_draw_themselves_is_not_used_twice_by_a_folder_that_was_put_back(tmp_path):
    rehearsal, found = put_back(tmp_path, OWN, rounds_back=2)
    assert 0 < found.statement.cell("client", "server").epsilon < torch.inf
    assert OLDER in found.summary["warnings"]
    assert set(rehearsal.client(1).diary.ledger.most()) == {5}  # each round was answered once


@pytest.mark.parametrize("reason", [ANSWERED_BEFORE, NO_LONGER_KEPT])
def test_one_client_that_says_so_falsely_ends_the_claims_and_not_the_run(reason, tmp_path):
    privacy = {"target_delta": 1e-4, "update": CENTRAL}
    rehearsal = Rehearsal(tmp_path / "federation", experiment(rounds=2, algorithm=UNIFORM, privacy=privacy))
    liar = rehearsal.client(2)

    def lies(request):
        told = {"kind": "refused", "reason": reason, "from": 2, "request": digest(request)}
        return Message(told).sealed(liar.key) if b'"train"' in request else liar.answer(request)

    found = rehearsal.run(Loopback({**rehearsal.clients(), 2: lies}))
    assert len(found.metrics) == 2
    assert found.statement.cell("client", "public").epsilon == torch.inf
    assert not any("client 2" in one for one in found.summary["warnings"])  # who was drawn may be secret

"""One client: what it answers, what it refuses, and that no crash makes it answer a round otherwise."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from privfl.deploy import diary as diary_module
from privfl.deploy.agreement import Policy
from privfl.deploy.budget import OwnSettings
from privfl.deploy.client import FederationClient, sentence_of
from privfl.deploy.diary import Diary
from privfl.deploy.link import Link, Request
from privfl.deploy.messages import Message, opened
from privfl.deploy.split import DATA, STATE
from privfl.deploy.transport import Loopback
from privfl.errors import ConfigError
from privfl.files import CannotWrite
from privfl.privacy.secagg.primitives import SigningKey
from privfl.privacy.secagg.store import FolderStore
from tests.deploy.rehearsal import Rehearsal, experiment

DPSGD = {"training": {"noise_multiplier": 1.0}, "target_delta": 1e-4}
UNIFORM = {"name": "fedavg", "weighting": "uniform"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A federation whose noise is drawn by every client for itself."""
    asked = experiment(privacy=DPSGD, algorithm=UNIFORM)
    return Rehearsal(tmp_path_factory.mktemp("prepared") / "federation", asked)


@pytest.fixture
def rehearsal(prepared, tmp_path):
    """A copy of it, of one test's own."""
    shutil.copytree(prepared.root, tmp_path / "federation")
    return Rehearsal(tmp_path / "federation", prepared.experiment)


def server_key(rehearsal):
    return SigningKey(FolderStore(rehearsal.folders["server"] / STATE).signing_key())


def link_to(rehearsal, *clients, run=bytes(32)):
    policy = Policy.of(run, rehearsal.experiment, rehearsal.federation)
    answers = Loopback({client.own.number: client.answer for client in clients})
    return Link(answers, rehearsal.federation, policy, server_key(rehearsal))


def train(value=0.0, round=0, **changed):
    meta = {"kind": "train", "round": round, "label": "", "asked": 4, "bound": float("inf"), "kept": -1, "factor": 1.0}
    return Request({**meta, **changed}, {"received/parameters": torch.full((650,), value)})


def test_a_request_is_answered_alike_and_charged_once_also_by_a_process_that_was_started_anew(rehearsal):
    first = rehearsal.client(1)
    answer = link_to(rehearsal, first).ask({1: train()})[1]
    charged = first.diary.ledger.most()
    assert isinstance(answer, Message)
    again = rehearsal.client(1)
    repeated = link_to(rehearsal, again).ask({1: train()})[1]
    assert torch.equal(repeated.tensors["update"], answer.tensors["update"])
    assert again.diary.ledger.most() == charged


def test_a_round_is_not_answered_a_second_time_to_another_request(rehearsal):
    link = link_to(rehearsal, rehearsal.client(1))
    assert isinstance(link.ask({1: train()})[1], Message)
    assert link.ask({1: train(0.5)})[1] == "refused: it answered this round before, to another request"
    assert "round 0 was answered before" in rehearsal.said[-1]


def test_another_run_has_other_noise_and_adds_to_the_same_budget(rehearsal):
    client = rehearsal.client(1)
    one = link_to(rehearsal, client).ask({1: train()})[1]
    charged = client.diary.ledger.most()
    other = link_to(rehearsal, client, run=bytes(31) + b"\1").ask({1: train()})[1]
    assert not torch.equal(one.tensors["update"], other.tensors["update"])
    assert client.diary.ledger.most() == [2 * count for count in charged]


def test_an_answer_that_was_lost_and_comes_out_otherwise_is_not_sent(tmp_path):
    asked = experiment(privacy=DPSGD, algorithm={"name": "tests.deploy.jitter:Jitter", "weighting": "uniform"})
    rehearsal = Rehearsal(tmp_path / "federation", asked)
    client = rehearsal.client(1)
    assert isinstance(link_to(rehearsal, client).ask({1: train()})[1], Message)
    for file in (client.diary.folder / "runs").rglob("answer-*.bin"):
        file.unlink()  # a machine without power may take it along
    found = link_to(rehearsal, rehearsal.client(1)).ask({1: train()})[1]
    assert found == "refused: its answer was lost, and came out otherwise under the same noise"
    assert "let nothing draw from generators of its own" in rehearsal.said[-1]


def test_an_answer_that_was_lost_and_comes_out_as_before_is_sent_to_the_byte(rehearsal):
    client = rehearsal.client(1)
    assert isinstance(link_to(rehearsal, client).ask({1: train()})[1], Message)
    (file,) = (client.diary.folder / "runs").rglob("answer-*.bin")
    first = file.read_bytes()
    file.unlink()
    assert isinstance(link_to(rehearsal, rehearsal.client(1)).ask({1: train()})[1], Message)
    assert file.read_bytes() == first


def test_a_client_without_a_budget_says_in_the_next_run_what_all_runs_came_to(rehearsal):
    client = rehearsal.client(1)
    assert isinstance(link_to(rehearsal, client).ask({1: train()})[1], Message)
    assert not rehearsal.said
    link = link_to(rehearsal, client, run=bytes(31) + b"\1")
    assert isinstance(link.ask({1: train()})[1], Message)
    (said,) = rehearsal.said
    assert "what the server has learnt of this client over all runs comes to epsilon = " in said
    assert isinstance(link.ask({1: train(round=1)})[1], Message)
    assert len(rehearsal.said) == 1


def test_a_client_with_a_budget_need_not_say_so(rehearsal):
    own = rehearsal.folders["client-1"] / "own.toml"
    own.write_text("number = 1\nepsilon = 1000.0\n", encoding="utf-8")
    client = rehearsal.client(1)
    for run in (bytes(32), bytes(31) + b"\1"):
        assert isinstance(link_to(rehearsal, client, run=run).ask({1: train()})[1], Message)
    assert not rehearsal.said


class Crash(BaseException):
    """The process ends here."""


def test_whenever_the_machine_stops_the_round_is_charged_once_and_answered_with_the_same_noise(
    rehearsal, monkeypatch, tmp_path
):
    Diary(rehearsal.folders["client-1"] / STATE).noise(bytes(32).hex(), None)  # all copies have one key
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(rehearsal.root, undisturbed)
    reference = Rehearsal(undisturbed, rehearsal.experiment)
    expected = link_to(reference, reference.client(1)).ask({1: train()})[1]
    charged = reference.client(1).diary.ledger.most()
    written = [0]
    real = {name: getattr(diary_module, name) for name in ("write_whole", "write_json")}

    def crashing(name, at, after):
        def write(*args, **options):
            written[0] += 1
            if written[0] == at and not after:
                raise Crash
            real[name](*args, **options)
            if written[0] == at:
                raise Crash

        return write

    crashes = 0
    for at in range(1, 7):
        for after in (False, True):
            folder = tmp_path / f"{at}{after}"
            shutil.copytree(rehearsal.root, folder)
            tried, written[0] = Rehearsal(folder, rehearsal.experiment), 0
            for name in real:
                monkeypatch.setattr(diary_module, name, crashing(name, at, after))
            policy, key = link_to(tried).policy, server_key(tried)
            requests = (
                Request({"kind": "policy", "policy": policy.to_dict()}),
                Request({**train().meta, "run": policy.digest}, train().tensors),
            )
            try:
                client = tried.client(1)
                for request in requests:
                    client.answer(Message({**request.meta, "to": 1}, request.tensors).sealed(key))
            except Crash:
                crashes += 1
            for name, function in real.items():
                monkeypatch.setattr(diary_module, name, function)
            found = link_to(tried, again := tried.client(1)).ask({1: train()})[1]
            assert torch.equal(found.tensors["update"], expected.tensors["update"])
            assert again.diary.ledger.most() == charged
    assert crashes >= 6  # before and after each of its writes


def test_a_server_with_another_experiment_is_refused_with_the_setting_that_differs(rehearsal):
    greedy = experiment(privacy={**DPSGD, "training": {"noise_multiplier": 0.1}}, algorithm=UNIFORM)
    policy = Policy.of(bytes(32), greedy, rehearsal.federation)
    client = rehearsal.client(1)
    link = Link(Loopback({1: client.answer}), rehearsal.federation, policy, server_key(rehearsal))
    assert link.ask({1: train()})[1] == "refused: it agreed to another policy"
    assert "privacy.training.noise_multiplier is 0.1 there and 1.0 here" in rehearsal.said[-1]
    assert not client.diary.ledger.releases


def test_requests_of_strangers_and_for_others_are_refused(rehearsal):
    client = rehearsal.client(1)
    stranger = Link(
        Loopback({1: client.answer}), rehearsal.federation, link_to(rehearsal).policy, SigningKey(bytes(32))
    )
    assert stranger.ask({1: train()})[1] == "refused: the request was not signed by the server it knows"
    wrong = Message({"kind": "policy", "to": 2}).sealed(server_key(rehearsal))
    reply = opened(client.answer(wrong), rehearsal.federation.keys[1])
    assert reply.kind == "refused"
    assert "for client 2, and this is client 1" in rehearsal.said[-1]


def test_a_weight_for_which_no_noise_is_sized_is_refused(tmp_path):
    secure = {"update": [{"name": "clip", "max_norm": 1.0}, {"name": "skellam-noise", "noise_multiplier": 1.0}]}
    secure["update"].append({"name": "secure-sum"})
    rehearsal = Rehearsal(tmp_path / "federation", experiment(privacy=secure, algorithm=UNIFORM))
    client = rehearsal.client(1)
    asked = train(asked=4, bound=1.0, factor=50.0)
    assert not isinstance(link_to(rehearsal, client).ask({1: asked})[1], Message)
    assert "weighs this client's upload by 50, and noise is sized for 1" in rehearsal.said[-1]
    assert not client.diary.ledger.releases


def test_a_key_that_the_federation_does_not_list_is_refused_at_the_start(rehearsal):
    folder, agreed = rehearsal.folders["client-1"], rehearsal.federation
    others = replace(agreed, clients=(agreed.clients[1], agreed.clients[0], *agreed.clients[2:]))
    with pytest.raises(ConfigError, match=r"lists another key for client 1 .*; restore the folder if it is damaged"):
        FederationClient(folder / STATE, OwnSettings(1), rehearsal.experiment, others, folder / DATA)


def test_a_budget_that_known_noise_is_to_keep_is_refused(rehearsal):
    folder = rehearsal.folders["client-1"]
    fixed = experiment(privacy={**DPSGD, "noise_key": 3}, algorithm=UNIFORM)
    with pytest.raises(ConfigError, match="fixes noise_key, which the server knows too"):
        FederationClient(folder / STATE, OwnSettings(1, epsilon=1.0), fixed, rehearsal.federation, folder / DATA)


def test_a_disk_that_refuses_is_mended_by_starting_the_client_again():
    full, read_only = (CannotWrite(Path("state"), OSError(number, "no")) for number in (errno.ENOSPC, errno.EROFS))
    assert sentence_of(full).endswith("what was saved before is intact, make room and start the client again")
    assert sentence_of(read_only).endswith("intact, mend that and start the client again")
    assert sentence_of(ValueError("anything else")) == "anything else"

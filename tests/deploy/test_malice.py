"""A malicious server, lying clients, and folders that lost something: nothing is answered twice or beyond a promise."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from privfl.deploy import diary as diary_module
from privfl.deploy import secure as secure_module
from privfl.deploy.link import Link, Request
from privfl.deploy.local import settings_of
from privfl.deploy.members import cohort_of, guarded
from privfl.deploy.messages import _LENGTH, PURPOSE, Message, as_tensor, digest, opened
from privfl.deploy.split import DATA
from privfl.deploy.transport import Loopback
from privfl.engine.workspace import phases_of
from privfl.errors import ConfigError, DataError, PrivflError
from privfl.simulation.plan import prepare
from tests.deploy.rehearsal import Rehearsal, experiment
from tests.deploy.test_client import DPSGD, UNIFORM, link_to, train

SKELLAM = (
    {"name": "clip", "max_norm": 1.0},
    {"name": "skellam-noise", "noise_multiplier": 1.0},
    {"name": "secure-sum"},
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    asked = experiment(rounds=4, privacy=DPSGD, algorithm=UNIFORM)
    return Rehearsal(tmp_path_factory.mktemp("prepared") / "federation", asked)


@pytest.fixture
def rehearsal(prepared, tmp_path):
    shutil.copytree(prepared.root, tmp_path / "federation")
    return Rehearsal(tmp_path / "federation", prepared.experiment)


@pytest.fixture
def answered(rehearsal):
    """One whose client 1 has answered round 0 in a process that has ended."""
    assert isinstance(link_to(rehearsal, rehearsal.client(1)).ask({1: train()})[1], Message)
    return rehearsal


def test_two_processes_of_one_client_do_not_answer_a_round_differently(rehearsal):
    one, other = rehearsal.client(1), rehearsal.client(1)
    assert isinstance(link_to(rehearsal, one).ask({1: train()})[1], Message)
    for _ in range(2):
        assert not isinstance(link_to(rehearsal, other).ask({1: train(0.5)})[1], Message)
    assert "was written by another process" in rehearsal.said[0]
    assert rehearsal.client(1).diary.ledger.most() == one.diary.ledger.most()


def test_a_client_whose_data_changed_answers_no_more_in_the_run(answered):
    file = answered.folders["client-1"] / DATA
    with np.load(file) as archive:
        rows = {name: archive[name] for name in archive.files}
    np.savez(file, inputs=-rows["inputs"], targets=rows["targets"])
    client = answered.client(1)
    assert not isinstance(link_to(answered, client).ask({1: train(round=1)})[1], Message)
    assert "this client's data, its code or its libraries have changed" in answered.said[-1]
    assert isinstance(link_to(answered, client, run=bytes(31) + b"\1").ask({1: train()})[1], Message)


def test_an_answer_that_is_no_longer_kept_is_not_computed_anew(answered):
    link = link_to(answered, answered.client(1))
    assert isinstance(link.ask({1: train(round=2)})[1], Message)
    assert not isinstance(link.ask({1: train()})[1], Message)
    assert "its answer is no longer kept" in answered.said[-1]


def test_a_round_long_past_is_not_computed_anew_where_all_answers_were_lost(answered):
    client = answered.client(1)
    assert isinstance(link_to(answered, client).ask({1: train(round=2)})[1], Message)
    shutil.rmtree(client.diary.folder / "runs")
    assert not isinstance(link_to(answered, answered.client(1)).ask({1: train()})[1], Message)
    assert "its answer is no longer kept" in answered.said[-1]


@pytest.mark.parametrize("round", [-1, 4, 10**400])
def test_a_round_that_no_run_has_leaves_no_trace(round, rehearsal):
    link = link_to(rehearsal, rehearsal.client(1))
    assert not isinstance(link.ask({1: Request({"kind": "secure", "round": round, "leg": None})})[1], Message)
    assert isinstance(link.ask({1: train()})[1], Message)


def test_what_could_not_be_written_down_is_not_begun(rehearsal, monkeypatch):
    client = rehearsal.client(1)
    link = link_to(rehearsal, client)
    assert not link.join([1])
    client.diary.bind(link.policy.digest, client._build().prepared)
    real = diary_module.write_json
    with monkeypatch.context() as full:
        full.setattr(
            diary_module, "write_json", lambda *_, **__: (_ for _ in ()).throw(PrivflError("the disk is full"))
        )
        assert not isinstance(link.ask({1: train()})[1], Message)
    assert diary_module.write_json is real
    assert not client.diary.ledger.releases
    assert isinstance(link.ask({1: train()})[1], Message)
    assert rehearsal.client(1).diary.ledger.most() == client.diary.ledger.most()


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_server_cannot_find_less_noise_than_the_target_epsilon_needs(noise, tmp_path):
    private = {"training": {"target_epsilon": 3.0}, "target_delta": 1e-4}
    rehearsal = Rehearsal(tmp_path / "federation", experiment(privacy=private, algorithm=UNIFORM))
    client = rehearsal.client(1)
    found = link_to(rehearsal, client).ask({1: train(noise_multiplier=noise)})[1]
    assert found == "refused: its own budget is spent"
    assert not client.diary.ledger.releases


@pytest.mark.parametrize(
    ("changed", "cohort", "sentence"),
    [
        ({"asked": 3}, {"name": "everyone"}, "a secure sum of 3 clients in round 0, and the settings draw 4"),
        ({"asked": 3}, {"name": "poisson", "probability": 1.0}, "another round, phase or cohort than its secure sum"),
        ({"round": 1}, {"name": "everyone"}, "another round, phase or cohort than its secure sum is for"),
    ],
)
def test_a_vector_goes_only_into_the_sum_that_its_noise_share_is_sized_for(
    changed, cohort, sentence, tmp_path, monkeypatch
):
    asked = experiment(privacy={"update": list(SKELLAM)}, algorithm=UNIFORM, cohort=cohort)
    rehearsal = Rehearsal(tmp_path / "federation", asked)
    real = Link.ask

    def lying(link, requests):
        told = {
            client: Request({**one.meta, **(changed if one.meta["kind"] == "train" else {})}, one.tensors)
            for client, one in requests.items()
        }
        return real(link, told)

    monkeypatch.setattr(Link, "ask", lying)
    found = rehearsal.run()
    assert found.metrics[0]["clients"] == 0
    assert sentence in rehearsal.said[0]


@pytest.mark.parametrize("size", [10**400, 1e300, 1_000_000, float("nan")])
def test_a_size_that_cannot_be_is_none(size, tmp_path):
    rehearsal = Rehearsal(tmp_path / "federation", experiment(), seconds=2.0)
    clients = rehearsal.clients()
    one, honest = rehearsal.client(1), clients[1]

    def lying(request):
        told = Message({"kind": "size", "size": size, "from": 1, "request": digest(request)})
        return told.sealed(one.key) if b'"kind": "size"' in request else honest(request)

    with pytest.raises(ConfigError, match="client 1 did not tell its size"):
        rehearsal.run(Loopback({**clients, 1: lying}))


@pytest.mark.parametrize("weighting", ["uniform", "size"])
@pytest.mark.parametrize(
    ("factors", "summed"), [((1.0, 0.0), 0), ((1000.0, 1.0), 3)], ids=["nothing for the others", "a thousand for one"]
)
def test_a_server_that_weighs_one_client_apart_has_no_sum_with_it(weighting, factors, summed, tmp_path, monkeypatch):
    update = {"update": [{"name": "secure-sum"}]}
    asked = experiment(rounds=1, privacy=update, algorithm={"name": "fedavg", "weighting": weighting})
    rehearsal = Rehearsal(tmp_path / "federation", asked)
    ask = Link.ask

    def lying(link, requests):
        one, others = factors
        weighed = {
            client: Request({**request.meta, "factor": one if client == 1 else others}, request.tensors)
            if request.meta["kind"] == "train"
            else request
            for client, request in requests.items()
        }
        return ask(link, weighed)

    monkeypatch.setattr(Link, "ask", lying)
    found = rehearsal.run()
    assert found.metrics[0]["clients"] == summed  # at most the others, who were not told to weigh otherwise
    assert any("and 1 was agreed; with other weights a sum would show single uploads" in one for one in rehearsal.said)


def test_a_session_in_a_smaller_ring_is_refused_before_any_vector(tmp_path, monkeypatch):
    """With fewer bits a client would refuse by what its own vector holds."""
    rehearsal = Rehearsal(
        tmp_path / "federation", experiment(rounds=1, privacy={"update": list(SKELLAM)}, algorithm=UNIFORM)
    )
    real = secure_module.session_of

    def smaller(*given):  # as the server makes it; clients make the agreed one
        by_server = sys._getframe(1).f_code is not secure_module.member.__code__
        return replace(real(*given), bits=31) if by_server else real(*given)

    monkeypatch.setattr(secure_module, "session_of", smaller)
    rehearsal.run()
    assert sum("a secure sum whose bits is 31, and 32 was agreed" in one for one in rehearsal.said) == 4


@pytest.mark.parametrize("reason", [list, dict, [["deep"]], 7, None, ""])
def test_a_client_that_refuses_without_a_word_is_dropped_and_the_round_goes_on(reason, rehearsal):
    clients, one = rehearsal.clients(), rehearsal.client(1)
    honest = clients[1]
    if isinstance(reason, type):  # deeper than Python makes a text of
        opening, closing = ("[", "]") if reason is list else ('{"a":', "}")
        reason = opening * 900 + ("1" if reason is dict else "") + closing * 900
    else:
        reason = json.dumps(reason)

    def refusing(request):
        if opened(request, bytes.fromhex(rehearsal.federation.server)).kind != "train":
            return honest(request)
        meta = f'{{"kind": "refused", "from": 1, "request": "{digest(request)}", "reason": {reason}}}'
        description = f'{{"meta": {meta}, "tensors": []}}'.encode()
        return one.key.sign(PURPOSE + description) + _LENGTH.pack(len(description)) + description

    found = rehearsal.run(Loopback({**clients, 1: refusing}))
    assert found.summary["dropped"] == {"refused, and did not say why": 4}
    assert [line["clients"] for line in found.metrics] == [3] * 4


def test_a_client_that_sends_float64_does_not_make_everybody_train_in_it(rehearsal):
    clients, one = rehearsal.clients(), rehearsal.client(1)
    honest = clients[1]

    def wide(request):
        message = opened(honest(request), one.key.public)
        tensors = {name: value.double() for name, value in message.tensors.items()}
        return Message(message.meta, tensors).sealed(one.key)

    found = rehearsal.run(Loopback({**clients, 1: wide}))
    assert found.parameters.dtype == torch.float32
    assert found.metrics[0]["clients"] == 4


def test_an_account_from_before_all_runs_is_older_than_the_sums_that_were_served(tmp_path):
    rehearsal = Rehearsal(
        tmp_path / "federation", experiment(rounds=1, privacy={"update": list(SKELLAM)}, algorithm=UNIFORM)
    )
    rehearsal.client(1)
    state = rehearsal.folders["client-1"] / "state"
    before = (state / "account.json").read_bytes()
    rehearsal.run()
    (state / "account.json").write_bytes(before)
    shutil.rmtree(state / "runs")
    with pytest.raises(
        DataError, match=r"account\.json does not know .*served, so it is older than what this client sent"
    ):
        rehearsal.client(1)


def proposed(rehearsal, members, asked, *, to=0, round=0, bound=1.0, by=None):
    """What client ``to`` answers to a secure sum of ``members`` that a server proposes when it says ``asked`` are."""
    client = rehearsal.client(to)
    number = len(rehearsal.federation.clients)
    task = rehearsal.federation.task.of_server(number, rehearsal.folders["server"] / DATA)
    plan = prepare(settings_of(rehearsal.experiment, task))
    channel = (plan if by is None else by(plan)).channel.in_round(round, asked, {})
    session = secure_module.session_of(phases_of(plan.algorithm, channel)[0], members, b"x" * 32)
    meta = {"kind": "secure", "leg": 0, "session": session.identity.hex(), "round": round, "label": ""}
    told = Request({**meta, "asked": asked, "bound": bound}, {"message": as_tensor(session.to_bytes())})
    return link_to(rehearsal, client).ask({to: told})[to]


@pytest.fixture(scope="module")
def three_of_four(tmp_path_factory):
    """A federation that draws three of its four clients in each round, by the seed."""
    asked = experiment(privacy={"update": list(SKELLAM)}, algorithm=UNIFORM, cohort={"name": "fixed", "size": 3})
    return Rehearsal(tmp_path_factory.mktemp("three") / "federation", asked)


def test_a_client_adds_up_with_those_alone_whom_the_settings_draw(three_of_four):
    drawn = cohort_of(three_of_four.client(0)._build().plan, 0)
    (left_out,) = set(range(4)) - set(drawn)
    one, *others = drawn
    assert isinstance(proposed(three_of_four, drawn, 3, to=one), Message)
    assert not isinstance(proposed(three_of_four, sorted([one, others[0], left_out]), 3, to=one), Message)
    assert f"secure sum in round 0 is with client {left_out}, whom the settings do not draw" in three_of_four.said[-1]
    assert proposed(three_of_four, [0, 1, 2, 3], 4, to=one) == "refused: it agreed to another policy"
    assert "asks for a secure sum of 4 clients in round 0, and the settings draw 3" in three_of_four.said[-1]


def test_a_server_that_draws_the_cohort_cannot_make_it_so_small_that_nobody_counts_as_its_accomplice(tmp_path):
    update = [*SKELLAM[:2], {"name": "secure-sum", "corrupt": 0.25, "dropout": 0.1}]
    asked = experiment(privacy={"update": update}, algorithm=UNIFORM, cohort={"name": "poisson", "probability": 1.0})
    rehearsal = Rehearsal(tmp_path / "federation", asked)
    assert not isinstance(proposed(rehearsal, [0, 1, 2], 3), Message)
    assert "of 3 clients, of whom 1 may work with the server, hides nobody" in rehearsal.said[-1]
    assert isinstance(proposed(rehearsal, [0, 1, 2, 3], 4, by=guarded), Message)


def test_a_noise_multiplier_is_named_once_in_a_run_whichever_process_of_the_client_hears_it(tmp_path):
    private = {"training": {"target_epsilon": 100.0}, "target_delta": 1e-4}
    rehearsal = Rehearsal(tmp_path / "federation", experiment(rounds=4, privacy=private, algorithm=UNIFORM))
    client = rehearsal.client(1)
    link = link_to(rehearsal, client)
    assert isinstance(link.ask({1: train(noise_multiplier=2.0)})[1], Message)
    for one in (client, rehearsal.client(1)):
        link = link_to(rehearsal, one)
        for other in (1.9, 3.0):
            assert link.ask({1: train(round=1, noise_multiplier=other)})[1] == "refused: it agreed to another policy"
        assert "tells a noise_multiplier of 3.0, and began this run with 2.0" in rehearsal.said[-1]
    charged = one.diary.ledger.most()
    assert isinstance(link.ask({1: train(round=1, noise_multiplier=2.0)})[1], Message)
    assert one.diary.ledger.most() == [2 * count for count in charged]
    another = link_to(rehearsal, one, run=bytes(31) + b"\1")
    assert isinstance(another.ask({1: train(noise_multiplier=3.0)})[1], Message)


@pytest.mark.parametrize("availability", ["always", "bernoulli"])
def test_a_sampling_rate_that_follows_from_sizes_told_once_is_named_once(availability, tmp_path):
    """Where not everybody can be reached in every round the rate follows from those who can."""
    rule = {"name": availability, **({"probability": 0.9} if availability == "bernoulli" else {})}
    sampling = {"algorithm": {"name": "fedsampling", "samples_per_round": 300}, "availability": rule}
    rehearsal = Rehearsal(tmp_path / "federation", experiment(rounds=4, privacy=DPSGD, **sampling))
    link = link_to(rehearsal, rehearsal.client(1))

    def at(rate, round):
        asked = train(round=round)
        rated = {**asked.tensors, "received/rate": torch.tensor(rate, dtype=torch.float64)}
        return isinstance(link.ask({1: Request(asked.meta, rated)})[1], Message)

    assert at(0.3, 0)
    assert at(0.2, 1) is (availability == "bernoulli")
    assert at(0.3, 2)


def test_a_client_that_dies_in_a_secure_sum_does_not_say_that_the_server_was_forged(tmp_path):
    secure = {"name": "secure-sum", "corrupt": 0.0, "dropout": 0.25}
    rehearsal = Rehearsal(
        tmp_path / "federation", experiment(rounds=1, privacy={"update": [secure]}, algorithm=UNIFORM)
    )
    clients, processes = rehearsal.clients(), [rehearsal.client(1)]

    def reborn(request):
        if b'"train"' in request:
            processes.append(rehearsal.client(1))
        return processes[-1].answer(request)

    found = rehearsal.run(Loopback({**clients, 1: reborn}))
    assert found.summary["dropped"] == {"was started anew during the secure sum": 1}
    assert found.metrics[0]["clients"] == 3


def test_what_was_signed_and_is_not_what_was_agreed_is_not_reported_as_a_forgery(rehearsal):
    link = link_to(rehearsal, rehearsal.client(1))
    for request in (train(label="another"), train(round=7), Request({"kind": "anything", "round": 0})):
        assert link.ask({1: request})[1] == "refused: the request is not what was agreed"


def test_who_drops_out_of_a_survey_is_missing_in_the_secure_sum_after_it_and_the_others_go_on(tmp_path):
    secure = {"name": "secure-sum", "corrupt": 0.0, "dropout": 0.25}
    fair = {"name": "aaggff-d-sums", "minimum": 3}
    rehearsal = Rehearsal(tmp_path / "federation", experiment(rounds=1, privacy={"update": [secure]}, algorithm=fair))
    clients = rehearsal.clients()
    honest, server = clients[1], bytes.fromhex(rehearsal.federation.server)

    def leaves(request):
        message = opened(request, server)
        if message.kind == "train" and "survey" in message.meta["label"]:
            raise OSError("the line is dead")
        return honest(request)

    found = rehearsal.run(Loopback({**clients, 1: leaves}))
    assert found.metrics[0]["clients"] == 3
    assert not rehearsal.said

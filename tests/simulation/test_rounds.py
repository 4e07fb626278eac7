"""Under a claim that a secret draw amplifies, whatever the server's code makes of what it is told is public."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.algorithms.base import Round
from privfl.errors import ConfigError
from privfl.federation.cohorts import Cohort, Selection
from privfl.privacy.accounting.ledger import Ledger
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.mechanisms.mechanism import Mechanism
from privfl.simulation.run_directory import RunDirectory
from tests.own_parts import Small

CLIENTS, ROUNDS = 8, 3
CENTRAL = (pf.Clip(1.0), pf.GaussianNoise(1.0))
ENGINES = ["loop", "vectorised"]
KEYS = range(1, 4)
"""Of coins that draw different cohorts: a test says so."""


@dataclass(frozen=True)
class Telling(pf.FedAvg):
    """Publishes what the server is told, each in a place of its own, and nothing of the uploads."""

    name: ClassVar[str] = "telling"
    what: tuple[str, ...] = ("members",)

    def aggregate(self, server, total, round, training):
        moved = server["parameters"].clone()
        for part, name in zip(moved.split(2 * CLIENTS), self.what, strict=False):
            numbers = torch.tensor(told(round, name), dtype=moved.dtype)
            part[: len(numbers)] += numbers * (1 + round.number)
        return {**server, "parameters": moved}


def told(round, name):
    """One thing that the server is told, as a list of numbers."""
    value = getattr(round, name)
    if isinstance(value, torch.Generator):
        value = torch.rand(3, generator=value)
    if isinstance(value, torch.Tensor):
        value = [len(value), *value.tolist()]
    return value if isinstance(value, list) else [-1.0 if value is None else value]


@pytest.fixture(scope="module")
def task():
    return pf.load("digits", partition=pf.IID(clients=CLIENTS), model="logistic")


def train(task, algorithm, key, *, cohort=None, engine="loop", update=CENTRAL, **settings):
    return pf.simulate(
        task,
        algorithm,
        rounds=ROUNDS,
        seed=3,
        training=pf.LocalTraining(steps=1, batch_size=4),
        privacy=pf.Privacy(update=update, noise_key=key),
        cohort=cohort or pf.PoissonCohort(0.4),
        execution=pf.Execution(engine=engine, workers=1),
        evaluate_every=ROUNDS,
        **settings,
    )


def cohorts(task, key):
    run = train(task, pf.FedAvg("uniform"), key, record=["server"])
    return [seen.training.asked for seen in run.transcript]


def test_a_draw_that_is_secret_charges_everybody_in_every_round(task, tmp_path):
    assert len({client for asked in cohorts(task, 1) for client in asked}) < CLIENTS
    train(task, pf.FedAvg("uniform"), 1, out=tmp_path / "run")
    state = RunDirectory(tmp_path / "run").checkpoint().meta["ledger"]
    counts = Ledger.from_state(state, state["fingerprint"]).histories("client", "public").counts.toarray()
    assert counts.sum(axis=1).tolist() == [ROUNDS]  # one history, which all clients have


@pytest.mark.parametrize("engine", ENGINES)
def test_what_gets_noise_at_the_server_was_added_up_in_float64(task, engine, monkeypatch):
    """Rounding in float32 depends on what single clients sent, and noise that comes later does not cover it."""
    kinds, at_server = set(), RoundChannel.at_server

    def seen(channel, total, *rest):
        kinds.update(value.dtype for value in total.values())
        return at_server(channel, total, *rest)

    monkeypatch.setattr(RoundChannel, "at_server", seen)
    train(task, pf.FedAvg("uniform"), 1, cohort=pf.Everyone(), engine=engine)
    assert kinds == {torch.float64}


def test_of_sizes_the_server_is_told_what_clients_answered(task):
    told = []

    @dataclass(frozen=True)
    class Noting(pf.FedAvg):
        name: ClassVar[str] = "noting"

        def aggregate(self, server, total, round, training):
            told.append((round.weights.tolist(), round.samples))
            return super().aggregate(server, total, round, training)

    size = pf.LaplaceSize(epsilon=1.0, bound=400)
    privacy = pf.Privacy(size=size, max_size_error=999.0)
    run = pf.simulate(task, Noting("size"), rounds=1, privacy=privacy, record=["server"])
    answers = np.array([run.transcript[0].sizes[client] for client in range(CLIENTS)])
    assert told == [(np.clip(answers, 1, 400).tolist(), size.estimate(answers).value)]


def test_the_rate_of_fed_sampling_follows_from_what_clients_answered(task):
    size = pf.LaplaceSize(epsilon=32.0, bound=400)
    privacy = pf.Privacy(size=size, max_size_error=999.0)
    run = pf.simulate(task, pf.FedSampling(samples_per_round=10), rounds=1, privacy=privacy, record=["server"])
    answers = np.array([run.transcript[0].sizes[client] for client in range(CLIENTS)])
    assert size.estimate(answers).value > 10
    assert run.metrics[0]["sampling_rate"] == 10 / size.estimate(answers).value


FIELDS = tuple(Round.__dataclass_fields__)


def test_the_keys_draw_different_cohorts(task):
    assert len({str(cohorts(task, key)) for key in KEYS}) == len(KEYS)


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_that_the_server_is_told_depends_on_who_was_drawn(task, engine):
    runs = [train(task, Telling("uniform", what=FIELDS), key, engine=engine) for key in KEYS]
    assert all(torch.equal(run.parameters, runs[0].parameters) for run in runs[1:])
    assert all(run.metrics == runs[0].metrics for run in runs[1:])
    assert all(run.summary == runs[0].summary for run in runs[1:])


@pytest.mark.parametrize("what", ["members", "weights", "cohort"])
def test_where_no_claim_rests_on_the_draw_the_server_is_told_who_took_part(task, what):
    cohort = pf.PoissonCohort(0.4)
    runs = [train(task, Telling("uniform", what=(what,)), key, cohort=cohort, update=()) for key in KEYS]
    assert any(not torch.equal(run.parameters, runs[0].parameters) for run in runs[1:])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cohort", [pf.PoissonCohort(0.4), pf.Everyone()], ids=["secret draw", "everyone"])
def test_one_client_more_or_less_changes_what_is_told_in_no_way_but_through_the_sum(cohort, engine):
    inputs = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    without = inputs.copy()
    without[:5] = 3e38  # this client's update is not finite: it is left out
    targets, clients = np.arange(40) % 10, np.repeat(np.arange(8), 5)
    worlds = [
        pf.Task.from_arrays(rows, targets, clients=clients, classes=10, test=(inputs, targets), model=Small)
        for rows in (inputs, without)
    ]
    key = next(key for key in KEYS if any(0 in asked for asked in cohorts(worlds[0], key)))
    there, gone = (train(world, Telling("uniform", what=FIELDS), key, cohort=cohort, engine=engine) for world in worlds)
    assert torch.equal(there.parameters, gone.parameters)
    assert there.metrics == gone.metrics
    assert there.summary == gone.summary
    if isinstance(cohort, pf.Everyone):
        assert "uploads were dropped" in str(gone.warnings)
        assert "uploads were dropped" not in str(there.warnings)


def test_fed_dyn_divides_by_the_public_number(task):
    run = train(task, Shown(), 1)
    assert torch.equal(run.server["parameters"], run.server["by_hand"])


@dataclass(frozen=True)
class Shown(pf.FedDyn):
    """FedDyn, with the server's step by hand beside its own."""

    name: ClassVar[str] = "shown"

    def aggregate(self, server, total, round, training):
        after = super().aggregate(server, total, round, training)
        mean, dual = total["update"] / (0.4 * CLIENTS), server["dual"] + total["update"] / CLIENTS
        return {**after, "by_hand": server["parameters"] + mean + dual}


@dataclass(frozen=True)
class Denoiser(Mechanism):
    """A transform, which claims nothing, and takes the noise out again if it can draw it."""

    kind: ClassVar[str] = "transform"

    def at_server(self, total, noise, round):
        again = noise.source.stream("server", round.number)
        noisy = torch.zeros_like(total["update"])
        again.add_gaussian_(noisy, round.bound)
        total["update"] -= noisy


def test_a_transform_cannot_draw_the_noise_again(task):
    learning = {"update": (pf.Clip(1e-6), Denoiser(), pf.GaussianNoise(1.0))}
    run = train(task, pf.FedAvg("uniform"), 1, cohort=pf.Everyone(), **learning)
    start = pf.simulate(task, pf.FedAvg("uniform"), rounds=1, training=pf.LocalTraining(learning_rate=1e-30), seed=3)
    moved = float((run.parameters - start.parameters).norm())
    noise = 1e-6 / CLIENTS * (ROUNDS * start.parameters.numel()) ** 0.5
    assert moved > 0.9 * noise


@dataclass(frozen=True)
class Boast(Cohort):
    """Says that it draws one client in a hundred, one round apart from the other, and takes everyone."""

    times: int = 1
    twice: bool = False

    @property
    def rate(self):
        return 0.01

    def min_separation(self, clients):
        return ROUNDS

    def expected(self, available):
        return float(available)

    def draw(self, available, round, seed, source, sizes):
        if self.twice:
            available = np.repeat(available, 2)
        return Selection(available, np.full(len(available), self.times))


@dataclass(frozen=True)
class Boaster(pf.PoissonCohort):
    """The shipped rule with a draw of its own."""

    def draw(self, available, round, seed, source, sizes):
        return Selection(available, np.ones(len(available), dtype=np.int64))


def tampered():
    cohort = pf.PoissonCohort(0.01)
    object.__setattr__(cohort, "draw", Boaster(0.01).draw)
    return cohort


@pytest.mark.parametrize("cohort", [Boast(), Boaster(0.01), tampered()], ids=["own", "subclass", "changed"])
def test_a_cohort_that_is_not_ours_is_charged_as_if_everyone_took_part(task, cohort):
    claims = []
    for one in (cohort, pf.Everyone()):
        run = train(task, pf.FedAvg("uniform"), 1, cohort=one, update=(pf.Clip(1.0), pf.GaussianNoise(4.0)))
        claims.append(run.statement.cell("client", "public").epsilon)
    assert claims[0] == claims[1]


@pytest.mark.parametrize("noise", [pf.BandedNoise(4.0), pf.TreeNoise(4.0)], ids=["banded", "tree"])
def test_noise_that_rests_on_a_separation_refuses_a_cohort_that_merely_says_so(task, noise):
    with pytest.raises(ConfigError, match="nothing to correlate, because a client may take part in two rounds running"):
        train(task, pf.FedAvg("uniform"), 1, cohort=Boast(), update=(pf.Clip(1.0), noise))


def test_a_cohort_that_is_not_ours_is_told_why_nothing_is_amplified(task):
    (warning,) = train(task, pf.FedAvg("uniform"), 1, cohort=Boast()).summary["warnings"]
    assert warning.startswith("Boast says that it draws at the rate 0.01, which nobody can check")


@pytest.mark.parametrize(
    ("cohort", "message"),
    [
        (Boast(times=5), "lets client 0 count 5 times"),
        (Boast(twice=True), "give clients that can be reached, each once"),
    ],
)
def test_a_client_counts_once_where_noise_covers_it_once(task, cohort, message):
    with pytest.raises(ConfigError, match=message):
        train(task, pf.FedAvg("uniform"), 1, cohort=cohort)


@dataclass(frozen=True)
class Fickle(pf.FedAvg):
    """Promises uniform weights, and gives the first client a hundred when it comes to it."""

    name: ClassVar[str] = "fickle"

    def weights(self):
        return "server" if getattr(self, "_asked", False) else "uniform"

    def broadcast(self, server):
        object.__setattr__(self, "_asked", True)
        return super().broadcast(server)

    def server_weights(self, server, clients):
        return torch.full((len(clients),), 100.0)


def test_weights_that_change_their_mind_move_no_sum(task):
    loud, plain = (
        train(task, algorithm, 1, cohort=pf.Everyone(), record=["server"])
        for algorithm in (Fickle("uniform"), pf.FedAvg("uniform"))
    )
    for one, other in zip(loud.transcript, plain.transcript, strict=True):
        assert one.training.weights == other.training.weights == (1.0,) * CLIENTS


def test_the_cohort_is_the_expected_number_where_the_draw_is_secret(task):
    seen = []

    @dataclass(frozen=True)
    class Looking(pf.FedAvg):
        name: ClassVar[str] = "looking"

        def aggregate(self, server, total, round, training):
            seen.append(round)
            return super().aggregate(server, total, round, training)

    train(task, Looking("uniform"), 1)
    assert [(one.cohort, one.weight, len(one.members)) for one in seen] == [(0.4 * CLIENTS, 0.4 * CLIENTS, 0)] * ROUNDS
    assert replace(seen[0], number=1).clients == CLIENTS


@dataclass(frozen=True)
class Returns(pf.FedAvg):
    """Returns what a test wants as the server's next state."""

    name: ClassVar[str] = "returns"
    what: str = "nothing"

    def aggregate(self, server, total, round, training):
        rest = {name: value for name, value in server.items() if name != "parameters"}
        return {
            "nothing": None,
            "a tensor": server["parameters"],
            "no tensor": {**server, "parameters": None},
            "less": rest,
            "another shape": {**server, "parameters": server["parameters"][:3]},
        }[self.what]


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("nothing", "returns's aggregate returned None, which is no dictionary of tensors; return the server's next"),
        ("a tensor", r"returned a Tensor of shape \(650,\), which is no dictionary of tensors"),
        ("no tensor", "returned None as 'parameters', which is no tensor"),
        ("less", "returned no 'parameters', which the server's state holds"),
        ("another shape", r"returned 'parameters' of shape \(3,\), and before it was \(650,\)"),
    ],
)
def test_an_aggregate_that_returns_no_state_of_the_server_is_named(task, what, sentence):
    with pytest.raises(ConfigError, match=sentence):
        pf.simulate(task, Returns(what=what), rounds=1)

"""What one client's training leaves where the next client finds it takes the claims away, and nothing else does."""

import functools
import random
import re
import types
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.simulation.shared_state import SHARED_STATE, SharedState

WIDTH, ROWS = 9, 120
X = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
TEST = np.random.default_rng(1).normal(size=(40, WIDTH)).astype(np.float32), np.arange(40) % 2
AT_CLIENTS = pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(2.0, at="client")))
AT_SERVER = pf.Privacy(update=(pf.Clip(1.0), pf.GaussianNoise(2.0)))
DPSGD = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1))
SAID = (
    r"{} .*{}(, once more)? (\(which reaches [^)]*\) )?(and .* )?changed while clients trained, outside of any client"
)


def ran(algorithm=None, privacy=AT_CLIENTS, rounds=2, engine="loop", workers=None, **own):
    own = {"model": "logistic", "classes": 2, "clients": np.arange(ROWS) % 3, **own}
    return pf.simulate(
        pf.Task.from_arrays(X, Y, test=TEST, **own),
        algorithm or pf.FedAvg("uniform"),
        training=pf.LocalTraining(learning_rate=0.1, batch_size=20),
        privacy=privacy,
        rounds=rounds,
        execution=pf.Execution(engine=engine, workers=workers),
    )


def claims(run, observer="public"):
    return {unit: run.statement.cell(unit, observer).epsilon for unit in ("sample", "client")}


def words(run):
    return " ".join(str(run.statement).split())


def nothing_is_claimed(run, what, name):
    assert set(claims(run).values()) == set(claims(run, "server").values()) == {np.inf}
    text = words(run)
    assert SHARED_STATE in text
    assert re.search(SAID.format(what, name), text)


class InClass(pf.FedAvg):
    """Adds to every upload what the client before sent."""

    name: ClassVar[str] = "in-class"
    before: ClassVar[Any] = None

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        before, InClass.before = InClass.before, {name: value.clone() for name, value in upload.items()}
        return upload if before is None else {name: value + before[name] for name, value in upload.items()}


SENT = {}


class InGlobal(pf.FedAvg):
    """The same by a global."""

    name: ClassVar[str] = "in-global"

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        SENT.setdefault("sums", []).append(float(upload["update"].sum()))
        return {name: value + SENT["sums"][0] for name, value in upload.items()}


@pytest.mark.parametrize("privacy", [AT_CLIENTS, AT_SERVER], ids=["at clients", "at the server"])
def test_an_algorithm_that_hands_on_what_a_client_sent_claims_nothing(privacy):
    InClass.before = None
    nothing_is_claimed(ran(InClass("uniform"), privacy), "the algorithm", "InClass")
    SENT.clear()
    nothing_is_claimed(ran(InGlobal("uniform"), privacy), "the algorithm", "InGlobal")


class Left(pf.FedAvg):
    """Leaves its upload in its class, of a stack a tensor that nobody can read any more."""

    name: ClassVar[str] = "left"
    upload: ClassVar[Any] = None

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        Left.upload = [upload, [upload["update"].sum()] * WIDTH]
        return upload


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_it_is_seen_of_every_engine_and_of_what_a_stack_left(engine):
    Left.upload = None
    for _ in range(2):  # the second run begins with what the first left
        nothing_is_claimed(ran(Left("uniform"), engine=engine), "the algorithm", "Left")


class Bank(nn.Module):
    """Shifts its outputs by the mean of what it saw in passes before, kept in the class."""

    bank: ClassVar[list[float]] = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, inputs):
        Bank.bank.append(float(inputs.detach().mean()))
        return self.layer(inputs) + sum(Bank.bank[-5:])


SEEN = {}


def remembering_loss(network, inputs, targets):
    outputs = network(inputs)
    SEEN["mean"] = outputs.detach().mean()
    return F.cross_entropy(outputs, targets, reduction="none") * (1 + SEEN["mean"])


def closed_loss():
    seen = [torch.zeros(())]

    def loss(network, inputs, targets):
        outputs = network(inputs)
        seen[0] = seen[0] + outputs.detach().mean()
        return F.cross_entropy(outputs, targets, reduction="none") * (1 + seen[0])

    return loss


def test_a_model_or_a_loss_that_remembers_outside_of_itself_claims_nothing_before_noise_on_updates():
    nothing_is_claimed(ran(model=Bank), "the model", "Bank")
    nothing_is_claimed(ran(loss=remembering_loss), "the loss", "remembering_loss")
    nothing_is_claimed(ran(loss=closed_loss()), "the loss", "loss")


class Drawing(nn.Module):
    """Draws from a generator of the whole process in every pass."""

    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(WIDTH, 2), draw

    def forward(self, inputs):
        return self.layer(inputs) * float(self.draw())


DRAWS = {"PyTorch": lambda: F.rrelu(-torch.ones(()), training=True), "NumPy": np.random.random, "Python": random.random}


@pytest.mark.parametrize("whose", DRAWS)
def test_what_is_drawn_from_a_generator_of_the_process_tells_how_much_others_drew(whose):
    drawing = ran(model=lambda: Drawing(DRAWS[whose]))
    assert set(claims(drawing).values()) == {np.inf}
    assert f"{whose}'s global random generator" in words(drawing)


def test_a_draw_from_numpy_s_generator_of_another_kind_is_seen_too():
    covering = types.SimpleNamespace(apart=False, forgets=True, mechanisms_forget=False)
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(0))
    try:
        before = SharedState(types.SimpleNamespace(loss=lambda: None, model=None), covering, pf.LocalTraining(), {}, ())
        assert before.changed() == []
        DRAWS["NumPy"]()
        assert before.changed() == ["NumPy's global random generator"]
    finally:
        np.random.set_bit_generator(own)


def test_what_pytorch_draws_by_a_client_s_own_stream_tells_nothing_of_others():
    assert np.inf not in claims(ran(model=lambda: Drawing(lambda: torch.rand(())))).values()


class ByItself(pf.FedAvg):
    """May take gradients for the client alone, and counts its trainings in its class."""

    name: ClassVar[str] = "by-itself"
    local_only: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = ("own",)
    left: ClassVar[float] = 0.0

    def begin(self, received, client_state, training):
        return {**super().begin(received, client_state, training), "own": torch.zeros(1)}

    def finish(self, local, received, training):
        ByItself.left += 1.0
        return super().finish(local, received, training)


def test_under_dp_sgd_one_that_takes_gradients_for_the_client_alone_may_leave_nothing_either():
    nothing_is_claimed(ran(ByItself("uniform"), DPSGD), "the algorithm", "ByItself")


class Reporting(pf.FedAvg):
    """Every client reports, randomised, how far it went, and adds what the one before it may have left."""

    name: ClassVar[str] = "reporting"
    before: ClassVar[Any] = None

    def fields(self):
        return (pf.Field("moved", combine="sum", shape=(), weighted=False, epsilon=1.0, value_range=(0.0, 1.0)),)

    def finish(self, local, received, training):
        moved = (local["parameters"] - received["parameters"]).norm()
        return {"moved": moved + self.exchanged(moved)}

    def exchanged(self, moved):
        return 0.0

    def aggregate(self, server, total, round, training):
        return server


class ReportingInClass(Reporting):
    """Leaves it in the class."""

    def exchanged(self, moved):
        before, ReportingInClass.before = ReportingInClass.before, moved.clone()
        return 0.0 if before is None else before


class ReportingInField(Reporting):
    """Leaves it in a field, and finds out whether anything was there."""

    def exchanged(self, moved):
        found = getattr(self, "left", 0.0)
        FOUND.append(float(found))
        object.__setattr__(self, "left", moved.clone())
        return found


FOUND = []


class Remembering:
    """A loss that remembers in a field."""

    def __init__(self):
        self.means = []

    def __call__(self, network, inputs, targets):
        outputs = network(inputs)
        self.means.append(float(outputs.detach().mean()))
        return F.cross_entropy(outputs, targets, reduction="none")


def test_a_randomised_report_covers_one_client_too_and_each_has_copies_of_fields():
    def reported(algorithm, **own):
        return ran(algorithm, pf.Privacy(), **own)

    assert max(claims(reported(Reporting("uniform"))).values()) <= 2.0
    ReportingInClass.before = None
    nothing_is_claimed(reported(ReportingInClass("uniform")), "the algorithm", "ReportingInClass")
    nothing_is_claimed(reported(Reporting("uniform"), loss=remembering_loss), "the loss", "remembering_loss")
    assert max(claims(reported(Reporting("uniform"), loss=Remembering())).values()) <= 2.0
    FOUND.clear()
    run = reported(ReportingInField("uniform"))
    assert set(FOUND) == {0.0}
    assert SHARED_STATE in words(run)  # for the list that this test reads


class Silent(Reporting):
    """Reports nothing where it went far."""

    def finish(self, local, received, training):
        report = super().finish(local, received, training)
        return {} if float(report["moved"]) > 0.1 else report


def test_who_reports_nothing_is_not_missed_and_nobody_else_learns_of_it():
    run = ran(Silent("uniform"), pf.Privacy())
    assert [line["clients"] for line in run.metrics] == [3, 3]
    assert "6 of 6 uploads counted as zeros: 6 sent no 'moved'." in run.warnings
    assert "sent no" not in str(run.summary) + str(run.metrics)
    assert max(claims(run).values()) <= 2.0


class Logging(pf.FedAvg):
    """Keeps a diary of what the server knows, and a field that each client has of its own."""

    name: ClassVar[str] = "logging"
    diary: ClassVar[list[float]] = []

    def begin(self, received, client_state, training):
        object.__setattr__(self, "began", len(getattr(self, "__dict__", {})))
        return super().begin(received, client_state, training)

    def aggregate(self, server, total, facts, training):
        Logging.diary.append(float(total["update"].norm()))
        return super().aggregate(server, total, facts, training)


class Plain(nn.Module):
    """Writes to itself in every pass, which is put back for the next client."""

    def __init__(self):
        super().__init__()
        self.layer, self.passes = nn.Linear(WIDTH, 2), 0

    def forward(self, inputs):
        self.passes += 1
        return self.layer(inputs)


def test_what_the_server_writes_down_and_what_is_put_back_costs_nothing():
    usual = claims(ran())
    assert max(usual.values()) < np.inf
    Logging.diary.clear()
    assert claims(ran(Logging("uniform"))) == usual
    assert len(Logging.diary) == 2
    assert claims(ran(model=Plain)) == usual


LEFT = {}


@dataclass(frozen=True)
class ErrorFeedback(pf.Mechanism):
    """Sends the largest numbers, and adds the rest to the next update, whoever sends it."""

    kind: ClassVar = "transform"

    def at_client(self, update, noise, round):
        whole = update + LEFT.get("rest", 0.0)
        sent = whole.where(whole.abs() >= whole.abs().median(), 0)
        LEFT["rest"] = whole - sent
        return sent


@dataclass(frozen=True)
class Following(pf.Mechanism):
    """A bound that follows the longest update so far."""

    kind: ClassVar = "bound"

    def norm_bound(self, server):
        return max(LEFT.get("norms", [1.0]))

    def at_client(self, update, noise, round):
        LEFT.setdefault("norms", []).append(float(update.norm()))
        return pf.Clip(round.bound).at_client(update, noise, round)


@dataclass(frozen=True)
class Bringing(pf.Mechanism):
    """Keeps every update, and puts their sum in the place of the one with noise."""

    kind: ClassVar = "transform"

    def at_client(self, update, noise, round):
        LEFT.setdefault("sent", []).append(update)
        return update

    def at_server(self, total, noise, round):
        total["update"].copy_(sum(LEFT.pop("sent", [])))


@dataclass(frozen=True)
class Codec(pf.Mechanism):
    """Keeps an update where it first sees it, and sends that where it stands again: nothing is left afterwards."""

    kind: ClassVar = "transform"

    def at_client(self, update, noise, round):
        if "held" in LEFT:
            return LEFT.pop("held")
        LEFT["held"] = update
        return update


class Relay(pf.FedAvg):
    """Every second client sends what the one before it left, and nothing is left at the end."""

    name: ClassVar[str] = "relay"

    def finish(self, local, received, training):
        upload = super().finish(local, received, training)
        if "relayed" in LEFT:
            return LEFT.pop("relayed")
        LEFT["relayed"] = upload
        return upload


class RelayInBegin(pf.FedAvg):
    """The same with what clients begin with, of which a stack sees one after the other."""

    name: ClassVar[str] = "relay-in-begin"

    def begin(self, received, client_state, training):
        local = super().begin(received, client_state, training)
        if "begun" in LEFT:
            LEFT.pop("begun")
        else:
            LEFT["begun"] = local["parameters"]
        return local


def relaying_loss(network, inputs, targets):
    """Each pass takes away what the one before it left, or leaves something."""
    outputs = network(inputs)
    if "passed" in LEFT:
        return F.cross_entropy(outputs, targets, reduction="none") * (1 + LEFT.pop("passed"))
    LEFT["passed"] = outputs.detach().mean()
    return F.cross_entropy(outputs, targets, reduction="none")


def test_what_one_client_leaves_and_the_next_takes_away_is_seen_though_nothing_is_left():
    """One after the other: side by side it may be over before anybody looks."""
    pairs = {"clients": np.arange(ROWS) % 4, "workers": 1}
    for rounds in (1, 2):
        LEFT.clear()
        nothing_is_claimed(ran(Relay("uniform"), rounds=rounds, **pairs), "the algorithm", "Relay")
        alone = {"clients": np.arange(ROWS) % 6, "workers": 1}  # of whom each takes one pass
        nothing_is_claimed(ran(loss=relaying_loss, rounds=rounds, **alone), "the loss", "relaying_loss")
        for engine in ("loop", "vectorised"):
            LEFT.clear()
            run = ran(RelayInBegin("uniform"), rounds=rounds, engine=engine, **pairs)
            nothing_is_claimed(run, "the algorithm", "RelayInBegin")
            assert not LEFT
            privacy = pf.Privacy(update=(Codec(), *AT_CLIENTS.update))
            run = ran(privacy=privacy, rounds=rounds, engine=engine, **pairs)
            nothing_is_claimed(run, "the mechanism", "Codec")


NOISE = pf.GaussianNoise(2.0)
CHAINS = {
    "ErrorFeedback": (ErrorFeedback(), pf.Clip(1.0), NOISE),
    "Following": (Following(), NOISE),
    "Bringing": (Bringing(), pf.Clip(1.0), NOISE),
    "Codec": (pf.Clip(1.0), Codec(), pf.GaussianNoise(2.0, at="client"), Codec()),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_mechanism_that_keeps_updates_for_others_or_past_the_noise_claims_nothing(name):
    LEFT.clear()
    nothing_is_claimed(ran(privacy=pf.Privacy(update=CHAINS[name])), "the mechanism", name)


@dataclass(frozen=True)
class Rounding(pf.Mechanism):
    """Rounds every update by itself."""

    kind: ClassVar = "transform"

    def at_client(self, update, noise, round):
        return (1024 * update).round() / 1024


def test_one_that_treats_every_update_by_itself_costs_nothing_before_and_after_the_noise():
    at_clients = AT_CLIENTS.update
    for chain in ((Rounding(), *at_clients), (*at_clients, Rounding())):
        assert claims(ran(privacy=pf.Privacy(update=chain))) == claims(ran())


class Counting(pf.FedAvg):
    """Counts its clients in its class."""

    name: ClassVar[str] = "counting"
    clients: ClassVar[int] = 0

    def begin(self, received, client_state, training):
        Counting.clients += 1
        return super().begin(received, client_state, training)


def test_under_dp_sgd_every_gradient_is_noisy_before_anybody_can_hand_it_on():
    assert claims(ran(Counting("uniform"), DPSGD))["sample"] < np.inf
    assert Counting.clients == 6


CALLS = [0]


def warming_up(network, inputs, targets):
    """Cross-entropy that halves after some passes, of which a large batch takes several."""
    CALLS[0] += 1
    return F.cross_entropy(network(inputs), targets, reduction="none") / (1 + (CALLS[0] > 10_000))


class Scheduled(nn.Module):
    """Halves its outputs after some passes, which an object in it counts."""

    def __init__(self):
        super().__init__()
        self.layer, self.clock = nn.Linear(WIDTH, 2), types.SimpleNamespace(ticks=types.SimpleNamespace(passes=0))

    def forward(self, inputs):
        self.clock.ticks.passes += self.training
        return self.layer(inputs) / (1 + (self.clock.ticks.passes > 10_000))


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_under_dp_sgd_a_loss_or_a_model_that_counts_passes_claims_nothing(engine):
    nothing_is_claimed(ran(privacy=DPSGD, engine=engine, loss=warming_up), "the loss", "warming_up")
    scheduled = ran(privacy=DPSGD, engine=engine, model=Scheduled)
    assert set(claims(scheduled).values()) == {np.inf}
    assert "the network that trains changed while clients trained" in words(scheduled)
    assert claims(ran(privacy=DPSGD, engine=engine, model=Plain))["sample"] < np.inf


def test_a_budget_ends_the_run_after_the_round_in_which_it_was_seen():
    InClass.before = None
    budget = pf.Privacy(update=AT_CLIENTS.update, budget=pf.Budget(100.0, unit="client"))
    run = ran(InClass("uniform"), budget, rounds=5)
    assert len(run.metrics) == 1
    assert claims(run)["client"] == np.inf


def scaled_loss(scale, network, inputs, targets):
    return F.cross_entropy(network(inputs), targets, reduction="none") * scale()


def remembered():
    SEEN["calls"] = SEEN.get("calls", 0.0) + 1.0
    return SEEN["calls"]


class Borrowed(pf.FedAvg):
    """An algorithm that says it is privfl's."""

    name: ClassVar[str] = "borrowed"
    __module__ = "privfl.algorithms.fedavg"
    before: ClassVar[float] = 0.0

    def finish(self, local, received, training):
        Borrowed.before += 1.0
        return {"update": super().finish(local, received, training)["update"] + Borrowed.before}


def test_parts_are_ones_own_whatever_their_module_is_called():
    assert set(claims(ran(Borrowed("uniform"))).values()) == {np.inf}
    assert set(claims(ran(loss=functools.partial(scaled_loss, remembered))).values()) == {np.inf}

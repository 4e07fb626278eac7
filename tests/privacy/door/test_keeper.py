"""Algorithms and models that try to get data past the door: what they send is compared in two worlds.

One example differs between the worlds, and noise is left out, so what leaves is exact. Under DP-SGD with bound C and
divisor B one step of learning rate η may move an upload by 2·η·C/B where an example is replaced, and by no more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.engine.choice import Choice
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import RoundContext, phases_of
from privfl.errors import ConfigError
from privfl.privacy.channel.channel import ChannelSpec, RoundChannel
from privfl.privacy.door import keeper
from privfl.privacy.door.batch_plans import Poisson
from privfl.privacy.mechanisms.participation import ParticipationPattern
from privfl.privacy.noise.source import NoiseSource
from tests.algorithms.federation import initial

ENGINES = ["loop", "vectorised"]
TRAINING = pf.LocalTraining(learning_rate=0.5, batch_size=4, steps=1)
DPSGD = pf.DPSGD(noise_multiplier=1.0, max_grad_norm=0.1, sample_rate=1.0)
BOUND = 2 * 0.5 * 0.1 / 4 * (1 + 1e-5)


def world(last=1.0, model=None):
    """Three clients with four rows each; the last row of client 1 is ``last`` everywhere."""
    torch.manual_seed(3)
    inputs = torch.randn(12, 5)
    inputs[7] = last
    targets = torch.arange(12) % 2
    return pf.Task.from_arrays(
        inputs,
        targets,
        clients=np.repeat([0, 1, 2], 4),
        test=(inputs[:2], targets[:2]),
        classes=2,
        model=model or (lambda: nn.Linear(5, 2)),
    )


@pytest.fixture(autouse=True)
def without_noise(monkeypatch):
    monkeypatch.setattr(keeper, "add_gaussian_rows_", lambda streams, rows, deviations: rows)


def uploads(task, algorithm, engine, *, rounds=1, privacy=None, training=TRAINING, key=1):
    """What client 1 sent in the last of ``rounds`` rounds, the server's model staying where it is."""
    privacy = privacy or pf.Privacy(training=DPSGD)
    algorithm = algorithm.bind(task.context(rounds, 0))
    spec = ChannelSpec.of(privacy.update, algorithm.fields(), privacy.training, 1.0, privacy.statistics)
    pattern = ParticipationPattern.of(pf.Everyone(), 3, rounds)
    channel = spec.for_run(len(initial(task)), 3.0, pattern, False).in_round(0, 3, {})
    (phase,) = phases_of(algorithm, channel)
    way, kept = ("vmap" if privacy.training else None), {}
    received = {"parameters": initial(task)}
    with LoopEngine(task, algorithm, training, channel, way=way, workers=1) as loop:
        trains = Choice(engine, 3 if engine == "vectorised" else None, "asked for").build(loop, way)
        for number in range(rounds):
            context = RoundContext(number, 0, NoiseSource.from_key(key), kept)
            results = {one.client: one for one in trains.train([0, 1, 2], received, context, phase)}
            kept.update({client: {**kept.get(client, {}), **one.client_state} for client, one in results.items()})
    assert results[1].upload is not None, results[1].dropped
    return results[1].upload["update"]


def moved(algorithm, engine, **settings):
    """How far the last row of client 1 moves its upload, at worst of three values."""
    base = uploads(world(1.0), algorithm(), engine, **settings)
    others = [uploads(world(value), algorithm(), engine, **settings) for value in (-1.0, 1e6, 0.0)]
    return max(float((one - base).norm()) for one in others)


@dataclass(frozen=True)
class ReadsRows(pf.FedAvg):
    name: ClassVar[str] = "reads-rows"
    attribute: str = "inputs"

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        local["parameters"][:5] += getattr(batch, self.attribute)[-1]


@dataclass(frozen=True)
class ReadsTheDoor(pf.FedAvg):
    name: ClassVar[str] = "reads-the-door"
    attribute: str = "_inputs"

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        local["parameters"][:5] += getattr(client, self.attribute)[7]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("attribute", ["inputs", "targets", "rows", "mask", "counts", "plans", "counted", "note_count"])
def test_a_batch_has_no_data_to_be_taken(attribute, engine):
    with pytest.raises(AttributeError, match="data stays behind the door"):
        moved(lambda: ReadsRows(attribute=attribute), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("attribute", ["_inputs", "_targets", "slots", "_current", "batches", "everything", "_network"])
def test_a_door_has_no_data_to_be_taken(attribute, engine):
    with pytest.raises(AttributeError):
        moved(lambda: ReadsTheDoor(attribute=attribute), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_question_that_is_none_is_not_passed_on(engine):
    class Asks(pf.FedAvg):
        name: ClassVar[str] = "asks"

        def step(self, local, received, batch, client, training):
            client._ask("_drawn", batch)

    with pytest.raises(AttributeError, match="_drawn"):
        moved(Asks, engine)


def test_the_attributes_of_a_batch_and_of_a_door_hold_tensors_of_the_step_and_functions_only():
    seen = {}

    class Looks(pf.FedAvg):
        name: ClassVar[str] = "looks"

        def step(self, local, received, batch, client, training):
            super().step(local, received, batch, client, training)
            for thing in (batch, client):
                seen.update({name: getattr(thing, name) for name in type(thing).__slots__})

    moved(Looks, "loop")
    tensors = {name: value for name, value in seen.items() if isinstance(value, torch.Tensor)}
    assert all(value.numel() <= 1 for value in tensors.values())
    assert all(
        callable(value) and not hasattr(value, "__self__") for name, value in seen.items() if name not in tensors
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_an_honest_step_moves_an_upload_by_no_more_than_is_charged(engine):
    assert 0 < moved(pf.FedAvg, engine) <= BOUND


@dataclass(frozen=True)
class TwoInTurn(pf.FedAvg):
    """Takes the gradients of every second step of the batch of the first one."""

    name: ClassVar[str] = "two-in-turn"
    held: list = field(default_factory=list)

    def step(self, local, received, batch, client, training):
        self.held.append(batch)
        super().step(local, received, self.held[0], client, training)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_is_good_for_its_own_step(engine):
    with pytest.raises(ConfigError, match="used the batch of another step"):
        moved(TwoInTurn, engine, training=replace(TRAINING, steps=2))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_gives_one_gradient_also_when_something_else_came_between(engine):
    class Between(pf.FedAvg):
        name: ClassVar[str] = "between"

        def step(self, local, received, batch, client, training):
            super().step(local, received, batch, client, training)
            client.data_free_value(lambda network: torch.zeros(()), local["parameters"])
            super().step(local, received, batch, client, training)

    with pytest.raises(ConfigError, match="second gradient on one batch"):
        moved(Between, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("first", ["gradient", "total"])
def test_a_noisy_sum_and_a_gradient_do_not_share_a_draw(first, engine):
    class Both(pf.FedAvg):
        name: ClassVar[str] = "both"
        statistics: ClassVar[tuple[str, ...]] = ("loss",)

        def step(self, local, received, batch, client, training):
            for use in (first, "gradient" if first == "total" else "total"):
                if use == "gradient":
                    super().step(local, received, batch, client, training)
                else:
                    client.total(client.loss, local["parameters"], batch, name="loss")

    privacy = pf.Privacy(training=DPSGD, statistics=[pf.NoisyTotal("loss", 1.0, 1.0)])
    with pytest.raises(ConfigError, match="on one batch"):
        moved(Both, engine, privacy=privacy)


@dataclass(frozen=True)
class Everything(Poisson):
    """Says that it samples, and yields all rows."""

    def rows(self, rows, shuffle, noise):
        for _ in range(self.steps):
            yield rows


@dataclass(frozen=True)
class TakesAll(pf.FedAvg):
    name: ClassVar[str] = "takes-all"

    def plan(self, usual, received):
        return Everything(0.01, usual.steps, usual.divisor)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_of_ones_own_earns_no_amplification(engine):
    with pytest.raises(ConfigError, match="needs Poisson batches"):
        moved(TakesAll, engine)
    with pytest.raises(ConfigError, match="needs Poisson batches"):
        pf.simulate(world(), TakesAll(), rounds=1, privacy=pf.Privacy(training=DPSGD))


@dataclass(frozen=True)
class SendsWhatStays(pf.FedAvg):
    """Adds a gradient that is to stay with the client to its upload: at once, or a round later."""

    name: ClassVar[str] = "sends-what-stays"
    keeps: ClassVar[tuple[str, ...]] = ("own",)
    local_only: ClassVar[bool] = True
    weighting: str = "uniform"
    later: bool = False

    def initial_client_state(self, client):
        return {"own": torch.zeros(12)}

    def begin(self, received, client_state, training):
        return {**super().begin(received, client_state, training), "own": client_state["own"]}

    def step(self, local, received, batch, client, training):
        if self.later:
            local["parameters"].add_(local["own"])
        super().step(local, received, batch, client, training)
        local["own"].add_(client.local_only_gradient(client.loss, received["parameters"], batch))
        if not self.later:
            local["parameters"].add_(local["own"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("later", [False, True])
def test_a_gradient_that_stays_reaches_no_upload(later, engine):
    rounds = 3 if later else 1
    assert 0 < moved(lambda: SendsWhatStays(later=later), engine, rounds=rounds) <= BOUND


@dataclass(frozen=True)
class CarriesWhatStays(pf.FedAvg):
    """Keeps a gradient that is to stay with the client in a field of its own, and sends it in its next training."""

    name: ClassVar[str] = "carries-what-stays"
    local_only: ClassVar[bool] = True
    weighting: str = "uniform"
    carried: list[torch.Tensor] = field(default_factory=list)

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        for one in self.carried:
            local["parameters"].add_(one)
        self.carried.append(client.local_only_gradient(client.loss, received["parameters"], batch))


def test_a_gradient_that_stays_is_not_carried_into_the_training_that_is_sent():
    """One by one: what a step leaves in a field while it is stacked, nothing can read afterwards."""
    assert 0 < moved(CarriesWhatStays, "loop") <= BOUND


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_mechanism_nothing_is_trained_twice_and_the_upload_shows_what_was_to_stay(engine):
    assert moved(SendsWhatStays, engine, privacy=pf.Privacy()) > 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_that_stays_must_be_declared(engine):
    class Undeclared(SendsWhatStays):
        local_only: ClassVar[bool] = False

    with pytest.raises(ConfigError, match="local_only"):
        moved(Undeclared, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_outside_algorithm_keeps_survives_beside_what_its_uploads_come_from(engine):
    task = world()
    run = pf.simulate(
        task,
        SendsWhatStays(),
        rounds=2,
        training=TRAINING,
        privacy=pf.Privacy(training=DPSGD, noise_key=1),
        execution=pf.Execution(engine=engine, workers=1),
    )
    kept = run.client_state[1]
    assert set(kept) == {"own", "blind/own"}
    assert float(kept["own"].abs().max()) > 0
    assert float(kept["blind/own"].abs().max()) == 0
    assert np.isfinite(run.statement.cell("sample", "server").epsilon)


class Remembering(nn.Module):
    """Adds what it saw before to what it answers: in a buffer, an attribute, or a list."""

    def __init__(self, where):
        super().__init__()
        self.inner, self.where, self.seen = nn.Linear(5, 2), where, []
        self.last = torch.zeros(())
        self.register_buffer("total", torch.zeros(()))

    def forward(self, inputs):
        remembered = {"attribute": self.last, "list": sum(self.seen), "buffer": self.total}[self.where]
        answer = self.inner(inputs) * (1 + remembered)
        if self.where == "attribute":
            self.last = inputs.detach().sum()
        elif self.where == "list":
            self.seen.append(inputs.detach().sum())
        return answer


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("where", ["attribute", "list"])
def test_nothing_that_a_model_remembers_gets_into_the_next_clients_upload(where, engine):
    """Noise on updates covers a client's own upload; client 2 must not send what client 1 left in the model."""
    privacy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)])

    def sent(value):
        task = world(value, lambda: Remembering(where))
        algorithm = pf.FedAvg("uniform").bind(task.context(1, 0))
        spec = ChannelSpec.of(privacy.update, algorithm.fields(), None, 1.0, ())
        channel = spec.for_run(12, 3.0, ParticipationPattern.of(pf.Everyone(), 3, 1), False).in_round(0, 3, {})
        (phase,) = phases_of(algorithm, channel)
        with LoopEngine(task, algorithm, TRAINING, channel, workers=1) as loop:
            trains = Choice(engine, 1 if engine == "vectorised" else None, "asked for").build(loop, None)
            context = RoundContext(0, 0, NoiseSource.from_key(1), {})
            results = trains.train([0, 1, 2], {"parameters": initial(task)}, context, phase)
            return {one.client: one.upload["update"] for one in results}

    one, other = sent(1.0), sent(-5.0)
    assert not torch.equal(one[1], other[1])
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[2], other[2])


class Counts(nn.Module):
    """Answers more and more loudly."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(5, 2), 0

    def forward(self, inputs):
        self.calls += 1
        return self.inner(inputs) * self.calls


@pytest.mark.parametrize("engine", ENGINES)
def test_without_any_mechanism_too_every_client_meets_the_model_as_it_was(engine):
    def sent(clients):
        task = world(model=Counts)
        algorithm = pf.FedAvg("uniform").bind(task.context(1, 0))
        channel = RoundChannel.bare(algorithm.fields())
        (phase,) = phases_of(algorithm, channel)
        with LoopEngine(task, algorithm, TRAINING, channel, workers=1) as loop:
            trains = Choice(engine, 1 if engine == "vectorised" else None, "asked for").build(loop, None)
            context = RoundContext(0, 0, NoiseSource.from_key(1), {})
            results = trains.train(clients, {"parameters": initial(task)}, context, phase)
            return {one.client: one.upload["update"] for one in results}

    together, alone = sent([0, 1, 2]), sent([2])
    assert float(alone[2].norm()) > 0
    assert torch.equal(together[2], alone[2])


@dataclass(frozen=True)
class Hands(pf.FedAvg):
    """Takes what one client computed along to the next one, in a field of its own."""

    name: ClassVar[str] = "hands"
    weighting: str = "uniform"
    held: list = field(default_factory=list)

    def finish(self, local, received, training):
        mine = local["parameters"] - received["parameters"]
        self.held.append(mine)
        return {"update": sum(self.held)}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_algorithm_takes_nothing_along_in_its_fields_where_noise_covers_one_clients_upload(engine):
    privacy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)])
    alone = uploads(world(), pf.FedAvg("uniform"), engine, privacy=privacy)
    assert torch.equal(uploads(world(), Hands(), engine, privacy=privacy), alone)


class Writes(nn.Module):
    """A layer that writes what it owns when it is used."""

    def __init__(self, what):
        super().__init__()
        self.inner, self.what = nn.Linear(5, 2), what
        self.register_buffer("total", torch.zeros(5))

    def forward(self, inputs):
        with torch.no_grad():
            if self.what == "buffer":
                self.total += inputs.sum(0)
            elif self.what == "replaced":
                self.total = inputs.sum(0)
            else:
                self.inner.weight.mul_(0.9)
        return self.inner(inputs)


@pytest.mark.parametrize(
    ("what", "named"),
    [("buffer", "writes its 'total'"), ("replaced", "writes its 'total'"), ("parameter", r"'inner' \(Linear\) writes")],
)
def test_a_layer_that_writes_is_refused_by_name(what, named):
    with pytest.raises(ConfigError, match=named):
        world(1.0, lambda: Writes(what))


def looked_up(max_norm: float | None) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Embedding(7, 3, max_norm=max_norm), nn.Flatten(), nn.Linear(6, 2))


def test_an_embedding_that_rescales_its_weight_is_refused_by_name():
    ids, targets = torch.randint(0, 7, (12, 2)), torch.arange(12) % 2
    given = {"clients": np.repeat([0, 1, 2], 4), "vocabulary": 7, "classes": 2, "test": (ids[:2], targets[:2])}
    pf.Task.from_arrays(ids, targets, model=looked_up(None), **given)
    with pytest.raises(ConfigError, match="layer '0' is Embedding with max_norm"):
        pf.Task.from_arrays(ids, targets, model=looked_up(0.5), **given)


def test_a_size_is_not_to_be_had_unnoted_from_all_rows():
    class Sized(pf.FedAvg):
        name: ClassVar[str] = "sized"

        def prepare(self, local, received, everything, client, training):
            local["parameters"].add_(everything.plan.batch_size)

    with pytest.raises(AttributeError, match="no 'plan'"):
        moved(Sized, "loop")


def dropping():
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = dropping()

    def forward(self, inputs):
        return self.inner(inputs)


class Calling(nn.Module):
    """Drop-out that is a function."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 2)

    def forward(self, inputs):
        return self.inner(nn.functional.dropout(inputs, 0.5, self.training))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", [dropping, Own, Calling], ids=["known layers", "an outside network", "a function"])
def test_who_knows_the_seed_of_a_private_run_does_not_know_its_drop_out_masks(model, engine):
    """Were they known, one example more would shift the masks of all after it: their gradients differ by up to 2·C."""
    task = world(1.0, model)
    one, again, other = (uploads(task, pf.FedAvg("uniform"), engine, key=key) for key in (1, 1, 2))
    assert torch.equal(one, again)
    assert float((one - other).norm()) > 1e-3
    plain = [uploads(task, pf.FedAvg("uniform"), engine, key=key, privacy=pf.Privacy()) for key in (1, 2)]
    assert torch.equal(*plain)


def test_random_numbers_that_are_no_secret_are_refused_under_dp_sgd():
    @dataclass(frozen=True)
    class Mixes(pf.FedAvg):
        name: ClassVar[str] = "mixes"
        weighting: str = "uniform"

        def step(self, local, received, batch, client, training):
            def loss(network, inputs, targets):
                return client.loss(network, inputs * torch.poisson(inputs.abs()), targets)

            gradient = client.gradient(loss, local["parameters"], batch)
            local["parameters"].sub_(gradient)

    with pytest.raises(ConfigError, match="random"):
        pf.simulate(world(), Mixes(), rounds=1, privacy=pf.Privacy(training=DPSGD))


def test_noise_sized_for_a_declared_scale_is_not_taken_on_trust():
    """The upload is a thousand times what its field says, and the noise on the sum is sized for what the field says."""

    class Louder(pf.FedSampling):
        name: ClassVar[str] = "louder"

        def finish(self, local, received, training):
            return {"update": 1000 * local["update"]}

    sizes = pf.RandomizedResponse(epsilon=1.0, bound=20)
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, noise_at="server"), size=sizes)
    with pytest.raises(ConfigError, match="nobody can check that finish of Louder"):
        pf.simulate(world(), Louder(samples_per_round=6), rounds=1, privacy=privacy)


class Centres:
    """A loss that remembers where it saw features last."""

    def __init__(self):
        self.last = torch.zeros(2)

    def __call__(self, network, inputs, targets):
        answer = network(inputs)
        terms = nn.functional.cross_entropy(answer, targets, reduction="none") + (answer - self.last).square().sum(1)
        self.last = answer.detach().mean(0)
        return terms


def test_nothing_that_a_loss_remembers_gets_into_the_next_clients_upload():
    privacy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)])

    def sent(value):
        task = replace(world(value), loss=Centres())
        algorithm = pf.FedAvg("uniform").bind(task.context(1, 0))
        spec = ChannelSpec.of(privacy.update, algorithm.fields(), None, 1.0, ())
        channel = spec.for_run(12, 3.0, ParticipationPattern.of(pf.Everyone(), 3, 1), False).in_round(0, 3, {})
        (phase,) = phases_of(algorithm, channel)
        with LoopEngine(task, algorithm, TRAINING, channel, workers=1) as loop:
            context = RoundContext(0, 0, NoiseSource.from_key(1), {})
            results = loop.train([0, 1, 2], {"parameters": initial(task)}, context, phase)
            return {one.client: one.upload["update"] for one in results}

    one, other = sent(1.0), sent(-5.0)
    assert not torch.equal(one[1], other[1])
    assert torch.equal(one[2], other[2])


def test_a_method_put_into_an_object_makes_no_outside_algorithm_pass_for_privfls_own():
    """Ditto is trusted not to send what it trains apart; this one would, and is still of Ditto's type."""
    task, algorithm = world(), pf.Ditto()
    send = pf.Ditto.finish

    def finish(local, received, training):
        return {"update": send(algorithm, local, received, training)["update"] + local["personal"]}

    object.__setattr__(algorithm, "finish", finish)
    with pytest.raises(ConfigError, match="this Ditto has another finish than its class"):
        pf.simulate(task, algorithm, rounds=1, privacy=pf.Privacy(training=DPSGD))

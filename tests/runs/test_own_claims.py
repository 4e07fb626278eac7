"""What a class of one's own says of its cost is refused, claims nothing, or is named: a distinguisher says which."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent

import privfl as pf
from privfl.algorithms import ALGORITHMS
from privfl.errors import ConfigError
from privfl.federation.cohorts import CohortWithout
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import Poisson
from privfl.privacy.mechanisms.mechanism import Cover, Mechanism
from tests.own_parts import Small

pytestmark = pytest.mark.usefixtures("common_noise")

BOUND, CLIENTS, Z = 0.5, 6, 2.0
ENGINES = ["loop", "vectorised"]
CLIP, NOISE = pf.Clip(BOUND), pf.GaussianNoise(Z)


@dataclass(frozen=True)
class Clip1000(pf.Clip):
    """A bound that is none."""

    def at_client(self, update, noise, round):
        return update * 1000


@dataclass(frozen=True)
class LooseBound(pf.Clip):
    """Says a bound and clips to a thousand times that."""

    def norm_bound(self, server):
        return self.max_norm

    def at_client(self, update, noise, round):
        return update * 1000


@dataclass(frozen=True)
class Amplifier(Mechanism):
    """A transform that breaks the bound that was put before it."""

    kind: ClassVar[str] = "transform"

    def at_client(self, update, noise, round):
        return update * 1000


@dataclass(frozen=True)
class QuietGaussian(pf.GaussianNoise):
    """Says what its parent says and adds a hundredth of its noise."""

    def at_server(self, total, noise, round):
        noise.stream.add_gaussian_(total["update"], 0.01 * self.noise_multiplier * round.bound)


@dataclass(frozen=True)
class StatedGaussian(pf.GaussianNoise):
    """States a cover of its own, which is right."""

    def cover(self, round):
        return Cover.gaussian(GaussianDpEvent(self.noise_multiplier))


def worlds():
    """The same data with client 0, and with its contribution left out: its update is not finite."""
    inputs = np.random.default_rng(0).normal(size=(60, 64)).astype(np.float32)
    without = inputs.copy()
    without[:10] = 3e38
    targets, clients = np.arange(60) % 10, np.repeat(np.arange(CLIENTS), 10)
    return [
        pf.Task.from_arrays(rows, targets, clients=clients, classes=10, test=(inputs, targets), model=Small)
        for rows in (inputs, without)
    ]


WORLDS = worlds()


def train(task, *chain, engine="loop", **settings):
    privacy = settings.pop("privacy", pf.Privacy(noise_key=1))
    return pf.simulate(
        task,
        settings.pop("algorithm", pf.FedAvg(weighting="uniform")),
        rounds=1,
        training=pf.LocalTraining(learning_rate=1.0, steps=2),
        privacy=replace(privacy, update=chain),
        execution=pf.Execution(engine=engine, workers=1),
        **settings,
    )


ADAPTIVE = pf.AdaptiveClip(BOUND, count_noise=5.0)
LEAVING_OUT = {
    "a broken upload": {"task": 1},
    "a client not drawn": {"cohort": CohortWithout(pf.Everyone(), frozenset({0}))},
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure sum"])
@pytest.mark.parametrize("without", LEAVING_OUT)
def test_leaving_a_client_out_moves_update_and_bit_by_no_more_than_is_charged(without, secure, engine):
    """Two worlds with one noise: the next bound tells the sum of bits, of which one client is charged a half."""
    chain = (ADAPTIVE, *((pf.SecureSum(mode="ideal"),) if secure else ()), NOISE)
    settings = dict(LEAVING_OUT[without])
    other = WORLDS[settings.pop("task", 0)]
    there, gone = train(WORLDS[0], *chain, engine=engine), train(other, *chain, engine=engine, **settings)
    bounds = [float(run.server["clip_norm"]) for run in (there, gone)]
    bit = abs(math.log(bounds[0] / bounds[1])) * CLIENTS / ADAPTIVE.learning_rate
    moved = float((there.parameters.double() - gone.parameters.double()).norm()) * CLIENTS
    assert bit == pytest.approx(0.5, rel=1e-3)
    assert 0.9 * BOUND < moved <= BOUND * (1 + 1e-4)
    updates, bits = ADAPTIVE.events(Z, CLIENTS)
    charged = GaussianDpEvent((updates.noise_multiplier**-2 + bits.noise_multiplier**-2) ** -0.5)
    assert charged.noise_multiplier == pytest.approx(Z)
    assert bits.noise_multiplier == 5.0 / 0.5


def claim(run, unit="client"):
    return run.statement.cell(unit, "public").epsilon


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "chain",
    [(CLIP, NOISE), (Clip1000(BOUND), NOISE), (LooseBound(BOUND), NOISE), (CLIP, Amplifier(), NOISE)],
    ids=["clip", "changed clip", "restated clip", "amplifier"],
)
def test_leaving_a_client_out_moves_the_sum_by_no_more_than_is_charged(chain, engine):
    """One key, so that the noise of both worlds is the same and the difference of their models that of the sums."""
    there, gone = (train(world, *chain, engine=engine) for world in WORLDS)
    moved = float((there.parameters.double() - gone.parameters.double()).norm()) * CLIENTS
    assert moved > 0.9 * BOUND
    assert moved <= BOUND * (1 + 1e-4) or claim(there) == math.inf


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("noise", "earned"),
    [(NOISE, True), (StatedGaussian(Z), True), (QuietGaussian(Z), False)],
    ids=["shipped", "stated", "quiet"],
)
def test_noise_is_as_loud_as_what_is_charged_or_nothing_is_claimed(noise, earned, engine):
    """Two thousand numbers: a deviation 10 % off would be five standard errors of 2 %."""
    with_noise, without = (train(WORLDS[0], CLIP, *more, engine=engine) for more in ((noise,), ()))
    seen = float((with_noise.parameters - without.parameters).double().std()) * CLIENTS / (Z * BOUND)
    assert (seen > 0.8) is earned
    assert (claim(with_noise) < math.inf) is earned


@dataclass(frozen=True)
class TruthfulSize(pf.LaplaceSize):
    """States a parent's ε, and answers with the truth."""

    def randomise(self, truths, stream):
        return truths.astype(float)


@dataclass(frozen=True)
class StatedSize(pf.LaplaceSize):
    """States a cost of its own for both units."""

    def client_cost(self):
        return super().client_cost()

    def sample_cost(self):
        return super().sample_cost()


def test_a_size_that_is_told_as_it_is_earns_nothing_whatever_its_class_says():
    found = {}
    for kind in (pf.LaplaceSize, TruthfulSize):
        privacy = pf.Privacy(size=kind(1.0, 100), max_size_error=1e9, noise_key=1)
        run = train(WORLDS[0], algorithm=pf.FedAvg(weighting="size"), privacy=privacy, record=["server"])
        told = next(iter(run.transcript)).sizes
        found[kind] = all(told[client] == 10 for client in told), run.statement.cell("client", "server").reasons
    assert not found[pf.LaplaceSize][0]
    assert found[TruthfulSize][0]
    assert any("TruthfulSize changes randomise of LaplaceSize" in reason for reason in found[TruthfulSize][1])


def test_what_rests_on_the_word_of_an_author_is_named():
    stated = train(WORLDS[0], CLIP, Amplifier(), StatedGaussian(Z))
    (caveat,) = [one for one in stated.statement.caveats if "their authors" in one]
    assert caveat.endswith(": Amplifier (that it treats every update on its own), StatedGaussian (its cover).")
    assert not [one for one in train(WORLDS[0], CLIP, NOISE).statement.caveats if "their authors" in one]
    privacy = pf.Privacy(size=StatedSize(3.0, 100), max_size_error=1e9)
    sized = train(WORLDS[0], algorithm=pf.FedAvg(weighting="size"), privacy=privacy)
    assert any("StatedSize (its client_cost)" in one for one in sized.statement.caveats)


@dataclass(frozen=True)
class Discount(pf.DPSGD):
    """Says that a step costs what a hundred times its noise would."""

    def event(self, noise_multiplier, rate):
        return super().event(100 * noise_multiplier, rate)


@dataclass(frozen=True)
class Mute(pf.NoisyTotal):
    """Says its noise multiplier and adds none."""

    @property
    def deviation(self):
        return 0.0


def changed(part, **attributes):
    for name, value in attributes.items():
        object.__setattr__(part, name, value)
    return part


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training": Discount(noise_multiplier=1.0)}, r"privacy.training is a Discount, and nobody has accounted"),
        ({"statistics": [Mute("labels", 1.0, 1.0)]}, r"an entry of privacy.statistics is a Mute"),
        (
            {"training": changed(pf.DPSGD(noise_multiplier=1.0), noise=lambda client: 1.0)},
            "this DPSGD was changed after it was made: it has 'noise'",
        ),
        (
            {"size": changed(pf.LaplaceSize(1.0, 100), randomise=lambda truths, stream: truths)},
            "this LaplaceSize was changed after it was made",
        ),
    ],
)
def test_mechanisms_at_the_door_are_the_very_classes_that_were_accounted(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.Privacy(**settings)


def test_what_is_changed_after_the_settings_were_made_is_refused_before_the_run():
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0))
    changed(privacy.training, noise=lambda client: 1e-9)
    with pytest.raises(ConfigError, match="this DPSGD was changed after it was made"):
        train(WORLDS[0], privacy=privacy)


@dataclass(frozen=True)
class Loud(pf.FedSampling):
    """Sends a thousand times the sum of gradients that its parent says it sends."""

    name: ClassVar[str] = "loud"

    def finish(self, local, received, training):
        return {"update": 1000 * local["update"]}


@dataclass(frozen=True)
class OwnSum(pf.FedAvg):
    """Says of its update that it is a sum of gradients."""

    name: ClassVar[str] = "own-sum"

    def fields(self):
        return (Field("update", per_sample_scale=1e-3),)


@dataclass(frozen=True)
class Steered(pf.FedSampling):
    """Changes what the server does with the noisy sum: post-processing."""

    name: ClassVar[str] = "steered"

    def aggregate(self, server, total, round, training):
        return super().aggregate(server, {"update": total["update"] * 0.5}, round, training)


@pytest.mark.parametrize(("algorithm", "who"), [(Loud(20), "finish of Loud"), (OwnSum("uniform"), "fields of OwnSum")])
def test_noise_on_a_sum_of_gradients_needs_a_sum_that_is_known_to_be_one(algorithm, who):
    central = pf.DPSGD(noise_multiplier=1.0, noise_at="server")
    privacy = pf.Privacy(training=central, size=pf.LaplaceSize(3.0, 30), max_size_error=1e9)
    with pytest.raises(ConfigError, match=f"nobody can check that {who} keeps to one"):
        train(WORLDS[0], algorithm=algorithm, privacy=privacy)
    assert claim(train(WORLDS[0], algorithm=Steered(20), privacy=privacy), "sample") < math.inf


def test_a_name_in_a_table_makes_nothing_privfls_own(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "loud", Loud)
    central = pf.DPSGD(noise_multiplier=1.0, noise_at="server")
    privacy = pf.Privacy(training=central, size=pf.LaplaceSize(3.0, 30), max_size_error=1e9)
    with pytest.raises(ConfigError, match="nobody can check that finish of Loud keeps to one"):
        train(WORLDS[0], algorithm=Loud(20), privacy=privacy)


@dataclass(frozen=True)
class Stopping(pf.FedAvg):
    """Samples at a rate of its own, or by what the server has come to, or by the round."""

    name: ClassVar[str] = "stopping"
    by: str = "model"

    def start(self, parameters):
        return {**super().start(parameters), "on": torch.ones(())}

    def begin_round(self, server, round):
        return {**server, "on": torch.tensor(float(round < 1))} if self.by == "round" else server

    def broadcast(self, server):
        return {"parameters": server["parameters"], "on": server["on"]}

    def plan(self, usual, received):
        return Poisson(0.3 if float(received["on"]) else 0.1, usual.steps, usual.divisor)

    def aggregate(self, server, total, round, training):
        after = super().aggregate(server, total, round, training)
        return {**after, "on": server["on"] * (self.by != "model" or float(after["parameters"].norm()) < 1e-6)}


@pytest.mark.parametrize(("by", "finite"), [("model", False), ("round", True), ("nothing", True)])
def test_rates_that_follow_from_what_was_learnt_take_the_claim_and_those_settled_before_keep_it(by, finite):
    noisy = pf.Privacy(training=pf.DPSGD(noise_multiplier=2.0, sample_rate=0.1))
    run = pf.simulate(WORLDS[0], Stopping("uniform", by=by), rounds=3, privacy=noisy)
    assert (claim(run, "sample") < math.inf) == finite
    told = " ".join(str(run.statement).split())
    assert ("stopping draws its batches by what the server has learnt" in told) != finite


@dataclass(frozen=True)
class BareReport(Field):
    """A randomised report that reports the truth."""

    def randomise(self, value, noise):
        return value


def test_a_randomised_report_is_the_very_field_that_randomises():
    @dataclass(frozen=True)
    class Reporting(pf.FedAvg):
        name: ClassVar[str] = "reporting"

        def fields(self):
            return (BareReport("update", shape=(), epsilon=1.0),)

    with pytest.raises(ConfigError, match="Reporting's fields\\(\\) returned"):
        train(WORLDS[0], algorithm=Reporting("uniform"))

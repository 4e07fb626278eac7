"""One client, many threads or one stacked kernel: the same numbers.

Tolerances. Models and data here are float64, whose sums round at 1e-16; a few steps of training amplify that, through
normalisation layers most, and 1e-9 of the largest value leaves room for it while a wrong row, mask, weight or stream
shows at 1e-3 and more. Noise is rounded to a grid of σ·2⁻²⁰, so a sum on the edge of a step may land one step further:
with noise of σ·C = 1 and a divisor of 8 that is 1.2e-7 for each noisy gradient.
"""

import gc
import math
import weakref
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.algorithms import Algorithm, FedAvg, FedProx, Local, NaiveFedSampling
from privfl.engine.loop import LoopEngine
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import RoundContext
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models import Network, build, models
from privfl.models.flat_network import FlatNetwork, Layout, flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.clipping.probe import check_per_sample
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.log import BARE_SIZE, BARE_TOTAL
from privfl.privacy.noise.source import NoiseSource
from tests.privacy.clipping.test_per_sample import SMALL

SIZES = (1, 30, 7, 12, 2, 19, 8)
"""Ragged on purpose: one sample, fewer than a batch, exactly a batch, several."""
TRAINING = LocalTraining(batch_size=8, learning_rate=0.05, momentum=0.5, weight_decay=0.01, epochs=2)


def federation(model, shape, *, classes=5, sizes=SIZES, vocabulary=None, loss=None):
    generator = torch.Generator().manual_seed(1)
    samples = sum(sizes)
    if vocabulary is None:
        inputs = torch.randn(samples, *shape, generator=generator, dtype=torch.float64)
    else:
        inputs = torch.randint(vocabulary, (samples, *shape), generator=generator)
    targets = torch.randint(classes, (samples,), generator=generator)
    bounds = np.cumsum([0, *sizes])
    clients = ClientIndex.of([np.arange(low, high) for low, high in pairwise(bounds)])
    options = {} if loss is None else {"loss": loss}
    return Task(
        "t", inputs, targets, clients, inputs[:4], targets[:4], classes, model, "m", vocabulary=vocabulary, **options
    )


def convolutional(seed):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten()]
    layers += [nn.Linear(54, 12), nn.ReLU(), nn.Dropout(0.4)]
    return Network(nn.Sequential(*layers), nn.Linear(12, 5)).double()


@pytest.fixture(scope="module")
def task():
    return federation(convolutional, (1, 8, 8))


def trained(task, algorithm, *, dpsgd=None, way=None, workers=1, chunk=None, training=TRAINING, received=None):
    """What every client sends, by client."""
    algorithm = algorithm.bind(task.context(10, 1))
    channel = RoundChannel.bare(algorithm.fields(), dpsgd)
    parameters = flatten(task.model(0)).to(task.inputs.device)
    state = {**algorithm.start(parameters), "rate": torch.tensor(0.2, dtype=torch.float64, device=parameters.device)}
    received = algorithm.broadcast(state) if received is None else received
    context = RoundContext(3, 1, NoiseSource.from_key(4), {})
    with LoopEngine(task, algorithm, training, channel, way=way, workers=workers) as loop:
        engine = loop if chunk is None else VectorisedEngine(loop, chunk, way)
        results = list(engine.train(range(len(task.clients)), received, context))
    assert len(results) == len(task.clients)
    return {result.client: result for result in results}


def assert_same(expected, found, *, absolute=0.0):
    for client, one in expected.items():
        other = found[client]
        assert one.log == other.log
        assert one.dropped == other.dropped
        for mine, theirs in ((one.upload or {}, other.upload or {}), (one.client_state, other.client_state)):
            assert mine.keys() == theirs.keys()
            for name, value in mine.items():
                tolerance = 1e-9 * float(value.abs().max()) + absolute
                torch.testing.assert_close(theirs[name], value, rtol=0, atol=tolerance)


NOISY = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.1)
STEP_OF_THE_GRID = 20 * 2**-20 / 8
HALF, BY_PASS = 5, {"fedrep", "grp-fed"}
"""Steps of half an expected pass, and algorithms to which the last pass is another than those before it."""
ALGORITHMS = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(mu=0.3),
    "scaffold": pf.Scaffold(),
    "scaffold, option I, weighted by size": pf.Scaffold(option="I", weighting="size"),
    "feddyn": pf.FedDyn(alpha=0.3),
    "feddyn, an alpha for each client": pf.FedDyn(alpha=0.3, mean_size=10.0),
    "fedadam": pf.FedAdam(),
    "aaggff-s": pf.AAggFFS(mu=0.3),
    "aaggff-d": pf.AAggFFD(server_optimiser="fedyogi"),
    "aaggff-d-sums": pf.AAggFFDSums(),
    "fedsampling": pf.FedSampling(40),
    "fedsampling, several steps": pf.FedSampling(40, local_steps=3),
    "fedsampling-naive": NaiveFedSampling(rate=0.15),
    "fedcgan": pf.FedCGAN(hidden=6, latent=3),
    "fedcvae": pf.FedCVAE(hidden=6, latent=3),
    "fedevg": pf.FedEvg(samples_per_class=3, chain_steps=2, client_weights="uniform"),
    "superfed-mm": pf.SuPerFed(start_fraction=0.0),
    "superfed-lm": pf.SuPerFed(mode="lm", start_fraction=0.0, cos_over="random"),
    "bsm-fedavg": pf.BalancedFedAvg(),
    "fedlc": pf.FedLC(),
    "fedlc, without a mask": pf.FedLC(tau=2.0, least_count=0.5),
    "fedrs": pf.FedRS(),
    "fedrs, graded": pf.FedRS(form="graded", alpha=0.2),
    "moon": pf.MOON(mu=5.0, first="initial"),
    "fedavg-ft": pf.FedAvgFT(),
    "rebafl": pf.ReBaFL(n_min=1),
    "rebafl, sample by sample": pf.ReBaFL(n_min=1, per_sample=True, proto_source="global_only"),
    "grp-fed": pf.GRPFed(),
    "grp-fed, printed losses": pf.GRPFed(disc_loss="paper", disc_ref="current", loss_report="post_eval"),
    "ditto": pf.Ditto(personal_learning_rate=0.02),
    "apfl": pf.APFL(alpha_decay=0.02),
    "pfedme": pf.PFedMe(personal_steps=2),
    "pfedme, one step": pf.PFedMe(personal_steps=1, warm_start=True, theta_decay=0.001),
    "per-fedavg": pf.PerFedAvg(adaptation_steps=2),
    "fedper": pf.FedPer(),
    "lg-fedavg": pf.LGFedAvg(shared_layers=2),
    "fedrep": pf.FedRep(head_epochs=2),
    "fedbabu": pf.FedBABU(finetune_epochs=0),
    "fedbabu, fine-tuned": pf.FedBABU(finetune_epochs=2, finetune="head"),
    "q-fedavg": pf.QFedAvg(q=2.0),
    "afl": pf.AFL(),
    "term": pf.TERM(t=2.0),
    "term-running": pf.RunningTERM(),
    "fedmgda": pf.FedMGDA(),
    "propfair": pf.PropFair(base=2.0),
    "propfair, sample by sample": pf.PropFair(base=2.0, per_sample=True),
    "local": Local(),
    "centralized": pf.Centralized(),
}
PRIVATE = [name for name, algorithm in ALGORITHMS.items() if not algorithm.dpsgd_refusal()]
OF_EACH_KIND = (
    "fedavg",
    "fedevg",
    "superfed-lm",
    "moon",
    "rebafl, sample by sample",
    "grp-fed",
    "fedrep",
    "per-fedavg",
)
"""Algorithms whose clients two workers train too."""
BY_VMAP = ("fedavg", "superfed-lm", "rebafl, sample by sample", "per-fedavg")
"""Algorithms for the second way to per-sample gradients, which knows nothing of algorithms."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_core_two_cores_and_stacked_agree_for_every_algorithm(task, name):
    algorithm = ALGORITHMS[name]
    one, two = (trained(task, algorithm, workers=workers) for workers in (1, 2))
    for client, result in one.items():
        for field, value in result.upload.items():
            assert torch.equal(value, two[client].upload[field])
    for chunk in (2, 7):
        assert_same(one, trained(task, algorithm, chunk=chunk))


@pytest.mark.parametrize(
    ("name", "way"), [*((name, "layers") for name in PRIVATE), *((name, "vmap") for name in BY_VMAP)]
)
def test_they_agree_under_dp_sgd_with_the_same_noise_and_the_same_log(task, name, way):
    algorithm = ALGORITHMS[name]
    training = replace(TRAINING, epochs=1, steps=None if name.partition(",")[0] in BY_PASS else HALF)
    given = {"dpsgd": NOISY, "way": way, "training": training}
    one = trained(task, algorithm, **given, workers=1)
    if name in OF_EACH_KIND and way == "layers":  # by the other way the batches, streams and threads are the same
        two = trained(task, algorithm, **given, workers=2)
        for client, result in one.items():
            for own, other in ((result.upload, two[client].upload), (result.client_state, two[client].client_state)):
                assert all(torch.equal(value, other[field]) for field, value in own.items())
    found = trained(task, algorithm, **given, chunk=3)
    assert_same(one, found, absolute=STEP_OF_THE_GRID)
    assert any(sum(result.log.noisy.values()) for result in found.values())


def test_clipping_without_noise_agrees_to_the_last_places(task):
    for noise_at, algorithm in (("client", FedAvg()), ("server", pf.FedSampling(40))):
        multiplier = 0.0 if noise_at == "client" else 1.0
        dpsgd = pf.DPSGD(noise_multiplier=multiplier, noise_at=noise_at, sample_rate=0.3, max_grad_norm=0.1)
        one = trained(task, algorithm, dpsgd=dpsgd, way="layers")
        assert_same(one, trained(task, algorithm, dpsgd=dpsgd, way="layers", chunk=7))


def test_every_client_may_have_its_own_rate_and_noise(task):
    dpsgd = pf.DPSGD(
        noise_multiplier=(0.0, 1.0, 2.0, 0.0, 0.5, 1.0, 3.0), sample_rate=(1.0, 0.1, 0.5, 0.2, 0.9, 0.05, 0.3)
    )
    one = trained(task, FedAvg(), dpsgd=dpsgd, way="layers")
    assert_same(one, trained(task, FedAvg(), dpsgd=dpsgd, way="layers", chunk=4), absolute=3 * STEP_OF_THE_GRID)


SHAPES = {"image": (1, 16, 16), "signal": (1, 64), "tokens": (12,), "vector": (9,)}
LEAST = {"mobilenet": (3, 33, 33), "leaf-cnn": (3, 50, 50), "m5": (1, 1772)}
DEEP = {"resnet8", "resnet9", "resnet10", "fedevg-resnet10", "resnet10-energy", "resnet32", "resnet20", "vgg9", *LEAST}
NARROW: dict[str, dict[str, object]] = {name: {"width": 4} for name in DEEP if "res" in name or "vgg" in name}
LARGE = {"efficientnet-b0", "distilbert", "next-token-lstm", "leaf-cnn", "resnet32"}
"""Many layers, large inputs or a task of its own; a round of DP-SGD is tried elsewhere, and resnet20 is shorter."""


@pytest.mark.slow
@pytest.mark.parametrize("info", [one for one in models() if one.name not in LARGE], ids=lambda info: info.name)
def test_they_agree_for_every_model_with_and_without_dp_sgd(info):
    shape = SHAPES[info.kinds[-1]] if info.input_shape[-1] != 32 else (3, 16, 16)
    shape = LEAST.get(info.name, shape)
    vocabulary = 40 if info.kinds == ("tokens",) else None

    def model(seed):
        options = {**SMALL.get(info.name, {}), **NARROW.get(info.name, {})}
        return build(info.name, shape, 5, vocabulary=vocabulary, seed=seed, **options).double()

    task = federation(model, shape, sizes=(1, 6, 3), vocabulary=vocabulary)
    training = LocalTraining(batch_size=4, learning_rate=0.02, steps=1 if info.name in DEEP else 2)
    way = check_per_sample(FlatNetwork(task.model(0)), task.loss, *task.probe(3))
    assert_same(trained(task, FedAvg(), training=training), trained(task, FedAvg(), training=training, chunk=3))
    dpsgd = pf.DPSGD(noise_multiplier=0.0, sample_rate=0.4)
    one = trained(task, FedAvg(), dpsgd=dpsgd, way=way, training=training)
    assert_same(one, trained(task, FedAvg(), dpsgd=dpsgd, way=way, training=training, chunk=3))


def test_an_empty_batch_is_zero_or_pure_noise_in_a_stack_too(task):
    training = LocalTraining(batch_size=8, steps=4)
    rare = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.01)
    one = trained(task, FedAvg(), dpsgd=rare, way="layers", training=training)
    assert_same(one, trained(task, FedAvg(), dpsgd=rare, way="layers", training=training, chunk=7), absolute=1e-6)
    spread = torch.cat([result.upload["update"] for result in one.values()]).std() / (0.05 * 2 / 8)
    assert 0.9 < float(spread) < 1.1
    rate = {"parameters": flatten(task.model(0)), "rate": torch.tensor(0.002, dtype=torch.float64)}
    found = trained(task, pf.FedSampling(40), received=rate, chunk=7)
    assert_same(trained(task, pf.FedSampling(40), received=rate), found)
    assert any(float(result.upload["update"].abs().max()) == 0 for result in found.values())


def test_batches_larger_than_one_piece_agree():
    def linear(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 5)).double()

    task = federation(linear, (3,), sizes=(1300, 5, 600))
    for dpsgd in (None, pf.DPSGD(noise_multiplier=0.0, sample_rate=0.9)):
        training = LocalTraining(batch_size=5000, steps=2)
        way = None if dpsgd is None else "layers"
        one = trained(task, FedAvg(), dpsgd=dpsgd, way=way, training=training)
        assert_same(one, trained(task, FedAvg(), dpsgd=dpsgd, way=way, training=training, chunk=3))


def test_what_a_client_gets_does_not_depend_on_who_shares_its_chunk(task):
    whole = trained(task, FedAvg(), dpsgd=NOISY, way="layers", chunk=7)
    for chunk in (2, 3):
        other = trained(task, FedAvg(), dpsgd=NOISY, way="layers", chunk=chunk)
        assert_same(whole, other, absolute=STEP_OF_THE_GRID)


def test_a_nan_in_one_clients_data_touches_no_other_client(task):
    inputs = task.inputs.clone()
    inputs[task.clients[3][0]] = math.nan
    broken = replace(task, inputs=inputs)
    clean = trained(task, FedAvg(), chunk=7)
    found = trained(broken, FedAvg(), chunk=7)
    assert found[3].upload is None
    assert found[3].dropped == "sent a non-finite 'update'"
    for client in (0, 1, 2, 4, 5, 6):
        assert torch.equal(found[client].upload["update"], clean[client].upload["update"])
    one = trained(broken, FedAvg(), dpsgd=NOISY, way="layers")
    assert_same(one, trained(broken, FedAvg(), dpsgd=NOISY, way="layers", chunk=7), absolute=STEP_OF_THE_GRID)
    assert one[3].upload is not None


def features_by_class(network, inputs, targets):
    """[B, classes, 1 + features]: one sample's features and a 1 in the place of its class."""
    outputs = network.features(inputs)
    ones = torch.ones(len(inputs), 1, dtype=outputs.dtype)
    return nn.functional.one_hot(targets, 5)[..., None] * torch.cat([ones, outputs], 1)[:, None]


@dataclass(frozen=True)
class Prototypes(Algorithm):
    """Sends class prototypes, the mean loss and its size, and takes no gradient."""

    name: ClassVar[str] = "prototypes"

    def fields(self):
        return (Field("prototypes", "each", (5, 12)), Field("loss", "each", ()), Field("size", "each", ()))

    def begin(self, received, client_state, training):
        zero = received["parameters"].new_zeros
        return {
            **super().begin(received, client_state, training),
            "sums": zero(5, 13),
            "loss": zero(()),
            "size": zero(()),
        }

    def step(self, local, received, batch, client, training):
        local["sums"] += client.total(features_by_class, received["parameters"], batch)
        local["loss"] += client.total(client.loss, local["parameters"], batch)
        local["size"] = client.size()

    def finish(self, local, received, training):
        means = local["sums"][:, 1:] / local["sums"][:, :1].clamp_min(1)
        return {"prototypes": means, "loss": local["loss"] / local["size"], "size": local["size"]}


def test_steps_without_gradients_agree_and_are_noted_as_unprotected(task):
    training = LocalTraining(batch_size=8, epochs=1)
    one = trained(task, Prototypes(), training=training)
    found = trained(task, Prototypes(), training=training, chunk=4)
    assert_same(one, found)
    assert [float(one[client].upload["size"]) for client in range(7)] == list(SIZES)
    assert set(found[1].log.bare) == {BARE_TOTAL, BARE_SIZE}
    network = task.model(0).eval()
    rows = task.clients[5]
    with torch.no_grad():
        hidden, targets = network.features(task.inputs[rows]), task.targets[rows]
        loss = nn.functional.cross_entropy(network(task.inputs[rows]), targets)
    torch.testing.assert_close(found[5].upload["loss"], loss)
    torch.testing.assert_close(found[5].upload["prototypes"][2], hidden[targets == 2].mean(0))


def pulled(network, inputs, targets, centre, strength):
    """Cross-entropy plus the distance of the logits from a tensor of the client's and one that all share."""
    logits = network(inputs)
    return nn.functional.cross_entropy(logits, targets, reduction="none") + strength * ((logits - centre) ** 2).sum(1)


@dataclass(frozen=True)
class Pulled(FedAvg):
    """A loss that takes a tensor of ``local``."""

    name: ClassVar[str] = "pulled"

    def begin(self, received, client_state, training):
        local = super().begin(received, client_state, training)
        return {**local, "centre": received["parameters"][:5].clone()}

    def step(self, local, received, batch, client, training):
        given = {"centre": local["centre"], "strength": received["parameters"][7]}
        gradient = client.gradient(pulled, local["parameters"], batch, given)
        local["parameters"].sub_(gradient, alpha=training.learning_rate)
        local["centre"] = local["centre"] * 0.5


def test_a_loss_may_take_tensors_of_the_client(task):
    for dpsgd, way in ((None, None), (NOISY, "layers"), (NOISY, "vmap")):
        one = trained(task, Pulled(), dpsgd=dpsgd, way=way)
        assert_same(one, trained(task, Pulled(), dpsgd=dpsgd, way=way, chunk=4), absolute=STEP_OF_THE_GRID)
    plain = trained(task, FedAvg(), training=LocalTraining(batch_size=8, learning_rate=0.05, epochs=2))
    assert float((trained(task, Pulled())[1].upload["update"] - plain[1].upload["update"]).abs().max()) > 1e-4


@dataclass(frozen=True)
class Peeking(FedAvg):
    """Looks past the door."""

    name: ClassVar[str] = "peeking"

    def step(self, local, received, batch, client, training):
        local["parameters"].mul_(1 - batch.inputs.mean())


def test_a_stacked_step_has_no_data_but_through_the_door(task):
    with pytest.raises(AttributeError, match="a step's batch has no 'inputs'"):
        trained(task, Peeking(), chunk=3)


@dataclass(frozen=True)
class Late(FedAvg):
    """Creates state in a step."""

    name: ClassVar[str] = "late"

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        local["extra"] = local["parameters"] * 2


def test_state_that_a_step_creates_is_refused_in_one_sentence(task):
    with pytest.raises(ConfigError, match="late adds 'extra' to the client's state in a step; create it in begin"):
        trained(task, Late(), chunk=3)


def test_frozen_parameters_are_in_no_update(task):
    def frozen(seed):
        network = convolutional(seed)
        network.body[0].weight.requires_grad_(False)
        return network

    still = replace(task, model=frozen)
    training = LocalTraining(batch_size=8)
    for dpsgd, way in (
        (None, None),
        (pf.DPSGD(noise_multiplier=0.0), "layers"),
        (pf.DPSGD(noise_multiplier=0.0), "vmap"),
    ):
        one = trained(still, FedAvg(), dpsgd=dpsgd, way=way, training=training)
        assert_same(one, trained(still, FedAvg(), dpsgd=dpsgd, way=way, training=training, chunk=7))
        assert one[1].upload["update"].shape == (Layout.of(convolutional(0)).size - 54,)


class Memory:
    """A loss that runs out of memory the first ``times`` times."""

    def __init__(self, times):
        self.multiplicity = times

    def __call__(self, network, inputs, targets):
        if self.multiplicity > 0:
            self.multiplicity -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return nn.functional.cross_entropy(network(inputs), targets, reduction="none")


def test_when_memory_runs_out_the_chunk_is_halved_and_nothing_changes(task):
    expected = trained(task, FedAvg(), dpsgd=NOISY, way="layers")
    scarce = replace(task, loss=Memory(2))
    channel = RoundChannel.bare(FedAvg().fields(), NOISY)
    received = {"parameters": flatten(task.model(0))}
    with LoopEngine(scarce, FedAvg(), TRAINING, channel, way="layers", workers=1) as loop:
        engine = VectorisedEngine(loop, 7, "layers")
        results = list(engine.train(range(7), received, RoundContext(3, 1, NoiseSource.from_key(4), {})))
    assert_same(expected, {result.client: result for result in results}, absolute=STEP_OF_THE_GRID)
    assert engine.chunk == 1
    assert engine.notes == [
        "memory ran out with 7 clients at once; 3 from round 3 on",
        "memory ran out with 3 clients at once; 1 from round 3 on",
    ]


@pytest.mark.parametrize("algorithm", [FedAvg(), pf.Scaffold(), pf.ReBaFL(), pf.GRPFed()], ids=lambda one: one.name)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_an_ended_run_leaves_nothing_behind_that_refers_to_itself(engine, algorithm):
    """A sweep in one process would hold the data of all its runs until Python looks for cycles."""
    partition = pf.Pathological(6, classes_per_client=2, samples_per_client=60)
    task, seen = pf.load("digits", partition=partition, model="two-nn", seed=0), []
    gc.collect()
    gc.disable()
    try:
        pf.simulate(
            task,
            algorithm,
            rounds=1,
            execution=pf.Execution(engine=engine, workers=1),
            callbacks=[lambda simulation, line: seen.append(weakref.ref(simulation.engine))],
        )
        assert seen[0]() is None
        held = weakref.ref(task.inputs)
        del task
        assert held() is None
    finally:
        gc.enable()

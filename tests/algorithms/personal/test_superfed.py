"""SuPerFed in whole rounds: checks 1 to 4, 6, 7 and 9 of its specification, and the first half of 8.

Check 5 is in ``test_mixing.py``, 10 in ``tests/data/test_label_noise.py``, 11 in ``tests/metrics/test_calibration.py``,
the tiny runs of 8 and 12 in ``tests/examples/test_landscape.py``; claims are in ``test_superfed_claims.py``.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call

import privfl as pf
from privfl.algorithms.personal.interpolation import alignment
from privfl.algorithms.personal.superfed import LAMBDAS, SuPerFed
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import RoundContext
from privfl.errors import ConfigError
from privfl.models import Network, build
from privfl.models.flat_network import flatten
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.noise.source import NoiseSource
from privfl.randomness import torch_stream
from tests.algorithms.federation import digits_task, task_of

ORACLE = json.loads((Path(__file__).parents[2] / "oracles" / "superfed.json").read_text())
SIZES = (12, 20, 9, 15)
TRAINING = pf.LocalTraining(
    learning_rate=0.1, batch_size=6, epochs=2, momentum=0.9, weight_decay=0.01, learning_rate_decay=0.9
)
PAIR = pf.FixedCohort(2)
MODES = ("mm", "lm")


@dataclass(frozen=True)
class AtFederatedEnd(SuPerFed):
    """λ ≡ 0: what the paper's phase I is, but in phase II."""

    def share(self, batch):
        return torch.zeros_like(super().share(batch))


def small(seed):
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(64, 9), nn.GroupNorm(3, 9), nn.Tanh())
    return Network(body, nn.Linear(9, 10)).double()


@pytest.fixture(scope="module")
def task():
    return replace(digits_task(SIZES), model=small)


def simulate(task, algorithm, rounds=4, **options):
    """The run, and after every round the round's number, what clients keep, and the model."""
    seen = []

    def watch(simulation, line):
        client_state = {
            client: tensors["personal"].clone() for client, tensors in simulation.client_state.items() if tensors
        }
        seen.append((line, client_state, simulation.server["parameters"].clone()))

    options = {
        "training": TRAINING,
        "execution": pf.Execution(workers=1, engine="loop"),
        "cohort": PAIR,
        "seed": 1,
        **options,
    }
    return pf.simulate(task, algorithm, rounds=rounds, callbacks=[watch], **options), seen


def bound(task, algorithm, rounds=10, seed=0):
    return algorithm.bind(task.context(rounds, seed))


def trained(task, algorithm, *, training=TRAINING, client_state=None, number=0, dpsgd=None, clients=None, start=None):
    """What clients send and keep in round ``number``, straight from the engine."""
    algorithm = bound(task, algorithm)
    server = algorithm.start(flatten(task.model(0)) if start is None else start)
    received = algorithm.broadcast(algorithm.begin_round(server, number))
    channel = RoundChannel.bare(algorithm.fields(), dpsgd)
    way = None if dpsgd is None else "layers"
    chosen = range(len(task.clients)) if clients is None else clients
    with LoopEngine(task, algorithm, training, channel, way=way, workers=1) as engine:
        context = RoundContext(number, 0, NoiseSource.from_key(3), client_state or {})
        return list(engine.train(chosen, received, context))


@pytest.mark.parametrize("mode", MODES)
def test_at_the_federated_end_without_regularisers_it_is_fedavg_bit_for_bit(task, mode):
    run, _ = simulate(task, AtFederatedEnd(mode=mode, start_fraction=0.0, mu=0.0, nu=0.0))
    assert torch.equal(run.parameters, simulate(task, pf.FedAvg())[0].parameters)


@pytest.mark.parametrize("mode", MODES)
def test_at_the_federated_end_its_mu_is_half_of_fedproxs(task, mode):
    run, _ = simulate(task, AtFederatedEnd(mode=mode, start_fraction=0.0, mu=0.3, nu=0.0))
    assert torch.equal(run.parameters, simulate(task, pf.FedProx(mu=0.6))[0].parameters)
    only_phase_one, seen = simulate(task, SuPerFed(mode=mode, start_fraction=1.0, mu=0.3))
    assert torch.equal(only_phase_one.parameters, run.parameters)
    assert [line["phase"] for line, _, _ in seen] == [1.0] * 4
    assert "never mixed" in " ".join(only_phase_one.summary["warnings"])
    assert "never mixed" not in " ".join(run.summary["warnings"])


def twin(task, client, algorithm, training, start, personal, sizes):
    """Both end points by autograd of the whole objective (3) and torch.optim.SGD: shares no code with privfl's."""
    network = task.model(0)
    names, shapes = zip(*((name, p.shape) for name, p in network.named_parameters()), strict=True)
    u, v = start.clone().requires_grad_(), personal.clone().requires_grad_()
    optimizer = torch.optim.SGD(
        [u, v], lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    rows, order = task.clients[client], torch_stream(0, "batches", 0, client)
    draws, history = torch_stream(0, "algorithm", 0, client), []
    for _ in range(training.epochs):
        for batch in rows[torch.randperm(len(rows), generator=order)].split(training.batch_size):
            number = 1 if algorithm.mode == "mm" else len(sizes)
            lam = torch.rand(number, generator=draws, dtype=torch.float64)
            share = lam[0] if algorithm.mode == "mm" else torch.repeat_interleave(lam, torch.tensor(sizes))
            mixed = (1 - share) * u + share * v
            parts = torch.split(mixed, [shape.numel() for shape in shapes])
            views = {name: part.view(shape) for name, shape, part in zip(names, shapes, parts, strict=True)}
            loss = nn.functional.cross_entropy(functional_call(network, views, task.inputs[batch]), task.targets[batch])
            cosine = nn.functional.cosine_similarity(u, v, dim=0)
            whole = loss + algorithm.mu * (u - start).square().sum() + algorithm.orthogonality * cosine.square()
            if not history:
                history.append((share, torch.autograd.grad(loss, (u, v), retain_graph=True)))
            optimizer.zero_grad()
            whole.backward()
            optimizer.step()
    return u.detach(), v.detach(), history[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "training", [TRAINING, pf.LocalTraining(learning_rate=1.0, batch_size=100)], ids=["many", "one"]
)
def test_both_end_points_follow_autograd_and_torch_sgd(task, mode, training):
    algorithm = SuPerFed(mode=mode, start_fraction=0.0, mu=0.05, nu=3.0)
    start = flatten(task.model(0)) + 0.05
    for result in trained(task, algorithm, training=training, start=start):
        personal = bound(task, algorithm).initial_client_state(result.client)["personal"]
        u, v, (share, gradients) = twin(task, result.client, algorithm, training, start, personal, [585, 18, 100])
        for found, expected in (
            (result.upload["update"], u - start),
            (result.client_state["personal"] - personal, v - personal),
        ):
            assert float((found - expected).norm() / expected.norm()) < 1e-6
        for ours, theirs in zip(*(gradient.split([585, 18, 100]) for gradient in gradients), strict=True):
            assert float(ours.norm()) > 0  # λ_j·∂/∂w^f_j = (1 − λ_j)·∂/∂w^l_j
            assert float(theirs.norm()) > 0
        torch.testing.assert_close(share * gradients[0], (1 - share) * gradients[1], rtol=0, atol=1e-12)


def test_with_a_single_layer_one_lambda_per_layer_is_one_lambda():
    task = digits_task(SIZES)
    runs = [simulate(task, SuPerFed(mode=mode, start_fraction=0.25, nu=1.0)) for mode in MODES]
    assert torch.equal(runs[0][0].parameters, runs[1][0].parameters)
    for client, personal in runs[0][1][-1][1].items():
        assert torch.equal(personal, runs[1][1][-1][1][client])


@pytest.mark.parametrize(("fraction", "rounds", "first"), [(0.4, 5, 2), (0.5, 5, 2), (0.29, 100, 29), (0.0, 3, 0)])
def test_phase_two_begins_with_the_round_after_the_fraction(task, fraction, rounds, first):
    algorithm = bound(task, SuPerFed(start_fraction=fraction), rounds)
    server = algorithm.start(flatten(task.model(0)))
    phases = [algorithm.server_metrics(algorithm.begin_round(server, number))["phase"] for number in range(rounds)]
    assert phases == [1.0] * first + [2.0] * (rounds - first)


def test_a_personal_end_point_rests_in_phase_one_and_while_its_client_is_not_chosen(task):
    _, seen = simulate(task, SuPerFed(start_fraction=0.5), rounds=8, cohort=pf.FixedCohort(1))
    algorithm, before = bound(task, SuPerFed(), 8, 1), {}
    moved = set()
    for line, client_state, _ in seen:
        chosen = [
            client
            for client in client_state
            if client not in before or not torch.equal(client_state[client], before[client])
        ]
        for client, personal in client_state.items():
            initial = algorithm.initial_client_state(client)["personal"]
            if line["phase"] == 1.0:
                assert torch.equal(personal, initial)
            elif client in chosen:
                moved.add(client)
                assert not torch.equal(personal, initial)
        if line["phase"] == 2.0:
            assert len(chosen) == 1
        before = client_state
    assert moved


def test_an_upload_is_as_long_as_fedavgs_and_holds_nothing_of_the_personal_end_point(task):
    (ours, *_), (theirs, *_) = (
        trained(task, algorithm, clients=[1]) for algorithm in (SuPerFed(start_fraction=0.0), pf.FedAvg())
    )
    assert bound(task, SuPerFed()).fields() == pf.FedAvg().fields()
    assert SuPerFed().weights() == pf.FedAvg().weights() == "size"
    assert ours.upload.keys() == theirs.upload.keys() == {"update"}
    payload, usual = (result.upload["update"].numpy().tobytes() for result in (ours, theirs))
    assert len(payload) == len(usual)
    initial = bound(task, SuPerFed()).initial_client_state(1)["personal"]
    for secret in (ours.client_state["personal"], initial, ours.client_state["personal"] - initial):
        values = secret[secret.abs() > 1e-6]  # a lone zero occurs anywhere
        assert not [value for value in values.numpy() if value.tobytes() in payload]


@pytest.mark.parametrize("name", ["two-nn", "two-cnn"])
def test_initial_end_points_are_nearly_orthogonal_and_no_two_clients_have_the_same(name):
    """|c| < 5σ_c with σ_c from each layer's variance; sums of many independent terms: 6e-7 for each of 8 clients."""
    options = {"bias": False}
    task = pf.Task.from_arrays(
        torch.zeros(40, 1, 28, 28),
        torch.arange(40) % 10,
        partition=pf.IID(8),
        model=lambda: build(name, (1, 28, 28), 10, **options),
    )
    algorithm = bound(task, SuPerFed())
    layout, federated = algorithm.context.layout, flatten(task.model(0)).double()
    parts = layout.views(federated)
    deviation = math.sqrt(sum(part.numel() * float(part.var()) ** 2 for part in parts)) / float(
        federated.square().sum()
    )
    personal = [algorithm.initial_client_state(client)["personal"] for client in range(8)]
    cosines = [float(alignment(federated, each.double()).cosine) for each in personal]
    assert max(map(abs, cosines)) < 5 * deviation
    assert len(set(cosines)) == 8
    assert torch.equal(personal[3], algorithm.initial_client_state(3)["personal"])


@pytest.mark.parametrize(("mode", "layers"), [("mm", 1), ("lm", 3)])
def test_lambda_is_uniform_with_one_number_for_each_batch_or_layer(mode, layers):
    """Mean and variance of n ≥ 4,000 numbers within five standard errors: a false alarm of 6e-7 each."""
    generator = torch.Generator().manual_seed(0)
    task = task_of(torch.randn(60, 4, generator=generator, dtype=torch.float64), torch.arange(60) % 10, [60])
    seen = []

    @dataclass(frozen=True)
    class Watched(SuPerFed):
        def share(self, batch):
            seen.append(batch.uniform.clone())
            return super().share(batch)

    def model(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 10)).double()

    task = replace(task, model=model)
    training = pf.LocalTraining(learning_rate=0.01, batch_size=1, steps=4_000 if mode == "mm" else 1_400)
    trained(task, Watched(mode=mode, start_fraction=0.0), training=training)
    drawn = torch.stack(seen)
    assert drawn.shape == (training.steps, layers)
    n = drawn.numel()
    assert n >= 4_000
    assert 0 <= float(drawn.min()) <= float(drawn.max()) < 1
    assert abs(float(drawn.mean()) - 1 / 2) < 5 / math.sqrt(12 * n)
    assert abs(float(drawn.var()) - 1 / 12) < 5 / math.sqrt(180 * n)


def test_the_personal_models_lie_on_the_segment_with_the_middle_first(task):
    algorithm = bound(task, SuPerFed())
    server = algorithm.start(flatten(task.model(0)))
    client_state = algorithm.initial_client_state(2)
    models = algorithm.personal(server, client_state)
    assert next(iter(models)) == "lambda-0.5"
    assert sorted(LAMBDAS) == [step / 10 for step in range(11)]
    assert torch.equal(models["lambda-0.0"], server["parameters"])
    assert torch.equal(models["lambda-1.0"], client_state["personal"])
    torch.testing.assert_close(models["lambda-0.3"], 0.7 * server["parameters"] + 0.3 * client_state["personal"])


@pytest.mark.parametrize("mode", MODES)
def test_a_cosine_over_random_parameters_leaves_the_scales_of_norms_alone(task, mode):
    """With λ ≡ 0 only ν moves w^l, and it must not move what starts equal everywhere."""
    training = pf.LocalTraining(learning_rate=0.1, batch_size=6)
    for cos_over, moves in (("random", False), ("all", True)):
        algorithm = AtFederatedEnd(mode=mode, start_fraction=0.0, nu=2.0, cos_over=cos_over)
        (result,) = trained(task, algorithm, training=training, clients=[0])
        initial = bound(task, algorithm).initial_client_state(0)["personal"]
        views = bound(task, algorithm).context.layout.named_views(result.client_state["personal"] - initial)
        assert bool(views["body.1.weight"].any()) == moves
        assert bool(views["body.0.weight"].any())


def test_the_unsquared_proximity_survives_its_first_step_and_then_pulls(task):
    start = flatten(task.model(0))
    far, near = (
        torch.stack([r.upload["update"] for r in trained(task, SuPerFed(mu=mu, prox="norm"), start=start)])
        for mu in (0.0, 0.5)
    )
    assert bool(torch.isfinite(near).all())
    assert float(near.norm()) < float(far.norm())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mode": "nn"}, "superfed's mode"),
        ({"prox": "cubed"}, "superfed's prox"),
        ({"cos_over": "some"}, "superfed's cos_over"),
        ({"mu": -1.0}, "superfed's mu is -1.0"),
        ({"nu": math.inf}, "superfed's nu is inf"),
        ({"start_fraction": 1.5}, "superfed's start_fraction is 1.5"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        SuPerFed(**settings)


def test_the_defaults_are_the_papers():
    settings = ORACLE["settings"]
    for mode in MODES:
        algorithm = SuPerFed(mode=mode)
        assert (algorithm.mu, algorithm.orthogonality) == (settings["mu"], settings["nu"][mode])
        assert algorithm.begins == settings["start"][mode]["100"]

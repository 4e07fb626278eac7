"""MOON: whole rounds against a plain twin, its limits, and that the model a client keeps costs nothing under DP-SGD."""

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.algorithms.label_skew.moon import MOON, contrastive_terms
from privfl.engine.loop import LoopEngine
from privfl.engine.workspace import RoundContext
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.models import Network
from privfl.models.flat_network import flatten
from privfl.privacy.accounting.release import BARE_TRAINING
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.contract import Batch
from privfl.privacy.noise.source import NoiseSource
from privfl.randomness import torch_stream
from tests.algorithms.federation import digits_task, layered_task, uploads
from tests.algorithms.label_skew.federation import of_equal_classes

SIZES = (12, 20, 9, 1, 15)
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=6, epochs=2, momentum=0.9, weight_decay=0.01)
HALF = pf.Bernoulli(0.5)


@pytest.fixture(scope="module")
def task():
    return layered_task(SIZES)


def run(task, algorithm, rounds=4, **options):
    options = {
        "training": TRAINING,
        "availability": HALF,
        "execution": pf.Execution(workers=1, engine="loop", checkpoint_seconds=0.0),
        **options,
    }
    return pf.simulate(task, algorithm, rounds=rounds, **options)


def loaded(task, flat):
    network = task.model(0)
    nn.utils.vector_to_parameters(flat.clone(), network.parameters())
    return network


def mean_cross_entropy(logits, targets):
    return F.cross_entropy(logits, targets)


def twin(task, moon, rounds, seed=0, objective=mean_cross_entropy):
    """The federation in plain PyTorch, ℓ_con as the cross-entropy of two similarities against the first of them."""
    start = flatten(task.model(seed))
    initial, previous, cosine = start, {}, nn.CosineSimilarity(dim=-1)
    for number in range(rounds):
        moved, seen = torch.zeros_like(start), 0
        for client in HALF.active(number, len(task.clients), seed).tolist():
            rows, model = task.clients[client], loaded(task, start)
            received = loaded(task, start)
            before = previous.get(client, initial if moon.first == "initial" else None)
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
            order = torch_stream(seed, "batches", number, client)
            for _ in range(TRAINING.epochs):
                shuffled = rows[torch.randperm(len(rows), generator=order)]
                for batch in shuffled.split(TRAINING.batch_size):
                    inputs = task.inputs[batch]
                    features = model.features(inputs)
                    similar = [cosine(features, received.features(inputs).detach())]
                    if before is not None:
                        similar.append(cosine(features, loaded(task, before).features(inputs).detach()))
                    logits = torch.stack(similar, 1) / moon.temperature
                    contrast = F.cross_entropy(logits, torch.zeros(len(batch), dtype=torch.long))
                    optimizer.zero_grad()
                    (objective(model(inputs), task.targets[batch]) + moon.mu * contrast).backward()
                    optimizer.step()
            previous[client] = flatten(model)
            moved += len(rows) * (previous[client] - start)
            seen += len(rows)
        start = start + moved / seen
    return start, previous


VARIANTS = {"none": MOON(mu=5.0), "initial": MOON(mu=5.0, first="initial"), "warm": MOON(mu=1.0, temperature=2.0)}


@pytest.mark.parametrize("moon", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_four_rounds_with_clients_that_come_and_go_are_those_of_a_plain_twin(task, moon, engine):
    expected, previous = twin(task, moon, 4)
    client_state = {}
    found = run(
        task,
        moon,
        execution=pf.Execution(engine=engine),
        callbacks=[lambda simulation, line: client_state.update(simulation.client_state)],
    )
    torch.testing.assert_close(found.parameters, expected, rtol=0, atol=1e-10)
    assert client_state.keys() == previous.keys()
    for client, tensors in client_state.items():
        assert set(tensors) == {"parameters"}
        torch.testing.assert_close(tensors["parameters"], previous[client], rtol=0, atol=1e-10)


def of_equal_classes_by_hand(logits, targets):
    counts = [(targets == target).sum() for target in targets]
    return sum(F.cross_entropy(z, y) / n for z, y, n in zip(logits, targets, counts, strict=True)) / len(targets)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_loss_that_couples_the_rows_of_a_batch_may_be_the_tasks(task, engine):
    coupled = replace(task, loss=of_equal_classes)
    expected, _ = twin(task, MOON(mu=5.0), 3, objective=of_equal_classes_by_hand)
    found = run(coupled, MOON(mu=5.0), 3, execution=pf.Execution(engine=engine)).parameters
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert float((found - run(task, MOON(mu=5.0), 3).parameters).abs().max()) > 1e-3


def test_the_variants_differ_so_that_the_twin_tells_them_apart(task):
    ends = [run(task, moon).parameters for moon in (*VARIANTS.values(), pf.FedAvg())]
    gaps = [float((one - other).abs().max()) for i, one in enumerate(ends) for other in ends[:i]]
    assert min(gaps) > 1e-5


def test_without_its_term_it_is_fedavg(task):
    found, expected = (run(task, one).parameters for one in (MOON(mu=0.0, first="initial"), pf.FedAvg()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("first", ["none", "initial"])
def test_the_first_round_of_all_is_fedavgs(task, first):
    found, expected = (run(task, one, 1).parameters for one in (MOON(mu=5.0, first=first), pf.FedAvg()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_first_round_of_a_late_client_is_fedavgs_unless_it_starts_from_the_initial_model(task):
    later = flatten(task.model(1))
    for first, same in (("none", True), ("initial", False)):
        late, plain = (
            uploads(task, one, {"parameters": later}, training=TRAINING, clients=[1])[0].upload["update"]
            for one in (MOON(mu=5.0, first=first), pf.FedAvg())
        )
        assert (float((late - plain).abs().max()) < 1e-12) == same


def test_equal_models_give_ln_2_and_no_gradient():
    features = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    leaf = (features + 1).requires_grad_()
    terms = contrastive_terms(leaf, features, features, 0.5)
    torch.testing.assert_close(terms.detach(), torch.full((7,), math.log(2), dtype=torch.float64))
    assert float(torch.autograd.grad(terms.sum(), leaf)[0].abs().max()) < 1e-15


@pytest.mark.parametrize("temperature", [0.05, 0.5, 3.0])
def test_the_contrastive_term_is_the_printed_one(temperature):
    generator = torch.Generator().manual_seed(1)
    z, near, far = (torch.randn(6, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    for row, term in enumerate(contrastive_terms(z, near, far, temperature)):
        up, down = (
            math.exp(float(z[row] @ other[row] / (z[row].norm() * other[row].norm())) / temperature)
            for other in (near, far)
        )
        assert float(term) == pytest.approx(-math.log(up / (up + down)), rel=1e-12)


def test_a_feature_of_norm_zero_has_a_finite_term_and_gradient():
    leaf = torch.zeros(2, 3, requires_grad=True)
    terms = contrastive_terms(leaf, torch.zeros(2, 3), torch.ones(2, 3), 0.5)
    (gradient,) = torch.autograd.grad(terms.sum(), leaf)
    assert bool(terms.isfinite().all() and gradient.isfinite().all())
    torch.testing.assert_close(terms.detach(), torch.full((2,), math.log(2)))


def test_frozen_features_are_those_of_the_model_in_evaluation_mode():
    def dropping(seed):
        torch.manual_seed(seed)
        return Network(nn.Sequential(nn.Linear(64, 12), nn.Dropout(0.5)), nn.Linear(12, 10)).double()

    task = replace(digits_task((5,)), model=dropping)
    moon, other = MOON().bind(task.context(1, 0)), dropping(7)
    found = moon.frozen.of(flatten(other).requires_grad_(), task.inputs)
    assert not found.requires_grad
    torch.testing.assert_close(found, other.eval().features(task.inputs).detach())
    assert not torch.equal(found, moon.frozen.of(flatten(dropping(8)), task.inputs))


def test_an_algorithm_of_one_run_knows_the_network_of_the_next(task):
    moon = MOON().bind(task.context(1, 0))
    assert moon.frozen.of(flatten(task.model(0)), task.inputs).shape == (len(task.inputs), 12)
    wider = replace(task, model=lambda seed: Network(nn.Linear(64, 5), nn.Linear(5, 10)).double())
    again = moon.bind(wider.context(1, 0))
    assert again.frozen.of(flatten(wider.model(0)), task.inputs).shape == (len(task.inputs), 5)
    assert moon.frozen.of(flatten(task.model(0)), task.inputs).shape == (len(task.inputs), 12)


def test_a_client_sends_its_update_alone_and_keeps_the_model_it_ended_with(task):
    start = flatten(task.model(0))
    for result in uploads(task, MOON(), {"parameters": start}, training=TRAINING):
        assert {name: value.numel() for name, value in result.upload.items()} == {"update": len(start)}
        torch.testing.assert_close(
            result.client_state["parameters"], start + result.upload["update"], rtol=0, atol=1e-15
        )


def test_permuting_clients_changes_nothing_but_rounding(task):
    permuted = replace(task, clients=ClientIndex.of([task.clients[c].numpy() for c in (3, 1, 4, 0, 2)]))
    training = pf.LocalTraining(learning_rate=0.2, batch_size=10**6, epochs=2)
    runs = [run(one, MOON(mu=5.0), 3, training=training, availability=None) for one in (task, permuted)]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_an_interrupted_run_goes_on_with_the_same_previous_models(task, tmp_path):
    def stop(simulation, line):
        if line["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(task, MOON(mu=5.0), out=tmp_path / "run", callbacks=[stop])
    resumed = run(task, MOON(mu=5.0), out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.parameters, run(task, MOON(mu=5.0)).parameters)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mu": -1.0}, "moon's mu is -1.0"),
        ({"temperature": 0.0}, "moon's temperature is 0.0"),
        ({"first": "received"}, "first"),
        ({"weighting": "sise"}, "moon's weighting is 'sise'"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        MOON(**settings)


def test_a_network_without_features_is_refused_before_any_work():
    with pytest.raises(ConfigError, match="the model Linear has no feature_dim"):
        run(digits_task(SIZES), MOON(), 1)


class Replaying:
    """A door without data: it gives what was noted."""

    loss = None

    def __init__(self, tape):
        self.given = list(tape)

    def gradient(self, loss, parameters, batch, given):
        return self.given.pop(0).clone()


@dataclass(frozen=True)
class Watched(MOON):
    tape: list = field(default_factory=list)

    def step(self, local, received, batch, client, training):
        def noting(*arguments):
            self.tape.append(client.gradient(*arguments).clone())
            return self.tape[-1].clone()

        super().step(local, received, batch, SimpleNamespace(loss=client.loss, gradient=noting), training)


def trained(task, algorithm, client, dpsgd, training, client_state):
    algorithm = algorithm.bind(task.context(3, 0))
    channel, received = RoundChannel.bare(algorithm.fields(), dpsgd), {"parameters": flatten(task.model(0))}
    with LoopEngine(task, algorithm, training, channel, way="layers", workers=1) as engine:
        context = RoundContext(1, 0, NoiseSource.from_key(3), client_state)
        return next(iter(engine.train([client], received, context)))


def test_update_and_kept_model_are_a_function_of_noisy_gradients_and_public_values(task):
    training, dpsgd = replace(TRAINING, steps=4), pf.DPSGD(noise_multiplier=1.0, sample_rate=0.3)
    client_state, watched = {1: {"parameters": flatten(task.model(5))}}, Watched(mu=5.0)
    result = trained(task, watched, 1, dpsgd, training, client_state)
    assert len(watched.tape) == 4  # one gradient passes the door in a step
    assert sum(result.log.noisy.values()) == 4
    assert not result.log.bare
    moon, received = MOON(mu=5.0).bind(task.context(3, 0)), {"parameters": flatten(task.model(0))}
    local, nothing = moon.begin(received, client_state[1], training), torch.empty(0)
    local["parameters"] = local["parameters"].clone()
    door = Replaying(watched.tape)
    for _ in list(watched.tape):
        batch = Batch(lambda: pytest.fail("a batch was counted"), nothing, nothing, nothing)
        moon.step(local, received, batch, door, training)
    assert torch.equal(moon.finish(local, received, training)["update"], result.upload["update"])
    assert torch.equal(local["parameters"], result.client_state["parameters"])


def test_one_example_moves_a_step_by_no_more_than_the_clipping_norm(task):
    dpsgd = pf.DPSGD(noise_multiplier=0.0, sample_rate=1.0, max_grad_norm=0.2)
    training = pf.LocalTraining(learning_rate=1.0, batch_size=8, steps=1)
    client_state = {0: {"parameters": flatten(task.model(5))}}
    whole = trained(task, MOON(mu=50.0), 0, dpsgd, training, client_state).upload["update"]
    moved = []
    for left_out in range(SIZES[0]):
        rows = task.clients[0][torch.arange(SIZES[0]) != left_out]
        alone = replace(task, clients=ClientIndex.of([rows.numpy()]))
        moved.append(
            float((trained(alone, MOON(mu=50.0), 0, dpsgd, training, client_state).upload["update"] - whole).norm())
        )
    assert 0.5 * 0.2 / 8 < max(moved) <= 0.2 / 8 * (1 + 1e-9)


def test_dp_sgd_claims_for_it_what_it_claims_for_fedavg(task):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
    cells = []
    for algorithm in (MOON(weighting="uniform"), pf.FedAvg(weighting="uniform")):
        statement = run(task, algorithm, 2, privacy=privacy).statement
        cells.append([statement.cell("sample", observer).epsilon for observer in ("server", "public")])
    assert cells[0] == cells[1]
    assert all(0 < epsilon < math.inf for epsilon in cells[0])


def test_client_level_noise_claims_for_it_what_it_claims_for_fedavg(task):
    privacy = pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0)])
    epsilons = [
        run(task, algorithm, 2, privacy=privacy).statement.cell("client", "public").epsilon
        for algorithm in (MOON(weighting="uniform"), pf.FedAvg(weighting="uniform"))
    ]
    assert epsilons[0] == epsilons[1] < math.inf


def test_without_a_mechanism_nothing_is_claimed_for_the_reasons_that_fedavg_has(task):
    ours, theirs = (run(task, algorithm, 2).statement for algorithm in (MOON(), pf.FedAvg()))
    for unit in ("sample", "client"):
        for observer in ("server", "public"):
            assert ours.cell(unit, observer).epsilon == math.inf
            assert ours.cell(unit, observer).reasons == theirs.cell(unit, observer).reasons
    assert BARE_TRAINING in " ".join(ours.cell("sample", "server").reasons)


def test_noise_on_the_sum_alone_would_leave_the_kept_model_bare_and_is_refused(task):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2, noise_at="server"))
    with pytest.raises(ConfigError, match="sums of per-sample gradients"):
        run(task, MOON(weighting="uniform"), 1, privacy=privacy)

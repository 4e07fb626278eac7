"""ReBaFL and BSM-FedAvg in whole rounds: a twin on torch.optim, checks 5, 7 and 8 of the specification, and claims."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from torch import nn

import privfl as pf
from privfl.algorithms.label_skew.bsm_fedavg import BalancedFedAvg
from privfl.algorithms.label_skew.rebafl import ReBaFL
from privfl.data.catalog import load_dataset
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models import Network
from privfl.models.flat_network import flatten
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.randomness import torch_stream
from tests.algorithms.federation import uploads

HELD = ((0, 1), (2, 3), (1, 4), (5, 6), (7, 8), (9,), (3, 8))
"""Classes that each client holds; client 5 has a single one."""
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=12, epochs=2, momentum=0.5, weight_decay=0.01)
HALF = pf.Bernoulli(0.5)


def network(seed):
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(64, 7), nn.Tanh())
    return Network(body, nn.Linear(7, 10)).double()


@pytest.fixture(scope="module")
def task():
    """Real digits in float64: clients of two classes, of different sizes, and one with a single class."""
    data = load_dataset("digits")
    rng, parts = np.random.default_rng(1), []
    for client, classes in enumerate(HELD):
        mine = np.flatnonzero(np.isin(data.targets.numpy(), classes))
        parts.append(rng.permutation(mine)[: 20 + 5 * client])
    rows, bounds = np.concatenate(parts), np.cumsum([0, *map(len, parts)])
    index = ClientIndex.of([np.arange(low, high) for low, high in pairwise(bounds)])
    inputs = data.inputs.flatten(1).double()
    return Task("digits", inputs[rows], data.targets[rows], index, inputs[:50], data.targets[:50], 10, network, "tanh")


def run(task, algorithm, rounds=4, **options):
    options = {
        "training": TRAINING,
        "availability": HALF,
        "execution": pf.Execution(workers=1, engine="loop", checkpoint_seconds=0.0),
        **options,
    }
    return pf.simulate(task, algorithm, rounds=rounds, **options)


def prior_of(labels, epsilon):
    counts = np.bincount(np.asarray(labels, dtype=int), minlength=10)
    return torch.from_numpy((1 - epsilon) * counts / counts.sum() + epsilon / 10)


def batch_objective(model, inputs, targets, prior, prototypes, rebafl):
    """Equation (9) for one batch, row by row; ``prototypes`` is a dictionary, or None while augmentation is off."""
    features = model.features(inputs)
    objective = F.cross_entropy(model.head(features) + prior.log(), targets)
    if prototypes is None:
        return objective
    available, rows = sorted(prototypes), []
    for place, (h, label) in enumerate(zip(features.detach(), targets.tolist(), strict=True)):
        cycling = rebafl.aug_missing == "cycle_available"
        target = available[place % len(available)] if cycling else place % 10
        if target in prototypes and label in prototypes:
            rows.append((prototypes[target] + rebafl.lam * (h - prototypes[label]), target))
        elif rebafl.aug_missing != "drop":
            rows.append((h, label))
    if not rows:
        return objective
    labels = torch.tensor([label for _, label in rows])
    logits = model.head(torch.stack([h for h, _ in rows])) + prior_of(labels, rebafl.epsilon).log()
    return objective + rebafl.mu * F.cross_entropy(logits, labels)


def class_means(model, inputs, targets):
    with torch.no_grad():
        features = model.features(inputs)
    return {label: features[targets == label].mean(0) for label in sorted(set(targets.tolist()))}


def twin(task, rebafl, rounds, seed=0):
    """The federation in plain PyTorch, from the specification's pseudocode; parameters and prototypes."""
    model = network(seed)
    start, prototypes = flatten(model), {}
    for number in range(rounds):
        moved, sums, counts, seen = torch.zeros_like(start), {}, {}, 0
        for client in HALF.active(number, len(task.clients), seed).tolist():
            rows = task.clients[client]
            nn.utils.vector_to_parameters(start.clone(), model.parameters())
            held = sorted(set(task.targets[rows].tolist()))
            on = bool(prototypes) and rebafl.mu > 0 and (len(held) > 1 or rebafl.proto_source != "code")
            own = class_means(model, task.inputs[rows], task.targets[rows]) if rebafl.proto_source == "paper" else {}
            serving = {**prototypes, **own} if on else None
            prior = prior_of(task.targets[rows], rebafl.epsilon)
            optimizer = torch.optim.SGD(
                model.parameters(), TRAINING.learning_rate, TRAINING.momentum, weight_decay=TRAINING.weight_decay
            )
            order = torch_stream(seed, "batches", number, client)
            for _ in range(TRAINING.epochs):
                shuffled = rows[torch.randperm(len(rows), generator=order)]
                for batch in shuffled.split(TRAINING.batch_size):
                    optimizer.zero_grad()
                    batch_objective(model, task.inputs[batch], task.targets[batch], prior, serving, rebafl).backward()
                    optimizer.step()
            moved += len(rows) * (flatten(model) - start)
            seen += len(rows)
            if rebafl.proto_source == "code" and len(held) < 2:
                continue
            for label, mean in class_means(model, task.inputs[rows], task.targets[rows]).items():
                there = int((task.targets[rows] == label).sum())
                if there >= rebafl.n_min:
                    sums[label] = sums.get(label, 0) + there * mean
                    counts[label] = counts.get(label, 0) + there
        start = start + moved / seen
        fresh = {label: sums[label] / counts[label] for label in sums}
        prototypes = {**prototypes, **fresh} if rebafl.proto_memory == "last" else fresh
    return start, prototypes


VARIANTS = {
    "as in the paper": ReBaFL(mu=0.3),
    "as released": ReBaFL(mu=0.5, proto_source="code"),
    "received prototypes alone": ReBaFL(mu=0.5, proto_source="global_only", epsilon=0.1),
    "dropping": ReBaFL(mu=0.5, aug_missing="drop", proto_source="global_only"),
    "cycling": ReBaFL(mu=0.5, aug_missing="cycle_available", lam=0.4),
    "remembering, from two samples on": ReBaFL(mu=0.5, proto_memory="last", n_min=2),
    "withholding small classes": ReBaFL(mu=0.5, n_min=14),
    "feature augmentation alone": ReBaFL(mu=0.5, epsilon=1.0),
    "relaxed soft-max alone": ReBaFL(mu=0.0),
}


@pytest.mark.parametrize("rebafl", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_four_rounds_under_drop_out_are_those_of_a_plain_twin(task, rebafl, engine):
    expected, prototypes = twin(task, rebafl, 4)
    found = run(task, rebafl, execution=pf.Execution(engine=engine))
    torch.testing.assert_close(found.parameters, expected, rtol=0, atol=1e-10)
    known = [line["known_prototypes"] for line in found.metrics if "known_prototypes" in line]
    assert known[-1:] == ([len(prototypes)] if rebafl.mu else [])


def test_the_variants_differ_so_that_the_twin_tells_them_apart(task):
    ends = [run(task, rebafl).parameters for rebafl in VARIANTS.values()]
    gaps = [float((one - other).abs().max()) for i, one in enumerate(ends) for other in ends[:i]]
    assert min(gaps) > 1e-6


def test_without_either_part_it_is_fedavg(task):
    found, expected = (run(task, algorithm).parameters for algorithm in (ReBaFL(mu=0.0, epsilon=1.0), pf.FedAvg()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_without_smoothing_and_augmentation_it_is_bsm_fedavg(task):
    exact = run(task, BalancedFedAvg()).parameters
    torch.testing.assert_close(run(task, ReBaFL(mu=0.0, epsilon=0.0)).parameters, exact, rtol=0, atol=1e-9)
    torch.testing.assert_close(exact, twin(task, ReBaFL(mu=0.0, epsilon=0.0), 4)[0], rtol=0, atol=1e-10)


def test_bsm_fedavg_leaves_the_head_of_classes_that_a_client_does_not_hold(task):
    alone = replace(task, clients=ClientIndex.of([task.clients[0].numpy()]))
    training = pf.LocalTraining(learning_rate=0.5, batch_size=10)
    found = run(alone, BalancedFedAvg(), 1, training=training, availability=None).parameters
    layout = ReBaFL().bind(alone.context(1, 0)).context.layout
    moved = layout.named_views(found - flatten(network(0)))["head.weight"].abs().amax(1)
    assert (moved[:2] > 1e-3).all()
    assert torch.equal(moved[2:], torch.zeros(8).double())


def test_a_client_with_one_class_learns_nothing_from_its_exact_balanced_softmax(task):
    single = replace(task, clients=ClientIndex.of([task.clients[5].numpy()]))
    found = run(single, BalancedFedAvg(), 2, training=pf.LocalTraining(), availability=None).parameters
    assert torch.equal(found, flatten(network(0)))


def test_the_first_round_augments_nothing(task):
    runs = [run(task, ReBaFL(mu=mu), 1).parameters for mu in (0.0, 5.0)]
    torch.testing.assert_close(*runs, rtol=0, atol=1e-12)


def test_a_client_with_one_class_augments_towards_the_others_and_in_the_released_form_nothing(task):
    single = replace(task, clients=ClientIndex.of([task.clients[5].numpy()]))
    code = [run(single, ReBaFL(mu=mu, proto_source="code"), 3, availability=None).parameters for mu in (0.0, 5.0)]
    torch.testing.assert_close(*code, rtol=0, atol=1e-12)
    moved = {}
    for source in ("paper", "code"):
        rebafl = ReBaFL(proto_source=source).bind(task.context(1, 0))
        server = rebafl.start(flatten(network(0)))
        known = {"prototypes": torch.rand_like(server["prototypes"]), "known": torch.ones_like(server["known"])}
        moved[source] = uploads(single, rebafl, {**rebafl.broadcast(server), **known}, training=TRAINING)[0].upload
    head = slice(-80, None)
    assert not torch.allclose(moved["paper"]["update"][head], moved["code"]["update"][head], atol=1e-3)
    assert moved["paper"]["prototype_counts"].tolist() == [0.0] * 9 + [45.0]
    assert moved["code"]["prototype_counts"].sum() == 0


def given_for(task, rows):
    """What a loss takes besides the batch, with random prototypes of most classes."""
    draws = torch.Generator().manual_seed(3)
    return {
        "log_prior": prior_of(task.targets[rows], 0.01).log(),
        "prototypes": torch.randn(10, 7, generator=draws, dtype=torch.float64),
        "known": torch.arange(10) != 4,
        "weight": torch.tensor(0.7, dtype=torch.float64),
    }


@pytest.mark.parametrize("form", ["coupled", "per sample"])
def test_the_augmented_loss_trains_the_head_alone(task, form):
    rebafl, model, rows = ReBaFL().bind(task.context(1, 0)), network(0), task.clients[1]
    extra = {"present": torch.ones(len(rows), dtype=torch.bool)} if form == "coupled" else {}
    loss = rebafl.loss if form == "coupled" else rebafl.separable_loss
    gradients = []
    for weight in (0.0, 0.7):
        given = {**given_for(task, rows), "weight": torch.tensor(weight).double(), **extra}
        total = loss(model, task.inputs[rows], task.targets[rows], **given).mean()
        gradients.append(torch.autograd.grad(total, [*model.body.parameters(), *model.head.parameters()]))
    for without, having in zip(gradients[0][:2], gradients[1][:2], strict=True):
        assert torch.equal(without, having)
    assert float((gradients[0][2] - gradients[1][2]).abs().max()) > 1e-3


def test_padding_changes_no_term_of_the_coupled_loss(task):
    rebafl, model, rows = ReBaFL().bind(task.context(1, 0)), network(0), task.clients[1][:12]
    given = given_for(task, rows)
    inputs, targets = task.inputs[rows], task.targets[rows]
    for missing in ("keep", "drop", "cycle_available"):
        variant = ReBaFL(aug_missing=missing).bind(rebafl.context)
        whole = variant.loss(model, inputs, targets, present=torch.ones(12, dtype=torch.bool), **given)
        padded = variant.loss(
            model,
            torch.cat([inputs, inputs[:1].expand(5, -1)]),
            torch.cat([targets, targets[:1].expand(5)]),
            present=torch.arange(17) < 12,
            **given,
        )
        torch.testing.assert_close(padded[:12], whole, rtol=0, atol=1e-14)


def test_classes_below_the_minimum_count_send_zeros(task):
    sent = []

    def watch(simulation, line):
        sent.append(simulation.server["known"].tolist())

    pf.simulate(task, ReBaFL(n_min=10**6), rounds=2, training=TRAINING, callbacks=[watch])
    assert sent == [[False] * 10] * 2


def test_an_interrupted_run_goes_on_with_the_same_prototypes(task, tmp_path):
    def stop(simulation, line):
        if line["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(task, ReBaFL(), out=tmp_path / "run", callbacks=[stop])
    resumed = run(task, ReBaFL(), out=tmp_path / "run", resume=True)
    whole = run(task, ReBaFL())
    assert torch.equal(resumed.parameters, whole.parameters)
    assert resumed.metrics == whole.metrics


def test_without_mechanisms_the_statement_claims_nothing_and_says_why(task):
    statement = run(task, ReBaFL(), 1).statement
    assert all(cell.epsilon == math.inf for cell in statement.cells)
    text = " ".join(str(statement).split())
    assert "sums over samples are sent without a mechanism" in text
    assert "exact number of samples is sent" in text


DPSGD = pf.DPSGD(noise_multiplier=2.0, sample_rate=0.25, max_grad_norm=1.0)
LABELS, FEATURES = NoisyTotal("label_prior", 1.0, 8.0), NoisyTotal("prototypes", math.sqrt(2), 6.0)
PRIVATE = ReBaFL(per_sample=True, proto_source="global_only", feature_norm=2.0, weighting="uniform")


def private_run(task, rebafl, privacy, rounds=3, **options):
    training = pf.LocalTraining(learning_rate=0.1, batch_size=10, steps=4)
    return run(task, rebafl, rounds, training=training, privacy=privacy, availability=None, **options)


def test_with_noise_at_every_door_one_sample_pays_for_gradients_labels_and_prototypes(task):
    privacy = pf.Privacy(training=DPSGD, statistics=[LABELS, FEATURES], noise_key=1)
    found = private_run(task, PRIVATE, privacy)
    accountant = PLDAccountant()
    for event, times in (
        (PoissonSampledDpEvent(0.25, GaussianDpEvent(2.0)), 12),
        (GaussianDpEvent(8.0), 3),
        (GaussianDpEvent(6.0), 3),
    ):
        accountant.compose(SelfComposedDpEvent(event, times))
    expected = accountant.get_epsilon(1e-5)
    for observer in ("server", "public"):
        assert found.statement.cell("sample", observer).epsilon == pytest.approx(expected, rel=1e-2)
    assert [line["known_prototypes"] for line in found.metrics][-1] > 0


def test_the_private_form_is_the_same_one_by_one_and_stacked(task):
    """The noise is the same too; it is rounded to a grid of σ·2⁻²⁰, so sums may land one step apart."""
    privacy = pf.Privacy(training=DPSGD, statistics=[LABELS, FEATURES], noise_key=1)
    one, stacked = (
        private_run(task, PRIVATE, privacy, execution=pf.Execution(engine=engine)) for engine in ("loop", "vectorised")
    )
    torch.testing.assert_close(one.parameters, stacked.parameters, rtol=0, atol=1e-5)
    assert [line["known_prototypes"] for line in one.metrics] == [line["known_prototypes"] for line in stacked.metrics]


@pytest.mark.parametrize("statistics", [[], [LABELS], [FEATURES]], ids=["neither", "labels only", "prototypes only"])
def test_a_total_without_noise_makes_the_claim_infinite(task, statistics):
    privacy = pf.Privacy(training=DPSGD, statistics=statistics, noise_key=1)
    statement = private_run(task, PRIVATE, privacy, 1).statement
    assert statement.cell("sample", "server").epsilon == math.inf
    assert "sums over samples are sent without a mechanism" in " ".join(str(statement).split())


def test_without_augmentation_prototypes_are_neither_sent_nor_charged(task):
    relaxed = ReBaFL(mu=0.0, weighting="uniform")
    privacy = pf.Privacy(training=DPSGD, statistics=[LABELS], noise_key=1)
    assert math.isfinite(private_run(task, relaxed, privacy, 1).statement.cell("sample", "server").epsilon)
    assert relaxed.statistics == ("label_prior",)
    assert ReBaFL(mu=0.0, epsilon=1.0).statistics == ()
    assert ReBaFL(epsilon=1.0).statistics == ("prototypes",)
    assert ReBaFL(epsilon=1.0, proto_source="code").statistics == ("label_prior", "prototypes")  # one class: no more


def test_the_private_form_with_a_uniform_prior_needs_no_label_histogram(task):
    uniform = replace(PRIVATE, epsilon=1.0)
    assert uniform.statistics == ("prototypes",)
    privacy = pf.Privacy(training=DPSGD, statistics=[FEATURES], noise_key=1)
    assert math.isfinite(private_run(task, uniform, privacy, 2).statement.cell("sample", "server").epsilon)


def test_without_noise_the_private_form_is_plain_descent_on_its_loss(task):
    """Everybody's rate 1, no clipping, no noise: one full-batch step on the mean of the per-sample terms."""
    dpsgd = pf.DPSGD(noise_multiplier=0.0, sample_rate=1.0, max_grad_norm=1e6)
    alone = replace(task, clients=ClientIndex.of([task.clients[1].numpy()]))
    training = pf.LocalTraining(learning_rate=0.1, batch_size=len(task.clients[1]), steps=1)
    rebafl = ReBaFL(per_sample=True, proto_source="global_only", n_min=1)
    states = []
    found = run(
        alone,
        rebafl,
        2,
        training=training,
        privacy=pf.Privacy(training=dpsgd),
        availability=None,
        callbacks=[lambda simulation, line: states.append(simulation.server)],
    )
    model, rows = network(0), task.clients[1]
    nn.utils.vector_to_parameters(states[0]["parameters"].clone(), model.parameters())
    inputs, targets = task.inputs[rows], task.targets[rows]
    own = class_means(model, inputs, targets)
    given = {"known": torch.tensor([c in own for c in range(10)]), "weight": torch.tensor(rebafl.mu)}
    given["prototypes"] = torch.stack([own.get(c, torch.zeros(7).double()) for c in range(10)])
    given["log_prior"] = prior_of(targets, rebafl.epsilon).log()
    loss = rebafl.separable_loss(model, inputs, targets, **given).mean()
    step = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(found.parameters, states[0]["parameters"] - 0.1 * step, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (ReBaFL(), "set per_sample = true"),
        (ReBaFL(per_sample=True), "set proto_source = 'global_only'"),
        (ReBaFL(epsilon=0.0, mu=0.0), "use epsilon > 0"),
        (BalancedFedAvg(), "use rebafl with mu = 0"),
    ],
)
def test_dp_sgd_refuses_what_couples_samples_and_names_the_mend(task, algorithm, message):
    with pytest.raises(ConfigError, match=message):
        private_run(task, algorithm, pf.Privacy(training=DPSGD), 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 1.5}, "epsilon is 1.5"),
        ({"mu": -0.1}, "mu is -0.1"),
        ({"lam": math.nan}, "lam is nan"),
        ({"aug_missing": "kept"}, "did you mean 'keep'"),
        ({"proto_source": "papers"}, "did you mean 'paper'"),
        ({"proto_memory": "lost"}, "did you mean 'last'"),
        ({"n_min": 0}, "n_min is 0"),
        ({"feature_norm": 0.0}, "feature_norm is 0.0"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        ReBaFL(**settings)


def test_a_model_without_head_and_features_is_refused_before_training(task):
    def headless(seed):
        return nn.Sequential(nn.Linear(64, 10)).double()

    with pytest.raises(ConfigError, match="no feature_dim"):
        run(replace(task, model=headless), ReBaFL(), 1)

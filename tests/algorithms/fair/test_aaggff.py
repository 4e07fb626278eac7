"""AAggFF through the simulation, against twins that share no code with it (sections 4, 7 to 9 of the specification)."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant
from scipy import stats
from scipy.optimize import minimize
from torch import nn

import privfl as pf
from privfl.algorithms.base import Round
from privfl.algorithms.fair.aaggff import AAggFFD, AAggFFS
from privfl.algorithms.fair.aaggff_sums import AAggFFDSums
from privfl.algorithms.fair.loss_survey import LossSurvey, mean_loss, with_count
from privfl.algorithms.fedavg import FedAvg
from privfl.algorithms.fedprox import FedProx
from privfl.algorithms.server_optimisers import FedAdagrad, FedAdam, FedYogi
from privfl.engine.workspace import phases_of
from privfl.errors import ConfigError
from privfl.federation.availability import Bernoulli
from privfl.federation.client_index import ClientIndex
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.door.noisy_total import NoisyTotal
from tests.algorithms.federation import digits_task, initial, task_of, uploads

SIZES = (7, 20, 13, 9, 11, 30)
TRAINING = pf.LocalTraining(learning_rate=0.2, batch_size=5, epochs=2)
BOTH = [AAggFFS(), AAggFFD()]


@pytest.fixture(scope="module")
def task():
    return digits_task(SIZES)


def losses_at(task, parameters, clients=None):
    """Mean training loss of every client, by plain PyTorch."""
    network = task.model(0)
    nn.utils.vector_to_parameters(parameters.clone(), network.parameters())
    chosen = range(len(task.clients)) if clients is None else clients
    rows = [task.clients[client] for client in chosen]
    with torch.no_grad():
        return np.array([float(F.cross_entropy(network(task.inputs[r]), task.targets[r])) for r in rows])


def trained(task, parameters, round, algorithm=None, clients=None):
    """Every client's update [m, size] in ``round``, by FedAvg's clients (or another algorithm's)."""
    results = uploads(
        task, algorithm or FedAvg(), {"parameters": parameters}, training=TRAINING, round=round, clients=clients
    )
    return torch.stack([result.upload["update"] for result in results])


def watched(task, algorithm, rounds, **settings):
    """A run, and the server's state and what clients keep after every round."""
    states, client_state = [], []

    def watch(simulation, line):
        states.append(dict(simulation.server))
        client_state.append({client: dict(tensors) for client, tensors in simulation.client_state.items()})

    run = pf.simulate(task, algorithm, rounds=rounds, training=TRAINING, callbacks=[watch], **settings)
    return run, states, client_state


def newton_twin(task, rounds, *, beta):
    """AAggFF-S as in the paper's objective (9), minimised by SLSQP, with SciPy's Normal distribution."""
    clients = len(task.clients)
    parameters, p = initial(task), np.full(clients, 1 / clients)
    gradients, before = [], []
    for number in range(rounds):
        losses = losses_at(task, parameters)
        response = stats.norm.cdf(losses / losses.mean(), 1, 1) / clients
        gradients.append(-response / (1 + p @ response))
        before.append(p)
        g, past = np.stack(gradients), np.stack(before)

        def objective(x, g=g, past=past):
            return g.sum(0) @ x + 2 * x @ x + beta / 2 * ((g * (x - past)).sum(1) ** 2).sum()

        def slope(x, g=g, past=past):
            return g.sum(0) + 4 * x + beta * (g * (x - past)).sum(1) @ g

        simplex = {"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like}
        options = {"ftol": 1e-16, "maxiter": 500}
        p = minimize(
            objective, p, jac=slope, method="SLSQP", bounds=[(0, 1)] * clients, constraints=simplex, options=options
        ).x
        parameters = parameters + torch.from_numpy(p) @ trained(task, parameters, number)
    return parameters, p


@pytest.mark.parametrize(("paper", "beta"), [(False, 0.5), (True, 1.5)])
def test_aaggff_s_weighs_each_rounds_updates_with_the_decision_of_that_rounds_losses(task, paper, beta):
    run, states, _ = watched(task, AAggFFS(paper_constants=paper), 4)
    parameters, decision = newton_twin(task, 4, beta=beta)
    np.testing.assert_allclose(states[-1]["decision"].numpy(), decision, atol=1e-7)
    torch.testing.assert_close(run.parameters, parameters, rtol=0, atol=1e-6)


def entropy_twin(task, cohorts):
    """AAggFF-D by equations (12) to (15) as they stand, with Σg and the decision over everybody."""
    clients = len(task.clients)
    parameters, p, total = initial(task), np.full(clients, 1 / clients), np.zeros(clients)
    for number, cohort in enumerate(cohorts):
        t, rate = number + 1, len(cohort) / clients
        losses = losses_at(task, parameters, cohort)
        response = rate * stats.norm.cdf(losses / losses.mean(), 1, 1)
        mean = response.mean()
        estimate = np.full(clients, mean)
        estimate[cohort] += (response - mean) / rate
        if rate == 1:
            total -= response / (1 + p @ response)
            bound = 1.0
        else:
            total += -estimate / (1 + mean) + mean * (p @ estimate - mean) / (1 + mean) ** 2
            bound = 2 + rate
        scaled = np.exp(-total * math.sqrt(math.log(clients)) / (bound * math.sqrt(t + 1)))
        p = scaled / scaled.sum()
        weights = torch.from_numpy(p[cohort] / p[cohort].sum())
        parameters = parameters + weights @ trained(task, parameters, number, clients=cohort)
    return parameters, p


@pytest.mark.parametrize("cohort", [1, 3, 6])
def test_aaggff_d_is_ftrl_with_entropy_on_doubly_robust_linearised_gradients(task, cohort):
    drawn = pf.FixedCohort(cohort)
    run, states, _ = watched(task, AAggFFD(), 5, cohort=drawn)
    cohorts = [drawn.draw(np.arange(6), number, 0, None, np.ones(6)).clients.tolist() for number in range(5)]
    parameters, p = entropy_twin(task, cohorts)
    torch.testing.assert_close(run.parameters, parameters, rtol=0, atol=1e-11)
    found = torch.softmax(states[-1]["scale"] * states[-1]["accumulators"], 0)
    np.testing.assert_allclose(found.numpy(), p, atol=1e-12)


@pytest.mark.parametrize("cohort", [3, 5])
def test_the_form_that_sees_only_sums_gives_the_same_and_keeps_the_accumulators_at_the_clients(task, cohort):
    settings = {"rounds": 6, "cohort": pf.FixedCohort(cohort)}
    (plain, states, _), (sums, seen, client_state) = (
        watched(task, one, **settings) for one in (AAggFFD(), AAggFFDSums())
    )
    torch.testing.assert_close(sums.parameters, plain.parameters, rtol=0, atol=1e-12)
    for client, tensors in client_state[-1].items():
        assert float(tensors["accumulator"]) == pytest.approx(float(states[-1]["accumulators"][client]), abs=1e-14)
    assert all(value.numel() == 1 for name, value in seen[-1].items() if name != "parameters")


def test_the_form_that_sees_only_sums_declares_nothing_but_sums(task):
    algorithm = AAggFFDSums().bind(task.context(1, 0))
    phases = phases_of(algorithm, RoundChannel.bare(algorithm.fields()))
    assert [[field.name for field in phase.algorithm.fields()] for phase in phases] == [
        ["loss"],
        ["response"],
        ["update", "share"],
    ]
    assert all(field.combine == "sum" for phase in phases for field in phase.algorithm.fields())
    plain = AAggFFD().bind(task.context(1, 0))
    first, second = phases_of(plain, RoundChannel.bare(plain.fields()))
    assert [(f.name, f.combine, f.shape) for f in first.algorithm.fields()] == [("loss", "each", ())]
    assert [(f.name, f.combine) for f in second.algorithm.fields()] == [("update", "sum")]


def test_below_the_minimum_number_of_reports_no_sum_is_used_and_the_mean_is_plain(task):
    cohort = pf.FixedCohort(4)
    run, states, client_state = watched(task, AAggFFDSums(minimum=5), 3, cohort=cohort)
    plain = pf.simulate(task, FedAvg(weighting="uniform"), rounds=3, training=TRAINING, cohort=cohort)
    torch.testing.assert_close(run.parameters, plain.parameters, rtol=0, atol=1e-12)
    assert all(float(state[name]) == 0 for state in states for name in ("mean_loss", "mean_response", "decided"))
    assert all(float(tensors["accumulator"]) == 0 for tensors in client_state[-1].values())


@pytest.mark.parametrize("algorithm", [*BOTH, AAggFFDSums()], ids=lambda one: one.name)
def test_the_engines_agree(task, algorithm):
    runs = [
        pf.simulate(task, algorithm, rounds=3, training=TRAINING, execution=pf.Execution(engine=name))
        for name in ("loop", "vectorised")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)
    assert runs[0].summary["warnings"] == runs[1].summary["warnings"] == []


@pytest.mark.parametrize("algorithm", [AAggFFS(server_optimiser="fedyogi"), AAggFFDSums()], ids=lambda one: one.name)
def test_an_interrupted_run_resumes_to_the_same_bits(task, algorithm, tmp_path):
    def stop(simulation, line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    settings = {"rounds": 5, "training": TRAINING, "execution": pf.Execution(checkpoint_seconds=0.0)}
    whole = pf.simulate(task, algorithm, **settings)
    with pytest.raises(KeyboardInterrupt):
        pf.simulate(task, algorithm, out=tmp_path / "run", callbacks=[stop], **settings)
    resumed = pf.simulate(task, algorithm, out=tmp_path / "run", resume=True, **settings)
    assert torch.equal(whole.parameters, resumed.parameters)
    assert whole.metrics == resumed.metrics


# Limits (checks 1, 2 and 14)


@pytest.mark.parametrize("algorithm", [*BOTH, AAggFFDSums()], ids=lambda one: one.name)
def test_clients_alike_are_averaged_uniformly_in_every_round(algorithm):
    base = digits_task([10])
    same = task_of(base.inputs.repeat(4, 1), base.targets.repeat(4), (10, 10, 10, 10))
    full = pf.LocalTraining(learning_rate=0.3, batch_size=10, epochs=2)
    runs = [pf.simulate(same, one, rounds=4, training=full) for one in (algorithm, FedAvg(weighting="uniform"))]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [AAggFFS, AAggFFD])
@pytest.mark.parametrize(
    ("options", "alone"),
    [
        ({}, FedAvg(weighting="uniform")),
        ({"server_learning_rate": 0.5}, FedAvg(weighting="uniform", server_learning_rate=0.5)),
        ({"mu": 0.3}, FedProx(weighting="uniform", mu=0.3)),
        (
            {"server_optimiser": "fedadam", "server_learning_rate": 0.01},
            FedAdam(weighting="uniform", beta2=0.999, tau=1e-4),
        ),
        (
            {"server_optimiser": "fedyogi", "server_learning_rate": 0.01},
            FedYogi(weighting="uniform", beta2=0.999, tau=1e-4),
        ),
        (
            {"server_optimiser": "fedadagrad", "server_learning_rate": 0.01, "beta1": 0.0},
            FedAdagrad(weighting="uniform", tau=1e-4),
        ),
    ],
    ids=["fedavg", "server rate", "fedprox", "fedadam", "fedyogi", "fedadagrad"],
)
def test_with_responses_that_cannot_differ_a_plug_in_is_the_optimiser_alone(task, kind, options, alone):
    flat = kind(lower=0.1, upper=0.1 + 1e-15, **options)
    runs = [pf.simulate(task, one, rounds=4, training=TRAINING) for one in (flat, alone)]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-10)


def test_a_plug_in_changes_the_weights_and_nothing_else(task):
    """FedProx's clients with FedAdam's server, by hand, from the decisions that the run took."""
    algorithm = AAggFFS(mu=0.3, server_optimiser="fedadam", server_learning_rate=0.01)
    _, states, _ = watched(task, algorithm, 3)
    parameters, m, v = (
        initial(task),
        torch.zeros(650, dtype=torch.float64),
        torch.full((650,), 1e-8, dtype=torch.float64),
    )
    for number, state in enumerate(states):
        mean = state["decision"] @ trained(task, parameters, number, FedProx(mu=0.3))
        m, v = 0.9 * m + 0.1 * mean, 0.999 * v + 0.001 * mean.square()
        parameters = parameters + 0.01 * m / (v.sqrt() + 1e-4)
        torch.testing.assert_close(state["parameters"], parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimiser", ["sgd", "fedadagrad"])
def test_the_servers_rate_can_rise_as_the_clients_decays(task, optimiser):
    """Against the plain rule by hand: the k-th step is 2ᵏ times as long if the clients' rate halves every round."""
    decaying = pf.LocalTraining(learning_rate=0.2, batch_size=5, learning_rate_decay=0.5)
    flat = {"lower": 0.1, "upper": 0.1 + 1e-15, "server_optimiser": optimiser, "beta1": 0.0}
    states = []
    pf.simulate(
        task,
        AAggFFS(rising_server_rate=True, **flat),
        rounds=3,
        training=decaying,
        callbacks=[lambda simulation, line: states.append(dict(simulation.server))],
    )
    parameters, v = initial(task), torch.full((650,), 1e-8, dtype=torch.float64)
    for number, state in enumerate(states):
        results = uploads(task, FedAvg(), {"parameters": parameters}, training=decaying, round=number)
        step = mean = torch.stack([result.upload["update"] for result in results]).mean(0)
        if optimiser == "fedadagrad":
            v = v + mean.square()
            step = mean / (v.sqrt() + 1e-4)
        parameters = parameters + 2**number * step
        torch.testing.assert_close(state["parameters"], parameters, rtol=0, atol=1e-9)


@pytest.mark.parametrize("algorithm", BOTH, ids=lambda one: one.name)
def test_a_permutation_of_the_clients_permutes_their_weights(task, algorithm):
    order = [3, 1, 5, 0, 2, 4]
    permuted = replace(task, clients=ClientIndex.of([task.clients[c].numpy() for c in order]))
    full = pf.LocalTraining(learning_rate=0.2, batch_size=10**6)
    states = []
    for one in (task, permuted):
        pf.simulate(one, algorithm, rounds=4, training=full, callbacks=[lambda s, line: states.append(s.server)])
    for before, after in zip(states[:4], states[4:], strict=True):
        name = "decision" if "decision" in before else "accumulators"
        torch.testing.assert_close(before[name][order], after[name], rtol=0, atol=1e-9)


def test_decisions_lie_on_the_simplex_and_follow_the_losses(task):
    _, states, _ = watched(task, AAggFFS(), 10)
    for state in states:
        assert float(state["decision"].min()) >= 0
        assert abs(float(state["decision"].sum()) - 1) < 1e-9
        weights = AAggFFS().server_weights(state, torch.tensor([4, 1]))
        torch.testing.assert_close(weights, state["decision"][[4, 1]] / state["decision"][[4, 1]].sum())
    last = losses_at(task, states[-1]["parameters"])
    assert states[-1]["decision"][last.argmax()] > states[-1]["decision"][last.argmin()]


def test_the_regret_of_a_run_stays_below_its_bound_and_is_that_of_its_decisions(task):
    run, states, _ = watched(task, AAggFFS(log_regret=True), 12)
    assert all(line["regret"] <= line["regret_bound"] for line in run.metrics)
    decisions = torch.stack([torch.full((6,), 1 / 6).double(), *(state["decision"] for state in states[:-1])])
    torch.testing.assert_close(states[-1]["played"], decisions)
    responses = states[-1]["responses"].numpy()
    played = -np.log1p((decisions.numpy() * responses).sum(1)).sum()
    others = np.random.default_rng(0).dirichlet(np.full(6, 0.3), 3000)
    best = -np.log1p(np.concatenate([others, np.eye(6)]) @ responses.T).sum(1).max()
    assert run.metrics[-1]["regret"] >= played - best - 1e-12
    assert run.metrics[-1]["regret"] == pytest.approx(played - best, abs=2e-3)


# Reports, and clients that fail


def reported(task, survey, received, **settings):
    results = uploads(task, survey, received, **settings)
    return [result.upload and float(result.upload["loss"]) for result in results]


def test_a_report_is_the_mean_training_loss_at_the_received_model_in_evaluation_mode(task):
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop = nn.Linear(64, 10, dtype=torch.float64), nn.Dropout(0.5)

        def forward(self, inputs):
            return self.layer(self.drop(inputs))

    def model(seed):
        torch.manual_seed(seed)
        return Dropping()

    dropping = replace(task, model=model)
    found = reported(dropping, LossSurvey(lambda *_: {}), {"parameters": initial(dropping)})
    network = dropping.model(0).eval()
    for client, value in enumerate(found):
        rows = dropping.clients[client]
        expected = float(F.cross_entropy(network(dropping.inputs[rows]), dropping.targets[rows]).detach())
        assert value == pytest.approx(expected, rel=1e-12)


def test_a_bounded_report_cuts_every_examples_loss_and_weighs_at_most_one(task):
    network = task.model(0)
    nn.init.normal_(network.weight, generator=torch.Generator().manual_seed(0))
    losses = F.cross_entropy(network(task.inputs), task.targets, reduction="none").detach()
    statistic = with_count(task.loss, 2.0)(network, task.inputs, task.targets).detach()
    assert float(statistic.norm(dim=1).max()) <= 1 + 1e-12
    assert float(mean_loss(statistic.sum(0), 2.0)) == pytest.approx(float(losses.clamp_max(2.0).mean()))
    assert float(mean_loss(torch.tensor([-3.0, -5.0]), 2.0)) == 0
    assert float(mean_loss(torch.tensor([50.0, 0.1]), 2.0)) == 2


@pytest.mark.parametrize("algorithm", [*BOTH, AAggFFDSums()], ids=lambda one: one.name)
def test_a_client_whose_loss_is_not_finite_is_out_of_the_round_and_keeps_its_standing(algorithm):
    base = digits_task(SIZES)
    broken = base.inputs.clone()
    broken[base.clients[2]] = math.nan
    task = replace(base, inputs=broken)
    run, states, client_state = watched(task, algorithm, 3)
    assert [line["clients"] for line in run.metrics] == [5, 5, 5]
    assert run.summary["dropped"] == {"sent a non-finite 'loss'": 3}
    assert bool(torch.isfinite(run.parameters).all())
    if algorithm.name == "aaggff-s":
        assert "in 3 rounds reports were missing" in run.summary["warnings"][0]
        responses = states[-1]["decision"]
        assert float(responses.min()) < float(responses[2]) < float(responses.max())
    elif algorithm.name == "aaggff-d":
        assert float(states[-1]["accumulators"][2]) == 0
    else:
        assert 2 not in client_state[-1]


def test_a_missing_report_counts_with_the_mean_response(task):
    algorithm = AAggFFS(log_regret=True).bind(task.context(1, 0))
    losses, members = torch.tensor([0.5, 2.0, 1.0]), torch.tensor([0, 3, 4])
    server = algorithm.hear(algorithm.start(initial(task)), losses, Round(3.0, 6, 6, members=members))
    expected = stats.norm.cdf(losses.numpy() / losses.mean().item(), 1, 1) / 6
    np.testing.assert_allclose(server["responses"][0][[0, 3, 4]], expected, atol=1e-7)
    np.testing.assert_allclose(server["responses"][0][[1, 2, 5]], expected.mean(), atol=1e-7)


def test_without_any_weight_among_those_who_answer_weights_are_uniform_and_no_update_is_an_error(task):
    algorithm = AAggFFS().bind(task.context(1, 0))
    server = algorithm.start(initial(task)) | {"decision": torch.tensor([1.0, 0, 0, 0, 0, 0]).double()}
    assert algorithm.server_weights(server, torch.tensor([2, 4])).tolist() == [0.5, 0.5]
    assert algorithm.aggregate(server, {"update": initial(task)}, Round(0.0, 6, 6), TRAINING) is server


def test_clients_that_cannot_be_reached_are_absent_without_a_failure(task):
    for algorithm in (*BOTH, AAggFFDSums()):
        run = pf.simulate(task, algorithm, rounds=6, training=TRAINING, availability=Bernoulli(0.6))
        assert bool(torch.isfinite(run.parameters).all())


def test_a_federation_of_one_client_is_fedavg():
    single = digits_task([40])
    expected = pf.simulate(single, FedAvg(), rounds=2, training=TRAINING).parameters
    for algorithm in (*BOTH, AAggFFDSums()):
        found = pf.simulate(single, algorithm, rounds=2, training=TRAINING).parameters
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


# The statement: a loss report is a release of its own


PRIVATE = pf.DPSGD(noise_multiplier=2.0, sample_rate=0.2)
REASON = "sums over samples are sent without a mechanism"


def reasons(run, unit, observer):
    return " ".join(map(str, run.statement.cell(unit, observer).releases))


@pytest.mark.parametrize("algorithm", [*BOTH, AAggFFDSums()], ids=lambda one: one.name)
def test_without_a_mechanism_the_statement_names_updates_and_loss_reports(task, algorithm):
    run = pf.simulate(task, algorithm, rounds=2, training=TRAINING)
    assert all(cell.epsilon == math.inf for cell in run.statement.cells)
    text = str(run.statement).replace("\n    ", " ")
    assert REASON in text
    assert "what training computes on the data is sent without a mechanism" in text
    assert "size" not in text


@pytest.mark.parametrize("algorithm", [*BOTH, AAggFFDSums()], ids=lambda one: one.name)
def test_dp_sgd_does_not_cover_the_loss_reports(task, algorithm):
    run = pf.simulate(task, algorithm, rounds=2, training=TRAINING, privacy=pf.Privacy(training=PRIVATE))
    assert run.statement.cell("sample", "public").epsilon == math.inf
    text = str(run.statement).replace("\n    ", " ")
    assert REASON in text
    assert "what training computes" not in text


@pytest.mark.parametrize("name", ["aaggff-s", "aaggff-d", "aaggff-d-sums"])
def test_with_noise_on_gradients_and_on_the_loss_total_both_are_accounted(task, name):
    algorithm = {one.name: one for one in (AAggFFS, AAggFFD, AAggFFDSums)}[name](loss_bound=4.0)
    privacy = pf.Privacy(training=PRIVATE, statistics=[NoisyTotal("loss", 1.0, 10.0)], noise_key=7)
    rounds = 3
    run = pf.simulate(task, algorithm, rounds=rounds, training=TRAINING, privacy=privacy)
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    gradients = run_gradients(rounds)
    accountant.compose(PRIVATE.event(2.0, 0.2), gradients)
    accountant.compose(GaussianDpEvent(10.0), rounds)
    expected = accountant.get_epsilon(1e-5)
    for observer in ("server", "public"):
        cell = run.statement.cell("sample", observer)
        assert cell.epsilon == pytest.approx(expected, rel=1e-3)
        assert cell.epsilon >= expected * (1 - 1e-4)
        assert run.statement.cell("client", observer).epsilon == math.inf
    assert bool(torch.isfinite(run.parameters).all())


def run_gradients(rounds):
    """DP-SGD's Poisson plan takes 1/rate steps an epoch: 2 epochs of 5 steps a round."""
    return rounds * TRAINING.epochs * round(1 / 0.2)


def test_noise_reaches_the_reported_loss_and_only_it(task):
    noisy = pf.Privacy(statistics=[NoisyTotal("loss", 1.0, 5.0)], noise_key=1)
    runs = [watched(task, AAggFFS(loss_bound=9.0), 1, privacy=one) for one in (noisy, pf.Privacy())]
    (_, (loud, *_), _), (_, (quiet, *_), _) = runs
    assert float((loud["decision"] - quiet["decision"]).abs().max()) > 1e-6
    updates = trained(task, initial(task), 0)
    for state in (loud, quiet):
        torch.testing.assert_close(state["parameters"], initial(task) + state["decision"] @ updates, rtol=0, atol=1e-12)


RANDOMISED = [AAggFFS(response_epsilon=1.5), AAggFFD(response_epsilon=1.5)]


@pytest.mark.parametrize("algorithm", RANDOMISED, ids=lambda one: one.name)
def test_randomised_responses_cost_their_epsilon_a_round_and_nothing_else_of_the_loss_leaves(task, algorithm):
    rounds = 3
    privacy = pf.Privacy(training=PRIVATE, noise_key=7)
    run = pf.simulate(task, algorithm, rounds=rounds, training=TRAINING, privacy=privacy)
    alone = pf.simulate(task, FedAvg(weighting="uniform"), rounds=rounds, training=TRAINING, privacy=privacy)
    for observer in ("server", "public"):
        gradients = alone.statement.cell("sample", observer).epsilon
        found = run.statement.cell("sample", observer).epsilon
        assert gradients < found <= gradients + rounds * 1.5 + 1e-6
    text = str(run.statement).replace("\n    ", " ")
    assert REASON not in text


@pytest.mark.parametrize("algorithm", RANDOMISED, ids=lambda one: one.name)
def test_a_randomised_round_shows_the_server_a_clipped_laplace_answer_around_the_response(task, algorithm):
    """400 runs of one round: every client's answers against the law, rejected below p = 1e-8 (6 clients, 2 forms)."""
    survey = algorithm.bind(task.context(1, 0)).survey()
    received = {"parameters": initial(task), "reference": torch.tensor(2.5, dtype=torch.float64)}
    found = np.array([reported(task, survey, received, seed=seed) for seed in range(400)])
    assert found.min() >= 0
    assert found.max() <= 1
    truths = stats.norm.cdf(losses_at(task, initial(task)) / 2.5, 1, 1)
    for truth, answers in zip(truths, found.T, strict=True):
        law = stats.laplace(truth, 1 / 1.5)
        low, high = law.cdf(0), law.cdf(1)
        inside = answers[(answers > 0) & (answers < 1)]
        uniform = (law.cdf(inside) - low) / (high - low)
        assert stats.kstest(uniform, "uniform").pvalue > 1e-8
        assert stats.binomtest(int((answers == 0).sum()), 400, low).pvalue > 1e-8
        assert stats.binomtest(int((answers == 1).sum()), 400, 1 - high).pvalue > 1e-8


def test_with_hardly_any_noise_the_public_reference_follows_the_mean_loss_and_weights_those_of_exact_reports(task):
    """The reference lags a round behind the mean loss, so weights agree but for that."""
    loud = AAggFFS(response_epsilon=600.0)
    run, states, _ = watched(task, loud, 25)
    for state, following in zip(states[-4:-1], states[-3:], strict=True):
        mean = losses_at(task, state["parameters"]).mean()
        assert float(following["reference"]) == pytest.approx(mean, rel=0.05)
    _, exact, _ = watched(task, AAggFFS(), 25)
    assert float((states[-1]["decision"] - exact[-1]["decision"]).abs().max()) < 0.02
    assert float((exact[-1]["decision"] - 1 / 6).abs().max()) > 0.02
    assert bool(torch.isfinite(run.parameters).all())


def test_noise_on_updates_alone_is_refused(task):
    privacy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(1.0)])
    for algorithm in (*BOTH, AAggFFDSums()):
        with pytest.raises(ConfigError):
            pf.simulate(task, algorithm, rounds=1, privacy=privacy)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (AAggFFS, {"cdf": "cauchy"}, "aaggff-s's cdf is 'cauchy'; choose 'weibull', 'exponential'"),
        (AAggFFD, {"lower": 0.5, "upper": 0.2}, "responses range from 0.5 to 0.2"),
        (AAggFFD, {"lower": -0.1}, "responses range from -0.1"),
        (AAggFFS, {"mu": math.nan}, "mu is nan"),
        (AAggFFS, {"server_optimiser": "adam"}, "server_optimiser is 'adam'"),
        (AAggFFS, {"server_learning_rate": 0.0}, "server_learning_rate is 0.0"),
        (AAggFFS, {"server_optimiser": "fedyogi", "tau": 0.0}, "fedyogi's tau is 0.0"),
        (AAggFFS, {"loss_bound": 0.0}, "loss_bound is 0.0"),
        (AAggFFD, {"response_epsilon": -1.0}, "response_epsilon is -1.0"),
        (AAggFFDSums, {"response_epsilon": 1.0}, "leave response_epsilon out"),
        (AAggFFDSums, {"minimum": 2}, "minimum is 2, but a mean of two"),
    ],
)
def test_impossible_settings_are_one_sentence(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**settings)


def test_a_lower_bound_above_the_papers_upper_one_is_refused_when_the_run_starts(task):
    with pytest.raises(ConfigError, match=r"lower is 0.3, but upper is 1/6"):
        pf.simulate(task, AAggFFS(lower=0.3), rounds=1)

"""FedDyn: part B of the baselines' specification, and rows 1 to 4 of its test matrix."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.algorithms.declarations import declared
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.privacy.accounting.release import BARE_TRAINING
from tests.algorithms.federation import digits_task, initial, uploads
from tests.algorithms.test_baselines import quadratic_task
from tests.algorithms.test_scaffold import (
    HEAVY,
    PLAIN,
    SGD_OF_FEW,
    SIZES,
    Invariant,
    Taped,
    batches,
    mean_gradient,
    one_bad_row,
    replayed,
    two_of_four,
    unequal_quadratics,
)


@pytest.fixture(scope="module")
def task():
    return digits_task(SIZES)


def trained(task, client, round, training, w, h, alpha):
    """v_k by explicit SGD on F_k(v) − ⟨h_k, v⟩ + (α/2)·‖v − w‖²."""
    rate = training.learning_rate * training.learning_rate_decay**round
    v, velocity = w, torch.zeros_like(w)
    for rows in batches(task, client, training, round):
        direction = mean_gradient(task, v, rows) - h + alpha * (v - w) + training.weight_decay * v
        velocity = training.momentum * velocity + direction
        v = v - rate * velocity
    return v


@pytest.mark.parametrize("training", [PLAIN, HEAVY], ids=["plain SGD", "momentum and weight decay"])
def test_rounds_of_a_part_of_the_federation_are_the_papers(task, training):
    """The paper's own states: h_k and h, in units of gradients."""
    alpha, w = 0.3, initial(task)
    h, own = torch.zeros_like(w), {client: torch.zeros_like(w) for client in range(4)}
    for round in range(4):
        found = {k: trained(task, k, round, training, w, own[k], alpha) for k in two_of_four(round)}
        for k, v in found.items():
            own[k] = own[k] - alpha * (v - w)
        h = h - alpha * sum(v - w for v in found.values()) / 4
        average = sum(found.values()) / len(found)
        w = average - h / alpha
    run = pf.simulate(
        task,
        pf.FedDyn(alpha),
        rounds=4,
        training=training,
        cohort=pf.FixedCohort(2),
        evaluate_every=4,
        execution=pf.Execution(engine="loop"),
    )
    torch.testing.assert_close(run.parameters, average, rtol=0, atol=1e-12)
    torch.testing.assert_close(run.server["parameters"], w, rtol=0, atol=1e-12)
    torch.testing.assert_close(-alpha * run.server["dual"], h, rtol=0, atol=1e-12)
    for client, client_state in run.client_state.items():
        torch.testing.assert_close(-alpha * client_state["dual"], own[client], rtol=0, atol=1e-12)
    assert len(run.client_state) > 2  # some came late, some came again


def test_with_a_mean_size_every_client_has_the_authors_alpha(task):
    """The authors' states: ĥ_k and their mean, in units of parameters, with α_k = α/ω_k and ω_k = n_k·N/n."""
    alpha, w, sizes = 0.3, initial(task), task.clients.sizes
    own = {client: torch.zeros_like(w) for client in range(4)}
    for round in range(3):
        found = {}
        for k in two_of_four(round):
            alpha_k = alpha / (sizes[k] * 4 / sizes.sum())
            found[k] = trained(task, k, round, PLAIN, w, -alpha_k * own[k], alpha_k)
        for k, v in found.items():
            own[k] = own[k] + v - w
        w = sum(found.values()) / len(found) + sum(own.values()) / 4
    algorithm = pf.FedDyn(alpha, "server", mean_size=float(sizes.mean()))
    for engine in ("loop", "vectorised"):
        run = pf.simulate(
            task,
            algorithm,
            rounds=3,
            training=PLAIN,
            cohort=pf.FixedCohort(2),
            evaluate_every=3,
            execution=pf.Execution(engine=engine),
        )
        torch.testing.assert_close(run.parameters, w, rtol=0, atol=1e-11)


@pytest.mark.parametrize("bound", [0.05, 1e6], ids=["nearly every step is shortened", "none is"])
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_bounded_gradient_steps_as_the_authors_code_does(task, engine, bound):
    """Their order: PyTorch's clipping of the gradient of the loss and both terms, then SGD's decay and momentum."""
    alpha, w, own = 0.3, initial(task), {client: torch.zeros_like(initial(task)) for client in range(4)}
    shortened = 0
    for round in range(2):
        found = {}
        for k in two_of_four(round):
            v = torch.nn.Parameter(w.clone())
            sgd = torch.optim.SGD([v], HEAVY.learning_rate, HEAVY.momentum, weight_decay=HEAVY.weight_decay)
            for group in sgd.param_groups:
                group["lr"] *= HEAVY.learning_rate_decay**round
            for rows in batches(task, k, HEAVY, round):
                v.grad = mean_gradient(task, v.detach(), rows) + alpha * (v.detach() - w + own[k])
                shortened += int(torch.nn.utils.clip_grad_norm_([v], bound) > bound)
                sgd.step()
            found[k] = v.detach()
        for k, v in found.items():
            own[k] = own[k] + v - w
        w = sum(found.values()) / len(found) + sum(own.values()) / 4
    assert (shortened > 10) == (bound < 1)
    run = pf.simulate(
        task,
        pf.FedDyn(alpha, "server", max_gradient_norm=bound),
        rounds=2,
        training=HEAVY,
        cohort=pf.FixedCohort(2),
        evaluate_every=2,
        execution=pf.Execution(engine=engine),
    )
    torch.testing.assert_close(run.parameters, w, rtol=0, atol=1e-6)  # PyTorch adds 1e-6 to the norm


@pytest.mark.parametrize(
    ("clients", "cohort", "rounds"), [(4, None, 40), (8, pf.FixedCohort(4), 105)], ids=["everyone", "4 of 8"]
)
def test_on_quadratics_both_models_find_the_optimum(clients, cohort, rounds):
    task, optimum = quadratic_task(clients=clients)  # FedAvg with several local steps misses it: test_scaffold.py
    training = pf.LocalTraining(learning_rate=0.2, epochs=5)
    run = pf.simulate(
        task,
        pf.FedDyn(2.0),
        rounds=rounds,
        training=training,
        cohort=cohort,
        evaluate_every=rounds,
        execution=pf.Execution(engine="loop"),
    )
    for found in (run.parameters, run.server["average"], run.server["parameters"]):
        assert float((found - optimum).norm()) < 1e-8


def test_a_bound_that_bites_parts_the_servers_dual_from_the_clients_and_shifts_the_optimum():
    task, optimum = quadratic_task()
    training = pf.LocalTraining(learning_rate=0.2, epochs=5)
    for bound, bites in ((0.05, True), (100.0, False)):
        privacy = pf.Privacy(update=[pf.Clip(bound)])
        settings = {
            "rounds": 30,
            "training": training,
            "privacy": privacy,
            "evaluate_every": 30,
            "execution": pf.Execution(engine="loop"),
        }
        run = pf.simulate(task, pf.FedDyn(2.0), **settings)
        apart = run.server["dual"] - sum(client_state["dual"] for client_state in run.client_state.values()) / 4
        assert (float(apart.norm()) > 1e-2) == bites
        assert (float((run.parameters - optimum).norm()) > 1e-2) == bites


@pytest.mark.parametrize("mean_size", [None, 2.5])
def test_with_unequal_sizes_only_an_alpha_for_each_client_finds_the_weighted_optimum(mean_size):
    task, optimum = unequal_quadratics()
    training = pf.LocalTraining(learning_rate=0.15, batch_size=10, epochs=5)
    algorithm = pf.FedDyn(2.0, mean_size=mean_size)
    run = pf.simulate(
        task, algorithm, rounds=50, training=training, evaluate_every=50, execution=pf.Execution(engine="loop")
    )
    distance = float((run.parameters - optimum).norm())
    assert distance > 1e-2 if mean_size is None else distance < 1e-8


def test_with_the_sub_problem_solved_the_dual_is_the_gradient_at_the_clients_model():
    task, _ = quadratic_task()
    training = pf.LocalTraining(learning_rate=0.2, epochs=60)
    points = []

    def keep(simulation, line):
        points.append((simulation.server["parameters"], {k: one["dual"] for k, one in simulation.client_state.items()}))

    pf.simulate(
        task,
        pf.FedDyn(1.0),
        rounds=3,
        training=training,
        callbacks=(keep,),
        evaluate_every=3,
        execution=pf.Execution(engine="loop"),
    )
    (w, before), (_, after) = points[1:]
    for client, row in enumerate(task.inputs):
        v = w + after[client] - before[client]
        gradient = row[3:].view(3, 3) @ (v - row[:3])
        torch.testing.assert_close(-1.0 * after[client], gradient, rtol=0, atol=1e-8)


def test_with_a_huge_alpha_the_model_stays_where_it_was():
    task, _ = quadratic_task()
    training = pf.LocalTraining(learning_rate=1e-8, epochs=20)
    run = pf.simulate(task, pf.FedDyn(1e8, "server"), rounds=1, training=training)
    assert float(run.parameters.norm()) < 1e-6


def test_with_a_vanishing_alpha_the_first_rounds_average_is_that_of_uniform_fedavg(task):
    feddyn, fedavg = (
        pf.simulate(task, algorithm, rounds=1, training=HEAVY) for algorithm in (pf.FedDyn(1e-12), pf.FedAvg("uniform"))
    )
    torch.testing.assert_close(feddyn.parameters, fedavg.parameters, rtol=0, atol=1e-10)


def test_the_servers_dual_is_the_mean_of_all_clients_whoever_drops_out_when(task, tmp_path):
    settings = {
        "rounds": 24,
        "training": SGD_OF_FEW,
        "cohort": pf.FixedCohort(2),
        "availability": pf.Bernoulli(0.7),
        "evaluate_every": 24,
        "execution": pf.Execution(engine="loop", checkpoint_seconds=0),
    }
    check = Invariant("dual", 1e-12)

    def killed(simulation, line):
        if line["round"] == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pf.simulate(one_bad_row(task), pf.FedDyn(), out=tmp_path, callbacks=(check, killed), **settings)
    resumed = pf.simulate(one_bad_row(task), pf.FedDyn(), out=tmp_path, resume=True, callbacks=(check,), **settings)
    whole = pf.simulate(one_bad_row(task), pf.FedDyn(), **settings)
    assert torch.equal(resumed.parameters, whole.parameters)
    assert len(check.moved) == 24
    assert min(check.moved) > 0
    assert sum(resumed.summary["dropped"].values()) >= 2  # lost after training
    assert 1 in resumed.client_state  # and at other times not


def test_a_client_whose_broken_upload_counts_as_zeros_keeps_its_dual(task):
    """Noise at clients hides who failed; what is added here, 20 deviations in 1e-6, is less than the tolerance."""
    check = Invariant("dual", 1e-6)
    privacy = pf.Privacy(update=[pf.Clip(100.0), pf.GaussianNoise(1e-9, at="client")])
    settings = {"rounds": 8, "training": SGD_OF_FEW, "privacy": privacy, "callbacks": (check,), "evaluate_every": 8}
    for engine in ("loop", "vectorised"):
        run = pf.simulate(one_bad_row(task), pf.FedDyn(), execution=pf.Execution(engine=engine), **settings)
        assert not run.summary["dropped"]
        assert all(0 < float(client_state["dual"].norm()) < 100 for client_state in run.client_state.values())


def test_a_client_that_is_drawn_twice_counts_once(task):
    """In the mean as in the dual: with nobody's dual from before, w⁺ − v̄ = (m/N)·(v̄ − w)."""
    check, start = Invariant("dual", 1e-12), initial(task)
    settings = {"training": SGD_OF_FEW, "cohort": pf.SizeWeightedCohort(4), "callbacks": (check,)}
    run = pf.simulate(task, pf.FedDyn(), rounds=6, **settings)
    assert any(line["clients"] < 4 for line in run.metrics)
    first = pf.simulate(task, pf.FedDyn(), rounds=1, **settings)
    clients = first.metrics[0]["clients"]
    assert clients < 4
    average, server = first.server["average"] - start, first.server["parameters"] - start
    torch.testing.assert_close(server - average, clients / 4 * average, rtol=0, atol=1e-12)


def test_under_secure_sums_the_servers_dual_is_the_mean_up_to_the_grid(task):
    check = Invariant("dual", 1e-9)
    private = pf.Privacy(update=[pf.SecureSum(mode="ideal")])
    runs = [
        pf.simulate(task, pf.FedDyn(), rounds=3, training=PLAIN, privacy=privacy, callbacks=(check,))
        for privacy in (private, pf.Privacy())
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-9)


def test_permuting_clients_changes_nothing_but_rounding(task):
    permuted = replace(task, clients=ClientIndex.of([task.clients[client].numpy() for client in (2, 0, 3, 1)]))
    training = pf.LocalTraining(learning_rate=0.2, batch_size=100, epochs=2)
    runs = [pf.simulate(one, pf.FedDyn(), rounds=3, training=training) for one in (task, permuted)]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


def test_a_round_sends_one_model_either_way(task):
    algorithm = pf.FedDyn()
    received = algorithm.broadcast(algorithm.start(initial(task)))
    assert {name: value.numel() for name, value in received.items()} == {"parameters": 650}
    for result in uploads(task, algorithm, received):
        assert {name: value.numel() for name, value in result.upload.items()} == {"update": 650}
    assert declared(algorithm)["sends"] == "update (sum)"
    assert declared(algorithm)["secure sums"] == "yes"


@dataclass(frozen=True)
class Watched(pf.FedDyn):
    tape: list = field(default_factory=list)

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, Taped(client, self.tape), training)


def test_under_dp_sgd_the_update_and_the_kept_dual_are_functions_of_the_noisy_gradients(task):
    watched, training = Watched(0.3), replace(HEAVY, steps=5)
    received, dpsgd = {"parameters": initial(task)}, pf.DPSGD(noise_multiplier=1.0, sample_rate=0.3)
    (result,) = uploads(task, watched, received, training=training, dpsgd=dpsgd, clients=[2])
    assert len(watched.tape) == sum(result.log.noisy.values()) == 5
    assert not result.log.bare
    sent, client_state = replayed(pf.FedDyn(0.3), received, watched.tape, training)
    assert torch.equal(sent["update"], result.upload["update"])
    assert torch.equal(client_state["dual"], result.client_state["dual"])


MECHANISMS = {
    "dp-sgd": (pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2)), "sample", pf.Everyone()),
    "noise on updates": (pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0)]), "client", pf.PoissonCohort(0.5)),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_mechanisms_claim_for_it_what_they_claim_for_uniform_fedavg(task, mechanism):
    privacy, unit, cohort = MECHANISMS[mechanism]
    training = pf.LocalTraining(batch_size=5, steps=2)
    ours, theirs = (
        pf.simulate(task, one, rounds=2, training=training, privacy=privacy, cohort=cohort).statement.cell(
            unit, "public"
        )
        for one in (pf.FedDyn(), pf.FedAvg("uniform"))
    )
    assert 0 < ours.epsilon == theirs.epsilon < np.inf


def test_the_noisy_sum_is_divided_by_the_public_cohort_in_the_mean_and_by_all_clients_in_the_dual(task):
    """The same sum S in both, whatever its noise: v̄ − w = S/m and u = S/N with m = qN, here N/2."""
    privacy = pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(1.0)], noise_key=1)
    run = pf.simulate(task, pf.FedDyn(), rounds=1, training=PLAIN, privacy=privacy, cohort=pf.PoissonCohort(0.5))
    assert float(run.server["dual"].norm()) > 0.1
    torch.testing.assert_close(run.server["average"] - initial(task), 2 * run.server["dual"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", [pf.FedDyn(), pf.FedDyn(mean_size=10.0)], ids=["one alpha", "one for each"])
def test_without_a_mechanism_nothing_is_claimed(task, algorithm):
    statement = pf.simulate(task, algorithm, rounds=1, training=PLAIN).statement
    for observer in ("server", "public"):
        assert statement.cell("sample", observer).epsilon == np.inf
        assert BARE_TRAINING in " ".join(statement.cell("sample", observer).reasons)
        assert statement.cell("client", observer).epsilon == np.inf


def test_dp_sgd_refuses_what_would_tell_sizes(task):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.2))
    with pytest.raises(ConfigError, match="leave mean_size out"):
        pf.simulate(task, pf.FedDyn(mean_size=10.0), rounds=1, privacy=privacy)


def test_defaults_are_the_papers():
    assert pf.FedDyn() == pf.FedDyn(alpha=0.01, evaluate="average", mean_size=None, max_gradient_norm=None)
    assert pf.Scaffold() == pf.Scaffold(option="II", weighting=None, server_learning_rate=1.0)
    assert pf.Scaffold().weighs == "uniform"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "feddyn's alpha is 0.0"),
        ({"alpha": float("inf")}, "feddyn's alpha is inf"),
        ({"evaluate": "mean"}, "feddyn's evaluate"),
        ({"mean_size": 0}, "feddyn's mean_size is 0"),
        ({"max_gradient_norm": 0.0}, "feddyn's max_gradient_norm is 0"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.FedDyn(**settings)

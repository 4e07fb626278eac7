"""AAggFF's decisions against published digits, brute force and other solvers (sections 3, 7 and 8 of the spec)."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize

from privfl.algorithms.fair.online_decisions import (
    CDFS,
    QUANTILES,
    best_fixed_decision,
    clipped_laplace_mean,
    decision_gradient,
    decision_loss,
    entropy_decision,
    entropy_scale,
    lipschitz,
    newton_bound,
    newton_constants,
    newton_step,
    next_reference,
    regret,
    relative_losses,
    relative_to,
    respond,
    sampled_lipschitz,
    visit_gain,
)
from privfl.algorithms.fair.simplex import minimise_quadratic, project, residual

ORACLES = json.loads((Path(__file__).parents[2] / "oracles" / "aaggff.json").read_text())


def double(values):
    return torch.as_tensor(values, dtype=torch.float64)


def close(found, expected, tolerance):
    torch.testing.assert_close(found, double(expected), rtol=0, atol=tolerance)


def newton_start(clients, alpha):
    uniform = torch.full((clients,), 1 / clients, dtype=torch.float64)
    return alpha * torch.eye(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.float64), uniform


def play_newton(responses, *, upper, beta=None, paper=False):
    """Decisions [T + 1, K] of the Newton step against ``responses`` [T, K], and its last A and b."""
    clients = responses.shape[1]
    alpha, default = newton_constants(clients, 0.0, upper, paper)
    curvature, linear, decision = newton_start(clients, alpha)
    played = [decision]
    for row in responses:
        curvature, linear, decision = newton_step(curvature, linear, decision, row, beta or default)
        played.append(decision)
    return torch.stack(played), curvature, linear


def sequences(clients, rounds, upper):
    """The three kinds of responses of check 6: random, skewed (one client persistently worse), cyclic."""
    draws = torch.Generator().manual_seed(clients)
    yield "random", upper * torch.rand(rounds, clients, generator=draws, dtype=torch.float64)
    yield "skewed", upper * double([0.95] + [0.15] * (clients - 1)).expand(rounds, clients)
    yield "cyclic", upper * torch.eye(clients, dtype=torch.float64)[torch.arange(rounds) % clients]


# Responses


@pytest.mark.parametrize("cdf", CDFS)
def test_distribution_functions_have_the_published_values(cdf):
    rows = ORACLES["cdf"]
    relative = relative_losses(double(rows["losses"]))
    close(relative, rows["relative"], 5e-5)
    close(respond(relative, cdf, 0.0, 1.0), rows["values"][cdf], 5e-5)


@pytest.mark.parametrize(
    ("cdf", "law"),
    [
        ("weibull", stats.weibull_min(2)),
        ("exponential", stats.expon()),
        ("frechet", stats.invweibull(1)),
        ("normal", stats.norm(1, 1)),
        ("gumbel", stats.gumbel_r(1, 1)),
        ("logistic", stats.logistic(1, 1)),
    ],
)
def test_distribution_functions_are_scipys(cdf, law):
    points = np.linspace(0, 40, 997)
    with np.errstate(divide="ignore"):
        close(CDFS[cdf](torch.from_numpy(points)), law.cdf(points), 1e-14)


@pytest.mark.parametrize("cdf", CDFS)
def test_responses_rise_with_the_loss_and_stay_in_their_range(cdf):
    answers = respond(torch.logspace(-300, 300, 4001, dtype=torch.float64), cdf, 0.1, 0.4)
    assert bool((answers.diff() >= 0).all())
    assert bool(((answers >= 0.1) & (answers <= 0.4)).all())
    assert float(respond(double(0.0), cdf, 0.1, 0.4)) >= 0.1


def test_relative_losses_have_mean_one_do_not_depend_on_the_scale_and_survive_extremes():
    losses = double([3.0, 0.5, 0.0, 7.0])
    relative = relative_losses(losses)
    assert float(relative.mean()) == pytest.approx(1, abs=1e-15)
    for scale in (1e-280, 1e-3, 1e5, 2e307):
        close(relative_losses(losses / 7 * scale), relative, 1e-12)
    assert torch.equal(relative_losses(torch.zeros(3)), torch.ones(3))
    assert torch.equal(relative_losses(double([-1.0, 2.0])), double([0.0, 2.0]))
    torch.testing.assert_close(relative_to(losses, losses.mean()), relative)
    assert torch.equal(relative_to(losses, double(0.0)), torch.ones_like(losses))


# The simplex


@pytest.mark.parametrize("seed", range(5))
def test_the_projection_is_idempotent_and_nearest(seed):
    draws = np.random.default_rng(seed)
    point = draws.normal(size=7) * 3
    nearest = project(point)
    assert abs(nearest.sum() - 1) < 1e-12
    assert nearest.min() >= 0
    np.testing.assert_allclose(project(nearest), nearest, atol=1e-15)
    others = draws.dirichlet(np.ones(7), 2000)
    assert np.linalg.norm(point - nearest) <= np.linalg.norm(point - others, axis=1).min()


@pytest.mark.parametrize("seed", range(8))
def test_quadratics_are_solved_to_kkt_and_agree_with_all_supports_enumerated(seed):
    draws = np.random.default_rng(seed)
    size = 6
    root = draws.normal(size=(size, 3)) * 10.0 ** draws.uniform(-1, 2)
    matrix, linear = np.eye(size) + root @ root.T, draws.normal(size=size) * 5
    found = minimise_quadratic(matrix, linear, np.full(size, 1 / size))
    assert residual(found, matrix @ found - linear) < 1e-8
    best = math.inf
    for count in range(1, size + 1):
        for support in itertools.combinations(range(size), count):
            chosen = list(support)
            system = np.block([[matrix[np.ix_(chosen, chosen)], -np.ones((count, 1))], [np.ones((1, count)), 0]])
            inside = np.linalg.solve(system, [*linear[chosen], 1])[:count]
            if inside.min() >= 0:
                point = np.zeros(size)
                point[chosen] = inside
                best = min(best, 0.5 * point @ matrix @ point - linear @ point)
    assert 0.5 * found @ matrix @ found - linear @ found == pytest.approx(best, abs=1e-10)


def test_a_quadratic_without_meaning_is_an_error():
    with pytest.raises(ArithmeticError, match="not finite"):
        minimise_quadratic(np.full((2, 2), np.nan), np.zeros(2), np.full(2, 0.5))


def test_an_accelerated_step_that_does_not_arrive_is_an_error(monkeypatch):
    monkeypatch.setattr("privfl.algorithms.fair.simplex.MAX_STEPS", 16)
    draws = np.random.default_rng(0)
    root = draws.normal(size=(30, 30)) * np.logspace(0, 4, 30)
    with pytest.raises(ArithmeticError, match="no minimum on the simplex was found: the residual is"):
        minimise_quadratic(np.eye(30) + root @ root.T, 1e6 * draws.normal(size=30), np.full(30, 1 / 30))


# The Newton step (check 4 to 6)


@pytest.mark.parametrize(("paper", "key"), [(True, "decisions_beta_0.75"), (False, "last_decision_beta_0.5")])
def test_the_newton_step_gives_the_golden_decisions(paper, key):
    rows = ORACLES["newton"]
    responses = torch.stack([respond(relative_losses(double(row)), rows["cdf"], 0, 1 / 3) for row in rows["losses"]])
    assert newton_constants(3, 0.0, 1 / 3, paper) == pytest.approx((4, 0.75 if paper else 0.5))
    played, _, _ = play_newton(responses, upper=1 / 3, paper=paper)
    close(played[1:] if paper else played[-1], rows[key], 5e-9)


@pytest.mark.parametrize("upper", [1 / 5, 1.0])
@pytest.mark.parametrize("paper", [True, False])
def test_the_newton_step_is_the_brute_force_minimum_of_its_objective(upper, paper):
    clients, rounds = 5, 40
    for _, responses in sequences(clients, rounds, upper):
        alpha, beta = newton_constants(clients, 0.0, upper, paper)
        played, curvature, linear = play_newton(responses, upper=upper, paper=paper)
        gradients = torch.stack([decision_gradient(p, r) for p, r in zip(played[:-1], responses, strict=True)]).numpy()
        before = played[:-1].numpy()

        def objective(p, gradients=gradients, before=before, alpha=alpha, beta=beta):
            moved = (gradients * (p - before)).sum(1)
            return gradients.sum(0) @ p + alpha / 2 * p @ p + beta / 2 * (moved**2).sum()

        answer = minimize(
            objective,
            np.full(clients, 1 / clients),
            method="SLSQP",
            bounds=[(0, 1)] * clients,
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        assert objective(played[-1].numpy()) <= answer.fun + 1e-10
        slope = (curvature @ played[-1] - linear).numpy()
        assert residual(played[-1].numpy(), slope) < 1e-8
        assert float(torch.linalg.eigvalsh(curvature)[0]) >= alpha * (1 - 1e-12)
        assert torch.equal(curvature, curvature.T)


def test_decisions_stay_on_the_simplex_whatever_the_losses():
    draws = np.random.default_rng(0)
    curvature, linear, decision = newton_start(7, newton_constants(7, 0.0, 1 / 7, False)[0])
    for cdf in CDFS:
        for _ in range(10):
            losses = torch.from_numpy(10.0 ** draws.uniform(-300, 300, 7))
            answers = respond(relative_losses(losses), cdf, 0.0, 1 / 7)
            curvature, linear, decision = newton_step(curvature, linear, decision, answers, 0.5)
            assert float(decision.min()) >= 0
            assert abs(float(decision.sum()) - 1) < 1e-9


def test_equal_losses_keep_newtons_decisions_uniform_and_a_permutation_of_clients_permutes_them():
    played, _, _ = play_newton(torch.full((50, 6), 0.1, dtype=torch.float64), upper=1 / 6)
    close(played, np.full((51, 6), 1 / 6), 1e-12)
    (_, responses), order = next(sequences(6, 30, 1.0)), torch.tensor([3, 1, 5, 0, 2, 4])
    one, other = play_newton(responses, upper=1.0)[0], play_newton(responses[:, order], upper=1.0)[0]
    torch.testing.assert_close(one[:, order], other, rtol=0, atol=1e-9)


def test_with_constant_losses_the_worst_client_never_loses_weight():
    responses = respond(relative_losses(double([0.9, 0.3, 0.5, 0.2])), "normal", 0.0, 0.25).expand(300, 4)
    played, _, _ = play_newton(responses, upper=0.25)
    assert bool((played[:, 0].diff() >= -1e-12).all())
    assert float(played[-1, 0]) > 0.3


def test_without_beta_the_newton_step_is_euclidean_ftrl():
    (_, responses) = next(sequences(4, 25, 1.0))
    played, _, _ = play_newton(responses, upper=1.0, beta=1e-12)
    total = torch.zeros(4, dtype=torch.float64)
    for row, now, following in zip(responses, played[:-1], played[1:], strict=True):
        total += decision_gradient(now, row)
        close(following, project(-total.numpy() / 16), 1e-8)


@pytest.mark.parametrize("upper", ["1/K", "1"])
@pytest.mark.parametrize("paper", [True, False])
def test_newtons_regret_stays_below_its_bound_and_vanishes_per_round(upper, paper):
    clients = 6
    top = 1 / clients if upper == "1/K" else 1.0
    for name, responses in sequences(clients, 3200, top):
        played, _, _ = play_newton(responses, upper=top, paper=paper)
        short, long = regret(played[:400], responses[:400]), regret(played[:3200], responses)
        assert long <= newton_bound(clients, 3200, 0.0, top, paper), name
        assert short <= newton_bound(clients, 400, 0.0, top, paper), name
        assert long / 3200 < short / 400, name


def test_the_general_bound_with_the_papers_beta_is_theorem_1():
    for clients, rounds in ((3, 10), (11, 100), (30, 400)):
        theorem = 2 / clients * clients * (1 + math.log(1 + rounds / (16 * clients)))
        assert newton_bound(clients, rounds, 0.0, 1 / clients, True) == pytest.approx(theorem, rel=1e-12)


@pytest.mark.parametrize(("clients", "paper", "expected"), [(11, 1.92, 1.83), (30, 2.06, 1.94)])
def test_with_one_persistently_bad_client_regret_has_the_specified_values(clients, paper, expected):
    responses = double([0.95] + [0.15] * (clients - 1)).expand(400, clients) / clients
    for flag, value in ((True, paper), (False, expected)):
        played, _, _ = play_newton(responses, upper=1 / clients, paper=flag)
        assert regret(played[:-1], responses) == pytest.approx(value, abs=0.006)


@pytest.mark.parametrize("clients", [3, 9])
def test_the_best_fixed_decision_is_covers(clients):
    for name, responses in sequences(clients, 150, 1.0):
        found, error = best_fixed_decision(responses)
        p = torch.full((clients,), 1 / clients, dtype=torch.float64)
        for _ in range(20000):
            p = p * ((1 + responses) / (1 + responses @ p)[:, None]).mean(0)
        ours, covers = (float(decision_loss(point, responses).sum()) for point in (found, p))
        assert ours <= covers + 1e-9, name
        assert ours - error <= covers, name
        assert error < 1e-5, name


def test_nothing_beats_playing_at_random_where_nobody_responds():
    best, error = best_fixed_decision(torch.zeros(5, 3))
    assert (best.tolist(), error) == ([1 / 3] * 3, 0.0)


# Sampled rounds (checks 8 to 10)


def linearised_gradient(decision, responses, reference):
    """Equation (13): the gradient's first-order expansion in the responses around ``reference`` [K], at ``responses``.

    Affine in the responses, so that an unbiased estimate of them gives an unbiased estimate of it.
    """
    scale = 1 + decision @ reference
    return -responses / scale + reference * (decision @ (responses - reference)) / scale**2


def doubly_robust(responses, members, clients):
    """Equation (12): a response [K] for every client from those of the sampled ones.

    ``ř_i = r̄ + (r_i − r̄)/C`` for the m clients ``members`` (int64 [m]), r̄ for the others, with C = m/K. Because r̄ comes
    from the same sample, E[ř_i] is not r_i but ``r_i − κ(r_i − mean r)``, κ = (K − m)/(m(K − 1)): shrunk towards the
    mean by about 1/m, in the order of the clients.
    """
    mean = responses.mean()
    filled = mean.expand(clients).clone()
    filled[members] = mean + (responses - mean) * (clients / len(members))
    return filled


def twin(decision, accumulated, responses, members, clients, rate, t, bound):
    """Equations (12) to (15) as they stand: the decision after round ``t``, and Σg so far."""
    estimate = doubly_robust(responses, members, clients)
    accumulated = accumulated + linearised_gradient(decision, estimate, responses.mean().expand(clients))
    step = bound * math.sqrt(t + 1) / math.sqrt(math.log(clients))
    return torch.softmax(-accumulated / step, 0), accumulated


def test_the_entropy_step_gives_the_golden_decision_and_weights():
    rows = ORACLES["entropy"]
    clients = rows["clients"]
    u = torch.zeros(clients, dtype=torch.float64)
    for t, row in enumerate(rows["rounds"], 1):
        members = torch.tensor(row["members"])
        rate = len(members) / clients
        answers = respond(relative_losses(double(row["losses"])), rows["cdf"], 0.0, rate)
        u[members] += visit_gain(answers, answers.mean(), rate)
        scale = entropy_scale(clients, t, sampled_lipschitz(0.0, rate, rate))
        decision = entropy_decision(u, scale)
        close(decision[members] / decision[members].sum(), row["weights"], 5e-9)
        close(entropy_decision(u[members], scale), row["weights"], 5e-9)
    close(decision, rows["decision"], 5e-9)


@pytest.mark.parametrize("cohort", [1, 2, 7])
def test_accumulators_of_visited_clients_are_all_that_the_decision_needs(cohort):
    clients, rate = 12, cohort / 12
    draws = np.random.default_rng(cohort)
    bound = sampled_lipschitz(0.0, rate, rate)
    u, total = torch.zeros(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.float64)
    short = long = torch.full((clients,), 1 / clients, dtype=torch.float64)
    for t in range(1, 200):
        members = torch.from_numpy(draws.choice(clients, cohort, replace=False))
        answers = torch.from_numpy(draws.uniform(0, rate, cohort))
        long, total = twin(long, total, answers, members, clients, rate, t, bound)
        before, old_scale = short, entropy_scale(clients, t - 1, bound)
        u[members] += visit_gain(answers, answers.mean(), rate)
        scale = entropy_scale(clients, t, bound)
        short = entropy_decision(u, scale)
        torch.testing.assert_close(short, long, rtol=1e-12, atol=1e-12)
        shifted = torch.softmax(-(total + 17.0) * scale, 0)
        torch.testing.assert_close(shifted, long, rtol=1e-9, atol=0)
        absent = np.setdiff1d(np.arange(clients), members.numpy())[:2]
        ratio, earlier = (float(p[absent[0]] / p[absent[1]]) for p in (short, before))
        assert ratio == pytest.approx(earlier ** float(scale / old_scale), rel=1e-10)


def test_the_recipe_has_its_golden_regret():
    """Mean over 200 samplings within 6 standard errors of the published mean: false alarm below 1e-8."""
    recipe = ORACLES["sampled_regret"]
    clients, cohort, rounds = recipe["clients"], recipe["cohort"], recipe["rounds"]
    rate = cohort / clients
    truth = rate * (0.2 + 0.6 * torch.arange(clients, dtype=torch.float64) / 19)
    draws = np.random.default_rng(0)
    repeats = recipe["samplings"]
    u = torch.zeros(repeats, clients, dtype=torch.float64)
    played = torch.zeros(repeats, dtype=torch.float64)
    for t in range(1, rounds + 1):
        decision = torch.softmax(u * entropy_scale(clients, t - 1, 2 + rate), 1)
        played += decision_loss(truth, decision)
        members = torch.from_numpy(np.argsort(draws.random((repeats, clients)), 1)[:, :cohort].copy())
        answers = truth[members]
        u.scatter_add_(1, members, visit_gain(answers, answers.mean(1, keepdim=True), rate))
    best = rounds * float(torch.log1p(truth.max()))
    assert float(played.mean()) + best == pytest.approx(recipe["mean"], abs=recipe["tolerance"])
    assert best_fixed_decision(truth.expand(rounds, clients))[0].argmax() == clients - 1


def test_with_everybody_the_entropy_steps_regret_stays_below_theorem_2_and_vanishes_per_round():
    clients = 6
    for name, responses in sequences(clients, 3200, 1.0):
        u = torch.zeros(clients, dtype=torch.float64)
        played = []
        for t, row in enumerate(responses):
            played.append(entropy_decision(u, entropy_scale(clients, t, lipschitz(0.0, 1.0))))
            u -= decision_gradient(played[-1], row)
        decisions = torch.stack(played)
        short, long = regret(decisions[:400], responses[:400]), regret(decisions, responses)
        assert short <= 2 * math.sqrt(400 * math.log(clients)), name
        assert long <= 2 * math.sqrt(3200 * math.log(clients)), name
        assert long / 3200 < short / 400, name


def test_every_linearised_gradient_lies_within_one_and_within_its_constant():
    draws = np.random.default_rng(5)
    for cohort in (1, 3, 5):
        rate = cohort / 10
        for _ in range(300):
            answers = torch.from_numpy(rate * draws.beta(0.2, 0.2, cohort))
            decision = torch.from_numpy(draws.dirichlet(np.full(10, 0.1)))
            estimate = doubly_robust(answers, torch.from_numpy(draws.choice(10, cohort, replace=False)), 10)
            steepest = float(linearised_gradient(decision, estimate, answers.mean().expand(10)).abs().max())
            assert steepest <= 1 + 1e-12
    assert sampled_lipschitz(0.0, 0.3, 0.3) == pytest.approx(2.3)


@pytest.mark.parametrize("clients", [100_000, 2])
def test_nothing_overflows_in_ten_thousand_adversarial_rounds(clients):
    cohort = 1 if clients == 2 else 5
    rate = cohort / clients
    u = torch.zeros(clients, dtype=torch.float64)
    members = torch.arange(cohort)
    for t in range(1, 10_001):
        answers = torch.zeros(cohort, dtype=torch.float64)
        answers[0] = rate
        u[members] += visit_gain(answers, answers.mean(), rate)
        if t % 1000 == 0:
            decision = entropy_decision(u, entropy_scale(clients, t, 2 + rate))
            assert bool(torch.isfinite(decision).all())
            assert abs(float(decision.sum()) - 1) < 1e-9
    assert float(entropy_decision(torch.zeros(1), entropy_scale(1, 3, 2.0))) == 1


# Table 3.2 (check 11), and what randomised reports lead to


@pytest.mark.parametrize("cdf", CDFS)
def test_quantiles_invert_the_distribution_functions(cdf):
    chances = torch.linspace(0.001, 0.999, 501, dtype=torch.float64)
    torch.testing.assert_close(CDFS[cdf](QUANTILES[cdf](chances)), chances, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 20.0])
def test_the_mean_of_a_clipped_laplace_answer_is_its_integral(epsilon):
    for truth in (0.0, 0.2, 0.5, 0.93, 1.0):
        law = stats.laplace(truth, 1 / epsilon)
        inner, _ = quad(lambda y, law=law: y * law.pdf(y), 0, 1, points=[truth])
        expected = inner + law.sf(1)
        assert float(clipped_laplace_mean(double(truth), epsilon)) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("cdf", CDFS)
def test_the_reference_follows_the_mean_loss_by_at_most_a_factor_of_two_in_a_round(cdf):
    for factor, moved in ((1.0, 1.0), (0.7, 0.7), (1.6, 1.6), (0.1, 0.5), (50.0, 2.0)):
        exact = CDFS[cdf](double([factor]))
        answer = clipped_laplace_mean(exact, 3.0)
        assert float(next_reference(double(2.0), answer, cdf, 3.0)) == pytest.approx(2.0 * moved, rel=1e-6)
    for extreme in (0.0, 1.0):
        found = float(next_reference(double(2.0), double([extreme, extreme]), cdf, 0.1))
        assert found == (1.0 if extreme == 0 else 4.0)

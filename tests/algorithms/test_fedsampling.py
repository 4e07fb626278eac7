"""FedSampling: checks 4 to 9 of its specification (Qi et al., 2023). Statistical tests: 5 s.e. two-sided is 6e-7."""

import math

import numpy as np
import pytest
import torch

import privfl as pf
from privfl.algorithms import FedSampling, NaiveFedSampling
from privfl.errors import ConfigError
from privfl.privacy.accounting.accountant import randomized_response_total
from tests.algorithms.federation import digits_task, full_gradient, initial, task_of, uploads, uploads_of_rounds

SIZES = (3, 5, 2, 90, 40, 60)


def received(task, rate, parameters=None):
    start = initial(task) if parameters is None else parameters
    return {"parameters": start, "rate": torch.tensor(rate, dtype=torch.float64)}


def selections(task, rate, rounds, algorithm=None):
    """Which samples were used, [rounds, samples]: features are one-hot, so the upload of a zero model shows them."""
    algorithm = algorithm or FedSampling(samples_per_round=50)
    used = np.zeros((rounds, len(task.targets)))
    for round, results in enumerate(uploads_of_rounds(task, algorithm, received(task, rate), rounds)):
        for result in results:
            weight = result.upload["update"][: 10 * len(task.targets)].view(10, -1)
            used[round] += (weight.abs().sum(0) > 0).numpy()
    return used


@pytest.fixture(scope="module")
def one_hot_task():
    samples = sum(SIZES)
    return task_of(torch.eye(samples, dtype=torch.float64), torch.arange(samples) % 10, SIZES)


@pytest.fixture(scope="module")
def used(one_hot_task):
    return selections(one_hot_task, 0.3, 800)


def test_every_sample_is_used_with_the_same_frequency_whatever_its_client_holds(used):
    rounds, rate = len(used), 0.3
    frequency = used.mean(0)
    error = math.sqrt(rate * (1 - rate) / rounds)
    assert abs(frequency.mean() - rate) < 5 * error / math.sqrt(used.shape[1])
    assert np.abs(frequency - rate).max() < 6.3 * error  # 5 s.e. corrected for 200 comparisons
    sizes = np.repeat(SIZES, SIZES)
    centred = sizes - sizes.mean()
    slope = centred @ frequency / (centred @ centred)
    assert abs(slope) < 5 * error / math.sqrt(centred @ centred)


def test_inclusions_of_different_samples_are_uncorrelated(used):
    rounds, rate = len(used), 0.3
    covariance = np.cov(used.T, bias=True)
    off = covariance[~np.eye(len(covariance), dtype=bool)]
    assert np.abs(off).max() < 7.5 * rate * (1 - rate) / math.sqrt(rounds)  # 5 s.e. corrected for 20,000 pairs


def test_uniform_client_sampling_uses_samples_of_small_clients_more_per_sample():
    draws = np.random.default_rng(0)
    frequency = np.zeros(len(SIZES))
    for _ in range(4000):
        frequency[draws.integers(len(SIZES))] += 1
    weight = frequency / 4000 / np.array(SIZES)  # what one sample counts for after the mean over the client
    assert weight[2] > 20 * weight[3]


def test_with_p_equal_to_1_and_one_client_a_round_is_a_full_gradient_step():
    task = digits_task([60])
    run = pf.simulate(task, FedSampling(samples_per_round=100), rounds=3, training=pf.LocalTraining(learning_rate=0.7))
    parameters = initial(task)
    for _ in range(3):
        parameters = parameters - 0.7 * full_gradient(task, parameters) / 100  # η·N/K times the mean gradient
    torch.testing.assert_close(run.parameters, parameters, rtol=0, atol=1e-12)
    assert run.metrics[0]["sampling_rate"] == 1.0


def test_the_expected_sum_of_updates_is_pN_over_K_times_the_mean_gradient():
    task, rate, k = digits_task(SIZES), 0.25, 50
    generator = torch.Generator().manual_seed(1)
    point = torch.randn(initial(task).shape, generator=generator, dtype=torch.float64) * 0.1
    rounds = 800
    sums = torch.stack(
        [
            torch.stack([result.upload["update"] for result in results]).sum(0)
            for results in uploads_of_rounds(task, FedSampling(k), received(task, rate, point), rounds)
        ]
    )
    expected = rate * full_gradient(task, point) / k
    error = sums.std(0) / math.sqrt(rounds)
    close = (sums.mean(0) - expected).abs() <= 5.9 * error + 1e-12  # 5 s.e. corrected for 650 coordinates
    assert bool(close.all())


def test_the_same_selection_gives_the_same_trajectory_however_samples_are_spread_over_clients():
    """Data-level equivalence: pooled or apart, given the same N̂ and the same samples chosen (p = 1 chooses all)."""
    apart, pooled = digits_task(SIZES), digits_task([sum(SIZES)])
    runs = [
        pf.simulate(task, FedSampling(samples_per_round=500), rounds=4, training=pf.LocalTraining(learning_rate=0.5))
        for task in (apart, pooled)
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)
    rows = torch.tensor([0, 4, 9, 60, 150])
    start = initial(apart)
    chosen = sum(
        full_gradient(apart, start, rows[(rows >= low) & (rows < high)])
        for low, high in zip(apart.clients.offsets, apart.clients.offsets[1:], strict=False)
        if bool(((rows >= low) & (rows < high)).any())
    )
    torch.testing.assert_close(chosen, full_gradient(pooled, start, rows), rtol=0, atol=1e-12)


def test_clipping_makes_the_estimate_depend_on_how_samples_are_spread():
    sizes = [3, 5, 2, 90, 400, 500]
    exact = pf.RandomizedResponse(epsilon=math.inf, bound=100)
    stream = __import__("privfl.privacy.noise.source", fromlist=["NoiseSource"]).NoiseSource.from_key(1).stream("x")
    assert exact.estimate(exact.respond(np.array(sizes), stream)).value == 300
    assert exact.estimate(exact.respond(np.array([1000]), stream)).value == 100


def test_an_empty_selection_sends_zeros_and_no_nan():
    task = digits_task((1, 1, 1))
    results = uploads(task, FedSampling(samples_per_round=10), received(task, 1e-9))
    assert [float(result.upload["update"].abs().max()) for result in results] == [0.0, 0.0, 0.0]
    results = uploads(task, NaiveFedSampling(rate=1e-9), {"parameters": initial(task)})
    assert all(float(r.upload["update"].abs().max()) == 0 and float(r.upload["answered"]) == 0 for r in results)
    run = pf.simulate(task, NaiveFedSampling(rate=1e-9), rounds=2)
    assert torch.equal(run.parameters, initial(task))


def test_an_empty_selection_under_dp_sgd_is_pure_noise():
    task = digits_task((1, 1), dtype=torch.float32)
    results = uploads(task, FedSampling(10), received(task, 1e-9), dpsgd=pf.DPSGD(noise_multiplier=2.0))
    for result in results:
        update = result.upload["update"]
        assert bool(update.isfinite().all())
        assert float(update.std()) == pytest.approx(2.0 / 10, rel=0.2)


@pytest.mark.parametrize(("sizes", "unbiased"), [((40, 40, 40), True), ((3, 3, 114), False)])
def test_the_naive_variant_is_unbiased_only_for_equal_sizes(sizes, unbiased):
    task, rate, rounds = digits_task(sizes), 0.5, 300
    naive = torch.zeros(rounds, initial(task).numel(), dtype=torch.float64)
    for round in range(rounds):
        results = uploads(task, NaiveFedSampling(rate), {"parameters": initial(task)}, round=round)
        answered = sum(float(result.upload["answered"]) for result in results)
        naive[round] = torch.stack([result.upload["update"] for result in results]).sum(0) / answered
    target = full_gradient(task, initial(task)) / sum(sizes)
    error = naive.std(0) / math.sqrt(rounds) + 1e-12
    worst = float(((naive.mean(0) - target).abs() / error).max())
    assert (worst < 5.9) == unbiased


def test_several_local_steps_send_the_scaled_movement():
    task = digits_task([20])
    algorithm = FedSampling(samples_per_round=40, local_steps=3)
    training = pf.LocalTraining(learning_rate=0.1)
    (result,) = uploads(task, algorithm, received(task, 1.0), training=training)
    parameters = initial(task)
    for _ in range(3):
        parameters = parameters - 0.1 * full_gradient(task, parameters) / 20
    expected = (20 / 40) * (initial(task) - parameters) / 0.1
    torch.testing.assert_close(result.upload["update"], expected, rtol=0, atol=1e-12)


def test_several_local_steps_reveal_the_selection_and_are_refused_under_dp_sgd():
    with pytest.raises(ConfigError, match="reveals how many samples it chose; use 1"):
        pf.simulate(
            digits_task([20]),
            FedSampling(local_steps=2),
            rounds=1,
            privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0)),
        )


def test_a_capped_rate_claims_no_amplification():
    task = digits_task((20, 30), dtype=torch.float32)
    run = pf.simulate(
        task,
        FedSampling(samples_per_round=10_000),
        rounds=2,
        privacy=pf.Privacy(
            training=pf.DPSGD(noise_multiplier=1.0, noise_at="server"),
            size=pf.LaplaceSize(epsilon=8, bound=60),
            max_size_error=99,
        ),
    )
    assert run.metrics[0]["sampling_rate"] == 1.0
    assert any("capped at 1 and nothing is amplified" in warning for warning in run.summary["warnings"])
    cell = run.statement.cell("sample", "public")
    assert any(
        "Gaussian noise 1" in counted.mechanism and "Poisson" not in counted.mechanism for counted in cell.releases
    )


@pytest.mark.parametrize(("refresh", "answers"), [("once", 1), (2, 3), ("every_round", 5)])
def test_a_memoised_answer_is_charged_once_and_a_fresh_one_every_time(refresh, answers):
    task = digits_task((20, 30, 40), dtype=torch.float32)
    run = pf.simulate(
        task,
        FedSampling(samples_per_round=20),
        rounds=5,
        privacy=pf.Privacy(size=pf.RandomizedResponse(epsilon=3, bound=60, refresh=refresh), max_size_error=99),
    )
    rates = [line["sampling_rate"] for line in run.metrics]
    assert len(set(rates)) == (1 if answers == 1 else len(set(rates)))
    counted = {release.name: release.count for release in run.statement.cell("client", "server").releases}
    assert counted["size response"] == answers


def test_fresh_answers_cost_what_the_exact_composition_says():
    task = digits_task((20, 30, 40), dtype=torch.float32)
    size = pf.RandomizedResponse(epsilon=3, bound=60, refresh="every_round")
    dpsgd = pf.DPSGD(noise_multiplier=1e5, noise_at="server")
    privacy = pf.Privacy(training=dpsgd, size=size, max_size_error=99)
    run = pf.simulate(task, FedSampling(samples_per_round=20), rounds=6, privacy=privacy)
    total = randomized_response_total(3, 60, 6, 1e-5).epsilon
    assert run.statement.cell("sample", "public").epsilon == pytest.approx(total, rel=1e-2)
    assert run.statement.cell("sample", "public").epsilon >= total * (1 - 1e-3)

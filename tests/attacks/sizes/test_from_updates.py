"""FedSampling's public divisor leaves the number of chosen examples in every update, and so a client's size."""

import pytest
import torch

import privfl as pf
from attacks.observations.head_gradients import ClassGradients, HeadGradient, class_gradients
from attacks.observations.label_counts import counts_by_regression, total_variance
from attacks.sizes.from_updates import size_from_chosen
from privfl.errors import ConfigError
from privfl.models.flat_network import Layout
from tests.attacks.labelled_batches import CLASSES, batch, counts, drawn_labels, halves, head_gradient, untrained

DATA = halves()
K = 512


def sent(network, labels, seed):
    """The head's part of Δ_u = (1/K)·Σ ∇ℓ, from the mean gradient, and the labels behind it."""
    inputs, targets = batch(labels, DATA.private, seed)
    weight, bias = head_gradient(network, inputs, targets)
    return HeadGradient(weight.double() * len(labels) / K, bias.double() * len(labels) / K)


def test_the_regression_needs_no_absent_class_and_no_zero_head():
    """60 examples of all classes on five untrained networks: each total to 20 %, their mean to 8 %."""
    totals = []
    for seed in range(5):
        network = untrained(seed)
        labels = drawn_labels(60, seed, 5.0)
        auxiliary = class_gradients(network, *DATA.public, CLASSES)
        found = counts_by_regression(sent(network, labels, seed).vector() * K, auxiliary, signed=True)
        totals.append(float(found.sum()))
        assert totals[-1] == pytest.approx(60, rel=0.2)
        truth = torch.tensor(counts(torch.tensor(labels)), dtype=torch.float64)
        assert float((found - truth).abs().max()) < 4
    assert sum(totals) / 5 == pytest.approx(60, rel=0.08)


def test_real_uploads_of_a_run_reveal_every_size():
    """Six clients of FedSampling under randomised sizes: 20 rounds of what the server saw, and public digits."""
    inputs, targets = DATA.private
    sizes = [5, 10, 20, 40, 80, 160]
    owners = torch.repeat_interleave(torch.arange(6), torch.tensor(sizes)).numpy()
    task = pf.Task.from_arrays(
        inputs[: sum(sizes)].numpy(),
        targets[: sum(sizes)].numpy(),
        clients=owners,
        test=tuple(p.numpy() for p in DATA.public),
        model="two-nn",
    )
    answers = pf.RandomizedResponse(epsilon=6.0, bound=200)
    run = pf.simulate(
        task,
        pf.FedSampling(samples_per_round=60),
        rounds=20,
        training=pf.LocalTraining(learning_rate=0.02),
        privacy=pf.Privacy(size=answers, max_size_error=1000, noise_key=3),
        record=True,
        evaluate_every=20,
    )
    transcript = run.transcript
    chosen = {client: [] for client in range(6)}
    rates = []
    for seen in transcript:
        network = transcript.network(seen.broadcast["parameters"])
        auxiliary = class_gradients(network, *DATA.public, CLASSES)
        rates.append(float(seen.broadcast["rate"]))
        layout = Layout.of(network)
        for client, upload in seen.uploads.items():
            head = HeadGradient.of(upload["update"], layout).vector()
            chosen[client].append(float(counts_by_regression(head.double() * 60, auxiliary, signed=True).sum()))
    for client, size in enumerate(sizes):
        expected = 5 * (size * (1 - rates[0]) / (rates[0] * 20)) ** 0.5 + 0.1 * size  # binomial, and the regression
        assert abs(size_from_chosen(chosen[client], rates) - size) < expected


def test_the_size_is_the_total_over_the_total_rate():
    """Maximum likelihood of binomial counts, against a grid of sizes."""
    from scipy.stats import binom

    chosen, rates = [3, 5, 2, 4], [0.1, 0.2, 0.1, 0.15]
    grid = range(5, 100)
    likelihood = [sum(binom.logpmf(m, n, p) for m, p in zip(chosen, rates, strict=True)) for n in grid]
    best = grid[max(range(len(grid)), key=likelihood.__getitem__)]
    assert size_from_chosen(chosen, rates) == pytest.approx(best, abs=1)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: size_from_chosen([], []), "one of each"),
        (lambda: size_from_chosen([1.0], [0.0]), "rate"),
    ],
)
def test_what_says_nothing_about_a_size_is_refused(call, named):
    with pytest.raises(ConfigError, match=named):
        call()


def test_rounds_that_tell_little_weigh_little():
    """Least variance by brute force over weights, and a round that chose everything and is read exactly decides."""
    rates, variances = [0.2, 0.5], [0.5, 0.05]
    noise = [0.8 + 0.5, 0.5 + 0.05]  # 1 − p + v

    def spread(weight):
        total = weight * rates[0] + rates[1]
        return (weight**2 * rates[0] * noise[0] + rates[1] * noise[1]) / total**2

    best = min((weight / 1000 for weight in range(1, 3000)), key=spread)
    found = size_from_chosen([1.0, 0.0], rates, variances)
    assert found == pytest.approx(best / (best * rates[0] + rates[1]), rel=2e-3)
    assert size_from_chosen([40.0, 3.0], [1.0, 0.1], [0.0, 0.2]) == pytest.approx(40, rel=1e-6)


def test_the_variance_of_the_total_is_that_of_least_squares():
    """Independent noise of the stated deviations on made-up gradients: 1 500 draws, five standard errors (18 %)."""
    generator = torch.Generator().manual_seed(2)
    means = torch.randn(3, 30, generator=generator, dtype=torch.float64)
    deviations = 0.5 + torch.rand(30, generator=generator, dtype=torch.float64)
    auxiliary = ClassGradients(means, deviations, torch.ones(3, dtype=torch.bool))
    noise = torch.randn(1500, 30, generator=generator, dtype=torch.float64) * deviations
    found = [float(counts_by_regression(means.sum(0) + one, auxiliary, signed=True).sum()) for one in noise]
    spread = torch.tensor(found)
    assert float(spread.mean()) == pytest.approx(3, abs=5 * float(spread.std()) / 1500**0.5)
    assert float(spread.var()) == pytest.approx(total_variance(auxiliary), rel=5 * (2 / 1500) ** 0.5)

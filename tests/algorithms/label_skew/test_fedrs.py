"""FedRS: whole rounds against a plain twin, its limits, and what its label counts cost."""

import math

import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from torch import nn

import privfl as pf
from privfl.algorithms.label_skew.calibrated_logits import calibrated_loss
from privfl.algorithms.label_skew.fedrs import FedRS
from privfl.errors import ConfigError
from privfl.federation.task import cross_entropy
from tests.algorithms.federation import initial, uploads
from tests.algorithms.label_skew.federation import HELD, counts_of, permuted, run, skewed_task, twin


@pytest.fixture(scope="module")
def task():
    return skewed_task()


def restricted(fedrs):
    """The mean of ``−log e^{α_y·z_y} / Σ_c e^{α_c·z_c}``, row by row."""

    def objective(logits, targets, counts):
        shares = counts / counts.max() if fedrs.form == "graded" else (counts > 0).double()
        alphas = [fedrs.alpha + (1 - fedrs.alpha) * float(share) for share in shares]
        terms = []
        for row, target in zip(logits, targets.tolist(), strict=True):
            scaled = [alpha * logit for alpha, logit in zip(alphas, row, strict=True)]
            terms.append(torch.stack(scaled).exp().sum().log() - scaled[target])
        return torch.stack(terms).mean()

    return objective


VARIANTS = {
    "binary": FedRS(),
    "binary, 0.1": FedRS(alpha=0.1),
    "graded": FedRS(form="graded"),
    "nothing left": FedRS(alpha=0.0),
}


@pytest.mark.parametrize("fedrs", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_three_rounds_with_clients_that_come_and_go_are_those_of_a_plain_twin(task, fedrs, engine):
    found = run(task, fedrs, execution=pf.Execution(engine=engine)).parameters
    torch.testing.assert_close(found, twin(task, restricted(fedrs)), rtol=0, atol=1e-10)


def test_the_variants_differ_so_that_the_twin_tells_them_apart(task):
    ends = [run(task, fedrs).parameters for fedrs in VARIANTS.values()]
    assert min(float((one - other).abs().max()) for i, one in enumerate(ends) for other in ends[:i]) > 1e-3


@pytest.mark.parametrize("form", ["binary", "graded"])
def test_with_alpha_1_it_is_fedavg(task, form):
    found, expected = (run(task, algorithm).parameters for algorithm in (FedRS(alpha=1.0, form=form), pf.FedAvg()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_where_every_client_holds_all_classes_the_binary_form_is_fedavg(task):
    whole = task.pooled()
    found, expected = (run(whole, one, availability=None).parameters for one in (FedRS(alpha=0.1), pf.FedAvg()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_missing_class_is_pushed_away_by_alpha_times_its_probability(task):
    counts = counts_of(task, 0)
    factor, shift = FedRS(alpha=0.3).calibration(counts)
    assert factor.tolist() == [1.0 if one in HELD[0] else pytest.approx(0.3) for one in range(10)]
    logits = torch.randn(4, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.tensor([0, 1, 1, 0])
    loss = calibrated_loss(cross_entropy, lambda _: logits, logits, targets, factor, shift)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    expected = factor * ((factor * logits.detach()).softmax(1) - nn.functional.one_hot(targets, 10))
    torch.testing.assert_close(gradient, expected)


def test_noisy_counts_give_factors_between_alpha_and_1():
    counts = torch.tensor([-3.0, 0.4, 12.0, 2.0])
    assert FedRS(alpha=0.5).calibration(counts)[0].tolist() == [0.5, 0.5, 1.0, 1.0]
    assert FedRS(alpha=0.5).calibration(torch.tensor([1.0, 0.0, 12.0]))[0].tolist() == [1.0, 0.5, 1.0]  # one is enough
    assert FedRS(alpha=0.5, present_from=5.0).calibration(counts)[0].tolist() == [0.5, 0.5, 1.0, 0.5]
    graded = FedRS(alpha=0.4, form="graded").calibration(counts)[0]
    torch.testing.assert_close(graded, torch.tensor([0.4, 0.4 + 0.6 / 30, 1.0, 0.5]))
    for form in ("binary", "graded"):
        assert FedRS(form=form).calibration(torch.tensor([-1.0, -2.0]))[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_test_sees_the_plain_logits(task, engine):
    fedrs = FedRS(alpha=0.1)
    found = run(task, fedrs, 1, execution=pf.Execution(engine=engine))
    network = task.model(0)
    nn.utils.vector_to_parameters(found.parameters, network.parameters())
    right = (network(task.test_inputs).argmax(1) == task.test_targets).double().mean()
    assert found.metrics[-1]["test_accuracy"] == pytest.approx(float(right))


def test_a_client_sends_its_update_alone(task):
    for result in uploads(task, FedRS(), {"parameters": initial(task)}):
        assert {name: value.numel() for name, value in result.upload.items()} == {"update": len(initial(task))}
        assert result.client_state == {}


def test_permuting_clients_changes_nothing_but_rounding(task):
    training = pf.LocalTraining(learning_rate=0.2, batch_size=10**6, epochs=2)
    runs = [run(one, FedRS(), training=training, availability=None).parameters for one in (task, permuted(task))]
    torch.testing.assert_close(*runs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -0.1}, "fedrs's alpha is -0.1"),
        ({"alpha": 1.1}, "fedrs's alpha is 1.1"),
        ({"form": "soft"}, "fedrs's form"),
        ({"present_from": 0.0}, "fedrs's present_from is 0.0"),
        ({"server_learning_rate": 0.0}, "fedrs's server_learning_rate is 0.0"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        FedRS(**settings)


DPSGD = pf.DPSGD(noise_multiplier=2.0, sample_rate=0.25)


def private(task, fedrs, statistics, rounds=2, **options):
    training = pf.LocalTraining(learning_rate=0.1, batch_size=5, steps=3)
    privacy = pf.Privacy(training=DPSGD, statistics=statistics, noise_key=1)
    return run(task, fedrs, rounds, training=training, privacy=privacy, availability=None, **options)


def test_with_dp_sgd_one_sample_pays_for_gradients_and_noisy_labels(task):
    fedrs = FedRS(weighting="uniform", present_from=8.0)
    statement = private(task, fedrs, [pf.NoisyTotal("label_prior", 1.0, 4.0)]).statement
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.25, GaussianDpEvent(2.0)), 6))
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(4.0), 2))
    for observer in ("server", "public"):
        found = statement.cell("sample", observer).epsilon
        assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-2)


def test_the_private_form_is_the_same_one_by_one_and_stacked(task):
    """The noise is the same too; it is rounded to a grid of σ·2⁻²⁰, so sums may land one step apart."""
    fedrs, noisy = FedRS(form="graded", weighting="uniform"), [pf.NoisyTotal("label_prior", 1.0, 1.0)]
    one, stacked = (
        private(task, fedrs, noisy, execution=pf.Execution(engine=engine)).parameters
        for engine in ("loop", "vectorised")
    )
    torch.testing.assert_close(one, stacked, rtol=0, atol=1e-5)


def test_exact_label_counts_make_the_claim_infinite_and_none_cost_nothing(task):
    statement = private(task, FedRS(weighting="uniform"), []).statement
    assert statement.cell("sample", "server").epsilon == math.inf
    assert "sums over samples are sent without a mechanism" in " ".join(statement.cell("sample", "server").reasons)
    plain, fedavg = (
        private(task, one, []).statement.cell("sample", "server").epsilon
        for one in (FedRS(alpha=1.0, weighting="uniform"), pf.FedAvg("uniform"))
    )
    assert plain == fedavg < math.inf
    with pytest.raises(ConfigError, match=r"fedrs takes no total named 'label_prior' \(it takes none\)"):
        private(task, FedRS(alpha=1.0, weighting="uniform"), [pf.NoisyTotal("label_prior", 1.0, 1.0)])


def test_without_mechanisms_the_statement_claims_nothing_and_says_why(task):
    statement = run(task, FedRS(), 1).statement
    assert all(cell.epsilon == math.inf for cell in statement.cells)
    assert "sums over samples are sent without a mechanism" in " ".join(str(statement).split())
    assert "exact number of samples is sent" in " ".join(str(statement).split())

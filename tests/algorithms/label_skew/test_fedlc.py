"""FedLC: whole rounds against a plain twin, its limits, its mask, and what its label counts cost."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from torch import nn

import privfl as pf
from privfl.algorithms.label_skew.calibrated_logits import calibrated_loss
from privfl.algorithms.label_skew.fedlc import FedLC
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import cross_entropy
from tests.algorithms.federation import initial, task_of, uploads
from tests.algorithms.label_skew.federation import HELD, permuted, run, skewed_task, twin


@pytest.fixture(scope="module")
def task():
    return skewed_task()


def calibrated(tau, least=0.0):
    """The mean of ``−log e^{z_y − τ·n_y^(−1/4)} / Σ_c e^{z_c − τ·n_c^(−1/4)}`` over classes that count."""

    def objective(logits, targets, counts):
        shifts = {c: tau / max(float(n), least) ** 0.25 for c, n in enumerate(counts) if max(float(n), least) > 0}
        terms = []
        for row, target in zip(logits, targets.tolist(), strict=True):
            below = torch.stack([row[c] - shift for c, shift in shifts.items()]).exp().sum().log()
            terms.append(below - (row[target] - shifts[target]))
        return torch.stack(terms).mean()

    return objective


VARIANTS = {
    "masked": (FedLC(), calibrated(1.0)),
    "masked, 2": (FedLC(tau=2.0), calibrated(2.0)),
    "as if one were there": (FedLC(least_count=1.0), calibrated(1.0, 1.0)),
}


@pytest.mark.parametrize(("fedlc", "objective"), VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_three_rounds_with_clients_that_come_and_go_are_those_of_a_plain_twin(task, fedlc, objective, engine):
    found = run(task, fedlc, execution=pf.Execution(engine=engine)).parameters
    torch.testing.assert_close(found, twin(task, objective), rtol=0, atol=1e-10)


def test_the_variants_differ_so_that_the_twin_tells_them_apart(task):
    ends = [run(task, fedlc).parameters for fedlc, _ in VARIANTS.values()]
    assert min(float((one - other).abs().max()) for i, one in enumerate(ends) for other in ends[:i]) > 1e-3


def test_a_count_of_1e_8_for_none_is_what_public_code_does_and_nearly_a_mask(task):
    """n + 1e-8 there and max(n, 1e-8) here; both shift a missing class by −100."""
    found = run(task, FedLC(least_count=1e-8)).parameters
    public = twin(task, lambda z, y, n: F.cross_entropy(z - (n + 1e-8).pow(-0.25), y))
    torch.testing.assert_close(found, public, rtol=0, atol=1e-8)
    torch.testing.assert_close(found, run(task, FedLC()).parameters, rtol=0, atol=1e-9)


def test_without_tau_it_is_fedavg(task):
    found, expected = (run(task, algorithm).parameters for algorithm in (FedLC(tau=0.0), pf.FedAvg()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_with_balanced_classes_it_is_fedavg(task):
    labels = torch.arange(20) % 10
    balanced = task_of(task.inputs[:40], torch.cat([labels, labels]), (20, 20))
    found, expected = (run(balanced, one, availability=None).parameters for one in (FedLC(tau=3.0), pf.FedAvg()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_shift_of_16_samples_is_half_of_that_of_one():
    factor, shift = FedLC(tau=3.0).calibration(torch.tensor([1.0, 16.0, 81.0, 0.0, -2.5]))
    torch.testing.assert_close(shift, torch.tensor([-3.0, -1.5, -1.0, -math.inf, -math.inf]))
    assert factor.tolist() == [1.0] * 5
    noisy = FedLC(least_count=1.0).calibration(torch.tensor([-2.5, 0.3, 16.0]))[1]
    torch.testing.assert_close(noisy, torch.tensor([-1.0, -1.0, -0.5]))


def test_a_masked_class_that_is_a_target_is_pushed_up_with_full_weight_whatever_its_logit():
    shift = FedLC().calibration(torch.tensor([-2.5, 16.0, 16.0]))[1]
    logits = torch.tensor([[50.0, 1.0, 1.0]]).requires_grad_()
    loss = calibrated_loss(cross_entropy, lambda _: logits, logits, torch.tensor([0]), torch.ones(3), shift)
    assert loss.tolist() == [math.inf]
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(gradient, torch.tensor([[-1.0, 0.5, 0.5]]))


def alone(task, client):
    return replace(task, clients=ClientIndex.of([task.clients[client].numpy()]))


def test_the_head_of_classes_that_a_client_does_not_hold_stays(task):
    training = pf.LocalTraining(learning_rate=0.5, batch_size=10)
    found = run(alone(task, 0), FedLC(), 1, training=training, availability=None).parameters
    layout = FedLC().bind(task.context(1, 0)).context.layout
    moved = layout.named_views(found - initial(task))["head.weight"].abs().amax(1)
    held = torch.tensor(sorted(HELD[0]))
    missing = torch.tensor(sorted(set(range(10)) - set(HELD[0])))
    assert (moved[held] > 1e-3).all()
    assert torch.equal(moved[missing], torch.zeros(8).double())


def test_a_client_with_one_class_learns_nothing_behind_its_mask(task):
    found = run(alone(task, 3), FedLC(), 2, training=pf.LocalTraining(), availability=None).parameters
    assert torch.equal(found, initial(task))


def test_a_test_sees_the_plain_logits(task):
    found = run(task, FedLC(), 1)
    network = task.model(0)
    nn.utils.vector_to_parameters(found.parameters, network.parameters())
    right = (network(task.test_inputs).argmax(1) == task.test_targets).double().mean()
    assert found.metrics[-1]["test_accuracy"] == pytest.approx(float(right))


def test_a_client_sends_its_update_alone(task):
    for result in uploads(task, FedLC(), {"parameters": initial(task)}):
        assert {name: value.numel() for name, value in result.upload.items()} == {"update": len(initial(task))}
        assert result.client_state == {}


def test_permuting_clients_changes_nothing_but_rounding(task):
    training = pf.LocalTraining(learning_rate=0.2, batch_size=10**6, epochs=2)
    runs = [run(one, FedLC(), training=training, availability=None).parameters for one in (task, permuted(task))]
    torch.testing.assert_close(*runs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": -1.0}, "fedlc's tau is -1.0"),
        ({"tau": math.inf}, "fedlc's tau is inf"),
        ({"least_count": -1e-8}, "fedlc's least_count is -1e-08"),
        ({"weighting": "sise"}, "fedlc's weighting is 'sise'"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        FedLC(**settings)


def private(task, fedlc, statistics, rounds=2):
    training = pf.LocalTraining(learning_rate=0.1, batch_size=5, steps=3)
    dpsgd = pf.DPSGD(noise_multiplier=2.0, sample_rate=0.25)
    privacy = pf.Privacy(training=dpsgd, statistics=statistics, noise_key=1)
    return run(task, fedlc, rounds, training=training, privacy=privacy, availability=None)


def test_dp_sgd_refuses_the_mask(task):
    with pytest.raises(ConfigError, match=r"fedlc masks the classes that a client does not hold.*set least_count > 0"):
        private(task, FedLC(weighting="uniform"), [pf.NoisyTotal("label_prior", 1.0, 4.0)])


def test_without_the_mask_one_sample_pays_for_gradients_and_noisy_labels(task):
    found = private(task, FedLC(least_count=1.0, weighting="uniform"), [pf.NoisyTotal("label_prior", 1.0, 4.0)])
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.25, GaussianDpEvent(2.0)), 6))
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(4.0), 2))
    for observer in ("server", "public"):
        epsilon = found.statement.cell("sample", observer).epsilon
        assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-2)
    assert found.summary["dropped"] == {}


def test_exact_label_counts_make_the_claim_infinite_and_none_cost_nothing(task):
    statement = private(task, FedLC(least_count=1.0, weighting="uniform"), []).statement
    assert statement.cell("sample", "server").epsilon == math.inf
    assert "sums over samples are sent without a mechanism" in " ".join(statement.cell("sample", "server").reasons)
    assert (FedLC().statistics, FedLC(tau=0.0).statistics) == (("label_prior",), ())
    assert FedLC(tau=0.0).dpsgd_refusal() == ""


def test_noise_on_updates_claims_for_it_what_it_claims_for_fedavg(task):
    privacy = pf.Privacy(update=[pf.Clip(0.5), pf.GaussianNoise(2.0)])
    epsilons = [
        run(task, one, 1, privacy=privacy).statement.cell("client", "public").epsilon
        for one in (FedLC(weighting="uniform"), pf.FedAvg("uniform"))
    ]
    assert epsilons[0] == epsilons[1] < math.inf
    assert np.isfinite(epsilons[0])


def test_without_mechanisms_the_statement_claims_nothing_and_says_why(task):
    statement = run(task, FedLC(), 1).statement
    assert all(cell.epsilon == math.inf for cell in statement.cells)
    assert "sums over samples are sent without a mechanism" in " ".join(str(statement).split())
    assert "exact number of samples is sent" in " ".join(str(statement).split())

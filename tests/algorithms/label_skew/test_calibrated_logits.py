"""Logits that label counts scale and shift, under any loss of the task: also one that couples the rows of a batch."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import privfl as pf
from privfl.algorithms.label_skew.calibrated_logits import CalibratedFedAvg, calibrated_loss
from privfl.errors import ConfigError
from privfl.federation.task import cross_entropy
from tests.algorithms.federation import initial, uploads
from tests.algorithms.label_skew.federation import TRAINING, of_equal_classes, run, skewed_task, twin


def halved(logits, counts):
    return logits * torch.where(counts > 0, 1.0, 0.5)


def shifted(logits, counts):
    return torch.where(counts > 0, logits - counts.clamp_min(1).pow(-0.25), -torch.inf)


def of_equal_classes_by_hand(rewrite):
    def objective(logits, targets, counts):
        terms = [
            F.cross_entropy(rewrite(row, counts), target) / (targets == target).sum()
            for row, target in zip(logits, targets, strict=True)
        ]
        return torch.stack(terms).mean()

    return objective


CASES = {"fedrs": (pf.FedRS(), halved), "fedlc": (pf.FedLC(), shifted)}


@pytest.mark.parametrize(("algorithm", "rewrite"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_loss_that_couples_the_rows_of_a_batch_may_be_the_tasks(algorithm, rewrite, engine):
    task = skewed_task()
    found = run(replace(task, loss=of_equal_classes), algorithm, 2, execution=pf.Execution(engine=engine)).parameters
    torch.testing.assert_close(found, twin(task, of_equal_classes_by_hand(rewrite), 2), rtol=0, atol=1e-10)
    assert float((found - run(task, algorithm, 2).parameters).abs().max()) > 1e-3


@pytest.mark.parametrize("algorithm", [pf.FedRS("uniform"), pf.FedLC("uniform", least_count=1.0), pf.MOON("uniform")])
def test_dp_sgd_refuses_such_a_loss_in_one_sentence(algorithm):
    task = replace(skewed_task(), loss=of_equal_classes)
    with pytest.raises(ConfigError, match="couples the samples of a batch"):
        uploads(task, algorithm, {"parameters": initial(task)}, dpsgd=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.3))


def test_logits_are_scaled_first_and_shifted_then():
    logits, targets = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([2])
    factor, shift = torch.tensor([0.5, 2.0, 1.0]), torch.tensor([0.3, 1.0, -1.0])
    loss = calibrated_loss(cross_entropy, lambda _: logits, logits, targets, factor, shift)
    torch.testing.assert_close(loss, F.cross_entropy(torch.tensor([[0.8, -3.0, -0.5]]), targets)[None])


def test_without_a_calibration_it_is_fedavg():
    task = skewed_task()
    found, expected = (run(task, one, 1).parameters for one in (CalibratedFedAvg(), pf.FedAvg()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


class Counted:
    """A door that gives label counts as the engines do, in float64."""

    def total(self, statistic, parameters, batch, name):
        return torch.arange(10, dtype=torch.float64)


def test_logits_keep_the_type_of_the_model():
    for algorithm in (pf.FedRS(form="graded"), pf.FedLC()):
        bound, received = algorithm.bind(skewed_task().context(1, 0)), {"parameters": torch.zeros(3)}
        local = bound.begin(received, {}, TRAINING)
        bound.prepare(local, received, None, Counted(), TRAINING)
        assert (local["factor"].dtype, local["shift"].dtype) == (torch.float32, torch.float32)
        assert len(set(torch.cat([local["factor"], local["shift"]]).tolist())) > 9

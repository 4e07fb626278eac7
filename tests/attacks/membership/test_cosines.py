"""Steps of updates down the slopes of records: those of gradient alignment, and standardised by other clients'."""

import pytest
import torch

from attacks.auxiliary import Auxiliary
from attacks.membership.cosines import PRIOR, Standardised, centred, steps, unit_rows
from attacks.membership.scores import Models
from attacks.membership.update_attacks import GradientAlignment
from tests.attacks.membership.worlds import part, task_of, watch


def test_steps_over_the_slopes_lengths_are_the_cosines_of_gradient_alignment():
    seen = watch(task_of([part(0, 40), part(40, 80), part(80, 120)]), rounds=1)
    asked, one = part(30, 36), seen[0]
    updates = torch.stack([one.uploads[client]["update"] for client in range(3)])
    made, slopes = steps(Models(seen.factory), one.broadcast["parameters"], asked, updates)
    for client in range(3):
        alone = GradientAlignment(client=client).guess(seen, Auxiliary(candidates=asked)).scores
        torch.testing.assert_close(made[client] / slopes, torch.as_tensor(alone), atol=1e-5, rtol=1e-4)


def test_rounds_are_added_by_their_spread_and_records_divided_by_their_own():
    others = torch.tensor([[1.0, 1.0], [3.0, 1.0], [2.0, 4.0]]).double()  # means 2 and 2, variances 1 and 3
    found = Standardised()
    found.add(torch.tensor([4.0, 5.0]).double(), others)
    found.add(torch.tensor([40.0, 50.0]).double(), 10 * others)
    apart = 2 * torch.tensor([2.0, 3.0]).double() / 2**0.5
    own = torch.tensor([(4 * 0.5 + PRIOR) / (4 + PRIOR), (4 * 1.5 + PRIOR) / (4 + PRIOR)]).double().sqrt()
    expected = apart / own
    torch.testing.assert_close(found.scores(torch.tensor([0, 1])), expected - expected.mean())
    assert found.rounds == 2


def test_scores_are_taken_from_the_mean_of_a_class_that_many_are_asked_about():
    scores = torch.tensor([1.0, 2.0, 3.0, 6.0, 10.0, torch.nan]).double()
    found = centred(scores, torch.tensor([7, 7, 7, 7, 2, 7]))
    assert found[:5].tolist() == pytest.approx([-2, -1, 0, 3, 10 - 22 / 5])
    assert found[5].isnan()


def test_rows_of_zeros_stay_zeros():
    assert unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist() == [
        [0.6000000238418579, 0.800000011920929],
        [0, 0],
    ]

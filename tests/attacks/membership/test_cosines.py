"""Cosines of records with updates: those of gradient alignment, client by client, and standardised among them."""

import pytest
import torch

from attacks.auxiliary import Auxiliary
from attacks.membership.cosines import RoundCosines, alignments, unit_rows
from attacks.membership.scores import Models
from attacks.membership.update_attacks import GradientAlignment
from tests.attacks.membership.worlds import part, task_of, watch


def test_every_client_has_the_cosines_of_gradient_alignment():
    seen = watch(task_of([part(0, 40), part(40, 80), part(80, 120)]), rounds=1)
    asked, one = part(30, 36), seen[0]
    updates = torch.stack([one.uploads[client]["update"] for client in range(3)])
    found = alignments(Models(seen.factory), one.broadcast["parameters"], asked, updates)
    for client in range(3):
        alone = GradientAlignment(client=client).guess(seen, Auxiliary(candidates=asked)).scores
        torch.testing.assert_close(found[client], torch.as_tensor(alone), atol=1e-5, rtol=1e-4)


def test_a_client_is_standardised_by_the_others_alone():
    one = RoundCosines((2, 5, 7, 8), torch.tensor([[3.0, 0.0], [1.0, 1.0], [2.0, 1.0], [9.0, 4.0]]).double())
    rest = one.found[1:]
    expected = (one.found[0] - rest.mean(0)) / rest.var(0).mean().sqrt()
    torch.testing.assert_close(one.standardised(2), expected)
    assert one.standardised(2, without=8).tolist() == pytest.approx([1.5 / 0.5, -1 / 0.5])


def test_rows_of_zeros_stay_zeros():
    assert unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist() == [
        [0.6000000238418579, 0.800000011920929],
        [0, 0],
    ]

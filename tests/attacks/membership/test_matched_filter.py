"""The matched filter: its algebra on small matrices, and that it finds what was added to an update and nothing else."""

import pytest
import torch

from attacks.membership.matched_filter import PENALTIES, CountSketch, Filtered, _round_outputs, filtered
from attacks.membership.scores import Models
from privfl.errors import ConfigError
from tests.attacks.membership.test_update_attacks import at
from tests.attacks.membership.worlds import part, task_of, watch

CLIENTS = [part(40 * k, 40 * (k + 1)) for k in range(5)]


@pytest.fixture(scope="module")
def seen():
    return watch(task_of(CLIENTS), rounds=2, epochs=2, learning_rate=0.1)


class NoSketch:
    """Rows as they are."""

    def of(self, rows):
        return rows


def test_the_output_is_the_product_with_what_public_gradients_leave(seen):
    one, asked, public = seen[0], part(30, 33), part(300, 308)
    received = one.broadcast["parameters"]
    updates = torch.stack([one.uploads[client]["update"] for client in range(3)])
    models = Models(seen.factory)
    both = part(30, 33), part(300, 308)
    joined = type(both[0])(*(torch.cat([getattr(p, name) for p in both]) for name in ("inputs", "targets")))
    outputs, left, lengths = _round_outputs(models, one, joined, 3, updates, NoSketch())
    unit = torch.nn.functional.normalize(updates, dim=1).double()
    rows = [
        at(seen, received, record[torch.tensor([k])])[1] for record, n in ((asked, 3), (public, 8)) for k in range(n)
    ]
    grads = torch.nn.functional.normalize(torch.stack(rows), dim=1).double()
    x, y = grads[:3], grads[3:]
    torch.testing.assert_close(lengths, torch.stack(rows[:3]).norm(dim=1).double(), rtol=1e-4, atol=1e-5)
    for place, penalty in enumerate(PENALTIES):
        rest = x - x @ y.T @ torch.linalg.solve(y @ y.T + penalty * torch.eye(8), y)
        torch.testing.assert_close(outputs[place], -(unit @ rest.T), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(left[place], (rest * x).sum(1), atol=1e-4, rtol=1e-3)


def test_sketches_keep_inner_products():
    """Of 200 pairs of unit vectors, by sketches of 4,096 numbers: the error's deviation is at most 1/64."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(20, 5000, generator=generator), dim=1)
    sketched = CountSketch(5000, 4096, generator).of(rows)
    assert float((sketched @ sketched.T - rows @ rows.T).abs().max()) < 6 * 2**0.5 / 64


def test_a_gradient_that_was_added_is_found_and_owned_by_the_client_to_whom_it_was_added(seen):
    """Twenty steps' worth of one stranger's gradient in client 3's update, far above all else: no luck is needed."""
    asked, public = part(400, 430), part(500, 560)
    one = seen[1]
    gradient = at(seen, one.broadcast["parameters"], asked[torch.tensor([7])])[1]
    one.uploads[3]["update"] -= 2 * one.uploads[3]["update"].norm() * gradient / gradient.norm()
    try:
        found = filtered(seen, asked, public, rounds=1, width=2048, generator=torch.Generator().manual_seed(1))
    finally:
        one.uploads[3]["update"] += 2 * one.uploads[3]["update"].norm() * gradient / gradient.norm()
    standing = found.standardised()
    assert int(standing[:, 7].argmax()) == 3
    assert int(standing[3].argmax()) == 7


def test_ratios_are_those_of_two_normal_distributions():
    found = Filtered((4, 9), torch.tensor([[2.0], [-1.0]]).double(), torch.tensor([[4.0], [1.0]]).double(), 1.0)
    assert found.ratios(0.5)[:, 0].tolist() == pytest.approx([0.5 * 2 - 0.5, -0.5 - 0.125])
    assert found.rows([9]).signal.tolist() == [[-1.0]]
    assert found.standardised()[:, 0].tolist() == pytest.approx([1.0, -1.0])


def test_company_is_needed(seen):
    pair = watch(task_of(CLIENTS[:2]), rounds=1)
    with pytest.raises(ConfigError, match="of 3 clients"):
        filtered(pair, part(0, 4), part(300, 320), rounds=None, width=64, generator=torch.Generator())

"""A clipped gradient is at most as long as the bound, whatever finite numbers come in, and so is what a row adds."""

import math

import pytest
import torch
from torch import nn

import privfl as pf
from privfl.algorithms.fedavg import FedAvg
from privfl.federation.task import cross_entropy
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.factors import (
    BLOCK,
    MARGIN,
    ROWS_IN_FLOAT32,
    Clipping,
    exact_products,
    narrow_sums,
    row_norms,
    shrunk,
)
from privfl.privacy.clipping.layer_rules import EmbeddingRule, LinearRule
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients
from privfl.privacy.door.precision import matrix_products

SCALES = [1e-30, 1e-20, 1e-10, 1e-3, 1.0, 1e3, 1e6, 1e10, 1e20, 1e30]


def clipped_sum(rule, calls, shapes, bound):
    """What ``rule`` writes for the calls of a layer with parameters of ``shapes``, as one float64 vector."""
    places = {name: torch.zeros(1, *shape) for name, shape in shapes.items()}
    rule.receive(calls)
    clipping = Clipping.of(rule.squared_norms(), bound, torch.float32)
    rule.write_clipped_sum(clipping, places)
    return torch.cat([place.double().flatten() for place in places.values()])


def linear_rows(generator, rows, steps, wide, cancelling):
    """Inputs and arriving gradients [rows, steps, wide] whose products cancel down to ``cancelling`` of their sizes."""
    a = torch.randn(rows, steps, wide, generator=generator)
    g = torch.randn(rows, steps, 3, generator=generator)
    if cancelling < 1 and steps > 1:  # pairs of steps with the same input and nearly opposite gradients
        half = steps // 2
        a[:, half : 2 * half] = a[:, :half]
        g[:, half : 2 * half] = -g[:, :half] * (1 + cancelling * torch.rand(rows, half, 1, generator=generator))
        a[:, 2 * half :] = 0
    return a, g


@pytest.mark.parametrize("cancelling", [1.0, 1e-3, 1e-6, 0.0])
@pytest.mark.parametrize("steps", [1, 7, 200])
@pytest.mark.parametrize("wide", [4, 64])
def test_a_linear_layer_adds_no_more_than_the_bound_for_a_row(steps, wide, cancelling):
    generator = torch.Generator().manual_seed(steps)
    shapes = {"weight": (3, wide), "bias": (3,)}
    for size in SCALES:
        for arriving in (1e-20, 1.0, 1e10):
            a, g = linear_rows(generator, 6, steps, wide, cancelling)
            a, g = a * size, g * arriving
            if steps == 1:
                a, g = a[:, 0], g[:, 0]
            for bound in (1e-3, 1.0):

                def total(keep, a=a, g=g, bound=bound):
                    rule = LinearRule(nn.Linear(wide, 3), frozenset(shapes))
                    return clipped_sum(rule, [(a[keep], g[keep])], shapes, bound)

                whole = total(slice(None))
                assert bool(whole.isfinite().all())
                for row in range(6):
                    alone = total([row])
                    assert float(alone.norm()) <= bound * (1 + 1e-6)
                    rest = total([other for other in range(6) if other != row])
                    assert float((whole - rest).norm()) <= bound * (1 + 1e-4)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("steps", [2, 20])
def test_clipped_sums_of_a_linear_layer_are_those_of_a_loop_in_float64(steps, size):
    generator = torch.Generator().manual_seed(1)
    a, g = linear_rows(generator, 5, steps, 4, 1.0)
    a = a * size
    shapes, bound = {"weight": (3, 4), "bias": (3,)}, 0.5
    found = clipped_sum(LinearRule(nn.Linear(4, 3), frozenset(shapes)), [(a, g)], shapes, bound)
    expected = torch.zeros(15, dtype=torch.float64)
    for one, back in zip(a.double(), g.double(), strict=True):
        gradient = torch.cat([(back.T @ one).flatten(), back.sum(0)])
        expected += gradient * min(1.0, shrunk(bound, torch.float32) / float(gradient.norm()))
    assert float((found - expected).norm()) <= 1e-4 * float(expected.norm())


@pytest.mark.parametrize("difference", [1.0, 1e-3, 1e-6, 0.0])
@pytest.mark.parametrize("steps", [2, 20, 200])
def test_an_embedding_whose_equal_tokens_cancel_adds_no_more_than_the_bound(steps, difference):
    generator = torch.Generator().manual_seed(steps)
    for size in SCALES:
        ids = torch.randint(3, (5, steps // 2), generator=generator).repeat(1, 2)
        back = size * torch.randn(5, steps // 2, 4, generator=generator)
        noise = 1 + difference * torch.rand(back.shape, generator=generator)
        back = torch.cat([back, -back * noise], 1)

        def total(keep, ids=ids, back=back):
            rule = EmbeddingRule(nn.Embedding(3, 4), frozenset({"weight"}))
            return clipped_sum(rule, [(ids[keep], back[keep])], {"weight": (3, 4)}, 1.0)

        whole = total(slice(None))
        for row in range(5):
            assert float(total([row]).norm()) <= 1 + 1e-6
            assert float((whole - total([other for other in range(5) if other != row])).norm()) <= 1 + 1e-4


class Pooled(nn.Module):
    """A linear layer whose outputs are averaged over time: where the inputs cancel, so do its gradients."""

    def __init__(self):
        super().__init__()
        self.look, self.head = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, inputs):
        return self.head(self.look(inputs).mean(1).tanh())


def pooled_data(level):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 20, 64, generator=generator)
    far = level * torch.randn(12, 1, 64, generator=generator)
    inputs += far * (1 - 2 * (torch.arange(20) % 2))[None, :, None]
    return inputs, torch.arange(12) % 3


@pytest.mark.parametrize("level", [1e3, 1e6])
@pytest.mark.parametrize("way", ["layers", "rows", "vmap"])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_model_with_inputs_far_from_zero_adds_no_more_than_the_bound(level, way, stacked):
    torch.manual_seed(0)
    network, (inputs, targets), bound = FlatNetwork(Pooled()), pooled_data(level), 1e-4
    gradients = StackedGradients(network, way) if stacked else PerSampleGradients(network, way)

    def total(keep):
        if isinstance(gradients, StackedGradients):
            batch = StackedBatch(inputs[keep][None], targets[keep][None], None, {})
            return gradients.clipped_sum(cross_entropy, network.flat[None], batch, bound)[0].double()
        gradients.clipped_sum(cross_entropy, inputs[keep], targets[keep], bound)
        return network.gradient.double().clone()

    whole = total(list(range(12)))
    for row in range(12):
        assert float(total([row]).norm()) <= bound * (1 + 1e-6)
        moved = (whole - total([other for other in range(12) if other != row])).norm()
        assert float(moved) <= bound * (1 + 1e-4)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("way", ["layers", "rows", "vmap"])
def test_a_network_adds_no_more_than_the_bound_for_inputs_of_any_scale(way, scale):
    torch.manual_seed(0)
    network = FlatNetwork(nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4)))
    clipper = PerSampleGradients(network, way)
    inputs, targets = scale * torch.randn(5, 16), torch.arange(5) % 4
    clipper.clipped_sum(cross_entropy, inputs, targets, 1.0)
    whole = network.gradient.double().clone()
    assert bool(whole.isfinite().all())
    for row in range(5):
        clipper.clipped_sum(cross_entropy, inputs[row : row + 1], targets[row : row + 1], 1.0)
        assert float(network.gradient.double().norm()) <= 1 + 1e-6
        rest = [other for other in range(5) if other != row]
        clipper.clipped_sum(cross_entropy, inputs[rest], targets[rest], 1.0)
        assert float((whole - network.gradient.double()).norm()) <= 1 + 1e-4


def test_norms_neither_overflow_nor_vanish():
    for dtype, scales in ((torch.float32, (1e-38, 1e-20, 1e30)), (torch.float64, (1e-300, 1e-160, 1e200))):
        for scale in scales:
            found = row_norms(torch.full((1, 9), scale, dtype=dtype))
            assert float(found) == pytest.approx(3 * scale, rel=1e-5)
    assert not bool(row_norms(torch.tensor([[1.0, math.inf], [math.nan, 1.0]])).isfinite().any())


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("level", [1e3, 1e6])
def test_a_run_on_inputs_far_from_zero_does_not_tell_whether_a_row_is_there(engine, level):
    """The noiseless upload of two worlds differs by what was charged for one row, and no more."""
    inputs, targets = pooled_data(level)

    def left(rows):
        owners = torch.arange(12)[rows] % 2
        task = pf.Task.from_arrays(
            inputs[rows], targets[rows], clients=owners, test=(inputs[:3], targets[:3]), model=Pooled
        )
        run = pf.simulate(
            task,
            FedAvg(weighting="uniform"),
            rounds=1,
            training=pf.LocalTraining(batch_size=1, steps=1, learning_rate=1.0),
            privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=0.0, max_grad_norm=1e-2, sample_rate=1.0)),
            execution=pf.Execution(engine=engine, workers=1, device="cpu"),
        )
        start = torch.cat([parameter.detach().flatten() for parameter in task.model(0).parameters()])
        return 2 * (run.parameters.double() - start.double())

    whole = left(slice(None))
    for row in (0, 3, 7):
        moved = whole - left([other for other in range(12) if other != row])
        assert float(moved.norm()) <= 1e-2 * (1 + 1e-3)  # the model itself rounds its parameters in float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bound_leaves_room_for_the_worst_order_in_which_two_worlds_may_add_rows(dtype):
    """One after the other: the longest partial sums there are, each of them and each product rounded at its worst."""
    unit = torch.finfo(dtype).eps / 2
    error = unit * (ROWS_IN_FLOAT32 + sum(range(2, ROWS_IN_FLOAT32 + 1)))
    assert shrunk(1.0, dtype) * (1 + 2 * error) <= 1 - 0.9 * MARGIN
    assert shrunk(1.0, dtype) >= 1 - (6e-4 if dtype == torch.float32 else 1.001e-5)
    assert shrunk(1.0, torch.float32) + 2 * 2**-24 * 4700 <= 1 - 0.9 * MARGIN


def test_sums_of_many_rows_are_formed_in_float64_in_however_many_passes():
    squares = torch.ones(ROWS_IN_FLOAT32, dtype=torch.float64)
    assert not Clipping.of(squares, 1.0, torch.float32).exact
    assert Clipping.of(squares, 1.0, torch.float32, ROWS_IN_FLOAT32 + 1).exact
    assert Clipping.of(squares.repeat(2), 1.0, torch.float32).exact


def test_of_a_stack_every_client_says_by_its_own_rows_whether_its_sum_needs_float64():
    norms = torch.ones(3, 2, dtype=torch.float64)
    few, many = 2, ROWS_IN_FLOAT32 + 1
    assert Clipping.of_norms(norms, 1.0, torch.float32, [few, few, few]).exact is False
    assert Clipping.of_norms(norms, 1.0, torch.float32, [many, many, many]).exact is True
    assert Clipping.of_norms(norms, 1.0, torch.float32, [few, many, few]).exact.tolist() == [False, True, False]
    norms[2, 1] = 1e20
    assert Clipping.of_norms(norms, 1.0, torch.float32, [few, many, few]).exact.tolist() == [False, True, True]
    assert Clipping.of_norms(norms[2:], 1.0, torch.float32, [few]).exact is True
    sizes = torch.tensor([1.0, 1.0, 1.0, 1.0, 1e3, 1.0], dtype=torch.float64)
    clipping = Clipping.of_norms(torch.ones(3, 2, dtype=torch.float64), 1.0, torch.float32, [many, few, few])
    places = {"weight": torch.zeros(3, 1)}
    for exact in clipping.mapped(torch.flatten).regimes(places, sizes):
        places["weight"].fill_(64.0 if exact else 32.0)
    assert places["weight"].flatten().tolist() == [64.0, 32.0, 64.0]


def test_where_sums_are_tried_no_row_asks_for_float64_and_many_rows_still_get_it():
    norms, sizes = torch.ones(3, 2, dtype=torch.float64), torch.full((6,), 1e3, dtype=torch.float64)
    places = {"weight": torch.zeros(3, 1)}

    def regimes(together):
        clipping = Clipping.of_norms(norms, 1.0, torch.float32, together)
        return list(clipping.mapped(torch.flatten).regimes(places, sizes))

    assert regimes(2) == [True]
    with narrow_sums():
        assert regimes(2) == [False]
        assert regimes(ROWS_IN_FLOAT32 + 1) == [True]
        assert not Clipping.of_norms(norms * 1e20, 1.0, torch.float32, 2).exact
    assert regimes(2) == [True]


def test_each_client_of_a_stack_gets_the_sum_that_its_rows_ask_for():
    rows = torch.randn(2, 40, 300, generator=torch.Generator().manual_seed(0))
    norms = row_norms(rows.flatten(0, 1)).view(2, 40)
    sums = {
        many: Clipping.of_norms(norms, 1.0, torch.float32, [40, ROWS_IN_FLOAT32 + 1 if many else 40]).sums_of(rows)
        for many in (False, True)
    }
    assert torch.equal(sums[True][0], sums[False][0])
    assert not torch.equal(sums[True][1], sums[False][1])
    torch.testing.assert_close(sums[True][1], sums[False][1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 7])
def test_sums_in_float64_have_the_same_bits_however_many_rows_of_others_follow(steps):
    draws = torch.Generator().manual_seed(0)
    for rows in range(1, 2 * BLOCK + 2, 3):
        left, right = (torch.randn(2, rows * steps, n, generator=draws, dtype=torch.float64) for n in (5, 33))
        expected = exact_products(left, right, steps)
        torch.testing.assert_close(expected, left.mT @ right, rtol=0, atol=1e-9)
        for more in (1, 2, 3, 5, BLOCK, 61):
            missing = more * steps
            padded = (torch.cat([part, torch.zeros(2, missing, part.shape[2]).double()], 1) for part in (left, right))
            assert torch.equal(exact_products(*padded, steps), expected)


@pytest.mark.parametrize("name", ["dense", "steps", "convolution"])
@pytest.mark.parametrize("way", ["layers", "vmap", "whole rows"])
def test_tf32_forms_gradients_and_neither_norms_nor_sums(monkeypatch, name, way):
    """Its products have 11 bits, so that a clipped row could come out a thousandth too long."""
    layers = {
        "dense": [nn.Flatten(), nn.Linear(32, 3)],
        "steps": [nn.Flatten(1, 2), nn.Linear(4, 3), nn.Flatten(), nn.Linear(24, 3)],
        "convolution": [nn.Conv2d(2, 6, 3), nn.Flatten(), nn.Linear(24, 3)],
    }
    gradients = StackedGradients(FlatNetwork(nn.Sequential(*layers[name])), "vmap" if way == "vmap" else "layers")
    gradients.whole_rows = way == "whole rows"
    inside, formed, sums = [], gradients._of_each, []
    for product in ("bmm", "mm", "mv"):
        ordinary = getattr(torch, product)

        def noted(*parts, ordinary=ordinary, **options):
            sums.append(torch.backends.cuda.matmul.allow_tf32)
            return ordinary(*parts, **options)

        monkeypatch.setattr(torch, product, noted)
    monkeypatch.setattr(gradients, "_of_each", lambda *one, **more: inside.append(_tf32()) or formed(*one, **more))
    batch = StackedBatch(torch.ones(2, 3, 2, 4, 4), torch.zeros(2, 3, dtype=torch.int64), None, {})
    parameters = torch.ones(2, gradients.layout.size)
    with matrix_products("tf32"):
        gradients.clipped_sum(cross_entropy, parameters, batch, 0.1)
        assert _tf32()
    assert all(inside)
    forms = (way == "whole rows" and name == "steps") or (way != "vmap" and name == "convolution")
    assert sums.count(True) == forms
    assert sums.count(False) > 0


def _tf32():
    return torch.backends.cuda.matmul.allow_tf32

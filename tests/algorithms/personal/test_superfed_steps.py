"""The step of SuPerFed's two end points in few passes is eqs. (6) and (7) followed by torch's own SGD."""

import pytest
import torch
from torch import nn
from torch.func import vmap

from privfl.algorithms.personal.superfed_steps import NEAR_AN_END, Pull, Regularisers, descend_both, mixture
from privfl.privacy.door.batch_plans import LocalTraining

SIZES = (40, 7, 25)
TRAINING = LocalTraining(learning_rate=0.3, momentum=0.9, weight_decay=0.02)
NO_MOMENTUM = LocalTraining(learning_rate=0.3, weight_decay=0.02)
MIDDLE, ENDS = (0.37, 0.9, 0.02), (0.0, 1e-6, 1 - 1e-4)


def vectors(seed, dtype=torch.float64):
    """Two end points, a gradient, a received model and two momenta; their cosine is not small."""
    generator = torch.Generator().manual_seed(seed)
    u, v, gradient, anchor, m, n = (
        torch.randn(6, sum(SIZES), generator=generator, dtype=torch.float64).to(dtype).unbind()
    )
    return u, v + 0.5 * u, gradient, anchor, m, n


def state(u, v, m, n, training):
    local = {"parameters": u.clone(), "personal": v.clone()}
    return local | ({"momentum": m.clone(), "personal_momentum": n.clone()} if training.momentum else {})


def stepped(seed, lams, training, *, nu=3.0, mu=0.4, drawn=None, dtype=torch.float64):
    """Both end points after one step."""
    u, v, gradient, anchor, m, n = vectors(seed, dtype)
    local, share = state(u, v, m, n, training), torch.tensor(lams, dtype=dtype)
    terms = Regularisers(nu, drawn, Pull(2 * mu, -2 * mu, anchor) if mu else None)
    descend_both(local, gradient.clone(), mixture(local, share, SIZES), share, SIZES, terms, training)
    return local


def expected(seed, lams, training, *, nu=3.0, mu=0.4, drawn=None):
    """The same by autograd of the regularisers and torch.optim.SGD."""
    u, v, gradient, anchor, m, n = vectors(seed)
    share = torch.tensor(lams, dtype=u.dtype)
    share = share if share.dim() == 0 else torch.repeat_interleave(share, torch.tensor(SIZES))
    u, v = u.clone().requires_grad_(), v.clone().requires_grad_()
    optimizer = torch.optim.SGD(
        [u, v], lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    if training.momentum:
        optimizer.state[u]["momentum_buffer"], optimizer.state[v]["momentum_buffer"] = m.clone(), n.clone()
    mask = torch.ones_like(m) if drawn is None else drawn
    cosine = nn.functional.cosine_similarity(u * mask, v * mask, dim=0)
    mixed = (1 - share) * u + share * v
    loss = gradient @ mixed + mu * (u - anchor).square().sum() + nu * cosine.square()  # gradient @ W has gradient G
    loss.backward()
    optimizer.step()
    after = {"parameters": u.detach(), "personal": v.detach()}
    if training.momentum:
        after |= {
            "momentum": optimizer.state[u]["momentum_buffer"],
            "personal_momentum": optimizer.state[v]["momentum_buffer"],
        }
    return after


@pytest.mark.parametrize("training", [TRAINING, NO_MOMENTUM], ids=["momentum", "plain"])
@pytest.mark.parametrize("lams", [MIDDLE, ENDS, (0.5, 0.0, 0.999), *MIDDLE, *ENDS], ids=str)
@pytest.mark.parametrize("terms", [{}, {"nu": 0.0}, {"mu": 0.0}, {"nu": 0.0, "mu": 0.0}], ids=str)
def test_a_step_is_autograds_gradient_and_torchs_sgd_for_every_lambda(lams, training, terms):
    found, wanted = stepped(1, lams, training, **terms), expected(1, lams, training, **terms)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lams", [MIDDLE, 0.37], ids=str)
def test_a_cosine_over_some_parameters_is_autograds(lams):
    drawn = torch.ones(sum(SIZES), dtype=torch.float64)
    drawn[40:47] = 0
    found, wanted = stepped(2, lams, TRAINING, drawn=drawn), expected(2, lams, TRAINING, drawn=drawn)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lams", [MIDDLE, ENDS, 0.37, NEAR_AN_END, 1 - NEAR_AN_END, NEAR_AN_END * 0.99], ids=str)
def test_in_float32_a_step_differs_by_rounding_alone_also_where_the_form_changes(lams):
    found, wanted = stepped(3, lams, TRAINING, dtype=torch.float32), stepped(3, lams, TRAINING)
    for name, value in wanted.items():
        scale = float(value.abs().max())
        assert float((found[name].double() - value).abs().max()) < 5e-5 * scale, name


@pytest.mark.parametrize("lams", [(MIDDLE, ENDS, (0.2, 0.3, 0.4)), (0.37, 0.0, 0.8)], ids=["lm", "mm"])
def test_a_stack_of_clients_takes_the_steps_of_its_clients(lams):
    rows = [vectors(seed) for seed in range(3)]
    u, v, gradient, anchor, m, n = (torch.stack(each) for each in zip(*rows, strict=True))
    stack, share = state(u, v, m, n, TRAINING), torch.tensor(lams, dtype=torch.float64)

    def one(local, gradient, share):
        mixed = mixture(local, share, SIZES)
        terms = Regularisers(3.0, None, Pull(0.8, -0.8, anchor[0]))
        descend_both(local, gradient, mixed, share, SIZES, terms, TRAINING)
        return mixed

    mixed = vmap(one)(stack, gradient.clone(), share)
    for client in range(3):
        local = state(*(each[client] for each in (u, v, m, n)), TRAINING)
        alone = one(local, gradient[client].clone(), share[client])
        torch.testing.assert_close(mixed[client], alone, rtol=0, atol=1e-14)
        for name, value in local.items():
            torch.testing.assert_close(stack[name][client], value, rtol=1e-12, atol=1e-12)


def test_the_mixture_is_exactly_an_end_point_in_layers_at_an_end():
    u, v, *_ = vectors(4)
    mixed = mixture({"parameters": u, "personal": v}, torch.tensor([0.0, 1.0, 0.5], dtype=u.dtype), SIZES)
    assert torch.equal(mixed[:40], u[:40])
    assert torch.equal(mixed[40:47], v[40:47])
    torch.testing.assert_close(mixed[47:], (u[47:] + v[47:]) / 2)

"""APFL: v and α descend the loss of the mixture, and w_k its own."""

import pytest
import torch
from torch.func import functional_call

import privfl as pf
from privfl.errors import ConfigError
from tests.algorithms.federation import digits_task, initial, uploads
from tests.algorithms.personal.personal_twins import drawn

SIZES = (7, 20, 13)
TRAINING = pf.LocalTraining(learning_rate=0.2, batch_size=5, epochs=2, momentum=0.5, weight_decay=0.01)
RATE = 0.02
PLAIN = pf.LocalTraining(learning_rate=RATE, batch_size=5, epochs=2)


@pytest.fixture(scope="module")
def task():
    return digits_task(SIZES)


def loss_at(task, flat, rows):
    network = task.model(0)
    weight, bias = flat[:640].view(10, 64), flat[640:]
    logits = functional_call(network, {"weight": weight, "bias": bias}, task.inputs[rows])
    return torch.nn.functional.cross_entropy(logits, task.targets[rows])


def twin(task, client, number, server, own, alpha, decay, updates):
    """One client's round by autograd of F(w) and of F(α·v + (1 − α)·w) for v and α, all at once."""
    w, v, share = server.clone(), own.clone(), torch.tensor(alpha, dtype=torch.float64)
    for place, rows in enumerate(drawn(task, client, 5, 2, round=number)):
        leaf = w.clone().requires_grad_()
        (for_w,) = torch.autograd.grad(loss_at(task, leaf, rows), leaf)
        leaves = v.clone().requires_grad_(), share.clone().requires_grad_()
        mixture = leaves[1] * leaves[0] + (1 - leaves[1]) * w
        for_v, for_share = torch.autograd.grad(loss_at(task, mixture, rows), leaves)
        w, v = w - RATE * for_w, v - RATE * for_v
        if place == 0 or updates == "batch":
            share = (share - RATE * (for_share + decay * share)).clamp(0, 1)
    return w, v, share


@pytest.mark.parametrize("updates", ["round", "batch"])
@pytest.mark.parametrize(("alpha", "decay"), [(0.5, 0.0), (0.25, 0.02), (0.75, 0.0)])
def test_two_rounds_descend_the_loss_of_the_mixture_for_v_and_alpha(task, alpha, decay, updates):
    algorithm = pf.APFL(alpha=alpha, alpha_decay=decay, alpha_updates=updates)
    run = pf.simulate(task, algorithm, rounds=2, training=PLAIN)
    server, own, shares = initial(task), dict.fromkeys(range(3), initial(task)), dict.fromkeys(range(3), alpha)
    for number in range(2):
        found = [twin(task, k, number, server, own[k], float(shares[k]), decay, updates) for k in range(3)]
        server = sum(size / 40 * w for size, (w, _, _) in zip(SIZES, found, strict=True))
        own, shares = ({k: one[place] for k, one in enumerate(found)} for place in (1, 2))
    torch.testing.assert_close(run.parameters, server, rtol=0, atol=1e-12)
    for client in range(3):
        torch.testing.assert_close(run.client_state[client]["personal"], own[client], rtol=0, atol=1e-12)
        torch.testing.assert_close(run.client_state[client]["alpha"], shares[client], rtol=0, atol=1e-12)
    assert len({float(share) for share in shares.values()} - {alpha}) == 3  # each has learnt its own


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_server_follows_fedavg_bit_for_bit_whatever_alpha(task, alpha):
    settings = {"rounds": 3, "training": TRAINING, "cohort": pf.FixedCohort(2), "seed": 4}
    ours, theirs = (pf.simulate(task, one, **settings) for one in (pf.APFL(alpha=alpha), pf.FedAvg()))
    assert torch.equal(ours.parameters, theirs.parameters)


def test_a_fixed_alpha_of_zero_uses_fedavgs_model(task):
    run = pf.simulate(task, pf.APFL(alpha=0.0, adaptive=False), rounds=2, training=PLAIN)
    for client_state in run.client_state.values():
        (model,) = run.algorithm.personal(run.server, client_state).values()
        assert torch.equal(model, run.parameters)
        assert torch.equal(client_state["personal"], initial(task))  # nothing reaches v


def test_a_fixed_alpha_of_one_is_training_alone(task):
    settings = {"rounds": 4, "training": TRAINING, "cohort": pf.FixedCohort(2), "seed": 1}
    ours, theirs = (pf.simulate(task, one, **settings) for one in (pf.APFL(alpha=1.0, adaptive=False), pf.Local()))
    trained = {client: client_state for client, client_state in ours.client_state.items() if client_state}
    assert len(trained) == 3
    for client, client_state in trained.items():
        (model,) = ours.algorithm.personal(ours.server, client_state).values()
        assert torch.equal(model, theirs.client_state[client]["parameters"])


def test_alpha_never_leaves_its_range(task):
    steep = pf.LocalTraining(learning_rate=30.0, batch_size=5, epochs=4)
    received = {"parameters": initial(task)}
    for start in (0.01, 0.99):
        for result in uploads(task, pf.APFL(alpha=start), received, training=steep):
            assert 0 <= float(result.client_state["alpha"]) <= 1


def test_one_update_a_round_keeps_alpha_off_zero_where_every_batch_drives_it_there(task):
    training = pf.LocalTraining(learning_rate=0.2, batch_size=5, epochs=5)
    shares = {}
    for updates in ("round", "batch"):
        run = pf.simulate(task, pf.APFL(alpha_updates=updates), rounds=10, training=training)
        shares[updates] = [float(state["alpha"]) for state in run.client_state.values()]
    assert min(shares["round"]) > 0.1 > max(shares["batch"])


def test_v_and_alpha_are_no_part_of_the_upload(task):
    (result, *_) = uploads(task, pf.APFL(), {"parameters": initial(task)}, training=PLAIN)
    assert result.upload.keys() == {"update"}
    assert result.client_state.keys() == {"personal", "alpha"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.1}, "apfl's alpha is 1.1"),
        ({"alpha": -0.1}, "apfl's alpha is -0.1"),
        ({"alpha_decay": -1.0}, "apfl's alpha_decay is -1.0"),
    ],
)
def test_impossible_settings_are_one_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        pf.APFL(**settings)

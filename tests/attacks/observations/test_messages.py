"""What messages say of gradients: one step is its gradient, a sum is its mean, and sizes are known only if sent."""

import pytest
import torch
import torch.nn.functional as F

import privfl as pf
from attacks.observations.head_gradients import HeadGradient
from attacks.observations.messages import exact_sizes, head_observations, training_of, updates
from privfl.errors import ConfigError
from privfl.models.flat_network import Layout

TASK = pf.load("digits", partition=pf.GivenSizes(sizes=(20, 35, 50)), model="two-nn")


def transcript(algorithm=None, training=None, rounds=1, **more):
    training = training or pf.LocalTraining(learning_rate=0.1, batch_size=1000)
    algorithm = algorithm or pf.FedAvg()
    run = pf.simulate(
        TASK,
        algorithm,
        rounds=rounds,
        training=training,
        record=True,
        execution=pf.Execution(workers=1),
        evaluate_every=9,
        **more,
    )
    return run.transcript


def gradient(network, rows):
    loss = F.cross_entropy(network(TASK.inputs[rows]), TASK.targets[rows])
    flat = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(network.parameters()))])
    return HeadGradient.of(flat, Layout.of(network))


def test_one_step_is_the_gradient_of_the_clients_data():
    for observation in head_observations(transcript(), 0):
        (client,) = observation.members
        expected = gradient(observation.before, TASK.clients[client])
        assert torch.allclose(observation.gradient.weight, expected.weight, atol=1e-6)
        assert torch.allclose(observation.gradient.bias, expected.bias, atol=1e-6)
        assert (observation.steps, observation.summed) == (1, False)
        assert observation.examples == TASK.clients.sizes[client]
        assert observation.after is observation.before


def test_steps_follow_from_sizes_and_the_model_after_from_the_update():
    training = pf.LocalTraining(learning_rate=0.1, batch_size=10, epochs=2)
    seen = transcript(training=training)
    for observation, steps in zip(head_observations(seen, 0), (4, 8, 10), strict=True):
        assert observation.steps == steps
        (client,) = observation.members
        flat = torch.cat([part.reshape(-1) for part in observation.after.parameters()])
        assert torch.equal(flat, seen[0].broadcast["parameters"] + seen[0].uploads[client]["update"])


def test_sizes_that_were_not_sent_are_not_known():
    seen = transcript(pf.FedAvg(weighting="uniform"))
    assert exact_sizes(seen, 0) == {}
    assert all(one.examples is None and one.steps is None for one in head_observations(seen, 0))
    randomised = transcript(privacy=pf.Privacy(size=pf.LaplaceSize(epsilon=3.0, bound=60), max_size_error=1e6))
    assert exact_sizes(randomised, 0) == {}


def test_fedsampling_tells_the_sum_of_the_chosen_examples():
    """At rate 1 everybody chooses everything: K·Δ is the sum of all gradients."""
    size = pf.LaplaceSize(epsilon=30.0, bound=60)
    seen = transcript(pf.FedSampling(samples_per_round=10**6), privacy=pf.Privacy(size=size, max_size_error=1e6))
    assert float(seen[0].broadcast["rate"]) == 1.0
    for observation in head_observations(seen, 0):
        (client,) = observation.members
        rows = TASK.clients[client]
        expected = gradient(observation.before, rows).weight * len(rows)
        assert torch.allclose(observation.gradient.weight, expected, atol=1e-3)
        assert observation.summed


def test_a_secure_sum_is_the_weighted_mean_of_its_members():
    plain = transcript()
    secure = transcript(privacy=pf.Privacy(update=(pf.Clip(100.0), pf.SecureSum(mode="ideal"))))
    ((members, mean),) = updates(secure[0])
    sizes = torch.tensor(TASK.clients.sizes, dtype=torch.float64)
    stacked = torch.stack([update.double() for _, update in updates(plain[0])])
    assert members == (0, 1, 2)
    assert torch.allclose(mean.double(), (sizes[:, None] * stacked).sum(0) / sizes.sum(), atol=1e-6)
    assert mean.dtype == torch.float32


def test_the_learning_rate_of_a_round_is_the_decayed_one():
    training = pf.LocalTraining(learning_rate=0.1, batch_size=1000, learning_rate_decay=0.5)
    seen = transcript(training=training, rounds=2)
    assert training_of(seen.facts, 1).learning_rate == pytest.approx(0.05)
    for observation in head_observations(seen, 1):
        (client,) = observation.members
        expected = gradient(observation.before, TASK.clients[client])
        assert torch.allclose(observation.gradient.weight, expected.weight, atol=1e-5)


def test_what_cannot_be_read_is_refused():
    size = pf.Privacy(size=pf.LaplaceSize(epsilon=3.0, bound=60), max_size_error=1e6)
    several = transcript(pf.FedSampling(samples_per_round=50, local_steps=2), privacy=size)
    with pytest.raises(ConfigError, match="local_steps = 1"):
        head_observations(several, 0)
    with pytest.raises(ConfigError, match="disclosed-counts"):
        head_observations(transcript(pf.BalancedFedAvg()), 0)
    with pytest.raises(ConfigError, match="public sees no messages"):
        head_observations(transcript().before_public(), 0)


@pytest.mark.parametrize("algorithm", [pf.FedPer(), pf.LGFedAvg(), pf.FedBABU()], ids=lambda one: one.name)
def test_updates_of_a_part_of_the_model_are_refused_with_a_sentence(algorithm):
    seen = transcript(algorithm)
    for read in (lambda: head_observations(seen, 0), lambda: updates(seen[0])):
        with pytest.raises(ConfigError, match="parameters; this attack needs an algorithm that sends all of them"):
            read()


@pytest.mark.parametrize("algorithm", [pf.FedLC(), pf.FedRS()], ids=lambda one: one.name)
def test_losses_that_a_client_shifts_by_its_own_labels_are_refused(algorithm):
    with pytest.raises(ConfigError, match=f"{algorithm.name} shifts every client's loss"):
        head_observations(transcript(algorithm), 0)

"""What passes the door: clipped, noised, divided by public numbers, and logged. 5 s.e. two-sided is 6e-7."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.errors import ConfigError
from privfl.federation.task import cross_entropy
from privfl.models.flat_network import FlatNetwork
from privfl.models.module_state import ModuleState
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.door.batch_plans import Epochs, Poisson
from privfl.privacy.door.client_door import ClientDoor
from privfl.privacy.door.keeper import ClientSlot
from privfl.privacy.door.noisy_total import NoisyTotal
from privfl.privacy.loss import coupled
from privfl.privacy.noise.source import NoiseSource
from privfl.randomness import torch_stream

ONE_EPOCH = Epochs(batch_size=4, epochs=1)


def door(samples=64, plan=ONE_EPOCH, *, dpsgd=None, totals=(), round=0, client=0, key=1, features=6, inputs=None):
    torch.manual_seed(0)
    network = FlatNetwork(nn.Linear(features, 4))
    inputs = torch.randn(samples, features) if inputs is None else inputs
    noise = None if dpsgd is None else NoiseSource.from_key(key).stream("door", round, client)
    slot = ClientSlot(client, torch.arange(samples), plan, torch_stream(0, "batches", round, client), noise)
    clipper = None if dpsgd is None else PerSampleGradients(network)
    targets = torch.arange(samples) % 4
    keeper = ClientDoor(slot, inputs, targets, network, clipper, cross_entropy, dpsgd, totals, local_only="given")
    return keeper, network


def log_of(handle):
    return handle.slots[0].log


def released(samples, dpsgd, draws=2000):
    """Many released gradients of the same Poisson batch plan, as [draws, size]."""
    handle, network = door(samples, Poisson(1.0, steps=draws, divisor=16.0), dpsgd=dpsgd)
    return torch.stack([handle.gradient(cross_entropy, network.flat, batch).clone() for batch in handle.batches()])


@pytest.mark.parametrize(("one", "other"), [(64, 65), (3, 4)])
def test_the_noise_of_a_released_gradient_does_not_tell_the_clients_size(one, other):
    dpsgd = pf.DPSGD(noise_multiplier=4.0, max_grad_norm=0.5, sample_rate=1.0)
    for samples in (one, other):
        values = released(samples, dpsgd)
        spread = float(values.std(0).square().mean().sqrt())
        assert abs(spread / (4.0 * 0.5 / 16) - 1) < 5 / math.sqrt(2 * values.numel())


def test_the_released_gradient_is_centred_on_the_clipped_sum():
    dpsgd = pf.DPSGD(noise_multiplier=1.0, max_grad_norm=0.3, sample_rate=1.0)
    values = released(20, dpsgd)
    handle, network = door(20, dpsgd=dpsgd)
    PerSampleGradients(network).clipped_sum(cross_entropy, handle._inputs, handle._targets, 0.3)
    error = values.std(0) / math.sqrt(len(values))
    assert float(((values.mean(0) - network.gradient / 16) / error).abs().max()) < 5.5


def test_every_noisy_gradient_is_logged_with_the_rate_that_drew_it():
    dpsgd = pf.DPSGD(noise_multiplier=1.5)
    handle, network = door(plan=Poisson(0.25, steps=7, divisor=8.0), dpsgd=dpsgd)
    for batch in handle.batches():
        handle.gradient(cross_entropy, network.flat, batch)
    assert log_of(handle).noisy == {dpsgd.event(1.5, 0.25): 7}
    assert not log_of(handle).bare
    assert not log_of(handle).clipped


def test_noise_at_the_server_leaves_clipped_gradients_and_says_so():
    dpsgd = pf.DPSGD(noise_multiplier=1.5, noise_at="server")
    handle, network = door(plan=Poisson(1.0, divisor=8.0), dpsgd=dpsgd)
    (batch,) = handle.batches()
    gradient = handle.gradient(cross_entropy, network.flat, batch).clone()
    PerSampleGradients(network).clipped_sum(cross_entropy, batch.inputs, batch.targets, 1.0)
    torch.testing.assert_close(gradient, network.gradient / 8)
    assert log_of(handle).clipped == {1.0: 1}


def test_a_noise_multiplier_of_zero_claims_nothing():
    handle, network = door(plan=Poisson(1.0, divisor=8.0), dpsgd=pf.DPSGD(noise_multiplier=0.0))
    (batch,) = handle.batches()
    handle.gradient(cross_entropy, network.flat, batch)
    assert list(log_of(handle).bare) == ["gradients are clipped but the noise multiplier is 0"]


def test_without_a_mechanism_the_gradient_is_the_batch_mean_and_noted_as_bare():
    handle, network = door(10)
    for batch in handle.batches():
        gradient = handle.gradient(cross_entropy, network.flat, batch)
        loss = cross_entropy(network.module, batch.inputs, batch.targets).mean()
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, network.parameters)])
        torch.testing.assert_close(gradient, expected)
    assert list(log_of(handle).bare) == ["gradients are computed without a mechanism (no DP-SGD)"]


def test_shuffled_batches_of_private_data_are_refused_under_dp_sgd():
    handle, network = door(dpsgd=pf.DPSGD(noise_multiplier=1.0))
    batch = handle.everything()
    with pytest.raises(ConfigError, match="Poisson batches with a public divisor"):
        handle.gradient(cross_entropy, network.flat, batch)


def test_a_divisor_from_the_data_is_refused_under_dp_sgd():
    handle, network = door(plan=Poisson(0.5), dpsgd=pf.DPSGD(noise_multiplier=1.0))
    (batch,) = handle.batches()
    with pytest.raises(ConfigError, match="public divisor"):
        handle.gradient(cross_entropy, network.flat, batch)


def test_an_empty_batch_is_a_step_of_pure_noise():
    handle, network = door(1, Poisson(0.05, steps=200, divisor=4.0), dpsgd=pf.DPSGD(noise_multiplier=1.0))
    empty = (batch for batch in handle.batches() if len(batch.rows) == 0)
    values = torch.stack([handle.gradient(cross_entropy, network.flat, batch).clone() for batch in empty])
    assert len(values) > 150
    assert abs(float(values.std()) * 4 - 1) < 5 / math.sqrt(2 * values.numel())


def test_batches_larger_than_one_piece_are_summed():
    inputs = torch.randn(1300, 6)
    for dpsgd in (None, pf.DPSGD(noise_multiplier=1e-12, sample_rate=1.0)):
        handle, network = door(1300, Poisson(1.0, divisor=1300.0), dpsgd=dpsgd, inputs=inputs)
        (batch,) = handle.batches()
        gradient = handle.gradient(cross_entropy, network.flat, batch).clone()
        if dpsgd is None:
            loss = cross_entropy(network.module, batch.inputs, batch.targets).mean()
            expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, network.parameters)])
        else:
            PerSampleGradients(network).clipped_sum(cross_entropy, batch.inputs, batch.targets, 1.0)
            expected = network.gradient / 1300
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("private", [False, True])
def test_poisson_batches_hold_each_sample_independently_with_the_rate(private):
    samples, rate, steps = 40, 0.3, 6000
    plan = Poisson(rate, steps=steps, divisor=1.0)
    handle, _ = door(samples, plan, dpsgd=pf.DPSGD(noise_multiplier=1.0) if private else None)
    hits = np.zeros((steps, samples))
    for step, batch in enumerate(handle.batches()):
        hits[step, batch.rows.numpy()] = 1
    error = math.sqrt(rate * (1 - rate) / steps)
    assert np.abs(hits.mean(0) - rate).max() < 5.7 * error  # 5 s.e. corrected for 40 samples
    sizes = hits.sum(1)
    assert abs(sizes.var() / (samples * rate * (1 - rate)) - 1) < 5.5 * math.sqrt(2 / steps)
    off = np.cov(hits.T, bias=True)[~np.eye(samples, dtype=bool)]
    assert np.abs(off).max() < 6.5 * rate * (1 - rate) / math.sqrt(steps)


def test_epochs_use_every_sample_once_and_keep_the_last_short_batch():
    handle, _ = door(10, Epochs(batch_size=4, epochs=2))
    rows = [batch.rows for batch in handle.batches()]
    assert [len(part) for part in rows] == [4, 4, 2, 4, 4, 2]
    assert torch.equal(torch.cat(rows[:3]).sort().values, torch.arange(10))
    assert not torch.equal(torch.cat(rows[:3]), torch.cat(rows[3:]))


def test_a_number_of_steps_cuts_or_extends_the_epochs():
    handle, _ = door(10, Epochs(batch_size=4, epochs=1, steps=5))
    assert len(list(handle.batches())) == 5


def test_noise_depends_on_key_round_and_client_and_on_nothing_else():
    dpsgd = pf.DPSGD(noise_multiplier=1.0)

    def gradient(**where):
        handle, network = door(plan=Poisson(0.5, divisor=8.0), dpsgd=dpsgd, **where)
        (batch,) = handle.batches()
        return handle.gradient(cross_entropy, network.flat, batch).clone()

    assert torch.equal(gradient(), gradient())
    for where in ({"round": 1}, {"client": 1}, {"key": 2}):
        assert not torch.equal(gradient(), gradient(**where))


def test_the_exact_size_is_noted_as_unprotected():
    handle, _ = door(12)
    assert handle.size() == 12
    assert list(log_of(handle).bare) == ["the exact number of the client's samples is sent"]


def test_reading_the_number_of_rows_is_noted_as_unprotected():
    handle, _ = door(12)
    batch = next(handle.batches())
    assert handle.hand(batch.numbers).count == 4
    assert list(log_of(handle).bare) == ["the exact number of the client's samples is sent"]


def test_what_a_pass_over_data_leaves_in_a_model_gets_into_no_answer_without_data():
    class Remembering(nn.Linear):
        last = torch.zeros(())

        def forward(self, inputs):
            answer = super().forward(inputs) + self.last
            self.last = inputs.detach().sum()
            return answer

    network = FlatNetwork(Remembering(6, 4))
    slot = ClientSlot(0, torch.arange(8), ONE_EPOCH, torch_stream(0, "batches", 0, 0))
    state, inputs = ModuleState.of(network.module), torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    handle = ClientDoor(
        slot, inputs, torch.arange(8) % 4, network, None, cross_entropy, None, state=state, local_only="given"
    )

    def asked():
        return handle.data_free_value(lambda module: module(torch.ones(1, 6)), network.flat)

    before = asked()
    handle.local_only_gradient(cross_entropy, network.flat, next(handle.batches()))
    assert float(network.module.last) != 0
    assert torch.equal(asked(), before)


def test_a_loss_that_couples_samples_is_refused_where_single_rows_are_clipped():
    @coupled
    def spread(network, inputs, targets, *, present):
        return cross_entropy(network, inputs, targets) - inputs.mean()

    plan = Poisson(1.0, divisor=8.0)
    handle, network = door(plan=plan, dpsgd=pf.DPSGD(noise_multiplier=1.0), totals=[NoisyTotal("loss", 1.0, 1.0)])
    (batch,) = handle.batches()
    with pytest.raises(ConfigError, match="spread couples the samples"):
        handle.gradient(spread, network.flat, batch)
    with pytest.raises(ConfigError, match="spread couples the samples"):
        handle.total(spread, network.flat, batch, name="loss")
    assert not any((log_of(handle).noisy, log_of(handle).clipped, log_of(handle).bare))


def test_a_gradient_that_stays_is_not_overwritten_by_the_next_one():
    handle, network = door(8, plan=Epochs(batch_size=4, epochs=1))
    batches = handle.batches()
    kept = handle.local_only_gradient(cross_entropy, network.flat, next(batches))
    before = kept.clone()
    handle.gradient(cross_entropy, network.flat, next(batches))
    assert torch.equal(kept, before)
    assert list(log_of(handle).bare) == ["gradients are computed without a mechanism (no DP-SGD)"]

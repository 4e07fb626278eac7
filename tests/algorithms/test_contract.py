"""What the door gives besides gradients, in both engines and against plain PyTorch; surveys and answers from each."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from torch import nn

import privfl as pf
from privfl.algorithms.base import Algorithm, Survey
from privfl.errors import ConfigError, PrivacyError
from privfl.federation.task import cross_entropy
from privfl.privacy.accounting.release import pure_cost
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining
from privfl.privacy.door.log import BARE_GRADIENT, BARE_SIZE, BARE_TOTAL
from privfl.privacy.loss import coupled
from privfl.privacy.noise.source import NoiseSource
from privfl.randomness import torch_stream
from tests.algorithms.contracts import SIZES, TRAINING, LossOnly, Voiced, both, loaded, one_hot, results
from tests.algorithms.federation import initial, layered_task


@pytest.fixture(scope="module")
def task():
    return layered_task(SIZES)


def gradient_of(task, flat, loss):
    network = loaded(task, flat)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss(network), list(network.parameters()))])


@dataclass(frozen=True)
class Reports(Survey):
    """Looks at all rows at once: mean loss, class counts, and the numbers of the last draw."""

    name: ClassVar[str] = "reports"
    statistics: ClassVar[tuple[str, ...]] = ("counts",)

    def fields(self):
        return (Field("loss", "each", ()), Field("counts", "sum", (10,), weighted=False))

    def begin(self, received, client_state, training):
        zeros = received["parameters"].new_zeros
        return {**super().begin(received, client_state, training), "loss": zeros(()), "counts": zeros(10)}

    def prepare(self, local, received, everything, client, training):
        local["loss"] += client.total(client.loss, received["parameters"], everything) / everything.count
        local["counts"] += client.total(one_hot, received["parameters"], everything, name="counts")

    def finish(self, local, received, training):
        return {"loss": local["loss"], "counts": local["counts"]}


def test_a_survey_sees_all_rows_of_a_client(task):
    found = both(task, Reports())
    for client in range(len(SIZES)):
        rows = task.clients[client]
        network = loaded(task, initial(task))
        expected = nn.functional.cross_entropy(network(task.inputs[rows]), task.targets[rows])
        torch.testing.assert_close(found[client].upload["loss"], expected.detach())
        counts = torch.bincount(task.targets[rows], minlength=10).double()
        torch.testing.assert_close(found[client].upload["counts"], counts)
        assert set(found[client].log.bare) == {BARE_TOTAL, BARE_SIZE}


def test_a_noisy_total_is_clipped_noised_and_noted_the_same_in_both_engines(task):
    mechanism = pf.NoisyTotal("counts", max_norm=0.5, noise_multiplier=2.0)
    found = both(task, Reports(), statistics=(mechanism,))
    residuals = []
    for client in range(len(SIZES)):
        counts = torch.bincount(task.targets[task.clients[client]], minlength=10).double()
        residuals.append(found[client].upload["counts"] - 0.5 * counts)
        assert found[client].log.noisy == Counter({GaussianDpEvent(2.0): 1})
    spread = torch.cat(residuals)  # 40 numbers of deviation 1: their mean square leaves [0.2, 2.6] once in 10^6 times
    assert 0.2 < float(spread.square().mean()) < 2.6
    assert len({float(one) for one in spread}) == len(spread)


def test_without_noise_a_total_is_clipped_row_by_row():
    values = torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("nan"), 1.0], [float("inf"), 0.0]])
    clipped = pf.NoisyTotal("s", max_norm=1.0, noise_multiplier=0.0).clip(values)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(clipped, expected.double(), rtol=2e-6, atol=0)
    assert float(clipped.norm(dim=1).max()) <= 1.0


@dataclass(frozen=True)
class Apart(Algorithm):
    """Trains a personal model and a local tensor beside the global model, with gradients that stay."""

    name: ClassVar[str] = "apart"
    keeps: ClassVar[tuple[str, ...]] = ("personal", "shift")
    local_only: ClassVar[bool] = True

    def initial_client_state(self, client):
        return {"personal": self.context.fresh("personal", client), "shift": torch.zeros(12, dtype=torch.float64)}

    def begin(self, received, client_state, training):
        return {
            **super().begin(received, client_state, training),
            **{name: client_state[name].clone() for name in self.keeps},
        }

    def step(self, local, received, batch, client, training):
        own = client.local_only_gradient(shifted, local["personal"], batch, {"shift": local["shift"]})
        shift = client.local_only_gradient(shifted, local["personal"], batch, {"shift": local["shift"]}, wrt="shift")
        local["personal"].sub_(own, alpha=0.1)
        local["shift"].sub_(shift, alpha=0.1)
        super().step(local, received, batch, client, training)


def shifted(network, inputs, targets, shift):
    return nn.functional.cross_entropy(network.head(network.features(inputs) + shift), targets, reduction="none")


def test_gradients_that_stay_train_a_personal_model_and_change_no_upload(task):
    found = both(task, Apart())
    plain = results(task, pf.FedAvg("uniform"))
    for client in range(len(SIZES)):
        assert torch.equal(found[client].upload["update"], plain[client].upload["update"])
        assert set(found[client].log.bare) == {BARE_GRADIENT}
    client, order = 1, torch_stream(1, "batches", 2, 1)
    personal, shift = task.context(3, 1).fresh("personal", client), torch.zeros(12, dtype=torch.float64)
    for _ in range(TRAINING.epochs):
        for batch in task.clients[client][torch.randperm(SIZES[client], generator=order)].split(TRAINING.batch_size):
            inputs, targets = task.inputs[batch], task.targets[batch]
            leaf = shift.clone().requires_grad_()
            step = gradient_of(task, personal, lambda net, x=inputs, y=targets, s=shift: shifted(net, x, y, s).mean())
            network = loaded(task, personal)
            (move,) = torch.autograd.grad(shifted(network, inputs, targets, leaf).mean(), leaf)
            personal, shift = personal - 0.1 * step, shift - 0.1 * move
    torch.testing.assert_close(found[client].client_state["personal"], personal)
    torch.testing.assert_close(found[client].client_state["shift"], shift)


def test_gradients_that_stay_cost_nothing_under_dp_sgd(task):
    dpsgd = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5)
    found = both(task, Apart(), dpsgd=dpsgd)
    assert all(not result.log.bare for result in found.values())


@dataclass(frozen=True)
class Dreams(Algorithm):
    """Computes on synthetic inputs, with its own random numbers, and at the end asks for values and slopes there."""

    name: ClassVar[str] = "dreams"

    def fields(self):
        return (
            Field("slope", shape=(3, 64)),
            Field("values", shape=(3, 10)),
            Field("seen", shape=(5,)),
            Field("drift"),
        )

    def random_numbers(self):
        return 2, 3

    def begin(self, received, client_state, training):
        zeros = received["parameters"].new_zeros
        shapes = {"slope": (3, 64), "values": (3, 10), "seen": (5,), "drift": received["parameters"].shape}
        return {
            **super().begin(received, client_state, training),
            **{name: zeros(shape) for name, shape in shapes.items()},
        }

    def step(self, local, received, batch, client, training):
        super().step(local, received, batch, client, training)
        local["seen"] += torch.cat([batch.uniform, batch.normal * batch.last])
        local["drift"] += client.data_free_gradient(logits_at, local["parameters"], {"images": received["images"]})

    def conclude(self, local, received, everything, client, training):
        given = {"images": received["images"] + local["seen"][0]}
        local["slope"] += client.data_free_gradient(logits_at, local["parameters"], given, wrt="images")
        local["values"] += client.data_free_value(logits_at, local["parameters"], given)

    def finish(self, local, received, training):
        return {name: local[name] for name in ("slope", "values", "seen", "drift")}


def logits_at(network, images):
    return network(images).square()


def test_data_free_values_slopes_and_random_numbers_agree_with_plain_autograd(task):
    images = torch.randn(3, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    received = {"parameters": initial(task), "images": images}
    found = both(task, Dreams(), received=received)
    client = 3
    plain = results(task, pf.FedAvg("uniform"))[client].upload["update"]
    flat = initial(task) + plain
    stream, seen = torch_stream(1, "algorithm", 2, client), torch.zeros(5, dtype=torch.float64)
    for step in range(6):
        uniform = torch.rand(2, generator=stream, dtype=torch.float64)
        normal = torch.randn(3, generator=stream, dtype=torch.float64)
        seen += torch.cat([uniform, normal * (step >= 3)])
    torch.testing.assert_close(found[client].upload["seen"], seen)
    leaf = (images + seen[0]).requires_grad_()
    network = loaded(task, flat)
    (slope,) = torch.autograd.grad(logits_at(network, leaf).sum(), leaf)
    torch.testing.assert_close(found[client].upload["slope"], slope)
    torch.testing.assert_close(found[client].upload["values"], logits_at(network, leaf).detach())
    assert float(found[client].upload["drift"].abs().max()) > 0


@coupled
def centred(network, inputs, targets, present):
    """Every row against the mean logits of the rows that are there: couples the batch on purpose."""
    logits = network(inputs)
    there = present[:, None].to(logits.dtype)
    mean = (logits * there).sum(0) / there.sum().clamp_min(1)
    return nn.functional.cross_entropy(logits - mean, targets, reduction="none") * (1 + torch.arange(len(targets)))


@dataclass(frozen=True)
class Together(Algorithm):
    """Trains on a loss that couples the rows of a batch."""

    name: ClassVar[str] = "together"

    def step(self, local, received, batch, client, training):
        gradient = client.gradient(centred, local["parameters"], batch)
        local["parameters"].sub_(gradient, alpha=training.learning_rate)


def test_a_coupled_loss_never_sees_padding(task):
    found = both(task, Together(), training=replace(TRAINING, epochs=1))
    rows = task.clients[0][torch.randperm(SIZES[0], generator=torch_stream(1, "batches", 2, 0))]
    flat = initial(task)
    for batch in rows.split(TRAINING.batch_size):
        there = torch.ones(len(batch), dtype=torch.bool)
        inputs, targets = task.inputs[batch], task.targets[batch]
        flat = flat - 0.1 * gradient_of(
            task, flat, lambda net, x=inputs, y=targets, t=there: centred(net, x, y, t).mean()
        )
    torch.testing.assert_close(found[0].upload["update"], flat - initial(task))


@pytest.mark.parametrize("chunk", [None, 4])
def test_dp_sgd_refuses_a_coupled_loss(task, chunk):
    with pytest.raises(ConfigError, match="centred couples the samples of a batch"):
        results(task, Together(), dpsgd=pf.DPSGD(noise_multiplier=1.0), chunk=chunk)


def test_what_a_survey_finds_weighs_the_updates_of_the_same_round(task):
    run = pf.simulate(task, Voiced(), rounds=1, training=TRAINING, seed=1)
    network = loaded(task, start := task.context(1, 1).fresh("unused", 0) * 0 + torch_flat(task, 1))
    losses = torch.stack([cross_entropy(network, *rows_of(task, client)).mean() for client in range(4)]).detach()
    torch.testing.assert_close(run.server["losses"], losses)
    alone = [
        pf.simulate(task, pf.FedAvg("uniform"), rounds=1, training=TRAINING, seed=1, cohort=Only(client)).parameters
        for client in range(4)
    ]
    weights = losses.square() / losses.square().sum()
    expected = start + sum(weight * (one - start) for weight, one in zip(weights, alone, strict=True))
    torch.testing.assert_close(run.parameters, expected)
    assert not any("size" in reason for reason in reasons(run))  # weights of the server ask for no sizes


@dataclass(frozen=True)
class Only(pf.Everyone):
    """A cohort of one client."""

    client: int = 0

    def draw(self, available, round, seed, source, sizes):
        return super().draw(np.array([self.client]), round, seed, source, sizes)


def torch_flat(task, seed):
    return torch.cat([parameter.detach().flatten() for parameter in task.model(seed).parameters()])


def rows_of(task, client):
    return task.inputs[task.clients[client]], task.targets[task.clients[client]]


def reasons(run):
    return run.statement.to_json().splitlines()


def test_a_client_whose_answer_is_unusable_is_out_of_the_round(task):
    broken = task.inputs.clone()
    broken[task.clients[2]] = torch.nan
    run = pf.simulate(replace(task, inputs=broken), Voiced(), rounds=1, training=TRAINING)
    assert run.metrics[0]["clients"] == 3
    assert run.summary["dropped"] == {"sent a non-finite 'loss'": 1}
    assert torch.isfinite(run.parameters).all()


def test_a_randomised_report_costs_epsilon_in_every_round_and_hides_a_value_that_is_not_finite(task):
    field = Field("loss", "each", (), epsilon=2.0, value_range=(1.0, 3.0))
    source = NoiseSource.from_key(1)
    reports = [
        float(field.randomise(torch.tensor(value), source.stream("r", place)))
        for place, value in enumerate([1.7, float("nan"), 50.0] * 500)
    ]
    assert all(1.0 <= report <= 3.0 for report in reports)
    # Of Laplace noise of scale 1 around 1.7, 1/2·exp(−0.7) lies below the range: 0.2483 ± 0.0966 at five deviations.
    assert abs(np.mean(np.array(reports[0::3]) == 1.0) - 0.5 * np.exp(-0.7)) < 5 * np.sqrt(0.25 * 0.75 / 500)
    channel = RoundChannel.bare((field,))
    released = channel.releases(results(task, LossOnly(2.0))[0].log)
    assert len(released) == 4
    assert all(cost == pure_cost(2.0) for release, _ in released for _, cost in release.costs)


@pytest.mark.parametrize(
    "settings", [{"epsilon": 0.0}, {"epsilon": float("inf")}, {"epsilon": 1.0, "value_range": (1, 1)}]
)
def test_an_impossible_report_is_refused(settings):
    with pytest.raises(ConfigError, match="the field 'loss' is randomised with epsilon"):
        Field("loss", shape=(), **settings)


def test_noise_for_a_total_that_nobody_takes_is_refused(task):
    privacy = pf.Privacy(statistics=(pf.NoisyTotal("prototypes", 1.0, 1.0),))
    with pytest.raises(ConfigError, match=r"fedavg takes no total named 'prototypes' \(it takes none\)"):
        pf.simulate(task, pf.FedAvg(), rounds=1, privacy=privacy)
    with pytest.raises(ConfigError, match=r"voiced takes no total named 'prototypes' \(it takes loss\)"):
        pf.simulate(task, Voiced(), rounds=1, privacy=privacy)


def test_a_total_that_was_not_declared_stops_the_run(task):
    @dataclass(frozen=True)
    class Sly(pf.FedAvg):
        name: ClassVar[str] = "sly"

        def prepare(self, local, received, everything, client, training):
            client.total(client.loss, received["parameters"], everything)

    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5))
    with pytest.raises(PrivacyError, match="sly took other values through the door"):
        pf.simulate(task, Sly("uniform"), rounds=1, privacy=privacy)


def test_the_learning_rate_decays_round_by_round(task):
    training = LocalTraining(learning_rate=0.8, learning_rate_decay=0.5, decay_every=2)
    assert [training.in_round(number).learning_rate for number in range(5)] == [0.8, 0.8, 0.4, 0.4, 0.2]
    decayed = pf.simulate(task, pf.FedAvg("uniform"), rounds=2, training=replace(training, decay_every=1))
    first = pf.simulate(task, pf.FedAvg("uniform"), rounds=1, training=LocalTraining(learning_rate=0.8))
    whole = pf.simulate(task, pf.FedAvg("uniform"), rounds=2, training=LocalTraining(learning_rate=0.8))
    assert (
        0 < float((decayed.parameters - first.parameters).norm()) < float((whole.parameters - first.parameters).norm())
    )

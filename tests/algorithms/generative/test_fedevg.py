"""FedEvg: the numbered checks of its specification, on the engines and in whole runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from synthetic import SyntheticImageLog
from torch import Tensor, nn

import privfl as pf
from privfl.algorithms.generative import fedevg
from privfl.algorithms.generative.fedevg import FedEvg
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models import build
from privfl.privacy.door.step_draws import Draws
from privfl.randomness import torch_stream
from tests.algorithms.generative.evg_federation import SIZES, TRAINING, Watched, sent, settings_of, small, task_of


def trained_alone(task: Task, algorithm: FedEvg, server: dict[str, Tensor], client: int) -> tuple[Tensor, Tensor]:
    """One client's round by torch.optim.Adam and ordinary autograd: gradients and energies at the images."""
    network = task.model(0)
    nn.utils.vector_to_parameters(server["parameters"].clone(), network.parameters())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, betas=(0.5, 0.999), weight_decay=1e-4)
    images, labels = server["images"], server["labels"]
    count, chain = len(labels), images.clone()
    draws = Draws(count, algorithm.chain_steps * images.numel(), torch_stream(0, "algorithm", 0, client))
    rows, order = task.clients[client], torch_stream(0, "batches", 0, client)

    def energy(points: Tensor, classes: Tensor) -> Tensor:
        return -network(points)[torch.arange(len(classes)), classes]

    for _ in range(TRAINING.epochs):
        for batch in rows[torch.randperm(len(rows), generator=order)].split(TRAINING.batch_size):
            uniform, normal = draws.next(images.dtype)
            chosen = uniform.sort().indices[: min(TRAINING.batch_size, count)]
            points = chain[chosen]
            for noise in normal.view(algorithm.chain_steps, *images.shape):
                points = points.detach().requires_grad_()
                (slope,) = torch.autograd.grad(energy(points, labels[chosen]).sum(), points)
                points = points - algorithm.chain_step_size * slope.clamp(-algorithm.clip, algorithm.clip)
                points = points + algorithm.chain_noise * noise[: len(chosen)]
            chain[chosen] = negatives = points.detach().clamp(0, 1)
            inputs, targets = task.inputs[batch], task.targets[batch]
            loss = F.cross_entropy(network(inputs), targets)
            loss = loss + algorithm.gamma * F.cross_entropy(network(images[chosen]), labels[chosen])
            loss = loss + energy(inputs, targets).mean() - energy(negatives, labels[chosen]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    leaf = images.clone().requires_grad_()
    energies = energy(leaf, labels)
    (gradient,) = torch.autograd.grad(energies.sum(), leaf)
    return gradient.clamp(-algorithm.clip, algorithm.clip).flatten(1), energies.detach()


@pytest.mark.parametrize("options", [{}, {"chain_steps": 3, "gamma": 0.7, "clip": 0.02}, {"chain_steps": 0}])
@pytest.mark.parametrize("samples", [2, 5])
def test_a_client_trains_and_answers_as_torch_adam_on_equation_10_does(options: dict[str, Any], samples: int) -> None:
    task, algorithm = task_of(), small(weighting="exact", samples_per_class=samples, **options)
    for vectorised in (False, True):
        server, results = sent(task, algorithm, vectorised=vectorised)
        for result in results:
            gradient, energy = trained_alone(task, algorithm, server, result.client)
            assert result.upload is not None
            torch.testing.assert_close(result.upload["gradient"], gradient, rtol=0, atol=1e-10)
            torch.testing.assert_close(result.upload["energy"], energy, rtol=0, atol=1e-10)


def test_the_signed_upload_is_the_exact_ones_strength_times_gradient_and_strength() -> None:
    task = task_of()
    exact, signed, size = (sent(task, small(weighting=name))[1] for name in ("exact", "signed", "size"))
    for one, two, three in zip(exact, signed, size, strict=True):
        assert one.upload is not None
        s = torch.exp(-torch.sign(one.upload["energy"]))[:, None]
        torch.testing.assert_close(two.upload["update"], torch.cat([s * one.upload["gradient"], s], 1))
        torch.testing.assert_close(
            three.upload["update"], torch.cat([one.upload["gradient"], torch.ones_like(s)], 1), rtol=0, atol=0
        )


@pytest.mark.parametrize("client_weights", ["size", "uniform"])
@pytest.mark.parametrize("weighting", ["signed", "exact", "size"])
def test_check_14_a_round_is_equations_5_and_6_of_what_the_clients_sent(weighting: str, client_weights: str) -> None:
    task = task_of()
    algorithm = small(weighting=weighting, client_weights=client_weights, noise=0.0, step_size=0.3, last_step_size=0.3)
    server, results = sent(task, replace(algorithm, weighting="exact"))
    g = torch.stack([result.upload["gradient"] for result in results])
    energy = torch.stack([result.upload["energy"] for result in results])
    sizes = torch.tensor(SIZES if client_weights == "size" else (1, 1, 1), dtype=torch.float64)[:, None]
    factor = {"signed": torch.exp(-energy.sign()), "exact": torch.exp(-energy), "size": torch.ones_like(energy)}
    omega = sizes * factor[weighting]
    pull = ((omega / omega.sum(0))[:, :, None] * g).sum(0).view_as(server["images"])
    gallery = SyntheticImageLog(every=1)
    pf.simulate(
        task,
        algorithm,
        rounds=1,
        training=TRAINING,
        callbacks=[gallery],
        execution=pf.Execution(engine="loop"),
        evaluate_every=5,
    )
    expected = (server["images"] - 0.3 * pull).clamp(0, 1)
    torch.testing.assert_close(gallery.sets[1].images, expected, rtol=0, atol=1e-9)


def test_check_2_with_one_client_all_weightings_are_the_same() -> None:
    task, found = task_of((12,)), []
    for weighting in ("signed", "exact", "size"):
        gallery = SyntheticImageLog()
        run = pf.simulate(task, small(weighting=weighting), rounds=2, training=TRAINING, callbacks=[gallery])
        found.append(gallery.last.images)
        assert run.metrics[-1]["clients"] == 1
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=1e-12)


def test_check_4_images_are_pixels_after_every_round_and_labels_never_change() -> None:
    gallery = SyntheticImageLog(every=1)
    algorithm = small(step_size=10.0, samples_per_class=3)
    run = pf.simulate(task_of(), algorithm, rounds=4, training=TRAINING, callbacks=[gallery])
    assert list(gallery.sets) == [1, 2, 3, 4]
    for number, found in gallery.sets.items():
        assert found.images.shape == (9, 1, 6, 6)
        assert 0 <= float(found.images.min()) <= float(found.images.max()) <= 1
        assert found.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        line = run.metrics[number - 1]
        on_bounds = ((found.images == 0) | (found.images == 1)).double().mean()
        assert line["saturated_pixels"] == pytest.approx(float(on_bounds))
        assert line["pull_norm"] > 0


def test_other_pixel_bounds_are_kept_too() -> None:
    gallery = SyntheticImageLog()
    algorithm = small(low=-0.5, high=2.5, step_size=30.0)
    pf.simulate(task_of(), algorithm, rounds=1, training=TRAINING, callbacks=[gallery])
    assert float(gallery.last.images.min()) == -0.5
    assert float(gallery.last.images.max()) == 2.5


def test_images_start_as_standard_normal_noise_with_equally_many_of_each_class() -> None:
    """False alarm below 1e-6: 10,800 normal pixels; the mean lies within 5 standard errors of 0, the spread of 1."""
    algorithm = FedEvg(samples_per_class=100).bind(task_of().context(10, 3))
    server = algorithm.start(torch.zeros(4, dtype=torch.float64))
    assert server["images"].dtype == torch.float64
    assert server["labels"].bincount().tolist() == [100, 100, 100]
    assert (server["labels"].diff() >= 0).all()
    pixels = server["images"].numel()
    assert abs(float(server["images"].mean())) < 5 / math.sqrt(pixels)
    assert abs(float(server["images"].std()) - 1) < 5 / math.sqrt(2 * pixels)
    assert float(server["images"].min()) < 0, "the first images are not clipped"


def test_check_6_seeds_decide_everything_and_without_step_and_noise_images_are_only_clipped() -> None:
    task, found = task_of(), []
    for seed in (1, 1, 2):
        gallery = SyntheticImageLog()
        run = pf.simulate(
            task,
            small(),
            rounds=2,
            training=TRAINING,
            seed=seed,
            callbacks=[gallery],
            execution=pf.Execution(engine="loop"),
        )
        found.append((gallery.last.images, run.metrics[-1]["test_loss"]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert not torch.equal(found[0][0], found[2][0])
    gallery = SyntheticImageLog(every=1)
    still = small(step_size=0.0, last_step_size=0.0, noise=0.0)
    pf.simulate(task, still, rounds=2, training=TRAINING, callbacks=[gallery])
    start = still.bind(task.context(2, 0)).start(torch.zeros(1, dtype=torch.float64))["images"]
    assert torch.equal(gallery.sets[1].images, start.clamp(0, 1))
    assert torch.equal(gallery.sets[2].images, gallery.sets[1].images)


@dataclass(frozen=True)
class Displaced(FedEvg):
    """Moves the chain after the last step."""

    def conclude(self, local: Any, *rest: Any) -> None:
        local["chain"] = local["chain"] + 7
        super().conclude(local, *rest)


def test_check_7_uploads_are_evaluated_at_the_downloaded_images_and_not_at_the_chain() -> None:
    task, plain = task_of(), small()
    moved = Displaced(**settings_of(plain))
    for vectorised in (False, True):
        pairs = zip(
            sent(task, plain, vectorised=vectorised)[1], sent(task, moved, vectorised=vectorised)[1], strict=True
        )
        assert all(torch.equal(one.upload["update"], other.upload["update"]) for one, other in pairs)


def watched(**options: Any) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    algorithm = Watched(**settings_of(small(samples_per_class=5, **options)))
    sent(task_of(), algorithm)
    return algorithm.seen


def test_check_9_the_chain_changes_on_i_alone_persists_within_a_round_and_begins_at_the_download() -> None:
    steps = [math.ceil(size / 8) * 2 for size in SIZES]
    seen = watched()
    assert len(seen) == sum(steps)
    starts = {0, steps[0], steps[0] + steps[1]}
    for number, (before, after, chosen, images) in enumerate(seen):
        assert len(chosen) == len(chosen.unique()) == 8
        others = torch.ones(15, dtype=torch.bool)
        others[chosen] = False
        assert torch.equal(before[others], after[others])
        assert (before[chosen] != after[chosen]).flatten(1).any(1).all()
        assert torch.equal(before, images if number in starts else seen[number - 1][1])


def test_check_9_without_steps_the_negatives_are_the_clipped_images() -> None:
    for _, after, chosen, images in watched(chain_steps=0):
        assert torch.equal(after[chosen], images[chosen].clamp(0, 1))
        assert not torch.equal(after[chosen], images[chosen])


def test_check_8_without_gamma_the_client_learns_nothing_of_the_images_but_by_the_chain() -> None:
    """With a chain that forgets where it began, other images give the same model, and so the same energies."""
    task = task_of()

    def energies(gamma: float, shift: float) -> list[Tensor]:
        plain = small(weighting="exact", gamma=gamma, chain_step_size=0.0, chain_noise=0.0)
        algorithm = Forgetful(**settings_of(plain), shift=shift)
        return [result.upload["energy"] for result in sent(task, algorithm)[1]]

    assert all(torch.equal(a, b) for a, b in zip(energies(0.0, 0.0), energies(0.0, 0.4), strict=True))
    assert not torch.equal(energies(0.5, 0.0)[0], energies(0.5, 0.4)[0])


@dataclass(frozen=True)
class Forgetful(FedEvg):
    """Trains on images that are moved by ``shift``, with a chain at zero, and answers at the images themselves."""

    shift: float = 0.0

    def step(self, local: Any, received: Any, batch: Any, client: Any, training: Any) -> None:
        local["chain"] = torch.zeros_like(local["chain"])
        super().step(local, {**received, "images": received["images"] + self.shift}, batch, client, training)


@pytest.mark.parametrize("width", [4, 8])
def test_check_11_the_payload_has_nd_plus_n_numbers_whatever_the_model_and_no_parameters(width: int) -> None:
    task, expected = task_of(width=width), 6 * 36 + 6
    for weighting in ("signed", "exact", "size"):
        for result in sent(task, small(weighting=weighting))[1]:
            assert result.upload is not None
            assert sum(value.numel() for value in result.upload.values()) == expected
    assert task.context(1, 0).layout.size not in (expected, expected - 6)


def test_the_upload_does_not_depend_on_how_many_images_are_differentiated_at_once(monkeypatch: Any) -> None:
    whole = sent(task_of(), small())[1]
    monkeypatch.setattr(fedevg, "ROWS_OF_AN_UPLOAD", 4)
    for one, other in zip(whole, sent(task_of(), small())[1], strict=True):
        torch.testing.assert_close(one.upload["update"], other.upload["update"], rtol=0, atol=1e-12)


def test_a_round_begins_with_fresh_parameters_that_the_seed_tells_or_with_those_a_client_kept() -> None:
    task, bound = task_of(), small().bind(task_of().context(10, 0))
    first, second = (sent(task, small(), round=number)[0]["parameters"] for number in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(second, bound.context.fresh("fedevg", 1))
    keeping = small(reinitialise=False)
    assert small().keeps == ()
    assert keeping.keeps == keeping.bind(task.context(10, 0)).keeps == ("parameters",)
    server, results = sent(task, keeping)
    assert torch.equal(sent(task, keeping, round=1)[0]["parameters"], server["parameters"])
    client_state = results[0].client_state["parameters"]
    assert not torch.equal(client_state, server["parameters"])
    begun = keeping.begin(server, {"parameters": client_state}, TRAINING)
    assert torch.equal(begun["parameters"], client_state)


def blobs(seed: int = 0) -> Task:
    """Two classes of 8 x 8 images, a bright blob on either side, held by four clients of one class each."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.tensor([0, 1, 0, 1, 0, 1]).repeat_interleave(40)
    places = torch.arange(8.0)
    centres = torch.where(targets == 0, 2.0, 5.0)[:, None] + 0.4 * torch.randn(240, 2, generator=generator)
    rows, columns = ((places - centres[:, axis, None]).square() for axis in (0, 1))
    inputs = torch.exp(-(rows[:, :, None] + columns[:, None]) / 4)[:, None]
    inputs = (inputs + 0.05 * torch.randn(inputs.shape, generator=generator)).clamp(0, 1)
    clients = ClientIndex.of([np.arange(40 * k, 40 * k + 40) for k in range(4)])

    def model(seed: int) -> nn.Module:
        return build("energy-cnn", (1, 8, 8), 2, width=8, seed=seed)

    return Task("blobs", inputs[:160], targets[:160], clients, inputs[160:], targets[160:], 2, model, "energy-cnn")


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["signed", "exact"])
def test_check_12_the_images_come_to_look_like_the_classes_and_teach_a_classifier(weighting: str) -> None:
    """A classifier that guesses has 50 % of 80 test images: 75 % or more by luck has p < 6e-6; seeds are fixed."""
    task, gallery = blobs(), SyntheticImageLog()
    algorithm = FedEvg(
        samples_per_class=5, weighting=weighting, step_size=1.0, last_step_size=0.1, clip=1.0, classifier_epochs=100
    )
    training = pf.LocalTraining(learning_rate=1e-3, batch_size=20, epochs=2)
    arguments: dict[str, Any] = {
        "training": training,
        "callbacks": [gallery],
        "execution": pf.Execution(engine="loop"),
        "evaluate_every": 25,
    }
    run = pf.simulate(task, algorithm, rounds=25, **arguments)
    assert run.summary["test_accuracy"] > 0.9
    for label in (0, 1):
        found = gallery.last.images[gallery.last.labels == label].mean(0).flatten()
        own, other = (task.inputs[task.targets == c].mean(0).flatten() for c in (label, 1 - label))
        correlation = [float(torch.corrcoef(torch.stack([found, real]))[0, 1]) for real in (own, other)]
        assert correlation[0] > 0.5
        assert correlation[0] > correlation[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"samples_per_class": 0}, "fedevg's samples_per_class is 0"),
        ({"classifier_epochs": 0}, "fedevg's classifier_epochs is 0"),
        ({"weighting": "mixture"}, "fedevg's weighting is 'mixture'; choose 'signed', 'exact' or 'size'"),
        ({"client_weights": "n"}, "fedevg's client_weights is 'n'; give"),
        ({"schedule": "linear"}, "fedevg's schedule is 'linear'; choose 'as-coded' or 'cosine'"),
        ({"chain_steps": -1}, "fedevg's chain_steps is -1; give a whole number of at least 0"),
        ({"step_size": math.nan}, "fedevg's step_size is nan; give a number"),
        ({"gamma": -0.1}, "fedevg's gamma is -0.1; give a finite number of at least 0"),
        ({"clip": 0.0}, "fedevg's clip is 0.0; give a finite number above 0"),
        ({"low": 1.0}, "fedevg's pixels lie between 1.0 and 1.0; give low < high"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        FedEvg(**options)

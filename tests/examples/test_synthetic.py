"""Synthetic sets: stored without loss, drawn, and measured by a classifier and by features."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from synthetic import (
    SyntheticImageLog,
    SyntheticSet,
    classifier_scores,
    contact_sheet,
    evolution,
    generative_scores,
    trained_features,
)

import privfl as pf
from privfl.algorithms.generative.server_training import train_classifier
from privfl.errors import DataError
from privfl.models import build
from privfl.models.flat_network import flatten
from privfl.simulation.settings import Schedule


def digits() -> pf.Task:
    return pf.load("digits", partition=pf.IID(clients=4), model="energy-cnn", model_options={"width": 16})


def real_digits(count: int = 100) -> SyntheticSet:
    task = digits()
    return SyntheticSet(task.inputs[:count], task.targets[:count])


def test_a_stored_set_comes_back_bit_for_bit(tmp_path: Path) -> None:
    before = real_digits(20)
    before.save(tmp_path / "set.npz")
    after = SyntheticSet.load(tmp_path / "set.npz")
    assert torch.equal(after.images, before.images)
    assert torch.equal(after.labels, before.labels)


def test_a_file_that_needs_unpickling_is_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=np.array([{}], dtype=object), labels=np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        SyntheticSet.load(tmp_path / "set.npz")


def test_images_without_a_label_each_are_refused() -> None:
    with pytest.raises(DataError, match=r"3 images have labels of shape \(2,\); give one label each"):
        SyntheticSet(torch.zeros(3, 1, 2, 2), torch.zeros(2, dtype=torch.int64))


def test_a_classifier_trained_on_real_images_has_learned_them_and_one_trained_on_noise_knows_nothing() -> None:
    """Chance is 10 % of 360 test digits, standard error 1.6 points; ten classes of noise carry no digit."""
    task, real = digits(), real_digits(100)
    good = classifier_scores(task, real)
    assert good["train_accuracy"] > 0.98
    assert good["test_accuracy"] > 0.7
    noise = SyntheticSet(torch.rand(100, 1, 8, 8, generator=torch.Generator().manual_seed(0)), real.labels)
    assert classifier_scores(task, noise)["test_accuracy"] < 0.4


def test_training_at_the_server_depends_on_its_seed_only_and_starts_from_the_given_parameters() -> None:
    real = real_digits(30)
    network = build("energy-cnn", (1, 8, 8), 10, width=4, seed=0)
    start = flatten(network)

    def trained(seed: int, epochs: int = 3) -> torch.Tensor:
        torch.manual_seed(seed + 100)
        return train_classifier(network, start, real.images, real.labels, epochs=epochs, seed=seed)

    first = trained(1)
    assert torch.equal(first, trained(1))
    assert not torch.equal(first, trained(2))
    assert torch.equal(trained(1, epochs=0), start)


def test_features_tell_real_digits_from_noise_and_say_where_they_come_from() -> None:
    task = digits()
    features = trained_features(task.inputs[:600], task.targets[:600], 10, source="600 digits", epochs=2, width=8)
    assert features.name == "two-cnn with 8 features, 2 epochs on 600 digits, seed 0"
    assert features(task.inputs[:5]).shape == (5, 8)
    others, noise = task.inputs[600:700], torch.rand(100, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    close, far = (generative_scores(features, task.inputs[700:1100], images) for images in (others, noise))
    assert close["fid"] < far["fid"] / 3
    assert close["kid"] < far["kid"] / 3


def test_a_gallery_keeps_the_first_the_last_and_every_nth_round_and_not_what_comes_after() -> None:
    gallery, images = SyntheticImageLog(every=3), torch.zeros(2, 1, 2, 2)
    for done in range(1, 8):
        images += 1
        server = {"images": images, "labels": torch.arange(2)}
        gallery(SimpleNamespace(round=done, schedule=Schedule(rounds=7), server=server), {})
    assert list(gallery.sets) == [1, 3, 6, 7]
    assert [float(kept.images[0, 0, 0, 0]) for kept in gallery.sets.values()] == [1, 3, 6, 7]
    assert gallery.last is gallery.sets[7]


def test_a_gallery_with_a_folder_has_the_sets_of_the_interrupted_run_too(tmp_path: Path) -> None:
    state = SimpleNamespace(
        round=1, schedule=Schedule(rounds=9), server={"images": torch.rand(2, 1, 2, 2), "labels": torch.arange(2)}
    )
    first = SyntheticImageLog(every=5, folder=tmp_path)
    first(state, {})
    state.round = 5
    again = SyntheticImageLog(every=5, folder=tmp_path)
    again(state, {})
    assert list(again.sets) == [1, 5]
    assert torch.equal(again.sets[1].images, first.sets[1].images)


@pytest.mark.parametrize("channels", [1, 3])
def test_sheets_show_every_image_and_every_round(channels: int, tmp_path: Path) -> None:
    images = torch.rand(6, channels, 5, 4, generator=torch.Generator().manual_seed(0))
    synthetic = SyntheticSet(images, torch.tensor([0, 0, 0, 1, 1, 4]))
    figures = {
        ("0", "1", "4"): (contact_sheet(synthetic, "three classes"), [[0, 1, 2], [3, 4], [5]]),
        ("1", "20"): (evolution({1: synthetic, 20: synthetic}), [[0, 3, 5], [0, 3, 5]]),
    }
    for names, (figure, expected) in figures.items():
        (axes,) = figure.axes
        assert [label.get_text() for label in axes.get_yticklabels()] == list(names)
        shown = np.asarray(axes.images[0].get_array())
        for down, row in enumerate(expected):
            for right in range(3):
                tile = shown[6 * down : 6 * down + 5, 5 * right : 5 * right + 4]
                want = np.moveaxis(images[row[right]].numpy(), 0, -1) if right < len(row) else np.ones_like(tile)
                np.testing.assert_allclose(tile, want.reshape(tile.shape))
        figure.savefig(tmp_path / "sheet.png")
        assert (tmp_path / "sheet.png").stat().st_size > 1000

"""Inverting the prototypes of a run: every method draws an image for each class, beside nulls that see no victim."""

from dataclasses import replace

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.images.pixels import Pixels
from attacks.prototypes.inversion import OTHERS, PrototypeInversion, nearest_of_class, public_prototypes
from attacks.prototypes.messages import message_of
from privfl.errors import ConfigError
from tests.attacks.federations import DIGITS, public, rows_by_client, run_of

ROWS = rows_by_client((12, 60), classes=(0, 1, 4))
PUBLIC, PIXELS = public(ROWS), Pixels.of("digits")
SMALL = {"epochs": 2, "iterations": 20, "channels": (8, 4)}


@pytest.fixture(scope="module")
def transcript():
    return run_of(ROWS, pf.ReBaFL(n_min=1), pf.LocalTraining(learning_rate=0.05, batch_size=6))


def auxiliary(rows):
    truth = {"images": PIXELS.images(DIGITS.inputs[rows]), "labels": DIGITS.targets[rows]}
    return Auxiliary(public=PUBLIC, truth=truth)


@pytest.mark.parametrize("method", ["upcnn", "vae", "vae-search", "grnn", "direct"])
def test_every_method_draws_one_image_for_each_class(method, transcript):
    attack = PrototypeInversion(client=0, method=method, **SMALL)
    result = attack.run(transcript, auxiliary(ROWS[0]))
    assert result.images.shape == (3, 1, 8, 8)
    assert set(result.nulls) == {"mean image", "class mean", "random image", OTHERS}
    assert result.metrics["psnr"].value > 3
    assert torch.equal(attack.guess(transcript, auxiliary(ROWS[0]).for_attacker()).images, result.images)


def test_the_truth_is_the_nearest_image_of_the_class_for_the_attack_and_for_every_null(transcript):
    result = PrototypeInversion(client=0, **SMALL).run(transcript, auxiliary(ROWS[0]))
    images, labels = auxiliary(ROWS[0]).truth.values()
    for label, found, truth in zip((0, 1, 4), result.null_images["class mean"], result.truth, strict=True):
        own = images[labels == label]
        errors = (own - found).square().mean((1, 2, 3))
        nearest = nearest_of_class(found[None], torch.tensor([label]), images, labels)
        assert torch.equal(nearest[0], own[errors.argmin()])
        assert any(torch.equal(truth, image) for image in own)
    errors = [
        float((found - nearest).square().mean())
        for found, nearest in zip(
            result.null_images["class mean"],
            nearest_of_class(result.null_images["class mean"], torch.tensor([0, 1, 4]), images, labels),
            strict=True,
        )
    ]
    assert result.nulls["class mean"]["mse"].value == pytest.approx(sum(errors) / 3, rel=1e-4)


def test_others_prototypes_are_means_of_as_many_public_images(transcript):
    message = message_of(transcript, 0)
    labels = torch.tensor(message.classes)
    found = public_prototypes(message, PUBLIC, labels, torch.Generator().manual_seed(0))
    again = torch.Generator().manual_seed(0)
    for row, label in zip(found, labels.tolist(), strict=True):
        rows = (PUBLIC.targets == label).nonzero().flatten()
        chosen = rows[torch.randperm(len(rows), generator=again)[: int(message.counts[label])]]
        torch.testing.assert_close(row, message.features(PUBLIC.inputs[chosen]).mean(0))


def test_impossible_settings_and_data_are_refused(transcript):
    with pytest.raises(ConfigError, match="did you mean 'upcnn'"):
        PrototypeInversion(method="upcn")
    with pytest.raises(ConfigError, match="epochs is 0"):
        PrototypeInversion(epochs=0)
    few = replace(auxiliary(ROWS[0]), public=Records(PUBLIC.inputs[:1], PUBLIC.targets[:1]))
    with pytest.raises(ConfigError, match="has no public image"):
        PrototypeInversion(client=0, **SMALL).run(transcript, few)
    with pytest.raises(ConfigError, match="no image of class 4"):
        nearest_of_class(torch.zeros(1, 1, 8, 8), torch.tensor([4]), torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]))

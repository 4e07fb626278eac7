"""Model inconsistency: a secure sum in which only one client's first layer has a gradient."""

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary
from attacks.gradient_inversion.model_inconsistency import ModelInconsistency, inconsistent_server
from attacks.images.pixels import Pixels
from privfl.errors import ConfigError
from tests.attacks.federations import DIGITS, public, rows_by_client, run_of

ROWS = rows_by_client((3, 5, 4))
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=40)
SUM = pf.Privacy(update=(pf.Clip(1.0), pf.SecureSum(mode="ideal")))


def task_of(model):
    return pf.load("digits", partition=pf.IID(clients=3), model=model)


def truth_of(client):
    return Auxiliary(public=public(ROWS), truth={"images": Pixels.of("digits").images(DIGITS.inputs[ROWS[client]])})


def test_the_targets_images_come_through_a_clipped_secure_sum():
    seen = run_of(ROWS, inconsistent_server(pf.FedAvg(weighting="uniform"), 1), TRAINING, privacy=SUM)
    assert seen[0].training.uploads is None
    result = ModelInconsistency(client=1, batch=5).run(seen, truth_of(1))
    assert float(result.per_image["psnr"].min()) > 90
    assert result.nulls["mean image"]["psnr"].value < 20
    assert torch.equal(seen[0].released, seen[0].broadcast["parameters"])  # the server itself learns nothing


def test_only_the_target_pulls_at_the_first_layer():
    seen = run_of(ROWS, inconsistent_server(pf.FedAvg(weighting="uniform"), 1), TRAINING)
    first = sum(part.numel() for part in list(seen.network(seen[0].released).parameters())[:2])
    moved = {client: bool(upload["update"][:first].any()) for client, upload in seen[0].uploads.items()}
    assert moved == {0: False, 1: True, 2: False}


def test_it_is_staged_and_an_honest_run_is_refused():
    _, algorithm = ModelInconsistency(client=2).staged(task_of("two-nn"), pf.FedAvg(), Auxiliary())
    assert type(algorithm).__name__ == "InconsistentFedAvg"
    with pytest.raises(ConfigError, match="does not begin with two fully connected layers"):
        ModelInconsistency().staged(task_of("logistic"), pf.FedAvg(), Auxiliary())
    with pytest.raises(ConfigError, match="every client was sent the same"):
        ModelInconsistency(client=1, batch=5).run(run_of(ROWS, pf.FedAvg(), TRAINING), truth_of(1))

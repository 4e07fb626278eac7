"""Fishing: class by class, a batch too large to be read at once comes back."""

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary
from attacks.gradient_inversion.fishing import SURE, Fishing, fished_class, fishing_server
from attacks.images.pixels import Pixels
from privfl.errors import ConfigError
from tests.attacks.federations import DIGITS, public, rows_by_client, run_of

ROWS = rows_by_client((12, 13, 11))
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=40)


@pytest.fixture(scope="module")
def seen():
    """Every client's update is shortened, by a factor of its own."""
    chain = pf.Privacy(update=(pf.Clip(0.03), pf.SecureSum(mode="ideal")))
    return run_of(ROWS, fishing_server(pf.FedAvg(weighting="uniform")), TRAINING, rounds=10, privacy=chain)


def test_all_images_of_a_secure_sum_come_back_over_ten_rounds(seen):
    truth = {"images": Pixels.of("digits").images(DIGITS.inputs[torch.cat(ROWS)])}
    result = Fishing(client=None, batch=36).run(seen, Auxiliary(public=public(ROWS), truth=truth))
    assert result.settings["read"] == 36
    assert float((result.per_image["psnr"] > 30).double().mean()) > 0.9
    assert result.nulls["class mean"]["psnr"].value < 20


def test_a_round_fishes_for_one_class_and_says_so(seen):
    for number, label in ((0, 0), (7, 7)):
        sent = seen[number].broadcast["parameters"]
        network = seen.network(sent)
        assert fished_class(network, sent) == label
        logits = network(DIGITS.inputs[:5]).detach()
        assert (logits.argmax(1) != label).all()
        assert float(logits.max()) == SURE


def test_what_was_not_fished_for_is_refused(seen):
    auxiliary = Auxiliary(public=public(ROWS), truth={"images": torch.zeros(12, 1, 8, 8)})
    with pytest.raises(ConfigError, match="rows of the broadcast's head are not zero"):
        Fishing(client=0, batch=12).run(run_of(ROWS, pf.FedAvg(), TRAINING), auxiliary)
    with pytest.raises(ConfigError, match="name another"):
        Fishing(client=0, batch=12).run(seen, auxiliary)

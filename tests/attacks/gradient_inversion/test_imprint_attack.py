"""The images of ten clients out of the secure sum of their updates, by a server that imprinted the first layer."""

import pytest
import torch

import attacks
import privfl as pf
from attacks.images.pixels import Pixels
from privfl.errors import ConfigError
from tests.attacks.federations import DIGITS, public, rows_by_client, run_of

ROWS = rows_by_client((1,) * 10)
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=1)
AUXILIARY = attacks.Auxiliary(
    public=public(ROWS), truth={"images": Pixels.of("digits").images(DIGITS.inputs[torch.cat(list(ROWS))])}
)
PRIVACY = pf.Privacy(update=(pf.Clip(0.1), pf.SecureSum(mode="ideal")))


@pytest.mark.parametrize("units", [200, 150])
def test_most_images_come_through_clipping_and_a_secure_sum(units):
    server = attacks.imprinting_server(pf.FedAvg(weighting="uniform"), AUXILIARY.public.inputs, units=units)
    transcript = run_of(ROWS, server, TRAINING, privacy=PRIVACY)
    result = attacks.Imprint(batch=10).run(transcript, AUXILIARY)
    assert int((result.per_image["psnr"] > 30).sum()) >= 8  # two may share a bin
    assert max(null["psnr"].value for null in result.nulls.values()) < 20


def test_an_honest_server_reads_nothing():
    transcript = run_of(ROWS, pf.FedAvg(weighting="uniform"), TRAINING, privacy=PRIVACY)
    with pytest.raises(ConfigError, match="did not imprint it"):
        attacks.Imprint(batch=10).run(transcript, AUXILIARY)
    with pytest.raises(ConfigError, match="round 4 was not recorded"):
        attacks.Imprint(batch=10, round=4).run(transcript, AUXILIARY)
    with pytest.raises(ConfigError, match="0 updates of client 3"):
        attacks.Imprint(client=3, batch=10).run(transcript, AUXILIARY)

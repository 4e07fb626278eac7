"""What a client can check: honest models look honest, and each kind of crafted one shows its own sign."""

import torch

import privfl as pf
from attacks.auxiliary import Records
from attacks.detection import fingerprint, signs
from attacks.gradient_inversion.fishing import fishing_server
from attacks.gradient_inversion.imprint import imprinting_server
from attacks.gradient_inversion.model_inconsistency import inconsistent_server
from tests.attacks.federations import DIGITS, rows_by_client, run_of

ROWS = rows_by_client((12, 13))
OWN = Records(DIGITS.inputs[:40], DIGITS.targets[:40])
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=40)


def sent(algorithm):
    seen = run_of(ROWS, algorithm, TRAINING)
    return {name: signs(seen.network(value), OWN) for name, value in seen[0].broadcast.items()}, seen[0].broadcast


def test_every_kind_of_crafted_model_shows_its_sign():
    honest = sent(pf.FedAvg())[0]["parameters"]
    assert honest["parallel units"] == 0
    assert honest["dead units"] < 0.4
    assert honest["equal head rows"] == 0.1
    assert honest["own loss"] < 3
    imprinted = sent(imprinting_server(pf.FedAvg(), DIGITS.test_inputs, units=40))[0]["parameters"]
    assert imprinted["parallel units"] >= 0.2
    fished = sent(fishing_server(pf.FedAvg()))[0]["parameters"]
    assert fished["equal head rows"] == 0.9
    assert fished["own loss"] > 10
    two = sent(inconsistent_server(pf.FedAvg(), 0))[0]
    assert two["parameters"] == honest  # the target sees nothing
    assert two["parameters, version 1"]["dead units"] == 1


def test_clients_who_compare_fingerprints_find_out():
    _, same = sent(pf.FedAvg())
    _, two = sent(inconsistent_server(pf.FedAvg(), 0))
    assert fingerprint(same["parameters"]) == fingerprint(same["parameters"].clone())
    assert len({fingerprint(value) for value in two.values()}) == 2
    assert fingerprint(torch.tensor([1.0])) != fingerprint(torch.tensor([1.0000001]))

"""A server that crafts what it sends: clients get it, and its own model takes only what it keeps of their updates."""

import torch

import privfl as pf
from attacks.crafted_broadcast import crafting_server
from tests.attacks.federations import rows_by_client, run_of

ROWS = rows_by_client((3, 4, 5))
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=5)


def shifted(network, honest):
    assert network.layout.size == len(honest)
    return honest + 0.25


def first_half(network, honest):
    return (torch.arange(len(honest)) < len(honest) // 2).to(honest)


def test_clients_receive_what_was_crafted_and_the_server_keeps_its_own_model():
    honest = run_of(ROWS, pf.FedAvg(), TRAINING)[0].broadcast["parameters"]
    seen = run_of(ROWS, crafting_server(pf.FedAvg(), shifted, "Shifting", first_half), TRAINING)[0]
    assert torch.equal(seen.broadcast["parameters"], honest + 0.25)
    step = seen.total["update"] / seen.training.weight
    half = len(honest) // 2
    torch.testing.assert_close(seen.released[:half], (honest + step)[:half], atol=1e-6, rtol=0)
    assert torch.equal(seen.released[half:], honest[half:])
    assert bool((step[half:] != 0).any())


def test_the_algorithm_is_otherwise_its_own():
    server = crafting_server(pf.FedProx(mu=0.3), shifted, "Shifting")
    assert isinstance(server, pf.FedProx)
    assert (server.mu, type(server).__name__) == (0.3, "ShiftingFedProx")
    assert type(server).finish is pf.FedProx.finish

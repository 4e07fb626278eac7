"""A server that crafts what it sends: clients get it, and its own model takes only what it keeps of their updates."""

import pytest
import torch

import privfl as pf
from attacks.crafted_broadcast import crafting_server
from attacks.observations.gradients import local_update
from tests.attacks.federations import DIGITS, rows_by_client, run_of

ROWS = rows_by_client((3, 4, 5))
TRAINING = pf.LocalTraining(learning_rate=0.1, batch_size=5)


def shifted(network, honest, number):
    assert network.layout.size == len(honest)
    return honest + 0.25 * (number + 1)


def first_half(network, honest, number):
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


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_broadcast_may_differ_by_client_and_each_trains_from_its_own(engine):
    def scaled(network, honest, number):
        return honest * 0.5

    server = crafting_server(
        pf.FedAvg(weighting="uniform"), shifted, "TwoFaced", others=(scaled,), version=lambda client: client % 2
    )
    rows, chosen = ROWS[1:], pf.Execution(engine=engine, workers=1)
    seen = run_of(rows, server, TRAINING, rounds=2, execution=chosen)
    honest = seen[0].released
    assert torch.equal(seen[1].broadcast["parameters"], honest + 0.5)
    assert torch.equal(seen[1].broadcast["parameters, version 1"], honest * 0.5)
    for number, client in ((0, 0), (0, 1), (1, 0), (1, 1)):
        start = seen[number].broadcast["parameters, version 1" if client else "parameters"]
        held = DIGITS.inputs[rows[client]], DIGITS.targets[rows[client]]
        expected = torch.cat([part.flatten() for part in local_update(seen.network(start), *held, TRAINING)])
        torch.testing.assert_close(seen[number].uploads[client]["update"], expected, atol=2e-6, rtol=1e-4)

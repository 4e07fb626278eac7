"""Stacked gradients without autograd are autograd's, padding changes nothing, and runs agree with the loop's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl import products
from privfl.engine import stacked_sequences, vectorised
from privfl.engine.sequences import sequence_of
from privfl.engine.stacked_sequences import StackedSequence, stacked_sequence_of
from privfl.engine.workspace import Workspace
from privfl.federation.losses import cross_entropy
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients
from privfl.privacy.noise.source import NoiseStream
from privfl.products import Forms

CLIENTS, ROWS = 3, 10
IMAGES = torch.randn(CLIENTS, ROWS, 2, 9, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(CLIENTS * ROWS).view(CLIENTS, ROWS) % 4


def pooled():
    body = [nn.Conv2d(2, 5, 3, stride=(2, 1), padding=(1, 2)), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3)]
    body += [nn.Conv2d(5, 6, 2, bias=False), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(24, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 4))


NETWORKS = {
    "pooled": pooled,
    "strided": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten(), nn.Linear(18, 4)
    ),
    "leaky": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.LeakyReLU(0.2), nn.MaxPool2d(2), nn.Flatten(), nn.LeakyReLU(0.1), nn.Linear(36, 4)
    ),
    "tanh": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 4)
    ),
    "other activations": lambda: nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.Hardtanh(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2), nn.SiLU(), nn.Flatten()),
        *(nn.Linear(16, 5), nn.GELU(), nn.Dropout(0.3), nn.Linear(5, 4)),
    ),
    "logarithms": lambda: nn.Sequential(
        *(nn.Conv2d(2, 3, 3, padding="same"), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(0.3)),
        *(nn.Linear(48, 4), nn.LogSoftmax(-1)),
    ),
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 6, bias=False), nn.ReLU(), nn.Linear(6, 4)),
}


def stacked(network, *, steady=False):
    torch.manual_seed(0)
    space = Workspace.build(network, torch.device("cpu"), None)
    gradients = StackedGradients(space.own, None)
    single = sequence_of(space.own, cross_entropy, IMAGES[0], anywhere=True)
    found = stacked_sequence_of(single, gradients, space.dropout, IMAGES[0, :4], LABELS[0, :4], steady=steady)
    return found, gradients, space


@pytest.fixture(params=[False, True], ids=["as they stand", "narrow first"])
def narrow_first(request, monkeypatch):
    """Products as they stand, and in the form that AMD's processors get."""
    monkeypatch.setattr(products, "forms", lambda: Forms(narrow_first=request.param))


def own_masks(space, counts):
    for layer in space.dropout:
        layer.stack = [NoiseStream(bytes([client]) * 32) for client in range(len(counts))]
        layer.counts = counts


@pytest.mark.usefixtures("narrow_first")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("counts", [(10, 10, 10), (10, 7, 1), (1, 1, 1)])
def test_stacked_gradients_without_autograd_are_those_of_autograd(name, steady, counts):
    found, gradients, space = stacked(NETWORKS[name](), steady=steady)
    rows = max(counts)
    mask = None if min(counts) == rows else torch.arange(rows) < torch.tensor(counts)[:, None]
    batch = StackedBatch(IMAGES[:, :rows], LABELS[:, :rows], mask, {})
    spread = torch.linspace(0.5, 1.5, CLIENTS)[:, None]
    parameters = space.own.flat.detach() * spread
    own_masks(space, counts)
    wanted = gradients.plain_sum(cross_entropy, parameters, batch)
    own_masks(space, counts)
    with torch.no_grad():
        torch.testing.assert_close(found.plain_sum(parameters, batch), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("narrow_first")
@pytest.mark.parametrize("name", NETWORKS)
def test_padding_changes_nothing_however_long_it_is(name):
    found, _, space = stacked(NETWORKS[name](), steady=True)
    parameters = space.own.flat.detach().expand(2, -1).clone()
    for count in (3, 10):
        sums = []
        for length in (count, 16, 64):
            rows = torch.arange(length).where(torch.arange(length) < count, 0)
            mask = (torch.arange(length) < count).expand(2, -1)
            own_masks(space, (count, count))
            batch = StackedBatch(IMAGES[:2][:, rows], LABELS[:2][:, rows], mask, {})
            with torch.no_grad():
                sums.append(found.plain_sum(parameters, batch))
        torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(sums[1], sums[2], rtol=1e-5, atol=1e-6)


def test_sums_of_rows_keep_their_bits_whatever_zeros_follow_and_whoever_is_beside():
    draws = torch.Generator().manual_seed(0)
    for values in (1, 3, 8, 200):
        for rows in (1, 3, 4, 5, 7, 8, 10, 17, 33):
            spread = 10.0 ** (4 * torch.rand(CLIENTS, rows, values, generator=draws) - 2)
            summands = torch.randn(CLIENTS, rows, values, generator=draws) * spread
            summands[:, ::2] += 1e4
            found = stacked_sequences._added(summands)
            torch.testing.assert_close(found.double(), summands.double().sum(1), rtol=1e-6, atol=0.1)
            for zeros in (1, 2, 6, 54):
                longer = torch.cat([summands, torch.zeros(CLIENTS, zeros, values)], 1)
                assert torch.equal(stacked_sequences._added(longer), found)
            assert torch.equal(stacked_sequences._added(summands[:2].clone()), found[:2])


def test_what_is_not_served_keeps_autograd_and_a_difference_is_said(monkeypatch):
    layers = [nn.Flatten(), nn.Linear(168, 4)]
    assert stacked(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), *layers))[0] == ""
    assert stacked(nn.Sequential(nn.Conv2d(2, 4, 2, dilation=2), nn.Flatten(), nn.Linear(168, 4)))[0] == ""
    assert stacked(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.5), *layers))[0] == ""
    assert isinstance(stacked(nn.Sequential(nn.Conv2d(2, 4, 3), *layers))[0], StackedSequence)
    monkeypatch.setattr(stacked_sequences, "LARGEST", 100)
    assert stacked(nn.Sequential(nn.Conv2d(2, 4, 3), *layers))[0] == ""
    monkeypatch.undo()
    monkeypatch.setattr(stacked_sequences, "TOLERANCE", -1.0)
    assert stacked(pooled())[0] == "stacked steps use autograd, because the layers' own gradients came out different"


@pytest.mark.parametrize("privacy", [None, pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(0.1)], noise_key=3)])
@pytest.mark.parametrize("dispatched", [0, 5 << 18], ids=["two workers", "one worker"])
def test_runs_agree_with_the_loop_whoever_trains_the_stack(monkeypatch, privacy, dispatched):
    monkeypatch.setattr(vectorised, "forms", lambda: replace(products.forms(), divided=dispatched))
    inputs, targets = IMAGES.flatten(0, 1).repeat(4, 1, 1, 1), LABELS.flatten().repeat(4)
    owners = np.sort(np.arange(120) % 7)
    task = pf.Task.from_arrays(inputs, targets, clients=owners, model=pooled, classes=4)
    chunks, runs = [], []
    for engine in ("loop", "vectorised"):
        runs.append(
            pf.simulate(
                task,
                pf.FedAvg(weighting="uniform"),
                rounds=2,
                training=pf.LocalTraining(learning_rate=0.1, batch_size=6),
                privacy=privacy,
                execution=pf.Execution(engine=engine, device="cpu", workers=2),
                callbacks=[lambda simulation, line: chunks.append(simulation.engine)],
            )
        )
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-3, atol=1e-5)
    assert runs[0].statement.to_json() == runs[1].statement.to_json()
    engine = chunks[-1]
    context = type("Context", (), {})
    slots = [type("Slot", (context,), {"rows": range(20)})() for _ in range(7)]
    assert len(engine._chunks(slots)) == (2 if dispatched == 0 else 1)
    assert engine._stacks.get().unaided is not None

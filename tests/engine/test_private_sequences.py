"""What DP-SGD clips without autograd is what it clips with it, row by row, and is bounded as well."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import privfl as pf
from privfl.algorithms.label_skew.calibrated_logits import calibrated_loss
from privfl.engine import sequence_checks, stacked_sequences
from privfl.engine.loop import LoopEngine
from privfl.engine.sequence_checks import clips_otherwise
from privfl.engine.sequences import sequence_of
from privfl.engine.stacked_sequences import StackedSequence, stacked_sequence_of
from privfl.engine.vectorised import VectorisedEngine
from privfl.engine.workspace import Workspace
from privfl.federation.losses import cross_entropy, mean_squared_error
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping.factors import shrunk
from privfl.privacy.clipping.lengths import Lengths, PublicRows, identity
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients
from privfl.privacy.door.batch_plans import Epochs
from privfl.privacy.door.client_door import ClientDoor
from privfl.privacy.door.cohort_door import CohortDoor
from privfl.privacy.door.keeper import ClientSlot
from privfl.privacy.noise.source import NoiseStream

ROWS = 9
IMAGES = torch.randn(ROWS, 2, 9, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(ROWS) % 4
DPSGD = pf.DPSGD(noise_multiplier=1.0, sample_rate=1.0, max_grad_norm=0.3)
NOTE = "steps use autograd, because the layers' own gradients came out different"


def pooled():
    body = [nn.Conv2d(2, 5, 3, stride=(2, 1), padding=(1, 2)), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3)]
    body += [nn.Conv2d(5, 6, 2, bias=False), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(24, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 4))


NETWORKS = {
    "pooled": pooled,
    "many channels": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 2, stride=2), nn.Flatten(), nn.Linear(27, 4)
    ),
    "convolved and pooled at once": lambda: nn.Sequential(
        nn.Conv2d(2, 16, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(192, 4),
    ),
    "leaky": lambda: nn.Sequential(
        nn.Conv2d(2, 16, 2), nn.LeakyReLU(0.2), nn.Conv2d(16, 16, 3, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(192, 4),
    ),
    "tanh": lambda: nn.Sequential(
        nn.Conv2d(2, 16, 2), nn.Tanh(), nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(192, 7), nn.Tanh(), nn.Linear(7, 4),
    ),
    "other activations": lambda: nn.Sequential(
        nn.Conv2d(2, 16, 2), nn.ELU(), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(192, 7), nn.GELU(), nn.Linear(7, 4),
    ),
    "wide": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 500, bias=False), nn.ReLU(), nn.Linear(500, 4)),
}  # fmt: skip


def build(name):
    torch.manual_seed(0)
    return NETWORKS[name]()


def workspace(name):
    space = Workspace.build(build(name), torch.device("cpu"), "layers", innermost=True)
    space.start(NoiseStream(bytes([1] * 32)))
    return space, sequence_of(space.own, cross_entropy, IMAGES, steady=True)


def stack(name):
    space = Workspace.build(build(name), torch.device("cpu"), None)
    gradients = StackedGradients(space.own, "layers")
    single = sequence_of(space.own, cross_entropy, IMAGES, anywhere=True)
    found = stacked_sequence_of(single, gradients, space.dropout, IMAGES[:4], LABELS[:4], steady=True)
    assert isinstance(found, StackedSequence)
    return space, gradients, found


def one_by_one(space, bound):
    """The sum of every row's own gradient, clipped; in evaluation mode, so that masks do not matter."""
    total = torch.zeros_like(space.own.flat, dtype=torch.float64)
    for row in range(ROWS):
        with torch.enable_grad():
            loss = cross_entropy(space.own.module, IMAGES[row : row + 1], LABELS[row : row + 1]).sum()
        gradient = torch.cat([part.flatten() for part in space.own.gradient_of(loss)]).double()
        total += gradient * min(1.0, shrunk(bound, torch.float32) / float(gradient.norm()))
    return total.float()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bound", [0.05, 1.0, 1e6])
def test_clipped_sums_are_those_of_rows_taken_one_by_one(name, bound):
    space, found = workspace(name)
    space.own.module.eval()
    space.clipper.unaided = found
    expected = one_by_one(space, bound)
    space.clipper.clipped_sum(cross_entropy, IMAGES, LABELS, bound)
    torch.testing.assert_close(space.own.gradient, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    other, gradients, stacked = stack(name)
    other.own.module.eval()
    gradients.unaided = stacked
    batch = StackedBatch(IMAGES.expand(2, *IMAGES.shape), LABELS.expand(2, -1), None, {})
    parameters = torch.stack([other.own.flat, other.own.flat]).detach()
    for sums in gradients.clipped_sum(cross_entropy, parameters, batch, bound):
        torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("masked", [False, True])
def test_with_the_same_masks_norms_and_sums_are_those_of_autograd(name, masked):
    space, found = workspace(name)
    mask = torch.arange(ROWS) < ROWS - 2 if masked else None
    results = []
    for unaided in (None, found):
        space.start(NoiseStream(bytes([7] * 32)))
        space.announce(ROWS - 2 if masked else None, ROWS if masked else 1)
        space.own.gradient.fill_(float("nan"))  # whatever lies there
        space.clipper.unaided = unaided
        norms = space.clipper.norms(cross_entropy, IMAGES, LABELS, 0.3, mask)
        results.append((norms, space.own.gradient.clone()))
    for expected, own in zip(*results, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)
    assert not clips_otherwise(found, cross_entropy, space.clipper, space.dropout, IMAGES, LABELS)
    assert space.clipper.unaided is None


CALIBRATED = partial(calibrated_loss, cross_entropy, factor=torch.tensor([1, 0.5, 2, 1]), shift=torch.arange(4.0))


@pytest.mark.parametrize("loss", [CALIBRATED, mean_squared_error], ids=["calibrated", "squared error"])
@pytest.mark.parametrize("name", ["pooled", "convolved and pooled at once"])
def test_other_losses_of_logits_are_clipped_without_autograd_as_with_it(name, loss):
    space, found = workspace(name)
    targets = LABELS if loss is CALIBRATED else torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(2))
    results = []
    for unaided in (None, found):
        space.start(NoiseStream(bytes([7] * 32)))
        space.clipper.unaided = unaided
        assert space.clipper.goes_unaided(loss) == (unaided is not None)
        norms = space.clipper.norms(loss, IMAGES, targets, 0.3)
        assert (norms > 0.3).any()
        results.append((norms, space.own.gradient.clone()))
    for expected, own in zip(*results, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)
    assert not clips_otherwise(found, loss, space.clipper, space.dropout, IMAGES, targets)


@pytest.mark.parametrize("name", ["many channels", "convolved and pooled at once"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 1e18])
def test_a_row_that_is_not_finite_counts_as_zero_and_a_huge_one_is_clipped(value, name):
    inputs = IMAGES.clone()
    inputs[3, 0, 4, 4] = value
    space, found = workspace(name)
    space.clipper.unaided = found
    keep = torch.arange(ROWS) != 3
    space.clipper.clipped_sum(cross_entropy, inputs[keep], LABELS[keep], 0.3)
    without = space.own.gradient.double().clone()
    norms = space.clipper.clipped_sum(cross_entropy, inputs, LABELS, 0.3)
    moved = float((space.own.gradient.double() - without).norm())
    assert bool(space.own.gradient.isfinite().all())
    assert moved <= 0.3
    assert moved < 1e-5 if not bool(norms[3].isfinite()) else moved > 0.1


def sum_at_the_door(engine, name, inputs, targets):
    """The sum over all rows as the door of ``engine`` forms it from what layers say, before its noise."""
    bound, slot = 1.0, ClientSlot(0, torch.arange(len(inputs)), Epochs(len(inputs), 1), torch.Generator())
    rows = torch.randn(32, *inputs.shape[1:], generator=torch.Generator().manual_seed(99))
    if engine == "loop":
        space, found = workspace(name)
        space.clipper.unaided = found
    else:
        space, gradients, gradients_unaided = stack(name)
        gradients.unaided = gradients_unaided
    public = PublicRows(space.own.flat, rows, torch.arange(32) % 4)
    lengths = Lengths(public, identity(space.own.module), engine, "without autograd")
    if engine == "loop":
        door = ClientDoor(
            slot, inputs, targets, space.own, space.clipper, cross_entropy, DPSGD, lengths=lengths,
            announce=space.announce,
        )  # fmt: skip
        parameters = space.own.flat
    else:

        def announce(counts, first):
            for layer in space.dropout:
                layer.stack, layer.counts = [NoiseStream(bytes([1] * 32)) for _ in counts], counts

        door = CohortDoor([slot], inputs, targets, gradients, announce, cross_entropy, DPSGD, lengths=lengths)
        parameters = space.own.flat[None].clone()
    with torch.no_grad():
        return door._clipped_sum(cross_entropy, door.everything(), parameters, {}, bound).reshape(-1).double().clone()


@pytest.mark.parametrize(
    ("engine", "name"),
    [("loop", "many channels"), ("loop", "convolved and pooled at once"), ("vectorised", "many channels")],
)
@pytest.mark.parametrize("common", [1.0, 1e6, "wide"])
def test_one_row_more_moves_the_sum_by_no_more_than_the_bound_whatever_the_magnitudes(engine, name, common):
    generator = torch.Generator().manual_seed(5)
    for count in (1, 2, 3, 7, 15, 16):
        inputs = torch.randn(count + 1, 2, 9, 8, generator=generator)
        if common == "wide":
            inputs *= 10.0 ** (torch.rand(inputs.shape, generator=generator) * 14 - 6)
        else:
            inputs += common
        labels = torch.randint(4, (count + 1,), generator=generator)
        more = sum_at_the_door(engine, name, inputs, labels)
        less = sum_at_the_door(engine, name, inputs[:count], labels[:count])
        assert float((more - less).norm()) <= 1.0


def task_of(name):
    return pf.Task.from_arrays(
        IMAGES.repeat(12, 1, 1, 1),
        LABELS.repeat(12),
        clients=np.sort(np.arange(108) % 5),
        model=lambda: build(name),
        classes=4,
    )


COUNTED = pf.NoisyTotal("label_prior", max_norm=1.0, noise_multiplier=2.0)


def run(engine, told, algorithm=None, statistics=()):
    found = pf.simulate(
        task_of("pooled"),
        algorithm or pf.FedAvg(weighting="uniform"),
        rounds=1,
        training=pf.LocalTraining(learning_rate=0.1, batch_size=8, steps=3),
        privacy=pf.Privacy(training=DPSGD, statistics=statistics, noise_key=4),
        execution=pf.Execution(engine=engine, device="cpu", workers=2),
        callbacks=[lambda simulation, line: told.append(simulation.engine)],
    )
    return found.parameters, found.statement.to_json()


def test_runs_of_both_engines_agree_with_and_without_autograd_and_claim_the_same(monkeypatch):
    runs, notes = [], []
    for tolerance in (sequence_checks.TOLERANCE, -1.0):
        monkeypatch.setattr(sequence_checks, "TOLERANCE", tolerance)
        monkeypatch.setattr(stacked_sequences, "TOLERANCE", tolerance)
        for engine in ("loop", "vectorised"):
            told = []
            runs.append(run(engine, told))
            used = told[-1]
            if engine == "loop":
                notes.append((used.notes, used._spaces.get().clipper.unaided is not None))
            else:
                notes.append((used.notes, used._stacks.get().gradients.unaided is not None))
    for parameters, statement in runs[1:]:
        torch.testing.assert_close(parameters, runs[0][0], rtol=1e-3, atol=1e-5)
        assert statement == runs[0][1]
    assert notes[:2] == [([], True)] * 2
    assert [used for _, used in notes[2:]] == [False] * 2
    assert NOTE in notes[2][0]
    assert any(NOTE.removeprefix("steps") in one for one in notes[3][0])


@pytest.mark.parametrize("algorithm", [pf.FedRS(weighting="uniform"), pf.FedLC(weighting="uniform", least_count=1)])
def test_a_private_run_of_calibrated_logits_is_that_of_autograd(monkeypatch, algorithm):
    runs, told = [], []
    for tolerance in (sequence_checks.TOLERANCE, -1.0):
        monkeypatch.setattr(sequence_checks, "TOLERANCE", tolerance)
        runs.append(run("loop", told, copy.copy(algorithm), (COUNTED,)))
    torch.testing.assert_close(runs[1][0], runs[0][0], rtol=1e-3, atol=1e-5)
    assert runs[0][1] == runs[1][1]
    assert [engine._spaces.get().clipper.unaided is not None for engine in told] == [True, False]


def own_loss(network, inputs, targets):
    return nn.functional.cross_entropy(network(inputs), targets, reduction="none")


@pytest.mark.parametrize(
    ("way", "precision", "unaided"),
    [
        ("layers", "float32", True),
        ("vmap", "float32", False),
        ("rows", "float32", True),
        ("layers", "bfloat16", False),
    ],
)
def test_other_ways_and_precisions_keep_autograd(way, precision, unaided):
    task, algorithm = task_of("many channels"), pf.FedAvg(weighting="uniform")
    algorithm = algorithm.bind(task.context(1, 1))
    channel = RoundChannel.bare(algorithm.fields(), DPSGD)
    engine = LoopEngine(
        task, algorithm, pf.LocalTraining(), channel, way=way, workers=1, precision=precision
    )  # fmt: skip
    clipper = engine._spaces.get().clipper
    assert clipper.goes_unaided(cross_entropy) == unaided
    assert not clipper.goes_unaided(own_loss)
    stacks = VectorisedEngine(engine, 2, way)._stacks
    assert stacks.get().gradients.goes_unaided(cross_entropy, {}) == unaided


def test_images_whose_channels_lie_innermost_may_be_seen_row_by_row_under_a_transform():
    space, _ = workspace("pooled")
    space.own.module.eval()
    sums = []
    for way in ("layers", "vmap"):
        PerSampleGradients(space.own, way).clipped_sum(cross_entropy, IMAGES, LABELS, 0.3)
        sums.append(space.own.gradient.clone())
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-6)

"""Gradients without autograd are autograd's, and only networks that are exactly what they seem get them."""

import copy
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import privfl as pf
from privfl.algorithms.fair.discriminator import personal_terms
from privfl.algorithms.label_skew.balanced_softmax import balanced_loss
from privfl.algorithms.label_skew.calibrated_logits import calibrated_loss
from privfl.engine import loop, sequence_checks
from privfl.engine.sequence_checks import differs_from_autocast, differs_from_autograd
from privfl.engine.sequence_steps import Convolution, Linear
from privfl.engine.sequences import Sequence, sequence_of
from privfl.engine.workspace import Workspace
from privfl.federation.losses import Huber, binary_cross_entropy, cross_entropy, mean_squared_error
from privfl.models.base import Network
from privfl.models.flat_network import flatten
from privfl.privacy.noise.source import NoiseStream

IMAGES = torch.randn(12, 3, 9, 9, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 4


def pooled(inner=2, dropout=0.3):
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=inner, bias=False), nn.ReLU()]
    body += [nn.MaxPool2d(2, ceil_mode=True), nn.Dropout(dropout), nn.Flatten()]
    width = 4 if inner == 2 else 16
    return nn.Sequential(*body, nn.Linear(6 * width, 300), nn.ReLU(), nn.Dropout(0.5), nn.Linear(300, 4))


NETWORKS = {
    "pooled": pooled,
    "wide": lambda: nn.Sequential(nn.Flatten(), nn.Linear(243, 300), nn.ReLU(inplace=True), nn.Linear(300, 4)),
    "grouped, dilated, pooled twice": lambda: nn.Sequential(
        nn.MaxPool2d(2, stride=1, padding=1), nn.Conv2d(3, 6, 3, groups=3, dilation=2), nn.ReLU(), nn.Identity(),
        nn.MaxPool2d((2, 3)), nn.ReLU(), nn.Dropout2d(0.4), nn.Flatten(), nn.Linear(36, 4),
    ),
    "leaky": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.LeakyReLU(0.2), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1),
        nn.LeakyReLU(0.2), nn.Flatten(), nn.LeakyReLU(0.1), nn.Linear(144, 4),
    ),
    "tanh": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Tanh(), nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(),
        nn.Flatten(), nn.Linear(144, 9), nn.Tanh(), nn.Linear(9, 4),
    ),
    "other activations": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ELU(0.5), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(64, 9), nn.GELU(), nn.Dropout(0.2), nn.Sigmoid(), nn.Linear(9, 4),
    ),
    "padding by name, logarithms": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, (1, 3), padding="valid"),
        nn.Conv2d(8, 8, 3, padding="same", dilation=2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 4),
        nn.LogSoftmax(1),
    ),
    "body and head": lambda: Network(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(243, 9)), nn.Linear(9, 4)),
}  # fmt: skip


def workspace(network, **options):
    torch.manual_seed(0)
    space = Workspace.build(network, torch.device("cpu"), None, innermost=True, **options)
    space.start(NoiseStream(bytes([1] * 32)))
    return space


def sequence(network, loss=cross_entropy):
    return sequence_of(workspace(network).own, loss, IMAGES)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rows", [1, 12])
def test_gradients_and_steps_without_autograd_are_those_of_autograd(name, rows):
    torch.manual_seed(3)
    space = workspace(NETWORKS[name]())
    own, found = space.own, sequence_of(space.own, cross_entropy, IMAGES)
    own.flat.requires_grad_(False)
    inputs, targets = IMAGES[:rows].clone(), LABELS[:rows]
    space.start(NoiseStream(bytes([5] * 32)))
    with torch.enable_grad():
        wanted = torch.cat([one.flatten() for one in own.gradient_of(cross_entropy(own.module, inputs, targets).sum())])
    before = own.flat.clone()
    for act in ("write", "descend"):
        space.start(NoiseStream(bytes([5] * 32)))
        with torch.no_grad():
            if act == "write":
                found.write_gradient(cross_entropy, inputs, targets, 1.0)
                gradient = own.gradient
            else:
                found.descend(cross_entropy, inputs, targets, 2.0, 0.5)
                gradient = (before - own.flat) * 4
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(inputs, IMAGES[:rows])
    assert not differs_from_autograd(found, cross_entropy, space.dropout, IMAGES, LABELS)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rows", [12, 48])
def test_narrow_gradients_and_steps_are_near_those_of_autograd_in_float32(name, rows):
    torch.manual_seed(3)
    space = workspace(NETWORKS[name]())
    own, found = space.own, sequence_of(space.own, cross_entropy, IMAGES, narrow=True)
    own.flat.requires_grad_(False)
    inputs, targets = IMAGES.repeat(4, 1, 1, 1)[:rows], LABELS.repeat(4)[:rows]
    space.start(NoiseStream(bytes([5] * 32)))
    with torch.enable_grad():
        wanted = torch.cat([one.flatten() for one in own.gradient_of(cross_entropy(own.module, inputs, targets).sum())])
    before = own.flat.clone()
    for act in ("write", "descend"):
        space.start(NoiseStream(bytes([5] * 32)))
        with torch.no_grad():
            if act == "write":
                found.write_gradient(cross_entropy, inputs, targets, 1.0)
                gradient = own.gradient
            else:
                found.descend(cross_entropy, inputs, targets, 2.0, 0.5)
                gradient = (before - own.flat) * 4
        assert gradient.dtype == torch.float32
        assert float((gradient - wanted).norm()) < 0.1 * float(wanted.norm())
    own.flat.copy_(before)
    assert not differs_from_autocast(found, cross_entropy, space.dropout, inputs, targets)


CALIBRATED = partial(calibrated_loss, cross_entropy, factor=torch.tensor([1, 0.5, 2, 1]), shift=torch.arange(4.0))
LOSSES = {
    "calibrated": (CALIBRATED, LABELS),
    "balanced": (partial(balanced_loss, log_prior=torch.tensor([0.1, 0.2, 0.3, 0.4]).log()), LABELS),
    "squared error": (mean_squared_error, torch.linspace(-1, 1, 48).view(12, 4)),
    "huber": (Huber(delta=0.1), torch.linspace(-1, 1, 48).view(12, 4)),
    "several labels": (binary_cross_entropy, (torch.arange(48).view(12, 4) % 3 == 0).float()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_other_losses_of_logits_have_their_gradients_without_autograd_too(name):
    loss, targets = LOSSES[name]
    space = workspace(pooled(dropout=0.0))
    own, found = space.own, sequence_of(space.own, loss, IMAGES)
    own.module.eval()
    with torch.enable_grad():
        wanted = torch.cat([one.flatten() for one in own.gradient_of(loss(own.module, IMAGES, targets).sum() / 3)])
    with torch.no_grad():
        found.write_gradient(loss, IMAGES, targets, 3.0)
    torch.testing.assert_close(own.gradient, wanted, rtol=1e-4, atol=1e-6)
    assert not differs_from_autograd(found, loss, space.dropout, IMAGES, targets)


def convolved():
    body = [nn.Conv2d(3, 16, 3), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 9)]
    return Network(nn.Sequential(*body, nn.LeakyReLU(0.1)), nn.Linear(9, 4))


def augmented(width=9):
    prototypes = torch.randn(4, width, generator=torch.Generator().manual_seed(1))
    given = {"log_prior": torch.tensor([0.1, 0.2, 0.3, 0.4]).log(), "known": torch.tensor([True, True, False, True])}
    part = pf.ReBaFL().bind(task_of(convolved).context(1, 0))
    return partial(part.loss, prototypes=prototypes, weight=torch.tensor(0.3), **given)


def judged(width=9):
    discriminator = torch.randn(5 * width + 11, generator=torch.Generator().manual_seed(2))
    return partial(personal_terms, cross_entropy, discriminator=discriminator, hidden=5, kind="bce", beta=0.6)


FEATURE_LOSSES = {"augmented": augmented, "judged by another network": judged}


@pytest.mark.parametrize("name", FEATURE_LOSSES)
@pytest.mark.parametrize("network", [NETWORKS["body and head"], convolved], ids=["dense", "convolved"])
@pytest.mark.parametrize("rows", [1, 12])
def test_losses_of_features_have_the_body_s_gradient_without_autograd(name, network, rows):
    torch.manual_seed(3)
    space, loss = workspace(network()), FEATURE_LOSSES[name]()
    own, found = space.own, sequence_of(space.own, cross_entropy, IMAGES)
    inputs, targets = IMAGES[:rows], LABELS[:rows]
    if name == "augmented":
        loss = partial(loss, present=torch.ones(rows, dtype=torch.bool))
    assert found.writes(loss)
    assert not found.serves(loss)  # nobody clips what is not of logits by it
    space.start(NoiseStream(bytes([5] * 32)))
    with torch.enable_grad():
        wanted = torch.cat([one.flatten() for one in own.gradient_of(loss(own.module, inputs, targets).sum() / 3)])
    space.start(NoiseStream(bytes([5] * 32)))
    with torch.no_grad():
        found.write_gradient(loss, inputs, targets, 3.0)
    torch.testing.assert_close(own.gradient, wanted, rtol=1e-4, atol=1e-6)
    own.module.eval()
    with torch.no_grad():
        torch.testing.assert_close(
            found.taken_apart().features(inputs), own.module.features(inputs), rtol=1e-4, atol=1e-6
        )


class Wrapped(Network):
    def features(self, inputs):
        return 2 * super().features(inputs)


def test_features_of_a_network_that_is_not_exactly_body_and_head_keep_autograd():
    dense = [nn.Flatten(), nn.Linear(243, 9), nn.ReLU()]
    several = nn.Sequential(nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 4))
    for network in (Network(nn.Sequential(*dense), several, 9), nn.Sequential(*dense, nn.Linear(9, 4))):
        found = sequence(network)
        assert found.writes(cross_entropy)
        assert not found.writes(judged())
    assert sequence(Network(nn.Sequential(*dense), nn.Linear(9, 4))).writes(judged())
    assert sequence(Wrapped(nn.Sequential(*dense), nn.Linear(9, 4))) is None


class Doubled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


def replaced(part):
    network = NETWORKS["wide"]()
    network[1] = part(network[1])
    return network


def hooked(layer):
    layer.register_forward_hook(lambda layer, inputs, output: 2 * output)
    return layer


def patched(layer):
    layer.forward = lambda inputs: 2 * F.linear(inputs, layer.weight)
    return layer


def frozen(layer):
    layer.weight.requires_grad_(False)
    return layer


def shared():
    layer = nn.Linear(243, 243)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(243, 4))


def tied():
    network = nn.Sequential(nn.Flatten(), nn.Linear(243, 243), nn.ReLU(), nn.Linear(243, 243), nn.Linear(243, 4))
    network[3].weight = network[1].weight
    return network


class Skipping(nn.Sequential):
    def forward(self, inputs):
        return super().forward(inputs) * 2


@pytest.mark.parametrize(
    "network",
    [
        replaced(lambda layer: Doubled(243, 300)), replaced(hooked), replaced(patched), replaced(frozen),
        replaced(parametrizations.weight_norm), shared(), tied(),
        Skipping(OrderedDict(NETWORKS["wide"]().named_children())),
        nn.Sequential(nn.Conv2d(3, 4, 2, padding="same"), nn.Flatten(), nn.Linear(324, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(243, 9), nn.LogSoftmax(1), nn.Linear(9, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(243, 4), nn.LogSoftmax(1), nn.LogSoftmax(1)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.LogSoftmax(1), nn.Flatten(), nn.Linear(196, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(243, 4), nn.Softmax(1)),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(324, 4)),
        nn.Sequential(nn.Flatten(), nn.Softsign(), nn.Linear(243, 4)),
        nn.Sequential(nn.Flatten(), nn.LeakyReLU(0.0), nn.Linear(243, 4)),
        nn.Sequential(nn.Flatten(), nn.LeakyReLU(-0.2), nn.Linear(243, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(243, 4), nn.ReLU()),
        NETWORKS["wide"]().double(),
    ],
    ids=["subclass", "hook", "forward replaced", "frozen", "parametrised", "layer twice", "shared weight",
         "subclass of Sequential", "uneven padding", "logarithms inside", "logarithms twice", "logarithms of channels",
         "ends in probabilities", "reflected", "unknown layer", "slope of 0",
         "slope below 0", "ends in ReLU", "float64"],
)  # fmt: skip
def test_what_is_not_exactly_a_known_sequence_keeps_autograd(network):
    assert sequence(network) is None


def test_another_loss_keeps_autograd():
    def own_loss(network, inputs, targets):
        return F.cross_entropy(network(inputs), targets, reduction="none")

    assert sequence(NETWORKS["wide"]()) is not None
    assert sequence(NETWORKS["wide"](), own_loss) is None


def task_of(network):
    return pf.Task.from_arrays(
        IMAGES.repeat(10, 1, 1, 1), LABELS.repeat(10), clients=np.arange(120) % 5, model=network, classes=4
    )


@pytest.mark.parametrize(
    ("algorithm", "training"),
    [
        (pf.FedAvg(weighting="uniform"), {}),
        (pf.FedProx(mu=0.5), {}),
        (pf.FedAvg(), {"momentum": 0.9, "weight_decay": 0.1}),
        (pf.FedRS(), {}),
        (pf.FedLC(), {"momentum": 0.5}),
        (pf.BalancedFedAvg(), {}),
    ],
    ids=["plain descent", "another term", "momentum", "restricted", "calibrated", "balanced"],
)
def test_a_run_is_that_of_autograd_and_a_difference_is_said(monkeypatch, algorithm, training):
    runs, told = with_and_without_a_sequence(monkeypatch, pooled, algorithm, **training)
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-3, atol=1e-5)
    assert (runs[0].parameters != runs[1].parameters).any()  # other sums, other last places
    assert told[0] == []
    assert told[-1] == ["steps use autograd, because the layers' own gradients came out different"]
    assert runs[0].statement.to_json() == runs[1].statement.to_json()


def with_and_without_a_sequence(monkeypatch, network, algorithm, **training):
    told, runs = [], []
    for tolerance in (sequence_checks.TOLERANCE, -1.0):
        monkeypatch.setattr(sequence_checks, "TOLERANCE", tolerance)
        given = {
            "rounds": 2,
            "training": pf.LocalTraining(learning_rate=0.1, batch_size=7, **training),
            "execution": pf.Execution(engine="loop", device="cpu", workers=2),
            "callbacks": [lambda simulation, line: told.append(list(simulation.engine.notes))],
        }
        runs.append(pf.simulate(task_of(network), copy.copy(algorithm), **given))
    return runs, told


@pytest.mark.parametrize(
    "algorithm",
    [pf.ReBaFL(), pf.ReBaFL(per_sample=True), pf.MOON(first="initial"), pf.GRPFed()],
    ids=["coupled", "sample by sample", "with frozen features", "of a model of one's own"],
)
def test_a_run_with_a_loss_of_features_is_that_of_autograd(monkeypatch, algorithm):
    taken, way = [], Sequence._from_features
    monkeypatch.setattr(Sequence, "_from_features", lambda *given: taken.append(1) or way(*given))
    runs, told = with_and_without_a_sequence(monkeypatch, convolved, algorithm)
    assert len(taken) == 2 * 5 * 3  # rounds, clients, batches of the run with a sequence
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-3, atol=1e-5)
    assert (runs[0].parameters != runs[1].parameters).any()
    assert runs[0].client_state.keys() == runs[1].client_state.keys()
    for client, kept in runs[0].client_state.items():
        torch.testing.assert_close(kept, runs[1].client_state[client], rtol=1e-3, atol=1e-5)
    assert told[0] == []
    assert runs[0].statement.to_json() == runs[1].statement.to_json()


@pytest.mark.parametrize("algorithm", [pf.Ditto(), pf.APFL(), pf.FedBABU(finetune_epochs=1)])
def test_gradients_that_stay_with_the_client_take_no_autograd_either(monkeypatch, algorithm):
    taken, way = [], Sequence.write_gradient
    monkeypatch.setattr(Sequence, "write_gradient", lambda *given: taken.append(1) or way(*given))
    runs, _ = with_and_without_a_sequence(monkeypatch, convolved, algorithm)
    assert len(taken) == 2 * 5 * 3 * 2 + 2  # rounds, clients, batches, models; and both runs' checks
    kept = [[run.client_state[one]["personal"] for one in range(5)] for run in runs]
    torch.testing.assert_close(torch.stack(kept[0]), torch.stack(kept[1]), rtol=1e-3, atol=1e-5)
    assert (kept[0][0] != kept[1][0]).any()


def sequence_in_a_run(precision, **settings):
    """The sequence of the loop's only worker, and the notes of the run."""
    told = []

    def tell(simulation, line):
        told.append((simulation.engine._spaces.get().sequence, list(simulation.engine.notes)))

    execution = pf.Execution(engine="loop", device="cpu", workers=1, precision=precision)
    settings = {"rounds": 1, "execution": execution, "callbacks": [tell], **settings}
    run = pf.simulate(task_of(pooled), pf.FedAvg(weighting="uniform"), **settings)
    return *told[0], run


def test_under_dp_sgd_no_plain_gradient_is_a_sequence_s():
    private = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5))
    for precision in ("float32", "bfloat16"):
        assert sequence_in_a_run(precision, privacy=private)[0] is None


def narrow_of(found):
    return [step.narrow for step in found.steps if isinstance(step, Linear | Convolution)]


def test_steps_are_narrow_where_bfloat16_was_asked_for_and_the_processor_has_it(monkeypatch):
    for units in (True, False):
        monkeypatch.setattr(loop, "has_bfloat16_units", lambda units=units: units)
        found, notes, _ = sequence_in_a_run("bfloat16")
        assert (found is not None) == units
        assert notes == []
        assert not units or narrow_of(found) == [True] * 4
        found, _, _ = sequence_in_a_run("float32")
        assert narrow_of(found) == [False] * 4


def test_a_narrow_sequence_that_differs_is_left_and_that_is_said(monkeypatch):
    monkeypatch.setattr(loop, "has_bfloat16_units", lambda: True)
    monkeypatch.setattr(sequence_checks, "COARSE", -10.0)
    found, notes, _ = sequence_in_a_run("bfloat16")
    assert found is None
    assert notes == ["steps use autograd, because the layers' own gradients came out different"]


def test_a_narrow_run_stays_near_the_one_in_float32_and_claims_the_same(monkeypatch):
    monkeypatch.setattr(loop, "has_bfloat16_units", lambda: True)
    _, _, exact = sequence_in_a_run("float32")
    _, _, narrow = sequence_in_a_run("bfloat16")
    assert narrow.parameters.dtype == torch.float32
    moved = float((exact.parameters - flatten(task_of(pooled).model(0))).norm())
    assert 0 < float((exact.parameters - narrow.parameters).norm()) < 0.1 * moved
    noisy = pf.Privacy(update=[pf.Clip(1.0), pf.GaussianNoise(0.5)])
    claims = [sequence_in_a_run(one, privacy=noisy)[2].statement.to_json() for one in ("float32", "bfloat16")]
    assert claims[0] == claims[1]

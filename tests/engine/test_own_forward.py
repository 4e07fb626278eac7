"""A model of one's own that passes its input through known layers is these layers, and no other model is."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privfl as pf
from privfl.engine.own_forward import ROWS, own_sequence
from privfl.engine.sequence_checks import clips_otherwise, differs_from_autograd
from privfl.engine.sequences import sequence_of
from privfl.engine.stacked_sequences import StackedSequence, stacked_sequence_of
from privfl.engine.workspace import Workspace
from privfl.federation.losses import cross_entropy
from privfl.models.base import Network
from privfl.privacy.clipping.known import known_ranks
from privfl.privacy.clipping.stacked import StackedGradients
from privfl.privacy.noise.source import NoiseSource, NoiseStream

IMAGES = torch.randn(8, 1, 12, 12, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 4
SLOPE, WIDTH = 0.1, 18


class Layers(nn.Module):
    """Two convolutions and two dense layers."""

    slope = 0.2

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 2, 3)
        self.pool, self.drop, self.activation = nn.MaxPool2d(2), nn.Dropout(0.3), nn.ReLU()
        self.hidden, self.last = nn.Linear(WIDTH, 9), nn.Linear(9, 4)
        self.window = (1, 1)

    def images(self, x):
        return self.second(self.pool(F.relu(self.first(x))))

    def forward(self, x):
        return self.last(self.drop(self.activation(self.hidden(self.images(x).flatten(1)))))


class ByFunctions(Layers):
    def forward(self, x):
        x = F.max_pool2d(F.gelu(self.first(x), approximate="tanh"), kernel_size=2, stride=2)
        x = F.leaky_relu(self.second(x), SLOPE).view(x.shape[0], -1)
        x = torch.tanh(F.leaky_relu(self.hidden(x), negative_slope=self.slope))
        return self.last(F.softplus(F.elu(x, alpha=0.5), 2.0).relu())


class BySize(Layers):
    def forward(self, x):
        x = F.max_pool2d(self.images(x), self.window)
        x = torch.sigmoid(self.hidden(x.reshape(-1, WIDTH)))
        return self.last(F.hardtanh(x, -0.5, 0.7))


class InALoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(144, 6), nn.SiLU(), nn.Linear(6, 4)])

    def forward(self, x):
        """Any number of layers."""
        x = torch.flatten(x, 1)
        for layer in self.layers:
            x = layer(x)
        return x


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = Inner()

    def forward(self, x):
        return self.classifier(self.features(x))


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Network(nn.Sequential(nn.Flatten(), nn.Linear(75, 5), nn.ReLU()), nn.Linear(5, 4))

    def forward(self, x):
        return self.body(x)


class DropsByFunctions(Layers):
    """The layers of :class:`DropsByLayers`, and nothing that is a layer of its own drops anything."""

    rate = 0.3

    def forward(self, x):
        x = F.dropout2d(self.images(x), 0.4, training=self.training).flatten(1)
        x = F.dropout(F.relu(self.hidden(F.dropout(x, 0.0, self.training))), self.rate, self.training)
        return self.last(F.dropout(x, 0.7, False))


class DropsByLayers(Layers):
    def __init__(self):
        super().__init__()
        self.channels = nn.Dropout2d(0.4)

    def forward(self, x):
        return self.last(self.drop(F.relu(self.hidden(self.channels(self.images(x)).flatten(1)))))


class DropsByRate(Layers):
    """Drop-out that is always on, at a rate that is 0 in evaluation."""

    def forward(self, x):
        return self.last(F.dropout(self.activation(self.hidden(self.images(x).flatten(1))), 0.3 * self.training))


class Averaging(Layers):
    def forward(self, x):
        x = F.avg_pool2d(torch.tanh(self.first(x)), 3, stride=2, padding=1, count_include_pad=False)
        x = F.adaptive_avg_pool2d(F.relu(self.second(x)), (2, None))
        return self.last(self.hidden(F.adaptive_avg_pool2d(x, (3, 3)).flatten(1)))


class ByMeans(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.pool = nn.Conv2d(1, 5, 3), nn.AvgPool2d(2, ceil_mode=True, divisor_override=3)
        self.last = nn.Linear(5, 4)

    def forward(self, x):
        return self.last(self.pool(F.relu(self.convolution(x))).mean((-2, -1)))


class ByKeptMeans(ByMeans):
    def forward(self, x):
        x = torch.mean(self.pool(F.relu(self.convolution(x))), dim=[2, 3], keepdim=True)
        return self.last(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class LogProbabilities(Layers):
    """How many a tutorial's network ends."""

    def forward(self, x):
        return F.log_softmax(self.last(F.relu(self.hidden(self.images(x).flatten(1)))), dim=1)


class ByALayer(Layers):
    def __init__(self):
        super().__init__()
        self.logarithms = nn.LogSoftmax(dim=-1)

    def forward(self, x):
        return self.logarithms(self.last(F.relu(self.hidden(self.images(x).flatten(1)))))


TAKEN = [LogProbabilities, ByALayer, Averaging, ByMeans, ByKeptMeans, Layers, ByFunctions, BySize, InALoop, Nested]


def workspace(kind, way=None):
    torch.manual_seed(0)
    space = Workspace.build(kind(), torch.device("cpu"), way, innermost=kind is not ByFunctions)
    space.start(NoiseStream(bytes([1] * 32)))
    return space


@pytest.mark.parametrize("kind", TAKEN)
def test_such_a_model_is_its_layers_with_its_very_parameters(kind):
    torch.manual_seed(0)
    module = kind().eval()
    found = own_sequence(module, torch.zeros(ROWS, 1, 12, 12))
    assert {id(one) for one in found.parameters()} == {id(one) for one in module.parameters()}
    assert 4 in known_ranks(found)
    assert 4 not in known_ranks(module)
    torch.testing.assert_close(found(IMAGES), module(IMAGES), rtol=1e-6, atol=1e-6)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())


@pytest.mark.parametrize("kind", TAKEN)
def test_its_gradients_and_clipped_sums_need_no_autograd_and_are_autograd_s(kind):
    space = workspace(kind)
    found = sequence_of(space.own, cross_entropy, IMAGES)
    assert not differs_from_autograd(found, cross_entropy, space.dropout, IMAGES, LABELS)
    private = workspace(kind, "rows")
    found = sequence_of(private.own, cross_entropy, IMAGES, steady=True)
    assert not clips_otherwise(found, cross_entropy, private.clipper, private.dropout, IMAGES, LABELS)
    private.clipper.unaided = found
    assert private.clipper.goes_unaided(cross_entropy)


def test_it_stays_in_the_mode_that_it_is_in():
    for training in (True, False):
        module = Layers().train(training)
        assert own_sequence(module, torch.zeros(ROWS, 1, 12, 12)).training is training
        assert all(layer.training is training for layer in module.modules())


class Branching(Layers):
    def forward(self, x):
        x = self.images(x).flatten(1)
        return self.last(self.hidden(x) if x.shape[0] > 2 else 2 * self.hidden(x))


class OtherwiseInTraining(Layers):
    def forward(self, x):
        return self.last(F.leaky_relu(self.hidden(self.images(x).flatten(1)), 0.1 + 0.1 * self.training))


class DroppingInEvaluation(Layers):
    def forward(self, x):
        return self.last(F.dropout(self.hidden(self.images(x).flatten(1)), 0.5, not self.training))


class MoreInEvaluation(Layers):
    def forward(self, x):
        return self.last(F.dropout(self.hidden(self.images(x).flatten(1)), 0.5 - 0.2 * self.training))


class OtherWeights(Layers):
    def __init__(self):
        super().__init__()
        self.either = nn.ModuleList([nn.Linear(9, 4), nn.Linear(9, 4)])

    def forward(self, x):
        return self.either[int(self.training)](self.hidden(self.images(x).flatten(1)))


class InDouble(Layers):
    def forward(self, x):
        return F.log_softmax(self.last(self.hidden(self.images(x).flatten(1))), 1, dtype=torch.float64).float()


class Longer(Layers):
    def forward(self, x):
        x = self.hidden(self.images(x).flatten(1))
        for _ in range(int(self.training)):
            x = F.relu(x)
        return self.last(x)


class DroppingChannelsOfNone(Layers):
    def forward(self, x):
        return self.last(F.dropout1d(self.hidden(self.images(x).flatten(1)), 0.5, self.training))


class NextToStatistics(Layers):
    """A pass in training mode would move what the unused layer remembers."""

    def __init__(self):
        super().__init__()
        self.unused = nn.BatchNorm1d(9)

    def forward(self, x):
        return self.last(F.dropout(self.hidden(self.images(x).flatten(1)), 0.5, self.training))


class Counting(Layers):
    def forward(self, x):
        self.calls = 1
        return super(Layers, self).__getattr__("last")(self.hidden(self.images(x).flatten(1)))


class Writing(Layers):
    def forward(self, x):
        self.calls = 1
        return self.last(self.hidden(self.images(x).flatten(1)))


class Collecting(Layers):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def forward(self, x):
        self.seen.add(1)
        return self.last(self.hidden(self.images(x).flatten(1)))


class Settings:
    slopes = [0.1, 0.2, 0.3, 0.4] * 100


class Popping(Layers):
    def __init__(self):
        super().__init__()
        self.settings = Settings()

    def forward(self, x):
        return self.last(F.leaky_relu(self.hidden(self.images(x).flatten(1)), self.settings.slopes.pop()))


SLOPES = [0.1, 0.2]


class ReadingAList(Layers):
    def forward(self, x):
        return self.last(F.leaky_relu(self.hidden(self.images(x).flatten(1)), SLOPES[0]))


def helper(x):
    return F.relu(x)


class Helped(Layers):
    def forward(self, x):
        return self.last(helper(self.hidden(self.images(x).flatten(1))))


class OfItsParent(Layers):
    def forward(self, x):
        return super().forward(x)


class Residual(Layers):
    def forward(self, x):
        x = self.hidden(self.images(x).flatten(1))
        return self.last(x + F.relu(x))


class OverChannels(ByMeans):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(10, 4)

    def forward(self, x):
        return self.last(self.convolution(x).mean((1, 2)))


class OverAll(ByMeans):
    def forward(self, x):
        x = self.convolution(x)
        return self.last(x.mean((2, 3), dtype=torch.float32))


class Forked(Layers):
    def forward(self, x):
        x = self.hidden(self.images(x).flatten(1))
        F.relu(x)
        return self.last(torch.tanh(x))


class Earlier(Layers):
    def forward(self, x):
        x = self.last(self.hidden(self.images(x).flatten(1)))
        F.relu(x)
        return x


class Reshaped(Layers):
    def __init__(self):
        super().__init__()
        self.hidden, self.last = nn.Linear(9, 9), nn.Linear(18, 4)

    def forward(self, x):
        return self.last(self.hidden(self.images(x).view(x.size(0), 2, 9)).flatten(1))


class Twice(Layers):
    def forward(self, x):
        self.last(F.relu(self.hidden(self.images(x).flatten(1))))
        return self.last(self.hidden(self.images(x).flatten(1)))


class Scaled(Layers):
    def forward(self, x):
        return self.last(self.hidden(self.images(x).flatten(1))) * self.slope


class Random(Layers):
    def forward(self, x):
        return self.last(F.dropout(self.hidden(self.images(x).flatten(1))))


class Mixed(Layers):
    def forward(self, x):
        return self.last(self.hidden(self.images(x).view(2, -1)[:, :WIDTH].contiguous()))


class OverRows(Layers):
    def forward(self, x):
        return self.last(F.softmax(self.hidden(self.images(x).flatten(1)), 0))


class WithWeights(Layers):
    def forward(self, x):
        return self.last(F.linear(self.images(x).flatten(1), self.hidden.weight, self.hidden.bias))


class Lazy(Layers):
    @property
    def scale(self):
        return 0.1

    def forward(self, x):
        return self.last(F.leaky_relu(self.hidden(self.images(x).flatten(1)), self.scale))


class Calling(Layers):
    def __call__(self, x):
        return 2 * super().__call__(x)


class OfDouble(Layers):
    def forward(self, x):
        return self.last(self.hidden(self.images(x).flatten(1)).double().float())


class Doubled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


class WithOwnLayer(Layers):
    def __init__(self):
        super().__init__()
        self.last = Doubled(9, 4)


class Normalised(Layers):
    def __init__(self):
        super().__init__()
        self.activation = nn.BatchNorm1d(9)


def hooked():
    module = Layers()
    module.register_forward_hook(lambda module, inputs, output: 2 * output)
    return module


def layer_hooked():
    module = Layers()
    module.hidden.register_forward_hook(lambda module, inputs, output: 2 * output)
    return module


def patched():
    module = Layers()
    module.forward = lambda x: 2 * module.last(module.hidden(module.images(x).flatten(1)))
    return module


LEFT = [OtherWeights, InDouble]
LEFT += [OtherwiseInTraining, DroppingInEvaluation, MoreInEvaluation, Longer, DroppingChannelsOfNone, NextToStatistics]
LEFT += [
    OverChannels,
    OverAll,
    Branching,
    Counting,
    Writing,
    Collecting,
    Popping,
    ReadingAList,
    Helped,
    OfItsParent,
    Residual,
]
LEFT += [
    Forked,
    Earlier,
    Reshaped,
    Twice,
    Scaled,
    Random,
    Mixed,
    OverRows,
    WithWeights,
    Lazy,
    Calling,
    OfDouble,
    WithOwnLayer,
    Normalised,
]


def steps_of(kind, way=None):
    """A workspace of such a model, and its steps."""
    torch.manual_seed(0)
    space = Workspace.build(kind(), torch.device("cpu"), way, draws=True)
    found = sequence_of(space.own, cross_entropy, IMAGES, steady=way is not None)
    space.dropout.extend(found.functional_dropout)
    return space, found


@pytest.mark.parametrize("kind", [DropsByFunctions, DropsByRate])
def test_functional_drop_out_is_a_layer_of_the_steps_with_the_masks_of_the_function(kind):
    space, found = steps_of(kind)
    assert len(found.functional_dropout) == (2 if kind is DropsByFunctions else 1)
    with space.randomness:
        assert not differs_from_autograd(found, cross_entropy, space.dropout, IMAGES, LABELS)
    space, found = steps_of(kind, "rows")
    with space.randomness:
        assert not clips_otherwise(found, cross_entropy, space.clipper, space.dropout, IMAGES, LABELS)


class DropsTwice(Layers):
    def forward(self, x):
        x = F.dropout(self.images(x).flatten(1), 0.4, self.training)
        return self.last(F.dropout(self.drop(torch.tanh(self.hidden(x))), 0.2, self.training))


def test_a_stack_has_the_masks_of_functions_among_layers():
    torch.manual_seed(0)
    space = Workspace.build(DropsTwice(), torch.device("cpu"), None, draws=True)
    single = sequence_of(space.own, cross_entropy, IMAGES, anywhere=True)
    assert len(single.functional_dropout) == 2
    space.dropout.extend(single.functional_dropout)
    gradients = StackedGradients(space.own, "rows")
    with space.randomness:
        found = stacked_sequence_of(single, gradients, space.dropout, IMAGES[:4], LABELS[:4], steady=True)
    assert isinstance(found, StackedSequence)


def test_functional_drop_out_follows_the_mode_of_the_network():
    space, found = steps_of(DropsByFunctions)
    space.start(NoiseStream(bytes([1] * 32)))
    with torch.no_grad():
        dropped = found.outputs(IMAGES)
        space.own.module.eval()
        torch.testing.assert_close(found.outputs(IMAGES), space.own.module(IMAGES), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found.outputs(IMAGES), dropped, atol=1e-3)


def test_to_find_out_draws_nothing_from_a_generator_that_others_share():
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        module = DropsByFunctions()
        made = torch.get_rng_state()
        assert own_sequence(module, torch.zeros(ROWS, 1, 12, 12)) is not None
        assert torch.equal(torch.get_rng_state(), made)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("kinds", [(DropsByLayers, DropsByFunctions), (Layers, DropsByRate)])
def test_runs_with_drop_out_as_a_function_and_as_a_layer_have_the_same_bits(monkeypatch, engine, private, kinds):
    monkeypatch.setattr(NoiseSource, "for_run", lambda self, _: self)  # which is another one for every model
    dpsgd = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5, max_grad_norm=0.5) if private else None
    inputs, targets = torch.randn(60, 1, 12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 4
    runs = []
    for kind in kinds:
        task = pf.Task.from_arrays(
            *(inputs[:40], targets[:40]), test=(inputs[40:], targets[40:]), classes=4, partition=pf.IID(clients=4),
            model=kind,
        )  # fmt: skip
        runs.append(
            pf.simulate(
                task,
                pf.FedAvg(weighting="uniform"),
                rounds=2,
                training=pf.LocalTraining(learning_rate=0.1, batch_size=5),
                privacy=pf.Privacy(training=dpsgd, noise_key=3),
                execution=pf.Execution(device="cpu", engine=engine),
            )
        )
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].metrics[-1] == runs[1].metrics[-1]
    assert runs[1].warnings == ()


@pytest.mark.parametrize("make", [*LEFT, hooked, layer_hooked, patched])
def test_any_other_model_keeps_its_own_passes(make):
    torch.manual_seed(0)
    assert own_sequence(make(), torch.zeros(ROWS, 1, 12, 12)) is None


def test_a_known_network_and_one_that_does_not_take_zeros_are_left_alone():
    assert own_sequence(nn.Sequential(nn.Flatten(), nn.Linear(144, 4)), torch.zeros(ROWS, 1, 12, 12)) is None
    assert own_sequence(Layers(), torch.zeros(ROWS, 1, 5, 5)) is None


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_run_of_it_is_that_of_the_same_layers_in_a_sequence(engine):
    draws = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(60, 1, 12, 12, generator=draws), torch.arange(60) % 4
    torch.manual_seed(0)
    made = Layers()
    layers = own_sequence(made, torch.zeros(ROWS, 1, 12, 12))
    weights = {id(one): number for number, one in enumerate(made.parameters())}
    order = [weights[id(one)] for one in layers.parameters()]
    results = []
    for network in (made, layers):
        task = pf.Task.from_arrays(
            *(inputs[:40], targets[:40]), test=(inputs[40:], targets[40:]), classes=4, partition=pf.IID(clients=4),
            model=lambda network=network: copy.deepcopy(network),
        )  # fmt: skip
        run = pf.simulate(
            task,
            pf.FedAvg(),
            rounds=2,
            training=pf.LocalTraining(learning_rate=0.1, batch_size=5),
            execution=pf.Execution(device="cpu", engine=engine),
        )
        assert run.summary["warnings"] == []
        results.append(run.parameters)
    parts = results[0].split([one.numel() for one in made.parameters()])
    torch.testing.assert_close(torch.cat([parts[place] for place in order]), results[1], rtol=1e-5, atol=1e-6)


class Viewing(Layers):
    """The model of many a tutorial: ``view`` takes no images whose channels lie innermost."""

    def forward(self, x):
        x = self.pool(F.relu(self.first(x))).view(x.size(0), -1)
        return F.pad(x, (0, 0))[:, :4] * self.hidden.weight.sum()


class ViewingLayers(Layers):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(75, 9)

    def forward(self, x):
        return self.last(self.hidden(self.pool(F.relu(self.first(x))).view(x.size(0), -1)))


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("model", [Viewing, ViewingLayers])
def test_a_model_that_pools_and_views_is_trained(engine, private, model):
    task = pf.Task.from_arrays(
        IMAGES.repeat(5, 1, 1, 1),
        LABELS.repeat(5),
        test=(IMAGES, LABELS),
        classes=4,
        partition=pf.IID(clients=4),
        model=model,
    )
    training = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5, max_grad_norm=1.0) if private else None
    run = pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=1,
        privacy=pf.Privacy(training=training),
        execution=pf.Execution(device="cpu", engine=engine),
    )
    assert bool(run.parameters.isfinite().all())

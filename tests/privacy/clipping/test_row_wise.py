"""One row at a time: what couples rows moves the clipped sum by no more than one row may, in both engines."""

import sys
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._functorch import autograd_function

import privfl as pf
from privfl.algorithms.base import descend
from privfl.algorithms.fedavg import FedAvg
from privfl.errors import ConfigError
from privfl.federation.task import cross_entropy
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.guard import own_vmap_refused
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.clipping.probe import check_per_sample
from privfl.privacy.clipping.stacked import StackedBatch, StackedGradients
from privfl.privacy.door.noisy_total import NoisyTotal

ROWS, FEATURES, CLASSES = 24, 6, 3
ENGINES = ("loop", "vectorised")


def own_loss(network, inputs, targets):
    """Cross-entropy, but not privfl's: nobody knows what it does."""
    return F.cross_entropy(network(inputs), targets, reduction="none")


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs)))


class Straight(Own):
    """Its loss grows with the input without bound."""

    def forward(self, inputs):
        return self.second(self.first(inputs))


class WaitingBatchNorm(Own):
    """Normalises over the batch once a row is far out, which random rows never are."""

    def forward(self, inputs):
        hidden = self.first(inputs)
        normalised = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
        return self.second(torch.where(inputs.abs().amax() > 50, normalised, hidden).tanh())


class Mixup(Own):
    def forward(self, inputs):
        return super().forward(inputs - inputs.roll(1, 0) if self.training else inputs)


def trimmed(network, inputs, targets):
    terms = own_loss(network, inputs, targets)
    return terms * (terms <= 3 * terms.mean())


def centred(network, inputs, targets):
    hidden = network.first(inputs)
    return own_loss(network, inputs, targets) + (hidden - hidden.mean(0)).square().sum(1)


@dataclass(frozen=True)
class CentreLoss(FedAvg):
    name: ClassVar[str] = "centre-loss"

    def step(self, local, received, batch, client, training):
        descend(local, client.gradient(centred, local["parameters"], batch), training)


def standardised(network, inputs, targets):
    far = (inputs - inputs.mean(0)) / (inputs.std(0, unbiased=False) + 1e-3)
    return F.pad(far, (0, sum(parameter.numel() for parameter in network.parameters()) - FEATURES))


@dataclass(frozen=True)
class Standardised(FedAvg):
    """Uploads a total of its own."""

    name: ClassVar[str] = "standardised"
    statistics: ClassVar[tuple[str, ...]] = ("far",)

    def step(self, local, received, batch, client, training):
        local["parameters"].add_(client.total(standardised, local["parameters"], batch, name="far"))


COUPLED = {
    "batch norm that waits": (WaitingBatchNorm, own_loss, FedAvg, ()),
    "trimmed loss": (Straight, trimmed, FedAvg, ()),
    "mixup in training mode": (Mixup, own_loss, FedAvg, ()),
    "centre loss of an algorithm": (Own, own_loss, CentreLoss, ()),
    "statistic standardised over the batch": (Own, own_loss, Standardised, (NoisyTotal("far", 1.0, 0.0),)),
}
OUTLIER = {"mixup in training mode": 3.0, "trimmed loss": -40000.0}


def data(outlier):
    """Rows of two clients, of which the last row of the first client is the one that comes and goes."""
    generator = torch.Generator().manual_seed(3)
    inputs = 0.3 * torch.randn(2 * ROWS, FEATURES, generator=generator)
    inputs[: ROWS // 4] *= 100  # rows of much larger loss, which trimming drops until there is one of a larger one yet
    inputs[ROWS - 1] = outlier
    return inputs, torch.arange(2 * ROWS) % CLASSES


def left(name, engine, *, without):
    """The change of the model [size] after one step in which every row takes part, times the number of clients."""
    model, loss, algorithm, totals = COUPLED[name]
    inputs, targets = data(OUTLIER.get(name, 100.0))
    keep = torch.ones(len(inputs), dtype=torch.bool)
    keep[ROWS - 1] = not without
    owners = torch.arange(2 * ROWS) // ROWS
    task = pf.Task.from_arrays(
        inputs[keep], targets[keep], clients=owners[keep], test=(inputs[:4], targets[:4]), model=model, loss=loss
    )
    training = pf.DPSGD(noise_multiplier=0.0, max_grad_norm=1.0, sample_rate=1.0)
    run = pf.simulate(
        task,
        algorithm(weighting="uniform"),
        rounds=1,
        training=pf.LocalTraining(batch_size=1, steps=1, learning_rate=1.0),
        privacy=pf.Privacy(training=training, statistics=totals),
        execution=pf.Execution(engine=engine, workers=1, device="cpu"),
    )
    start = torch.cat([parameter.detach().flatten() for parameter in task.model(0).parameters()])
    return 2 * (run.parameters.cpu() - start).double()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", COUPLED)
def test_a_row_moves_what_leaves_by_no_more_than_the_bound_although_rows_are_coupled(name, engine):
    moved = float((left(name, engine, without=False) - left(name, engine, without=True)).norm())
    assert moved <= 1 + 1e-4


class Convolutional(nn.Module):
    shape = (2, 8, 8)

    def __init__(self):
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 6, 3, stride=2), nn.GroupNorm(2, 4)
        self.drop, self.head = nn.Dropout(0.0), nn.Linear(24, CLASSES)

    def forward(self, inputs):
        hidden = F.relu(self.norm(self.one(inputs)))
        return self.head(self.drop(torch.tanh(self.two(hidden))).flatten(1))


class Alone(Convolutional):
    """Hands its convolution one image without a batch."""

    def forward(self, inputs):
        return torch.stack([super(Alone, self).forward(image[None])[0] for image in inputs.unbind(0)])


class Sequences(nn.Module):
    shape = (7,)
    vocabulary = 9

    def __init__(self):
        super().__init__()
        self.words, self.mix, self.norm = nn.Embedding(9, 5, padding_idx=0), nn.Linear(5, 6), nn.LayerNorm(6)
        self.places, self.head = nn.Embedding(7, 5), nn.Linear(6, CLASSES)

    def forward(self, tokens):
        hidden = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.mix(hidden)).tanh().mean(1))


class Cells(nn.Module):
    shape = (6, 4)

    def __init__(self):
        super().__init__()
        self.gates, self.head = nn.Linear(4 + 5, 4 * 5), nn.Linear(5, CLASSES)

    def forward(self, inputs):
        hidden = cell = inputs.new_zeros(len(inputs), 5)
        for step in inputs.unbind(1):
            enter, forget, leave, new = self.gates(torch.cat([step, hidden], 1)).chunk(4, 1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
        return self.head(hidden)


class TimeFolded(nn.Module):
    """Frames of a film as so many images: one row is several of the convolution's."""

    shape = (5, 2, 6, 6)

    def __init__(self):
        super().__init__()
        self.look, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)

    def forward(self, inputs):
        frames = self.norm(self.look(inputs.flatten(0, 1))).tanh().flatten(2).mean(2)
        return self.head(frames).unflatten(0, inputs.shape[:2]).mean(1)


class Twice(nn.Module):
    """One layer called twice, one frozen, one never called."""

    shape = (5,)

    def __init__(self):
        super().__init__()
        self.cell, self.frozen, self.unused = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(2, 2)
        self.head = nn.Linear(5, CLASSES)
        self.frozen.requires_grad_(False)

    def forward(self, inputs):
        return self.head(self.cell(self.frozen(self.cell(inputs).tanh())).tanh())


MODELS = (Convolutional, Alone, Sequences, Cells, TimeFolded, Twice)


def batch_for(kind, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    if hasattr(kind, "vocabulary"):
        return torch.randint(kind.vocabulary, (count, *kind.shape), generator=generator), targets
    return torch.randn(count, *kind.shape, generator=generator, dtype=torch.float64), targets


def by_hand(network, parameters, inputs, targets, bound):
    """The clipped sum [size] by a loop over rows."""
    total = torch.zeros_like(network.flat)
    with network.at(parameters):
        for row in range(len(inputs)):
            value = own_loss(network.module, inputs[row : row + 1], targets[row : row + 1]).sum()
            gradient = torch.cat([part.flatten() for part in network.gradient_of(value)])
            total += gradient * (bound / gradient.norm()).clamp(max=1)
    return total


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("bound", [0.05, 1e9])
def test_clipped_sums_are_those_of_a_loop_over_rows_in_both_engines(kind, bound):
    torch.manual_seed(1)
    network = FlatNetwork(kind().double())
    clients = [network.flat + 0.1 * torch.randn_like(network.flat) for _ in range(3)]
    batches = [batch_for(kind, 4, seed) for seed in range(3)]
    expected = [by_hand(network, at, *batch, bound) for at, batch in zip(clients, batches, strict=True)]
    stacked = StackedBatch(*map(torch.stack, zip(*batches, strict=True)), mask=None, loss_kwargs={})
    torch.manual_seed(1)  # what is frozen is part of the template
    found = StackedGradients(FlatNetwork(kind().double()), "rows").clipped_sum(
        own_loss, torch.stack(clients), stacked, bound
    )
    clipper = PerSampleGradients(network, "rows")
    for place, (at, batch) in enumerate(zip(clients, batches, strict=True)):
        with network.at(at):
            clipper.clipped_sum(own_loss, *batch, bound)
        for sums in (network.gradient, found[place]):
            torch.testing.assert_close(sums, expected[place], rtol=1e-4, atol=1e-6 * float(expected[place].abs().max()))


def test_padding_enters_no_sum():
    torch.manual_seed(1)
    network = FlatNetwork(Convolutional().double())
    inputs, targets = batch_for(Convolutional, 4)
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    batch = StackedBatch(inputs.expand(2, *inputs.shape), targets.expand(2, -1), mask, {})
    found = StackedGradients(network, "rows").clipped_sum(own_loss, network.flat.expand(2, -1), batch, 0.1)
    for place, count in enumerate((4, 2)):
        expected = by_hand(network, network.flat, inputs[:count], targets[:count], 0.1)
        torch.testing.assert_close(found[place], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("each", [(), (5,), (5, 2)], ids=["one target a row", "several", "a table of them"])
@pytest.mark.parametrize("counted", [False, True], ids=["all as many rows", "padded before"])
def test_a_piece_of_a_stack_says_which_of_its_rows_are_padding_whatever_the_targets(each, counted):
    mask = torch.tensor([[True, True, True], [True, False, False]]) if counted else None
    stack = StackedBatch(torch.ones(2, 3, 4), torch.ones(2, 3, *each), mask, {})
    piece = stack.part(clients=slice(0, 2), stack=3, rows=slice(1, 3), length=4)
    assert piece.inputs.shape == (3, 4, 4)
    assert piece.targets.shape == (3, 4, *each)
    rows = [[True, True, False, False], [not counted, not counted, False, False]]
    assert piece.mask.tolist()[:2] == rows
    assert piece.mask.shape == (3, 4)
    whole = StackedBatch(torch.ones(2, 3, 4), torch.ones(2, 3, *each), None, {})
    assert whole.part(clients=slice(0, 2), stack=2, rows=slice(0, 3), length=3).mask is None


@pytest.mark.parametrize("kind", MODELS)
def test_the_way_of_ones_own_model_is_by_rows(kind):
    module = kind().double()
    assert check_per_sample(FlatNetwork(module), own_loss, *batch_for(kind, 4)) == "rows"
    assert check_per_sample(FlatNetwork(kind().double()), cross_entropy, *batch_for(kind, 4)) == "rows"


def test_ones_own_loss_of_a_known_model_goes_by_rows_and_privfls_own_by_layers():
    network = FlatNetwork(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double())
    inputs, targets = batch_for(Twice, 4)
    assert check_per_sample(network, own_loss, inputs, targets) == "rows"
    assert check_per_sample(network, cross_entropy, inputs, targets) == "layers"
    clipper, widths = PerSampleGradients(network, "layers"), []

    def spying(network, inputs, targets):
        widths.append(len(inputs))
        return own_loss(network, inputs, targets)

    clipper.clipped_sum(spying, inputs, targets, 1.0)
    assert widths == [1]


class Branching(Own):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, inputs):
        return self.gate(super().forward(inputs))


class Gate(nn.Module):
    def forward(self, inputs):
        return inputs if inputs.abs().max().item() < 1e9 else 0 * inputs


class Counting(Own):
    """Writes what it saw into a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, inputs):
        hidden = self.first(inputs)
        self.seen.add_(hidden.detach().sum(0))
        return self.second(hidden)


class Remembering(Own):
    """Adds what it remembers of the rows before."""

    memory = None

    def forward(self, inputs):
        answer = super().forward(inputs)
        if self.memory is not None and len(self.memory) == len(answer):
            answer = answer + self.memory
        self.memory = answer.detach() if self.training else None
        return answer


@pytest.mark.parametrize(("kind", "said"), [(Branching, "layer 'gate', Gate"), (Counting, "in-?place")])
def test_what_cannot_run_on_one_row_at_a_time_is_refused_before_the_run(kind, said):
    inputs, targets = torch.randn(4, FEATURES), torch.arange(4) % CLASSES
    with pytest.raises(ConfigError, match=said):
        check_per_sample(FlatNetwork(kind()), cross_entropy, inputs, targets)


def test_what_a_model_remembers_of_earlier_rows_is_refused_before_the_run():
    inputs, targets = torch.randn(4, FEATURES), torch.arange(4) % CLASSES
    with pytest.raises(ConfigError, match="keeps what it computes of one row of a batch"):
        check_per_sample(FlatNetwork(Remembering()), cross_entropy, inputs, targets)


@pytest.mark.parametrize("way", ["rows", "vmap"])
@pytest.mark.parametrize("stacked", [False, True])
def test_what_a_loss_remembers_of_earlier_rows_is_refused_when_it_does(stacked, way):
    queue = []

    def contrasted(network, inputs, targets):
        features = network(inputs)
        queue.append(features.detach())
        return own_loss(network, inputs, targets) + (features - sum(queue)).square().sum(1)

    network, targets = FlatNetwork(Own()), torch.arange(4) % CLASSES
    inputs = torch.randn(2, 4, FEATURES)
    cohort = StackedBatch(inputs, targets.expand(2, -1), None, {})
    gradients = StackedGradients(network, way) if stacked else PerSampleGradients(network, way)
    given = (network.flat.expand(2, -1), cohort, 1.0) if stacked else (inputs[0], targets, 1.0)
    with pytest.raises(ConfigError, match="function contrasted, or a layer, keeps"):
        gradients.clipped_sum(contrasted, *given)


def test_a_statistic_that_is_bounded_sees_one_row_at_a_time_in_a_stacked_cohort():
    def deviation(network, inputs, targets):
        return (network(inputs) - network(inputs).mean(0)).norm(dim=1) + 1

    network, inputs = FlatNetwork(Own()), torch.randn(2, 4, FEATURES)
    cohort = StackedBatch(inputs, torch.zeros(2, 4, dtype=torch.int64), None, {})
    stacked = StackedGradients(network, "rows")
    alone, _ = stacked.total(deviation, network.flat.expand(2, -1), cohort, lambda values: values.clamp(max=9))
    assert torch.equal(alone, torch.full((2,), 4.0))
    together, _ = stacked.total(deviation, network.flat.expand(2, -1), cohort)
    assert (together > 4.1).all(), "where nothing is bounded, a batch may be seen as one"


class OwnRule(torch.autograd.Function):
    """The identity, but under vmap the rows are standardised together: its rule sees the whole stack."""

    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, back):
        return back

    @staticmethod
    def vmap(info, in_dims, values):
        return values.clone(), in_dims[0]


class MadeRule(OwnRule):
    generate_vmap_rule = True
    vmap = torch.autograd.Function.vmap


@pytest.mark.parametrize(("function", "refused"), [(OwnRule, True), (MadeRule, False)])
def test_a_vmap_rule_of_ones_own_which_sees_all_rows_is_refused(function, refused):
    class Ruled(Own):
        def forward(self, inputs):
            return super().forward(function.apply(inputs) if self.training else inputs)

    network, batch = FlatNetwork(Ruled()), (torch.randn(4, FEATURES), torch.arange(4) % CLASSES)
    if refused:
        with pytest.raises(ConfigError, match="OwnRule brings a vmap rule of its own"):
            check_per_sample(network, cross_entropy, *batch)
    else:
        assert check_per_sample(network, cross_entropy, *batch) == "rows"


def test_a_vmap_rule_registered_for_an_operation_of_ones_own_is_refused():
    @torch.library.custom_op("privfl_tests::standing", mutates_args=())
    def standing(values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    standing.register_autograd(lambda context, back: back)
    standing.register_vmap(lambda info, in_dims, values: (standing(values), in_dims[0]))

    class Ruled(Own):
        def forward(self, inputs):
            return super().forward(standing(inputs) if self.training else inputs)

    with pytest.raises(ConfigError, match=r"privfl_tests\.standing.* is no operator of PyTorch's own"):
        check_per_sample(FlatNetwork(Ruled()), cross_entropy, torch.randn(4, FEATURES), torch.arange(4) % CLASSES)


def test_looking_for_vmap_rules_leaves_pytorch_and_the_interpreter_as_they_were():
    before = autograd_function.VmapInfo
    with own_vmap_refused():
        assert sys.getprofile() is None  # Python 3.11 has looped for ever under a profile function
        assert autograd_function.VmapInfo is not before
    assert autograd_function.VmapInfo is before


def test_threads_that_look_for_vmap_rules_together_leave_pytorch_as_it_was():
    before, inside = autograd_function.VmapInfo, threading.Barrier(2)

    def look():
        inside.wait()
        with own_vmap_refused():
            time.sleep(0.05)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert autograd_function.VmapInfo is before


class BatchStatistics(Own):
    """A batch norm of one's own in training mode: alone, a row is divided by nothing."""

    def forward(self, inputs):
        hidden = self.first(inputs)
        return self.second((hidden - hidden.mean(0)) / hidden.std(0, unbiased=False) if self.training else hidden)


def test_a_model_that_gives_nothing_for_a_row_alone_is_refused():
    with pytest.raises(ConfigError, match="in training mode the gradient of a row that is alone"):
        check_per_sample(
            FlatNetwork(BatchStatistics()), cross_entropy, torch.randn(4, FEATURES), torch.arange(4) % CLASSES
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_opacus_hooks_which_see_whole_batches_are_refused_for_ones_own_model(engine):
    inputs, targets = data(1.0)
    task = pf.Task.from_arrays(inputs, targets, partition=pf.IID(clients=2), model=Own)
    private = pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5, per_sample="opacus")
    with pytest.raises(ConfigError, match="hooks see whole batches"):
        pf.simulate(
            task,
            FedAvg(),
            rounds=1,
            privacy=pf.Privacy(training=private),
            execution=pf.Execution(engine=engine, device="cpu"),
        )


def test_drop_out_of_ones_own_model_is_the_same_in_both_engines():
    class Dropping(Convolutional):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(40, 2, 8, 8, generator=generator), torch.arange(40) % CLASSES
    task = pf.Task.from_arrays(inputs, targets, partition=pf.IID(clients=2), model=Dropping)
    runs = [
        pf.simulate(
            task,
            FedAvg(weighting="uniform"),
            rounds=2,
            training=pf.LocalTraining(batch_size=8, steps=2, learning_rate=0.5),
            privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=0.0, sample_rate=1.0), noise_key=1),
            execution=pf.Execution(engine=engine, workers=1, device="cpu"),
        ).parameters
        for engine in ENGINES
    ]
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-4, atol=1e-5)

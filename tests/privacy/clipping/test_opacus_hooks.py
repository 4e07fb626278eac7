"""Opacus' hooks, privfl's own ways and a loop over single rows agree; what the hooks cannot do is refused."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from opacus.layers import DPLSTM
from torch import nn

import privfl as pf
from privfl.algorithms import FedAvg, FedSampling
from privfl.engine.choice import choose
from privfl.engine.dropout import give_dropout_streams
from privfl.engine.loop import LoopEngine
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.cohorts import Everyone
from privfl.federation.task import cross_entropy
from privfl.models import build, models
from privfl.models.flat_network import FlatNetwork, flatten
from privfl.models.layouts import lay_channels_innermost
from privfl.privacy.channel.channel import RoundChannel
from privfl.privacy.clipping.opacus_hooks import OpacusHooks, check_opacus
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.noise.source import NoiseStream
from privfl.simulation.checks import check_settings
from tests.privacy.clipping.test_per_sample import (
    LAYERS,
    OWN_LAYERS,
    SMALL,
    Functional,
    Raw,
    Repeated,
    Tied,
    one_row_at_a_time,
)

TARGETS = torch.tensor([0, 3, 1, 2])


def inputs_for(shape, vocabulary=None, rows=4):
    generator = torch.Generator().manual_seed(2)
    if vocabulary is not None:
        return torch.randint(vocabulary, (rows, *shape), generator=generator)
    return torch.randn(rows, *shape, generator=generator, dtype=torch.float64)


def without_dropout(module):
    """Opacus watches in training mode only, so what is random in it has to go."""
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return module.double().train()


def agree(module, inputs, *, ways, loss=cross_entropy, norms=(0.05, math.inf), rel=1e-8):
    """Each way and one row at a time give the same clipped sums and norms; each works on a copy of its own."""
    module = without_dropout(module)
    targets = TARGETS[: len(inputs)]
    for way in ways:
        network = FlatNetwork(copy.deepcopy(module))
        clipper = OpacusHooks(network) if way == "opacus" else PerSampleGradients(network, way)
        for max_grad_norm in norms:
            expected, expected_norms = one_row_at_a_time(
                FlatNetwork(copy.deepcopy(module)), loss, inputs, targets, max_grad_norm
            )
            found = clipper.clipped_sum(loss, inputs, targets, max_grad_norm)
            assert float((network.gradient - expected).abs().max()) < rel * float(expected.abs().max()), way
            torch.testing.assert_close(found, expected_norms, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("info", [one for one in models() if one.name != "next-token-lstm"], ids=lambda info: info.name)
def test_every_shipped_model_by_every_way(info):
    shape, vocabulary = ((9,), 30) if info.vocabulary is not None else (info.input_shape, None)
    module = build(info.name, shape, 4, vocabulary=vocabulary, seed=1, **SMALL.get(info.name, {}))
    inputs = inputs_for(shape, vocabulary, rows=2)
    check_opacus(FlatNetwork(without_dropout(copy.deepcopy(module))), cross_entropy, inputs, TARGETS[:2])
    ways = ("opacus", "vmap") if info.name in OWN_LAYERS else ("opacus", "layers", "vmap")
    agree(module, inputs, ways=ways, norms=(0.1,))


IGNORED_BY_OPACUS = {"convolution, circular", "convolution, reflected"}
"""Opacus pads with zeros whatever the layer does."""
FATAL_TO_OPACUS = {"layer norm without bias"}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_served_or_refused(name):
    torch.manual_seed(0)
    module, shape = copy.deepcopy(LAYERS[name])
    inputs = inputs_for(shape)
    module.double()(inputs)  # gives lazy layers their shapes
    module.double()
    network = FlatNetwork(copy.deepcopy(module))
    if name in IGNORED_BY_OPACUS | FATAL_TO_OPACUS:
        message = "not those of autograd" if name in IGNORED_BY_OPACUS else "Opacus' hooks fail on this model"
        with pytest.raises(ConfigError, match=message):
            check_opacus(network, cross_entropy, inputs, TARGETS)
    else:
        check_opacus(network, cross_entropy, inputs, TARGETS)
        agree(module, inputs, ways=("opacus",))


class Recurrent(nn.Module):
    """A recurrent layer of ``kind``, read at its last step."""

    def __init__(self, kind):
        super().__init__()
        self.recurrent, self.head = kind(5, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, inputs):
        return self.head(self.recurrent(inputs)[0][:, -1])


@pytest.mark.parametrize(
    ("module", "shape"),
    [(Tied, (4,)), (Raw, (5,)), (Repeated, (5,)), (lambda: Recurrent(DPLSTM), (3, 5))],
    ids=["tied", "raw", "repeated", "DPLSTM"],
)
def test_shared_raw_and_repeated_parameters(module, shape):
    torch.manual_seed(0)
    module = module().double()
    check_opacus(FlatNetwork(copy.deepcopy(module)), cross_entropy, inputs_for(shape), TARGETS)
    agree(module, inputs_for(shape), ways=("opacus",))


@pytest.mark.parametrize("name", ["two-cnn", "cnn-1m"])
def test_images_with_their_channels_innermost(name):
    module = build(name, (3, 8, 8), 4, seed=1)
    lay_channels_innermost(module)
    agree(module, inputs_for((3, 8, 8)), ways=("opacus", "layers"))


def test_frozen_parameters_get_no_gradient_and_count_for_nothing():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
    module[0].weight.requires_grad_(False)
    for parameter in module[2].parameters():
        parameter.requires_grad_(False)
    agree(module, inputs_for((5,)), ways=("opacus",))


def test_a_loss_may_use_features_and_head():
    def loss(network, inputs, targets):
        features = network.features(inputs)
        return F.cross_entropy(network.head(features), targets, reduction="none") + features.square().sum(1)

    agree(build("two-nn", (1, 4, 4), 4, seed=1, hidden=(6,)), inputs_for((1, 4, 4)), ways=("opacus",), loss=loss)


def test_dropout_by_streams_draws_the_same_masks_for_opacus_and_for_the_layer_rules():
    inputs, sums = inputs_for((1, 8, 8)), {}
    for way in ("opacus", "layers"):
        module = build("cnn-1m", (1, 8, 8), 4, seed=1).double().train()
        streams = give_dropout_streams(module)
        network = FlatNetwork(module)
        clipper = OpacusHooks(network) if way == "opacus" else PerSampleGradients(network, way)
        for seed in (1, 2):
            for stream in streams:
                stream.generator = NoiseStream(bytes([seed] * 32))
            clipper.clipped_sum(cross_entropy, inputs, TARGETS, 0.1)
            sums[way, seed] = network.gradient.clone()
    assert len(streams) > 0
    for seed in (1, 2):
        torch.testing.assert_close(sums["opacus", seed], sums["layers", seed], rtol=1e-8, atol=1e-12)
    assert not torch.allclose(sums["opacus", 1], sums["opacus", 2])


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_sample_whose_gradient_is_not_finite_counts_as_zero(poison):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))
    network = FlatNetwork(module)
    clipper = OpacusHooks(network)
    inputs, others = torch.randn(4, 16), [0, 1, 3]
    clipper.clipped_sum(cross_entropy, inputs[others], TARGETS[others], 1.0)
    expected = network.gradient.clone()
    inputs[2] = poison
    clipper.clipped_sum(cross_entropy, inputs, TARGETS, 1.0)
    torch.testing.assert_close(network.gradient, expected)


def test_an_empty_batch_gives_a_zero_gradient():
    network = FlatNetwork(nn.Linear(5, 4))
    network.gradient.fill_(7)
    clipper = PerSampleGradients(network, "opacus")
    assert len(clipper.clipped_sum(cross_entropy, torch.zeros(0, 5), torch.zeros(0).long(), 1.0)) == 0
    assert not network.gradient.any()


def test_under_autocast_norms_are_those_of_the_gradients_that_are_added():
    def narrow(network, inputs, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(network, inputs, targets).float()

    network = FlatNetwork(build("two-nn", (7,), 4, seed=1, hidden=(64,)))
    clipper = OpacusHooks(network)
    for row in inputs_for((7,), rows=8).float().split(1):
        norms = clipper.clipped_sum(narrow, row, TARGETS[:1], 1e-3)
        assert float(norms) > 1e-3
        assert 0.999 * 1e-3 < float(network.gradient.double().norm()) <= 1e-3


def test_the_hooks_rest_between_sums():
    inputs = inputs_for((1, 9, 9))
    plain = build("tiny-cnn", (1, 9, 9), 4, seed=1).double()
    module = copy.deepcopy(plain)
    network = FlatNetwork(module)
    clipper = OpacusHooks(network)
    clipper.clipped_sum(cross_entropy, inputs, TARGETS, 0.1)
    expected = network.gradient.clone()
    with torch.no_grad():
        assert torch.equal(module.eval()(inputs), plain.eval()(inputs))
    total = cross_entropy(module.train(), inputs[:3], TARGETS[:3]).sum()
    theirs = torch.autograd.grad(cross_entropy(plain.train(), inputs[:3], TARGETS[:3]).sum(), plain.parameters())
    for ours, other in zip(network.gradient_of(total), theirs, strict=True):
        assert torch.equal(ours, other)
    for parameter, view in zip(network.parameters, network.layout.views(network.flat), strict=True):
        assert parameter.data_ptr() == view.data_ptr()
        assert parameter.grad is None
        assert parameter.grad_sample is None
    assert not any("activations" in vars(layer) for layer in module.modules())
    clipper.clipped_sum(cross_entropy, inputs, TARGETS, 0.1)
    assert torch.equal(network.gradient, expected)


def test_a_call_that_no_gradient_reaches_does_not_spoil_the_next_sum():
    def tried_after(network, inputs, targets):
        used = cross_entropy(network, inputs, targets)
        network(2 * inputs)
        return used

    def tried_before(network, inputs, targets):
        network(3 * inputs)
        return cross_entropy(network, inputs, targets)

    torch.manual_seed(0)
    network = FlatNetwork(nn.Linear(5, 4).double())
    clipper = OpacusHooks(network)
    inputs = inputs_for((5,))
    expected, _ = one_row_at_a_time(network, cross_entropy, inputs, TARGETS, 0.3)
    for loss in (tried_before, cross_entropy):
        clipper.clipped_sum(loss, inputs[:3], TARGETS[:3], 0.3)
        clipper.clipped_sum(loss, inputs, TARGETS, 0.3)
        torch.testing.assert_close(network.gradient, expected)
    with pytest.raises(ConfigError, match="'weight' are not those of autograd"):  # Opacus takes the wrong call's input
        check_opacus(FlatNetwork(nn.Linear(5, 4).double()), tried_after, inputs, TARGETS)


class Positions(nn.Module):
    """A position embedding that all samples share: its input holds positions, not samples."""

    def __init__(self, length, leading):
        super().__init__()
        self.tokens, self.positions, self.head = nn.Embedding(9, 5), nn.Embedding(length, 5), nn.Linear(5, 4)
        self.index = (1, length) if leading else (length,)

    def forward(self, tokens):
        positions = self.positions(torch.arange(self.index[-1]).view(self.index))
        return self.head(torch.tanh(self.tokens(tokens) + positions).mean(1))


class Buffered(Raw):
    """A buffer beside a raw parameter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.ones(4))


class RandomInside(Raw):
    """A raw parameter around drop-out, which Opacus would draw anew."""

    def forward(self, inputs):
        return self.scale * F.dropout(self.layer(inputs), training=self.training)


REFUSED = {
    "nn.LSTM": (
        lambda: nn.Sequential(nn.Linear(5, 5), Recurrent(nn.LSTM)),
        (3, 5),
        r"does not support layer '1\.recurrent' \(LSTM\); replace it with what opacus.*ModuleValidator\.fix puts",
    ),
    "buffer": (Buffered, (5,), r"buffers of the model itself \(Buffered\).*keep them in another layer"),
    "in place": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True)),
        (5,),
        "build layer '1' with inplace=False",
    ),
    "functional": (Functional, (5,), r"gradients of 'layer\.weight' are not those of autograd.*per_sample = 'vmap'"),
    "random inside": (RandomInside, (5,), "Opacus' hooks fail on this model: .*random"),
    "positions": (lambda: Positions(6, False), 6, r"6 gradients of 'positions\.weight' for 4 samples"),
    "as many positions as samples": (lambda: Positions(4, False), 4, r"'positions\.weight' are not those of autograd"),
    "one row of positions": (lambda: Positions(6, True), 6, r"1 gradients of 'positions\.weight' for 4 samples"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_opacus_cannot_serve_is_refused_in_one_sentence(name):
    torch.manual_seed(0)
    module, shape, message = REFUSED[name]
    inputs = inputs_for((shape,), 9) if isinstance(shape, int) else inputs_for(shape)
    network = FlatNetwork(module().double().eval())
    state = torch.get_rng_state()
    with pytest.raises(ConfigError, match=message) as refusal:
        check_opacus(network, cross_entropy, inputs, TARGETS)
    assert ". " not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert torch.equal(torch.get_rng_state(), state)
    assert not network.module.training


def test_a_check_leaves_no_hook_behind():
    module = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 4)).double()
    check_opacus(FlatNetwork(module), cross_entropy, inputs_for((5,)), TARGETS)
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks")
    assert not any(vars(layer)[kind] for layer in module.modules() for kind in kinds)
    assert not any(vars(parameter) for parameter in module.parameters())


def task_with(model):
    inputs = torch.randn(40, 5, generator=torch.Generator().manual_seed(3))
    return pf.Task.from_arrays(inputs, torch.arange(40) % 4, partition=pf.IID(clients=4), model=model)


def checked(task, per_sample):
    privacy = pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, per_sample=per_sample))
    return check_settings(task, FedAvg("uniform"), privacy, Everyone(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("per_sample", "way"), [("auto", "layers"), ("layers", "layers"), ("vmap", "vmap"), ("opacus", "opacus")]
)
def test_the_way_that_is_asked_for_is_taken(per_sample, way):
    assert checked(task_with(lambda: nn.Linear(5, 4)), per_sample).way == way


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Raw, r"there is no rule for the model itself \(Raw\)"),
        (Functional, "a parameter is used outside of its own layer"),
    ],
)
def test_layer_rules_are_refused_where_they_do_not_reach(model, message):
    task = task_with(model)
    with pytest.raises(ConfigError, match=f"per_sample is 'layers', but {message}; use 'auto'") as refusal:
        checked(task, "layers")
    assert ". " not in str(refusal.value)
    assert checked(task, "auto").way == "vmap"


@pytest.mark.parametrize("per_sample", ["auto", "layers", "vmap", "opacus"])
def test_a_loss_that_couples_samples_is_refused_whatever_the_way(per_sample):
    class Centred(nn.Linear):
        def forward(self, inputs):
            logits = super().forward(inputs)
            return logits - logits.mean(0)

    with pytest.raises(ConfigError, match="one term per sample"):
        checked(task_with(lambda: Centred(5, 4)), per_sample)


def test_opacus_trains_clients_one_by_one_and_says_why():
    task = task_with(lambda: nn.Linear(5, 4))
    dpsgd = pf.DPSGD(noise_multiplier=1.0, per_sample="opacus")
    channel = RoundChannel.bare(FedAvg("uniform").fields(), dpsgd)
    with LoopEngine(task, FedAvg("uniform"), pf.LocalTraining(), channel, way="opacus", workers=1) as loop:
        received = {"parameters": flatten(task.model(0))}
        for wanted in ("auto", "vectorised"):
            choice = choose(wanted, loop, "opacus", received, cohort=4, rounds=2)
            assert (choice.engine, choice.reason) == ("loop", "Opacus' hooks cannot be stacked")
            assert choice.refused == (wanted == "vectorised")


@pytest.mark.parametrize(
    ("algorithm", "dpsgd"),
    [
        (FedAvg("uniform"), {"noise_multiplier": 0.8, "sample_rate": 0.2}),
        (FedSampling(samples_per_round=200), {"target_epsilon": 4.0, "noise_at": "server"}),
    ],
    ids=["noise at the client", "noise at the server"],
)
def test_a_whole_run_comes_out_the_same_and_claims_the_same(algorithm, dpsgd, common_noise):
    task = pf.load("digits", partition=pf.Dirichlet(clients=6, alpha=0.5), model="cnn-1m")
    runs = []
    for per_sample, engine in (("auto", "loop"), ("opacus", "vectorised")):
        privacy = pf.Privacy(
            training=pf.DPSGD(**dpsgd, per_sample=per_sample),
            size=pf.LaplaceSize(epsilon=4.0, bound=500, lower=20),
            max_size_error=10.0,
            noise_key=7,
        )
        steps = pf.LocalTraining(steps=2)
        runs.append(
            pf.simulate(
                task,
                algorithm,
                rounds=2,
                privacy=privacy,
                training=steps,
                execution=pf.Execution(workers=2, engine=engine),
            )
        )
    auto, opacus = runs
    assert "Opacus' hooks cannot be stacked" in opacus.summary["warnings"]
    assert float((auto.parameters - opacus.parameters).abs().max()) < 1e-6
    assert auto.statement.to_json() == opacus.statement.to_json()


def test_the_way_survives_the_configuration_file_and_an_unknown_one_is_refused():
    settings = {"privacy": {"training": {"noise_multiplier": 1.0, "per_sample": "opacus"}}}
    experiment = Experiment.from_dict(settings)
    assert experiment.privacy.training.per_sample == "opacus"
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    with pytest.raises(ConfigError, match="per_sample is 'fast'; choose 'auto', 'layers', 'vmap' or 'opacus'"):
        pf.DPSGD(noise_multiplier=1.0, per_sample="fast")
    with pytest.raises(ConfigError, match=r"privacy\.training\.per_sample is 'fast'"):
        Experiment.from_dict({"privacy": {"training": {"noise_multiplier": 1.0, "per_sample": "fast"}}})

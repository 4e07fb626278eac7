"""Who may see a whole batch: layers and functions that are known to keep rows apart, and nothing that others wrote."""

from functools import partial
from types import FunctionType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from privfl.algorithms.fair.loss_shares import with_count
from privfl.algorithms.label_skew.calibrated_logits import rewritten
from privfl.algorithms.label_skew.moon import MOON
from privfl.engine.dropout import give_dropout_streams
from privfl.federation.task import cross_entropy
from privfl.models import Network, build, models
from privfl.models.flat_network import FlatNetwork
from privfl.models.layouts import lay_channels_innermost
from privfl.models.residual import BasicBlock
from privfl.privacy.clipping.known import known_function, known_ranks
from privfl.privacy.clipping.per_sample import PerSampleGradients
from privfl.privacy.door.precision import in_precision
from tests.privacy.clipping.test_per_sample import SMALL


def own(network, inputs, targets):
    return F.cross_entropy(network(inputs), targets, reduction="none")


@pytest.mark.parametrize("info", models(), ids=lambda info: info.name)
def test_every_shipped_model_is_known_also_as_the_engines_change_it(info):
    shape, vocabulary = ((9,), 30) if info.vocabulary is not None else (info.input_shape, None)
    network = build(info.name, shape, 4, vocabulary=vocabulary, **SMALL.get(info.name, {}))
    assert len(shape) + 1 in known_ranks(network)
    give_dropout_streams(network)
    lay_channels_innermost(network)
    assert len(shape) + 1 in known_ranks(network)
    PerSampleGradients(FlatNetwork(network), "vmap")
    assert len(shape) + 1 in known_ranks(network)


KNOWN = {
    "compositions": (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)), 4),
    "privfl's own network": (Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.Linear(3, 2)), 3),
    "a soft-max over the last dimension": (nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)), 2),
    "embeddings": (nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2)), 2),
    "an instance norm without statistics": (nn.Sequential(nn.InstanceNorm1d(3), nn.Flatten(), nn.Linear(6, 2)), 3),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_networks(name):
    network, rank = KNOWN[name]
    assert rank in known_ranks(network)


class OwnLinear(nn.Linear):
    pass


def hooked():
    layer = nn.Linear(4, 2)
    layer.register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    return layer


def overridden():
    layer = nn.Linear(4, 2)
    layer.forward = lambda inputs: inputs - inputs.mean(0)
    return layer


def disguised():
    kind = type("Linear", (nn.Linear,), {"__module__": nn.Linear.__module__})
    return kind(4, 2)


def disguised_as_privfls():
    kind = type("Network", (nn.Linear,), {"__module__": Network.__module__})
    return kind(4, 2)


def with_own_activation():
    return BasicBlock((4, 4), activation=lambda values: values - values.mean(0))


UNKNOWN = {
    "a subclass": (lambda: OwnLinear(4, 2), 2),
    "a class by another's name": (disguised, 2),
    "a class by the name of privfl's": (disguised_as_privfls, 2),
    "a hook": (hooked, 2),
    "a forward of one's own": (overridden, 2),
    "an activation of one's own in privfl's block": (with_own_activation, 4),
    "a parametrisation": (lambda: parametrizations.weight_norm(nn.Linear(4, 2)), 2),
    "a soft-max over the rows": (lambda: nn.Softmax(0), 2),
    "a soft-max over the rows, counted from the end": (lambda: nn.Softmax(-2), 2),
    "a soft-max over who knows what": (lambda: nn.Softmax(), 2),
    "rows flattened together": (lambda: nn.Flatten(0), 3),
    "rows taken for channels": (lambda: nn.Conv2d(4, 2, 3), 3),
    "a norm over the rows too": (lambda: nn.LayerNorm((4, 2)), 2),
    "padding of the rows": (lambda: nn.ConstantPad2d((0, 0, 1, -1), 0.0), 2),
    "embeddings that are rescaled in place": (lambda: nn.Embedding(4, 2, max_norm=1.0), 2),
    "embeddings scaled by their frequency": (lambda: nn.Embedding(4, 2, scale_grad_by_freq=True), 2),
    "running statistics": (lambda: nn.InstanceNorm1d(2, track_running_stats=True), 3),
    "a batch norm": (lambda: nn.BatchNorm1d(2), 2),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_networks_that_could_couple_rows_are_not_known(name):
    build_part, rank = UNKNOWN[name]
    part = build_part()
    assert rank not in known_ranks(part)
    assert rank not in known_ranks(nn.Sequential(nn.Identity(), part))


def test_a_hook_on_all_modules_makes_none_known():
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    try:
        assert not known_ranks(nn.Linear(2, 2))
    finally:
        handle.remove()
    assert known_ranks(nn.Linear(2, 2))


class OwnMOON(MOON):
    pass


KNOWN_FUNCTIONS = {
    "privfl's loss": cross_entropy,
    "in another precision": in_precision(cross_entropy, "bfloat16", torch.device("cpu")),
    "with its terms counted": with_count(cross_entropy, 3.0),
    "rewritten by an algorithm": rewritten(MOON().contrasted, cross_entropy),
    "with arguments": partial(cross_entropy, weight=torch.ones(2)),
}
UNKNOWN_FUNCTIONS = {
    "one's own": own,
    "a lambda": lambda network, inputs, targets: inputs,
    "one's own in another precision": in_precision(own, "bfloat16", torch.device("cpu")),
    "one's own, counted": with_count(own, 3.0),
    "one's own, rewritten": rewritten(MOON().contrasted, own),
    "rewritten by a subclass": rewritten(OwnMOON().contrasted, cross_entropy),
    "one's own as an argument": partial(cross_entropy, weight=own),
    "a function of torch": F.cross_entropy,
}


@pytest.mark.parametrize("name", KNOWN_FUNCTIONS)
def test_known_functions(name):
    assert known_function(KNOWN_FUNCTIONS[name])


@pytest.mark.parametrize("name", UNKNOWN_FUNCTIONS)
def test_functions_that_hold_what_others_wrote_are_not_known(name):
    assert not known_function(UNKNOWN_FUNCTIONS[name])


def test_code_that_only_claims_to_lie_in_privfl_is_not_known():
    spoken = {}
    exec(
        compile("def loss(network, inputs, targets): return inputs", cross_entropy.__code__.co_filename, "exec"), spoken
    )
    spoken["loss"].__module__ = cross_entropy.__module__
    assert not known_function(spoken["loss"])


def test_code_from_elsewhere_that_runs_in_a_module_of_privfl_is_not_known():
    def elsewhere(network, inputs, targets):
        return inputs

    inside = FunctionType(elsewhere.__code__, cross_entropy.__globals__)
    inside.__module__ = cross_entropy.__module__
    assert not known_function(inside)

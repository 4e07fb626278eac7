"""What every registered model promises, checked on a small instance of each."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from opacus.grad_sample import GradSampleModule
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from privfl.errors import ConfigError
from privfl.models import Network, build, models

TOKENS = 11
SMALL: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "logistic": ((2, 3, 3), {}),
    "two-nn": ((7,), {"hidden": (6, 5)}),
    "two-cnn": ((1, 8, 8), {"hidden": (9,)}),
    "rebafl-fmnist": ((1, 14, 12), {}),
    "rebafl-cifar": ((3, 18, 18), {}),
    "moon-cnn": ((3, 16, 18), {"projection": 6}),
    "resnet8": ((3, 8, 8), {"width": 8}),
    "resnet9": ((3, 9, 8), {"width": 4, "hidden": 5}),
    "vgg9": ((1, 16, 17), {"width": 2, "hidden": 5}),
    "mobilenet": ((3, 34, 33), {"width": 4, "hidden": 5}),
    "efficientnet-b0": ((3, 9, 8), {"width": 4, "dropout": 0.0}),
    "leaf-cnn": ((3, 50, 51), {}),
    "m5": ((2, 1772), {}),
    "resnet10": ((3, 9, 8), {"width": 4}),
    "resnet20": ((1, 8, 8), {"width": 4}),
    "resnet32": ((1, 8, 8), {"width": 4}),
    "fedevg-resnet10": ((1, 8, 9), {"width": 4}),
    "resnet10-energy": ((1, 8, 9), {"width": 4}),
    "energy-cnn": ((1, 8, 9), {"width": 4}),
    "resnet1d": ((2, 21), {"width": 4}),
    "text-cnn": ((6,), {"embedding_dim": 5, "filters": 4, "hidden": 16, "vocabulary": TOKENS}),
    "transformer": ((6,), {"embedding_dim": 5, "heads": 2, "head_dim": 3, "hidden": 16, "vocabulary": TOKENS}),
    "distilbert": (
        (6,),
        {"layers": 2, "width": 8, "heads": 2, "hidden": 12, "positions": 7, "dropout": 0.0, "vocabulary": TOKENS},
    ),
    "lstm": ((6,), {"embedding_dim": 3, "hidden": 5, "vocabulary": TOKENS}),
    "cnn-1m": ((1, 8, 8), {}),
    "tiny-cnn": ((1, 9, 9), {}),
}
CLASSES = 4

every_model = pytest.mark.parametrize("name", SMALL)


def small(name: str, seed: int = 1) -> Network:
    shape, options = SMALL[name]
    return build(name, shape, CLASSES, seed=seed, **options)


def inputs_of(name: str, *batch: int, dtype: torch.dtype = torch.float32) -> Tensor:
    shape, options = SMALL[name]
    generator = torch.Generator().manual_seed(2)
    if "vocabulary" in options:
        return torch.randint(TOKENS, (*batch, *shape), generator=generator)
    return torch.randn(*batch, *shape, generator=generator).to(dtype)


def targets_of(*batch: int) -> Tensor:
    return torch.randint(CLASSES, batch, generator=torch.Generator().manual_seed(3))


def per_sample_gradients(network: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    def loss(parameters: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(network, parameters, (row[None],)), target[None])

    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}
    return vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(parameters, inputs, targets)


def test_every_registered_model_is_checked_here() -> None:
    assert {info.name for info in models()} == {*SMALL, "next-token-lstm"}


def test_a_next_token_model_says_at_every_position_what_follows_from_the_tokens_so_far() -> None:
    network = build("next-token-lstm", (6,), CLASSES, vocabulary=TOKENS, seed=1, embedding_dim=3, hidden=5).double()
    tokens = torch.randint(TOKENS, (3, 6), generator=torch.Generator().manual_seed(2))
    logits = network(tokens)
    assert logits.shape == (3, 6, CLASSES)
    assert torch.equal(logits, network.head(network.features(tokens)))
    torch.testing.assert_close(network(tokens[1:2])[0], logits[1], rtol=1e-10, atol=1e-10)
    later = tokens.clone()
    later[:, 4:] = (later[:, 4:] + 1) % TOKENS
    torch.testing.assert_close(network(later)[:, :4], logits[:, :4], rtol=1e-10, atol=1e-10)
    assert not torch.allclose(network(later)[:, 4:], logits[:, 4:])
    assert network(tokens[:0]).shape == (0, 6, CLASSES)


@every_model
def test_forward_is_the_head_of_the_features(name: str) -> None:
    network, inputs = small(name).eval(), inputs_of(name, 3)
    features = network.features(inputs)
    assert features.shape == (3, network.feature_dim)
    assert torch.equal(network(inputs), network.head(features))
    assert network(inputs).shape == (3, CLASSES)


@every_model
def test_the_head_has_its_parameters_under_its_name_and_the_features_do_not_depend_on_them(name: str) -> None:
    network, inputs = small(name).eval(), inputs_of(name, 2)
    before = network.features(inputs)
    named = dict(network.named_parameters())
    head = {key for key in named if key.startswith("head.")}
    assert {f"head.{key}" for key, _ in network.head.named_parameters()} == head
    with torch.no_grad():
        for key in head:
            named[key].add_(1.0)
    assert torch.equal(network.features(inputs), before)


@every_model
def test_one_sample_gives_what_it_gives_within_a_batch(name: str) -> None:
    network, inputs = small(name).double().eval(), inputs_of(name, 3, dtype=torch.float64)
    together = network(inputs)
    for i in range(3):
        torch.testing.assert_close(network(inputs[i : i + 1])[0], together[i], rtol=1e-10, atol=1e-10)


@every_model
def test_an_empty_batch_gives_no_logits_and_zero_gradients(name: str) -> None:
    network = small(name).train()
    logits = network(inputs_of(name, 3)[:0])
    assert logits.shape == (0, CLASSES)
    logits.sum().backward()
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


@every_model
def test_it_has_no_buffers_and_no_in_place_activations(name: str) -> None:
    network = small(name)
    assert list(network.buffers()) == []
    assert not any(getattr(module, "inplace", False) for module in network.modules())
    assert set(network.state_dict()) == {key for key, _ in network.named_parameters()}


@every_model
def test_opacus_finds_nothing_to_object_to(name: str) -> None:
    assert ModuleValidator.validate(small(name).train(), strict=False) == []


@every_model
def test_every_parameter_receives_a_gradient(name: str) -> None:
    network = small(name).eval()
    F.cross_entropy(network(inputs_of(name, 8)), targets_of(8)).backward()
    dead = [key for key, parameter in network.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert dead == []


@every_model
def test_per_sample_gradients_by_vmap_equal_a_loop_over_rows(name: str) -> None:
    network = small(name).double().eval()
    inputs, targets = inputs_of(name, 4, dtype=torch.float64), targets_of(4)
    vectorised = per_sample_gradients(network, inputs, targets)
    for i in range(4):
        network.zero_grad()
        F.cross_entropy(network(inputs[i : i + 1]), targets[i : i + 1]).backward()
        for key, parameter in network.named_parameters():
            assert parameter.grad is not None
            difference = (vectorised[key][i] - parameter.grad).norm()
            assert difference <= 1e-5 * parameter.grad.norm() + 1e-12, key


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@every_model
def test_per_sample_gradients_by_vmap_equal_those_of_opacus(name: str) -> None:
    network = small(name).double().eval()
    inputs, targets = inputs_of(name, 4, dtype=torch.float64), targets_of(4)
    expected = per_sample_gradients(network, inputs, targets)
    wrapped = GradSampleModule(copy.deepcopy(network), loss_reduction="sum").train()  # Opacus watches only then
    for module in wrapped.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    F.cross_entropy(wrapped(inputs), targets, reduction="sum").backward()
    for key, parameter in wrapped._module.named_parameters():
        torch.testing.assert_close(parameter.grad_sample, expected[key], rtol=1e-5, atol=1e-10)


@every_model
def test_the_parameters_of_several_clients_train_in_one_call(name: str) -> None:
    clients = [small(name, seed=client).double().eval() for client in range(3)]
    inputs, targets = inputs_of(name, 3, 2, dtype=torch.float64), targets_of(3, 2)
    stacked, _ = stack_module_state(clients)

    def loss(parameters: dict[str, Tensor], rows: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(clients[0], parameters, (rows,)), labels)

    together = vmap(grad(loss))({key: value.detach() for key, value in stacked.items()}, inputs, targets)
    for client, network in enumerate(clients):
        F.cross_entropy(network(inputs[client]), targets[client]).backward()
        for key, parameter in network.named_parameters():
            torch.testing.assert_close(together[key][client], parameter.grad, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("name", ["cnn-1m", "text-cnn", "transformer"])
def test_dropout_differs_between_the_clients_of_one_call(name: str) -> None:
    network = small(name).train()
    parameters = {key: value.detach().expand(3, *value.shape) for key, value in network.named_parameters()}
    rows = inputs_of(name, 2).expand(3, 2, *SMALL[name][0])
    call = vmap(lambda tree, x: functional_call(network, tree, (x,)), randomness="different")
    torch.manual_seed(4)
    first, second, third = call(parameters, rows)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


@every_model
def test_a_copy_and_a_reloaded_state_compute_the_same_and_share_nothing(name: str) -> None:
    network, inputs = small(name).eval(), inputs_of(name, 2)
    expected = network(inputs)
    twin, other = copy.deepcopy(network), small(name, seed=9).eval()
    assert not torch.equal(other(inputs), expected)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(inputs), expected)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert torch.equal(twin(inputs), expected)
    assert not torch.equal(network(inputs), expected)


def test_any_two_modules_make_a_network() -> None:
    body, head = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.Linear(3, 2)
    network = Network(body, head)
    assert network.feature_dim == 3
    assert Network(body, nn.Sequential(head, nn.Tanh()), feature_dim=3).feature_dim == 3
    with pytest.raises(ConfigError, match="the head is Sequential, not Linear; give its feature_dim"):
        Network(body, nn.Sequential(head))

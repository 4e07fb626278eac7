"""Building by name: seeds, options, and what is refused before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from privfl.errors import ConfigError
from privfl.models import build, default_model, models


def weights(**arguments: Any) -> torch.Tensor:
    network = build("two-nn", (6,), 3, hidden=(5,), **arguments)
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def test_the_same_seed_gives_the_same_weights_whatever_the_global_generator_does() -> None:
    torch.manual_seed(1)
    first = weights(seed=7)
    torch.manual_seed(2)
    assert torch.equal(weights(seed=7), first)
    assert not torch.equal(weights(seed=8), first)


def test_a_seeded_build_leaves_the_global_generators_as_they_were() -> None:
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002  # the state to watch
    for info in models():
        if info.parameters < 1_000_000:
            build(info.name, info.input_shape, info.classes, vocabulary=info.vocabulary, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], before_numpy)  # noqa: NPY002


def test_the_global_generator_is_put_back_when_building_fails() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ConfigError):
        build("tiny-cnn", (1, 4, 4), 10, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_the_global_generator_decides() -> None:
    torch.manual_seed(5)
    first = weights()
    torch.manual_seed(5)
    assert torch.equal(weights(), first)
    assert not torch.equal(weights(), first)


def test_the_weights_are_on_the_cpu_and_the_same_under_another_default_device() -> None:
    first = weights(seed=7)
    with torch.device("meta"):
        assert torch.equal(weights(seed=7), first)


def test_xavier_normal_redraws_weights_and_zeroes_biases_of_linear_and_convolutional_layers_only() -> None:
    """False alarm below 1e-6: the standard deviation of 2,560,000 normal weights lies within 5e-3 of its value."""
    network = build("fedevg-resnet10", (1, 28, 28), 10, initialisation="xavier-normal", seed=1)
    weight = max(network.body.parameters(), key=torch.Tensor.numel)
    fan = weight.shape[2] * weight.shape[3] * (weight.shape[0] + weight.shape[1])
    assert weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=5e-3)
    assert isinstance(network.head, nn.Linear)
    assert not network.head.bias.any()
    assert all((m.weight == 1).all() for m in network.modules() if isinstance(m, nn.GroupNorm))
    plain, drawn = (
        build("lstm", (5,), 3, vocabulary=9, hidden=8, initialisation=i, seed=1) for i in ("default", "xavier-uniform")
    )
    for (key, a), b in zip(plain.named_parameters(), drawn.parameters(), strict=True):
        assert torch.equal(a, b) != key.startswith("head.")


def test_a_list_serves_as_a_tuple_option_as_it_comes_from_toml() -> None:
    assert build("two-nn", (6,), 3, hidden=[4, 4]).feature_dim == 4


def test_a_torch_size_and_numpy_integers_serve_as_a_shape() -> None:
    assert build("logistic", torch.zeros(2, 3).shape, 3).feature_dim == 6
    assert build("logistic", tuple(np.array([2, 3])), 3).feature_dim == 6


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (("twonn", (6,), 3), {}, "unknown model 'twonn': did you mean 'two-nn'?"),
        (("two-nn", (6,), 3), {"hiden": 3}, "unknown option of model 'two-nn' 'hiden': did you mean 'hidden'?"),
        (("tiny-cnn", (1, 28, 28), 3), {"width": 3}, "unknown option 'width' of model 'tiny-cnn': it has no options"),
        (("two-nn", (6,), 3), {"hidden": (4, 0)}, "model 'two-nn': hidden.1 is 0; input should be greater than"),
        (("text-cnn", (6,), 3), {"vocabulary": 9, "dropout": 1.0}, "dropout is 1.0; input should be less than 1"),
        (("two-nn", (6,), 3), {"initialisation": "he"}, "unknown initialisation 'he'"),
        (("two-nn", (6,), 0), {}, "classes is 0: a model needs at least one output"),
        (("two-nn", (6, 0), 3), {}, r"input_shape is \(6, 0\); give the sizes of one input without the batch"),
        (("two-nn", (), 3), {}, r"input_shape is \(\)"),
        (("two-nn", (6.5,), 3), {}, r"input_shape is \(6.5,\)"),
        (("two-cnn", (28, 28), 3), {}, r"takes inputs of kind image \(C, H, W\), not of shape \(28, 28\)"),
        (("resnet1d", (140,), 3), {}, r"takes inputs of kind signal \(C, L\), not of shape \(140,\)"),
        (("text-cnn", (1, 28, 28), 3), {"vocabulary": 9}, r"takes inputs of kind tokens \(L,\), not of shape"),
        (("two-cnn", (30,), 3), {"vocabulary": 9}, "not token ids; use one of text-cnn, transformer, lstm"),
        (("lstm", (30,), 3), {}, "takes token ids; give vocabulary"),
        (("lstm", (30,), 3), {"vocabulary": 0}, "vocabulary is 0; give the number of distinct token ids"),
        (("two-cnn", (1, 3, 9), 3), {}, "images of 3 x 9 are too small; give at least 4 x 4"),
        (("rebafl-fmnist", (1, 8, 8), 3), {}, "images of 8 x 8 are too small; give at least 12 x 12"),
        (("rebafl-cifar", (3, 15, 15), 3), {}, "images of 15 x 15 are too small; give at least 16 x 16"),
        (("cnn-1m", (3, 5, 5), 3), {}, "images of 5 x 5 are too small; give at least 6 x 6"),
        (("tiny-cnn", (3, 8, 8), 3), {}, "images of 8 x 8 are too small; give at least 9 x 9"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(
    arguments: tuple[Any, ...], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refusal:
        build(*arguments, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "least"), [("two-cnn", 4), ("rebafl-fmnist", 12), ("rebafl-cifar", 16), ("cnn-1m", 6), ("tiny-cnn", 9)]
)
def test_the_least_size_that_a_refusal_names_works(name: str, least: int) -> None:
    assert build(name, (1, least, least), 3)(torch.zeros(1, 1, least, least)).shape == (1, 3)


def test_the_default_model_takes_the_inputs_it_is_the_default_for() -> None:
    for shape, kind, name in (
        ((1, 28, 28), "image", "two-cnn"),
        ((3, 3, 9), "image", "two-nn"),
        ((1, 140), "signal", "resnet1d"),
        ((15,), "vector", "logistic"),
    ):
        assert default_model(shape, kind) == name
        assert build(name, shape, 2)(torch.zeros(1, *shape)).shape == (1, 2)
    assert build(default_model((30,), "tokens"), (30,), 2, vocabulary=5).feature_dim == 256


def test_the_default_model_refuses_an_unknown_kind_and_a_shape_that_is_not_of_the_kind() -> None:
    with pytest.raises(ConfigError, match="unknown input kind 'picture'"):
        default_model((1, 28, 28), "picture")
    with pytest.raises(ConfigError, match=r"an input of shape \(28, 28\) is not image \(C, H, W\)"):
        default_model((28, 28), "image")


def test_a_listing_says_what_each_model_takes() -> None:
    for info in models():
        assert info.summary
        assert ("tokens" in info.kinds) == (info.vocabulary is not None)


class Operators(TorchDispatchMode):
    """Notes the names of all operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_listing_draws_no_normal_weights_which_would_load_pytorchs_compiler() -> None:
    with Operators() as seen:
        assert models.__wrapped__() == models()
    assert "empty" in seen.names
    assert "normal_" not in seen.names

"""Models by name: what there is, what each takes, and how to build one reproducibly."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral
from typing import Any, Literal

import torch
from pydantic import ValidationError, validate_call
from torch import nn
from torch.overrides import TorchFunctionMode

from privfl.errors import ConfigError, unknown
from privfl.models import convolutional, dense, distilbert, energy, mobile, projection, recurrent, residual, text
from privfl.models.base import Network, Shape, initialise
from privfl.models.flat_network import frozen_parameters
from privfl.randomness import process_generators, stream_seed
from privfl.schema import Named

InputKind = Literal["vector", "signal", "image", "tokens"]
"""One input without the batch: ``vector`` (D,), ``signal`` (C, L), ``image`` (C, H, W), ``tokens`` (L,) of integers."""

Initialisation = Literal["default", "xavier-normal", "xavier-uniform"]

_AXES: dict[InputKind, str] = {"vector": "D", "signal": "CL", "image": "CHW", "tokens": "L"}
_NUMERIC: tuple[InputKind, ...] = ("vector", "signal", "image")
_MNIST, _CIFAR = (1, 28, 28), (3, 32, 32)

_INITIALISERS: dict[str, Callable[[torch.Tensor], torch.Tensor] | None] = {
    "default": None,
    "xavier-normal": nn.init.xavier_normal_,
    "xavier-uniform": nn.init.xavier_uniform_,
}


@dataclass(frozen=True)
class ModelInfo:
    """A model as listed: ``parameters`` counts its parameters at the standard ``input_shape`` and ``classes``.

    ``kinds`` are the inputs it takes; ``vocabulary`` is the standard number of tokens, ``None`` unless it takes tokens.
    """

    name: str
    summary: str
    kinds: tuple[InputKind, ...]
    input_shape: Shape
    classes: int
    vocabulary: int | None
    parameters: int


@dataclass(frozen=True)
class _Model:
    builder: Callable[..., Network]
    summary: str
    kinds: tuple[InputKind, ...] = ("image",)
    input_shape: Shape = _MNIST
    classes: int = 10
    vocabulary: int | None = None


_MODELS: dict[str, _Model] = {
    "logistic": _Model(dense.logistic, "multinomial logistic regression", _NUMERIC),
    "two-nn": _Model(dense.two_nn, "two hidden layers of 200 (McMahan et al. 2017)", _NUMERIC),
    "two-cnn": _Model(convolutional.two_cnn, "two 5x5 convolutions, 512 units (McMahan et al. 2017)"),
    "rebafl-fmnist": _Model(convolutional.rebafl_fmnist, "ReBaFL's network for Fashion-MNIST"),
    "rebafl-cifar": _Model(convolutional.rebafl_cifar, "ReBaFL's network for CIFAR-10", input_shape=_CIFAR),
    "moon-cnn": _Model(projection.moon_cnn, "MOON's network: LeNet with a projection head", input_shape=_CIFAR),
    "resnet8": _Model(residual.resnet8, "ResNet of the CIFAR family, n = 1 (He et al. 2016)", input_shape=_CIFAR),
    "resnet9": _Model(residual.resnet9, "SuPerFed's ResNet-9: four blocks and two dense layers", input_shape=_CIFAR),
    "resnet10": _Model(residual.resnet10, "ResNet of four basic blocks, 64 to 512 channels", input_shape=_CIFAR),
    "resnet20": _Model(residual.resnet20, "ResNet of the CIFAR family, n = 3 (He et al. 2016)", input_shape=_CIFAR),
    "resnet32": _Model(residual.resnet32, "ResNet of the CIFAR family, n = 5 (He et al. 2016)", input_shape=_CIFAR),
    "vgg9": _Model(convolutional.vgg9, "SuPerFed's VGG-9 for FEMNIST: six convolutions, no biases", classes=62),
    "mobilenet": _Model(
        mobile.mobilenet, "SuPerFed's MobileNet for TinyImageNet", input_shape=(3, 64, 64), classes=200
    ),
    "efficientnet-b0": _Model(
        mobile.efficientnet_b0, "EfficientNet-B0 (Tan and Le 2019), GroupNorm", input_shape=(3, 200, 200), classes=8
    ),
    "leaf-cnn": _Model(
        convolutional.leaf_cnn, "four convolutions with GroupNorm for LEAF's CelebA", input_shape=(3, 84, 84), classes=2
    ),
    "m5": _Model(convolutional.m5, "M5 for speech: four convolutions over time", ("signal",), (1, 8000), 35),
    "fedevg-resnet10": _Model(residual.fedevg_resnet10, "FedEvg's ResNet-10: SiLU, no pooling before the head"),
    "resnet10-energy": _Model(energy.resnet10_energy, "FedEvg's ResNet-10 with its head of spectral norm 1"),
    "energy-cnn": _Model(energy.energy_cnn, "three convolutions and a head of spectral norm 1, for FedEvg on a CPU"),
    "resnet1d": _Model(residual.resnet1d, "GRP-FED's five convolutions over time", ("signal",), (1, 140), 5),
    "text-cnn": _Model(
        text.text_cnn, "convolution and attention pooling (FedSampling)", ("tokens",), (30,), 18, 10_000
    ),
    "transformer": _Model(
        text.transformer, "self-attention and attention pooling (FedSampling)", ("tokens",), (30,), 18, 10_000
    ),
    "lstm": _Model(recurrent.lstm, "two-layer LSTM, last state (McMahan et al. 2017)", ("tokens",), (80,), 100, 100),
    "next-token-lstm": _Model(
        recurrent.next_token_lstm, "LSTM, the next token at every position", ("tokens",), (80,), 97, 97
    ),
    "distilbert": _Model(
        distilbert.distilbert, "DistilBERT (Sanh et al. 2019) with AAggFF's head", ("tokens",), (200,), 2, 30_522
    ),
    "cnn-1m": _Model(convolutional.cnn_1m, "benchmark: the pfl-research CNN"),
    "tiny-cnn": _Model(convolutional.tiny_cnn, "benchmark: two strided convolutions"),
}


def build(
    name: str,
    input_shape: Shape,
    classes: int,
    *,
    vocabulary: int | None = None,
    seed: int | None = None,
    initialisation: Initialisation = "default",
    **options: Any,
) -> Network:
    """Build the model ``name`` on the CPU, in PyTorch's default floating type.

    Args:
        name: one of :func:`models`.
        input_shape: shape of one input without the batch; (L,) for token sequences.
        classes: number of logits; 1 for a single binary logit.
        vocabulary: number of distinct token ids, for models that take tokens, and only for those.
        seed: root seed; the weights come from its stream ``init`` and the global generators stay as they are. ``None``
            draws from PyTorch's global generator.
        initialisation: ``default`` is the model's own; ``xavier-normal`` and ``xavier-uniform`` redraw the weights of
            linear and convolutional layers and set their biases to zero.
        options: the keyword-only arguments of the model's function, for instance ``width`` of a ResNet.

    Raises:
        ConfigError: the name or an option is unknown, an option's value is impossible, or the model cannot take such
            inputs (wrong kind, too small).

    >>> sum(p.numel() for p in build("two-nn", (1, 28, 28), 10, seed=0).parameters())
    199210
    """
    model, shape = _checked(name, input_shape, classes, vocabulary, options)
    if initialisation not in _INITIALISERS:
        raise unknown("initialisation", initialisation, _INITIALISERS)
    with _generator_of(seed), torch.device("cpu"):
        network = _made(name, model, vocabulary or shape, classes, options)
        redraw = _INITIALISERS[initialisation]
        if redraw is not None:
            initialise(network, redraw, zero_bias=True)
    return network


def _made(name: str, model: _Model, takes: Shape | int, classes: int, options: Mapping[str, Any]) -> Network:
    """The network of ``model``, on the device that is PyTorch's default at the time."""
    try:
        return _validated(model.builder)(takes, classes, **options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"model '{name}': {where} is {first['input']!r}; {first['msg'].lower()}") from None
    except ConfigError as error:
        raise ConfigError(f"model '{name}' does not fit: {error}") from None


@cache
def _validated(builder: Callable[..., Network]) -> Callable[..., Network]:
    """``builder``, whose options are checked; to make the check takes longer than to build a small network."""
    return validate_call(builder)


@dataclass(frozen=True)
class NamedModel:
    """Builds the model ``name`` from a seed: a factory that can be written down and read again.

    Raises:
        ConfigError: there is no such model, or it does not take such inputs or options.
    """

    name: str
    input_shape: Shape
    classes: int
    vocabulary: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {key: value for key, value in self.options.items() if key != "initialisation"}
        _checked(self.name, self.input_shape, self.classes, self.vocabulary, own)

    def __call__(self, seed: int) -> Network:
        """The network, initialised from ``seed``."""
        return build(self.name, self.input_shape, self.classes, vocabulary=self.vocabulary, seed=seed, **self.options)

    @property
    def named(self) -> Named:
        """How a file names it."""
        return Named(self.name, self.options)

    def parameters(self) -> int:
        """How many parameters it has, without memory for them.

        Raises:
            ConfigError: an option's value is impossible, or the inputs are too small.
        """
        own = {key: value for key, value in self.options.items() if key != "initialisation"}
        model, shape = _checked(self.name, self.input_shape, self.classes, self.vocabulary, own)
        with torch.device("meta"), _AsAllocated():
            network = _made(self.name, model, self.vocabulary or shape, self.classes, own)
        return sum(parameter.numel() for parameter in network.parameters())


@dataclass(frozen=True)
class OwnModel:
    """Builds a model of one's own from a seed, by a function or class of no arguments."""

    build: Callable[..., nn.Module]

    def __call__(self, seed: int) -> nn.Module:
        """The network, initialised from ``seed``; what is frozen is as seed 0 draws it, one model for everybody."""
        network = self._built(seed)
        if seed and (frozen := frozen_parameters(network)):
            common = dict(self._built(0).named_parameters())
            with torch.no_grad():
                for name, parameter in frozen.items():
                    if name in common and common[name].shape == parameter.shape:  # or check_frozen refuses it
                        parameter.copy_(common[name])
        return network

    def _built(self, seed: int) -> nn.Module:
        own = stream_seed(seed, "init") % 2**63
        with process_generators(own):
            if torch.accelerator.is_available():  # elsewhere it would format three stacks for nothing
                torch.manual_seed(own)
            return self.build()

    @property
    def named(self) -> Named:
        """How a file names it."""
        return Named.of(self.build)


class _AsAllocated(TorchFunctionMode):
    """Leaves normal weights as allocated: on the device "meta" PyTorch would load its compiler to draw them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (nn.init.normal_, torch.Tensor.normal_):
            return args[0] if args else given["tensor"]
        return func(*args, **given)


@cache
def models() -> tuple[ModelInfo, ...]:
    """All models, with their parameter counts at a standard shape."""
    infos = []
    for name, model in _MODELS.items():
        with torch.device("meta"), _AsAllocated():
            network = model.builder(model.vocabulary or model.input_shape, model.classes)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        infos.append(
            ModelInfo(name, model.summary, model.kinds, model.input_shape, model.classes, model.vocabulary, parameters)
        )
    return tuple(infos)


def takes_images_only(name: str) -> bool:
    """Whether the model ``name`` takes images and nothing else, so that it matters which axis holds the channels."""
    return name in _MODELS and _MODELS[name].kinds == ("image",)


def default_model(input_shape: Shape, kind: InputKind) -> str:
    """The name of a sound first model for inputs of ``input_shape`` and ``kind``.

    McMahan's CNN for images (his perceptron where they are smaller than 4 pixels), the 1-D ResNet for signals,
    logistic regression for vectors, the Text-CNN for tokens.
    """
    if kind not in _AXES:
        raise unknown("input kind", kind, _AXES)
    if len(input_shape) != len(_AXES[kind]):
        raise ConfigError(
            f"an input of shape {tuple(input_shape)} is not {_described([kind])}: reshape it or name its kind"
        )
    if kind == "image":
        return "two-cnn" if min(input_shape[1:]) >= 4 else "two-nn"
    return {"vector": "logistic", "signal": "resnet1d", "tokens": "text-cnn"}[kind]


def _checked(
    name: str, input_shape: Shape, classes: int, vocabulary: int | None, options: Mapping[str, Any]
) -> tuple[_Model, Shape]:
    """The model ``name`` and its ``input_shape`` as a tuple of int, if it takes such inputs and options."""
    if name not in _MODELS:
        raise unknown("model", name, _MODELS)
    model = _MODELS[name]
    shape = _checked_shape(name, model, input_shape, vocabulary)
    if classes < 1:
        raise ConfigError(f"classes is {classes}: a model needs at least one output")
    valid = _options(model)
    for option in options:
        if option not in valid:
            if not valid:
                raise ConfigError(f"unknown option '{option}' of model '{name}': it has no options; leave it out")
            raise unknown(f"option of model '{name}'", option, valid)
    return model, shape


def _checked_shape(name: str, model: _Model, input_shape: Shape, vocabulary: int | None) -> Shape:
    """``input_shape`` as a tuple of int, if the model takes such inputs."""
    if not input_shape or any(not isinstance(size, Integral) or size < 1 for size in input_shape):
        raise ConfigError(
            f"input_shape is {input_shape}; give the sizes of one input without the batch, at least 1 each"
        )
    shape = tuple(int(size) for size in input_shape)
    takes = _described(model.kinds)
    if "tokens" in model.kinds:
        if vocabulary is None:
            raise ConfigError(f"model '{name}' takes token ids; give vocabulary, the number of distinct ids")
        if vocabulary < 1:
            raise ConfigError(f"vocabulary is {vocabulary}; give the number of distinct token ids, at least 1")
    elif vocabulary is not None:
        others = ", ".join(other for other, entry in _MODELS.items() if "tokens" in entry.kinds)
        raise ConfigError(f"model '{name}' takes inputs of kind {takes}, not token ids; use one of {others}")
    if len(shape) not in {len(_AXES[kind]) for kind in model.kinds}:
        raise ConfigError(
            f"model '{name}' takes inputs of kind {takes}, not of shape {shape}: reshape them or take another model"
        )
    return shape


def _described(kinds: Iterable[InputKind]) -> str:
    """For instance "signal (C, L) or image (C, H, W)"."""
    return " or ".join(f"{kind} ({', '.join(_AXES[kind])}{',' * (len(_AXES[kind]) == 1)})" for kind in kinds)


def _options(model: _Model) -> list[str]:
    parameters = inspect.signature(model.builder).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


@contextmanager
def _generator_of(seed: int | None) -> Iterator[None]:
    """Let PyTorch's CPU generator follow the stream ``init`` of ``seed`` inside, and put it back afterwards."""
    if seed is None:
        yield
        return
    with process_generators(stream_seed(seed, "init")):
        yield

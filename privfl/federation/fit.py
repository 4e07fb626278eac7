"""Whether model, loss and partition fit the data: found out by one pass over public rows, before any work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from privfl.data.dataset import Dataset
from privfl.data.label_noise import LabelNoise
from privfl.data.partitions import Partition
from privfl.data.targets import TaskKind, counted
from privfl.errors import ConfigError, PrivflError, brief
from privfl.federation.losses import loss_name
from privfl.federation.model_size import check_memory
from privfl.federation.shapes import channels_seem_last, shape_hint
from privfl.models import InputKind, NamedModel, OwnModel, default_model, takes_images_only
from privfl.models.flat_network import ALL_FROZEN, DENSE, Layout, frozen_parameters, trained_parameters
from privfl.privacy.door.precision import Precision, in_precision
from privfl.privacy.loss import Loss, is_coupled
from privfl.randomness import process_generators
from privfl.validation import said

ModelFactory = Callable[[int], nn.Module]
"""Builds the model from a seed; the same seed gives the same initial parameters."""

_LOSS = (
    "write it as loss(network, inputs, targets) -> [B], one term for each sample, such as "
    "F.cross_entropy(network(inputs), targets, reduction='none')"
)
_MODEL: dict[TaskKind, str] = {
    "classification": "give one that maps inputs [B, …] to logits [B, classes]",
    "regression": "give one that maps inputs [B, …] to predictions [B, values]",
    "multi-label": "give one that maps inputs [B, …] to logits [B, labels]",
    "next-token": "give one that maps token ids [B, L] to logits [B, L, vocabulary], such as 'next-token-lstm'",
}


def check_builder(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """``build``, if it is a function that builds a new model in every call.

    Raises:
        ConfigError: it is a model, needs arguments, or returns what it returned before or what cannot be trained.
    """
    if isinstance(build, nn.Module):
        raise ConfigError(
            f"model is a {type(build).__name__} object, and every seed and worker needs one of its own; give a "
            "function that builds it, model=lambda: …, or a name (`privfl list models`)"
        )
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise ConfigError(f"model is {said(build)}, which needs arguments ({error}); give model=lambda: …") from None
    except ValueError:
        pass  # something compiled, which does not tell its arguments
    with process_generators():
        first, second = build(), build()
    for one in (first, second):
        if not isinstance(one, nn.Module):
            raise ConfigError(f"model is {said(build)}, which returned {said(one)}; let it return a torch.nn.Module")
        _refuse_opaque(one, build)
    Layout.of(first)
    check_frozen(*(OwnModel(build)(0) for _ in range(2)) if frozen_parameters(first) else ())
    if not set(first.parameters()).isdisjoint(second.parameters()):
        raise ConfigError(f"model is {said(build)}, which returned the same parameters twice; let it build new ones")
    return build


def check_frozen(*networks: nn.Module) -> None:
    """Refuse ``networks`` of one model that differ in what is frozen, which no message carries from one to another.

    Raises:
        ConfigError: naming a parameter.
    """
    frozen = [frozen_parameters(network) for network in networks]
    for other in frozen[1:]:
        differ = frozen[0].keys() ^ other.keys() or {
            name for name, one in other.items() if not torch.equal(one.cpu(), frozen[0][name].cpu())
        }
        if differ:
            raise ConfigError(
                f"the model's frozen '{min(differ)}' comes out otherwise when the model is built again, and clients "
                "and server must have the same; load it from a file, or draw it by PyTorch's global generator"
            )


def _refuse_opaque(network: nn.Module, build: Callable[[], nn.Module]) -> None:
    """Refuse layers that nobody can look into, or that have no size yet."""
    for name, layer in network.named_modules():
        where = f"model is {said(build)}, " + (f"whose layer '{name}'" if name else "which")
        if isinstance(layer, torch.jit.ScriptModule):
            raise ConfigError(f"{where} is compiled by torch.jit; give the torch.nn.Module that it was made from")
        if any(isinstance(one, UninitializedParameter) for one in layer.parameters(recurse=False)):
            raise ConfigError(
                f"{where} is a {type(layer).__name__}, which has no size before it sees data; say its size"
            )


_MODELS: dict[TaskKind, dict[str, str]] = {
    "regression": {"logistic": "two-nn"},
    "next-token": {"text-cnn": "next-token-lstm"},
}
"""What stands in for the default model, which is made for classes."""


def refuse_classes(partition: Partition, label_noise: LabelNoise | None, kind: TaskKind) -> None:
    """Refuse what deals with the class of each row where there is none."""
    if partition.needs_classes:
        raise ConfigError(
            f"partition={said(partition)} deals rows out by their classes, and rows of a task of the kind {kind} have "
            "none; give clients=, or take IID, LogNormal or GivenSizes"
        )
    if label_noise is not None:
        raise ConfigError(f"label noise flips classes, and a task of the kind {kind} has none; leave it out")


def model_factory(
    dataset: Dataset, model: str | Callable[[], nn.Module] | None, options: dict[str, Any]
) -> tuple[ModelFactory, str]:
    """What builds ``model`` (a name, a function, ``None`` for the default) for ``dataset``, and what it is called.

    Raises:
        ConfigError: there is no such model, or it does not take such inputs or options.
    """
    shape = tuple(dataset.inputs.shape[1:])
    vocabulary = dataset.vocabulary
    if model is None:
        kinds: dict[int, InputKind] = {1: "vector", 2: "signal", 3: "image"}
        model = default_model(shape, "tokens" if vocabulary is not None else kinds.get(len(shape), "vector"))
        if dataset.kind in _MODELS and model in _MODELS[dataset.kind]:
            model = _MODELS[dataset.kind][model]
    if isinstance(model, str):
        try:
            named = NamedModel(model, shape, dataset.classes, vocabulary, options)
            check_memory(named)
        except ConfigError as error:
            if vocabulary is None and takes_images_only(model) and (hint := shape_hint(shape)):
                raise ConfigError(f"{error}{hint}") from error
            raise
        return named, model
    if options:
        raise ConfigError(f"model_options is {said(options)} and model {said(model)}; put the options into the model")
    inner = model.func if isinstance(model, partial) else model
    return OwnModel(check_builder(model)), getattr(inner, "__name__", type(inner).__name__)


def check_fit(
    network: nn.Module,
    name: str,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    outputs: tuple[int, ...],
    kind: TaskKind = "classification",
) -> None:
    """Try ``network`` and ``loss`` on public ``inputs`` [B, ...] and ``targets`` [B, ...], as if in an evaluation.

    Args:
        name: of the model, for messages.
        outputs: shape of what the network gives for one row. Only a classification's own loss may take what it likes.

    Raises:
        ConfigError: one of them fails, or answers in another shape.
    """
    mode, rows = network.training, len(inputs)
    device = next(network.parameters()).device
    wide = torch.get_default_dtype()
    mend = _MODEL[kind] + (shape_hint(inputs.shape[1:]) if channels_seem_last(inputs.shape[1:]) else "")
    if wide != torch.float32:
        mend = (
            f"PyTorch's default type is {wide}, in which models are built, and inputs are float32: call "
            "torch.set_default_dtype(torch.float32) before"
        )
    given = {"present": torch.ones(rows, dtype=torch.bool, device=device)} if is_coupled(loss) else {}
    network.eval()
    with torch.no_grad(), process_generators():
        if kind != "classification" or loss_name(loss) is not None:
            what = f"the model {name}, on inputs of shape {tuple(inputs.shape[1:])} and {counted(kind, outputs[-1])},"
            _try(what, mend, (rows, *outputs), network, inputs.to(device))
        what = f"the loss {getattr(loss, '__name__', type(loss).__name__)}(network, inputs, targets)"
        _try(what, _LOSS, (rows,), loss, network, inputs.to(device), targets.to(device), **given)
    network.train(mode)


def check_writes(network: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Refuse a ``network`` whose passes, in training mode, write parameters or buffers; it stays as it is.

    Raises:
        ConfigError: naming the layer.
    """
    mode, rows = network.training, len(inputs)
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    before = {name: value.detach().clone() for name, value in named.items()}
    given = {"present": torch.ones(rows, dtype=torch.bool, device=inputs.device)} if is_coupled(loss) else {}
    network.train()
    try:
        with process_generators(), torch.enable_grad():
            trained = trained_parameters(network).values()
            torch.autograd.grad(loss(network, inputs, targets, **given).sum(), [*trained], allow_unused=True)
    except RuntimeError:
        pass  # what cannot be trained is refused where it is trained, with its own reason
    finally:
        network.train(mode)
    now = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name, value in before.items():
        if name in now and now[name] is named[name] and torch.equal(now[name], value):
            continue
        with torch.no_grad():
            named[name].copy_(value)
        path, _, own = name.rpartition(".")
        layer = dict(network.named_modules())[path]
        where = f"layer '{path}'" if path else "the model itself"
        raise ConfigError(
            f"{where} ({type(layer).__name__}) writes its '{own}' when it is used, past every mechanism; compute it "
            "anew in forward instead"
        )


def check_trains(
    network: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, precision: Precision = "float32"
) -> list[str]:
    """Refuse a ``network`` and a ``loss`` without a gradient that could train them; both stay as they are.

    Returns:
        What the user should know: which tensors ask for a gradient and are no parameters of the network.

    Raises:
        ConfigError: every parameter is frozen, the loss depends on none, a gradient is sparse, or the two cannot be
            computed in ``precision``.
    """
    named = trained_parameters(network)
    if not named:
        raise ConfigError(ALL_FROZEN)
    mode, rows = network.training, len(inputs)
    given = {"present": torch.ones(rows, dtype=torch.bool, device=inputs.device)} if is_coupled(loss) else {}
    network.train()
    try:
        with process_generators(), torch.enable_grad():
            terms = in_precision(loss, precision, inputs.device)(network, inputs, targets, **given)
            depends, strangers = terms.requires_grad, _strangers(terms, named.values())
            found = torch.autograd.grad(terms.sum(), [*named.values()], allow_unused=True) if depends else ()
    except RuntimeError as error:
        if precision != "bfloat16":
            return []  # what cannot be trained at all is refused where it is trained, with its own reason
        raise ConfigError(
            f"the model or its loss cannot be computed in {precision} ({brief(str(error), 200)}); take precision = "
            "'float32', or a layer that can"
        ) from error
    finally:
        network.train(mode)
    if not depends:
        raise ConfigError(
            "the loss has no gradient at the model's parameters (it is a constant, or detached from them), so nothing "
            "could be trained; compute it from what network(inputs) returns, without .detach() and no_grad"
        )
    for name, gradient in zip(named, found, strict=True):
        if gradient is not None and gradient.layout != torch.strided:
            raise ConfigError(f"the gradient of the model's '{name}' is sparse; {DENSE}")
    if not strangers:
        return []
    own = dict(loss.named_parameters()) if isinstance(loss, nn.Module) else {}
    names = {id(one): f"'{name}' of the loss" for name, one in own.items()}
    which = ", ".join(names.get(id(one), f"one of shape {tuple(one.shape)}") for one in strangers)
    return [
        f"The loss depends on tensors that ask for a gradient and are no parameters of the model ({which}): they are "
        "never trained; make them parameters of the model, or let them ask for none (requires_grad_(False))."
    ]


def _strangers(terms: Tensor, trained: Iterable[Tensor]) -> list[Tensor]:
    """The leaves that a gradient of ``terms`` would reach besides those that are ``trained``."""
    known = {id(one) for one in trained}
    found: dict[int, Tensor] = {}
    waiting, seen = [terms.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and id(leaf) not in known:
            found[id(leaf)] = leaf
        waiting += [one for one, _ in node.next_functions]
    return list(found.values())


def _try(what: str, mend: str, shape: tuple[int, ...], function: Callable[..., Any], *given: Any, **named: Any) -> None:
    """Refuse a ``function`` that fails, or whose answer is no floating tensor of ``shape``."""
    try:
        found = function(*given, **named)
    except PrivflError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{what} fails with {type(error).__name__}: {reason}; {mend}") from error
    if not isinstance(found, Tensor) or found.shape != shape or not found.is_floating_point():
        answer = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else said(found)
        raise ConfigError(f"{what} gives {answer} for {shape[0]} samples, where floats {shape} are needed; {mend}")

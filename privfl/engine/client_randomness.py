"""What models, losses and algorithms of one's own draw through PyTorch's functions, drawn for one client instead.

``F.dropout``, the drop-out inside of ``nn.MultiheadAttention`` and between the layers of an LSTM, and ``torch.rand``
draw from generators that a whole process shares. Then no seed repeats a run that several workers train, and one client
more or one example more moves what all others draw. While a client trains, these functions draw from its own stream,
drop-out as layers do (:mod:`privfl.engine.dropout`), so that it is the same in either engine, and secret under DP-SGD.

Under ``torch.func.vmap`` drop-out is served, and for single rows what :mod:`privfl.engine.row_numbers` draws; other
random functions fail there.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor, maybe_current_level
from torch.overrides import TorchFunctionMode

from privfl.engine.dropout import StreamDropout, give_dropout_streams, outside_of_graphs
from privfl.engine.row_numbers import numbers_of, uniform
from privfl.federation.task import Task
from privfl.privacy.clipping.guard import row_in_turn
from privfl.privacy.clipping.known import known_function, known_ranks
from privfl.privacy.door.precision import matrix_products
from privfl.privacy.loss import is_coupled
from privfl.privacy.noise.source import NoiseStream
from privfl.randomness import process_generators

NOT_REPEATED = (
    "the model or its loss draws from a random generator that the whole process shares, so another run with the same "
    "seed gives other numbers; draw with PyTorch's functions, without a generator of your own, or leave it out"
)
NOT_STEADY = (
    "in evaluation mode the model or its loss gives other numbers each time it sees the same rows, and so do the "
    "metrics; draw in training mode only (if network.training, F.dropout(x, training=self.training))"
)
SELU_FLOOR = -1.7580993408473766
"""−λα of the SELU (Klambauer et al., "Self-Normalizing Neural Networks", NeurIPS 2017, section 2)."""


class ClientRandomness(TorchFunctionMode):
    """Random functions of PyTorch draw from the stream of :attr:`layer` while this is entered, in this thread alone.

    Drop-out gets the masks that a layer in its place would get. Numbers come from a generator of the same stream, of
    which one is made for each client and device.
    """

    def __init__(self, network: nn.Module | None = None) -> None:
        """``network`` is what draws: where ``torch.compile`` makes graphs of it, masks are made outside of them."""
        super().__init__()
        apart = None if network is None else outside_of_graphs(network)
        if apart is not None:
            self.dropped = apart(self.dropped)  # type: ignore[method-assign]
        self.layer = StreamDropout(0.0, None)
        """Draws the masks; whoever sets the streams of drop-out layers sets this one's too."""
        self.asked = False
        """Whether a random function was called."""
        self._generators: tuple[NoiseStream | None, dict[str, torch.Generator]] = None, {}
        self._heads = 1

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What ``function`` gives, with random numbers of the client."""
        serve = _SERVED.get(function)
        if serve is None:
            return function(*args, **(kwargs or {}))
        return serve(self, function, *args, **(kwargs or {}))

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """While entered, for steps that are known to call no random function, these are not looked for."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]

    def draw_alone(self, stream: NoiseStream) -> None:
        """Let what is drawn before a stack is trained come from the ``stream`` of the client whose turn it is."""
        self.layer.generator, self.layer.stack = stream, None

    def dropped(self, inputs: Tensor, probability: float, noise_dims: int | None = None) -> Tensor:
        """``inputs`` [B, ...] after drop-out; the leading ``noise_dims`` dimensions get masks of their own."""
        self.asked = True
        self.layer.probability, self.layer.noise_dims = probability, noise_dims
        if self._heads > 1 and inputs.dim() == 3 and len(inputs) % self._heads == 0:  # [B · heads, L, S]
            apart: Tensor = self.layer(inputs.reshape(-1, self._heads, *inputs.shape[1:]))
            return apart.flatten(0, 1)
        row = row_in_turn()
        if row is not None and not _of_rows(inputs):  # the same for all rows, but dropped for each
            return inputs * self._factors_of_row(row, inputs)
        found: Tensor = self.layer(inputs)
        return found

    def _factors_of_row(self, row: Tensor, inputs: Tensor) -> Tensor:
        """What ``inputs``, in which no row is, are multiplied with for the ``row`` in turn."""
        layer = self.layer
        dims = inputs.dim() if layer.noise_dims is None else layer.noise_dims
        shape = (*inputs.shape[:dims], *(1 for _ in inputs.shape[dims:]))
        kept = uniform(row, shape, layer) >= layer.probability
        return kept.to(inputs.dtype) * (layer.scale if layer.probability < 1 else 0.0)

    def of_row(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
        """What ``function`` draws for the one row that is seen under ``vmap``; ``None`` if that is not served."""
        row = row_in_turn()
        if row is None or maybe_current_level() is None:
            return None
        self.asked = True
        others = {name: value for name, value in named.items() if name != "generator"}
        return numbers_of(row, self.layer, function, args, others)

    def generator(self, device: torch.device | str | None) -> torch.Generator | None:
        """The client's generator for ``device``; ``None`` where numbers are drawn for many at once, or for nobody."""
        self.asked = True
        stream = self.layer.generator
        if stream is None or self.layer.stack is not None or maybe_current_level() is not None:
            return None
        if self._generators[0] is not stream:
            self._generators = stream, {}
        name = str(torch.device(device or torch.get_default_device()))
        own = self._generators[1]
        if name not in own:
            own[name] = torch.Generator(name).manual_seed(int(stream.words(1)[0] >> np.uint64(1)))
        return own[name]


@cache
def _asking_no_mode(function: FunctionType) -> FunctionType:
    """``function`` of ``torch.nn.functional``, which does its work at once instead of asking modes to do it."""
    never = dict.fromkeys((name for name in function.__globals__ if name.startswith("has_torch_function")), _never)
    made = FunctionType(function.__code__, {**function.__globals__, **never}, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _never(*_: Any) -> bool:
    return False


def _of_rows(values: Tensor) -> bool:
    """Whether ``values`` stand for one of many."""
    while is_functorch_wrapped_tensor(values):
        if is_batchedtensor(values):
            return True
        values = get_unwrapped(values)
    return False


def _emptied(own: ClientRandomness, function: Any, *args: Any, **named: Any) -> Any:
    """An empty tensor, of every row where there are rows; no random number is asked for yet."""
    row = row_in_turn()
    found = None if row is None or "out" in named else numbers_of(row, own.layer, function, args, named)
    return function(*args, **named) if found is None else found


def _dropout(
    own: ClientRandomness, function: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    each = None if function is F.dropout else 2
    if not training or not 0 < p <= 1 or (each and input.dim() <= each):
        found: Tensor = function(input, p, training, inplace)
        return found
    dropped = own.dropped(input, p, each)
    return input.copy_(dropped) if inplace else dropped


def _torch_dropout(own: ClientRandomness, function: Any, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropout(own, F.dropout, input, p, train, function is torch.dropout_)


def _alpha_dropout(
    own: ClientRandomness, function: Any, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Drop-out to the value that SELU has far below zero, scaled and shifted to keep mean and variance."""
    each = None if function in (F.alpha_dropout, torch.alpha_dropout) else 2
    if not training or not 0 < p < 1 or (each and input.dim() <= each):
        found: Tensor = function(input, p, training)
        return input.copy_(found) if inplace else found
    kept = own.dropped(torch.ones_like(input), p, each) * (1 - p)
    scale = ((1 - p) * (1 + p * SELU_FLOOR**2)) ** -0.5
    dropped = scale * (input * kept + SELU_FLOOR * (1 - kept) - SELU_FLOOR * p)
    return input.copy_(dropped) if inplace else dropped


def _attention(
    own: ClientRandomness,
    function: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Tensor:
    """Attention whose weights, which it gives to an identity as ``value``, pass drop-out before they are used."""
    if not 0 < dropout_p <= 1:
        found: Tensor = function(query, key, value, attn_mask, dropout_p, is_causal, **named)
        return found
    places = key.shape[-2]
    identity = torch.eye(places, dtype=key.dtype, device=key.device).expand(*key.shape[:-2], places, places)
    weights = function(query, key, identity, attn_mask, 0.0, is_causal, **named)
    if named.get("enable_gqa"):
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    return own.dropped(weights, dropout_p) @ value


def _heads(
    own: ClientRandomness,
    function: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    *args: Any,
    **named: Any,
) -> Any:
    """Multi-head attention, whose weights of all heads may lie one after another along the first dimension."""
    before, own._heads = own._heads, num_heads
    try:
        with own:
            return _asking_no_mode(function)(query, key, value, embed_dim_to_check, num_heads, *args, **named)
    finally:
        own._heads = before


def _inside(own: ClientRandomness, function: Any, *args: Any, **named: Any) -> Any:
    """A function that calls random ones."""
    with own:
        return _asking_no_mode(function)(*args, **named)


def _recurrent(own: ClientRandomness, function: Any, *args: Any) -> Any:
    """A recurrent network layer by layer, with drop-out between them; packed sequences are left to PyTorch."""
    if len(args) != 9 or not isinstance(args[3], bool):
        own.asked = own.asked or any(isinstance(one, float) and one > 0 for one in args)
        return function(*args)
    values, start, weights, biased, layers, probability, training, both_ways, batch_first = args
    if layers == 1 or not training or not 0 < probability <= 1:
        return function(*args)
    ways, each, ends = 1 + both_ways, len(weights) // layers, []
    for layer in range(layers):
        part = slice(layer * ways, (layer + 1) * ways)
        begin = start[part] if isinstance(start, Tensor) else tuple(one[part] for one in start)
        own_weights = weights[layer * each : (layer + 1) * each]
        values, *end = function(values, begin, own_weights, biased, 1, 0.0, training, both_ways, batch_first)
        ends.append(end)
        if layer < layers - 1:
            rows_first = values if batch_first else values.transpose(0, 1)
            dropped = own.dropped(rows_first, probability)
            values = dropped if batch_first else dropped.transpose(0, 1)
    return values, *(torch.cat(parts) for parts in zip(*ends, strict=True))


def _numbers(own: ClientRandomness, function: Any, *args: Any, **named: Any) -> Any:
    """A function that takes a generator."""
    if named.get("generator") is None:
        found = own.of_row(function, args, named)
        if found is not None:
            return found
        first = args[0] if args else named.get("input")
        device = first.device if isinstance(first, Tensor) else named.get("device")
        generator = own.generator(device)
        if generator is not None:
            named["generator"] = generator
    return function(*args, **named)


def _numbers_like(own: ClientRandomness, function: Any, input: Tensor, *args: Any, **named: Any) -> Any:
    """A function that takes a generator in no version, or in some: the same numbers, written to an empty tensor."""
    found = None if named.get("generator") is not None else own.of_row(function, (input, *args), named)
    if found is not None:
        return found
    generator = None if named.get("generator") is not None else own.generator(named.get("device") or input.device)
    if generator is None:
        return function(input, *args, **named)
    wanted = named.pop("requires_grad", False)
    ends = [named.pop(name) for name in ("low", "high") if name in named]
    empty = torch.empty_like(input, **named)
    if function is torch.randint_like:
        low, high = [0, *args, *ends][-2:]
        found = empty.random_(low, high, generator=generator)
    else:
        found = (empty.uniform_ if function is torch.rand_like else empty.normal_)(generator=generator)
    return found.requires_grad_() if wanted else found


_GIVEN_A_GENERATOR = (
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.bernoulli, torch.normal, torch.multinomial),
    *(torch.poisson, torch.binomial, Tensor.bernoulli, Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_),
    *(Tensor.random_, Tensor.exponential_, Tensor.geometric_, Tensor.cauchy_, Tensor.log_normal_, Tensor.multinomial),
)
_SERVED: dict[Any, Callable[..., Any]] = {
    torch.empty: _emptied,
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), _dropout),
    **dict.fromkeys((torch.dropout, torch.dropout_), _torch_dropout),
    **dict.fromkeys((F.alpha_dropout, F.feature_alpha_dropout), _alpha_dropout),
    **dict.fromkeys((torch.alpha_dropout, torch.feature_alpha_dropout), _alpha_dropout),
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _heads,
    F.gumbel_softmax: _inside,
    **dict.fromkeys((torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu), _recurrent),
    **dict.fromkeys(_GIVEN_A_GENERATOR, _numbers),
    **dict.fromkeys((torch.rand_like, torch.randn_like, torch.randint_like), _numbers_like),
}
"""What takes the place of each random function: called with the randomness, the function and its arguments."""


def randomness_of(network: nn.Module, task: Task) -> tuple[bool, list[str]]:
    """Whether ``network``, the task's model, or its loss calls what :class:`ClientRandomness` serves, and what to note.

    Found out by passes over public rows; ``network`` is not to be used afterwards.
    """
    inputs, targets = task.probe(3)
    if inputs.dim() in known_ranks(network) and known_function(task.loss):
        return False, []
    own, notes = ClientRandomness(network), []
    own.layer.generator = NoiseStream(bytes(32))
    given = {"present": torch.ones(3, dtype=torch.bool, device=inputs.device)} if is_coupled(task.loss) else {}
    for layer in give_dropout_streams(network.to(inputs.device)):  # which draw by themselves
        layer.generator = own.layer.generator
    with torch.no_grad(), matrix_products("float32"), process_generators(), own:
        try:
            before, loss = _shared(), copy.deepcopy(task.loss)  # it may count its calls
            loss(network.train(), inputs, targets, **given)
            if any(np.any(one != other) for one, other in zip(before, _shared(), strict=True)):
                notes.append(NOT_REPEATED)
            once, again = (loss(network.eval(), inputs, targets, **given) for _ in range(2))
            if not torch.allclose(once, again, rtol=1e-3, atol=1e-5, equal_nan=True):
                notes.append(NOT_STEADY)
        except Exception:  # whatever ails it shows where it is run as it is
            return own.asked, notes
    return own.asked, notes


def _shared() -> list[Any]:
    """The state of the generators that a whole process shares."""
    on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    states = [one.numpy() for one in (torch.get_rng_state(), *on_cuda)]
    numpys: Any = np.random.get_state()  # noqa: NPY002
    return [*states, numpys[1], numpys[2], random.getstate()]

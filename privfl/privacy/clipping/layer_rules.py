"""Per-sample gradient rules, one per layer type; here those that never form a gradient, and who serves which layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from privfl.privacy.clipping.factors import (
    Clipping,
    bounded_norms,
    exact_products,
    full_products,
    norms_along,
    row_norms,
)
from privfl.privacy.clipping.formed_rules import ConvolutionRule, FormedRule, GroupNormRule, LayerNormRule
from privfl.privacy.clipping.rule import Calls, Formed, Places, SumRule
from privfl.products import steady_product, write_weight_gradient


class Inputs:
    """What several linear layers compute of the same input: norms of its steps, and their products.

    Attention hands one input to three layers. An input is recognised by where it lies, how, and how often it was
    written to; it is kept as long as anything of it is, so its memory cannot become another's.
    """

    def __init__(self) -> None:
        self._held: tuple[object, ...] = ()
        self._made: dict[str, Tensor] = {}

    def norms(self, values: Tensor) -> Tensor:
        """The norms [...] of ``values`` [..., n] in float64."""
        return self._of(values, "norms", norms_along)

    def gram(self, values: Tensor) -> Tensor:
        """The products [B, T, T] in float64 of the steps of ``values`` [B, T, n]."""
        return self._of(values, "gram", lambda values: _gram(values.double()))

    def forget(self) -> None:
        """Hold nothing beyond a pass."""
        self._held, self._made = (), {}

    def _of(self, values: Tensor, what: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        place = (values.data_ptr(), values.shape, values.stride(), values.dtype, values._version)
        if self._held[1:] != place:
            self._held, self._made = (values, *place), {}
        if what not in self._made:
            self._made[what] = make(values)
        return self._made[what]


class LinearRule(SumRule):
    """``nn.Linear`` on [B, in] or [B, ..., in]; no per-sample gradient is formed when norms come cheaper without."""

    takes_rows_first: ClassVar[bool] = False
    forms_rows: ClassVar[bool] = True

    def __init__(self, layer: nn.Module, trained: frozenset[str]) -> None:
        self.trained = trained
        self.sizes: Tensor | None = None
        self.shared = Inputs()
        """One for all layers of a network, where somebody makes it so."""

    def receive(self, calls: Calls | Formed, *, apart: bool = False) -> None:
        assert isinstance(calls, list)
        if len(calls) == 1 and calls[0][0].dim() == 2:
            self.inputs, self.backs = calls[0]
            return
        flat = [(a.reshape(len(a), -1, a.shape[-1]), g.reshape(len(g), -1, g.shape[-1])) for a, g in calls]
        a, g = flat[0] if len(flat) == 1 else (torch.cat(part, dim=1) for part in zip(*flat, strict=True))
        self.inputs, self.backs = (a[:, 0], g[:, 0]) if a.shape[1] == 1 else (a, g)

    @full_products
    def squared_norms(self) -> Tensor:
        a, g, weight, bias = self.inputs, self.backs, "weight" in self.trained, "bias" in self.trained
        back = norms_along(g)
        if weight:
            given = norms_along(a) if a.dim() == 2 else self.shared.norms(a)
            lengths = back * (_with_one(given) if bias else given)
        else:
            lengths = back
        self.sizes = None
        if a.dim() == 2:
            return lengths.square()
        self.sizes = lengths.sum(1)
        squares = self._weight_squares(given, back) if weight else 0
        if bias:
            squares = squares + row_norms(g.sum(1)).square()
        assert isinstance(squares, Tensor)
        return bounded_norms(squares.sqrt(), self.sizes, a.shape[1], a.dtype).square()

    def _weight_squares(self, given: Tensor, back: Tensor) -> Tensor:
        """Squared norms [B] of Σ_t g_t⊗a_t, where a_t and g_t have the norms ``given`` and ``back`` [B, T]."""
        a, g = self.inputs, self.backs
        if a.shape[1] * (a.shape[2] + g.shape[2]) >= a.shape[2] * g.shape[2]:
            return row_norms(steady_product(g.mT, a)).square()
        # Gram matrices over time are smaller than the gradients
        if a.dtype != torch.float64:
            return (self.shared.gram(a) * _gram(g.double())).sum((1, 2)).clamp_min(0)
        scales = [lengths.amax(1).clamp_min(torch.finfo(a.dtype).tiny) for lengths in (given, back)]
        grams = [_gram(values / scale[:, None, None]) for values, scale in zip((a, g), scales, strict=True)]
        return ((grams[0] * grams[1]).sum((1, 2)).clamp_min(0).sqrt() * scales[0] * scales[1]).square()

    @full_products
    def write_clipped_sum(self, clipping: Clipping, places: Places, *, by_rows: bool = False) -> None:
        clients, steps = next(iter(places.values())).shape[0], self.inputs.shape[1] if self.inputs.dim() == 3 else 1
        for exact in clipping.regimes(places, self.sizes):
            a = clipping.kept(self.inputs).flatten(0, -2)
            g = clipping.scaled(self.backs, exact=exact).flatten(0, -2)
            if "weight" in places and clients == 1 and not exact:
                write_weight_gradient(g, a, places["weight"][0])
            elif "weight" in places:
                parts = g.view(clients, -1, g.shape[-1]), a.reshape(clients, -1, a.shape[-1])
                found = exact_products(*parts, steps) if exact else steady_product(parts[0].mT, parts[1])
                places["weight"].copy_(found)
            if "bias" in places and exact:
                backs = g.view(clients, -1, g.shape[-1])
                places["bias"].copy_(exact_products(torch.ones_like(backs[..., :1]), backs, steps)[:, 0])
            elif "bias" in places:
                torch.sum(g.view(clients, -1, g.shape[-1]), 1, out=places["bias"])
        self.shared.forget()
        del self.inputs, self.backs

    def gradients(self) -> dict[str, Tensor]:
        a, g = self.inputs, self.backs
        del self.inputs, self.backs
        formed: dict[str, Tensor] = {}
        if "weight" in self.trained:
            formed["weight"] = (g[:, :, None] * a[:, None] if a.dim() == 2 else steady_product(g.mT, a)).flatten(1)
        if "bias" in self.trained:
            formed["bias"] = g if g.dim() == 2 else g.sum(1)
        return formed

    def write_sum(self, calls: Calls, places: Places) -> None:
        for place in places.values():
            if len(calls) != 1:
                place.zero_()
        for given, back in calls:
            a, g = given.reshape(-1, given.shape[-1]), back.reshape(-1, back.shape[-1])
            if "weight" in places and len(calls) == 1:
                write_weight_gradient(g, a, places["weight"][0])
            elif "weight" in places:
                places["weight"][0].addmm_(g.T, a)
            if "bias" in places and len(calls) == 1:
                torch.sum(g, 0, out=places["bias"][0])
            elif "bias" in places:
                places["bias"][0].add_(g.sum(0))


class EmbeddingRule:
    """``nn.Embedding`` on token ids [B, ...]: a sample's gradient rows of equal tokens add up before the norm."""

    takes_rows_first: ClassVar[bool] = False
    forms_rows: ClassVar[bool] = False  # a device adds up equal tokens in an order of its own

    def __init__(self, layer: nn.Module, trained: frozenset[str]) -> None:
        assert isinstance(layer, nn.Embedding)
        self.padding = layer.padding_idx

    def receive(self, calls: Calls | Formed, *, apart: bool = False) -> None:
        assert isinstance(calls, list)
        flat = [(ids.reshape(len(ids), -1), back.reshape(len(ids), -1, back.shape[-1])) for ids, back in calls]
        self.ids, self.backs = (torch.cat(part, dim=1) for part in zip(*flat, strict=True))
        if self.padding is not None:
            self.backs = self.backs.masked_fill((self.ids == self.padding)[..., None], 0)

    def squared_norms(self) -> Tensor:
        same = self.ids[:, :, None] == self.ids[:, None, :]
        lengths = norms_along(self.backs)
        self.sizes = ((lengths[:, :, None] * lengths[:, None, :]) * same).sum((1, 2)).sqrt()
        norms = (_gram(self.backs.double()) * same).sum((1, 2)).clamp_min(0).sqrt()
        return bounded_norms(norms, self.sizes, self.ids.shape[1], self.backs.dtype).square()

    def write_clipped_sum(self, clipping: Clipping, places: Places, *, by_rows: bool = False) -> None:
        place = places["weight"]
        ids = self.ids.view(len(place), -1)
        for exact in clipping.regimes(places, self.sizes):
            rows = clipping.scaled(self.backs, exact=exact)
            sums = place.zero_() if rows.dtype == place.dtype else torch.zeros_like(place, dtype=rows.dtype)
            sums.scatter_add_(1, ids[..., None].expand(-1, -1, rows.shape[-1]), rows.reshape(*ids.shape, -1))
            if sums is not place:
                place.copy_(sums)
        del self.ids, self.backs

    def gradients(self) -> dict[str, Tensor]:
        raise AssertionError("the gradients of an embedding's rows are not formed")


def _with_one(lengths: Tensor) -> Tensor:
    """√(lengths² + 1): norms of inputs, with the one that a bias is multiplied with.

    On a CPU by operations that round a number alike wherever it stands (:mod:`privfl.privacy.clipping.placement`),
    which ``hypot`` does not.
    """
    if lengths.device.type != "cpu":
        return torch.hypot(lengths, torch.ones_like(lengths))
    return lengths.square().add_(1).sqrt_()


def _gram(values: Tensor) -> Tensor:
    """Products [B, T, T] of the steps of ``values`` [B, T, n]."""
    return steady_product(values, values.mT)


AnyRule = type[LinearRule] | type[FormedRule] | type[EmbeddingRule]
_RULES: tuple[tuple[type[nn.Module], AnyRule], ...] = (
    (nn.Linear, LinearRule),
    (nn.Conv1d, ConvolutionRule),
    (nn.Conv2d, ConvolutionRule),
    (nn.Conv3d, ConvolutionRule),
    (nn.GroupNorm, GroupNormRule),
    (nn.LayerNorm, LayerNormRule),
    (nn.Embedding, EmbeddingRule),
)


def rule_for(layer: nn.Module) -> AnyRule | None:
    """The rule of ``layer``'s type, ``None`` for a layer whose per-sample gradients need ``vmap``."""
    return next((rule for kind, rule in _RULES if isinstance(layer, kind)), None)

"""The order of a client's words: which word stands where, from the first layers of an encoder with positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.attack import Attack, Needs
from attacks.auxiliary import Auxiliary
from attacks.metrics.measure import Measure, proportion
from attacks.observations.messages import updates
from attacks.result import AttackResult
from attacks.words import frequencies
from privfl.errors import ConfigError
from privfl.models.distilbert import Encoder
from privfl.models.flat_network import Layout
from privfl.privacy.accounting.release import Observer
from privfl.schema import plain
from privfl.simulation.transcript import SeenRound, Transcript
from privfl.validation import check_count

FREQUENCY = "how often public texts have it there"
ROUNDING = 2.0**-24
"""Half a unit in the last place of float32, over the number: what a parameter loses when a step is added to it."""


@dataclass(frozen=True)
class OrderGuess:
    """How likely each token is to stand at each place, [L, V], what the null says of it, and which token is none."""

    scores: Tensor
    null: Tensor
    padding: int


@dataclass(frozen=True)
class WordOrder(Attack):
    """Which word stands at which place of a client's texts, for ``distilbert``, from its last update that was seen.

    The gradient of the first block's query, key or value weight is Σ δ xᵀ over the tokens, x a word and its place,
    embedded and normalised. Where fewer tokens than the model's width were read, each such x lies in the span of the
    rows, and most other words at that place do not: the span check of Petrov, Dimitrov, Baader, Müller and Vechev,
    "DAGER: Exact Gradient Inversion for Large Language Models" (NeurIPS 2024). Words and places to try are the rows of
    the two embeddings that moved. Differs from the paper: the three weights are read together; directions count by
    how far they stand above the rounding of the weights, which are sent as differences of float32; and which
    text a word belongs to, which the paper tells by the second block, is not asked. Nor is a word told from one that is
    there, if true ones make it up: v and u at one place and u at another put v at the other into the span.

    Of one text the order is in the embeddings alone, and no span is asked: every token sends the same gradient
    to the row of its word and to that of its place, so the rows of words are sums of the rows of places, and solving
    for which gives the text. This needs no second block, nor drop-out to be off, and goes through local steps.

    Of several texts it takes one local step without drop-out, and a second block: of a single one only the first
    token is read on, so the span has a direction or two per head and text. Padding is looked up but attended by nobody,
    moves no row and is not judged. Noise moves every row and fills the span; the attack then gives up, and shows its
    null: the words by how often public texts have them at that place.

    The judge needs ``truth["tokens_at"]`` int64 [texts, L].

    Args:
        client: whose texts; ``None`` for everybody's.
        texts: how many texts the update is of.
    """

    name: ClassVar[str] = "word-order"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("tokens_at",))
    needs_classes: ClassVar[bool] = False
    client: int | None = 0
    texts: int = 1

    def __post_init__(self) -> None:
        check_count(f"{self.name}'s texts", self.texts)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> OrderGuess:
        """A score for every word at every place.

        Raises:
            ConfigError: the task is none of texts, the model has no positions or drops inputs out of several texts, or
                no single update was seen.
        """
        size = seen.facts.vocabulary
        if size is None:
            raise ConfigError("the inputs are no token ids, so there are no words to order; attack a task of texts")
        moment, update = self._last(seen)
        network = seen.network(moment.broadcast["parameters"])
        prefix, encoder = encoder_of(network)
        if self.texts > 1 and encoder.dropout.p > 0:
            raise ConfigError(
                f"the model has dropout = {encoder.dropout.p:g}, which takes the inputs of several texts out of the "
                "span; attack a run whose model_options have dropout = 0, or a client of one text"
            )
        public = auxiliary.need_public().inputs
        null = by_place(public, size, encoder.padding)
        moved = {name: part.double() for name, part in Layout.of(network).named_views(update).items()}
        words, places = (moved[f"{prefix}{name}.weight"] for name in ("words", "places"))
        places = places[: public.shape[1]]
        there, at = words.any(1).nonzero()[:, 0], places.any(1).nonzero()[:, 0]
        scores = null.clone()
        if 0 < len(there) < size:  # noise moves all rows
            found: Tensor | None
            if self.texts == 1:
                found = sums_of_places(words[there], places[at], rounding(encoder.places.weight))
            else:
                names = [f"{prefix}blocks.0.attention.{part}.weight" for part in ("query", "key", "value")]
                noise = rounding(torch.stack([network.get_parameter(name) for name in names]))
                found = span_check(encoder, torch.cat([moved[name] for name in names]), there, at, noise)
            if found is not None:
                scores[at] = torch.full_like(scores[at], -torch.inf).index_copy_(1, there, found.to(scores.dtype))
        return OrderGuess(scores, null, encoder.padding)

    def _last(self, seen: Transcript) -> tuple[SeenRound, Tensor]:
        """The last round in which a single update of the client was seen, and that."""
        for place in reversed(range(len(seen))):
            sent = [
                update for members, update in updates(seen[place]) if self.client is None or members == (self.client,)
            ]
            if len(sent) == 1:
                return seen[place], sent[0]
        raise ConfigError(f"no single update of client {self.client} was seen in {len(seen)} rounds; name another")

    def judge(self, guess: OrderGuess, auxiliary: Auxiliary, seconds: float) -> AttackResult:
        """Shares of the words that are found at their place, and of the texts of which all are."""
        truth = auxiliary.answer("tokens_at")
        return AttackResult(
            attack=self.name,
            primary="placed",
            metrics=measures(guess.scores, truth, guess.padding),
            nulls={FREQUENCY: measures(guess.null, truth, guess.padding)},
            seconds=seconds,
            units=int((truth != guess.padding).sum()),
            unit="word",
            settings=plain(self),
        )


def encoder_of(network: nn.Module) -> tuple[str, Encoder]:
    """The encoder with positions of a ``network``, and how the names of its parameters begin.

    Raises:
        ConfigError: there is none.
    """
    for name, module in network.named_modules():
        if isinstance(module, Encoder):
            return f"{name}." if name else "", module
    raise ConfigError("the model has no positions that are learnt, so no order to read; attack a run of 'distilbert'")


def by_place(texts: Tensor, vocabulary: int, padding: int) -> Tensor:
    """Log-shares of ``texts`` int64 [n, L] with each token at each place, float32 [L, vocabulary].

    One more text is counted whose words are as frequent everywhere as they are anywhere, and padding as none.
    """
    counts = torch.zeros(texts.shape[1], vocabulary).scatter_add_(1, texts.T, torch.ones(texts.T.shape))
    shares = (counts + frequencies(texts, vocabulary).float()) / (len(texts) + 1)
    shares[:, padding] = 0
    return shares.log()


def rounding(weight: Tensor) -> float:
    """Standard deviation, at most, of what an update of a float32 ``weight`` loses of each number."""
    return ROUNDING * float(weight.detach().double().square().mean().sqrt())


def sums_of_places(words: Tensor, places: Tensor, noise: float) -> Tensor:
    """How often each of ``words`` [v, d] counts each of ``places`` [p, d], as the sum of which it arose; [p, v]."""
    edge = noise * (places.shape[0] ** 0.5 + places.shape[1] ** 0.5)  # the largest singular value of such noise
    found: Tensor = (words @ torch.linalg.pinv(places, atol=edge, rtol=0.0)).T
    return found


def span_check(encoder: Encoder, gradient: Tensor, words: Tensor, places: Tensor, noise: float) -> Tensor | None:
    """How near the input of each of ``words`` [v] at each of ``places`` [p] is to the row space of a ``gradient``.

    Args:
        encoder: that embeds them, as it was when the gradient was taken.
        gradient: of weights [m, d] that see the inputs.
        words, places: rows of the embeddings.
        noise: standard deviation of the error of each number.

    Returns:
        Minus the share of each input's energy that lies outside, [p, v]; ``None`` where the rows span everything.
    """
    _, sizes, directions = torch.linalg.svd(gradient, full_matrices=False)
    outside = noise**2 * len(gradient) / (sizes.square() + noise**2 * len(gradient))
    if not bool((outside > 0.5).any()):
        return None
    norm = encoder.embedded
    looked_up = encoder.words.weight.detach()[words].double()
    found = []
    for place in encoder.places.weight.detach()[places].double():
        x = F.layer_norm(
            looked_up + place,
            norm.normalized_shape,
            norm.weight.detach().double(),
            norm.bias.detach().double(),
            norm.eps,
        )
        found.append(-((x @ directions.T).square() @ outside) / x.square().sum(1))
    return torch.stack(found)


def measures(scores: Tensor, truth: Tensor, padding: int) -> dict[str, Measure]:
    """Of ``scores`` [L, V] about texts ``truth`` int64 [B, L].

    Where k different words stand at a place, the k likeliest are the guess. ``placed``: the share of words that are so
    found, each counted once per place; ``whole``: of texts of which every word is.
    """
    there = truth != padding
    right = torch.zeros_like(there)
    hits = total = 0
    for place in range(truth.shape[1]):
        wanted = torch.unique(truth[there[:, place], place])
        best = scores[place].topk(len(wanted)).indices
        hits, total = hits + int(torch.isin(wanted, best).sum()), total + len(wanted)
        right[:, place] = torch.isin(truth[:, place], best) & there[:, place]
    whole = int((right | ~there).all(1).sum())
    return {"placed": proportion(hits, total), "whole": proportion(whole, len(truth))}

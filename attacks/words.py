"""The words of a client's texts, from the rows of the embedding that its update moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from attacks.attack import Attack, Needs
from attacks.auxiliary import Auxiliary
from attacks.metrics.distinguishing import Scores, as_mask, auc
from attacks.metrics.measure import Measure, proportion
from attacks.observations.messages import updates
from attacks.result import AttackResult
from privfl.errors import ConfigError
from privfl.models.flat_network import Layout
from privfl.privacy.accounting.release import Observer
from privfl.schema import plain
from privfl.simulation.transcript import Transcript
from privfl.validation import check_count

FREQUENCY = "how often public texts have it"
SMALLEST = 1e-24
"""What is left of a row's energy, over the largest one's, by rounding alone."""
LEVELS = torch.cat([torch.zeros(1), 4.0 ** torch.arange(-1.5, 15)]).double()
"""Variances over that of the noise that the row of a token that is there may have; 0 where it moved nothing."""
QUIET = 0.99
"""The share of the first of these levels that the fit begins with: it takes on what the rows show, and no more."""
PASSES = 40
"""Of expectation and maximisation, by which the noise and the shares of the levels are fitted."""
EVIDENCE = 10.0
"""The rows' log-likelihood ratio over noise alone below which they say nothing."""


@dataclass(frozen=True)
class WordsGuess:
    """How likely each token is to be in the texts, [V], and what nulls say of it."""

    scores: Scores
    nulls: Mapping[str, Scores]


@dataclass(frozen=True)
class Words(Attack):
    """Which tokens occur in a client's texts, or, of sums, in anybody's: those whose embedding moved.

    The gradient of an embedding is zero but in the rows of the tokens that were looked up, so without noise the
    answer is exact, for any batch, number of local steps, clipping and sum (Melis, Song, De Cristofaro and Shmatikov,
    "Exploiting Unintended Feature Leakage in Collaborative Learning", S&P 2019). Under noise a row of d numbers is
    N(0, σ²) if the token is not there, and a mixture of N(0, σ² + τ²) over many τ, 0 among them, if it is; the noise of
    each round and the mixture of all rounds are those that fit the rows best. The log-likelihood ratios of the rounds
    are added to the log-odds that public texts give the token. Where the rows fit noise alone as well, the guess is the
    null's: how often the token occurs. Neither order nor counts are read.

    The judge needs ``truth["tokens"]`` bool [V].

    Args:
        client: whose texts; ``None`` for everybody's.
        texts: how many texts the message is of, for the odds that a token is in one of them.
        rounds: how many of the rounds in which the client took part are read, the last ones; ``None`` all.
    """

    name: ClassVar[str] = "words"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(("update",), public=True, truth=("tokens",))
    needs_classes: ClassVar[bool] = False
    client: int | None = 0
    texts: int = 1
    rounds: int | None = None

    def __post_init__(self) -> None:
        check_count(f"{self.name}'s texts", self.texts)
        if self.rounds is not None:
            check_count(f"{self.name}'s rounds", self.rounds)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> WordsGuess:
        """Log-odds for every token.

        Raises:
            ConfigError: the task is none of texts, the network begins with no embedding, or nobody sent an update.
        """
        size = seen.facts.vocabulary
        if size is None:
            raise ConfigError("the inputs are no token ids, so there are no words to find; attack a task of texts")
        shares = frequencies(auxiliary.need_public().inputs, size)
        prior = torch.log1p(-((1 - shares) ** self.texts)) - self.texts * torch.log1p(-shares)
        rows: list[Tensor] = []
        for place in reversed(range(len(seen))):
            moment = seen[place]
            sent = [update for members, update in updates(moment) if self.client is None or members == (self.client,)]
            if len(rows) != self.rounds and len(sent) == 1:
                rows.append(embedding_rows(seen.network(moment.broadcast["parameters"]), sent[0], size))
        if not rows:
            raise ConfigError(f"no single update of client {self.client} was seen in {len(seen)} rounds; name another")
        energies = torch.stack([row.square().sum(1) for row in rows])
        return WordsGuess((prior + ratios(energies, rows[0].shape[1], prior)).numpy(), {FREQUENCY: prior.numpy()})

    def judge(self, guess: WordsGuess, auxiliary: Auxiliary, seconds: float) -> AttackResult:
        """AUC over the vocabulary, and the share of the k true tokens among the k likeliest."""
        truth = as_mask("truth['tokens']", auxiliary.answer("tokens").numpy(), "token")
        return AttackResult(
            attack=self.name,
            primary="auc",
            metrics=measures(guess.scores, truth),
            nulls={name: measures(scores, truth) for name, scores in guess.nulls.items()},
            seconds=seconds,
            units=len(truth),
            unit="token",
            settings=plain(self),
        )


def frequencies(texts: Tensor, vocabulary: int) -> Tensor:
    """The share of ``texts`` int64 [n, L] that have each token, float64 [vocabulary], as if half a text more had it."""
    there = torch.zeros(len(texts), vocabulary, dtype=torch.bool).scatter_(1, texts, True)
    found: Tensor = (there.sum(0).double() + 0.5) / (len(texts) + 1)
    return found


def embedding_rows(network: nn.Module, update: Tensor, vocabulary: int) -> Tensor:
    """What an ``update`` [size] adds to the embedding of the tokens, [vocabulary, d], float64.

    Raises:
        ConfigError: the network has no embedding of so many tokens.
    """
    for name, module in network.named_modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == vocabulary:
            return Layout.of(network).named_views(update)[f"{name}.weight"].double()
    raise ConfigError(f"{type(network).__name__} has no embedding of {vocabulary} tokens; attack another model")


def ratios(energies: Tensor, width: int, prior: Tensor) -> Tensor:
    """log p(rows | the token is there) − log p(rows | it is not), [V], of all rounds together.

    Args:
        energies: squared lengths of the rows, [T, V], of as many rounds.
        width: d, how many numbers a row has.
        prior: log-odds of the tokens, [V].

    Returns:
        Zeros where the rows of all tokens are as likely under noise alone, by :data:`EVIDENCE`.
    """
    least = (SMALLEST * energies.amax(1)).clamp_min(1e-300)
    absent = (1 - torch.sigmoid(prior).mean()) / 2  # the median of the rows that only noise is in
    noise = torch.maximum(torch.quantile(energies, absent, dim=1) / width, least)
    shares = torch.full_like(LEVELS, (1 - QUIET) / (len(LEVELS) - 1))
    shares[0] = QUIET
    gains, costs = LEVELS / (1 + LEVELS) / 2, width / 2 * torch.log1p(LEVELS)
    found = torch.zeros_like(prior)
    for last in range(PASSES):
        odds = shares.log() - costs
        weighed = [gains * (row / variance)[:, None] + odds for row, variance in zip(energies, noise, strict=True)]
        found = torch.stack([torch.logsumexp(one, 1) for one in weighed]).sum(0)
        if last == PASSES - 1:
            break
        there = torch.sigmoid(prior + found)
        levels = [there[:, None] * torch.softmax(one, 1) for one in weighed]
        quiet = torch.stack([1 - there + one[:, 0] for one in levels])
        noise = torch.maximum((quiet * energies).sum(1) / quiet.sum(1).clamp_min(1e-300) / width, least)
        counts = torch.stack([one.sum(0) for one in levels]).sum(0)
        shares = (counts / counts.sum().clamp_min(1e-300)).clamp_min(1e-300)
    likely = torch.logaddexp(F.logsigmoid(-prior), F.logsigmoid(prior) + found).sum()
    return found if float(likely) > EVIDENCE else torch.zeros_like(found)


def measures(scores: Scores, truth: NDArray[np.bool_]) -> dict[str, Measure]:
    """Of ``scores`` [V] about ``truth`` bool [V]: AUC and the share of the k true ones among the k highest scores."""
    count = int(truth.sum())
    best = np.argsort(-scores, kind="stable")[:count]
    return {"auc": auc(scores[truth], scores[~truth]), "found": proportion(int(truth[best].sum()), count)}

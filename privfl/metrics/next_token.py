"""How good a next-token model is on held-out sequences, from three numbers of each: logits of all would fill memory."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def token_sums(logits: Tensor, targets: Tensor) -> Tensor:
    """Of every sequence, over its targets that count: summed cross-entropy, hits, and their number; float64 [N, 3].

    ``logits`` are [N, L, tokens], ``targets`` [N, L]; negative targets do not count.
    """
    counted = targets >= 0
    terms = F.cross_entropy(logits.flatten(0, 1), targets.where(counted, 0).flatten(), reduction="none")
    nats = terms.view_as(targets).double().where(counted, 0)
    hits = (logits.argmax(2) == targets) & counted
    return torch.stack([nats.sum(1), hits.sum(1).double(), counted.sum(1).double()], dim=1)


def next_token(sums: Tensor, targets: Tensor) -> dict[str, float]:
    """Mean cross-entropy of a token (nats), its exponential, the perplexity, and the accuracy, from :func:`token_sums`.

    All tokens count alike, whatever sequence they are in. NaN where none counts.
    """
    nats, hits, tokens = sums.double().sum(0).tolist()
    if tokens == 0:
        return dict.fromkeys(("test_loss", "test_perplexity", "test_accuracy"), math.nan)
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(nats / tokens))
    return {"test_loss": nats / tokens, "test_perplexity": perplexity, "test_accuracy": hits / tokens}


def perplexity(sums: Tensor, targets: Tensor) -> float:
    """The perplexity of the sequences of ``sums``."""
    return next_token(sums, targets)["test_perplexity"]


def token_accuracy(sums: Tensor, targets: Tensor) -> float:
    """The accuracy on the sequences of ``sums``."""
    return next_token(sums, targets)["test_accuracy"]

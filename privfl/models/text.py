"""Classifiers of token sequences [B, L], as in FedSampling, over an embedding that is trained with them.

Both end in attention pooling and two ReLU layers. The papers' code feeds frozen GloVe vectors; here the vectors are
parameters, drawn at random. Padding is a token like any other, as in the released code.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from privfl.models.base import Dropout, Network, Size
from privfl.models.dense import perceptron


class Convolve(nn.Module):
    """A linear convolution over positions that keeps their number."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, inputs] -> [B, L, outputs]."""
        output: Tensor = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return output


class SelfAttention(nn.Module):
    """One layer of scaled dot-product self-attention, batch first, without output projection (Vaswani et al. 2017).

    Made of plain linear layers, so that per-sample gradients follow from each layer's inputs and outputs.
    """

    def __init__(self, inputs: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.query, self.key, self.value = (nn.Linear(inputs, heads * head_dim, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, inputs] -> [B, L, heads·head_dim]."""
        query, key, value = (
            part(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        weights = (query @ key.mT / math.sqrt(self.head_dim)).softmax(-1)
        output: Tensor = (weights @ value).transpose(1, 2).flatten(2)
        return output


class AttentionPooling(nn.Module):
    """Dropout, then the mean over positions, weighted by the soft-max of one linear score (its bias would cancel)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, width] -> [B, width]."""
        x = self.dropout(x)
        weights: Tensor = self.score(x).softmax(1)
        return (weights * x).sum(1)


def text_cnn(
    vocabulary: int,
    classes: int,
    *,
    embedding_dim: Size = 300,
    filters: Size = 400,
    dropout: Dropout = 0.2,
    hidden: Size = 256,
) -> Network:
    """FedSampling's Text-CNN: a linear convolution of width 3, dropout, attention pooling, two dense ReLU layers."""
    encoder = Convolve(embedding_dim, filters)
    return _classifier(vocabulary, classes, embedding_dim, encoder, filters, dropout, hidden)


def transformer(
    vocabulary: int,
    classes: int,
    *,
    embedding_dim: Size = 300,
    heads: Size = 20,
    head_dim: Size = 20,
    dropout: Dropout = 0.2,
    hidden: Size = 256,
) -> Network:
    """FedSampling's "Transformer": one self-attention layer (no residual, no feed-forward, no positions), same top."""
    encoder = SelfAttention(embedding_dim, heads, head_dim)
    return _classifier(vocabulary, classes, embedding_dim, encoder, heads * head_dim, dropout, hidden)


def _classifier(
    vocabulary: int, classes: int, embedding_dim: int, encoder: nn.Module, width: int, dropout: float, hidden: int
) -> Network:
    """Embedding, ``encoder`` to [B, L, width], and the top that both models share."""
    dense, _ = perceptron(width, (hidden, hidden))
    body = nn.Sequential(
        nn.Embedding(vocabulary, embedding_dim),
        encoder,
        nn.Dropout(dropout),
        AttentionPooling(width, dropout),
        *dense,
    )
    return Network(body, nn.Linear(hidden, classes))

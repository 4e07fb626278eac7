"""DistilBERT (Sanh et al. 2019) as a classifier of token sequences, out of plain layers.

The encoder that AAggFF fine-tunes on medical question pairs. No package and no network is needed to build it; weights
that were published elsewhere are copied in by :func:`load_published`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from privfl.errors import ConfigError
from privfl.models.base import Dropout, Network, Padding, Size

EPSILON = 1e-12
"""In every LayerNorm, as released."""
SPREAD = 0.02
"""Standard deviation of initial weights, as released."""


class Attention(nn.Module):
    """Scaled dot-product self-attention of several heads; padding is attended by nobody (Vaswani et al. 2017)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """[B, L, width] -> [B, L, width]; ``padding`` [B, L] is true where there is no token."""
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(padding[:, None, None], torch.finfo(scores.dtype).min)
        output: Tensor = self.out((self.dropout(scores.softmax(-1)) @ value).transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    """Attention and two dense layers with GELU, each added to its input and normalised afterwards."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.attended = nn.LayerNorm(width, EPSILON)
        self.wide, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.gelu, self.dropout = nn.GELU(), nn.Dropout(dropout)
        self.out = nn.LayerNorm(width, EPSILON)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """[B, L, width] -> [B, L, width]."""
        x = self.attended(self.attention(x, padding) + x)
        output: Tensor = self.out(self.dropout(self.narrow(self.gelu(self.wide(x)))) + x)
        return output


class Encoder(nn.Module):
    """Tokens and their places, embedded, through the blocks; of the output, what stands at the first token."""

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        positions: int,
        dropout: float,
        padding: int,
    ) -> None:
        super().__init__()
        self.padding = padding
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.embedded, self.dropout = nn.LayerNorm(width, EPSILON), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, dropout) for _ in range(layers))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=SPREAD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, L] -> [B, width]."""
        length, longest = tokens.shape[-1], self.places.num_embeddings
        if length > longest:
            raise ConfigError(f"a sequence has {length} tokens, and distilbert has {longest} positions; give more")
        padding = tokens == self.padding
        places = torch.arange(length, device=tokens.device).expand_as(tokens)
        x = self.dropout(self.embedded(self.words(tokens) + self.places(places)))
        for block in self.blocks:
            x = block(x, padding)
        first: Tensor = x[:, 0]
        return first


def distilbert(
    vocabulary: int,
    classes: int,
    *,
    layers: Size = 6,
    width: Size = 768,
    heads: Size = 12,
    hidden: Size = 3072,
    positions: Size = 512,
    dropout: Dropout = 0.1,
    padding: Padding = 0,
) -> Network:
    """DistilBERT's encoder, and AAggFF's head on its first token: a dense ReLU layer, dropout, a linear layer.

    Args:
        vocabulary: number of tokens; 30,522 in the released model.
        classes: number of classes.
        layers, width, heads, hidden: of the encoder.
        positions: the longest sequence.
        dropout: everywhere, in the attention too.
        padding: the token that stands for none.

    Raises:
        ConfigError: the width is no multiple of the number of heads.
    """
    if width % heads:
        raise ConfigError(f"distilbert's width {width} is no multiple of its {heads} heads; give a multiple")
    encoder = Encoder(
        vocabulary,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        positions=positions,
        dropout=dropout,
        padding=padding,
    )
    body = nn.Sequential(encoder, nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))
    return Network(body, nn.Linear(width, classes))


_NAMES = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "embedded": "embeddings.LayerNorm",
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.out": "attention.out_lin",
    "attended": "sa_layer_norm",
    "wide": "ffn.lin1",
    "narrow": "ffn.lin2",
    "out": "output_layer_norm",
}
"""What the published weights call a layer of the encoder, or of a block."""


def published_name(name: str) -> str:
    """What published weights call the encoder's parameter ``name``."""
    layer, kind = name.rsplit(".", 1)
    if layer.startswith("blocks."):
        _, number, part = layer.split(".", 2)
        return f"transformer.layer.{number}.{_NAMES[part]}.{kind}"
    return f"{_NAMES[layer]}.{kind}"


def load_published(network: Network, weights: Mapping[str, Tensor]) -> None:
    """Copy published ``weights`` into the encoder of a :func:`distilbert`; its head stays as it is.

    Args:
        network: of :func:`distilbert`, of the weights' sizes.
        weights: by the names of the released checkpoint, with or without ``distilbert.`` before them; what is not the
            encoder's is ignored. ``torch.load(path, weights_only=True)`` reads such a file.

    Raises:
        ConfigError: the network has no such encoder, or a weight is missing or of another shape.
    """
    encoder = network.body[0] if isinstance(network.body, nn.Sequential) else None
    if not isinstance(encoder, Encoder):
        raise ConfigError(
            f"the network's body is {type(network.body).__name__}; give one of models.build('distilbert')"
        )
    plain = {name.removeprefix("distilbert."): value for name, value in weights.items()}
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            found = plain.get(published_name(name))
            if found is None or found.shape != parameter.shape:
                shape = "is missing" if found is None else f"has the shape {tuple(found.shape)}"
                raise ConfigError(
                    f"the weight {published_name(name)} {shape}, and the network wants {tuple(parameter.shape)}; "
                    "build it with the checkpoint's sizes"
                )
            parameter.copy_(found)

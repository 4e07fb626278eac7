"""DistilBERT is PyTorch's own encoder layers, takes published weights by their names, and trains under DP-SGD."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import privfl as pf
from privfl.errors import ConfigError
from privfl.models import Network, build
from privfl.models.distilbert import Encoder, load_published, published_name

TOKENS, WIDTH, HEADS, HIDDEN, POSITIONS = 20, 8, 2, 12, 7
SMALL: dict[str, Any] = {"layers": 2, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "positions": POSITIONS}


def small(**changes: Any) -> Network:
    return build("distilbert", (6,), 3, vocabulary=TOKENS, seed=1, **SMALL | {"dropout": 0.0} | changes).double()


def tokens() -> Tensor:
    """Six tokens a row, of which two rows end in padding."""
    found = torch.randint(1, TOKENS, (4, 6), generator=torch.Generator().manual_seed(0))
    found[1, 4:], found[3, 1:] = 0, 0
    return found


def twin(encoder: Encoder, rows: Tensor) -> Tensor:
    """The same encoder out of ``nn.TransformerEncoderLayer``."""
    x = encoder.embedded(encoder.words(rows) + encoder.places(torch.arange(rows.shape[1])))
    for block in encoder.blocks:
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, "gelu", 1e-12, batch_first=True).double()
        own = block.attention
        values = {
            "self_attn.in_proj_weight": torch.cat([own.query.weight, own.key.weight, own.value.weight]),
            "self_attn.in_proj_bias": torch.cat([own.query.bias, own.key.bias, own.value.bias]),
        }
        for theirs, ours in {
            "self_attn.out_proj": own.out,
            "linear1": block.wide,
            "linear2": block.narrow,
            "norm1": block.attended,
            "norm2": block.out,
        }.items():
            values |= {f"{theirs}.weight": ours.weight, f"{theirs}.bias": ours.bias}
        layer.load_state_dict(values)
        x = layer(x, src_key_padding_mask=rows == 0)
    return x[:, 0]


def test_the_encoder_is_pytorchs_own_and_what_stands_after_the_last_token_changes_nothing() -> None:
    network, rows = small(), tokens()
    encoder = network.body[0]
    torch.testing.assert_close(encoder(rows), twin(encoder, rows), rtol=0, atol=1e-12)
    torch.testing.assert_close(encoder(rows[3:, :1]), encoder(rows[3:]), rtol=0, atol=1e-12)


def test_published_weights_are_copied_by_their_names_and_the_head_stays() -> None:
    source, network = small().body[0], small()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1.0)
    named = {f"distilbert.{published_name(name)}": value for name, value in source.named_parameters()}
    assert "distilbert.transformer.layer.1.attention.q_lin.weight" in named
    assert "distilbert.embeddings.LayerNorm.bias" in named
    head = [parameter.clone() for parameter in (*network.body[1].parameters(), *network.head.parameters())]
    load_published(network, named | {"vocab_projector.bias": torch.zeros(TOKENS)})
    for ours, theirs in zip(network.body[0].parameters(), source.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    after = (*network.body[1].parameters(), *network.head.parameters())
    assert all(torch.equal(one, other) for one, other in zip(head, after, strict=True))


def test_other_sizes_are_refused_in_one_sentence() -> None:
    weights = {published_name(name): value for name, value in small().body[0].named_parameters()}
    with pytest.raises(ConfigError, match=r"position_embeddings.weight has the shape \(7, 8\).*wants \(9, 8\)"):
        load_published(small(positions=9), weights)
    with pytest.raises(ConfigError, match=r"layer\.2\.attention\.q_lin\.weight is missing"):
        load_published(small(layers=3), weights)
    with pytest.raises(ConfigError, match="body is Flatten"):
        load_published(build("logistic", (4,), 2), weights)
    with pytest.raises(ConfigError, match="width 8 is no multiple of its 3 heads"):
        small(heads=3)
    with pytest.raises(ConfigError, match="8 tokens, and distilbert has 7 positions"):
        small()(torch.ones(1, 8, dtype=torch.long))


def test_a_round_of_dp_sgd_trains_it() -> None:
    rows, targets = tokens().repeat(3, 1), torch.arange(12) % 3
    task = pf.Task.from_arrays(
        rows,
        targets,
        test=(rows[:3], targets[:3]),
        model=lambda: build("distilbert", (6,), 3, vocabulary=TOKENS, seed=1, **SMALL),
        partition=pf.IID(clients=2),
        vocabulary=TOKENS,
    )
    run = pf.simulate(
        task,
        pf.FedAvg(),
        rounds=1,
        weighting="uniform",
        training=pf.LocalTraining(steps=1, learning_rate=0.1),
        privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5)),
        execution=pf.Execution(engine="loop", workers=1),
    )
    assert 0 < run.statement.cell("sample", "server").epsilon < 10
    assert bool(run.parameters.isfinite().all())

"""Masks of drop-out: compiled or not, they have the same bits."""

import math

import pytest
import torch

from privfl import compiling
from privfl.engine.dropout import StreamDropout
from privfl.privacy.noise.source import NoiseStream


@pytest.mark.parametrize("probability", [0.25, 0.3, 0.9])
@pytest.mark.parametrize("size", [1, 15, 10_001])
def test_a_mask_has_the_same_bits_with_numba_and_without(monkeypatch, probability, size):
    masks = []
    for enough in (math.inf, 0.0):  # seconds saved from which on it is compiled
        monkeypatch.setattr(compiling, "ENOUGH", enough)
        layer = StreamDropout(probability, None)
        layer.generator = NoiseStream(bytes(32))
        masks.append(layer.one_mask(torch.empty(size, 3)))
    assert torch.equal(*masks)
    (kept,) = {value for value in masks[0].view(-1).tolist() if value} or {1 / (1 - probability)}
    assert kept == pytest.approx(1 / (1 - probability))
    layer.generator = NoiseStream(bytes(32))
    assert torch.equal(layer.masks(torch.empty(1, size, 3), [layer.generator], [size])[0], masks[0])


@pytest.mark.parametrize("present", [0, 3, 5])
def test_padded_rows_take_no_coins_and_are_kept(present):
    layer = StreamDropout(0.5, None)
    layer.generator, layer.present = NoiseStream(bytes(32)), (present, 5)
    mask = layer.one_mask(torch.empty(5, 64))
    assert bool((mask[present:] == 2).all())
    layer.generator, layer.present = NoiseStream(bytes(32)), None
    if present:
        assert torch.equal(mask[:present], layer.one_mask(torch.empty(present, 64)))

"""The server's classifier follows from the seed, also where it has drop-out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privfl.algorithms.generative.server_training import train_classifier
from privfl.models.flat_network import flatten


def trained(global_seed: int, seed: int = 0, probability: float = 0.5) -> Tensor:
    """Parameters after five passes over ten random images."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Dropout(probability), nn.Linear(8, 3))
    images, labels = torch.randn(10, 1, 4, 4), torch.arange(10) % 3
    torch.manual_seed(global_seed)
    before = torch.get_rng_state()
    found = train_classifier(network, flatten(network).detach(), images, labels, epochs=5, seed=seed)
    assert torch.equal(torch.get_rng_state(), before)
    return found


def test_masks_follow_from_the_seed_and_from_nothing_else() -> None:
    one, again, other = trained(1), trained(2), trained(1, seed=1)
    assert torch.equal(one, again)
    assert not torch.allclose(one, other, atol=1e-4)
    assert not torch.allclose(one, trained(1, probability=0.0), atol=1e-4)

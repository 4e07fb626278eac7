"""Training a classifier at the server, on data that the server owns."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privfl.models.flat_network import fill, flatten, trained_parameters
from privfl.randomness import process_generators, stream_seed, torch_stream

SHIFT = 1
"""Pixels by which a batch of images is moved at most, in each direction."""


def train_classifier(
    network: nn.Module,
    parameters: Tensor,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    seed: int,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
) -> Tensor:
    """Parameters [size] of ``network`` after Adam on the cross-entropy of ``images`` [N, ...] and ``labels`` [N].

    Starts from ``parameters`` [size] and passes ``epochs`` times over the shuffled data; a batch of images [C, H, W] is
    moved by up to one pixel in each direction, its border repeated. The same arguments give the same result. FedEvg's
    code passes once, which is two steps for 100 images; to call the result what a set is good for, give 100 or more.

    The data must be the server's own (public, or derived from uploads that were accounted for): nothing is noted here.
    """
    fill(network, parameters)
    optimizer = torch.optim.Adam(trained_parameters(network).values(), lr=learning_rate)
    generator = torch_stream(seed, "server-classifier")
    network.train()
    devices = [parameters.device] if parameters.is_cuda else []
    with process_generators(devices=devices), torch.enable_grad():
        torch.manual_seed(stream_seed(seed, "server-drop-out") % 2**63)  # no engine draws the masks here
        for _ in range(epochs):
            order = torch.randperm(len(labels), generator=generator).to(labels.device)
            for rows in torch.split(order, batch_size):
                loss = F.cross_entropy(network(_moved(images[rows], generator)), labels[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    network.eval()
    return flatten(network)


def _moved(images: Tensor, generator: torch.Generator) -> Tensor:
    """``images`` moved by a random number of pixels; what are not images [B, C, H, W] stays as it is."""
    if images.dim() != 4:
        return images
    down, right = torch.randint(2 * SHIFT + 1, (2,), generator=generator).tolist()
    height, width = images.shape[2:]
    return F.pad(images, (SHIFT, SHIFT, SHIFT, SHIFT), mode="replicate")[
        :, :, down : down + height, right : right + width
    ]

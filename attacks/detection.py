"""What a client could check of a broadcast before it trains: signs of a server that crafts what it sends.

Each number is near a known value for models that were trained or initialised honestly, and far from it for one kind of
crafted model. A client's policy would refuse beyond a threshold; docs/results/first-layer.md has the rates at which
honest models would be refused. A server that knows of a check can often work around it.
"""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.auxiliary import Records
from attacks.gradient_inversion.fishing import head_parts
from attacks.gradient_inversion.imprint import parallel_units, perceptron_parts
from privfl.models.flat_network import flatten


def fingerprint(parameters: Tensor) -> str:
    """SHA-256 of ``parameters`` [size]; clients who were sent the same find the same when they compare."""
    return hashlib.sha256(parameters.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def dead_units(network: nn.Module, inputs: Tensor) -> float:
    """The share of the first layer's units that fire for none of a client's ``inputs`` [n, …]; 1 for a dead layer.

    Raises:
        ConfigError: the network is no perceptron.
    """
    weight, bias, _ = perceptron_parts(network, flatten(network))
    return float((inputs.flatten(1).to(weight) @ weight.T + bias <= 0).all(0).double().mean())


def equal_head_rows(network: nn.Module) -> float:
    """The largest share of the head's rows that are the same; one row's share unless somebody made them so.

    Raises:
        ConfigError: the network does not end with a fully connected layer with a bias.
    """
    weight, _ = head_parts(network, flatten(network))
    alike = (weight[:, None] == weight[None]).all(2).sum(1)
    return int(alike.max()) / len(weight)


def own_loss(network: nn.Module, records: Records) -> float:
    """The mean cross-entropy of a client's own ``records``; log C for a model that knows nothing."""
    network.eval()
    with torch.no_grad():
        return float(F.cross_entropy(network(records.inputs), records.targets))


def signs(network: nn.Module, records: Records) -> dict[str, float]:
    """All checks that a client can make alone, by name."""
    return {
        "parallel units": parallel_units(network),
        "dead units": dead_units(network, records.inputs),
        "equal head rows": equal_head_rows(network),
        "own loss": own_loss(network, records),
    }

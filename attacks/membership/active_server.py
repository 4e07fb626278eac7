"""A server that does not only watch: it ascends the losses of the records it asks about before it broadcasts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.auxiliary import Records
from attacks.crafted_broadcast import crafting_server
from privfl.algorithms.base import Algorithm
from privfl.errors import ConfigError
from privfl.models.flat_network import FlatNetwork


def gradient_ascent_server(algorithm: Algorithm, targets: Records, *, step: float, ascents: int = 1) -> Algorithm:
    """``algorithm`` run by an active server (Nasr, Shokri & Houmansadr, S&P 2019).

    Before every broadcast the server takes ``ascents`` steps of length ``step`` up the normalised gradient of the
    summed cross-entropy of ``targets``. All else is the algorithm's own: clients cannot tell, updates are added to the
    server's honest parameters, and a mechanism that protects the clients protects them as before. Run it with
    ``pf.simulate(task, ascending(pf.FedAvg(), targets, step=0.5), …, record=True)`` and read the transcript with
    :class:`attacks.membership.update_attacks.LossDrop`.

    The paper ascends with a step proportional to the gradient and goes on from the ascended model; here the length is
    fixed, so that it does not fade as the model converges, and the server's own model stays honest. Several records
    share the step, and what they share (a worse model for everybody) is undone by any client: ask about few. In our
    measurements (docs/results/membership.md) it found no more than the passive attack and cost the model accuracy.

    Raises:
        ConfigError: the step or the number of ascents is not positive.
    """
    if not step > 0 or ascents < 1:
        raise ConfigError(f"the server ascends {ascents} times by {step!r}; give a positive step and at least 1 ascent")

    def craft(network: FlatNetwork, honest: Tensor, number: int) -> Tensor:
        inputs, labels = (part.to(honest.device) for part in (targets.inputs, targets.targets))
        for _ in range(ascents):
            with torch.enable_grad(), network.at(honest):
                loss = F.cross_entropy(network.module(inputs), labels, reduction="sum")
                slope = torch.cat([part.reshape(-1) for part in network.gradient_of(loss)])
            honest = honest + step * slope / slope.norm().clamp_min(1e-30)
        return honest

    return crafting_server(algorithm, craft, "Ascending")

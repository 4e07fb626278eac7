"""How far what an observer saw points down each canary's gradient: the statistic of white-box audits.

For a canary with clipped gradient c at the parameters that were sent out, and the noisy sum of clipped gradients s that
the message holds, the statistic is ⟨s, c⟩/C². One step in which the canary is in the batch adds ‖c‖²/C², which is 1 if
it is clipped, and the noise adds σ‖c‖/C. No gradient is formed: ⟨s, ∇ℓ⟩ is the slope of the loss along s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, jvp

from attacks.observations.messages import GRADIENTS, training_of
from audits.canaries.canaries import Canaries
from audits.canaries.views import View
from privfl.errors import ConfigError
from privfl.models.flat_network import FlatNetwork
from privfl.privacy.clipping.per_sample import LossModule, PerSampleGradients
from privfl.privacy.loss import Loss
from privfl.simulation.transcript import Transcript

Statistics = NDArray[np.float64]
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Alignment:
    """What an observer saw of every canary in every round.

    Args:
        statistics: ⟨s, c⟩/C² [rounds, m].
        lengths: ‖c‖²/C² [rounds, m], the mean of the statistic for a canary that is in the batch of a round's only
            step; the noise's standard deviation is σ·√length. 0 where nothing was seen.
    """

    statistics: Statistics
    lengths: Statistics


def sample_alignment(view: View, canaries: Canaries, loss: Loss) -> Alignment:
    """⟨s, c⟩/C² for every round and canary [rounds, m], from the upload of the canary's owner or the released models.

    0 in rounds that its owner sat out, and in a first round whose start is not known. For the public the sum is over
    all clients, in units of one step's divisor.

    Raises:
        ConfigError: the run had no DP-SGD, only sums were seen, or nothing called ``update`` was sent.
    """
    seen, before = view.transcript, view.start
    protection = seen.facts.privacy.get("training")
    if protection is None:
        raise ConfigError("the run had no DP-SGD, so it has no guarantee for examples that canaries could test; add it")
    bound = float(protection["max_grad_norm"])
    probe, found = _Probe(seen, canaries, loss), np.zeros((len(seen), len(canaries)))
    everyone, lengths = np.arange(len(canaries)), np.zeros_like(found)
    for place in range(len(seen)):
        one = seen[place]
        received, before = one.broadcast["parameters"] if one.exchanges else before, one.released
        if received is None:
            continue
        training = training_of(seen.facts, one.number)
        scale = training.batch_size / (training.learning_rate * bound**2)
        if seen.observer == "public":
            gained = (received - one.released) * scale
            found[place], lengths[place] = probe.slopes(received, gained, everyone, bound)
            continue
        sign = 1.0 if seen.facts.algorithm["name"] in GRADIENTS else -1.0
        for client in np.unique(canaries.owners).tolist():
            if client not in one.training.members:
                continue
            if "update" not in one.uploads[client]:
                raise ConfigError(f"client {client} sent no 'update' in round {one.number}; audit another algorithm")
            own = np.flatnonzero(canaries.owners == client)
            sent = one.uploads[client]["update"] * (sign * scale)
            found[place, own], lengths[place, own] = probe.slopes(received, sent, own, bound)
    return Alignment(found, lengths / bound**2)


def client_alignment(view: View, canaries: Canaries, loss: Loss) -> Statistics:
    """⟨s, c⟩ for every round and canary client [rounds, m]: s what the released model gained, c the unit update.

    A canary client holds one row, so its update points down that row's gradient, and has the clipping norm if it is
    clipped. The sum is the server's to see under secure aggregation and the public's always. 0 in a first round
    whose start is not known.
    """
    seen, before = view.transcript, view.start
    probe, found = _Probe(seen, canaries, loss), np.zeros((len(seen), len(canaries)))
    everyone = np.arange(len(canaries))
    for place in range(len(seen)):
        one = seen[place]
        received, before = one.broadcast["parameters"] if one.exchanges else before, one.released
        if received is not None:
            found[place], _ = probe.slopes(received, received - one.released, everyone, None)
    return found


class _Probe:
    """The run's network, to ask how every canary's loss changes along a message."""

    def __init__(self, seen: Transcript, canaries: Canaries, loss: Loss) -> None:
        self._network = FlatNetwork(seen.factory(0).eval())
        self._clipper = PerSampleGradients(self._network)
        self._whole = LossModule(self._network.module, loss)
        self._canaries, self._loss = canaries, loss

    def slopes(
        self, at: Tensor, along: Tensor, which: NDArray[np.int64], bound: float | None
    ) -> tuple[Statistics, Statistics]:
        """⟨``along``, c⟩ [k] and ‖c‖² [k] for the canaries ``which`` [k], c their gradients at ``at`` [size].

        Gradients are clipped to ``bound``, or scaled to length 1 if it is ``None``.
        """
        self._network.load(at)
        parts, squares = [], []
        for rows in torch.split(torch.from_numpy(which), ROWS_AT_ONCE):
            inputs, targets = self._canaries.inputs[rows], self._canaries.targets[rows]
            slopes = self._slope(at, along.to(at), inputs, targets)
            norms = self._clipper.clipped_sum(self._loss, inputs, targets, float("inf")).clamp_min(1e-30)
            factors = 1 / norms if bound is None else (bound / norms).clamp(max=1.0)
            parts.append(torch.nan_to_num(slopes * factors).double())
            squares.append((norms * factors).square().double())
        return torch.cat(parts).numpy(), torch.cat(squares).numpy()

    def _slope(self, at: Tensor, along: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The slope [k] of every row's loss at ``at`` [size] in the direction ``along`` [size]."""

        def losses(parameters: dict[str, Tensor]) -> Tensor:
            terms: Tensor = functional_call(self._whole, parameters, (inputs, targets))
            return terms

        views = self._network.layout.named_views
        primal, tangent = (
            {f"network.{name}": view for name, view in views(flat.contiguous()).items()} for flat in (at, along)
        )
        with torch.no_grad():
            slopes: Tensor = jvp(losses, (primal,), (tangent,))[1]
        return slopes

"""Membership by the likelihood ratio of a known signal in coloured noise, over clients and rounds.

A record x that client j trains on adds a multiple of −∇ℓ(w; x) to its update Δ_j. What else is in Δ_j is the gradients
of other records and, under DP, noise: Gaussian with the covariance σ²I + κ·Σ_z ĝ_z ĝ_zᵀ, in which public records z
stand for the clients' (ĝ is a gradient of length 1). The best linear statistic is then the matched filter
−ĝ_xᵀ(I − Yᵀ(YYᵀ + λI)⁻¹Y)Δ_j with the public gradients Y as rows and λ = σ²/κ: an alignment that has forgotten what
public records tell about the update, its classes above all. Products of gradients come from their count sketches
(Charikar, Chen and Farach-Colton, ICALP 2002), which cost little and err by one in √width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.auxiliary import Records
from attacks.membership.cosines import unit_gradients, unit_rows
from attacks.membership.scores import Models
from attacks.membership.shadow_models import join
from attacks.observations.messages import require_full_update, training_of
from privfl.errors import ConfigError
from privfl.simulation.transcript import SeenRound, Transcript

FEWEST = 3
"""Clients of a round, each of whom is judged by the others."""
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""λ that are tried: the less noise there is besides other records' gradients, the smaller is the best one."""
SCALES = torch.logspace(-2.5, 0.5, 31, dtype=torch.float64)
"""Shares of the promised step that are tried: gradients change while a client trains."""


@dataclass(frozen=True)
class Filtered:
    """Sums over rounds for clients [K] and records [n], float64.

    Args:
        clients: K of them.
        signal: Σ_t m_t·z_t [K, n], z the filter's output, standardised by the other clients', and m what the settings
            promise of it if the client holds the record.
        energy: Σ_t m_t² [K, n].
        excess: mean of signal²/energy, ≥ 1, which would be 1 if rounds were independent.
    """

    clients: tuple[int, ...]
    signal: Tensor
    energy: Tensor
    excess: float

    def ratios(self, scale: float) -> Tensor:
        """Log-likelihood ratios [K, n] of "client j holds x" if a share ``scale`` of the promised step is there."""
        return (scale * self.signal - scale**2 * self.energy / 2) / self.excess

    def rows(self, clients: list[int]) -> Filtered:
        """Of some of the clients only."""
        places = [self.clients.index(client) for client in clients]
        return Filtered(tuple(clients), self.signal[places], self.energy[places], self.excess)

    def held(self) -> Tensor:
        """Log-likelihood ratio [n] of "one of the clients holds x", at the scale that suits the candidates best.

        The scale maximises the likelihood of all candidates where each is somebody's with probability ½.
        """
        mixtures = torch.stack([self._any(float(scale)) for scale in SCALES])
        fits = torch.log((1 + torch.exp(mixtures.clamp(max=500))) / 2).sum(1)
        return mixtures[int(fits.argmax())]

    def standardised(self) -> Tensor:
        """The signal by its deviation [K, n]."""
        return self.signal / (self.excess * self.energy).sqrt().clamp_min(1e-12)

    def _any(self, scale: float) -> Tensor:
        found: Tensor = torch.logsumexp(self.ratios(scale), 0) - torch.log(torch.tensor(float(len(self.clients))))
        return found


def filtered(
    seen: Transcript, asked: Records, public: Records, *, rounds: int | None, width: int, generator: torch.Generator
) -> Filtered:
    """The filter's outputs for ``asked`` over the last ``rounds`` rounds with enough clients (``None``: all).

    Raises:
        ConfigError: only sums were seen, no round had three clients, or an update covers a part of the model.
    """
    models, used, bound = Models(seen.factory), 0, _clipped_at(seen)
    both = join(asked, public)
    sketch = CountSketch(models.layout.size, width, generator)
    signal: dict[int, Tensor] = {}
    energy: dict[int, Tensor] = {}
    for place in reversed(range(len(seen))):
        one = seen[place]
        sent = {client: upload["update"] for client, upload in one.uploads.items() if "update" in upload}
        if used == rounds:
            break
        if len(sent) < FEWEST:
            continue
        used += 1
        received = one.broadcast["parameters"]
        stacked = torch.stack([require_full_update(update, received) for update in sent.values()])
        outputs, left, lengths = _round_outputs(models, one, both, len(asked), stacked, sketch)
        added = _step(seen, one.number) * lengths.clamp(max=bound) * left
        for row, client in enumerate(sent):
            rest = outputs[:, [other for other in range(len(sent)) if other != row]]
            own = rest.var(1)
            spread = ((own + (own / left).mean(1, keepdim=True) * left) / 2).sqrt().clamp_min(1e-12)
            z = (outputs[:, row] - rest.mean(1)) / spread
            m = added / (spread * stacked[row].double().norm().clamp_min(1e-30))
            signal[client] = signal.get(client, 0) + torch.nan_to_num(m * z)
            energy[client] = energy.get(client, 0) + torch.nan_to_num(m.square())
    if not used:
        raise ConfigError(
            f"no round had 'update's of {FEWEST} clients, who are judged by each other; use gradient-alignment instead"
        )
    clients = tuple(sorted(signal))
    tried = [torch.stack([part[client] for client in clients]) for part in (signal, energy)]
    return _clearest(clients, *tried)


def _clearest(clients: tuple[int, ...], signal: Tensor, energy: Tensor) -> Filtered:
    """Of the sums [K, λ, n] those of the λ under which what is promised stands out most from what is there."""
    apart = signal.square() / energy.clamp_min(1e-300)
    clear = energy.sqrt().mean((0, 2)) / apart.mean((0, 2)).sqrt().clamp_min(1e-300)
    best = int(clear.argmax())
    return Filtered(clients, signal[:, best], energy[:, best], max(1.0, float(apart[:, best].mean())))


class CountSketch:
    """Random signs and bins by which vectors [size] become ``width`` numbers with nearly the same inner products."""

    def __init__(self, size: int, width: int, generator: torch.Generator) -> None:
        self.width = width
        self._bins = torch.randint(width, (size,), generator=generator)
        self._signs = 2 * torch.randint(2, (size,), generator=generator).float() - 1

    def of(self, rows: Tensor) -> Tensor:
        """Sketches [n, width] of ``rows`` [n, size]."""
        return rows.new_zeros(len(rows), self.width).index_add_(1, self._bins, rows * self._signs)


def _round_outputs(
    models: Models, one: SeenRound, both: Records, n: int, updates: Tensor, sketch: CountSketch
) -> tuple[Tensor, Tensor, Tensor]:
    """By λ the filter's outputs [λ, k, n] on updates of length 1, those on the records' own ĝ [λ, n], and lengths [n].

    The first n of ``both`` are asked about, the others are the public records.
    """
    unit = unit_rows(updates)
    cosines, sketches, norms = [], [], []
    for gradients, lengths in unit_gradients(models, one.broadcast["parameters"], both):
        cosines.append(-(unit @ gradients.T).double())
        sketches.append(sketch.of(gradients))
        norms.append(lengths.double())
    found, drawn = torch.cat(cosines, 1), torch.cat(sketches)
    known = drawn[n:]
    values, vectors = torch.linalg.eigh((known @ known.T).double())
    values = values.clamp_min(0)
    along = vectors.T @ found[:, n:].T  # [p, k]: what updates have of the public gradients
    shared = (drawn[:n] @ known.T).double() @ vectors  # [n, p]: and what records have of them
    outputs, left = [], []
    for penalty in PENALTIES:
        part = shared / (values + penalty)
        outputs.append(found[:, :n] - (part @ along).T)
        left.append((1 - (part * shared).sum(1)).clamp(1e-6, 1))
    return torch.stack(outputs), torch.stack(left), torch.cat(norms)[:n]


def _clipped_at(seen: Transcript) -> float:
    """The public bound on each example's gradient, ∞ where there is none or one for each layer."""
    bound = (seen.facts.privacy.get("training") or {}).get("max_grad_norm")
    return float(bound) if isinstance(bound, int | float) else float("inf")


def _step(seen: Transcript, number: int) -> float:
    """What every gradient of a client is multiplied by in a round: η·passes/batch size, as far as settings tell."""
    training = training_of(seen.facts, number)
    passes = 1 if training.steps is not None else training.epochs
    return training.learning_rate * passes / training.batch_size

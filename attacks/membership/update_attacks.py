"""Membership attacks of a server that sees single updates: alignment, difference, spread, trajectory, loss.

Every attack asks about one ``client``; with ``client=None`` it attacks the average update of everybody who took part,
which is what secure aggregation leaves. Non-members must have the classes of the client
(:func:`attacks.membership.game.membership_game` sees to that), because an update always tells which classes it knows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.attack import Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.game import Guess, MembershipAttack
from attacks.membership.scores import Models, logit_confidence, losses
from attacks.metrics.distinguishing import Scores
from attacks.observations.messages import require_full_update
from privfl.errors import ConfigError
from privfl.models.flat_network import flatten
from privfl.privacy.accounting.release import Observer
from privfl.simulation.transcript import SeenRound, Transcript

ANOTHER = "another client's updates"
UNTRAINED = "untrained network"


@dataclass(frozen=True)
class FederatedMembership(MembershipAttack):
    """Base of the attacks here.

    The null is the same score from another client's updates, or, where there is none, the loss at an untrained network.

    Args:
        client: whose records are asked about; ``None`` for anybody's.
        rounds: how many of the rounds in which the client took part are used, the last ones; ``None`` all.

    Class attribute:
        company: how many other clients a round must have for one of them to serve as the null.
    """

    company: ClassVar[int] = 1
    observer: ClassVar[Observer] = "server"
    client: int | None = 0
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise ConfigError(f"{self.name} uses {self.rounds} rounds; give an integer ≥ 1, or leave it out")

    @abstractmethod
    def score(self, seen: Transcript, asked: Records, models: Models, client: int | None) -> Scores:
        """Scores [n] of the records ``asked``, from the messages of ``client``."""

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> Guess:
        asked, models = auxiliary.need_candidates(), Models(seen.factory)
        found = self.score(seen, asked, models, self.client)
        rival = self._rival(seen)
        if rival is not None:
            return Guess(found, {ANOTHER: self.score(seen, asked, models, rival)}, asked.targets)
        fresh = models.logits(flatten(seen.factory(1)), asked.inputs)
        return Guess(found, {UNTRAINED: (-losses(fresh, asked.targets)).numpy()}, asked.targets)

    def messages(self, seen: Transcript, client: int | None) -> Iterator[tuple[SeenRound, Tensor, Tensor]]:
        """Round, broadcast parameters [size] and update [size] of every round that is used, the latest first.

        Raises:
            ConfigError: there is no update of that client, or only sums were seen.
        """
        used = 0
        for place in reversed(range(len(seen))):
            if used == self.rounds:
                return
            one = seen[place]
            if _took_part(one, client):
                used += 1
                received = one.broadcast["parameters"]
                yield one, received, require_full_update(_update(one, client), received)
        if not used:
            who = "nobody" if client is None else f"client {client}"
            raise ConfigError(f"{who} sent an 'update' in the {len(seen)} rounds that were seen; ask about another")

    def _rival(self, seen: Transcript) -> int | None:
        """Another client of the last round with enough of them; ``None`` without one, and if anybody is asked about."""
        for place in reversed(range(0 if self.client is None else len(seen))):
            others = [member for member in seen[place].training.members if member != self.client]
            if len(others) >= self.company:
                return others[0]
        return None


@dataclass(frozen=True)
class GradientAlignment(FederatedMembership):
    """Score Σ_t cos(−∇ℓ(w_t; x), Δ_t): an update points down the slopes of its own examples."""

    name: ClassVar[str] = "gradient-alignment"
    needs: ClassVar[Needs] = Needs(("update",), candidates=True, truth=("members",))

    def score(self, seen: Transcript, asked: Records, models: Models, client: int | None) -> Scores:
        total = torch.zeros(len(asked), dtype=torch.float64)
        for _, before, update in self.messages(seen, client):
            for rows, gradients in _chunks(models, before, asked):
                lengths = gradients.norm(dim=1) * update.norm()
                total[rows] -= (gradients @ update / lengths.clamp_min(1e-30)).double()
        return _finite(total)


@dataclass(frozen=True)
class GradientDifference(FederatedMembership):
    """Score Σ_t (‖∇ℓ(w_t; x)‖² − ‖∇ℓ(w_t; x) + Δ_t/η‖²): how much shorter the example's slope is without the update.

    Expanded it is −2⟨∇ℓ, Δ_t⟩/η − ‖Δ_t‖²/η²: an inner product that, unlike the cosine, trusts examples with large
    gradients more. η is the effective learning rate: the round's public rate times its steps.

    Args:
        steps: local steps of a round; ``None`` takes the public number, or 1 where clients train by epochs.
    """

    name: ClassVar[str] = "gradient-difference"
    needs: ClassVar[Needs] = Needs(("update",), candidates=True, truth=("members",))
    steps: int | None = None

    def score(self, seen: Transcript, asked: Records, models: Models, client: int | None) -> Scores:
        public = seen.facts.training
        steps = self.steps or public["steps"] or 1
        total = torch.zeros(len(asked), dtype=torch.float64)
        for one, before, update in self.messages(seen, client):
            decays = public["learning_rate_decay"] ** (one.number // public["decay_every"])
            step = update / (public["learning_rate"] * decays * steps)
            for rows, gradients in _chunks(models, before, asked):
                total[rows] += (gradients.square().sum(1) - (gradients + step).square().sum(1)).double()
        return _finite(total)


@dataclass(frozen=True)
class LossTrajectory(FederatedMembership):
    """Offline LiRA with the other clients as shadows: Σ_t (φ_t − mean_j φ_j,t)/std_t, their models being natural OUTs.

    φ is the logit confidence of the local model w_t + Δ_t. The deviation is one number per round, over all records and
    other clients, because a round has few of them; rounds with fewer than two others are left out.
    """

    name: ClassVar[str] = "loss-trajectory"
    needs: ClassVar[Needs] = Needs(("update",), candidates=True, truth=("members",))
    company: ClassVar[int] = 3

    def score(self, seen: Transcript, asked: Records, models: Models, client: int | None) -> Scores:
        if client is None:
            raise ConfigError("loss-trajectory compares one client with the others; give its number as client")
        total, used = torch.zeros(len(asked), dtype=torch.float64), 0
        for one, before, update in self.messages(seen, client):
            others = [upload["update"] for j, upload in one.uploads.items() if j not in (client, self.client)]
            if len(others) < 2:
                continue
            used += 1
            own, *out = (_confidence(models, before + change, asked) for change in (update, *others))
            apart = torch.stack(out)
            total += (own - apart.mean(0)) / apart.var(0).mean().sqrt().clamp_min(1e-12)
        if not used:
            raise ConfigError(f"client {client} never met two others in a round; attack it with loss-drop instead")
        return _finite(total)


@dataclass(frozen=True)
class LossDrop(FederatedMembership):
    """Score Σ_t (ℓ(w_t; x) − ℓ(w_t + Δ_t; x)): by how much the client's training brings the loss of x down.

    Against a server that only watches it is a weak attack. Against one that ascends the candidates' losses before it
    sends the model out (:func:`~attacks.membership.active_server.gradient_ascent_server`) it is the active attack of
    Nasr, Shokri and Houmansadr (S&P 2019): only who trains on x brings its loss back down.
    """

    name: ClassVar[str] = "loss-drop"
    needs: ClassVar[Needs] = Needs(("update",), candidates=True, truth=("members",))

    def score(self, seen: Transcript, asked: Records, models: Models, client: int | None) -> Scores:
        total = torch.zeros(len(asked), dtype=torch.float64)
        for _, before, update in self.messages(seen, client):
            start, end = (models.logits(at, asked.inputs) for at in (before, before + update))
            total += losses(start, asked.targets) - losses(end, asked.targets)
        return _finite(total)


@dataclass(frozen=True)
class GradientSpread(FederatedMembership):
    """Score: the variance over rounds of ⟨∇ℓ(w_t; x), Δ_t⟩/‖∇ℓ(w_t; x)‖, for noise that may be the same every time.

    Noise drawn once cancels in the differences of the rounds, and what is left are the examples that a sampled batch
    has in one round and lacks in another. Where noise is fresh this is a weak attack; gradients that change much
    between the rounds blur it.
    """

    name: ClassVar[str] = "gradient-spread"
    needs: ClassVar[Needs] = Needs(("update",), candidates=True, truth=("members",))

    def score(self, seen: Transcript, asked: Records, models: Models, client: int | None) -> Scores:
        found = []
        for _, before, update in self.messages(seen, client):
            along = torch.empty(len(asked), dtype=torch.float64)
            for rows, gradients in _chunks(models, before, asked):
                along[rows] = (gradients @ update).double() / gradients.norm(dim=1).clamp_min(1e-30)
            found.append(along)
        if len(found) < 2:
            raise ConfigError(f"gradient-spread compares rounds, and of client {client} one was seen; record more")
        return _finite(torch.stack(found).var(0))


def _took_part(one: SeenRound, client: int | None) -> bool:
    if client is None:
        return one.training.weight > 0 and "update" in one.total
    return client in one.training.members and "update" in one.uploads[client]


def _update(one: SeenRound, client: int | None) -> Tensor:
    if client is not None:
        return one.uploads[client]["update"]
    return (one.total["update"] / one.training.weight).to(one.broadcast["parameters"])  # sums may be float64


def _chunks(models: Models, parameters: Tensor, asked: Records) -> Iterator[tuple[slice, Tensor]]:
    """The records' gradients at ``parameters``, chunk by chunk, with their places."""
    begin = 0
    for gradients in models.gradients(parameters, asked):
        yield slice(begin, begin + len(gradients)), gradients
        begin += len(gradients)


def _confidence(models: Models, parameters: Tensor, asked: Records) -> Tensor:
    return logit_confidence(models.logits(parameters, asked.inputs), asked.targets)


def _finite(scores: Tensor) -> Scores:
    """A score that overflowed says nothing: it counts as the lowest."""
    return torch.nan_to_num(scores, nan=-torch.inf).numpy()

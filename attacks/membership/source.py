"""Which client holds a record that is known to be somebody's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attacks.attack import Attack, Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.membership.matched_filter import filtered
from attacks.membership.shadow_models import join
from attacks.metrics.measure import Measure, proportion
from attacks.result import AttackResult
from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Observer
from privfl.randomness import torch_stream
from privfl.schema import plain
from privfl.simulation.transcript import Transcript
from privfl.validation import check_count

NOBODYS = "public records of the same classes"


@dataclass(frozen=True)
class SourceGuess:
    """The client believed to hold each record, int64 [n], what nulls believe, and how many clients there were."""

    owners: Tensor
    nulls: Mapping[str, Tensor]
    clients: int


@dataclass(frozen=True)
class SourceInference(Attack):
    """The owner of x is the client in whose updates the matched filter finds most of x's gradient.

    Hu, Salcic, Sun, Dobbie and Zhang, "Source Inference Attacks in Federated Learning" (ICDM 2021), ask this question
    and name the client whose local model has the smallest loss on x; here the statistic is that of
    :mod:`attacks.membership.matched_filter`. Half of the public records explain what updates share, the other half
    serve the null. Nulls: chance, one in as many as there are clients, and the same attack on a public record of the
    class of x in its place, which nobody holds: what is right there is read off the class alone.

    The judge needs ``truth["owners"]`` int64 [n] of the candidates, all of whom are somebody's.

    Args:
        rounds: how many rounds are read, the last ones; ``None`` all.
        references: public records that explain an update, at most.
        width: of the sketches of gradients.
        seed: of the sketches.
    """

    name: ClassVar[str] = "source-inference"
    observer: ClassVar[Observer] = "server"
    needs: ClassVar[Needs] = Needs(("update",), public=True, candidates=True, truth=("owners",))
    rounds: int | None = None
    references: int = 500
    width: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds is not None:
            check_count(f"{self.name}'s rounds", self.rounds)
        check_count(f"{self.name}'s references", self.references, 2)
        check_count(f"{self.name}'s width", self.width, 2)

    def guess(self, seen: Transcript, auxiliary: Auxiliary) -> SourceGuess:
        """The likeliest owner of every candidate.

        Raises:
            ConfigError: only sums were seen, no round had three clients, or a class has no public record.
        """
        asked, public = auxiliary.need_candidates(), auxiliary.need_public()
        if len(public) < 4:
            raise ConfigError(f"{self.name} needs public records for both its halves, and there are {len(public)}")
        known, apart = public[torch.arange(0, len(public), 2)], public[torch.arange(1, len(public), 2)]
        known = known[torch.arange(min(self.references, len(known)))]
        both = join(asked, same_classes(apart, asked.targets))
        generator = torch_stream(self.seed, "source-inference")
        found = filtered(seen, both, known, rounds=self.rounds, width=self.width, generator=generator)
        owners = torch.tensor(found.clients)[found.standardised().argmax(0)]
        return SourceGuess(owners[: len(asked)], {NOBODYS: owners[len(asked) :]}, len(found.clients))

    def judge(self, guess: SourceGuess, auxiliary: Auxiliary, seconds: float) -> AttackResult:
        truth = auxiliary.answer("owners")
        if len(truth) != len(guess.owners):
            raise ConfigError(f"there are {len(truth)} owners of {len(guess.owners)} candidates; give one for each")
        chance = 1 / guess.clients
        nulls = {"chance": {"accuracy": Measure(chance, chance, chance)}}
        nulls |= {name: {"accuracy": accuracy(found, truth)} for name, found in guess.nulls.items()}
        return AttackResult(
            attack=self.name,
            primary="accuracy",
            metrics={"accuracy": accuracy(guess.owners, truth)},
            nulls=nulls,
            seconds=seconds,
            units=len(truth),
            unit="record",
            settings=plain(self),
        )


def accuracy(found: Tensor, truth: Tensor) -> Measure:
    """The share of the owners ``found`` int64 [n] that are right."""
    return proportion(int((found == truth).sum()), len(truth))


def same_classes(public: Records, targets: Tensor) -> Records:
    """A public record of the class of each of ``targets`` [n], one after the other as they come.

    Raises:
        ConfigError: a class has no public record.
    """
    rows = np.zeros(len(targets), dtype=np.int64)
    for label in sorted(set(targets.tolist())):
        known, wanted = (public.targets == label).nonzero().flatten(), (targets == label).nonzero().flatten()
        if not len(known):
            raise ConfigError(f"class {label} has no public record; give public data of all classes that are asked of")
        rows[wanted.numpy()] = known[torch.arange(len(wanted)) % len(known)].numpy()
    return public[torch.from_numpy(rows)]

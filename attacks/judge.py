"""The judge of attacks on a run: deals public records and candidates, and holds the answers that attacks never see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.attack import Attack, Needs
from attacks.auxiliary import Auxiliary, Records
from attacks.images.pixels import Pixels, pixels_of
from attacks.membership.game import membership_game, users_game
from attacks.property_inference import PROPERTIES
from privfl.errors import ConfigError
from privfl.experiment import Experiment
from privfl.federation.task import Task
from privfl.randomness import torch_stream


@dataclass(frozen=True)
class Judge:
    """What is known of a run by whoever simulates it.

    Args:
        task: the run's task, with all its clients' records.
        seed: decides which held-out examples are public and which records are asked about.
        public_share: share of the held-out examples that attackers own, in (0, 1); the rest are non-members.
        candidates: at most so many records are asked about, half of them members.
        pixels: how inputs come from images, for attacks that are not given it themselves.
    """

    task: Task
    seed: int
    public_share: float
    candidates: int
    pixels: Pixels | None = None

    @classmethod
    def of(
        cls,
        run: Path,
        seed: int,
        public_share: float,
        candidates: int,
        task: str | None = None,
        pixels: Pixels | None = None,
    ) -> Judge:
        """The judge of the run in the directory ``run``, whose task is had again as its ``config.toml`` says.

        Args:
            task: ``module:function`` that returns the task, for a run on data that were handed over in Python.

        Raises:
            ConfigError: there is no run, or its task cannot be had again; the sentence says what it needs.
        """
        experiment = Experiment.of_run(run, [] if task is None else [f"task={task}"])
        return cls(experiment.task(), seed, public_share, candidates, pixels)

    def auxiliary(self, attack: Attack, needs: Needs) -> Auxiliary:
        """What ``attack``, which has ``needs``, gets besides the transcript, and the answers it is judged by.

        Raises:
            ConfigError: the attack is not for tasks of this kind, the attacked client does not exist, or its records
                are not what the attack looks for.
        """
        attack.check_kind(self.task.kind)
        public, others = self._held_out()
        client: int | None = getattr(attack, "client", None)
        rows = self._rows(client)
        held = Records(self.task.inputs[rows], self.task.targets[rows])
        own = Records(self.task.test_inputs[public], self.task.test_targets[public])
        outside = Records(self.task.test_inputs[others], self.task.test_targets[others])
        if "users" in needs.truth:
            return users_game(*self._users(), outside, own, self.candidates, torch_stream(self.seed, "attack-users"))
        if needs.candidates:
            chosen = torch.randperm(len(rows), generator=torch_stream(self.seed, "attack-members"))
            chosen = chosen[: self.candidates // 2]
            if "owners" in needs.truth:
                return Auxiliary(own, held[chosen], {"owners": self._owners(rows[chosen])})
            return membership_game(held[chosen], outside, torch_stream(self.seed, "attack-game"), own)
        answers = {name: self._answer(name, attack, held) for name in needs.truth}
        return Auxiliary(public=own, truth=answers)

    def _held_out(self) -> tuple[Tensor, Tensor]:
        """Rows of the held-out examples: the attacker's, and those that nobody trained on."""
        total = len(self.task.test_targets)
        order = torch.randperm(total, generator=torch_stream(self.seed, "attack-public"))
        cut = round(self.public_share * total)
        if not 0 < cut < total:
            raise ConfigError(f"public_share = {self.public_share} of {total} held-out examples leaves one side empty")
        return order[:cut], order[cut:]

    def _rows(self, client: int | None) -> Tensor:
        clients = self.task.clients
        if client is None:
            return clients.rows
        if not 0 <= client < len(clients):
            raise ConfigError(f"client is {client}; the run has the clients 0 to {len(clients) - 1}")
        return clients[client]

    def _users(self) -> tuple[Records, list[Tensor]]:
        """Records of all clients, and the rows of each one's: what it did not train on, where it has such."""
        held = self.task.clients if self.task.local_tests is None else self.task.local_tests
        rows = [held[client] for client in range(len(held)) if len(held[client])]
        every = torch.cat(rows)
        places = torch.split(torch.arange(len(every)), [len(part) for part in rows])
        return Records(self.task.inputs[every], self.task.targets[every]), list(places)

    def _owners(self, rows: Tensor) -> Tensor:
        """The client that holds each of ``rows`` [n]."""
        clients = self.task.clients
        place = torch.full((len(self.task.targets),), -1, dtype=torch.int64)
        for client in range(len(clients)):
            place[clients[client]] = client
        return place[rows]

    def _answer(self, name: str, attack: Attack, held: Records) -> Tensor:
        """The answer ``name``: counts [clients, C], sizes [clients], property [clients], or the attacked records."""
        clients, classes = self.task.clients, self.task.classes
        parts = [clients[number] for number in range(len(clients))]
        if name == "counts":
            return torch.stack([torch.bincount(self.task.targets[part], minlength=classes) for part in parts])
        if name == "sizes":
            return torch.from_numpy(clients.sizes)
        if name == "property":
            return self._property(attack, parts)
        if name == "labels":
            return held.targets
        if name == "tokens":
            return self._tokens(held)
        if name == "tokens_at":
            return self._texts(held)
        batch = getattr(attack, "batch", None)
        if batch is not None and batch != len(held):
            raise ConfigError(
                f"the attacked update is of {len(held)} images, and {attack.name} looks for batch = {batch}; set the "
                "client and its number of images"
            )
        pixels = getattr(attack, "pixels", None) or self.pixels
        return pixels_of(self.task.name, held.inputs, pixels, "clients'").images(held.inputs)

    def _tokens(self, held: Records) -> Tensor:
        """Which of all tokens occur in ``held``, bool [vocabulary]."""
        texts = self._texts(held)
        return torch.zeros(self.task.vocabulary or 0, dtype=torch.bool).index_fill_(0, texts.flatten(), True)

    def _texts(self, held: Records) -> Tensor:
        """The token at each place of the texts ``held``, int64 [B, L]."""
        if self.task.vocabulary is None:
            raise ConfigError("the inputs are no token ids, so there are no words to find; attack a task of texts")
        return held.inputs

    def _property(self, attack: Any, parts: list[Tensor]) -> Tensor:
        """Which clients hold the property in most of their records; all records together decide what has it."""
        rows = self.task.clients.rows
        holds = PROPERTIES[attack.holds](Records(self.task.inputs[rows], self.task.targets[rows]))
        sizes = [len(part) for part in parts]
        return torch.stack([part.double().mean() > 0.5 for part in torch.split(holds, sizes)])

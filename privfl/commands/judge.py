"""The judge of attacks on a run: deals public records and candidates, and holds the answers that attacks never see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privfl.companions import companion
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
    """

    task: Task
    seed: int
    public_share: float
    candidates: int

    @classmethod
    def of(cls, run: Path, seed: int, public_share: float, candidates: int, task: str | None = None) -> Judge:
        """The judge of the run in the directory ``run``, whose task is had again as its ``config.toml`` says.

        Args:
            task: ``module:function`` that returns the task, for a run on data that were handed over in Python.

        Raises:
            ConfigError: there is no run, or its task cannot be had again; the sentence says what it needs.
        """
        experiment = Experiment.of_run(run, [] if task is None else [f"task={task}"])
        return cls(experiment.task(), seed, public_share, candidates)

    def auxiliary(self, attack: Any, needs: Any) -> Any:
        """What ``attack``, which has ``needs``, gets besides the transcript, and the answers it is judged by.

        Raises:
            ConfigError: the attacked client does not exist, or its records are not what the attack looks for.
        """
        names = companion("attacks.auxiliary")
        public, others = self._held_out()
        client = getattr(attack, "client", None)
        rows = self._rows(client)
        held = names.Records(self.task.inputs[rows], self.task.targets[rows])
        own = names.Records(self.task.test_inputs[public], self.task.test_targets[public])
        if needs.candidates:
            game = companion("attacks.membership.game").membership_game
            chosen = torch.randperm(len(rows), generator=torch_stream(self.seed, "attack-members"))
            inside = held[chosen[: self.candidates // 2]]
            outside = names.Records(self.task.test_inputs[others], self.task.test_targets[others])
            return game(inside, outside, torch_stream(self.seed, "attack-game"), own)
        answers = {name: self._answer(name, attack, held) for name in needs.truth}
        return names.Auxiliary(public=own, truth=answers)

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

    def _answer(self, name: str, attack: Any, held: Any) -> Tensor:
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
            targets: Tensor = held.targets
            return targets
        batch = getattr(attack, "batch", None)
        if batch is not None and batch != len(held):
            raise ConfigError(
                f"the attacked update is of {len(held)} images, and {attack.name} looks for batch = {batch}; set the "
                "client and its number of images"
            )
        pixels = companion("attacks.images.pixels").Pixels.of(self.task.name)
        images: Tensor = pixels.images(held.inputs)
        return images

    def _property(self, attack: Any, parts: list[Tensor]) -> Tensor:
        """Which clients hold the property in most of their records; all records together decide what has it."""
        module = companion("attacks.property_inference")
        records = companion("attacks.auxiliary").Records(
            self.task.inputs[self.task.clients.rows], self.task.targets[self.task.clients.rows]
        )
        holds = module.PROPERTIES[attack.holds](records)
        sizes = [len(part) for part in parts]
        return torch.stack([part.double().mean() > 0.5 for part in torch.split(holds, sizes)])

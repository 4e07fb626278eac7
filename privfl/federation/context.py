"""What an algorithm may know of the run that it is part of: public facts about the model and the federation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from privfl.data.targets import TaskKind
from privfl.errors import ConfigError
from privfl.models.flat_network import Layout, flatten, frozen_parameters
from privfl.randomness import process_generators, stream_seed

HEAD = "head."
"""The parameters of a network's head are those whose names start so (:class:`privfl.models.base.Network`)."""


@dataclass(frozen=True)
class RunContext:
    """Public facts of one run; nothing here depends on a client's data.

    Args:
        model: builds the task's network from a seed.
        classes: number of classes; of outputs, where the task is of another ``kind``.
        clients: clients of the whole federation.
        planned: how many rounds are planned; ``None`` keeps it from an algorithm that does not say it uses that.
        seed: root seed of the experiment.
        input_shape: shape of one input, without the batch.
        device: where parameters live.
        kind: of the task.
    """

    model: Callable[[int], nn.Module]
    classes: int
    clients: int
    planned: int | None
    seed: int
    input_shape: tuple[int, ...]
    device: torch.device
    kind: TaskKind = "classification"

    @property
    def usual_loss(self) -> float:
        """The mean loss of a model that knows nothing, > 0, for algorithms that need a public scale of losses.

        For a regression it is 1: that of a constant, where targets are standardised.
        """
        if self.kind == "regression":
            return 1.0
        return math.log(2 if self.kind == "multi-label" else max(self.classes, 2))

    @property
    def rounds(self) -> int:
        """How many rounds are planned.

        Raises:
            ConfigError: the algorithm does not say that it uses this; then its runs may go on for more.
        """
        if self.planned is None:
            raise ConfigError(
                "this algorithm reads how many rounds are planned and does not say so; declare uses_rounds: "
                "ClassVar[bool] = True in its class"
            )
        return self.planned

    @cached_property
    def _template(self) -> nn.Module:
        return self.network()

    @cached_property
    def layout(self) -> Layout:
        """Where each parameter lies in a flat vector."""
        return Layout.of(self._template)

    @cached_property
    def head(self) -> Tensor:
        """Which parameters belong to the head, bool [size].

        Raises:
            ConfigError: the network has no head, or nothing but a head that is trained.
        """
        mask = torch.cat(
            [
                torch.full((size,), name.startswith(HEAD), device=self.device)
                for name, size in zip(self.layout.names, self.layout.sizes, strict=True)
            ]
        )
        if bool(mask.all()) and any(not name.startswith(HEAD) for name in frozen_parameters(self._template)):
            raise ConfigError(
                f"the body of the model {type(self._template).__name__} is frozen, and this algorithm trains body and "
                "head apart; leave something of the body to be trained, or take an algorithm that needs no such parts"
            )
        if bool(mask.all()) or not bool(mask.any()):
            raise ConfigError(
                f"the model {type(self._template).__name__} is not divided into a body and a head, which this "
                "algorithm needs (logistic regression is a head alone); use another one of `privfl list models`, such "
                "as two-nn or two-cnn, or privfl.models.Network(body, head)"
            )
        return mask

    @cached_property
    def feature_dim(self) -> int:
        """Width of the features that the head reads.

        Raises:
            ConfigError: the network does not say.
        """
        width = getattr(self._template, "feature_dim", None)
        if not isinstance(width, int):
            raise ConfigError(
                f"the model {type(self._template).__name__} has no feature_dim, which this algorithm needs; use a "
                "model of `privfl list models` or privfl.models.Network(body, head)"
            )
        return width

    @cached_property
    def blocks(self) -> Tensor:
        """The number of the layer that each parameter belongs to, int64 [size]; layers count from 0 in order."""
        numbers: dict[str, int] = {}
        for name in self.layout.names:
            numbers.setdefault(name.rpartition(".")[0], len(numbers))
        owners = [numbers[name.rpartition(".")[0]] for name in self.layout.names]
        sizes = torch.tensor(self.layout.sizes)
        return torch.repeat_interleave(torch.tensor(owners), sizes).to(self.device)

    def fresh(self, stream: str, number: int) -> Tensor:
        """Newly initialised parameters [size], the same for the same (seed, stream, number), in any thread."""
        return flatten(self._built(stream_seed(self.seed, stream, number) % 2**31))

    def network(self) -> nn.Module:
        """A network of the task in evaluation mode, for work of the server on data that the server owns."""
        return self._built(self.seed).eval()

    def _built(self, seed: int) -> nn.Module:
        with process_generators():  # which the task's model may draw from, whoever wrote it
            return self.model(seed).to(self.device)

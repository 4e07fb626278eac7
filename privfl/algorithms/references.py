"""The two reference points: training on pooled data, and training alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from privfl.algorithms.base import Algorithm, Round, Tensors
from privfl.privacy.channel.field import Field
from privfl.privacy.door.batch_plans import LocalTraining


@dataclass(frozen=True)
class Centralized(Algorithm):
    """SGD on the pooled data of all clients: the upper reference. A round is ``training.steps`` or epochs of SGD.

    Whoever trains holds the data, so nothing is claimed against the server. With DP-SGD this is ordinary DP-SGD. With
    noise on updates one client's data is a part of what the one update comes from, which without it may be any other
    of the same bound: it costs a client what it costs one example.
    """

    name: ClassVar[str] = "centralized"
    pools_data: ClassVar[bool] = True

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        return {**server, "parameters": server["parameters"] + total["update"]}


@dataclass(frozen=True)
class Local(Algorithm):
    """Every client trains alone from the common start and sends nothing: the lower reference.

    The global test averages the soft-max outputs of all local models.
    """

    name: ClassVar[str] = "local"
    keeps: ClassVar[tuple[str, ...]] = ("parameters",)
    ensemble: ClassVar[bool] = True

    def fields(self) -> tuple[Field, ...]:
        return ()

    def begin(self, received: Tensors, client_state: Tensors, training: LocalTraining) -> Tensors:
        return super().begin(
            {"parameters": client_state.get("parameters", received["parameters"])}, client_state, training
        )

    def finish(self, local: Tensors, received: Tensors, training: LocalTraining) -> Tensors:
        return {}

    def personal(self, server: Tensors, client_state: Tensors) -> dict[str, Tensor]:
        return {"own": client_state.get("parameters", server["parameters"])}

    def aggregate(self, server: Tensors, total: Tensors, round: Round, training: LocalTraining) -> Tensors:
        return server

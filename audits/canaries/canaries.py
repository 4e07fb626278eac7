"""Canaries: rows that stand out, put into a client's data or left out by the auditor's own coins.

A canary is an ordinary row of an ordinary task: it passes the same door as every other row, and nothing in privfl knows
of it. What makes it one is that its gradient points where few others do, and that the auditor knows where.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privfl.data.mapped import MappedRows
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.kinds import random_targets
from privfl.federation.task import Task
from privfl.randomness import numpy_stream, torch_stream
from privfl.simulation.result import Run

Coins = NDArray[np.bool_]
Train = Callable[[Task], Run]
"""Trains on a task and records what the observer sees: ``lambda task: pf.simulate(task, …, record=["server"])``."""

SEPARABLE = frozenset({"fedavg", "fedprox", "scaffold", "feddyn", "fedadam", "fedyogi", "fedadagrad"})
"""Algorithms that treat every parameter by itself, so that canaries that are apart stay independent."""


@dataclass(frozen=True)
class Canaries:
    """Rows that may be planted.

    Args:
        inputs: [m, ...] of the task's shape and dtype.
        targets: [m] class numbers.
        owners: [m], the client that holds each one.
        apart: no other row, canary or not, touches the parameters that a canary's gradient does not vanish on. Then
            what the observer sees of one canary is independent of all others, which bounds from a family of trade-off
            curves need. Audits look whether it is so, see :func:`interference`.
    """

    inputs: Tensor
    targets: Tensor
    owners: NDArray[np.int64]
    apart: bool = False

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.targets) == len(self.owners) >= 1:
            raise ConfigError(
                f"canaries have {len(self.inputs)} inputs, {len(self.targets)} targets and {len(self.owners)} owners; "
                "give one of each for every canary, and at least one canary"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def coins(self, seed: int) -> Coins:
        """The auditor's coins [m]: each canary is included with probability ½, independently."""
        return numpy_stream(seed, "audit-coins").random(len(self)) < 0.5


def mixed_coins(canaries: Canaries, seed: int) -> Coins:
    """The coins of ``canaries``, which fell on both sides.

    No other seed is advised where they did not: coins that are tossed until they please are not fair ones.

    Raises:
        ConfigError: all fell on one side.
    """
    included = canaries.coins(seed)
    if included.all() or not included.any():
        raise ConfigError(f"all {len(canaries)} canaries are in one group; plant more canaries")
    return included


def plant(task: Task, canaries: Canaries, included: Coins) -> Task:
    """``task`` with the ``included`` [m] of the canaries among their owners' rows.

    Raises:
        ConfigError: an owner is no client of the task, or the task's inputs lie in a memory map.
    """
    if isinstance(task.inputs, MappedRows):
        raise ConfigError("canaries cannot be planted in a memory map; audit a task whose inputs are in memory")
    if canaries.owners.min() < 0 or canaries.owners.max() >= len(task.clients):
        raise ConfigError(
            f"a canary belongs to client {canaries.owners.max()}; the task has the clients 0 to {len(task.clients) - 1}"
        )
    chosen = np.flatnonzero(included)
    begin = len(task.targets)
    parts = [task.clients[client].numpy() for client in range(len(task.clients))]
    for client in np.unique(canaries.owners[chosen]):
        own = begin + np.flatnonzero(canaries.owners[chosen] == client)
        parts[client] = np.concatenate([parts[client], own])
    picked, held = torch.from_numpy(chosen), task.inputs[:]
    return replace(
        task,
        inputs=torch.cat([held, canaries.inputs[picked].to(held)]),
        targets=torch.cat([task.targets, canaries.targets[picked].to(task.targets)]),
        clients=ClientIndex.of(parts),
        report=None,
    )


def noise_canaries(task: Task, count: int, *, scale: float = 3.0, client: int | None = None, seed: int = 0) -> Canaries:
    """``count`` rows of random inputs and targets, for any task: what training would never see otherwise.

    Inputs are normal numbers of standard deviation ``scale``, so that gradients are long enough to be clipped, or
    random tokens. They overlap, and certify less than canaries that are :attr:`Canaries.apart`.

    Args:
        client: who holds them all; ``None`` deals them to all clients in turn.

    Raises:
        ConfigError: ``count`` < 1.
    """
    if count < 1:
        raise ConfigError(f"{count} canaries audit nothing; plant at least one")
    generator = torch_stream(seed, "audit-canaries")
    shape = (count, *task.inputs.shape[1:])
    if task.vocabulary is not None:
        inputs = torch.randint(task.vocabulary, shape, generator=generator)
    else:
        inputs = torch.randn(shape, generator=generator) * scale
    targets = random_targets(task.kind, count, task.classes, shape[1:], generator)
    return Canaries(inputs, targets, _owners(count, len(task.clients), client))


def rare_token_canaries(task: Task, count: int, *, client: int | None = None) -> Canaries:
    """``count`` canaries for :func:`rare_token_task`, each a row of a token of its own, 1 to ``count``.

    They are ``apart`` there, and on other tasks of texts as far as :func:`interference` finds nothing.

    Raises:
        ConfigError: ``count`` < 1, or the task has no token for each.
    """
    if count < 1:
        raise ConfigError(f"{count} canaries audit nothing; plant at least one")
    if task.vocabulary is None or task.vocabulary <= count:
        raise ConfigError(f"{count} canaries need a token each; build the task with rare_token_task({count})")
    tokens = torch.arange(1, count + 1)[:, None]
    found = Canaries(tokens, torch.ones(count, dtype=torch.int64), _owners(count, len(task.clients), client))
    return replace(found, apart=not interference(task, found))


def interference(task: Task, canaries: Canaries) -> str:
    """Why ``canaries`` may meet other rows of ``task``, or each other, in a clause; empty if none ever does.

    That gradients have no parameter in common where training begins says nothing of where it ends. What is looked at is
    therefore the network: with :class:`TokenWeights` a row meets the weights of its own tokens alone, wherever they
    are; any other network may share some.
    """
    if not has_weights_by_token(task):
        return f"the model {task.model_name} may share weights between tokens"
    per_row = [torch.unique(row) for row in canaries.inputs.flatten(1)]
    tokens, times = torch.unique(torch.cat(per_row), return_counts=True)
    if int(times.max()) > 1:
        return f"the token {int(tokens[times.argmax()])} is in several of them"
    met = torch.isin(tokens, torch.as_tensor(task.inputs[:]))
    return f"the token {int(tokens[met][0])} of one of them is in other rows, too" if bool(met.any()) else ""


def has_weights_by_token(task: Task) -> bool:
    """Whether the network of ``task`` is :class:`TokenWeights` itself, with nothing put in place of its parts."""
    return [type(part) for part in task.model(0).modules()] == [TokenWeights, nn.Embedding]


def check_apart(task: Task, canaries: Canaries) -> None:
    """Refuse canaries that are said to be apart and are not on ``task``.

    Raises:
        ConfigError: they may meet other rows, or each other.
    """
    reason = interference(task, canaries) if canaries.apart else ""
    if reason:
        raise ConfigError(
            f"the canaries are said to be apart, and {reason}; plant rare_token_canaries in a rare_token_task, or "
            "canaries with apart=False"
        )


def as_trained(run: Run, canaries: Canaries) -> Canaries:
    """``canaries`` that were planted and apart, which they are no more if ``run`` trained a network of another kind."""
    kept = run.asked is not None and has_weights_by_token(run.asked.task)
    return canaries if kept or not canaries.apart else replace(canaries, apart=False)


def rare_token_task(count: int, *, clients: int = 1, rows: int = 1, scale: float = 1.0) -> Task:
    """A small text task with room for ``count`` rare tokens: logistic regression on the mean of the tokens' weights.

    Every client holds ``rows`` rows of token 0. A row of a token of its own has a gradient on that token's weights and
    nowhere else: the nearest thing to the Dirac canaries of Nasr et al. (USENIX Security 2023) that ordinary data make.
    Its norm is ``scale``/√2 at the zero weights that training begins with: the default is clipped by ``max_grad_norm``
    = 0.5.
    """
    owners = np.repeat(np.arange(clients), rows)
    inputs = np.zeros((len(owners), 1), dtype=np.int64)
    return Task.from_arrays(
        inputs,
        np.arange(len(owners)) % 2,
        clients=owners,
        test=(np.zeros((2, 1), dtype=np.int64), np.array([0, 1])),
        vocabulary=count + 1,
        model=TokenWeights.of(count + 1, scale),
    )


class TokenWeights(nn.Module):
    """Logits [B, 2] of token sequences [B, L]: ``scale`` times the mean of the tokens' weights, zero at first."""

    def __init__(self, vocabulary: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weights = nn.Embedding(vocabulary, 2, _weight=torch.zeros(vocabulary, 2))
        self.scale = scale

    @classmethod
    def of(cls, vocabulary: int, scale: float = 1.0) -> Callable[[], TokenWeights]:
        """Builds the network for ``vocabulary`` tokens."""

        def token_weights() -> TokenWeights:
            return cls(vocabulary, scale)

        return token_weights

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, 2] of ``tokens`` [B, L]."""
        logits: Tensor = self.weights(tokens).mean(1) * self.scale
        return logits


def _owners(count: int, clients: int, client: int | None) -> NDArray[np.int64]:
    return np.arange(count) % clients if client is None else np.full(count, client)

"""The loss along the segment between two end points, the barrier on it, and the loss in the plane of three models.

SuPerFed's claim is that all mixtures of a client's two end points are good models. The curve over λ, for every client
on data of its own, is what such a claim should be judged by; the plane shows where the segment lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from privfl.algorithms.personal.interpolation import mix
from privfl.engine.workspace import RoundContext
from privfl.errors import ConfigError
from privfl.federation.client_index import ClientIndex
from privfl.federation.task import Task
from privfl.models.flat_network import Layout
from privfl.privacy.door.keeper import ROWS_AT_ONCE
from privfl.privacy.noise.source import NoiseSource
from privfl.simulation.callbacks import Simulation
from privfl.study.chart import COLOURS, DASHES
from privfl.validation import check_count

LAMBDAS = tuple(step / 10 for step in range(11))
"""The grid of the paper, SuPerFed (10) in ``docs/reference/equations.md``."""
Numbers = NDArray[np.float64]


class Evaluator:
    """Mean loss and accuracy of any parameter vector of a task's model, in evaluation mode."""

    def __init__(self, task: Task) -> None:
        self.network = task.model(0).to(task.targets.device).eval()
        self.layout = Layout.of(self.network)

    def __call__(self, parameters: Tensor, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Mean cross-entropy (nats) and accuracy of ``parameters`` [size] on ``inputs`` [N, ...], ``targets`` [N]."""
        views = self.layout.named_views(parameters)
        loss = right = 0.0
        with torch.no_grad():
            parts = torch.split(inputs, ROWS_AT_ONCE), torch.split(targets, ROWS_AT_ONCE)
            for rows, wanted in zip(*parts, strict=True):
                logits: Tensor = functional_call(self.network, views, (rows,))
                loss += float(F.cross_entropy(logits.double(), wanted, reduction="sum"))
                right += float((logits.argmax(1) == wanted).sum())
        return loss / len(targets), right / len(targets)


@dataclass(frozen=True)
class Curves:
    """What clients' mixtures are worth on their own data.

    Args:
        lambdas: [n], from the federated end to the personal one.
        clients: [m] client numbers.
        loss: mean cross-entropy in nats [m, n].
        accuracy: [m, n].
    """

    lambdas: Numbers
    clients: NDArray[np.int64]
    loss: Numbers
    accuracy: Numbers

    @property
    def barriers(self) -> Numbers:
        """The barrier of every client [m]."""
        return barrier(self.loss)


def barrier(losses: Numbers) -> Numbers:
    """max over λ of ℓ(λ), minus max(ℓ(0), ℓ(1)); [...] from [..., n]. 0 if the worst point is an end."""
    return np.asarray(losses.max(-1) - np.maximum(losses[..., 0], losses[..., -1]))


def along(
    task: Task,
    federated: Tensor,
    personal: Mapping[int, Tensor],
    data: ClientIndex | None = None,
    lambdas: Sequence[float] = LAMBDAS,
) -> Curves:
    """Loss and accuracy of ``(1 − λ)·federated + λ·personal[k]`` for every client k on its rows in ``data``.

    ``data`` defaults to the clients' local tests; clients without rows are left out. One λ for all layers, also where
    training drew one for each.

    Raises:
        ConfigError: the task has no local tests and no ``data`` is given, or nobody has rows.
    """
    data = task.local_tests if data is None else data
    if data is None:
        raise ConfigError("the task has no local tests to draw curves on; use task.with_local_tests() or give data")
    clients = [client for client in sorted(personal) if data.sizes[client]]
    if not clients:
        raise ConfigError(f"none of the {len(personal)} clients has rows to test on; train some clients first")
    evaluate = Evaluator(task)
    values = np.empty((len(clients), len(lambdas), 2))
    for place, client in enumerate(clients):
        inputs, targets = task.inputs[data[client]], task.targets[data[client]]
        for step, lam in enumerate(lambdas):
            values[place, step] = evaluate(mix(federated, personal[client], lam), inputs, targets)
    return Curves(np.array(lambdas), np.array(clients), values[..., 0], values[..., 1])


@dataclass(frozen=True)
class Plane:
    """The plane through three parameter vectors: ``origin`` [size] and an orthonormal ``basis`` [2, size].

    ``corners`` [3, 2] are the coordinates of the three, the first at (0, 0), the third on the first axis.
    """

    origin: Tensor
    basis: Tensor
    corners: Numbers

    @classmethod
    def through(cls, first: Tensor, second: Tensor, third: Tensor) -> Plane:
        """The plane of three models, in double precision.

        Raises:
            ConfigError: they lie on one line.
        """
        origin = first.double()
        sides = torch.stack([third.double() - origin, second.double() - origin])
        axis = sides[0] / sides[0].norm().clamp_min(1e-300)
        rest = sides[1] - (sides[1] @ axis) * axis
        shortest = min(float(sides[0].norm()), float(rest.norm()))
        if not shortest > 1e-6 * float(sides.norm()):  # closer is rounding in single precision
            raise ConfigError("the three models lie on one line, so they span no plane; give three different ones")
        basis = torch.stack([axis, rest / rest.norm()])
        places = torch.stack([torch.zeros(2, dtype=torch.float64), basis @ sides[1].cpu(), basis @ sides[0].cpu()])
        return cls(origin, basis, places.numpy())

    def at(self, x: float, y: float) -> Tensor:
        """The parameters [size] at coordinates (x, y)."""
        return self.origin + x * self.basis[0] + y * self.basis[1]


@dataclass(frozen=True)
class Landscape:
    """Loss in nats [ny, nx] over a grid ``x`` [nx], ``y`` [ny] of a plane with the ``corners`` [3, 2]."""

    x: Numbers
    y: Numbers
    loss: Numbers
    corners: Numbers


def landscape(
    task: Task,
    models: tuple[Tensor, Tensor, Tensor],
    rows: Tensor,
    resolution: int = 25,
    margin: float = 0.3,
) -> Landscape:
    """The mean loss on the rows ``rows`` of the task around three models, for SuPerFed w^g, w^f and w^l.

    ``margin`` is what lies around the corners on every side, as a share of their extent.

    Raises:
        ConfigError: the models lie on one line, or ``resolution`` is below 2.
    """
    check_count("resolution", resolution, 2)
    plane, evaluate = Plane.through(*models), Evaluator(task)
    low, high = plane.corners.min(0), plane.corners.max(0)
    x, y = np.linspace(low - margin * (high - low), high + margin * (high - low), resolution).T
    inputs, targets, kind = task.inputs[rows], task.targets[rows], models[0].dtype
    loss = np.array([[evaluate(plane.at(a, b).to(kind), inputs, targets)[0] for a in x] for b in y])
    return Landscape(x, y, loss, plane.corners)


def corners(simulation: Simulation, client: int) -> tuple[Tensor, Tensor, Tensor]:
    """w^g, and ``client``'s w^f and w^l after one local round from it; for callbacks, whose engine still runs.

    Nothing is sent or kept: the round is trained with noise of its own, if with any, and forgotten.
    """
    received = simulation.algorithm.broadcast(simulation.algorithm.begin_round(simulation.server, simulation.round))
    context = RoundContext(simulation.round, simulation.schedule.seed, NoiseSource.from_os(), simulation.client_state)
    (result,) = simulation.engine.train([client], received, context)
    if result.upload is None:
        raise ConfigError(f"client {client} could not be trained ({result.dropped}); choose another one")
    start = simulation.server["parameters"]
    return start, start + result.upload["update"], result.client_state["personal"]


def draw_curves(groups: Mapping[str, Curves], title: str = "") -> Figure:
    """Accuracy and loss over λ: the mean over clients, and the range of the middle 80 % of them as a band."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("accuracy", "loss"), strict=True):
        for index, (label, curves) in enumerate(groups.items()):
            values: Numbers = getattr(curves, name)
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(curves.lambdas, values.mean(0), color=colour, linestyle=DASHES[index % 4], label=label)
            low, high = np.quantile(values, (0.1, 0.9), axis=0)
            axes.fill_between(curves.lambdas, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_xlabel("λ (0: federated model, 1: personal end point)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.set_ylabel("accuracy on the client's own test" if name == "accuracy" else "loss (nats)")
        if name == "accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        else:
            axes.legend(frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure


def draw_landscapes(groups: Mapping[str, Landscape], names: Sequence[str] = ("$w^g$", "$w^f$", "$w^l$")) -> Figure:
    """Contours of the loss around three models, one panel for each of ``groups``; loss on a logarithmic scale."""
    figure = Figure(figsize=(4.6 * len(groups), 3.9), layout="constrained")
    least = max(1e-4, min(float(found.loss.min()) for found in groups.values()))
    most = max(float(found.loss.max()) for found in groups.values())
    levels = np.geomspace(least, max(most, 2 * least), 16)
    for axes, (title, found) in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True):
        drawn = axes.contourf(
            found.x, found.y, found.loss.clip(levels[0], levels[-1]), levels=levels, norm="log", cmap="viridis"
        )
        axes.plot(*found.corners[[0, 2]].T, color="white", linewidth=1, linestyle="--")
        for (x, y), name, marker in zip(found.corners, names, ("o", "^", "s"), strict=True):
            axes.plot(x, y, marker, color="white", markeredgecolor="black")
            axes.annotate(name, (x, y), xytext=(7, 5), textcoords="offset points", color="white", fontsize=12)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlabel("distance along $w^l - w^g$")
        axes.set_ylabel("distance across it")
    bar = figure.colorbar(drawn, ax=figure.axes, label="loss (nats, log scale)")
    bar.ax.minorticks_off()
    bar.set_ticks([float(level) for level in levels[::3]], labels=[f"{level:.2g}" for level in levels[::3]])
    return figure

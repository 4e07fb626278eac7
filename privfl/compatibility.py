"""Whether a task, an algorithm and its mechanisms fit together: what can be refused is refused before any work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

import torch

from privfl.algorithms.base import Algorithm
from privfl.cohort import Cohort
from privfl.engine.choice import EngineName
from privfl.errors import ConfigError, unknown
from privfl.parameters import FlatNetwork
from privfl.privacy.channel import Channel
from privfl.privacy.per_sample import Way, check_per_sample
from privfl.privacy.settings import Privacy
from privfl.task import Task


@dataclass(frozen=True)
class Checked:
    """What the checks found out; ``way`` is how per-sample gradients are formed, ``None`` without DP-SGD."""

    channel: Channel
    way: Way | None
    needs_sizes: bool
    warnings: list[str]


def check_settings(task: Task, algorithm: Algorithm, privacy: Privacy, cohort: Cohort, device: torch.device) -> Checked:
    """Refuse settings that contradict each other.

    Raises:
        ConfigError: a combination is impossible, or would make a claim that it cannot earn.
    """
    dpsgd, clients = privacy.training, len(task.clients)
    network = FlatNetwork(task.model(0), device)
    way: Way | None = None
    if dpsgd is not None:
        if algorithm.dpsgd_refusal():
            raise ConfigError(f"DP-SGD cannot protect this run: {algorithm.dpsgd_refusal()}")
        dpsgd.check_clients(clients)
        way = check_per_sample(network, task.loss, *task.probe(4))
    channel = Channel(privacy.update, algorithm.fields(), dpsgd, cohort.rate)
    weighted = algorithm.weights() != "uniform" or cohort.needs_sizes
    needs_sizes = algorithm.asks_sizes() or weighted
    if channel.hides_clients and weighted:
        raise ConfigError(
            "noise that hides clients needs uniform weights: set weighting = 'uniform' and a cohort that does not "
            "depend on sizes"
        )
    if dpsgd is not None and dpsgd.noise_at == "server" and weighted:
        raise ConfigError(
            "a client that counts more than once multiplies what noise at the server must cover; set weighting = "
            "'uniform' and draw a cohort that does not depend on sizes"
        )
    if channel.spectator_releases():
        _keep_draw_secret(privacy)
    warnings = []
    if needs_sizes and privacy.size is not None:
        privacy.size.require_precision(clients, privacy.max_size_error)
        warnings += privacy.size.check_sizes(task.clients.sizes)
    if privacy.size is not None and not needs_sizes:
        warnings.append(f"privacy.size is set, but {algorithm.name} never asks for sizes; nothing is sent")
    return Checked(channel, way, needs_sizes, warnings)


def _keep_draw_secret(privacy: Privacy) -> None:
    """Refuse what would publish who was drawn, because the claim is amplified by a secret draw of the cohort."""
    if privacy.training is not None and privacy.training.target_epsilon is not None:
        raise ConfigError(
            "target_epsilon would fit the noise to who is drawn, which the amplified claim for clients needs secret; "
            "give DPSGD a noise_multiplier, or draw another cohort than poisson"
        )
    if privacy.budget is not None and privacy.budget.unit == "sample":
        raise ConfigError(
            "a budget for samples would stop the run by who is drawn, which the amplified claim for clients needs "
            "secret; set the budget for client/public, or draw another cohort than poisson"
        )


def check_engine(name: str) -> EngineName:
    """``name`` if it is an engine.

    Raises:
        ConfigError: it is none.
    """
    if name not in get_args(EngineName):
        raise unknown("engine", name, get_args(EngineName))
    return cast(EngineName, name)


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA if there is one, else the CPU.

    Raises:
        ConfigError: torch does not know the device, or there is none of that kind.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device '{name}'; use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is '{name}', but this machine has no CUDA device; use auto or cpu")
    return device

"""DP-SGD against the non-private round, and one private step against every mode of Opacus."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset
from workload import SAMPLES, EngineRound, StepTimer, interleaved, make_task, milliseconds, ratio

from privfl.federation.task import Task
from privfl.privacy.door.dpsgd import DPSGD

MODES = ("hooks", "functorch", "ew", "ghost")


def opacus_step(task: Task, batch_size: int, mode: str) -> Callable[[], None]:
    """One step of Opacus in ``mode`` on a fixed batch: clip, noise, descend."""
    model = task.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    criterion = torch.nn.CrossEntropyLoss(reduction="mean")
    loader = DataLoader(TensorDataset(task.inputs[:1000], task.targets[:1000]), batch_size=batch_size)
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        criterion=criterion,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    private, private_optimizer = made[0], made[1]
    loss_of = made[2] if mode == "ghost" else criterion
    inputs, targets = task.inputs[:batch_size], task.targets[:batch_size]

    def step() -> None:
        private_optimizer.zero_grad()
        loss_of(private(inputs), targets).backward()
        private_optimizer.step()

    return step


def plain_step(task: Task, batch_size: int) -> Callable[[], None]:
    """One ordinary SGD step."""
    model = task.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs, targets = task.inputs[:batch_size], task.targets[:batch_size]

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def run(repeats: int) -> list[dict[str, Any]]:
    """Rows for the round, then for the step of each model."""
    rows = []
    task = make_task("rebafl-fmnist")
    for batch_size in (20, 50):
        private = DPSGD(noise_multiplier=1.0, sample_rate=batch_size / SAMPLES)
        work = {
            "plain": EngineRound(task, batch_size, 1).round,
            "private": EngineRound(task, batch_size, 1, private).round,
        }
        seconds = interleaved(work, repeats, warmup=3)
        rows.append(
            {
                "what": f"DP-SGD round / non-private round, rebafl-fmnist, B = {batch_size}",
                "target": 2.5,
                **ratio(seconds, "private", "plain"),
                "milliseconds": milliseconds(seconds),
            }
        )
    for model in ("two-nn", "rebafl-fmnist", "resnet8"):
        task = make_task(model, clients=4)
        for batch_size in (20, 50):
            steps: dict[str, Callable[[], None]] = {"plain": plain_step(task, batch_size)}
            steps["privfl"] = StepTimer(task, batch_size).step
            for mode in MODES:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    steps[f"opacus {mode}"] = opacus_step(task, batch_size, mode)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seconds = interleaved(steps, 4 * repeats, warmup=3)
            medians = milliseconds(seconds)
            best = min((name for name in medians if name.startswith("opacus")), key=lambda name: medians[name])
            rows.append(
                {
                    "what": f"private step / Opacus' best ({best.removeprefix('opacus ')}), {model}, B = {batch_size}",
                    "target": 1.0,
                    **ratio(seconds, "privfl", best),
                    "milliseconds": medians,
                }
            )
    return rows

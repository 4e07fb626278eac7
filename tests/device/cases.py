"""One round of any algorithm, on the CPU and on a device, which must give the same numbers.

The device is a GPU where tests may use one (``PRIVFL_TEST_GPU=1``), else the stand-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from privfl.engine.workspace import ClientResult
from privfl.federation.task import Task
from privfl.privacy.door.batch_plans import LocalTraining
from tests.device.stand_in import CUDA, Counts, stand_in_cuda
from tests.engine.test_vectorised import (
    ALGORITHMS,
    NOISY,
    PRIVATE,
    STEP_OF_THE_GRID,
    assert_same,
    convolutional,
    federation,
    trained,
)

SIZES = (9, 12, 3)
TRAINING = LocalTraining(batch_size=8, learning_rate=0.05, momentum=0.5, weight_decay=0.01, steps=2)
ENGINES = {"loop": None, "vectorised": 3}
CASES = [(name, engine, private) for name in ALGORITHMS for engine in ENGINES for private in (False, True)]
CASES = [case for case in CASES if not case[2] or case[0] in PRIVATE]
"""Algorithm, engine, and whether under DP-SGD."""


def small_task() -> Task:
    """Three clients with random images, and a network with every kind of layer that drop-out and rules care for."""
    return federation(convolutional, (1, 8, 8), sizes=SIZES)


def a_device() -> AbstractContextManager[Counts | None]:
    """The block sees a CUDA device, whose accounts it gets from the stand-in alone."""
    return nullcontext() if torch.cuda.is_available() else stand_in_cuda()


def on_cpu(results: Mapping[int, ClientResult]) -> dict[int, ClientResult]:
    """The same results with tensors on the CPU."""

    def copied(tensors: Any) -> Any:
        return None if tensors is None else {name: value.cpu() for name, value in tensors.items()}

    return {
        client: replace(one, upload=copied(one.upload), client_state=copied(one.client_state))
        for client, one in results.items()
    }


def compare(task: Task, algorithm: str, engine: str, private: bool) -> Counts | None:
    """Train one round on both and hold them to each other; what happened on the device, if it is the stand-in."""
    settings: dict[str, Any] = {"chunk": ENGINES[engine], "training": TRAINING}
    if private:
        settings |= {"dpsgd": NOISY, "way": "layers"}
    expected = trained(task, ALGORITHMS[algorithm], **settings)
    with a_device() as counts:
        results = trained(task.to(CUDA), ALGORITHMS[algorithm], **settings)
        assert all(value.is_cuda for one in results.values() for value in (one.upload or {}).values())
        found = on_cpu(results)
    assert_same(expected, found, absolute=STEP_OF_THE_GRID if private else 0.0)
    assert counts is None or sum(counts.launches.values()) > 0
    torch.testing.assert_close(task.inputs, small_task().inputs)
    return counts

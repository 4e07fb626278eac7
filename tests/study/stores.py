"""Studies for tests, and what lies in their stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import privfl as pf
from privfl.study.results import Results
from privfl.study.shown import _result
from privfl.study.store import Store
from privfl.study.summary import Result

NAME = "study"


def had(out: Path, study: pf.Study, *, processes: int = 1) -> list[str]:
    """Have the runs of ``study`` in the store ``out``; returns a sentence for each that failed."""
    found = study.run(out, name=NAME, processes=processes, skip_impossible=True)
    return [f"{one}: {one.reason}" for one in found.members if one.state != "done"]


def shown(out: Path) -> list[Result]:
    """The finished runs of the study in the store ``out`` as its page shows them."""
    store = Store(out, create=False)
    results = Results.of(store, NAME)
    return [_result(one, store, results.judge(one)[1]) for one in results.done]


def folders(out: Path) -> list[Path]:
    """The directories of the finished runs, in the study's order."""
    return [out / "runs" / one.folder for one in shown(out)]


def small(folder: Path, **changes: Any) -> dict[str, Any]:
    """Two rounds of DP-SGD on 400 rows of four numbers, written to ``folder`` and dealt to four clients."""
    inputs = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(int)
    np.savez(folder / "data.npz", inputs=inputs, targets=labels, clients=np.arange(400) % 4, test_inputs=inputs[:40],
             test_targets=labels[:40])  # fmt: skip
    usual = {
        "rounds": 2,
        "workers": 1,
        "engine": "loop",
        "arrays": {"file": str(folder / "data.npz"), "classes": 2},
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "training": {"learning_rate": 0.5},
        "privacy": {"training": {"noise_multiplier": 1.0, "sample_rate": 0.1}},
    }
    return usual | changes

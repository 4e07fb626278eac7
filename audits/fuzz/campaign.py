"""Runs many experiments, side by side and resumably, and keeps one line for each."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from audits.fuzz.drawing import draw
from audits.fuzz.exact import Verdict, check
from audits.fuzz.experiment import Experiment

BLOCK = 50
"""Experiments that a process takes at a time, and that a campaign forgets at most when it is killed."""


@dataclass(frozen=True)
class Campaign:
    """``experiments`` experiments of ``seed``; ``engine`` replaces the one that is drawn, if it is given."""

    experiments: int
    seed: int = 0
    engine: str = ""

    def experiment(self, number: int) -> Experiment:
        """The experiment of this number."""
        drawn = draw(self.seed, number)
        return replace(drawn, engine=self.engine) if self.engine else drawn

    def line(self, number: int) -> dict[str, Any]:
        """What came of experiment ``number``, as plain values."""
        experiment, began = self.experiment(number), time.process_time()
        return {"number": number, **outcome(experiment, check(experiment)), "seconds": time.process_time() - began}

    def block(self, first: int) -> list[dict[str, Any]]:
        """The lines of one block of experiments."""
        torch.set_num_threads(1)
        return [self.line(number) for number in range(first, min(first + BLOCK, self.experiments))]

    def run(self, log: Path | None = None, jobs: int = 1) -> Iterator[dict[str, Any]]:
        """The lines of all experiments; those that are in ``log`` already are read, new ones are appended."""
        done = _read(log)
        yield from (line for line in done.values() if line["number"] < self.experiments)
        left = [
            first
            for first in range(0, self.experiments, BLOCK)
            if any(number not in done for number in range(first, min(first + BLOCK, self.experiments)))
        ]
        for lines in _blocks(self, left, jobs):
            new = [line for line in lines if line["number"] not in done]
            if log is not None:
                with log.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(line) + "\n" for line in new)
            yield from new


def outcome(experiment: Experiment, verdict: Verdict) -> dict[str, Any]:
    """A verdict, and what was tried, as plain values."""
    return {
        "status": verdict.status,
        "violations": [asdict(one) for one in verdict.violations],
        "finite": list(verdict.finite),
        "checked": list(verdict.checked),
        "reason": verdict.reason[:200],
        "noised": verdict.noised,
        "moved": verdict.moved,
        "seen": verdict.seen,
        "closest": verdict.closest if verdict.closest < 1e300 else 1e300,
        "dimensions": dimensions(experiment),
    }


def dimensions(experiment: Experiment) -> dict[str, str]:
    """Where an experiment stands in each dimension of what is drawn."""
    dpsgd = experiment.dpsgd
    links = [str(link["name"]).rpartition(":")[2] for link in experiment.update]
    sides = [str(link.get("at", "")) for link in experiment.update]
    door = "none" if dpsgd is None else f"DP-SGD at the {dpsgd.get('noise_at', 'client')}"
    return {
        "algorithm": str(experiment.algorithm["name"]).rpartition(":")[2],
        "model": experiment.model,
        "loss": experiment.loss,
        "door": door + (" and noisy totals" if experiment.statistics else ""),
        "sampling rate": "none" if dpsgd is None else str(dpsgd.get("sample_rate", 0.1)),
        "chain": " → ".join(f"{a} ({b})" if b else a for a, b in zip(links, sides, strict=True)) or "none",
        "sizes": "none" if experiment.size is None else str(experiment.size["name"]),
        "cohort": str(experiment.cohort["name"]),
        "availability": str(experiment.availability["name"]),
        "engine": experiment.engine,
        "common rows": experiment.data.common,
        "differing row": experiment.data.extra,
        "rounds": str(experiment.rounds),
        "resumed": "no" if experiment.resume is None else experiment.resume.changed or "unchanged",
    }


def _read(log: Path | None) -> dict[int, dict[str, Any]]:
    if log is None or not log.exists():
        return {}
    found = {}
    for text in log.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # the line that was being written when the campaign was killed
            continue
        found[line["number"]] = line
    return found


def _blocks(campaign: Campaign, firsts: list[int], jobs: int) -> Iterator[list[dict[str, Any]]]:
    if jobs == 1:
        yield from map(campaign.block, firsts)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(campaign.block, firsts)

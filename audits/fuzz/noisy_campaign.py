"""The part of a campaign that trains with noise."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from audits.fuzz.campaign import Campaign
from audits.fuzz.noisy import measure, quiet


def noisy_lines(
    campaign: Campaign, experiments: int, trials: int, false_alarm: float, jobs: int, log: Path | None
) -> Iterator[dict[str, Any]]:
    """What came of the first ``experiments`` experiments that claim something, trained with noise; resumable."""
    kept = None if log is None else log.with_name(log.name.replace(".lines", ".noisy"))
    done: dict[int, dict[str, Any]] = {}
    if kept is not None and kept.exists():
        found = (json.loads(text) for text in kept.read_text(encoding="utf-8").splitlines() if text.endswith("}"))
        done = {line["number"]: line for line in found}
    claimed = 0
    work = partial(noisy_line, campaign, trials=trials, false_alarm=false_alarm / max(experiments, 1))
    for line in _until(work, done, jobs):
        if line["number"] not in done and kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if claimed >= experiments:
            return
        if line["cells"]:
            claimed += 1
            yield line
            if claimed == experiments:
                return


def noisy_line(campaign: Campaign, number: int, *, trials: int, false_alarm: float) -> dict[str, Any]:
    """What came of experiment ``number`` with noise, as plain values; all its cells share ``false_alarm``."""
    torch.set_num_threads(1)
    found = measure(quiet(campaign.experiment(number)), trials=trials, false_alarm=false_alarm)
    return {
        "number": number,
        "cells": {one.cell: [one.claimed, one.certified] for one in found},
        "refuted": [f"{one.cell}: ε ≥ {one.certified:.3f}, {one.claimed:.3f} claimed" for one in found if one.refuted],
    }


def _until(work: Any, done: dict[int, dict[str, Any]], jobs: int) -> Iterator[dict[str, Any]]:
    """Lines in the order of their numbers, for as long as they are asked for."""
    number = 0
    while number in done:
        yield done[number]
        number += 1
    if jobs == 1:
        while True:
            yield work(number)
            number += 1
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        while True:
            yield from pool.map(work, range(number, number + jobs))
            number += jobs

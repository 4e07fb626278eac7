"""The report of a campaign: what was run, what was tried in each dimension, and what broke."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audits.fuzz.noisy import SCREENING

STATUSES = ("held", "broken", "vacuous", "refused", "crashed")


@dataclass
class Report:
    """Counts of a campaign, line by line; ``shrunk`` are the files of what broke, ``settings`` what was asked for."""

    settings: dict[str, Any]
    statuses: Counter[str] = field(default_factory=Counter)
    coverage: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    cells: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    broken: list[dict[str, Any]] = field(default_factory=list)
    noised: int = 0
    moved: int = 0
    seen: int = 0
    closest: float = 0.0
    seconds: float = 0.0
    noisy: list[dict[str, Any]] = field(default_factory=list)
    shrunk: list[str] = field(default_factory=list)

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one experiment."""
        status = line["status"]
        self.statuses[status] += 1
        self.cells.update(line["checked"])
        self.noised, self.moved, self.seen = (
            before + line[name]
            for before, name in ((self.noised, "noised"), (self.moved, "moved"), (self.seen, "seen"))
        )
        self.seconds += line["seconds"]
        if status == "held":
            self.closest = max(self.closest, line["closest"])
        if status in ("refused", "crashed"):
            self.reasons[re.sub(r"/\S*/run", "its folder", line["reason"])[:120]] += 1
        if status == "broken":
            self.broken.append(dict(line))
        for dimension, value in line["dimensions"].items():
            self.coverage.setdefault(dimension, {}).setdefault(value, Counter())[status] += 1

    @property
    def total(self) -> int:
        """Noise-free experiments."""
        return self.statuses.total()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "settings": self.settings,
            "experiments": self.total,
            "statuses": {name: self.statuses[name] for name in STATUSES},
            "cells": dict(sorted(self.cells.items())),
            "noised values": self.noised,
            "of which moved": self.moved,
            "messages compared": self.seen,
            "largest share of a charge that was used": self.closest,
            "cpu seconds": round(self.seconds, 1),
            "refusals": dict(self.reasons.most_common(20)),
            "coverage": {
                dimension: {value: dict(counts) for value, counts in sorted(values.items())}
                for dimension, values in self.coverage.items()
            },
            "broken": self.broken,
            "noisy": self.noisy,
            "shrunk": self.shrunk,
        }

    def to_markdown(self) -> str:
        """The report as a page of the documentation."""
        share = {name: self.statuses[name] / max(self.total, 1) for name in STATUSES}
        refuted = [one for one in self.noisy if one["refuted"]]
        cells = sum(len(one["cells"]) for one in self.noisy)
        lines = [
            "# The claim fuzzer",
            "",
            "Experiments drawn at random, each trained in two worlds that differ in one example or in one client's",
            "contribution, and held to every finite cell of their statement. Made by",
            f"`{self.settings['command']}`; the raw numbers lie in [claim-fuzzer.json](claim-fuzzer.json).",
            "",
            "| noise-free | experiments | share |",
            "|---|---:|---:|",
            *[f"| {name} | {self.statuses[name]} | {share[name]:.1%} |" for name in STATUSES],
            "",
            f"Seed {self.settings['seed']}; {self.seconds:.0f} s of one core. In them {self.noised} values were",
            f"noised, of which {self.moved} moved between the worlds, and {self.seen} messages were compared bit by",
            f"bit. No release that held used more than {self.closest:.6f} of its charge.",
            "",
            f"With noise: {len(self.noisy)} experiments, {cells} cells, {len(refuted)} refuted, all at once with",
            f"confidence {self.settings['confidence']}. Each world ran {SCREENING} times, and where that raised a",
            f"doubt {self.settings['trials']} times more, so that only gross breaks would be seen.",
            "",
            "## What broke",
            "",
            *(self._broken() or ["Nothing."]),
            "",
            "## Coverage",
            "",
            "How many experiments were checked (and held or broke), and how many were refused or claim nothing.",
            "",
            *self._coverage(),
        ]
        if self.reasons:
            refusals = [f"- {count} × {text}" for text, count in self.reasons.most_common(10)]
            lines += ["## Most frequent refusals", "", *refusals, ""]
        return "\n".join(lines)

    def _broken(self) -> list[str]:
        kinds: dict[str, list[dict[str, Any]]] = {}
        for line in self.broken:
            for kind in dict.fromkeys(one["kind"] for one in line["violations"]):
                kinds.setdefault(kind, []).append(line)
        found = []
        for kind, lines in kinds.items():
            first = next(one for one in lines[0]["violations"] if one["kind"] == kind)
            numbers = ", ".join(str(line["number"]) for line in lines[:8])
            found.append(f"- **{kind}**, {len(lines)} experiments ({numbers}): {first['cell']}, {first['what']}")
        for one in self.noisy:
            found += [f"- **with noise**, experiment {one['number']}: {text}" for text in one["refuted"]]
        return found + [f"- reruns with `python -m audits.fuzz --rerun {path}`" for path in self.shrunk]

    def _coverage(self) -> Iterable[str]:
        for dimension, values in self.coverage.items():
            yield from (f"| {dimension} | checked | broken | refused or vacuous |", "|---|---:|---:|---:|")
            for value, counts in sorted(values.items(), key=lambda item: -item[1].total()):
                checked = counts["held"] + counts["broken"]
                yield f"| {value} | {checked} | {counts['broken']} | {counts.total() - checked} |"
            yield ""

    def write(self, path: Path) -> Sequence[Path]:
        """The page at ``path``, and the raw numbers beside it."""
        raw = path.with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_markdown(), encoding="utf-8")
        raw.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        return path, raw

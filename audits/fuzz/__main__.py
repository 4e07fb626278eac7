"""``python -m audits.fuzz``: run a campaign and write its report, or run one file again."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from audits.fuzz.campaign import Campaign
from audits.fuzz.exact import check
from audits.fuzz.experiment import Experiment
from audits.fuzz.noisy_campaign import noisy_lines
from audits.fuzz.report import Report
from audits.fuzz.shrink import shrink

FALSE_ALARM = 1e-6
"""The probability that a campaign refutes any true claim."""


def main(given: list[str] | None = None) -> int:
    """Run what the command line asks for; 1 if a claim broke."""
    asked = _parser().parse_args(given)
    if asked.rerun is not None:
        return _rerun(asked.rerun)
    campaign = Campaign(asked.experiments, asked.seed, asked.engine)
    command = f"python -m audits.fuzz --experiments {asked.experiments} --seed {asked.seed}"
    command += f" --noisy {asked.noisy}" if asked.noisy else ""
    settings = {"command": command, "seed": asked.seed, "trials": asked.trials, "confidence": 1 - FALSE_ALARM}
    report, began = Report(settings), time.monotonic()
    log = None if asked.out is None else asked.out.with_suffix(".lines.jsonl")
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    for line in campaign.run(log, asked.jobs):
        report.add(line)
        if report.total % 100 == 0:
            _progress(report.total, asked.experiments, report.statuses["broken"], began)
    for noisy in noisy_lines(campaign, asked.noisy, asked.trials, FALSE_ALARM, asked.jobs, log):
        report.noisy.append(noisy)
        refuted = sum(bool(one["refuted"]) for one in report.noisy)
        _progress(len(report.noisy), asked.noisy, refuted, began)
    sys.stderr.write("\n")
    _shrink(campaign, report, None if asked.out is None else asked.out.parent / "claim-fuzzer")
    if asked.out is not None:
        report.write(asked.out)
    _say(report.to_markdown() if asked.out is None else f"{asked.out}: {dict(report.statuses)}")
    return int(bool(report.broken) or any(one["refuted"] for one in report.noisy))


def _progress(done: int, all_of_them: int, broken: int, began: float) -> None:
    passed = time.monotonic() - began
    sys.stderr.write(f"\r{done} of {all_of_them}, {broken} broken, {passed:.0f} s ")
    sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _shrink(campaign: Campaign, report: Report, folder: Path | None) -> None:
    """Reduce the first example of each kind of violation to a small file."""
    kinds = {one["kind"]: line["number"] for line in reversed(report.broken) for one in line["violations"]}
    for kind, number in kinds.items():
        small = shrink(campaign.experiment(number), kind)
        if folder is None:
            _say(f"{kind}, from experiment {number}:\n{small.to_json()}")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{kind.replace(' ', '-')}-{number}.json"
        path.write_text(small.to_json() + "\n", encoding="utf-8")
        report.shrunk.append(str(path))


def _rerun(path: Path) -> int:
    verdict = check(Experiment.from_json(path.read_text(encoding="utf-8")))
    _say(f"{verdict.status}: checked {', '.join(verdict.checked) or 'nothing'} {verdict.reason}")
    for one in verdict.violations:
        _say(f"  {one.kind} at {one.cell}: {one.what}")
    return int(verdict.status == "broken")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m audits.fuzz", description=__doc__)
    parser.add_argument("--experiments", type=int, default=1000, help="noise-free experiments")
    parser.add_argument("--seed", type=int, default=0, help="of the whole campaign")
    parser.add_argument("--noisy", type=int, default=0, help="experiments with noise")
    parser.add_argument("--trials", type=int, default=100, help="runs of each world that count, with noise")
    parser.add_argument("--out", type=Path, help="report (.md); its raw numbers and lines go beside it")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--engine", choices=("", "loop", "vectorised"), default="", help="instead of the drawn one")
    parser.add_argument("--rerun", type=Path, help="check the experiment in this file instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())

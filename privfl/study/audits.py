"""What audits certified of an experiment, as its page shows it: the files of ``privfl audit``, put in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privfl.errors import DataError
from privfl.files import read_json
from privfl.study.filed import filed

FOLDER = "audits"
UNINFORMATIVE = "Uninformative{canaries}: with a bound of 0 this audit says nothing about the claim, for or against it."


def read_audits(run: Path) -> dict[str, Any] | None:
    """The audits filed under ``run``: a sentence and table rows; ``None`` if there are none.

    A row is (audit, cell of the statement, claim, largest certified bound, what that bound assumes, verdict).

    Raises:
        DataError: a result is damaged.
    """
    return collect_audits({"": run})


def collect_audits(runs: Mapping[str, Path]) -> dict[str, Any] | None:
    """The audits filed under all of ``runs``, by the runs' names; a row's audit says which run it is about.

    Raises:
        DataError: a result is damaged.
    """
    rows, refuted, empty = [], [], 0
    for run, folder in runs.items():
        for path in filed(folder / FOLDER):
            name = f"{path.stem} of {run}" if run else path.stem
            try:
                told = read_json(path, "repeat `privfl audit`")
                largest = max(told["bounds"], key=lambda bound: float(bound["epsilon"]))
                bound = f"≥ {_text(largest['epsilon'])}"
                cell = f"{told['unit']} / {told['observer']}"
                assumed, claim = largest["assumes"] or "nothing", _text(told["claim"])
                verdict = told["verdict"]
                if float(largest["epsilon"]) == 0 and not math.isinf(float(told["claim"])):
                    empty += 1
                    verdict = f"{verdict} {UNINFORMATIVE.format(canaries=_canaries(told, largest))}"
                rows.append((name, cell, claim, bound, assumed, verdict))
                if told["refuted"]:
                    refuted.append(name)
            except (ValueError, KeyError, TypeError) as error:
                if isinstance(error, DataError):
                    raise
                raise DataError(f"{path} is damaged ({error}); repeat `privfl audit`") from error
    if not rows:
        return None
    sentence = (
        f"{len(rows)} audits trained {'these experiments' if len(runs) > 1 else 'this experiment'} anew, with "
        "canaries. "
        + (f"Claims were refuted by {', '.join(refuted)}. " if refuted else "None refuted a claim, which proves none. ")
        + (f"{empty} of them {'is' if empty == 1 else 'are'} uninformative. " if empty else "")
        + "Each bound holds with the confidence of its own audit."
    )
    return {"sentence": sentence, "rows": rows}


def _canaries(told: Mapping[str, Any], bound: Mapping[str, Any]) -> str:
    """How many canaries there were, where the audit says so."""
    number = told.get("settings", {}).get("canaries", (bound.get("details") or {}).get("canaries"))
    return f" ({number} canaries)" if isinstance(number, int) else ""


def _text(epsilon: float | str) -> str:
    return "∞" if epsilon == "inf" else f"{float(epsilon):.4g}"

"""What audits certified of an experiment, as its page shows it: the files of ``privfl audit``, put in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privfl.errors import DataError
from privfl.files import read_json

FOLDER = "audits"


def read_audits(run: Path) -> dict[str, Any] | None:
    """The audits filed under ``run``: a sentence and table rows; ``None`` if there are none.

    A row is (audit, cell of the statement, claim, largest certified bound, what that bound assumes, verdict).

    Raises:
        DataError: a result is damaged.
    """
    paths = sorted((run / FOLDER).glob("*.json"))
    if not paths:
        return None
    rows, refuted = [], []
    for path in paths:
        try:
            told = read_json(path, "repeat `privfl audit`")
            largest = max(told["bounds"], key=lambda bound: float(bound["epsilon"]))
            bound = f"≥ {_text(largest['epsilon'])}"
            cell = f"{told['unit']} / {told['observer']}"
            assumed, claim = largest["assumes"] or "nothing", _text(told["claim"])
            rows.append((path.stem, cell, claim, bound, assumed, told["verdict"]))
            if told["refuted"]:
                refuted.append(path.stem)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} is damaged ({error}); repeat `privfl audit`") from error
    sentence = (
        f"{len(rows)} audits trained this experiment anew, with canaries. "
        + (f"Claims were refuted by {', '.join(refuted)}. " if refuted else "None refuted a claim, which proves none. ")
        + "Each bound holds with the confidence of its own audit."
    )
    return {"sentence": sentence, "rows": rows}


def _text(epsilon: float | str) -> str:
    return "∞" if epsilon == "inf" else f"{float(epsilon):.4g}"

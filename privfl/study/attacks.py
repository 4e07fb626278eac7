"""What attacks found in a run, as its page shows it: the files of ``privfl attack``, read and put in words."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from privfl.errors import DataError
from privfl.files import read_json

FOLDER = "attacks"
CAPTION = "{name}: the attack beside its nulls, which need no message of the victims."


def read_attacks(run: Path) -> dict[str, Any] | None:
    """The attacks on the run in ``run``: a sentence, table rows, and figures; ``None`` if there are none.

    A row is (attack, measure, value, values of the nulls, advantage), numbers as text with their intervals.

    Raises:
        DataError: a result is damaged.
    """
    paths = sorted((run / FOLDER).glob("*.json"))
    if not paths:
        return None
    rows, figures, gained = [], [], []
    for path in paths:
        try:
            told = read_json(path, "repeat `privfl attack`")
            measure = told["primary"]
            better, own = told["advantage"][measure], told["metrics"][measure]
            nulls = "; ".join(f"{name} {_text(measures[measure])}" for name, measures in told["nulls"].items())
            rows.append((path.stem, measure.replace("_", " "), _text(own), nulls, _text(better)))
            if better["low"] is not None and better["low"] > 0:
                gained.append(path.stem)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} is damaged ({error}); repeat `privfl attack`") from error
        picture = path.with_suffix(".png")
        if picture.exists():
            data = base64.b64encode(picture.read_bytes()).decode()
            figures.append({"caption": CAPTION.format(name=path.stem), "uri": f"data:image/png;base64,{data}"})
    sentence = (
        f"{len(rows)} attacks read what an observer saw of this run. "
        + (f"More than guessing was gained by {', '.join(gained)}. " if gained else "None gained more than guessing. ")
        + "An attack that fails proves nothing: another one may succeed, and only the statement bounds them all."
    )
    return {"sentence": sentence, "rows": rows, "figures": figures}


def _text(measure: dict[str, Any]) -> str:
    if measure["value"] is None:
        return "not finite"
    interval = "" if measure["low"] is None else f" [{measure['low']:.3g}, {measure['high']:.3g}]"
    return f"{measure['value']:.3g}{interval}"

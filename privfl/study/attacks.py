"""What attacks found in a run, as its page shows it: the files of ``privfl attack``, read and put in words."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privfl.errors import DataError
from privfl.files import read_json
from privfl.study.filed import filed

FOLDER, REFUSED = "attacks", "refused"
"""The folder of results in a run directory, and the one in it of those that did not fit the run, with the reason."""
CAPTION = "{name}: the attack beside its nulls, which need no message of the victims."


def read_attacks(run: Path) -> dict[str, Any] | None:
    """The attacks on the run in ``run``: a sentence, table rows, and figures; ``None`` if there are none.

    A row is (attack, measure, value, values of the nulls, advantage), numbers as text with their intervals.

    Raises:
        DataError: a result is damaged.
    """
    return collect_attacks({"": run}, pictures=True)


def collect_attacks(runs: Mapping[str, Path], *, pictures: bool = False) -> dict[str, Any] | None:
    """The attacks on all of ``runs``, by the runs' names; a row's attack says which run it is about.

    Raises:
        DataError: a result is damaged.
    """
    rows, figures, gained = [], [], []
    for run, folder in runs.items():
        for path in filed(folder / FOLDER):
            name = f"{path.stem} on {run}" if run else path.stem
            try:
                told = read_json(path, "repeat `privfl attack`")
                measure = told["primary"]
                better, own = told["advantage"][measure], told["metrics"][measure]
                nulls = "; ".join(f"{null} {_text(measures[measure])}" for null, measures in told["nulls"].items())
                rows.append((name, measure.replace("_", " "), _text(own), nulls, _text(better)))
                if better["low"] is not None and better["low"] > 0:
                    gained.append(name)
            except (ValueError, KeyError, TypeError) as error:
                if isinstance(error, DataError):
                    raise
                raise DataError(f"{path} is damaged ({error}); repeat `privfl attack`") from error
            picture = path.with_suffix(".png")
            if pictures and picture.exists():
                figures.append(_picture(picture, rows[-1]))
    if not rows:
        return None
    listed = ", ".join(gained[:6]) + (f" and {len(gained) - 6} more" if len(gained) > 6 else "")
    sentence = (
        f"{len(rows)} attacks read what an observer saw of {'these runs' if len(runs) > 1 else 'this run'}. "
        + (f"More than guessing was gained by {listed}. " if gained else "None gained more than guessing. ")
        + "An attack that fails proves nothing: another one may succeed, and only the statement bounds them all."
    )
    return {"sentence": sentence, "rows": rows, "figures": figures}


def _picture(path: Path, row: tuple[str, ...]) -> dict[str, Any]:
    data = base64.b64encode(path.read_bytes()).decode()
    alt = f"{row[0]}: {row[1]} {row[2]}; guessing reaches {row[3]}"
    caption = CAPTION.format(name=path.stem)
    return {"markup": "", "uri": f"data:image/png;base64,{data}", "alt": alt, "caption": caption, "rows": []}


def _text(measure: dict[str, Any]) -> str:
    if measure["value"] is None:
        return "not finite"
    interval = "" if measure["low"] is None else f" [{measure['low']:.3g}, {measure['high']:.3g}]"
    return f"{measure['value']:.3g}{interval}"

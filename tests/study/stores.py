"""Studies for tests, and what lies in their stores."""

from __future__ import annotations

from pathlib import Path

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

"""The first sentences of a study's page: how many settings claim what, and what the answers below them are about."""

from __future__ import annotations

from collections.abc import Sequence

from privfl.privacy.accounting.release import OBSERVERS, UNITS
from privfl.privacy.accounting.statement import Statement
from privfl.study.summary import Summary


def opening(rows: Sequence[Summary], together: Statement | None) -> list[str]:
    """How many settings claim what, and what the answers below are about."""
    told = [
        f"This page compares {len(rows)} settings ({len({row.method for row in rows})} methods, "
        f"{len({row.level for row in rows})} levels). A model of one of them that was not chosen by looking at the "
        "others is protected as its own row says, in the table under “What came out”."
    ]
    bare = {observer: [row for row in rows if _bare(row, observer)] for observer in OBSERVERS}
    if bare["public"] == bare["server"]:
        told.append(
            _claiming("Against whoever sees a released model, and against the server too,", bare["public"], rows)
        )
    else:
        told.append(_claiming("Against whoever sees a released model,", bare["public"], rows))
        told.append(_claiming("Against the server,", bare["server"], rows))
    if together is None:
        told.append(
            "No run of this study claims anything against anybody: reckon with observers who learn everything about "
            "the data behind any of these models."
        )
    else:
        every = not any(_bare(row, "server") and _bare(row, "public") for row in rows)
        told.append(
            "Whoever sees several of these models learns from all of them, and a winner that was chosen among them "
            "tells something about the others too. The answers below are therefore about all runs "
            + (
                "taken together."
                if every
                else "that claim anything, taken together; what the others reveal has no limit."
            )
        )
    return told


def _bare(row: Summary, observer: str) -> bool:
    """Whether ``row`` claims nothing against ``observer``."""
    return all(row.epsilons[f"{unit}/{observer}"] is None for unit in UNITS)


def _claiming(start: str, bare: Sequence[Summary], rows: Sequence[Summary]) -> str:
    """How many of ``rows`` claim something, and which do not: by level where a level does as a whole."""
    names = []
    for level in dict.fromkeys(row.level for row in bare):
        mine, there = ([row.method for row in some if row.level == level] for some in (bare, rows))
        whole = len(mine) == len(there) > 1
        names += [f"every method at “{level}”"] if whole else [f"{method} at “{level}”" for method in mine]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    left = f" Nothing is claimed by {', '.join(names[:6])}{more}." if names else ""
    return f"{start} {len(rows) - len(bare)} of {len(rows)} settings claim something.{left}"

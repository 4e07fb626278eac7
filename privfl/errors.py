"""Errors that a user can mend: each is one sentence that names what is wrong, the value, and the mend."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LISTED = {kind: f"{kind}s" for kind in ("algorithm", "attack", "audit", "dataset", "model", "partition")}
_LISTED |= dict.fromkeys(("update", "size"), "mechanisms")


LONGEST = 1000
"""Characters of an error; whatever is longer is cut out of its middle, so that what is wrong and the mend remain."""


class PrivflError(Exception):
    """Base of every error that privfl raises on purpose; its text is one line that is meant for the user."""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(brief(sentence, LONGEST))


class ConfigError(PrivflError, ValueError):
    """A setting is unknown, impossible, or contradicts another one."""


class DataError(PrivflError, ValueError):
    """A dataset, file or array is not what it should be."""


class PrivacyError(PrivflError, ValueError):
    """A privacy claim was asked for that the mechanism cannot earn."""


def brief(text: str, most: int = 100) -> str:
    """``text`` on one line and cut out of the middle down to ``most`` characters; what cannot be printed is escaped.

    >>> brief("a" * 500 + "b", 9)
    'aaaa…aaab'
    >>> brief("a\\0b\\nc")
    'a\\\\x00b c'
    """
    line = text if text.isprintable() else " ".join(text.split())
    if not line.isprintable():
        line = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)
    return line if len(line) <= most else f"{line[: most // 2]}…{line[len(line) - (most - 1) // 2 :]}"


def unknown(kind: str, name: str, valid: Iterable[str], likeness: float = 0.5) -> ConfigError:
    """The error for a name that is not registered: the nearest valid one, or where to find them all.

    ``likeness`` is how near, in [0, 1], a valid name has to be in order to be suggested.

    >>> str(unknown("algorithm", "fedavgg", ["fedavg", "fedprox"]))
    "unknown algorithm 'fedavgg': did you mean 'fedavg'? See `privfl list algorithms`"
    >>> str(unknown("key", "x", ["rounds", "seed"]))
    "unknown key 'x'; choose from rounds, seed"
    """
    options, name = sorted(valid), brief(name, 80)
    near = get_close_matches(name.lower(), options, n=1, cutoff=likeness)
    if not near:
        return ConfigError(f"unknown {kind} '{name}'; choose from {', '.join(options)}")
    others = listed(kind)
    return ConfigError(f"unknown {kind} '{name}': did you mean '{near[0]}'?{others and f' S{others[1:]}'}")


def listed(kind: str) -> str:
    """Where the command line lists all names of this ``kind`` (``algorithm``, ``privacy.update``), if it does."""
    plural = _LISTED.get(kind.split(".")[-1])
    return f"see `privfl list {plural}`" if plural else ""

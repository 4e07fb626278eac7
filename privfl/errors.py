"""Errors that a user can mend: each is one sentence that names what is wrong, the value, and the mend."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PrivflError(Exception):
    """Base of every error that privfl raises on purpose; its text is meant for the user."""


class ConfigError(PrivflError, ValueError):
    """A setting is unknown, impossible, or contradicts another one."""


class DataError(PrivflError, ValueError):
    """A dataset, file or array is not what it should be."""


class PrivacyError(PrivflError, ValueError):
    """A privacy claim was asked for that the mechanism cannot earn."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> ConfigError:
    """The error for a name that is not registered, with the nearest valid one.

    >>> str(unknown("algorithm", "fedavgg", ["fedavg", "fedprox"]))
    "unknown algorithm 'fedavgg': did you mean 'fedavg'? Valid: fedavg, fedprox."
    """
    options = sorted(valid)
    near = get_close_matches(name.lower(), options, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return ConfigError(f"unknown {kind} '{name}': {hint}Valid: {', '.join(options)}.")

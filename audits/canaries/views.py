"""What an observer saw of a run that was trained for an audit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from privfl.errors import ConfigError
from privfl.privacy.accounting.release import Observer
from privfl.simulation.result import Run
from privfl.simulation.transcript import Transcript


@dataclass(frozen=True)
class View:
    """A transcript, and the parameters [size] that the first round began with, if they are known.

    The server saw them in its first broadcast. They are drawn from a public seed, so the public has them too, but its
    transcript does not hold them: record the server's view as well, or the first round goes unused.
    """

    transcript: Transcript
    start: Tensor | None


def seen_by(run: Run, observer: Observer) -> View:
    """What ``observer`` saw of ``run``.

    Raises:
        ConfigError: nothing was recorded for ``observer``.
    """
    seen = run.transcript
    if seen is None:
        raise ConfigError(f"the run recorded nothing; train with record=['{observer}']")
    if seen.observer == "public" and observer == "server":
        raise ConfigError("the run recorded what the public saw; train with record=['server']")
    start = seen[0].broadcast["parameters"] if seen.observer == "server" else None
    return View(seen if seen.observer == observer else seen.before_public(), start)

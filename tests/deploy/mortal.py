"""An algorithm one of whose clients dies once, for tests of real processes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import privfl as pf


@dataclass(frozen=True)
class Mortal(pf.Scaffold):
    """SCAFFOLD, one of whose processes kills itself, without any farewell, when it finds the file ``trap``."""

    name: ClassVar[str] = "mortal"
    trap: str = ""

    def finish(self, local, received, training):
        try:
            Path(self.trap).unlink()
        except OSError:
            return super().finish(local, received, training)
        os.kill(os.getpid(), signal.SIGKILL)

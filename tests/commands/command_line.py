"""The entry point itself, called in this process: starting torch anew for every command would take minutes."""

import contextlib
import io
import os
import sys
from unittest.mock import patch

from privfl.cli import main


def privfl(*arguments):
    """Exit status, standard output and standard error of ``privfl ARGUMENTS`` on a wide terminal."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["privfl", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.dict(os.environ, {"COLUMNS": "200"}),
    ):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()

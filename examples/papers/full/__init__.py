"""The papers' own tables at the papers' own size: what ``examples/papers/NAME.py --full`` runs.

    PRIVFL_DATA=… python examples/papers/superfed.py --full --plan
    PRIVFL_DATA=… python examples/papers/superfed.py --full --out results/full --only "MNIST, 50 clients" --seeds 1 2 3

One file for each paper says what is in its tables (``TABLE``); ``table`` says what such a description is made of,
``running`` carries it out, ``data`` holds what several papers do to their data.
"""

from __future__ import annotations

import sys
from importlib import import_module

FLAG = "--full"


def asked() -> bool:
    """Whether the command line of a paper's script wants the tables in full."""
    return FLAG in sys.argv[1:]


def run(paper: str) -> None:
    """Run the tables of ``paper`` with the rest of the command line, and leave with 1 if a part of them is missing."""
    from full.running import main

    table = import_module(f"full.{paper}").TABLE
    raise SystemExit(main(table, [one for one in sys.argv[1:] if one != FLAG]))

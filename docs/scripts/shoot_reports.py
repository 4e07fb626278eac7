"""The screenshots of the page on reading reports: a study and one of its runs, in a headless Chromium.

`python docs/scripts/shoot_reports.py [FOLDER]` trains examples/studies/digits.toml, in half a minute, and writes into
docs/figures, or FOLDER.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
WIDTH, PHONE = 1000, 380


def main(out: Path = FIGURES) -> None:
    """Write ``report-*.png`` to the folder ``out``."""
    sys.path.insert(0, str(ROOT))
    from privfl.study.file import Study
    from privfl.study.report import report_directory
    from privfl.study.shown import report_study
    from privfl.study.store import Store
    from tests.browser import browser

    with tempfile.TemporaryDirectory() as scratch, browser() as window:
        folder = Path(scratch)
        study = Study.from_toml(
            ROOT / "examples" / "studies" / "digits.toml", ["record=true", "study.epsilon=[inf, 8, 1]"]
        )
        results = study.run(folder, name="digits", processes=1)
        page = report_study(results, Store(folder), folder / "digits")
        private = next(one for one in results.done if one.level == "ε = 1")
        own = report_directory(folder / "runs" / private.run)

        def shoot(
            name: str, page: Path, section: str, *, width: int = WIDTH, height: int = 900, dark: bool = False
        ) -> None:
            window.open(page, width=width, height=height, dark=dark)
            window.js("document.documentElement.style.overflow = 'hidden'")
            window.js(f"document.querySelector({section!r}).scrollIntoView()" if section else "scrollTo(0, 0)")
            taken = folder / "taken.png"
            window.screenshot(taken)
            small = Image.open(taken).convert("RGB").quantize(64, dither=Image.Dither.NONE)
            content = io.BytesIO()
            small.save(content, format="PNG", optimize=True)
            (out / f"report-{name}.png").write_bytes(content.getvalue())

        shoot("run", own, "", height=1010)
        shoot("study", page, "", height=900)
        shoot("study-results", page, "#findings", height=1040)
        shoot("phone", own, "", width=PHONE, height=820, dark=True)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:2]))

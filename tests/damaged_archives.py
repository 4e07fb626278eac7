"""Archives of NumPy's that were damaged, each in a way in which reading one ends in an error of its own."""

from __future__ import annotations

import zipfile
from pathlib import Path


def cut_short(file: Path) -> None:
    """Half of the file is missing, and with it the list of its parts."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def no_header(file: Path) -> None:
    """Brackets are left open where each array's type and shape are described; the checksums fit."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content.replace(b"}", b"("))


DAMAGES = (cut_short, no_header)

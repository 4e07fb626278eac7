"""What people begin with: a starter file that runs as it is, and parts of their own with a test that passes."""

from __future__ import annotations

import keyword
import re
import sys
from enum import StrEnum
from pathlib import Path
from string import Template

from privfl.commands.catalogue import SHIPPED
from privfl.errors import ConfigError, brief

TEMPLATES = Path(__file__).parent / "templates"


class Starter(StrEnum):
    """Files that privfl runs."""

    experiment = "experiment"
    study = "study"


class Part(StrEnum):
    """Parts that users write themselves."""

    algorithm = "algorithm"
    mechanism = "mechanism"
    attack = "attack"


WRITTEN = {
    Part.algorithm: '[algorithm]\nname = "{module}:{kind}"',
    Part.mechanism: '[[privacy.update]]\nname = "{module}:{kind}"',
    Part.attack: '[[attack]]\nname = "{module}:{kind}"',
}
"""How a file names a part of one's own."""


def start(file: Path, kind: Starter, schema: bool) -> list[str]:
    """Write a commented starter ``file`` of this ``kind``, with the JSON Schema for editors beside it if wanted.

    Returns:
        What to tell the user, line by line.

    Raises:
        ConfigError: a file of that name is there, or it is not called ``….toml``.
    """
    if file.suffix != ".toml":
        raise ConfigError(f"{brief(str(file))} does not end in .toml; give a name such as {kind.value}.toml")
    beside = file.with_name(f"{kind.value}.schema.json")
    text = (TEMPLATES / f"{kind.value}.toml").read_text(encoding="utf-8")
    if not schema:
        text = text.partition("\n")[2]
    _write_all({file: text})
    if schema:  # generated, and the same for every file: whatever lies there is brought up to date
        beside.write_text((SHIPPED / beside.name).read_text(encoding="utf-8"), encoding="utf-8")
    run = "privfl study run" if kind is Starter.study else "privfl run"
    return [f"{file}: a starter file; run it: {run} {file}", *([f"{beside}: its JSON Schema, for editors"] * schema)]


def new_part(part: Part, name: str, folder: Path) -> list[str]:
    """Write a part of one's own called ``name``, and its test beside it, into ``folder``.

    Returns:
        What to tell the user, line by line.

    Raises:
        ConfigError: the name is no name of a Python module, hides another module, or a file of that name is there.
    """
    module = name.replace("-", "_").lower()
    if not re.fullmatch(r"[a-z]\w*", module, re.ASCII) or keyword.iskeyword(module) or module.startswith("test_"):
        raise ConfigError(f"the name is '{brief(name)}'; give letters, digits and _ such as my_{part.value}")
    if module in sys.stdlib_module_names or module in ("privfl", "attacks", "audits", "torch", "numpy", "opacus"):
        raise ConfigError(f"the name is '{name}', and a module is called that already; choose another one")
    kind = "".join(word.capitalize() for word in module.split("_"))
    words = {"module": module, "kind": kind, "name": module.replace("_", "-")}
    files = {}
    for stem, template in ((module, part.value), (f"test_{module}", f"test_{part.value}")):
        text = (TEMPLATES / f"{template}.py.txt").read_text(encoding="utf-8")
        files[folder / f"{stem}.py"] = Template(text).substitute(words)
    _write_all(files)
    own, test = files
    return [
        f"{own}: the {part.value} {kind}; a file names it so, started from its folder:",
        *(f"    {line}" for line in WRITTEN[part].format(**words).splitlines()),
        f"{test}: its test; run it: python -m pytest {test}",
    ]


def _write_all(files: dict[Path, str]) -> None:
    """Write the files; where one of them is there already, none."""
    for path in files:
        if path.exists():
            raise ConfigError(f"{brief(str(path))} is there already, and is left as it is; give another name")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

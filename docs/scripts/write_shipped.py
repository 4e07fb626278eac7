"""Write the files that are generated from the code and shipped with it: `python docs/scripts/write_shipped.py`."""

from __future__ import annotations

from privfl.commands.catalogue import SHIPPED, catalogue
from privfl.commands.json_schema import schema_text


def shipped() -> dict[str, str]:
    """The text of every shipped file, by its name, from the code of the day."""
    return {"catalogue.json": catalogue()} | {
        f"{kind}.schema.json": schema_text(kind) for kind in ("experiment", "study")
    }


if __name__ == "__main__":
    SHIPPED.mkdir(exist_ok=True)
    for name, text in shipped().items():
        (SHIPPED / name).write_text(text, encoding="utf-8")

"""What `privfl list` shows of every kind, read from the classes themselves; and the same as it was last written down.

To read it takes torch, Opacus and every attack: seconds. So what ships is the file ``shipped/catalogue.json``, which
``python docs/scripts/write_shipped.py`` writes and a test compares with the classes of the day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from privfl.companions import companion

SHIPPED = Path(__file__).parent / "shipped"
"""Files that are generated from the code and shipped with it, so that commands that print them start at once."""


class Kind(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    mechanisms = "mechanisms"
    datasets = "datasets"
    models = "models"
    partitions = "partitions"
    attacks = "attacks"
    audits = "audits"


Row = dict[str, Any]


def shipped_rows(kind: Kind) -> list[Row]:
    """The rows of ``kind`` as they were written down."""
    rows: list[Row] = json.loads((SHIPPED / "catalogue.json").read_text(encoding="utf-8"))[kind.value]
    return rows


def names_of(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of the kind that was typed before, for a shell that completes the next word."""
    kind = ctx.params.get("kind")
    return _completed(Kind(kind), incomplete) if kind in list(Kind) else []


def dataset_names(incomplete: str) -> list[str]:
    """The names of datasets that begin so, for a shell that completes a word."""
    return _completed(Kind.datasets, incomplete)


def _completed(kind: Kind, incomplete: str) -> list[str]:
    return [row["name"] for row in shipped_rows(kind) if row["name"].startswith(incomplete)]


def catalogue() -> str:
    """The text of ``shipped/catalogue.json``, from the classes of the day."""
    return json.dumps({kind.value: rows(kind) for kind in Kind}, indent=1, ensure_ascii=False, default=str) + "\n"


def rows(kind: Kind) -> list[Row]:
    """Name, summary and settings of everything of this ``kind``, and what else is known of each."""
    if kind is Kind.datasets:
        from privfl.data.catalog import datasets
        from privfl.data.catalog import options as settings

        return [{"name": entry.name, "summary": entry.title, "settings": settings(entry.name)} for entry in datasets()]
    if kind is Kind.models:
        from privfl.models import models

        return [
            {
                "name": model.name,
                "summary": model.summary,
                "settings": {
                    "inputs": "/".join(model.kinds),
                    "parameters": f"{model.parameters:,} at {model.input_shape}",
                },
            }
            for model in models()
        ]
    registry: Mapping[str, type[Any]]
    if kind is Kind.attacks:
        known = companion("attacks.registry")
        return [
            {
                "name": name,
                "summary": summary(part),
                "settings": defaults(part),
                **known.needs_of(name),
                "choices": [asdict(one) for one in part.choices],
            }
            for name, part in known.ATTACKS.items()
        ]
    if kind is Kind.audits:
        known = companion("audits.registry")
        return [{"name": n, "summary": summary(part), "settings": defaults(part)} for n, part in known.AUDITS.items()]
    if kind is Kind.algorithms:
        from privfl.algorithms import ALGORITHMS
        from privfl.algorithms.declarations import declared

        return [
            {
                "name": name,
                "summary": summary(part),
                "settings": defaults(part) | ({part.counts_by: part.usual_weighting} if part.counts_by else {}),
                **declared(part()),
            }
            for name, part in ALGORITHMS.items()
        ]
    elif kind is Kind.partitions:
        from privfl.data.partitions import PARTITIONS

        registry = PARTITIONS
    else:
        from privfl.privacy.door.dpsgd import DPSGD
        from privfl.privacy.mechanisms.registry import update_mechanisms
        from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS

        registry = {
            "dpsgd": DPSGD,
            **update_mechanisms(),
            **{f"size: {name}": m for name, m in SIZE_MECHANISMS.items()},
        }
    return [{"name": name, "summary": summary(part), "settings": defaults(part)} for name, part in registry.items()]


def summary(component: type[Any]) -> str:
    """The first sentence of a class's docstring."""
    return (
        " ".join((component.__doc__ or "").split("\n\n")[0].split())
        .replace("``", "")
        .replace(":class:", "")
        .replace("`", "")
    )


def defaults(component: type[Any]) -> dict[str, Any]:
    """The settings of a component with their defaults; "required" where there is none, a table for a nested one."""
    return {item.name: _default(item) for item in fields(component)}


def _default(item: Field[Any]) -> Any:
    if item.default is not MISSING:
        return item.default
    if item.default_factory is MISSING:
        return "required"
    value = item.default_factory()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value

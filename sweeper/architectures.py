"""Well-known transformers architectures, kept as data: what ``hf:NAME`` means without a network.

``data/transformers.json`` has for each name the fields of its configuration that decide shapes and operators, and where
they are from; fields left out have the library's defaults.  What decides values only is not there (the scaling of
rotary frequencies, standard deviations, dropout rates that are the defaults), so a model built from it is for its
memory, not for its weights.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Architecture", "architecture", "architecture_names"]

_TABLE = Path(__file__).parent / "data" / "transformers.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model of transformers: ``class_name`` is its class there, ``model_type`` that of its configuration."""

    name: str
    model_type: str
    class_name: str
    config: Mapping[str, Any]
    source: str


def architecture_names() -> tuple[str, ...]:
    """Every name in the table, in its order: family by family, the small first."""
    return tuple(_table()[0])


def architecture(name: str) -> Architecture | None:
    """What the table says of ``name``, which may be the older or the newer of its names on the hub; None of others."""
    models, also = _table()
    return models.get(also.get(name, name))


@cache
def _table() -> tuple[dict[str, Architecture], dict[str, str]]:
    models: dict[str, Architecture] = {}
    also: dict[str, str] = {}
    for name, row in json.loads(_TABLE.read_text(encoding="utf-8")).items():
        models[name] = Architecture(
            name=name,
            model_type=row["model_type"],
            class_name=row["architecture"],
            config=row["config"],
            source=row["source"],
        )
        also |= dict.fromkeys(row.get("also", ()), name)
    return models, also

"""The models that can be named, with their parameters and what one sample of theirs is: the rows of ``sweep models``.

Kept as data, so that the list comes at once and without the libraries.  The rows are those of the versions that
``versions`` tells; another version of a library may have more models or fewer, which the worker says when it is asked.
``scripts/list_models.py`` makes the file, and a test holds a sample of it against what is installed.
"""

import fnmatch
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Listed", "listed", "matching", "versions"]

_FILE = Path(__file__).parent / "data" / "models.json"


@dataclass(frozen=True, slots=True)
class Listed:
    """``parameters`` and ``inputs`` are None of a model that was not described yet: the worker can be asked."""

    name: str
    parameters: int | None
    inputs: str | None


def listed() -> tuple[Listed, ...]:
    """Every row: sweeper's own models, torchvision's, those of ``hf:`` that need no network, and ``timm:``."""
    return tuple(Listed(name, parameters, inputs) for name, (parameters, inputs) in _kept()["models"].items())


def matching(pattern: str) -> tuple[Listed, ...]:
    """The rows with ``pattern`` in their name, or, with a ``*``, ``?`` or ``[`` in it, whose whole name it fits."""
    wanted = pattern.lower()
    if any(mark in wanted for mark in "*?["):
        return tuple(row for row in listed() if fnmatch.fnmatchcase(row.name.lower(), wanted))
    return tuple(row for row in listed() if wanted in row.name.lower())


def versions() -> dict[str, str]:
    """The version of each library that the rows are of."""
    return dict(_kept()["versions"])


@cache
def _kept() -> Any:
    return json.loads(_FILE.read_text(encoding="utf-8"))

"""How far predictions were from published measurements: a small file in the package, read as a value.

The file is condensed from a scoring of every published row (``scripts/score_predictions.py``, kept in
``results/accuracy``), and says when that was and with which versions.  An error is (predicted - measured) / measured of
a peak; the bias is the median of the errors with their sign.

What it does not say: anything of 16-bit peaks, because none of those was published.  All peaks are of fp32 steps; steps
under autocast count in ``boundaries``, which says how often both sides of a measured boundary were told right.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from sweeper.wire import from_jsonable

__all__ = ["SCHEMA", "Accuracy", "Boundaries", "Errors", "accuracy"]

# 1  first version
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The errors of ``rows`` peaks, as shares: ``median`` and ``percentile_90`` of their size, ``bias`` signed."""

    rows: int
    median: float
    percentile_90: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Of ``rows`` measured boundaries, how many were told right on both sides."""

    rows: int
    right: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """``peaks`` are all of them, ``kinds`` the same by what was trained; ``date`` is that of the scoring."""

    schema: int
    date: str
    versions: Mapping[str, str]
    peaks: Errors
    kinds: Mapping[str, Errors]
    boundaries: Mapping[str, Boundaries]


@cache
def accuracy() -> Accuracy:
    """What the installed package knows of itself."""
    text = (resources.files("sweeper") / "data" / "accuracy.json").read_text(encoding="utf-8")
    found: Accuracy = from_jsonable(Accuracy, json.loads(text))
    return found

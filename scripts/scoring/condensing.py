"""A scoring condensed to what an installed sweeper says of its own errors: a few numbers with their date.

The shape is that of ``sweeper.accuracy.Accuracy``, which reads it.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scoring.scores import percentile
from sweeper.accuracy import SCHEMA, Accuracy, Boundaries, Errors
from sweeper.wire import to_jsonable

__all__ = ["condensed", "write_condensed"]


def condensed(found: Mapping[str, Any]) -> Accuracy:
    """What ``found``, the object that the scoring keeps as accuracy.json, says in a few numbers.

    Raises ``ValueError`` when no peak was scored.
    """
    kinds: dict[str, list[float]] = defaultdict(list)
    for row in found["rows"]:
        if row["peak_bytes"] is not None:
            error = (row["peak_bytes"] + row["outside_bytes"]) / row["measured_bytes"] - 1
            kinds["language models" if row["group"].endswith(" text") else "image models"].append(error)
    if not kinds:
        raise ValueError("no peak was scored, so there are no errors to condense")
    told: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one in found["sets"]:
        if one["right"] is not None:
            told["brackets" if one["name"].startswith("brackets") else one["name"]].append((one["rows"], one["right"]))
    return Accuracy(
        schema=SCHEMA,
        date=found["date"],
        versions=found["versions"],
        peaks=_errors([error for errors in kinds.values() for error in errors]),
        kinds={kind: _errors(errors) for kind, errors in kinds.items()},
        boundaries={
            name: Boundaries(rows=sum(rows for rows, _ in each), right=sum(right for _, right in each))
            for name, each in told.items()
        },
    )


def write_condensed(found: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(to_jsonable(condensed(found)), indent=1) + "\n", encoding="utf-8")


def _errors(errors: Sequence[float]) -> Errors:
    sizes = [abs(error) for error in errors]
    return Errors(
        rows=len(errors),
        median=round(statistics.median(sizes), 5),
        percentile_90=round(percentile(sizes, 0.9), 5),
        bias=round(statistics.median(errors), 5),
    )

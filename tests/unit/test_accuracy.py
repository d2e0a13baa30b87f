"""The errors that the package tells of itself: those of the kept scoring, condensed."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.accuracy import SCHEMA, accuracy
from sweeper.wire import WireError, from_jsonable, to_jsonable

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from scoring.condensing import condensed, write_condensed  # noqa: E402

KEPT = ROOT / "results" / "accuracy" / "accuracy.json"


def a_row(predicted: int, measured: int, group: str = "mine", outside: int = 0) -> dict[str, Any]:
    return {"group": group, "peak_bytes": predicted, "measured_bytes": measured, "outside_bytes": outside}


def a_scoring(*rows: dict[str, Any], sets: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"date": "2026-01-02", "versions": {"torch": "2.14.1"}, "rows": list(rows), "sets": list(sets)}


def test_the_packaged_errors_are_those_of_the_kept_scoring() -> None:
    if not KEPT.exists():
        pytest.skip(f"no {KEPT.relative_to(ROOT)} in this tree: a source distribution leaves it out")
    assert accuracy() == condensed(json.loads(KEPT.read_text())), (
        "run scripts/score_predictions.py with --out results/accuracy, which writes both"
    )


def test_the_packaged_errors_are_of_many_rows_and_dated() -> None:
    known = accuracy()
    assert known.schema == SCHEMA
    assert known.peaks.rows == sum(kind.rows for kind in known.kinds.values()) > 100
    assert 0 < known.peaks.median < known.peaks.percentile_90 < 0.2
    assert len(known.date.split("-")) == 3
    assert "torch" in known.versions
    assert all(0 <= each.right <= each.rows for each in known.boundaries.values())


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6), st.booleans()), min_size=1, max_size=30))
def test_the_errors_are_shares_of_what_was_measured(rows: list[tuple[int, int, bool]]) -> None:
    found = condensed(a_scoring(*(a_row(p, m, "mine text" if text else "mine") for p, m, text in rows)))
    errors = [predicted / measured - 1 for predicted, measured, _ in rows]
    assert found.peaks.rows == len(rows)
    assert found.peaks.median == pytest.approx(statistics.median(map(abs, errors)), abs=1e-5)
    assert found.peaks.bias == pytest.approx(statistics.median(errors), abs=1e-5)
    assert sum(abs(error) <= found.peaks.percentile_90 + 1e-5 for error in errors) >= 0.9 * (len(rows) - 1)
    texts = sum(text for _, _, text in rows)
    told = {kind: each.rows for kind, each in found.kinds.items()}
    assert told.get("language models", 0) == texts
    assert told.get("image models", 0) == len(rows) - texts


def test_the_context_counts_where_it_was_measured_and_skipped_rows_do_not() -> None:
    skipped = {**a_row(1, 10), "peak_bytes": None}
    found = condensed(a_scoring(a_row(90, 100, outside=10), skipped))
    assert (found.peaks.rows, found.peaks.median) == (1, 0)


def test_the_boundaries_are_counted_over_the_sets_of_a_kind() -> None:
    sets = [
        {"name": "mine", "rows": 1, "right": None},
        {"name": "caps", "rows": 11, "right": 10},
        {"name": "brackets nchw", "rows": 5, "right": 4},
        {"name": "brackets nhwc", "rows": 7, "right": 7},
    ]
    found = condensed(a_scoring(a_row(1, 1), sets=tuple(sets)))
    assert {name: (each.rows, each.right) for name, each in found.boundaries.items()} == {
        "caps": (11, 10),
        "brackets": (12, 11),
    }


def test_without_a_peak_there_is_nothing_to_condense() -> None:
    with pytest.raises(ValueError, match="no peak"):
        condensed(a_scoring())


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    scoring = a_scoring(a_row(90, 100), a_row(120, 100, "mine text"))
    write_condensed(scoring, tmp_path / "accuracy.json")
    written = json.loads((tmp_path / "accuracy.json").read_text())
    assert from_jsonable(type(accuracy()), written) == condensed(scoring)
    assert to_jsonable(condensed(scoring)) == written
    with pytest.raises(WireError, match="peaks"):
        from_jsonable(type(accuracy()), {**written, "peaks": {}})

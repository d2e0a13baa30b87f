"""A frontier as a person and a program see it: whatever was not run says that it is predicted."""

import csv
import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sweeper import calibration
from sweeper.boundary import Frontier
from sweeper.report import write_frontier
from sweeper.report.frontier import CSV_COLUMNS, figure, points_csv, summary, to_json
from sweeper.units import MIB
from sweeper.wire import from_jsonable, to_jsonable
from tests.builders import a_broken, a_calibration, a_device, a_fit, a_spec, an_oom
from tests.frontiers import LARGEST, a_frontier, a_measured

GOLDEN = Path(__file__).parents[1] / "data" / "frontier"

MEASURED = dataclasses.replace(
    a_frontier(),
    measured=(
        a_measured(384, 49, a_fit(49), predicted=True),
        a_measured(384, 50, an_oom(), predicted=False),
        a_measured(640, 29, an_oom(), predicted=True),
        a_measured(640, 30, a_broken(), predicted=False),
    ),
    notes=("built with n_positions=768 at every length: its own 512 positions are too few",),
)
LONG = a_frontier({length: max(1, 30_000 // length) for length in range(128, 4097, 128)}, cap=256)
ONE = a_frontier({128: 1}, cap=1)
NOTHING = a_frontier({128: None, 256: None})
ON_CPU = a_frontier(
    device=a_device(device="cpu"), spec=a_spec(device="cpu", memory_limit_bytes=MIB), method="live bytes"
)
ALL = {"measured": MEASURED, "long": LONG, "one": ONE, "nothing": NOTHING, "cpu": ON_CPU}
every_case = pytest.mark.parametrize("found", ALL.values(), ids=list(ALL))


def test_the_whole_text_is_the_golden_one() -> None:
    said = summary(MEASURED, color=False, folder=Path("results/one"))
    assert said + "\n" == (GOLDEN / "frontier.txt").read_text(encoding="utf-8")


@every_case
def test_every_row_and_sentence_says_that_it_is_predicted(found: Frontier) -> None:
    heading, table, *_ = summary(found, color=False, width=200).split("\n\n")
    assert heading.endswith("(predicted)")
    rows = [line for line in table.splitlines() if re.match(r" +[\d,]+  ", line)]
    assert len(rows) >= min(len(found.points), 16)
    assert all("predicted)" in row for row in rows)
    for line in summary(found, color=False, width=400).split("\n\n")[2].splitlines():
        assert "(predicted)" in line or line.lstrip().startswith(("trials", "files"))


@every_case
@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_table_keeps_to_the_width_as_far_as_it_can(found: Frontier, width: int) -> None:
    table = summary(found, color=False, width=width).split("\n\n")[1]
    assert max(map(len, table.splitlines())) <= max(width, 70)


def test_a_long_table_is_thinned_with_the_best_and_the_measured_lengths_in_it() -> None:
    said = summary(dataclasses.replace(LONG, measured=(a_measured(1408, 21, a_fit(), predicted=True),)), color=False)
    rows = re.findall(r"^ +([\d,]+)  +\d+ \(", said, re.MULTILINE)
    assert LONG.best is not None
    assert {f"{LONG.best.length:,}", "1,408", "128", "4,096"} <= set(rows)
    assert len(rows) < len(LONG.points)
    assert f"{len(rows)} of 32 lengths" in said


def test_what_a_limit_or_the_cap_or_a_calibration_does_is_said() -> None:
    assert "raise --max-batch" in summary(a_frontier({128: 64}), color=False)
    assert "nothing fits, at any of the lengths (predicted)" in summary(NOTHING, color=False)
    assert "first guess (predicted)" in " ".join(summary(ON_CPU, color=False).split())
    card = calibration.apply(a_calibration(), a_frontier().card)
    assert "calibrated on 2026-11-30" in summary(a_frontier(card=card), color=False)
    real = dataclasses.replace(MEASURED, device=a_device(device="cuda"))
    assert "(simulated)" in summary(MEASURED, color=False)
    assert "(simulated)" not in summary(real, color=False)


@every_case
def test_the_json_and_the_csv_are_the_points(found: Frontier) -> None:
    body = json.loads(json.dumps(to_json(found, Path("one")), allow_nan=False))
    assert (body["schema"], body["predicted"], body["folder"]) == (1, True, "one")
    assert [(row["length"], row["max_batch"]) for row in body["points"]] == [
        (point.length, point.max_batch) for point in found.points
    ]
    for row in body["points"]:
        above = (row["max_batch"] or 0) + 1
        assert row["first_failure"] == (above if above <= found.cap else None)
        assert row["tokens"] == row["length"] * (row["max_batch"] or 0)
    assert (body["best"] or {}).get("length") == (found.best.length if found.best else None)
    assert [len(row) for row in body["map"]["live_bytes"]] == [len(found.points)] * len(body["map"]["batches"])
    rows = list(csv.DictReader(io.StringIO(points_csv(found))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [int(row["max_batch"] or 0) for row in rows] == [point.max_batch or 0 for point in found.points]
    assert {row["predicted"] for row in rows} == {"true"}
    assert "\r\n" in points_csv(found)


def test_the_json_tells_of_each_trial() -> None:
    body = to_json(MEASURED)
    assert (body["measured"]["trials"], body["measured"]["agree"]) == (4, 2)
    assert [(row["length"], row["batch"], row["predicted"], row["outcome"], row["agrees"])
            for row in body["measured"]["points"]] == [
        (384, 49, "fit", "fit", True), (384, 50, "oom", "oom", True),
        (640, 29, "fit", "oom", False), (640, 30, "oom", "broken", False),
    ]  # fmt: skip


@every_case
def test_a_frontier_survives_the_way_to_the_process_that_draws(found: Frontier) -> None:
    assert from_jsonable(Frontier, json.loads(json.dumps(to_jsonable(found)))) == found


@every_case
def test_everything_is_drawn_and_written_whole(found: Frontier, tmp_path: Path) -> None:
    written = write_frontier(found, tmp_path / "folder")
    assert sorted(path.name for path in written) == [
        "frontier.csv", "frontier.json", "frontier.png", "frontier.svg"
    ]  # fmt: skip
    picture = (tmp_path / "folder" / "frontier.svg").read_text(encoding="utf-8")
    assert "(predicted)" in picture
    assert (tmp_path / "folder" / "frontier.png").read_bytes().startswith(b"\x89PNG")


def drawn_at(line: Any) -> list[tuple[float, float]]:
    return [(x, y) for x, y in line.get_xydata()]


def test_the_boundary_and_the_tokens_are_drawn_where_they_are() -> None:
    page = figure(MEASURED)
    left = page.axes[0]
    drawn = {line.get_label(): line for line in left.get_lines()}
    fitting = [(length, batch or 0.5) for length, batch in LARGEST.items()]
    assert drawn_at(drawn["largest batch that fits"]) == fitting
    assert drawn_at(drawn["trial fitted"]) == [(384, 49)]
    assert drawn_at(drawn["trial ran out"]) == [(384, 50), (640, 29)]
    assert drawn_at(drawn["trial broke"]) == [(640, 30)]
    assert drawn["trial fitted"].get_markerfacecolor() != drawn["trial ran out"].get_markerfacecolor()
    best = MEASURED.best
    assert best is not None
    assert drawn_at(drawn["most tokens"]) == [(best.length, best.max_batch)]
    tokens = next(axes for axes in page.axes if "tokens" in axes.get_ylabel())
    line = tokens.get_lines()[0]
    assert drawn_at(line) == [(point.length, point.tokens) for point in MEASURED.points if point.max_batch]
    shades: Any = left.collections[0]
    levels = shades.levels
    assert levels[0] < 128 * 1024 / 2**30 < levels[1]
    assert levels[-2] < 768 * 64 * 1024 / 2**30 < levels[-1]


@every_case
def test_no_text_leaves_the_page_or_meets_another(found: Frontier) -> None:
    page = figure(found)
    page.draw_without_rendering()
    (legend,) = page.legends
    boxes: list[Any] = [legend.get_window_extent(), *(text.get_window_extent() for text in page.texts)]
    for axes in page.axes:
        boxes += [axes.xaxis.get_tightbbox(), axes.yaxis.get_tightbbox(), axes.get_window_extent()]
    shown = [box for box in boxes if box is not None]
    for number, box in enumerate(shown):
        assert -1 <= box.x0 < box.x1 <= page.bbox.width + 1
        # Ticks touch the axes they are of.
        assert not any(box.padded(-4).overlaps(other.padded(-4)) for other in shown[number + 1 :])

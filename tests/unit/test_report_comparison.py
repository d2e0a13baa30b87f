"""A comparison in text, JSON, CSV and pictures: all of them say what the value says."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sweeper.comparison import SORTS, Compared
from sweeper.record import Record
from sweeper.report import comparison, comparison_figures, write_comparison
from sweeper.units import MIB
from tests.builders import a_broken, a_fit, a_header, a_record, a_spec, an_oom
from tests.comparisons import a_compared, an_entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path("results/a comparison")


def odd() -> Compared:
    """One that broke, one where nothing fits, one not begun, beside one that is whole."""
    whole = a_compared().entries[0].record
    records = (whole, a_record((8, a_broken()), (8, a_broken())), a_record((1, an_oom())), Record(header=a_header()))
    words = ("off", "1", "2", "3")
    entries = tuple(an_entry(r, checkpointing=w) for r, w in zip(records, words, strict=True))
    return Compared(vary={"checkpointing": words}, entries=entries)


CASES = {"simulated": a_compared(), "cuda": a_compared("cuda"), "cpu": a_compared("cpu"), "odd": odd()}
each = pytest.mark.parametrize("compared", CASES.values(), ids=CASES)


@each
@pytest.mark.parametrize("sort", SORTS)
def test_the_text_has_a_row_a_combination_within_its_width(compared: Compared, sort: Any) -> None:
    text = comparison.summary(compared, folder=FOLDER, sort=sort, color=False)
    table = text.split("\n\n")[1].splitlines()
    rows = [
        line for line in table if any(line.split()[:1] == [next(iter(e.choices.values()))] for e in compared.entries)
    ]
    assert len(rows) == len(compared.entries)
    assert all(len(line) <= 100 for line in text.splitlines() if "results/" not in line)
    assert "\x1b" not in text
    assert "\x1b" in comparison.summary(compared, folder=FOLDER, sort=sort, color=True)


def test_the_answers_the_common_batch_and_the_effects_are_said() -> None:
    text = comparison.summary(a_compared(), folder=FOLDER, sort="largest", color=False)
    assert "4 of 4 boundaries proven" in text
    assert "compared at batch 32" in " ".join(text.split())
    assert "amp-bf16, against fp32: largest batch x 2.00" in text
    assert "memory per image x 0.50" in " ".join(text.split())
    assert "samples/s" not in text
    assert text.count("(simulated)") >= 3
    measured = comparison.summary(a_compared("cuda"), folder=FOLDER, sort="largest", color=False)
    assert "simulated" not in measured
    assert "samples/s x 1.00" in " ".join(measured.split())


def test_what_has_no_answer_says_why_and_how_to_go_on() -> None:
    text = comparison.summary(odd(), folder=FOLDER, sort="largest", color=False)
    for words in ("broke", "none fits", "not run yet", "1 unfinished", "checkpointing 1 broke:"):
        assert words in text
    assert "sweep compare --resume 'results/a comparison'" in text


@each
def test_the_object_and_the_table_have_every_combination_in_the_order_asked(compared: Compared) -> None:
    body = comparison.to_json(compared, FOLDER)
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    assert [one["label"] for one in body["combinations"]] == [entry.label for entry in compared.entries]
    rows = list(csv.DictReader(io.StringIO(comparison.table_csv(compared))))
    for row, one in zip(rows, body["combinations"], strict=True):
        assert {field: row[field] for field in compared.vary} == one["choices"]
        assert row["max_batch"] == ("" if one["max_batch"] is None else str(one["max_batch"]))
        common = one["common"]
        assert row["common_peak_reserved_bytes"] == ("" if common is None else str(common["peak_reserved_bytes"]))


# -- pictures ---------------------------------------------------------------------------------------------------


def _axes(figure: "Figure") -> "Axes":
    (axes,) = figure.axes
    return axes


def _lines(figure: "Figure") -> list[Any]:
    return list(_axes(figure).lines)


@each
def test_there_is_a_line_a_combination_that_is_its_curve_and_a_ring_at_its_answer(compared: Compared) -> None:
    lines = _lines(comparison_figures.curves(compared))
    named = [line for line in lines if ": " in str(line.get_label()) and "capacity" not in str(line.get_label())]
    assert [str(line.get_label()) for line in named] == [
        f"{entry.label}: {comparison.result_words(entry)}" for entry in compared.entries
    ]
    for line, entry in zip(named, compared.entries, strict=True):
        fits = [point for point in entry.record.curve if point.outcome == "fit"]
        assert list(line.get_xdata()) == [point.size for point in fits]
        assert list(line.get_ydata()) == [point.peak_reserved_bytes / MIB for point in fits]
    rings = [line.get_xdata()[0] for line in lines if line.get_label() == "_ring"]
    assert rings == [entry.largest for entry in compared.entries if entry.largest is not None]
    assert any(str(line.get_label()).startswith("capacity") for line in lines)


def test_lines_are_told_apart_without_colour() -> None:
    one = a_compared().entries[0].record
    words = tuple(map(str, range(12)))
    many = Compared(vary={"seed": words}, entries=tuple(an_entry(one, seed=word) for word in words))
    lines = [line for line in _lines(comparison_figures.curves(many)) if str(line.get_label()).startswith("seed")]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 12


def test_each_device_of_a_comparison_has_its_capacity_by_name() -> None:
    capacities = {"sim:t4": 15_000 * MIB, "sim:l4": 22_000 * MIB}
    entries = tuple(
        an_entry(a_record((8, a_fit(8, capacity_bytes=size)), spec=a_spec(device=device)), device=device)
        for device, size in capacities.items()
    )
    figure = comparison_figures.curves(Compared(vary={"device": tuple(capacities)}, entries=entries))
    labels = [str(line.get_label()) for line in _axes(figure).lines]
    for device, size in capacities.items():
        assert any(label.startswith(f"capacity of {device}: {size // MIB:,} MiB") for label in labels)


@each
def test_the_bars_add_up_to_the_breakdown_at_the_common_batch(compared: Compared) -> None:
    figure = comparison_figures.breakdowns(compared)
    points = [p for entry in compared.entries if (p := entry.at(compared.common_size)) is not None]
    if not points:
        assert figure is None
        return
    assert figure is not None
    containers: list[Any] = list(_axes(figure).containers)
    for number, point in enumerate(points):
        assert point.breakdown is not None
        total = sum(container.patches[number].get_width() for container in containers)
        assert total == pytest.approx(point.breakdown.total_bytes / MIB)


@each
def test_simulated_is_written_on_the_pictures_of_what_is(compared: Compared) -> None:
    for figure in (comparison_figures.curves(compared), comparison_figures.breakdowns(compared)):
        if figure is not None:
            texts = [text.get_text() for text in (*figure.texts, *_axes(figure).texts)]
            assert any("simulated" in text for text in texts) == compared.entries[0].record.device.simulated  # type: ignore[union-attr]


def test_the_files_are_written_beside_those_of_the_runs(tmp_path: Path) -> None:
    compared = odd()
    names = {str(path.relative_to(tmp_path)) for path in write_comparison(compared, tmp_path)}
    assert {"compare.json", "compare.csv", "compare.png", "compare.svg"} <= names
    begun = [entry for entry in compared.entries if entry.record.device is not None]
    assert {f"{entry.folder}/summary.json" for entry in begun} == {n for n in names if n.endswith("summary.json")}
    assert json.loads((tmp_path / "compare.json").read_text()) == comparison.to_json(compared, tmp_path)
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")

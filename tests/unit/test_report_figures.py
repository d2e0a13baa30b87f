"""The figures hold what the record holds: laws on their artists, not on pixels."""

import struct
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from sweeper.record import Record, Settings
from sweeper.report import figures
from sweeper.units import GIB, MIB
from tests.builders import (
    BOUNDARY,
    CAPACITY_BYTES,
    a_device,
    a_finished_record,
    a_fit,
    a_measured_fit,
    a_prediction,
    a_record,
    a_spec,
    a_trial,
    an_oom,
)
from tests.report_cases import CASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

each_case = pytest.mark.parametrize("record", CASES.values(), ids=CASES)


def _axes(figure: "Figure") -> "Axes":
    (axes,) = figure.axes
    return axes


def _line(axes: "Axes", label: str) -> Any:
    (line,) = (line for line in axes.lines if str(line.get_label()).startswith(label))
    return line


def _points(axes: "Axes", label: str) -> tuple[list[float], list[float]]:
    line = _line(axes, label)
    return list(line.get_xdata()), list(line.get_ydata())


def _stacks(figure: "Figure") -> list[Any]:
    """The bars of each kind, from the bottom up; one bar a size."""
    containers: list[Any] = list(_axes(figure).containers)
    return [container.patches for container in containers]


def _texts(figure: "Figure") -> list[str]:
    return [text.get_text() for text in (*figure.texts, *_axes(figure).texts)]


def _all_figures(record: Record) -> "list[Figure]":
    drawn = (figures.memory(record), figures.breakdown(record), figures.throughput(record))
    return [figure for figure in drawn if figure is not None]


@each_case
def test_the_lines_are_the_record(record: Record) -> None:
    axes = _axes(figures.memory(record))
    fits = [point for point in record.curve if point.outcome == "fit"]
    names = {str(line.get_label()) for line in axes.lines}
    if not fits:
        assert not names & {"reserved", "allocated", "resident"}
        return
    on_cpu = record.header.spec.device == "cpu"
    assert ("allocated" in names, "resident" in names) == (not on_cpu, on_cpu)
    reserved = _line(axes, "resident" if on_cpu else "reserved")
    assert list(reserved.get_xdata()) == [point.size for point in fits]
    assert list(reserved.get_ydata()) == [point.peak_reserved_bytes / MIB for point in fits]
    if not on_cpu:
        assert list(_line(axes, "allocated").get_ydata()) == [point.peak_allocated_bytes / MIB for point in fits]


@each_case
def test_the_capacity_line_is_at_the_capacity(record: Record) -> None:
    assert set(_line(_axes(figures.memory(record)), "capacity").get_ydata()) == {record.capacity_bytes / MIB}


@each_case
def test_each_size_that_ran_out_is_marked_once_at_the_capacity_or_above(record: Record) -> None:
    axes = _axes(figures.memory(record))
    failed = [point.size for point in record.curve if point.outcome == "oom"]
    assert sum(line.get_label() == "out of memory" for line in axes.lines) == bool(failed)
    if failed:
        sizes, heights = _points(axes, "out of memory")
        assert sorted(sizes) == failed
        assert _line(axes, "out of memory").get_marker() == "x"
        assert all(record.capacity_bytes / MIB <= height <= axes.get_ylim()[1] for height in heights)


def test_a_request_of_many_times_the_card_stays_on_the_page() -> None:
    axes = _axes(figures.memory(a_record((1, a_fit(1)), (2, an_oom(requested_bytes=900 * GIB)))))
    assert axes.get_ylim()[1] < 1.5 * CAPACITY_BYTES / MIB


@each_case
def test_simulated_is_written_on_every_figure_of_a_simulated_device_and_on_no_other(record: Record) -> None:
    assert record.device is not None
    for figure in _all_figures(record):
        assert any("simulated" in text for text in _texts(figure)) == record.device.simulated


@each_case
def test_the_title_says_the_answer_and_the_boundary_is_named(record: Record) -> None:
    texts = _texts(figures.memory(record))
    answered = record.max_size is not None and record.broken is None
    named = [text for text in _axes(figures.memory(record)).texts if "fits" in text.get_text()]
    assert len(named) == answered
    if answered and record.first_failure is not None:
        assert any(f"{record.max_size:,} fits, {record.first_failure:,} does not" in text for text in texts)
        assert f"{record.first_failure:,} does not" in named[0].get_text()


def test_the_law_is_the_caption() -> None:
    assert any("464.00 MiB + 22.00 MiB per image" in text for text in _texts(figures.memory(a_finished_record())))


def test_the_prediction_is_dashed_and_only_there_when_one_was_made() -> None:
    line = _line(_axes(figures.memory(a_finished_record(prediction=a_prediction()))), "predicted, uncapped")
    assert line.get_linestyle() == "--"
    assert list(line.get_xdata()) == [1, 100, 200, 300, BOUNDARY]
    labels = [line.get_label() for line in _axes(figures.memory(a_finished_record())).lines]
    assert not any("predicted" in str(label) for label in labels)


def test_what_was_predicted_of_each_batch_is_a_thin_dashed_line_beside_the_measured_points() -> None:
    record = CASES["beside-prediction"]
    line = _line(_axes(figures.memory(record)), "predicted")
    points = [point for point in record.curve if point.predicted is not None]
    assert (line.get_linestyle(), line.get_label()) == ("--", "predicted")
    assert line.get_linewidth() < _line(_axes(figures.memory(record)), "reserved").get_linewidth()
    assert list(line.get_xdata()) == [point.size for point in points]
    assert list(line.get_ydata()) == [p.predicted.peak_reserved_bytes / MIB for p in points if p.predicted]


def test_the_process_line_is_drawn_where_the_driver_told() -> None:
    line = _line(_axes(figures.memory(CASES["boundary-cuda"])), "process")
    known = [point for point in CASES["boundary-cuda"].curve if point.outcome == "fit"]
    assert list(line.get_ydata()) == [(point.process_bytes or 0) / MIB for point in known]


@each_case
def test_no_two_series_share_both_marker_and_line_style(record: Record) -> None:
    for figure in _all_figures(record):
        looks = [(str(line.get_marker()), str(line.get_linestyle())) for line in _axes(figure).lines]
        assert len(set(looks)) == len(looks)


def _luminance(color: Any) -> float:
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(color)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def test_neighbouring_kinds_differ_in_grey_or_in_hatch() -> None:
    figure = figures.breakdown(a_finished_record())
    assert figure is not None
    looks = [(_luminance(bars[0].get_facecolor()), bars[0].get_hatch()) for bars in _stacks(figure)]
    assert len(looks) == 7
    for (grey, hatch), (next_grey, next_hatch) in pairwise(looks):
        assert hatch != next_hatch or abs(grey - next_grey) > 0.15
    assert len({hatch for _, hatch in looks if hatch}) == 4


def test_the_bars_of_a_size_add_up_to_what_was_allocated() -> None:
    record = a_finished_record()
    figure = figures.breakdown(record)
    assert figure is not None
    stacks = _stacks(figure)
    points = [point for point in record.curve if point.breakdown is not None]
    for i, point in enumerate(points):
        bars = [kind[i] for kind in stacks]
        assert (bars[-1].get_y() + bars[-1].get_height()) * MIB == pytest.approx(point.peak_allocated_bytes)
        for below, above in pairwise(bars):
            assert below.get_y() + below.get_height() == pytest.approx(above.get_y())
    labels = [label.get_text() for label in _axes(figure).get_xticklabels()]
    assert labels == [str(point.size) for point in points]


def test_what_was_not_measured_is_not_drawn() -> None:
    assert figures.throughput(a_finished_record()) is None
    measured = a_record(*((size, a_measured_fit(size)) for size in (1, 8, 64)), spec=a_spec(device="cuda"))
    assert figures.breakdown(measured) is None
    figure = figures.throughput(measured)
    assert figure is not None
    assert list(_line(_axes(figure), "samples").get_xdata()) == [1, 8, 64]


def test_a_capacity_far_above_does_not_flatten_the_curve() -> None:
    small = [(size, a_fit(size, capacity_bytes=500 * GIB)) for size in (1, 2, 4)]
    axes = _axes(figures.memory(a_record(*small, settings=Settings(cap=4))))
    line = _line(axes, "capacity")
    assert axes.get_ylim()[1] * MIB < GIB
    assert str(line.get_label()).endswith("(off the top)")


def test_thousands_are_written_with_a_separator() -> None:
    fits = [(size, a_fit(size, peak_reserved_bytes=size * MIB)) for size in (1, 2048, 4096)]
    figure = figures.memory(a_record(*fits, (4097, an_oom()), settings=Settings(cap=65536, margin=0)))
    figures.render(figure, "svg")
    labels = [label.get_text() for label in _axes(figure).get_xticklabels()]
    assert "2,000" in labels or "1,000" in labels
    assert any("4,096 fits, 4,097 does not" in text for text in _texts(figure))


@pytest.mark.parametrize("name", ["$\\frac{1}{0}$", "\u6a21\u578b.py:f", "\x1b[31m\n\u202e", "M" * 500, "%s {} <b>&"])
def test_any_name_can_be_drawn_without_a_warning_and_inside_the_page(name: str) -> None:
    record = a_record((1, a_fit(1)), spec=a_spec(model=name), device=a_device(label=name))
    figure = figures.memory(record)
    figure.draw_without_rendering()
    assert all(text.get_window_extent().x1 <= figure.bbox.width for text in figure.texts)
    assert figures.render(figure, "svg").startswith(b"<?xml")


@each_case
def test_no_text_leaves_the_page_or_meets_the_legend(record: Record) -> None:
    for figure in _all_figures(record):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert legend.get_window_extent().x1 <= figure.bbox.width
        for text in figure.texts:
            extent = text.get_window_extent()
            assert extent.x0 >= 0
            assert extent.x1 <= figure.bbox.width
            assert not extent.overlaps(legend.get_window_extent())


def test_a_png_is_whole_and_the_same_each_time() -> None:
    record = a_finished_record()
    once, again = (figures.render(figures.memory(record), "png", dpi=50) for _ in range(2))
    assert once == again
    assert once[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", once[16:24])
    assert (width, height) == (400, 260)
    assert zlib.crc32(once[12:29]) == struct.unpack(">I", once[29:33])[0]


def test_a_users_style_changes_nothing() -> None:
    import matplotlib

    theirs: Any = {
        "text.usetex": True,
        "text.color": "white",
        "axes.facecolor": "black",
        "font.family": ["serif"],
        "figure.autolayout": True,
        "savefig.bbox": "tight",
        "lines.marker": "*",
        "xtick.labelsize": 30,
    }
    plain = figures.render(figures.memory(a_finished_record()), "png", dpi=50)
    with matplotlib.rc_context(theirs):
        assert figures.render(figures.memory(a_finished_record()), "png", dpi=50) == plain
        assert matplotlib.rcParams["text.usetex"] is True


def test_the_svg_is_the_same_each_time_and_its_text_can_be_searched() -> None:
    once, again = (figures.render(figures.memory(a_finished_record()), "svg") for _ in range(2))
    assert once == again
    assert b"simulated" in once
    assert f"{BOUNDARY} fits".encode() in once


def test_what_ran_out_with_a_margin_withheld_is_not_on_the_curve() -> None:
    record = a_finished_record()
    missed = record.with_trial(
        a_trial(len(record.trials) + 1, 310, an_oom(), purpose="recommended", withheld_bytes=400 * MIB)
    )
    before, after = (_line(_axes(figures.memory(r)), "out of memory") for r in (record, missed))
    assert list(before.get_xdata()) == list(after.get_xdata()) == [BOUNDARY + 1]


def test_along_an_axis_the_size_is_named_with_its_unit_and_the_batch() -> None:
    for figure in _all_figures(CASES["sequence-length"]):
        assert _axes(figure).get_xlabel() == "sequence length (tokens), at batch 4"
    for figure in _all_figures(CASES["boundary-cuda"]):
        assert _axes(figure).get_xlabel() == "batch size"


def test_a_law_with_a_square_is_drawn_through_the_points_and_not_from_one_to_the_next() -> None:
    record = CASES["sequence-length"]
    axes = _axes(figures.memory(record))
    assert _line(axes, "allocated").get_linestyle() == "None"
    sizes, peaks = _points(axes, "law of the allocated")
    drawn = dict(zip(sizes, peaks, strict=True))
    fits = [point for point in record.curve if point.outcome == "fit"]
    assert (min(sizes), max(sizes)) == (fits[0].size, fits[-1].size)
    assert drawn[fits[-1].size] == pytest.approx(fits[-1].peak_allocated_bytes / MIB, rel=0.01)
    assert not any(
        str(line.get_label()).startswith("law") for line in _axes(figures.memory(CASES["boundary-cuda"])).lines
    )

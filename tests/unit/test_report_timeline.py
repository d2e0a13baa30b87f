"""The timeline holds what the history holds: laws on what is chosen and on the Figure's artists, not on pixels."""

import dataclasses
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from sweeper.allocator_conf import DEFAULT_CONF
from sweeper.cards import card
from sweeper.history import History, recorded
from sweeper.predicting import Forecast
from sweeper.prediction import Prediction
from sweeper.report import page
from sweeper.report.timeline import Point, Timeline, figure, timeline
from sweeper.trace import AffineTrace, Label, Mark, Trace
from sweeper.trial import KINDS, Phase
from sweeper.units import MIB, format_bytes
from sweeper.wire import from_jsonable, to_jsonable
from tests.builders import a_spec
from tests.traces import a_trace, golden

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def a_forecast(history: History | None, **changes: Any) -> Forecast:
    """As much of a forecast as is drawn."""
    given: dict[str, Any] = {
        "spec": a_spec(model="small-cnn", optimizer="adam"),
        "card": card("rtx4060"),
        "capacity_bytes": 64 * MIB,
        "cap": 61,
        "floor": 1,
        "prediction": Prediction(max_batch=None, peak_bytes_at_max=None, points=()),
        "fitting": (),
        "uncapped_peak_bytes": None,
        "least_capacity_bytes": None,
        "history": history,
    }
    return Forecast(**{**given, **changes})


def renamed(trace: Trace, name: str) -> Trace:
    labels = tuple(Label(name, name, label.phase, label.kind) for label in trace.labels)
    return dataclasses.replace(trace, labels=labels)


def crowded() -> Trace:
    """Phases of one event each, between two long ones."""
    events = tuple(event for n in range(100) for event in (n, ~n))
    phases: tuple[Phase, ...] = ("inputs", "forward", "loss", "backward", "step")
    marks = (Mark(0, "setup", 0), *(Mark(100 + n, phase, 0) for n, phase in enumerate(phases)))
    return dataclasses.replace(a_trace(), events=events, sizes=(MIB,) * 100, labels_of=(2,) * 100, marks=marks)


@cache
def histories() -> dict[str, History]:
    law = AffineTrace.join(golden(4), golden(8))
    return {
        "fits": recorded(golden(61), DEFAULT_CONF, capacity_bytes=1024 * MIB),
        "just fits": recorded(law.at(61), DEFAULT_CONF, capacity_bytes=118 * MIB),
        "runs out": recorded(golden(61), DEFAULT_CONF, capacity_bytes=64 * MIB),
        "runs out at once": recorded(golden(61), DEFAULT_CONF, capacity_bytes=2 * MIB),
        "no end": recorded(golden(4), DEFAULT_CONF),
        "by hand": recorded(a_trace(), DEFAULT_CONF, capacity_bytes=64 * MIB),
        "crowded": recorded(crowded(), DEFAULT_CONF, capacity_bytes=64 * MIB),
        "without marks": recorded(dataclasses.replace(a_trace(), marks=()), DEFAULT_CONF),
    }


each = pytest.mark.parametrize("name", histories())


def shown(name: str) -> Timeline:
    return timeline(a_forecast(histories()[name]))


def _axes(drawn: "Figure") -> "Axes":
    (axes,) = drawn.axes
    return axes


def _labelled(axes: "Axes", label: str) -> list[Any]:
    return [line for line in axes.lines if str(line.get_label()).startswith(label)]


@each
def test_what_is_chosen_is_one_step_with_its_peak_or_its_refusal(name: str) -> None:
    history, found = histories()[name], shown(name)
    failure = history.replay.failure
    assert (found.refused is None) == (failure is None)
    focus = history.replay.peak_event if failure is None else failure.event
    step = history.trace.phase_at(focus)[1]
    assert found.phases == tuple(span for span in history.phases() if span.step == step)
    assert f"step {step + 1} of " in found.caption
    assert all(found.first <= span.first < span.end <= found.end for span in found.phases)
    totals = [sum(moment) for moment in zip(*found.held.values(), strict=True)]
    assert len(totals) == len(found.reserved)
    assert found.peak.height_bytes == max(totals)
    assert totals[found.peak.event - found.first] == max(totals)
    if failure is None:
        assert found.peak.height_bytes == history.replay.peak_allocated_bytes
        assert found.peak.event == history.replay.peak_event
    else:
        assert found.refused is not None
        assert found.first <= found.refused.event == failure.event < found.end
        assert found.refused.height_bytes > (history.capacity_bytes or 0)
        assert f"{format_bytes(failure.requested_bytes)} refused" in found.refused.text
        assert failure.label.operator in found.refused.text


@each
def test_what_is_drawn_crosses_to_the_drawing_process_whole(name: str) -> None:
    found = shown(name)
    assert from_jsonable(Timeline, json.loads(json.dumps(to_jsonable(found)))) == found


@each
def test_the_kinds_are_stacked_to_what_is_allocated(name: str) -> None:
    found = shown(name)
    axes = _axes(figure(found))
    layers = {str(layer.get_label()): layer for layer in axes.collections}
    assert list(layers) == [kind for kind in KINDS if kind in found.held] or set(layers) == set(found.held)
    top = max(layer.get_datalim(axes.transData).y1 for layer in axes.collections)
    assert top * MIB == pytest.approx(found.peak.height_bytes)
    # The base of each is the top of the one below, where both are highest.
    for kind, layer in layers.items():
        order = [kind_of for kind_of, _, _ in page.KINDS if kind_of in found.held]
        below = order[: order.index(kind) + 1]  # type: ignore[arg-type]
        highest = max(sum(moment) for moment in zip(*(found.held[k] for k in below), strict=True))
        assert layer.get_datalim(axes.transData).y1 * MIB == pytest.approx(highest)


@each
def test_reserved_and_the_capacity_are_lines(name: str) -> None:
    found = shown(name)
    axes = _axes(figure(found))
    (reserved,) = _labelled(axes, "reserved")
    assert [height * MIB for height in reserved.get_ydata()[:-1]] == pytest.approx(list(found.reserved))
    capacity = _labelled(axes, "capacity")
    assert len(capacity) == (found.capacity_bytes is not None)
    if found.capacity_bytes is not None:
        assert set(capacity[0].get_ydata()) == {found.capacity_bytes / MIB}
        off_page = found.capacity_bytes / MIB > axes.get_ylim()[1]
        assert str(capacity[0].get_label()).endswith("(off the top)") == off_page


@each
def test_the_refused_request_is_marked_above_the_capacity_and_on_the_page(name: str) -> None:
    found = shown(name)
    axes = _axes(figure(found))
    marks = _labelled(axes, "out of memory")
    assert len(marks) == (found.refused is not None)
    if found.refused is not None:
        ((x,), (y,)) = marks[0].get_xdata(), marks[0].get_ydata()
        assert x == found.refused.event - found.first
        assert found.capacity_bytes is not None
        assert found.capacity_bytes / MIB < y <= axes.get_ylim()[1]
        assert x <= axes.get_xlim()[1]


@each
def test_every_phase_is_a_band_with_its_name_and_names_do_not_meet(name: str) -> None:
    found = shown(name)
    drawn = figure(found)
    axes = _axes(drawn)
    drawn.draw_without_rendering()
    names = {"step": "optimizer step"}
    wanted = [names.get(span.phase, span.phase) for span in found.phases]
    texts = [text for text in axes.texts if text.get_text() in wanted]
    assert [text.get_text() for text in texts] == wanted
    extents = [text.get_window_extent() for text in texts]
    for place, extent in enumerate(extents):
        assert not any(extent.overlaps(other) for other in extents[place + 1 :])
    assert len(axes.patches) == len(found.phases)


@each
def test_the_peak_is_named_and_no_text_leaves_the_page_or_meets_the_legend(name: str) -> None:
    found = shown(name)
    drawn = figure(found)
    axes = _axes(drawn)
    drawn.draw_without_rendering()
    assert any(found.peak.text == text.get_text() for text in axes.texts)
    assert "(predicted)" in found.subject
    (legend,) = drawn.legends
    for text in [*drawn.texts, *axes.texts]:
        extent = text.get_window_extent()
        assert 0 <= extent.x0 <= extent.x1 <= drawn.bbox.width
        assert 0 <= extent.y0 <= extent.y1 <= drawn.bbox.height
        assert not extent.overlaps(legend.get_window_extent())


@pytest.mark.parametrize("word", ["$\\frac{1}{0}$", "\u6a21\u578b", "\x1b[31m\n\u202e", "M" * 500, "%s {} <b>&"])
def test_any_name_can_be_drawn_without_a_warning_and_inside_the_page(word: str) -> None:
    for capacity in (1024 * MIB, 64 * MIB):
        history = recorded(renamed(golden(61), word), DEFAULT_CONF, capacity_bytes=capacity)
        drawn = figure(timeline(a_forecast(history, spec=a_spec(model=word))))
        drawn.draw_without_rendering()
        for text in [*drawn.texts, *_axes(drawn).texts]:
            assert text.get_window_extent().x1 <= drawn.bbox.width
        assert page.render(drawn, "svg").startswith(b"<?xml")


def test_a_request_of_many_times_the_card_stays_on_the_page() -> None:
    found = shown("runs out")
    huge = dataclasses.replace(found, refused=Point(event=found.end - 1, height_bytes=10**15, text="all of it"))
    axes = _axes(figure(huge))
    assert found.capacity_bytes is not None
    assert axes.get_ylim()[1] * MIB < 2 * found.capacity_bytes
    assert _labelled(axes, "out of memory")[0].get_ydata()[0] <= axes.get_ylim()[1]


def test_the_same_timeline_gives_the_same_file() -> None:
    once, again = (page.render(figure(shown("runs out")), "png", dpi=50) for _ in range(2))
    assert once == again


def test_a_forecast_without_its_history_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="ask for it"):
        timeline(a_forecast(None))


def test_a_long_module_leaves_the_headline_its_phase_and_its_own_last_name() -> None:
    word = "encoder.layers.encoder_layer_11.self_attention.out_proj"
    history = recorded(renamed(golden(61), word), DEFAULT_CONF, capacity_bytes=64 * MIB)
    assert history.replay.failure is not None
    headline = timeline(a_forecast(history)).headline
    assert f" runs out in {history.replay.failure.label.phase} of " in headline
    assert headline.endswith("self_attention.out_proj")

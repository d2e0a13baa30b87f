"""Memory over one training step, event by event and by kind: what to draw as a value, and the Figure of it.

``timeline`` chooses and words what is drawn, of a forecast that was asked for its history; ``figure`` draws it, in the
process that may import matplotlib.  The step is the one with the peak, or the one that was refused a request; before
the first step come the weights, so they are drawn with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sweeper.history import History, PhaseSpan
from sweeper.predicting import Forecast
from sweeper.prediction import predicted_failure
from sweeper.report import words
from sweeper.report.forecasts import card, job
from sweeper.report.page import BLACK, BLUE, KINDS, VERMILLION, drawable, house_style, legend, new_page, shorten
from sweeper.trace import Label
from sweeper.trial import Kind
from sweeper.units import MIB, format_bytes, format_mib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Point", "Timeline", "figure", "timeline"]

_WIDTH = 10  # inches
_NAME_LENGTH = 40  # characters of an operator or a module that are written out
_PHASE_NAMES = {"step": "optimizer step"}
# Above this share of the capacity a refused request is drawn at the edge: it may be any number of times the card.
_HIGHEST = 1.1
_ROOM_FOR_PHASES = 1.26  # the axes reach this much above what is drawn, for the names of the phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A moment to be marked: the event, the height in bytes, what to say there."""

    event: int
    height_bytes: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What is drawn: events ``first`` to ``end`` of a trace, the latter not included.

    ``held`` are the bytes of each kind, ``reserved`` all that was reserved, both after each event from ``first`` on as
    far as it came.  ``refused`` is the request that memory ran out at.
    """

    subject: str
    headline: str
    caption: str
    first: int
    end: int
    held: Mapping[Kind, tuple[int, ...]]
    reserved: tuple[int, ...]
    phases: tuple[PhaseSpan, ...]
    capacity_bytes: int | None
    peak: Point
    refused: Point | None = None


def timeline(found: Forecast) -> Timeline:
    """What to draw of ``found``.  Raises ``ValueError`` when it was not asked for its history."""
    history = found.history
    if history is None:
        raise ValueError("the forecast has no history; ask for it")
    said, batch = history.replay, history.trace.batch_size
    focus = said.failure.event if said.failure else said.peak_event
    step = history.trace.phase_at(focus)[1]
    phases = tuple(span for span in history.phases() if span.step == step)
    first, end = (phases[0].first, phases[-1].end) if phases else (0, len(history.trace.events))
    held = {kind: rows[first:end] for kind, rows in history.held().items() if any(rows[first:end])}
    return Timeline(
        subject=f"{shorten(job(found), 60)}, batch {batch}, on {shorten(card(found), 50)} (predicted)",
        headline=_headline(history),
        caption=_caption(history, step),
        first=first,
        end=end,
        held=held,
        reserved=history.reserved()[first:end],
        phases=phases,
        capacity_bytes=history.capacity_bytes,
        peak=_peak(history, held, first),
        refused=_refused(history),
    )


def figure(shown: Timeline) -> "Figure":
    """The kinds stacked, reserved and the capacity as lines, the phases as bands behind them."""
    with house_style():
        page, axes = new_page(shown.subject, shown.headline, shown.caption, None, width=_WIDTH)
        axes.set_xlim(0, max(shown.end - shown.first, 1))
        axes.set_ylim(0, _ROOM_FOR_PHASES * _highest(shown) / MIB)
        _stack(axes, shown)
        _lines(axes, shown)
        _phases(axes, shown)
        _note(axes, shown, shown.peak, BLACK, 0.45)
        if shown.refused is not None:
            _note(axes, shown, shown.refused, VERMILLION, 0.64)
        axes.set_xlabel("allocations and frees, in order")
        axes.set_ylabel("memory [MiB]")
        legend(page, axes, columns=5)
        return page


# -- what to draw -----------------------------------------------------------------------------------------------


def _headline(history: History) -> str:
    said, batch = history.replay, history.trace.batch_size
    if said.failure is not None:
        failure = predicted_failure(batch, said.failure)
        # The mark in the picture has the operator.  Without it the line is short enough to be left whole.
        failure = replace(failure, operator="", module=shorten(words.printable(failure.module), _NAME_LENGTH))
        return f"batch {batch:,} runs out{words.where(failure)}"
    allocated, reserved = format_mib(said.peak_allocated_bytes), format_mib(said.peak_reserved_bytes)
    return f"batch {batch:,} fits: at most {allocated} MiB allocated, {reserved} MiB reserved"


def _caption(history: History, step: int) -> str:
    steps = 1 + max((mark.step for mark in history.trace.marks), default=0)
    why = "the one that runs out" if history.replay.failure is not None else "the one with the peak"
    return (
        f"step {step + 1} of {steps}, {why}, after each allocation and free; the kinds add up to what is allocated, "
        "and what is reserved beyond them is cached or in pieces (predicted)"
    )


def _peak(history: History, held: Mapping[Kind, Sequence[int]], first: int) -> Point:
    """The most that is held in what is drawn, and who asked for the last of it."""
    totals = [sum(moment) for moment in zip(*held.values(), strict=True)] or [0]
    place = max(range(len(totals)), key=totals.__getitem__)
    event = first + place
    size = format_mib(totals[place])
    made = history.trace.events[event] if history.trace.events else -1
    text = f"peak {size} MiB\n{_by(history.trace.label(made))}" if made >= 0 else f"peak {size} MiB"
    return Point(event=event, height_bytes=totals[place], text=text)


def _refused(history: History) -> Point | None:
    failure = history.replay.failure
    if failure is None:
        return None
    text = f"{format_bytes(failure.requested_bytes)} refused, {format_bytes(failure.free_bytes)} free"
    if failure.requested_bytes <= failure.free_bytes:
        text += f"\n(it takes a segment of {format_bytes(failure.segment_bytes)})"
    return Point(
        event=failure.event,
        height_bytes=failure.reserved_bytes + failure.segment_bytes,
        text=f"{text}\n{_by(failure.label)}",
    )


def _by(label: Label) -> str:
    names = (label.operator, label.module or "the model")
    operator, module = (shorten(words.printable(name), _NAME_LENGTH) for name in names)
    return f"{operator}\nin {module}"


# -- how to draw it ---------------------------------------------------------------------------------------------


def _highest(shown: Timeline) -> float:
    """The capacity, unless what is held is so far below it that it would lie flat."""
    drawn = max([*shown.reserved, shown.peak.height_bytes, 1])
    capacity = shown.capacity_bytes
    if shown.refused is not None:
        drawn = max(drawn, _clamped(shown, shown.refused.height_bytes))
    return drawn if capacity is None or capacity > 5 * drawn else max(drawn, capacity)


def _clamped(shown: Timeline, height: int) -> int:
    return height if shown.capacity_bytes is None else min(height, int(_HIGHEST * shown.capacity_bytes))


def _stack(axes: "Axes", shown: Timeline) -> None:
    """Each event holds until the next, so the edges are steps; only the corners of the steps are drawn."""
    reached = len(shown.reserved)
    base = [0.0] * (reached + 1)
    for kind, color, hatch in KINDS:
        if kind in shown.held:
            rows = [size / MIB for size in shown.held[kind]]
            top = [low + height for low, height in zip(base, [*rows, *rows[-1:]], strict=True)]
            edges = list(zip(base, top, strict=True))
            corners = [n for n, edge in enumerate(edges) if n in (0, reached) or edge != edges[n - 1]]
            axes.fill_between(
                corners, [base[n] for n in corners], [top[n] for n in corners], step="post", label=kind,
                facecolor=color, hatch=hatch, edgecolor="white", linewidth=0, zorder=3,
            )  # fmt: skip
            base = top


def _lines(axes: "Axes", shown: Timeline) -> None:
    reserved = [size / MIB for size in shown.reserved]
    axes.step(
        range(len(reserved) + 1), [*reserved, *reserved[-1:]], where="post", color=BLUE, linewidth=1.4,
        label="reserved", zorder=4,
    )  # fmt: skip
    if shown.capacity_bytes is not None:
        height = shown.capacity_bytes / MIB
        off_page = " (off the top)" if height > axes.get_ylim()[1] else ""
        label = f"capacity {format_mib(shown.capacity_bytes)} MiB{off_page}"
        axes.axhline(height, color=BLACK, linewidth=1.2, label=label, zorder=4)
    if shown.refused is not None:
        axes.plot(
            [shown.refused.event - shown.first], [_clamped(shown, shown.refused.height_bytes) / MIB],
            color=VERMILLION, linestyle="none", marker="x", markersize=9, markeredgewidth=2.2,
            label="out of memory", zorder=6,
        )  # fmt: skip


def _phases(axes: "Axes", shown: Timeline) -> None:
    """Bands in two greys, their names at the top; where a band is narrow the name stands upright, beside the others."""
    across = axes.get_window_extent().width / max(shown.end - shown.first, 1)  # pixels an event
    line = 11 * axes.figure.dpi / 72  # pixels that an upright name takes
    taken = 0.0  # pixels from the left, up to where names stand
    for place, span in enumerate(shown.phases):
        left, right = span.first - shown.first, span.end - shown.first
        axes.axvspan(left, right, facecolor=("#F4F4F4", "#FFFFFF")[place % 2], edgecolor="none", zorder=0)
        axes.axvline(left, color="#BBBBBB", linewidth=0.6, zorder=1)
        name = axes.text(
            (left + right) / 2, 0.985, _PHASE_NAMES.get(span.phase, span.phase),
            transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=8, color="#333333", zorder=5,
        )  # fmt: skip
        wide, centre = name.get_window_extent().width, (left + right) / 2 * across
        if wide + 8 > (right - left) * across:
            wide, centre = line, max(centre, taken + line / 2)
            name.set(rotation=90, x=centre / across)
        taken = centre + wide / 2


def _note(axes: "Axes", shown: Timeline, point: Point, color: str, up: float) -> None:
    """What ``point`` says, with an arrow to it, at the height ``up``: where nothing is held, as near as that is.

    Nothing is held after a refused request, where the step never came.
    """
    text = "\n".join(drawable(line) for line in point.text.split("\n"))
    events = max(shown.end - shown.first, 1)
    x, height = point.event - shown.first, _clamped(shown, point.height_bytes) / MIB
    probe = axes.text(0, 0, text, fontsize=8)
    half = 0.5 * probe.get_window_extent().width / axes.get_window_extent().width + 0.015
    probe.remove()
    at = _nearest_free(shown, x / events, half, (up - 0.12) * axes.get_ylim()[1] * MIB)
    axes.annotate(
        text, xy=(x, height), xycoords="data", xytext=(at, up), textcoords="axes fraction", ha="center", va="center",
        fontsize=8, color=color, zorder=7, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
        arrowprops={
            "arrowstyle": "->", "color": color, "shrinkB": 4, "relpos": (0 if at > x / events else 1, 0.5),
        },
    )  # fmt: skip


def _nearest_free(shown: Timeline, point: float, half: float, low: float) -> float:
    """Where a note ``half`` to either side may stand: the nearest place where no more than ``low`` bytes are held.

    Places are shares of the width.  Where there is none, the nearest beside the point.
    """
    events = shown.end - shown.first
    held = [sum(moment) for moment in zip(*shown.held.values(), strict=True)]

    def is_free(centre: float) -> bool:
        first, last = (int((centre + side) * events) for side in (-half, half))
        return max(held[max(first, 0) : last + 1], default=0) <= low

    places = sorted((half + n * (1 - 2 * half) / 40 for n in range(41)), key=lambda at: abs(at - point))
    beside = [at for at in places if abs(at - point) > half]
    return next(filter(is_free, beside), beside[0] if beside else places[0])

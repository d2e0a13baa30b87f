"""The run drawn: memory against size, memory by kind, samples a second.  Returns Figures; ``render`` makes bytes.

They share the page that ``page`` makes.  Every series has a marker, a line style or a hatch of its own besides its
colour, so it survives a printer.  matplotlib is imported on first use: it takes a few tenths of a second.
"""

from typing import TYPE_CHECKING

from sweeper import axes as axes_of
from sweeper.record import CurvePoint, Record
from sweeper.report import words
from sweeper.report.job import described
from sweeper.report.page import (
    BLACK,
    BLUE,
    GREEN,
    KINDS,
    ORANGE,
    VERMILLION,
    house_style,
    legend,
    new_page,
    render,
    shorten,
)
from sweeper.trial import OutOfMemory
from sweeper.units import MIB, format_mib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["breakdown", "memory", "render", "throughput"]

_LINE_LENGTH = 82  # characters that fit above the axes
_LEAST_LABEL = 30  # of them for the device
_LAW_POINTS = 60  # pieces of a curved law
# Above this share of the capacity an out of memory is drawn at the edge: a request may be any number of times the card.
_HIGHEST = 1.2


def memory(record: Record) -> "Figure":
    """Size against peak MiB: what was measured, what was predicted, where it ran out."""
    with house_style():
        figure, axes = _page(record, words.law(record))
        _measured(axes, record)
        _predicted(axes, record)
        failed = _out_of_memory(axes, record)
        axes.set_xlim(0, _widest(record))
        axes.set_ylim(0, _tallest(record, failed))
        _capacity_line(axes, record)
        _name_the_boundary(axes, record)
        axes.set_xlabel(_size_label(record))
        axes.set_ylabel("peak memory [MiB]")
        legend(figure, axes)
        return figure


def breakdown(record: Record) -> "Figure | None":
    """Bytes by kind at each size's peak, stacked; None where no trial knows them."""
    points = [point for point in record.curve if point.breakdown is not None]
    if not points:
        return None
    with house_style():
        figure, axes = _page(record, "at the moment of each size's peak")
        base = [0.0] * len(points)
        for kind, color, hatch in KINDS:
            heights = [getattr(point.breakdown, kind) / MIB for point in points]
            if any(heights):
                axes.bar(
                    range(len(points)), heights, 0.75, base,
                    label=kind, color=color, hatch=hatch, edgecolor="white", linewidth=0.5,
                )  # fmt: skip
                base = [low + height for low, height in zip(base, heights, strict=True)]
        axes.set_xticks(range(len(points)), [_tick(p) for p in points], rotation=0 if len(points) <= 9 else 45)
        axes.set_xlim(-0.6, len(points) - 0.4)
        axes.set_ylim(0, 1.08 * _ceiling(record, max(base)))
        _capacity_line(axes, record)
        axes.set_xlabel(_size_label(record))
        axes.set_ylabel("allocated [MiB]")
        legend(figure, axes)
        return figure


def throughput(record: Record) -> "Figure | None":
    """Samples a second at each size that fitted; None where no step was timed."""
    timed = {p.size: p.samples_per_second for p in record.curve if p.outcome == "fit" and p.samples_per_second}
    if not timed:
        return None
    with house_style():
        # A longer sequence is more work a sample, so along another axis the fastest is the smallest.
        knee = record.throughput.knee if record.throughput and record.axis == "batch" else None
        caption = f"batch {knee} is the smallest within 5 % of the fastest" if knee is not None else None
        figure, axes = _page(record, caption)
        axes.plot(list(timed), list(timed.values()), color=BLUE, marker="o", label="samples a second")
        if knee is not None:
            axes.axvline(knee, color=VERMILLION, linestyle=":", label=f"knee: {knee:,}")
        axes.set_xlim(0, 1.05 * max(timed))
        axes.set_ylim(0, 1.15 * max(timed.values()))
        axes.set_xlabel(_size_label(record))
        axes.set_ylabel("samples / s")
        legend(figure, axes)
        return figure


# -- the page ---------------------------------------------------------------------------------------------------


def _page(record: Record, caption: str | None) -> "tuple[Figure, Axes]":
    stamp = "simulated" if words.on_simulated(record) else None
    return new_page(_subject(record), words.headline(record), caption, stamp)


def _subject(record: Record) -> str:
    model, *choices = described(record.header.spec, record.axis)
    how = ", ".join(word for word in choices if word != "train")
    left = f"{shorten(model, _LINE_LENGTH // 2 - 8)}, {shorten(how, _LINE_LENGTH // 2)}, on "
    return left + shorten(words.device_label(record), max(_LEAST_LABEL, _LINE_LENGTH - len(left)))


def _size_label(record: Record) -> str:
    label = axes_of.words(record.axis).label
    return label if record.axis == "batch" else f"{label}, at batch {record.header.spec.batch_size}"


# -- memory -----------------------------------------------------------------------------------------------------


def _fits(record: Record) -> list[CurvePoint]:
    return [point for point in record.curve if point.outcome == "fit"]


def _measured(axes: "Axes", record: Record) -> None:
    points = _fits(record)
    if not points:
        return
    sizes = [point.size for point in points]
    reserved = [point.peak_reserved_bytes / MIB for point in points]
    # Straight lines between few points would be taken for what lies between; the law is drawn there instead.
    joined = not _law_curve(axes, record, sizes[0], sizes[-1])
    if record.header.spec.device == "cpu":
        axes.plot(sizes, reserved, color=BLUE, marker="o", linestyle="-" if joined else "none", label="resident")
        return
    allocated = [point.peak_allocated_bytes / MIB for point in points]
    axes.plot(
        sizes, reserved, color=ORANGE, marker="s", markersize=7, markerfacecolor="white", linewidth=2,
        linestyle="-" if joined else "none", label="reserved",
    )  # fmt: skip
    axes.plot(
        sizes, allocated, color=BLUE, marker="o", markersize=4, linestyle=":" if joined else "none", label="allocated"
    )
    seen = [(p.size, p.process_bytes / MIB) for p in points if p.process_bytes is not None]
    if seen:
        axes.plot(*zip(*seen, strict=True), color="#777777", marker="^", linestyle="-.", label="process, with context")


def _law_curve(axes: "Axes", record: Record, least: int, most: int) -> bool:
    """Draw the law of the peaks where it is curved; says whether it was."""
    law = record.law
    if law is None or not law.per_square_bytes or most - least < 2:
        return False
    sizes = sorted({least + round(share * (most - least) / _LAW_POINTS) for share in range(_LAW_POINTS + 1)})
    peaks = [law.peak_bytes(size) / MIB for size in sizes]
    label = f"law of the {words.allocated_word(record)}"
    axes.plot(sizes, peaks, color=BLUE, linestyle=":", linewidth=1.4, label=label)
    return True


def _predicted(axes: "Axes", record: Record) -> None:
    peaks, label = _predicted_peaks(record)
    if not peaks:
        return
    axes.plot(
        list(peaks),
        list(peaks.values()),
        color=GREEN,
        linestyle="--",
        linewidth=1.2,
        zorder=4,
        label=label,
    )


def _predicted_peaks(record: Record) -> tuple[dict[int, float], str]:
    """MiB by batch, and their label: beside what was measured where that is known, else those of the first guess."""
    beside = {p.size: p.predicted.peak_reserved_bytes / MIB for p in record.curve if p.predicted is not None}
    if beside:
        return beside, "predicted"
    points = sorted(record.prediction.points, key=lambda point: point.size) if record.prediction else []
    return {point.size: point.peak_reserved_bytes / MIB for point in points}, "predicted, uncapped"


def _capacity_line(axes: "Axes", record: Record) -> None:
    """Drawn after the limits are set: a capacity far above what was measured is said to be off the page."""
    if record.capacity_bytes:
        height = record.capacity_bytes / MIB
        off_page = " (off the top)" if height > axes.get_ylim()[1] else ""
        label = f"capacity {format_mib(record.capacity_bytes)} MiB{off_page}"
        axes.axhline(height, color=BLACK, linewidth=1.2, label=label)


def _out_of_memory(axes: "Axes", record: Record) -> list[float]:
    """Marks each size that ran out at what it would have needed for that one request, so far as that is known."""
    found: dict[int, float] = {}
    for trial, outcome in record.verdicts:
        if isinstance(outcome, OutOfMemory):
            found[trial.size] = max(found.get(trial.size, 0), _needed(outcome, record.capacity_bytes) / MIB)
    if found:
        axes.plot(
            list(found), list(found.values()), color=VERMILLION, linestyle="none", marker="x",
            markersize=9, markeredgewidth=2.2, label="out of memory", zorder=5,
        )  # fmt: skip
    return list(found.values())


def _needed(failure: OutOfMemory, capacity: int) -> float:
    held = failure.reserved_bytes if failure.reserved_bytes is not None else failure.peak_reserved_bytes
    needed = max(capacity, held + (failure.requested_bytes or 0))
    return min(needed, _HIGHEST * capacity) if capacity else needed


def _name_the_boundary(axes: "Axes", record: Record) -> None:
    """An arrow to the largest size that fits, from below where the curve is high there, else from above."""
    best = next((p for p in _fits(record) if p.size == record.max_size), None)
    if best is None or record.broken is not None:
        return
    height = best.peak_reserved_bytes / MIB
    across, up = best.size / axes.get_xlim()[1], height / axes.get_ylim()[1]
    axes.annotate(
        f"{best.size:,} fits" + (f"\n{record.first_failure:,} does not" if record.first_failure else ""),
        xy=(best.size, height), xycoords="data",
        xytext=(min(max(across, 0.12), 0.88), 0.12 if up > 0.45 else 0.66), textcoords="axes fraction",
        ha="center", va="center", fontsize=11,
        arrowprops={"arrowstyle": "->", "color": "#333333", "shrinkB": 8},
    )  # fmt: skip


def _widest(record: Record) -> float:
    """Predicted sizes far above what was tried would press the measured ones together."""
    tried = max((point.size for point in record.curve), default=0)
    guess = record.prediction.max_batch if record.prediction and record.prediction.max_batch else 0
    return 1.08 * max(tried, min(guess, 2 * tried) if tried else guess, 1)


def _tallest(record: Record, failed: list[float]) -> float:
    points = _fits(record)
    peaks = [max(p.peak_reserved_bytes, p.peak_allocated_bytes, p.process_bytes or 0) / MIB for p in points]
    return 1.08 * _ceiling(record, max([*peaks, *failed], default=0.0))


def _ceiling(record: Record, highest: float) -> float:
    """The capacity, unless what was measured is so far below it that the curve would lie flat."""
    capacity = record.capacity_bytes / MIB
    return max(highest, capacity if highest == 0 or highest > 0.2 * capacity else 1.15 * highest)


def _tick(point: CurvePoint) -> str:
    return f"{point.size:,}" if point.outcome == "fit" else f"{point.size:,}\nran out"

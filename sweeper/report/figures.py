"""The run drawn: memory against batch, memory by kind, samples a second.  Returns Figures; ``render`` makes bytes.

Figures are made without pyplot, so nothing is kept open and no window system is asked for.  Colours are of Okabe and
Ito's palette (Color Universal Design, 2008), which people with colour-blindness tell apart; every series also has a
marker, a line style or a hatch of its own, so it survives a printer.  Margins are fixed and the legend lies outside
the axes, so text cannot run into text whatever the numbers are.  matplotlib is imported on first use: it takes a
few tenths of a second.
"""

import io
import textwrap
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from sweeper import curve
from sweeper.record import CurvePoint, Record
from sweeper.report import words
from sweeper.trial import OutOfMemory
from sweeper.units import MIB, format_mib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["breakdown", "memory", "render", "throughput"]

_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_YELLOW, _BLUE, _VERMILLION, _PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"

# Kinds from the bottom of a bar to its top: first what stays whatever the batch is.
_KINDS = (
    ("weights", _BLUE, ""),
    ("buffers", _BLACK, ""),
    ("gradients", _SKY, "//"),
    ("optimizer", _GREEN, "\\\\"),
    ("inputs", _YELLOW, ".."),
    ("activations", _ORANGE, ""),
    ("workspace", _PURPLE, "xx"),
)

# A user's matplotlibrc must not change a run's files: everything drawn with goes back to matplotlib's defaults, then to
# these.  With TeX or mathtext on, a model's name would be typeset.
_STYLED = ("axes.", "figure.", "font.", "grid.", "hatch.", "legend.", "lines.", "patch.", "path.", "savefig.", "svg.",
           "text.", "xaxis.", "xtick.", "yaxis.", "ytick.")  # fmt: skip
_HOUSE = {
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "svg.fonttype": "none",
    "svg.hashsalt": "sweeper",
    "hatch.linewidth": 0.6,
    "axes.unicode_minus": False,
}
_LINE_LENGTH = 82  # characters that fit above the axes
# Above this share of the capacity an out of memory is drawn at the edge: a request may be any number of times the card.
_HIGHEST = 1.2


def memory(record: Record) -> "Figure":
    """Batch against peak MiB: what was measured, what was predicted, where it ran out."""
    with _house_style():
        figure, axes = _page(record, words.law(record))
        _measured(axes, record)
        _predicted(axes, record)
        failed = _out_of_memory(axes, record)
        axes.set_xlim(0, _widest(record))
        axes.set_ylim(0, _tallest(record, failed))
        _capacity_line(axes, record)
        _name_the_boundary(axes, record)
        axes.set_xlabel("batch size")
        axes.set_ylabel("peak memory [MiB]")
        _legend(figure, axes)
        return figure


def breakdown(record: Record) -> "Figure | None":
    """Bytes by kind at each size's peak, stacked; None where no trial knows them."""
    points = [point for point in record.curve if point.breakdown is not None]
    if not points:
        return None
    with _house_style():
        figure, axes = _page(record, "at the moment of each size's peak")
        base = [0.0] * len(points)
        for kind, color, hatch in _KINDS:
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
        axes.set_xlabel("batch size")
        axes.set_ylabel("allocated [MiB]")
        _legend(figure, axes)
        return figure


def throughput(record: Record) -> "Figure | None":
    """Samples a second at each size that fitted; None where no step was timed."""
    timed = {p.size: p.samples_per_second for p in record.curve if p.outcome == "fit" and p.samples_per_second}
    if not timed:
        return None
    with _house_style():
        knee = curve.knee(timed)
        caption = f"batch {knee} is the smallest within 5 % of the fastest" if knee is not None else None
        figure, axes = _page(record, caption)
        axes.plot(list(timed), list(timed.values()), color=_BLUE, marker="o", label="samples a second")
        if knee is not None:
            axes.axvline(knee, color=_VERMILLION, linestyle=":", label=f"knee: {knee:,}")
        axes.set_xlim(0, 1.05 * max(timed))
        axes.set_ylim(0, 1.15 * max(timed.values()))
        axes.set_xlabel("batch size")
        axes.set_ylabel("samples / s")
        _legend(figure, axes)
        return figure


def render(figure: "Figure", form: Literal["png", "svg"], *, dpi: int = 150) -> bytes:
    """Return ``figure`` as a file's bytes; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with _house_style():
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


# -- the page ---------------------------------------------------------------------------------------------------


def _house_style() -> AbstractContextManager[Any]:
    import matplotlib

    style: Any = {name: value for name, value in matplotlib.rcParamsDefault.items() if name.startswith(_STYLED)}
    style.update(_HOUSE)
    return matplotlib.rc_context(style)


def _page(record: Record, caption: str | None) -> "tuple[Figure, Axes]":
    """Axes with the answer as title, a caption below, and the word "simulated" over them where it applies."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure = Figure(figsize=(8, 5.2), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.115, 0.185, 0.855, 0.63), facecolor="white")
    subject = figure.text(0.115, 0.955, _drawable(_subject(record)), fontsize=10, va="center")
    room = 0.87 * figure.bbox.width
    if (wide := subject.get_window_extent().width) > room:
        subject.set_fontsize(10 * room / wide)
    figure.text(0.115, 0.91, _drawable(words.headline(record)), fontsize=13, fontweight="bold", va="center")
    if caption:
        figure.text(0.115, 0.015, textwrap.fill(_drawable(caption), 112), fontsize=8, va="bottom", color="#333333")
    if words.on_simulated(record):
        axes.text(
            0.5, 0.5, "simulated", transform=axes.transAxes, ha="center", va="center",
            fontsize=44, color="#E8E8E8", rotation=20, zorder=0,
        )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure, axes


def _subject(record: Record) -> str:
    spec = record.header.spec
    how = spec.mode if spec.mode != "train" else spec.optimizer
    left = f"{_shorten(spec.model, _LINE_LENGTH // 2 - 8)}, {spec.precision}, {how}, on "
    return left + _shorten(words.device_label(record), _LINE_LENGTH - len(left))


def _shorten(name: str, length: int) -> str:
    """The ends of a long name: a path's file and factory are at its end."""
    return name if len(name) <= length else f"{name[: length // 4]}...{name[-(length - length // 4 - 3) :]}"


def _drawable(text: str) -> str:
    """``text`` with the characters that the font does not have written as escapes; matplotlib would warn and box."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap()
    escaped = (c if ord(c) in known else c.encode("unicode_escape").decode() for c in words.printable(text))
    return "".join(escaped)


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.105, 0.895), ncols=len(labels) if len(labels) <= 5 else 4,
        frameon=False, fontsize=8, columnspacing=1.2, handlelength=2.4, borderaxespad=0.2,
    )  # fmt: skip


# -- memory -----------------------------------------------------------------------------------------------------


def _fits(record: Record) -> list[CurvePoint]:
    return [point for point in record.curve if point.outcome == "fit"]


def _measured(axes: "Axes", record: Record) -> None:
    points = _fits(record)
    if not points:
        return
    sizes = [point.size for point in points]
    reserved = [point.peak_reserved_bytes / MIB for point in points]
    if record.header.spec.device == "cpu":
        axes.plot(sizes, reserved, color=_BLUE, marker="o", label="resident")
        return
    allocated = [point.peak_allocated_bytes / MIB for point in points]
    axes.plot(
        sizes, reserved, color=_ORANGE, marker="s", markersize=7, markerfacecolor="white", linewidth=2, label="reserved"
    )
    axes.plot(sizes, allocated, color=_BLUE, marker="o", markersize=4, linestyle=":", label="allocated")
    seen = [(p.size, p.process_bytes / MIB) for p in points if p.process_bytes is not None]
    if seen:
        axes.plot(*zip(*seen, strict=True), color="#777777", marker="^", linestyle="-.", label="process, with context")


def _predicted(axes: "Axes", record: Record) -> None:
    peaks, label = _predicted_peaks(record)
    if not peaks:
        return
    axes.plot(
        list(peaks),
        list(peaks.values()),
        color=_GREEN,
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
        axes.axhline(height, color=_BLACK, linewidth=1.2, label=label)


def _out_of_memory(axes: "Axes", record: Record) -> list[float]:
    """Marks each size that ran out at what it would have needed for that one request, so far as that is known."""
    found: dict[int, float] = {}
    for trial, outcome in record.verdicts:
        if isinstance(outcome, OutOfMemory):
            found[trial.size] = max(found.get(trial.size, 0), _needed(outcome, record.capacity_bytes) / MIB)
    if found:
        axes.plot(
            list(found), list(found.values()), color=_VERMILLION, linestyle="none", marker="x",
            markersize=9, markeredgewidth=2.2, label="out of memory", zorder=5,
        )  # fmt: skip
    return list(found.values())


def _needed(failure: OutOfMemory, capacity: int) -> float:
    held = failure.reserved_bytes if failure.reserved_bytes is not None else failure.peak_reserved_bytes
    needed = max(capacity, held + (failure.requested_bytes or 0))
    return min(needed, _HIGHEST * capacity) if capacity else needed


def _name_the_boundary(axes: "Axes", record: Record) -> None:
    """An arrow to the largest size that fits, from below where the curve is high there, else from above."""
    best = next((p for p in _fits(record) if p.size == record.max_batch), None)
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

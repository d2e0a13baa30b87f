"""A frontier as text, JSON, CSV and a Figure.  Whatever was not run says that it is predicted.

The figure has two panels over the same lengths: the most that tensors hold at once, as a map of batches, with the
boundary on it; and the tokens in the largest batch, with the point that has most of them.
"""

import csv
import io
import json
import platform
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper import __version__, calibration
from sweeper.boundary import Frontier, FrontierPoint, MeasuredPoint, spread
from sweeper.report import words
from sweeper.report.forecasts import job
from sweeper.report.page import BLACK, BLUE, VERMILLION, drawable, house_style, new_page, render, shorten
from sweeper.report.table import Column, lay_out
from sweeper.report.terminal import Ink, capital, fill, labelled, percent
from sweeper.report.words import Statement
from sweeper.trial import Fit, OutOfMemory
from sweeper.units import GIB, format_bytes, format_mib
from sweeper.wire import to_jsonable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CSV_COLUMNS", "figure", "files", "points_csv", "summary", "to_json"]

# 1  first version
SCHEMA = 1
CSV_COLUMNS = ("length", "max_batch", "first_failure", "tokens", "peak_bytes", "live_bytes", "predicted")
_ROWS = 16  # of the table on a terminal


def files(found: Frontier) -> dict[str, bytes]:
    """Everything that is written of ``found``, by name."""
    drawn = figure(found)
    return {
        "frontier.json": (json.dumps(to_json(found), indent=1, allow_nan=False) + "\n").encode(),
        "frontier.csv": points_csv(found).encode(),
        "frontier.png": render(drawn, "png"),
        "frontier.svg": render(drawn, "svg"),
    }


# -- for programs -----------------------------------------------------------------------------------------------


def to_json(found: Frontier, folder: Path | None = None) -> dict[str, Any]:
    """What ``sweep frontier --json`` prints.  Bytes; ``map.live_bytes`` has a row a batch and a column a length."""
    spec = found.spec
    body = {
        "schema": SCHEMA,
        "model": spec.model,
        "device": spec.device,
        "device_label": found.device.label,
        "simulated": found.device.simulated,
        "predicted": True,
        "method": found.method,
        "axes": ["seq-len", "batch"],
        "cap": found.cap,
        "step": found.step,
        "capacity_bytes": found.device.capacity_bytes,
        "points": [_row(found, point) for point in found.points],
        "best": found.best and _row(found, found.best),
        "map": {"lengths": [point.length for point in found.points], **to_jsonable(found.map)},
        "measured": {
            "trials": len(found.measured),
            "agree": found.agreeing,
            "points": [_trial(point) for point in found.measured],
        },
        "notes": found.notes,
        "seconds": found.seconds,
        "spec": {f.name: getattr(spec, f.name) for f in fields(spec) if f.name not in ("batch_size", "seq_len")},
        "versions": {"sweeper": __version__, "python": platform.python_version(), **found.versions},
        "folder": None if folder is None else str(folder),
    }
    return to_jsonable(body)  # type: ignore[no-any-return]


def points_csv(found: Frontier) -> str:
    """The frontier as CSV (RFC 4180), a header and a row a length; what is not there is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for point in found.points:
        writer.writerow([*_row(found, point).values(), "true"])
    return text.getvalue()


def _row(found: Frontier, point: FrontierPoint) -> dict[str, int | None]:
    above = (point.max_batch or 0) + 1
    return {
        "length": point.length,
        "max_batch": point.max_batch,
        "first_failure": above if above <= found.cap else None,
        "tokens": point.tokens,
        "peak_bytes": point.peak_bytes,
        "live_bytes": point.live_bytes,
    }


def _trial(point: MeasuredPoint) -> dict[str, Any]:
    outcome = point.outcome
    peaks = outcome if isinstance(outcome, Fit | OutOfMemory) else None
    return {
        "length": point.length,
        "batch": point.batch,
        "predicted": "fit" if point.predicted_fits else "oom",
        "outcome": {True: "fit", False: "oom", None: "broken"}[point.fits],
        "agrees": point.agrees,
        "peak_allocated_bytes": peaks and peaks.peak_allocated_bytes,
        "peak_reserved_bytes": peaks and peaks.peak_reserved_bytes,
        "samples_per_second": outcome.samples_per_second if isinstance(outcome, Fit) else None,
    }


# -- for a terminal ---------------------------------------------------------------------------------------------


def summary(found: Frontier, *, color: bool, width: int = 100, folder: Path | None = None) -> str:
    """The table, thinned to some lengths; the point with most tokens; what trials said; where the files are."""
    ink = Ink(color)
    statements = [_best(found), _measured(found), *_what_is_known(found), _written(folder)]
    capacity = format_bytes(found.device.capacity_bytes)
    heading = f"{job(found)}, on {words.printable(found.device.label)}, capacity {capacity} (predicted)"
    ran = {trial.length for trial in found.measured}
    named = [point for point in found.points if point == found.best or point.length in ran]
    shown = sorted({*spread(found.points, _ROWS), *named}, key=lambda point: point.length)
    return "\n\n".join(
        [
            fill(heading, width),
            _table(found, shown, ink, width),
            "\n".join(labelled(s.label, s.text, width, ink, s.tone) for s in statements if s.text),
        ]
    )


def _table(found: Frontier, shown: list[FrontierPoint], ink: Ink, width: int) -> str:
    capacity = found.device.capacity_bytes
    peaks = [None if p.peak_bytes is None else p.peak_bytes for p in shown]
    columns = [
        Column(heading="length", cells=tuple(f"{p.length:,}" for p in shown)),
        Column(heading="largest batch", cells=tuple(_largest_cell(found, p) for p in shown), left=True),
        Column(heading="tokens", cells=tuple(f"{p.tokens:,}" for p in shown)),
        Column(heading=_peak_heading(found), cells=tuple("-" if p is None else format_mib(p) for p in peaks)),
        Column(
            heading="of capacity\n%",
            cells=tuple("-" if p is None else percent(p, capacity) for p in peaks),
            importance=1,
        ),
        Column(heading="trials", cells=tuple(_trials_cell(found, p) for p in shown), left=True, importance=2),
    ]
    if not found.measured:
        columns.pop()
    layout = lay_out(columns, width=width)
    rows = [
        ink(row, "good" if point == found.best else "plain" if point.max_batch else "bad")
        for point, row in zip(shown, layout.rows, strict=True)
    ]
    lines = [*(ink(heading, "dim") for heading in layout.headings), *rows]
    if len(shown) < len(found.points):
        lines.append(ink(f"  {len(shown)} of {len(found.points)} lengths; all are in frontier.csv (predicted)", "dim"))
    return "\n".join(lines)


def _largest_cell(found: Frontier, point: FrontierPoint) -> str:
    if point.max_batch is None:
        return "none fits (predicted)"
    return f"{point.max_batch:,} {'(the cap, predicted)' if point.max_batch == found.cap else '(predicted)'}"


def _peak_heading(found: Frontier) -> str:
    return "peak MiB\nresident" if found.method == "live bytes" else "peak MiB\nreserved"


def _trials_cell(found: Frontier, point: FrontierPoint) -> str:
    said = {True: "fits", False: "runs out", None: "broke"}
    return ", ".join(f"{m.batch:,} {said[m.fits]}" for m in found.measured if m.length == point.length)


def _best(found: Frontier) -> Statement:
    best = found.best
    if best is None:
        return Statement("answer", "nothing fits, at any of the lengths (predicted)", "bad")
    text = f"{best.tokens:,} a batch: {best.max_batch:,} sequences of {best.length:,}"
    if best.max_batch == found.cap:
        text += ", which is the cap: raise --max-batch for more"
    return Statement("most tokens", f"{text} (predicted)", "good")


def _measured(found: Frontier) -> Statement:
    """How many trials ended as predicted, and which did not."""
    if not found.measured:
        return Statement("", "")
    trials, lengths = len(found.measured), len({point.length for point in found.measured})
    text = (
        f"{found.agreeing} of {_count(trials, 'trial')} at {_count(lengths, 'length')}, at the boundary and beyond it, "
        "ended as predicted"
    )
    others = [point for point in found.measured if not point.agrees]
    said = {True: "fits", False: "runs out", None: "broke"}
    if others:
        text += f"; not so: {', '.join(f'batch {p.batch:,} at length {p.length:,} {said[p.fits]}' for p in others)}"
    suffix = " (simulated)" if found.device.simulated else ""
    return Statement("trials", text + suffix, "warning" if others else "good")


def _what_is_known(found: Frontier) -> list[Statement]:
    guess = "the most bytes alive at once; what the host's kernels take beside that is not known, so a first guess"
    known = calibration.sentence(found.card) if found.method == "allocator" else None
    return [
        Statement("method", f"{guess} (predicted)" if found.method == "live bytes" else ""),
        Statement("calibration", f"{known} (predicted)" if known else ""),
        *(Statement("note", f"{words.printable(note)} (predicted)") for note in found.notes),
    ]


def _written(folder: Path | None) -> Statement:
    if folder is None:
        return Statement("", "")
    return Statement("files", f"{folder}: frontier.png, frontier.svg, frontier.csv, frontier.json")


def _device(found: Frontier) -> str:
    label, limit = words.printable(found.device.label), found.spec.memory_limit_bytes
    return f"{label}, a limit of {format_bytes(limit)}" if limit is not None else label


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# -- on paper ---------------------------------------------------------------------------------------------------


def figure(found: Frontier) -> "Figure":
    """The map with the boundary on it, and beside it the tokens in the largest batch."""
    with house_style():
        subject = f"{shorten(job(found), 60)}, on {shorten(_device(found), 50)} (predicted)"
        page, left = new_page(subject, capital(_headline(found)), _caption(found), None, width=11)
        left.set_position((0.0836, 0.2, 0.4214, 0.6))
        right = page.add_axes((0.68, 0.2, 0.3, 0.6), facecolor="white")
        _map(left, found)
        _boundary(left, found)
        _marks(left, found)
        _tokens(right, found)
        for axes in (left, right):
            _lengths_axis(axes, found)
        handles, labels = left.get_legend_handles_labels()
        page.legend(
            handles, labels, loc="upper left", bbox_to_anchor=(0.068, 0.885), ncols=5, frameon=False, fontsize=8,
            columnspacing=1.2, handlelength=2.0, borderaxespad=0.2,
        )  # fmt: skip
        return page


def _headline(found: Frontier) -> str:
    best = found.best
    if best is None:
        return "nothing fits at any of these lengths"
    return f"most tokens a batch: {best.tokens:,}, as {best.max_batch:,} sequences of {best.length:,}"


def _caption(found: Frontier) -> str:
    text = (
        "left: in colour, the most bytes that tensors hold at once in a step, without what the allocator adds; right: "
        f"tokens in the largest batch that fits, looked for up to {found.cap:,} (predicted)"
    )
    if found.measured:
        kind = "simulated" if found.device.simulated else "real"
        text += (
            f". {found.agreeing} of {_count(len(found.measured), 'trial')} ({kind}) ended as predicted: filled marks "
            "fitted, hollow ones ran out of memory"
        )
    return text


def _map(axes: "Axes", found: Frontier) -> None:
    from matplotlib.colors import LogNorm

    if len(found.points) < 2 or len(found.map.batches) < 2:
        return  # no area
    rows = [[size / GIB for size in row] for row in found.map.live_bytes]
    low, high = min(map(min, rows)), max(map(max, rows))
    levels = _levels(low, high)
    lengths = [point.length for point in found.points]
    shades = axes.contourf(
        lengths, found.map.batches, rows, levels=levels, norm=LogNorm(levels[0], levels[-1]), cmap="cividis", zorder=1
    )  # fmt: skip
    bar = axes.figure.colorbar(shades, cax=axes.figure.add_axes((0.515, 0.2, 0.014, 0.6)))
    bar.set_ticks(_round_levels(levels[0], levels[-1]))
    bar.ax.minorticks_off()
    bar.ax.yaxis.set_major_formatter(lambda value, _: _short(value))
    bar.ax.tick_params(labelsize=8)


def _levels(low: float, high: float) -> list[float]:
    """25 shades over the logarithm of what is drawn."""
    high = max(high, 1.01 * low)
    return [low * (high / low) ** (n / 24) * (0.999 if n == 0 else 1.001 if n == 24 else 1) for n in range(25)]


def _round_levels(low: float, high: float) -> list[float]:
    """Some powers of two, in GiB, from ``low`` to ``high``."""
    powers = [2.0**power for power in range(-20, 24) if low <= 2.0**power <= high]
    return powers[:: 1 + len(powers) // 9]


def _short(size: float) -> str:
    """A power of two of GiB, in the unit in which it is no fraction: ``64 MiB``."""
    return (
        f"{size:,.0f} GiB"
        if size >= 1
        else f"{size * 1024:,.0f} MiB"
        if size >= 1 / 1024
        else f"{size * 2**20:,.0f} KiB"
    )


def _boundary(axes: "Axes", found: Frontier) -> None:
    """Below the smallest batch where none fits: the boundary is there, and the region above it is whole."""
    lengths = [point.length for point in found.points]
    axes.set_yscale("log", base=2)
    axes.set_ylim(0.9, found.cap * 1.1 if found.cap > 1 else 2)
    edge = [point.max_batch or 0.5 for point in found.points]
    axes.fill_between(
        lengths, edge, found.cap, facecolor="#FFFFFF73", hatch="//", edgecolor="#666666", linewidth=0.6,
        label="does not fit", zorder=2,
    )  # fmt: skip
    axes.plot(lengths, edge, color=BLACK, linewidth=1.8, label="largest batch that fits", zorder=4)
    if found.best is not None:
        axes.plot(
            [found.best.length], [found.best.max_batch or 0], color=VERMILLION, marker="*", markersize=15,
            linestyle="none", markeredgecolor="white", label="most tokens", zorder=6,
        )  # fmt: skip
    axes.set_yticks(_powers(found.cap), [f"{batch:,}" for batch in _powers(found.cap)])
    axes.minorticks_off()
    axes.set_ylabel("batch")


def _marks(axes: "Axes", found: Frontier) -> None:
    for fits, label, marker, inside in (
        (True, "trial fitted", "o", BLUE),
        (False, "trial ran out", "o", "white"),
        (None, "trial broke", "x", BLUE),
    ):
        marked = [(point.length, point.batch) for point in found.measured if point.fits is fits]
        if marked:
            axes.plot(
                *zip(*marked, strict=True), linestyle="none", color=BLUE, marker=marker, markerfacecolor=inside,
                markersize=6, label=label, zorder=5,
            )  # fmt: skip


def _tokens(axes: "Axes", found: Frontier) -> None:
    fitting = [point for point in found.points if point.max_batch is not None]
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_ylabel("tokens in the largest batch")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if not fitting:
        return
    axes.plot([p.length for p in fitting], [p.tokens for p in fitting], color=BLACK, linewidth=1.4, marker=".")
    best = found.best
    assert best is not None
    axes.plot(
        [best.length], [best.tokens], color=VERMILLION, marker="*", markersize=15, markeredgecolor="white", zorder=6
    )
    axes.set_ylim(0, 1.18 * best.tokens)
    to_the_left = found.points.index(best) > len(found.points) / 2
    axes.annotate(
        drawable(f"{best.tokens:,}"), (best.length, best.tokens), xytext=(-8 if to_the_left else 8, 6),
        textcoords="offset points", fontsize=9, ha="right" if to_the_left else "left",
    )  # fmt: skip


def _lengths_axis(axes: "Axes", found: Frontier) -> None:
    lengths = [point.length for point in found.points]
    axes.set_xscale("log", base=2)
    axes.set_xlim(lengths[0] * (0.93 if len(lengths) == 1 else 1), lengths[-1] * 1.04)
    ticks = [length for length in _powers(lengths[-1]) if length >= lengths[0]] or lengths[:1]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8 if len(ticks) > 6 else 10)
    axes.minorticks_off()
    axes.set_xlabel("sequence length [tokens]")


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]

"""A comparison drawn: every combination's memory against the batch on one page, and their breakdowns side by side.

Each line has a colour, a marker and, from the ninth on, a dash of its own, so it survives a printer.
"""

from typing import TYPE_CHECKING

from sweeper import axes as sweep_axes
from sweeper.comparison import Compared, Entry
from sweeper.record import Record
from sweeper.report import words
from sweeper.report.comparison import result_words, subject
from sweeper.report.page import BLACK, BLUE, GREEN, KINDS, ORANGE, VERMILLION, drawable, house_style, new_page, shorten
from sweeper.units import MIB, format_mib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["breakdowns", "curves"]

# Okabe and Ito's, without their yellow, which is faint as a line, and with a grey in its place.
_COLORS = (BLUE, VERMILLION, GREEN, ORANGE, "#CC79A7", "#56B4E9", "#777777", BLACK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", ":", "-.")
_WIDTH, _SIDE = 10.6, 3.3  # inches: of the page, and of what names the lines, or the bars
_LONGEST = 44  # characters of a label beside the axes


def curves(compared: Compared) -> "Figure":
    """Size against peak MiB, a line a combination; a ring where the largest fits, and the capacity."""
    with house_style():
        figure, axes = _page(compared, _headline(compared), _caption(compared))
        left, bottom, _, height = axes.get_position().bounds
        axes.set_position((left, bottom, 1 - left - (_SIDE + 0.2) / _WIDTH, height))
        for number, entry in enumerate(compared.entries):
            # Lines that lie on one another are all seen: the later ones are thinner.
            _line(axes, entry, number, thin=1 - 0.6 * number / max(1, len(compared.entries) - 1))
        _capacities(axes, compared)
        if compared.common_size is not None:
            axes.axvline(compared.common_size, color="#999999", linewidth=1, linestyle=":", zorder=0.5)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(sweep_axes.words(compared.axis).size + (" size" if compared.axis == "batch" else ""))
        axes.set_ylabel(f"{words.peak_word(compared.entries[0].record)} [MiB]")
        figure.legend(
            *axes.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(1 - _SIDE / _WIDTH, 0.83),
            frameon=False, fontsize=8 if len(compared.entries) <= 18 else 5, handlelength=2.6, borderaxespad=0,
        )  # fmt: skip
        return figure


def breakdowns(compared: Compared) -> "Figure | None":
    """Bytes by kind at the common size's peak, a bar a combination; None where no trial knows them."""
    size = compared.common_size
    found = [(e, p.breakdown) for e in compared.entries if (p := e.at(size)) is not None and p.breakdown is not None]
    if not found:
        return None
    with house_style():
        at = f"{sweep_axes.words(compared.axis).size} {size:,}"
        figure, axes = _page(compared, f"where the memory is, at {at}", "at the moment of each peak")
        bottom, height = axes.get_position().y0, axes.get_position().height
        axes.set_position((_SIDE / _WIDTH, bottom, 1 - (_SIDE + 0.3) / _WIDTH, height))
        base = [0.0] * len(found)
        rows = range(len(found))
        for kind, color, hatch in KINDS:
            widths = [getattr(held, kind) / MIB for _, held in found]
            if any(widths):
                axes.barh(
                    rows, widths, 0.72, base, label=kind, color=color, hatch=hatch, edgecolor="white", linewidth=0.5
                )
                base = [start + width for start, width in zip(base, widths, strict=True)]
        axes.set_yticks(rows, [drawable(shorten(entry.label, _LONGEST)) for entry, _ in found], fontsize=8)
        axes.set_ylim(len(found) - 0.4, -0.6)  # the first at the top, as in the table
        axes.set_xlim(0, 1.05 * max(base))
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
        axes.set_xlabel("allocated [MiB]" if not _on_cpu(compared) else "resident [MiB]")
        figure.legend(
            *axes.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(_SIDE / _WIDTH, 0.89),
            ncols=len(KINDS), frameon=False, fontsize=8, columnspacing=1.2, borderaxespad=0.2,
        )  # fmt: skip
        return figure


def _page(compared: Compared, headline: str, caption: str | None) -> "tuple[Figure, Axes]":
    stamp = "simulated" if any(words.on_simulated(entry.record) for entry in compared.entries) else None
    return new_page(shorten(subject(compared), 100), headline, caption, stamp, width=_WIDTH)


def _line(axes: "Axes", entry: Entry, number: int, *, thin: float) -> None:
    fits = [point for point in entry.record.curve if point.outcome == "fit"]
    label = drawable(f"{shorten(entry.label, _LONGEST)}: {result_words(entry)}")
    color, marker = _COLORS[number % len(_COLORS)], _MARKERS[number % len(_MARKERS)]
    axes.plot(
        [point.size for point in fits], [point.peak_reserved_bytes / MIB for point in fits], label=label,
        color=color, marker=marker, markersize=9 * thin, markerfacecolor="white", linewidth=3.6 * thin,
        linestyle=_DASHES[number // len(_COLORS) % len(_DASHES)],
    )  # fmt: skip
    if (best := entry.at(entry.largest)) is not None:
        axes.plot(
            [best.size], [best.peak_reserved_bytes / MIB], linestyle="none", marker="o", markersize=11,
            markerfacecolor="none", markeredgecolor=color, markeredgewidth=1.3, label="_ring",
        )  # fmt: skip


def _capacities(axes: "Axes", compared: Compared) -> None:
    """A line for each capacity there is; devices that differ are named."""
    named: dict[int, list[Record]] = {}
    for entry in compared.entries:
        if entry.record.capacity_bytes:
            named.setdefault(entry.record.capacity_bytes, []).append(entry.record)
    highest = max((p.peak_reserved_bytes for e in compared.entries for p in e.record.curve), default=0)
    for number, (capacity, records) in enumerate(sorted(named.items())):
        devices = sorted({record.header.spec.device for record in records})
        of = f" of {', '.join(devices)}" if len(named) > 1 else ""
        label = drawable(shorten(f"capacity{of}: {format_mib(capacity)} MiB", _LONGEST))
        if highest and capacity > 5 * highest:
            axes.plot([], [], color=BLACK, linewidth=1.2, label=f"{label} (off the top)")
        else:
            axes.axhline(
                capacity / MIB, color=BLACK, linewidth=1.2, linestyle=_DASHES[number % len(_DASHES)], label=label
            )


def _headline(compared: Compared) -> str:
    """The answers in a line: ``the largest batch that fits: 265 to 1,011``."""
    found = sorted(entry.largest for entry in compared.entries if entry.largest is not None)
    largest = f"the {sweep_axes.words(compared.axis).largest} that fits"
    if not found:
        return f"{largest}: none"
    return f"{largest}: {found[0]:,}" + (f" to {found[-1]:,}" if found[-1] > found[0] else "")


def _caption(compared: Compared) -> str:
    rings = "a ring marks the largest that was run and fitted"
    if compared.common_size is None:
        return rings
    size = sweep_axes.words(compared.axis).size
    return f"{rings}; the dotted line is where they are compared, {size} {compared.common_size:,}"


def _on_cpu(compared: Compared) -> bool:
    return all(entry.record.header.spec.device == "cpu" for entry in compared.entries)

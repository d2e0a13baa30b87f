"""What changed between two runs, for a terminal and for programs.

The object of ``to_json`` (schema 1; bytes are integers, shares are (after - before) / before)::

    schema, axis       1; what both runs vary
    before, after      the folders
    tolerance          the share up to which a difference does not matter
    matters            the boundary or a peak differs by more
    machine, versions, spec, settings
                       what is not the same: {"name", "before", "after"} each
    boundary           {"max_batch", "first_failure"}: {"before", "after"} each, and "share" and "matters"
    curve              the sizes that fitted in both: {"size", "peak_allocated_bytes", "peak_reserved_bytes",
                       "samples_per_second"}: {"before", "after", "share"} each, "matters"; a speed may be null

A run that has a size or a speed where the other has none has no share: null.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeper import axes
from sweeper.difference import Change, Difference
from sweeper.report.table import Column, lay_out
from sweeper.report.terminal import Ink, capital, fill
from sweeper.report.words import printable
from sweeper.units import MIB, format_bytes, format_mib
from sweeper.wire import to_jsonable

__all__ = ["SCHEMA", "summary", "to_json"]

# 1  first version
SCHEMA = 1


def summary(found: Difference, *, before: Path, after: Path, color: bool, width: int = 100) -> str:
    """All that changed, for a terminal of ``width`` columns; the verdict last."""
    ink = Ink(color)
    blocks = [f"{printable(str(before))}  ->  {printable(str(after))}"]
    asked = (
        ("machine", found.machine),
        ("versions", found.versions),
        ("asked", found.spec),
        ("settings", found.settings),
    )
    for title, changes in asked:
        if changes:
            blocks.append(_changes(title, changes, ink, width))
    same = [title for title, changes in asked if not changes]
    if same:
        blocks.append(ink(f"the same: {', '.join(same)}", "dim"))
    if found.curve:
        blocks.append(_curve(found, ink, width))
    else:
        blocks.append("no size fitted in both")
    blocks.append("\n".join(ink(fill(text, width), tone) for text, tone in _verdict(found)))
    return "\n\n".join(blocks)


def _changes(title: str, changes: Sequence[Change], ink: Ink, width: int) -> str:
    columns = [
        Column(heading=title, cells=tuple(printable(change.name) for change in changes), left=True),
        Column(heading="before", cells=tuple(_said(c.name, c.before) for c in changes), left=True),
        Column(heading="after", cells=tuple(_said(c.name, c.after) for c in changes), left=True),
    ]
    layout = lay_out(columns, width=width)
    return "\n".join([*(ink(line, "dim") for line in layout.headings), *layout.rows])


def _said(name: str, value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, list):
        return printable(" ".join(map(str, value)))
    return printable(str(value))


def _curve(found: Difference, ink: Ink, width: int) -> str:
    curve = found.curve
    columns = [
        Column(heading=axes.words(found.axis).size, cells=tuple(str(c.size) for c in curve)),
        *_pair("allocated MiB", [(c.allocated_before, c.allocated_after, c.allocated_share) for c in curve], 2),
        *_pair("reserved MiB", [(c.reserved_before, c.reserved_after, c.reserved_share) for c in curve], 0),
    ]
    if any(c.speed_share is not None for c in curve):
        shares = tuple("-" if c.speed_share is None else _percent(c.speed_share) for c in curve)
        columns.append(Column(heading="samples/s\n%", cells=shares, importance=1))
    layout = lay_out(columns, width=width)
    lines = [ink(line, "dim") for line in layout.headings]
    for change, row in zip(curve, layout.rows, strict=True):
        lines.append(ink(row, "bad" if found.peak_matters(change) else "plain"))
    if layout.dropped:
        lines.append(ink(fill(f"no room here for: {', '.join(layout.dropped)} (see --json)", width, "  "), "dim"))
    return "\n".join(lines)


def _pair(heading: str, sizes: Sequence[tuple[int, int, float]], importance: int) -> list[Column]:
    """What it was, what it is, and the two differences."""
    apart = tuple(f"{(after - before) / MIB:+,.1f}" if after != before else "0" for before, after, _ in sizes)
    return [
        Column(
            heading=f"{heading}\nbefore",
            cells=tuple(format_mib(before) for before, _, _ in sizes),
            importance=importance,
        ),
        Column(heading="\nafter", cells=tuple(format_mib(after) for _, after, _ in sizes), importance=importance),
        Column(heading="\nMiB", cells=apart, importance=importance),
        Column(heading="\n%", cells=tuple(_percent(share) for _, _, share in sizes), importance=importance),
    ]


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:+.2f}"


def _verdict(found: Difference) -> list[tuple[str, str]]:
    """The boundary, and whether anything matters; each with its tone."""
    edge, largest = found.boundary, axes.words(found.axis).largest
    was, now = ("none" if size is None else f"{size:,}" for size in (edge.largest_before, edge.largest_after))
    if was == now:
        said = f"{largest} that fits: {now}, as before"
    else:
        share = "" if edge.share is None else f" ({_percent(edge.share)} %)"
        said = f"{largest} that fits: {was} before, {now} after{share}"
    tolerance = f"{100 * found.tolerance:g} %"
    peaks = sum(map(found.peak_matters, found.curve))
    parts = []
    if found.boundary_matters:
        parts.append("the boundary")
    if peaks:
        parts.append("1 peak" if peaks == 1 else f"{peaks} peaks")
    if parts:
        last = f"{' and '.join(parts)} differ{'s' if len(parts) == 1 and peaks < 2 else ''} by more than {tolerance}"
    else:
        last = f"nothing differs that matters: boundary and peaks are within {tolerance}"
    return [(capital(said), "bad" if found.boundary_matters else "plain"), (capital(last), "bad" if parts else "good")]


def to_json(found: Difference, *, before: Path, after: Path) -> dict[str, Any]:
    """Return the object above, ready for ``json.dumps(..., allow_nan=False)``."""
    edge = found.boundary
    body = {
        "schema": SCHEMA,
        "axis": found.axis,
        "before": str(before),
        "after": str(after),
        "tolerance": found.tolerance,
        "matters": found.matters,
        "machine": found.machine,
        "versions": found.versions,
        "spec": found.spec,
        "settings": found.settings,
        "boundary": {
            "max_batch": {"before": edge.largest_before, "after": edge.largest_after},
            "first_failure": {"before": edge.failing_before, "after": edge.failing_after},
            "share": edge.share,
            "matters": found.boundary_matters,
        },
        "curve": [
            {
                "size": c.size,
                "peak_allocated_bytes": _both(c.allocated_before, c.allocated_after, c.allocated_share),
                "peak_reserved_bytes": _both(c.reserved_before, c.reserved_after, c.reserved_share),
                "samples_per_second": _both(c.speed_before, c.speed_after, c.speed_share),
                "matters": found.peak_matters(c),
            }
            for c in found.curve
        ],
    }
    return to_jsonable(body)  # type: ignore[no-any-return]


def _both(before: float | None, after: float | None, share: float | None) -> dict[str, float | None]:
    return {"before": before, "after": after, "share": share}

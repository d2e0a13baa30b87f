"""What was measured beside memory, as sentences and as columns: speed, the card's activity, pieces, host memory.

Only what was measured appears: a simulated device gives no time, no utilisation and no power.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sweeper import axes
from sweeper.record import CurvePoint, Record
from sweeper.report.table import Column
from sweeper.trial import CardActivity
from sweeper.units import format_bytes

__all__ = ["CSV_COLUMNS", "cells", "columns", "in_json", "sentences"]

# Beside the curve's own columns; what was not measured is empty.
CSV_COLUMNS = (
    "tokens_per_second", "loss_finite", "context_bytes", "host_peak_bytes", "unused_bytes", "largest_free_bytes",
    "utilization_mean_percent", "utilization_max_percent", "power_mean_w", "power_max_w",
)  # fmt: skip


def sentences(record: Record) -> Iterator[tuple[str, str]]:
    """(label, sentence) pairs, of the largest size that fits where a sentence is of one."""
    if text := _speed(record):
        yield "speed", text
    fits = [point for point in record.curve if point.outcome == "fit"]
    if not fits:
        return
    largest = next((point for point in fits if point.size == record.max_batch), fits[-1])
    at = f"{axes.words(record.header.settings.axis).size} {largest.size}"
    if largest.activity is not None:
        yield "card", f"{_activity(largest.activity)} ({at}, {largest.activity.samples} readings)"
    if (found := largest.fragmentation) is not None:
        yield (
            "fragmentation",
            f"{format_bytes(found.unused_bytes)} reserved and not allocated when {format_bytes(found.allocated_bytes)} "
            f"were, in free pieces of at most {format_bytes(found.largest_free_bytes)} ({at})",
        )
    if largest.host_peak_bytes is not None:
        yield "host memory", f"{format_bytes(largest.host_peak_bytes)} at most, of the trial's process ({at})"


def columns(curve: Sequence[CurvePoint]) -> list[Column]:
    """Columns of the curve's table, those that have anything in them."""
    activities = [point.activity for point in curve]
    found: tuple[tuple[str, list[float | None], str, int], ...] = (
        ("tokens/s", [point.tokens_per_second for point in curve], ",.0f", 3),
        ("card\nbusy %", [one.utilization_mean_percent if one else None for one in activities], ".0f", 6),
        ("power\nW", [one.power_mean_w if one else None for one in activities], ".0f", 7),
    )
    shown = []
    for heading, values, form, importance in found:
        if any(one is not None for one in values):
            texts = tuple("-" if one is None else format(one, form) for one in values)
            shown.append(Column(heading=heading, cells=texts, importance=importance))
    return shown


def cells(point: CurvePoint) -> list[Any]:
    """The values under ``CSV_COLUMNS``."""
    activity, found = point.activity, point.fragmentation
    finite = None if point.loss_finite is None else str(point.loss_finite).lower()
    return [
        point.tokens_per_second, finite, point.context_bytes, point.host_peak_bytes,
        found and found.unused_bytes, found and found.largest_free_bytes,
        *(getattr(activity, name, None) for name in CSV_COLUMNS[-4:]),
    ]  # fmt: skip


def in_json(point: CurvePoint) -> dict[str, Any]:
    """The keys of one point of the curve; ``export`` says what they are."""
    found = point.fragmentation
    return {
        "tokens_per_second": point.tokens_per_second,
        "loss_finite": point.loss_finite,
        "numeric": point.numeric,
        "context_bytes": point.context_bytes,
        "host_peak_bytes": point.host_peak_bytes,
        "activity": point.activity,
        "fragmentation": found
        and {
            "allocated_bytes": found.allocated_bytes,
            "reserved_bytes": found.reserved_bytes,
            "unused_bytes": found.unused_bytes,
            "largest_free_bytes": found.largest_free_bytes,
        },
    }


def _speed(record: Record) -> str | None:
    """The knee beside the largest batch; nothing where a single batch was timed."""
    found = record.throughput
    timed = {p.size: p.samples_per_second for p in record.curve if p.outcome == "fit" and p.samples_per_second}
    if found is None or len(timed) < 2:
        return None
    knee = f"batch {found.knee} ({found.knee_samples_per_second:,.1f} samples/s)"
    if found.knee == found.fastest:
        text = f"{knee} is the fastest"
    else:
        fastest = f"batch {found.fastest} ({found.fastest_samples_per_second:,.1f})"
        text = f"{knee} is the smallest within 5 % of the fastest, {fastest}"
    largest = timed.get(record.max_batch or 0)
    if largest is not None and record.max_batch not in (found.knee, found.fastest):
        text += f"; the largest, batch {record.max_batch}, does {largest:,.1f}"
    return text


def _activity(activity: CardActivity) -> str:
    parts = []
    if activity.utilization_mean_percent is not None:
        most = f"{activity.utilization_max_percent:.0f} % at most"
        parts.append(f"busy {activity.utilization_mean_percent:.0f} % of the time, {most}")
    if activity.power_mean_w is not None:
        parts.append(f"{activity.power_mean_w:.0f} W, {activity.power_max_w:.0f} W at most")
    if activity.clock_mean_mhz is not None:
        parts.append(f"{activity.clock_mean_mhz:,.0f} MHz")
    if activity.temperature_max_c is not None:
        parts.append(f"{activity.temperature_max_c:.0f} degrees Celsius at most")
    return "; ".join(parts)

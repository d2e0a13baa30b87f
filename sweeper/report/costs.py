"""The hours and the money of a whole training at each size that was timed: a sentence, columns, cells for files."""

from typing import Any

from sweeper import axes
from sweeper.cost import Cost, Price, Schedule
from sweeper.record import CurvePoint, Record
from sweeper.report.table import Column

__all__ = ["CSV_COLUMNS", "cells", "columns", "in_json", "sentence", "short"]

CSV_COLUMNS = ("hours", "money")


def sentence(record: Record) -> str | None:
    """What the training takes at the sizes a person chooses among; None where it was not asked."""
    schedule = record.header.settings.schedule
    if schedule is None:
        return None
    what = _what(schedule)
    found = [f"{short(cost, schedule)} at {name}" for name, point in _named(record) if (cost := record.cost(point))]
    if not found:
        return f"not known of {what}: no step was timed"
    text = f"{what}: {'; '.join(found)}"
    return text if schedule.price is None else f"{text}; {_price(schedule.price)}"


def short(cost: Cost, schedule: Schedule) -> str:
    """``33.14 h and 26.51 USD``"""
    hours = f"{cost.hours:,.2f} h"
    if cost.money is None:
        return hours
    currency = schedule.price.currency if schedule.price else None
    return f"{hours} and {cost.money:,.2f}{f' {currency}' if currency else ''}"


def columns(record: Record) -> list[Column]:
    schedule = record.header.settings.schedule
    costs = [record.cost(point) for point in record.curve]
    if schedule is None or not any(costs):
        return []
    hours = tuple("-" if cost is None else f"{cost.hours:,.2f}" for cost in costs)
    found = [Column(heading="hours", cells=hours, importance=1)]
    if schedule.price is not None:
        money = tuple("-" if cost is None else f"{cost.money:,.2f}" for cost in costs)
        currency = schedule.price.currency
        found.append(Column(heading=f"cost\n{currency}" if currency else "cost", cells=money, importance=1))
    return found


def cells(record: Record, point: CurvePoint) -> list[Any]:
    """The values under ``CSV_COLUMNS``."""
    cost = record.cost(point)
    return [cost and cost.hours, cost and cost.money]


def in_json(record: Record) -> dict[str, Any] | None:
    schedule = record.header.settings.schedule
    if schedule is None:
        return None
    price = schedule.price
    return {
        "samples": schedule.samples,
        "epochs": schedule.epochs,
        "price_per_hour": price and price.per_hour,
        "currency": price and price.currency,
        "list_price": price and price.listed,
    }


def _named(record: Record) -> list[tuple[str, CurvePoint]]:
    """The recommended size, the knee, the fastest and the largest, of those that were timed; each once."""
    word, speed = axes.words(record.header.settings.axis).size, record.throughput
    points = {point.size: point for point in record.curve if point.outcome == "fit"}
    names: dict[int, list[str]] = {}
    for size, name in (
        (record.recommended_batch, "recommended"),
        (speed and speed.knee, "the knee"),
        (speed and speed.fastest, "the fastest"),
        (record.max_batch, "the largest"),
    ):
        if size is not None and size in points:
            names.setdefault(size, []).append(name)
    return [(f"{word} {size} ({', '.join(said)})", points[size]) for size, said in names.items()]


def _what(schedule: Schedule) -> str:
    epochs = f"{schedule.epochs:g} epoch{'' if schedule.epochs == 1 else 's'}"
    return f"{epochs} of {schedule.samples:,} samples"


def _price(price: Price) -> str:
    amount = f"{price.per_hour:.2f}" if price.per_hour == round(price.per_hour, 2) else f"{price.per_hour:g}"
    currency = f" {price.currency}" if price.currency else ""
    return f"at {amount}{currency} an hour" + (f", the {price.listed}" if price.listed else "")

"""Frontiers for tests: the largest batch at each length is given, the bytes follow from it."""

from collections.abc import Mapping
from typing import Any

from sweeper.boundary import Frontier, FrontierPoint, MeasuredPoint, PeakMap, map_batches
from sweeper.cards import card
from sweeper.trial import Outcome
from sweeper.units import MIB
from tests.builders import a_device, a_spec

__all__ = ["LARGEST", "a_frontier", "a_measured"]

LARGEST: dict[int, int | None] = {128: 64, 256: 64, 384: 49, 512: 37, 640: 29, 768: None}


def a_frontier(largest: Mapping[int, int | None] | None = None, *, cap: int = 64, **changes: Any) -> Frontier:
    """A token takes a KiB; the device is the default one."""
    largest = LARGEST if largest is None else largest
    points = tuple(_point(length, batch) for length, batch in largest.items())
    batches = map_batches(cap)
    given: dict[str, Any] = {
        "spec": a_spec(model="tiny-transformer"),
        "device": a_device(),
        "card": card("rtx4060"),
        "cap": cap,
        "step": 128,
        "points": points,
        "map": PeakMap(
            batches=batches, live_bytes=tuple(tuple(length * batch * 1024 for length in largest) for batch in batches)
        ),
        "versions": {"torch": "2.14.1", "torchvision": "0.29.1"},
        "seconds": 1.5,
    }
    return Frontier(**{**given, **changes})


def _point(length: int, batch: int | None) -> FrontierPoint:
    if batch is None:
        return FrontierPoint(length=length, max_batch=None)
    live = length * batch * 1024
    return FrontierPoint(length=length, max_batch=batch, peak_bytes=live + 40 * MIB, live_bytes=live)


def a_measured(length: int, batch: int, outcome: Outcome, *, predicted: bool) -> MeasuredPoint:
    return MeasuredPoint(length=length, batch=batch, predicted_fits=predicted, outcome=outcome)

"""What changed between two runs: where they ran, what was asked, what came of it; and whether that matters.

Something matters when the boundary or a peak differs: the largest size, or the allocated or reserved peak of a size
that fitted in both, by more than the tolerance, a share of what it was.  What was asked and where is told and never
judged, and so is speed, which differs from one hour to the next.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.errors import UsageError
from sweeper.record import Header, Record
from sweeper.wire import to_jsonable

__all__ = ["Boundary", "Change", "Difference", "SizeChange", "difference"]

_MACHINE = (
    "label", "simulated", "total_bytes", "capacity_bytes", "compute_capability", "multiprocessors", "driver",
    "allocator_conf",
)  # fmt: skip
_VERSIONS = ("torch", "torchvision", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A fact that is not the same: numbers, texts, or None where it is not known."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """A size that fitted in both.  Bytes; speeds are None where one was not timed."""

    size: int
    allocated_before: int
    allocated_after: int
    reserved_before: int
    reserved_after: int
    speed_before: float | None = None
    speed_after: float | None = None

    @property
    def allocated_share(self) -> float:
        return _share(self.allocated_before, self.allocated_after)

    @property
    def reserved_share(self) -> float:
        return _share(self.reserved_before, self.reserved_after)

    @property
    def speed_share(self) -> float | None:
        """(after - before) / before of samples a second."""
        if self.speed_before is None or self.speed_after is None:
            return None
        return _share(self.speed_before, self.speed_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The largest size that fits and the smallest that does not, in both; None where there is none."""

    largest_before: int | None
    largest_after: int | None
    failing_before: int | None
    failing_after: int | None

    @property
    def share(self) -> float | None:
        """(after - before) / before of the largest; None where one run has none."""
        if self.largest_before is None or self.largest_after is None:
            return None
        return _share(self.largest_before, self.largest_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two runs along one axis; ``curve`` has the sizes that fitted in both, ascending."""

    axis: str
    machine: tuple[Change, ...]
    versions: tuple[Change, ...]
    spec: tuple[Change, ...]
    settings: tuple[Change, ...]
    boundary: Boundary
    curve: tuple[SizeChange, ...]
    tolerance: float

    @property
    def boundary_matters(self) -> bool:
        """Whether the largest size differs by more than the tolerance, or one run has none."""
        share = self.boundary.share
        if share is None:
            return self.boundary.largest_before != self.boundary.largest_after
        return abs(share) > self.tolerance

    def peak_matters(self, change: SizeChange) -> bool:
        """Whether a peak of that size differs by more than the tolerance."""
        return max(abs(change.allocated_share), abs(change.reserved_share)) > self.tolerance

    @property
    def matters(self) -> bool:
        """Whether the boundary or a peak differs by more than the tolerance."""
        return self.boundary_matters or any(map(self.peak_matters, self.curve))


def difference(before: Record, after: Record, *, tolerance: float = 0.01) -> Difference:
    """What changed from ``before`` to ``after``; ``tolerance`` is a share, 0.01 for 1 %.

    Raises ``UsageError`` for a tolerance below 0, and for runs along two axes, whose sizes are not of one kind.
    """
    if tolerance < 0:
        raise UsageError(f"a tolerance of {tolerance:g} is below nothing", hint="give a share, such as 0.01 for 1 %")
    axis, other = before.header.settings.axis, after.header.settings.axis
    if axis != other:
        raise UsageError(
            f"one run is along {axis}, the other along {other}: their sizes are of two kinds",
            hint="name two runs along one axis",
        )
    return Difference(
        axis=axis,
        machine=_changes(_machine(before), _machine(after)),
        versions=_changes(_versions(before), _versions(after)),
        spec=_changes(_asked(before.header), _asked(after.header)),
        settings=_changes(_flat(before.header.settings), _flat(after.header.settings)),
        boundary=Boundary(
            largest_before=before.max_batch,
            largest_after=after.max_batch,
            failing_before=before.first_failure,
            failing_after=after.first_failure,
        ),
        curve=tuple(_curve(before, after)),
        tolerance=tolerance,
    )


def _curve(before: Record, after: Record) -> Iterator[SizeChange]:
    fitted = {point.size: point for point in after.curve if point.outcome == "fit"}
    for old in before.curve:
        new = fitted.get(old.size)
        if old.outcome == "fit" and new is not None:
            yield SizeChange(
                size=old.size,
                allocated_before=old.peak_allocated_bytes,
                allocated_after=new.peak_allocated_bytes,
                reserved_before=old.peak_reserved_bytes,
                reserved_after=new.peak_reserved_bytes,
                speed_before=old.samples_per_second,
                speed_after=new.samples_per_second,
            )


def _machine(record: Record) -> dict[str, Any]:
    found = {name: getattr(record.device, name, None) for name in _MACHINE}
    return {"platform": record.header.platform, **found}


def _versions(record: Record) -> dict[str, Any]:
    found = {name: getattr(record.device, name, None) for name in _VERSIONS}
    return {"sweeper": record.header.sweeper, "python": record.header.python, **found}


def _asked(header: Header) -> dict[str, Any]:
    """The spec, but for the size that a sweep varies itself."""
    found = _flat(header.spec)
    if header.settings.axis == "batch":
        found.pop("batch_size", None)
    return found


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """The fields of a dataclass as scalars under dotted names."""
    found: dict[str, Any] = {}
    for name, item in (value if isinstance(value, Mapping) else to_jsonable(value)).items():
        if isinstance(item, Mapping):
            found |= _flat(item, f"{prefix}{name}.")
        elif f"{prefix}{name}" != "type":
            found[f"{prefix}{name}"] = item
    return found


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """By name, those that are not the same; what only one of them has is None in the other."""
    names = dict.fromkeys((*before, *after))
    return tuple(
        Change(name=name, before=before.get(name), after=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )


def _share(before: float, after: float) -> float:
    """(after - before) / before; of nothing, all or nothing."""
    if before:
        return (after - before) / before
    return 0.0 if after == before else float("inf")

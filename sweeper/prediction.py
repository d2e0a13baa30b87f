"""From the traces of a job to an answer without a GPU: the largest batch a capacity takes, and the peaks on the way.

Every question is a replay: the trace at that batch, through a fresh simulated allocator of that capacity.  So a
prediction says exactly what a ``sim:`` trial says, in milliseconds.  The boundary is found by bisection and then both
sides of it are known: the largest batch that fits was replayed, and so was the next.

Memory may not grow steadily with the batch (the allocator rounds, splits and gives back), so what is found is *a*
boundary: a batch that fits whose next does not.  A larger one that fits again is noticed only at the curve's sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, Protocol

from sweeper.allocator import CachingAllocator
from sweeper.allocator_conf import DEFAULT_CONF, AllocatorConf
from sweeper.history import History, recorded, without_the_end
from sweeper.trace import WORKSPACE_OPERATOR, Replay, ReplayFailure, Trace, replay, replayed_breakdowns
from sweeper.trial import Breakdown, Phase
from sweeper.units import MIB

__all__ = [
    "PredictedFailure",
    "PredictedPoint",
    "Prediction",
    "Replays",
    "Room",
    "Traces",
    "curve_sizes",
    "host_bytes",
    "largest_within",
    "predict",
    "predict_host",
    "predict_within",
    "predicted_failure",
]

_HOST_ALIGNMENT_BYTES = 64  # gAlignment, c10/core/impl/alloc_cpu.h: torch's CPU allocator aligns each block to 64 bytes
_HOPELESS = 1.2  # times the capacity in tensors alone: no larger size is tried, which matters where each is traced
_PAGE_BYTES = 2 * MIB  # every segment is a multiple of it: kSmallBuffer, kRoundLarge, c10/core/AllocatorConfig.h


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    """One batch size, replayed with nothing in its way.  On the host reserved equals allocated: nothing is cached."""

    size: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    breakdown: Breakdown
    peak_phase: Phase | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedFailure:
    """Where the first batch that does not fit ran out.  Bytes; ``free_bytes`` is what was left to give."""

    size: int
    operator: str
    module: str
    phase: Phase
    step: int
    requested_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """``max_batch`` is None when nothing fits, and then so is ``peak_bytes_at_max``.

    ``peak_bytes_at_max`` is the peak reserved within the capacity: what is cached is given back when memory runs
    short, so it can be less than that batch's point says.  ``failure`` is None when the cap fits.  ``method`` says how
    much is modelled: ``"allocator"`` is the whole caching allocator, ``"live bytes"`` a sum and a first guess.
    """

    max_batch: int | None
    peak_bytes_at_max: int | None
    points: tuple[PredictedPoint, ...]
    failure: PredictedFailure | None = None
    method: Literal["allocator", "live bytes"] = "allocator"

    def point(self, size: int) -> PredictedPoint:
        """Raises ``KeyError`` when ``size`` is none of the points."""
        for point in self.points:
            if point.size == size:
                return point
        raise KeyError(size)


class Traces(Protocol):
    """The traces of one job, whatever they are made from: an ``AffineTrace``, or a step traced at each size."""

    def at(self, batch_size: int) -> Trace: ...


class Replays:
    """The replays of one job, for as many capacities as are asked; those with nothing in their way are made once.

    Two replays are spared, because their answer is known.  No allocator fits a step whose tensors alone, as they were
    asked for, are more than there is.  And a step that reserved no more than there is with nothing in its way does the
    same within it: the allocator looks at the capacity only when it asks the driver.  The second does not hold where
    the allocator itself counts against a limit (``per_process_memory_fraction``, and with a limit garbage collection)
    or lays out addresses by the card's size (``expandable_segments``), so there everything is replayed.
    """

    def __init__(self, traces: Traces, conf: AllocatorConf = DEFAULT_CONF) -> None:
        self._traces = traces
        self._conf = conf
        self._without_end = replace(conf, per_process_memory_fraction=1.0)
        self._uncapped: dict[int, Replay] = {}
        self._live: dict[int, int] = {}

    def uncapped(self, size: int) -> Replay:
        """The step at batch ``size`` on a card without end."""
        if size not in self._uncapped:
            self._uncapped[size] = replay(self._traces.at(size), CachingAllocator(conf=self._without_end))
        return self._uncapped[size]

    def within(self, size: int, room: "Room") -> Replay:
        """The step at batch ``size`` in ``room``."""
        allocator = CachingAllocator(
            capacity_bytes=room.capacity_bytes,
            memory_fraction_limit_bytes=room.limit_bytes,
            total_bytes=room.total_bytes,
            conf=self._conf,
        )
        return replay(self._traces.at(size), allocator)

    def recorded(self, size: int, room: "Room") -> History:
        """The same, with everything the allocator does written down, as long as the job goes on."""
        return recorded(
            without_the_end(self._traces.at(size)),
            self._conf,
            capacity_bytes=room.capacity_bytes,
            limit_bytes=room.limit_bytes,
            total_bytes=room.total_bytes,
        )

    def fits(self, size: int, room: "Room") -> bool:
        # The last page of an expandable range may lie past a limit, though never past the capacity.
        if self.live_bytes(size) > (room.capacity_bytes if self._conf.expandable_segments else room.least_bytes):
            return False
        counts = self._conf.garbage_collection_threshold > 0 and room.limit_bytes is not None
        plain = self._conf == self._without_end and not self._conf.expandable_segments and not counts
        known = self._uncapped.get(size) if plain else None
        if known is not None and known.peak_reserved_bytes <= room.least_bytes:
            return True
        return self.within(size, room).fits

    def least_capacity_bytes(self, size: int) -> int:
        """The least capacity that batch ``size`` runs in, in whole pages of 2 MiB; in one page less it does not.

        Found by bisection, from the tensors alone up to the peak with nothing in its way.  A step that runs in still
        less and then not again is not noticed.
        """

        def fits(pages: int) -> bool:
            allocator = CachingAllocator(capacity_bytes=pages * _PAGE_BYTES, conf=self._without_end)
            return replay(self._traces.at(size), allocator).fits

        enough = -(-self.uncapped(size).peak_reserved_bytes // _PAGE_BYTES)
        too_few = -(-self.live_bytes(size) // _PAGE_BYTES) - 1
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if fits(middle) else (middle, enough)
        return enough * _PAGE_BYTES

    def live_bytes(self, size: int) -> int:
        """The most bytes alive at once that the step cannot do without, as they were asked for."""
        if size not in self._live:
            trace = self._traces.at(size)
            spared = {n for n, label in enumerate(trace.labels) if label.operator == WORKSPACE_OPERATOR}
            sizes = [0 if label in spared else asked for asked, label in zip(trace.sizes, trace.labels_of, strict=True)]
            changes = (sizes[event] if event >= 0 else -sizes[~event] for event in trace.events)
            self._live[size] = max(accumulate(changes), default=0)
        return self._live[size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a step may have.  ``capacity_bytes`` is what the driver can give: the card's total less its context.

    ``limit_bytes`` is a limit below it that the allocator keeps (``set_per_process_memory_fraction``); ``total_bytes``
    is the card's.
    """

    capacity_bytes: int
    limit_bytes: int | None = None
    total_bytes: int | None = None

    def times(self, share: float) -> "Room":
        """Room for ``share`` of what this is, on the same card."""
        limit = None if self.limit_bytes is None else int(share * self.limit_bytes)
        return replace(self, capacity_bytes=int(share * self.capacity_bytes), limit_bytes=limit)

    @property
    def least_bytes(self) -> int:
        return min(self.capacity_bytes, self.limit_bytes or self.capacity_bytes)


def predict(
    traces: Traces,
    *,
    capacity_bytes: int,
    cap: int,
    floor: int = 1,
    step: int = 1,
    conf: AllocatorConf = DEFAULT_CONF,
) -> Prediction:
    """Return the largest of ``floor, floor + step, ... <= cap`` that fits, with the curve up to the first too large.

    ``capacity_bytes`` is what the driver can give: the card's total less its context, or a limit below it.  Raises
    ``ValueError`` when the sizes are no range.
    """
    room = Room(capacity_bytes=capacity_bytes)
    return predict_within(Replays(traces, conf), room, cap=cap, floor=floor, step=step)


def predict_within(replays: Replays, room: Room, *, cap: int, floor: int = 1, step: int = 1) -> Prediction:
    """The same, of replays that other cards may have been asked before."""
    _check_range(floor=floor, cap=cap, step=step)
    for size in curve_sizes(floor=floor, cap=cap, step=step):
        if replays.uncapped(size).peak_allocated_bytes > room.least_bytes:
            break  # the curve goes no further than the first that does not fit
    largest, refused = _boundary_within(replays, room, floor=floor, cap=cap, step=step)
    failure = replays.within(refused, room).failure if refused is not None else None
    return Prediction(
        max_batch=largest,
        peak_bytes_at_max=None if largest is None else replays.within(largest, room).peak_reserved_bytes,
        points=tuple(
            _point(size, replays.uncapped(size))
            for size in curve_sizes(floor=floor, cap=cap, step=step, largest=largest, refused=refused)
        ),
        failure=None if failure is None or refused is None else predicted_failure(refused, failure),
    )


def predict_host(traces: Traces, *, budget_bytes: int, cap: int, floor: int = 1, step: int = 1) -> Prediction:
    """The same for training on the CPU, as a first guess: the most bytes alive at once, each rounded up to 64.

    Nothing is known here of the host's own allocator, of what its kernels use as scratch (convolutions do), or of the
    differences between the step's CPU and CUDA operators, of which the trace has the latter.  Workspaces that are
    CUDA's own are left out.
    """
    _check_range(floor=floor, cap=cap, step=step)
    points: dict[int, PredictedPoint] = {}

    def fits(size: int) -> bool:
        points[size] = _host_point(size, traces.at(size))
        return points[size].peak_allocated_bytes <= budget_bytes

    largest, refused = _boundary(fits, floor=floor, cap=cap, step=step)
    sizes = curve_sizes(floor=floor, cap=cap, step=step, largest=largest, refused=refused)
    return Prediction(
        max_batch=largest,
        peak_bytes_at_max=None if largest is None else points[largest].peak_allocated_bytes,
        points=tuple(points.get(size) or _host_point(size, traces.at(size)) for size in sizes),
        failure=None,
        method="live bytes",
    )


def largest_within(replays: Replays, room: Room, *, cap: int, floor: int = 1, step: int = 1) -> int | None:
    """What ``predict_within`` gives as the largest batch, without the rest; None when nothing fits."""
    _check_range(floor=floor, cap=cap, step=step)
    return _boundary_within(replays, room, floor=floor, cap=cap, step=step)[0]


def curve_sizes(
    *, floor: int, cap: int, step: int, largest: int | None = None, refused: int | None = None
) -> tuple[int, ...]:
    """The sizes a curve is drawn through: doubling from the floor, then both sides of the boundary."""
    end = refused if refused is not None else cap
    sizes = {size for size in (largest, refused) if size is not None}
    size = floor
    while size <= end:
        sizes.add(size)
        size = floor + max(step, -(-(2 * size - floor) // step) * step)
    return tuple(sorted(sizes))


def _check_range(*, floor: int, cap: int, step: int) -> None:
    if not 1 <= floor <= cap or step < 1:
        raise ValueError(f"no sizes from {floor} to {cap} in steps of {step}")


def _boundary_within(replays: Replays, room: Room, *, floor: int, cap: int, step: int) -> tuple[int | None, int | None]:
    return _boundary(
        lambda size: replays.fits(size, room),
        hopeless=lambda size: replays.live_bytes(size) > _HOPELESS * room.capacity_bytes,
        floor=floor,
        cap=cap,
        step=step,
    )


def _boundary(
    fits: Callable[[int], bool],
    *,
    floor: int,
    cap: int,
    step: int,
    hopeless: Callable[[int], bool] = lambda size: False,
) -> tuple[int | None, int | None]:
    """Return (a size that fits, the next one, which does not); None for the side that is outside the range.

    All of the curve's sizes are tried, because a small size may fail where a larger one fits: below 10 MiB a request
    takes a segment of 20 MiB, above it takes no more than it needs.  Past a size that is ``hopeless`` none is.
    """
    last = (cap - floor) // step
    doubling = [*((size - floor) // step for size in curve_sizes(floor=floor, cap=cap, step=step)), last]
    fitting = []
    for index in doubling:
        if fits(floor + index * step):
            fitting.append(index)
        elif hopeless(floor + index * step):
            break
    if not fitting:
        return None, floor
    low = max(fitting)
    if low == last:
        return floor + last * step, None
    high = min(index for index in doubling if index > low)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(floor + middle * step):
            low = middle
        else:
            high = middle
    return floor + low * step, floor + high * step


def _point(size: int, uncapped: Replay) -> PredictedPoint:
    return PredictedPoint(
        size=size,
        peak_allocated_bytes=uncapped.peak_allocated_bytes,
        peak_reserved_bytes=uncapped.peak_reserved_bytes,
        breakdown=uncapped.breakdown,
        peak_phase=uncapped.peak_phase,
    )


def _host_point(size: int, trace: Trace) -> PredictedPoint:
    kinds = [trace.labels[label].kind for label in trace.labels_of]
    held = [
        0 if kind == "workspace" else -(-asked // _HOST_ALIGNMENT_BYTES) * _HOST_ALIGNMENT_BYTES
        for asked, kind in zip(trace.sizes, kinds, strict=True)
    ]
    at_peak, _, event = replayed_breakdowns(trace.events, held, kinds)
    return PredictedPoint(
        size=size,
        peak_allocated_bytes=at_peak.total_bytes,
        peak_reserved_bytes=at_peak.total_bytes,
        breakdown=at_peak,
        peak_phase=trace.phase_at(event)[0],
    )


def host_bytes(trace: Trace) -> int:
    """What ``predict_host`` takes as the peak of ``trace``."""
    return _host_point(trace.batch_size, trace).peak_allocated_bytes


def predicted_failure(size: int, failure: ReplayFailure) -> PredictedFailure:
    return PredictedFailure(
        size=size,
        operator=failure.label.operator,
        module=failure.label.module,
        phase=failure.label.phase,
        step=failure.step,
        requested_bytes=failure.requested_bytes,
        free_bytes=failure.free_bytes,
    )

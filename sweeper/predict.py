"""From an affine trace to an answer without a GPU: the largest batch that a capacity takes, and the peaks on the way.

Every question is a replay: the trace at that batch, through a fresh simulated allocator of that capacity.  So a
prediction says exactly what a ``sim:`` trial says, in milliseconds.  The boundary is found by bisection and then both
sides of it are known: the largest batch that fits was replayed, and so was the next.

Memory may not grow steadily with the batch (the allocator rounds, splits and gives back), so what is found is *a*
boundary: a batch that fits whose next does not.  A larger one that fits again is noticed only at 1, 2, 4, ... steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sweeper.allocator import CachingAllocator
from sweeper.allocator_conf import DEFAULT_CONF, AllocatorConf
from sweeper.trace import AffineTrace, ReplayFailure, Trace, replay, replayed_breakdowns
from sweeper.trial import Breakdown, Phase

__all__ = ["PredictedFailure", "PredictedPoint", "Prediction", "curve_sizes", "predict", "predict_host"]

_HOST_ALIGNMENT_BYTES = 64  # gAlignment, c10/core/impl/alloc_cpu.h: torch's CPU allocator aligns each block to 64 bytes


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


def predict(
    affine: AffineTrace,
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
    replays = {}

    def fits(size: int) -> bool:
        replays[size] = replay(affine.at(size), CachingAllocator(capacity_bytes=capacity_bytes, conf=conf))
        return replays[size].fits

    largest, refused = _boundary(fits, floor=floor, cap=cap, step=step)
    points = []
    for size in curve_sizes(floor=floor, cap=cap, step=step, largest=largest, refused=refused):
        uncapped = replay(affine.at(size), CachingAllocator(conf=conf))
        points.append(
            PredictedPoint(
                size=size,
                peak_allocated_bytes=uncapped.peak_allocated_bytes,
                peak_reserved_bytes=uncapped.peak_reserved_bytes,
                breakdown=uncapped.breakdown,
                peak_phase=uncapped.peak_phase,
            )
        )
    failure = replays[refused].failure if refused is not None else None
    return Prediction(
        max_batch=largest,
        peak_bytes_at_max=None if largest is None else replays[largest].peak_reserved_bytes,
        points=tuple(points),
        failure=None if failure is None or refused is None else _failure(refused, failure),
    )


def predict_host(affine: AffineTrace, *, budget_bytes: int, cap: int, floor: int = 1, step: int = 1) -> Prediction:
    """The same for training on the CPU, as a first guess: the most bytes alive at once, each rounded up to 64.

    Nothing is known here of the host's own allocator, of what its kernels use as scratch (convolutions do), or of the
    differences between the step's CPU and CUDA operators, of which the trace has the latter.  Workspaces that are
    CUDA's own are left out.
    """
    points: dict[int, PredictedPoint] = {}

    def fits(size: int) -> bool:
        points[size] = _host_point(affine.at(size))
        return points[size].peak_allocated_bytes <= budget_bytes

    largest, refused = _boundary(fits, floor=floor, cap=cap, step=step)
    sizes = curve_sizes(floor=floor, cap=cap, step=step, largest=largest, refused=refused)
    return Prediction(
        max_batch=largest,
        peak_bytes_at_max=None if largest is None else points[largest].peak_allocated_bytes,
        points=tuple(points.get(size) or _host_point(affine.at(size)) for size in sizes),
        failure=None,
        method="live bytes",
    )


def curve_sizes(*, floor: int, cap: int, step: int, largest: int | None, refused: int | None) -> tuple[int, ...]:
    """The sizes a curve is drawn through: doubling from the floor, then both sides of the boundary."""
    end = refused if refused is not None else cap
    sizes = {size for size in (largest, refused) if size is not None}
    size = floor
    while size <= end:
        sizes.add(size)
        size = floor + max(step, -(-(2 * size - floor) // step) * step)
    return tuple(sorted(sizes))


def _boundary(fits: Callable[[int], bool], *, floor: int, cap: int, step: int) -> tuple[int | None, int | None]:
    """Return (a size that fits, the next one, which does not); None for the side that is outside the range.

    All of 1, 2, 4, ... steps are tried, because a small size may fail where a larger one fits: below 10 MiB a request
    takes a segment of 20 MiB, above it takes no more than it needs.
    """
    if not 1 <= floor <= cap or step < 1:
        raise ValueError(f"no sizes from {floor} to {cap} in steps of {step}")
    last = (cap - floor) // step
    doubling = [0, *(1 << power for power in range(last.bit_length())), last]
    fitting = [index for index in doubling if fits(floor + index * step)]
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


def _host_point(trace: Trace) -> PredictedPoint:
    kinds = [trace.labels[label].kind for label in trace.labels_of]
    held = [
        0 if kind == "workspace" else -(-size // _HOST_ALIGNMENT_BYTES) * _HOST_ALIGNMENT_BYTES
        for size, kind in zip(trace.sizes, kinds, strict=True)
    ]
    at_peak, _, event = replayed_breakdowns(trace.events, held, kinds)
    return PredictedPoint(
        size=trace.batch_size,
        peak_allocated_bytes=at_peak.total_bytes,
        peak_reserved_bytes=at_peak.total_bytes,
        breakdown=at_peak,
        peak_phase=trace.phase_at(event)[0],
    )


def _failure(size: int, failure: ReplayFailure) -> PredictedFailure:
    return PredictedFailure(
        size=size,
        operator=failure.label.operator,
        module=failure.label.module,
        phase=failure.label.phase,
        step=failure.step,
        requested_bytes=failure.requested_bytes,
        free_bytes=failure.free_bytes,
    )

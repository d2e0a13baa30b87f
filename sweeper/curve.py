"""What measured peaks say: the memory law, the batch it would reach, the batch at a given peak, and the knee.

The peak of a training step is very nearly ``fixed + per_sample * size``: weights, gradients and optimizer state do not
grow with the batch, and every activation is affine in it.  Two things bend the line.

*The floor.*  The peak is the highest of several moments, and one of them, the optimizer step with its temporaries,
does not depend on the batch at all.  While the activations are small that moment is the peak, so the smallest sizes
can lie on a level: ``peak = max(floor, line)``.  ``fit_law`` looks for the level and fits the line above it.

*The allocator.*  Allocated bytes are exact but for the rounding of each block.  Reserved bytes come in segments of
2 MiB and more and depend on which cached segment happened to fit; near the capacity they say nothing, because the
allocator gives its cache back before it fails.  So the line is drawn through allocated bytes (on the cpu, resident
ones), and fragments make memory run out somewhat before that line reaches the capacity.

What is not known here: how much before, and so whether a size that was not measured fits.  ``search`` uses these
numbers to choose what to run, never to answer.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["LimitEstimate", "MemoryLaw", "estimate_limit", "fit_law", "knee", "size_at_peak"]

# A level of small sizes is believed only if it leaves less than this share of the squared error of the plain line...
_LEVEL_ERROR_SHARE = 0.25
# ...and only if the plain line is off by more than this share of a peak somewhere: below that, it is the allocator.
_LEVEL_WORST_ERROR = 0.01
_LINE_POINTS = 2  # so a line above a level may rest on two sizes; ``points_used`` says so

# Two sizes closer than this ratio differ by little more than the allocator's noise: no slope is taken from them.
_NEAR_RATIO = 0.75
_CHECK_RATIO = 0.25  # sizes below this share of the largest do not say how straight the line is where it is used
_FARTHEST = 4  # no estimate beyond this many times the largest size measured, however flat the line


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLaw:
    """``peak = max(floor_bytes, fixed_bytes + per_sample_bytes * size)``, in bytes.

    ``floor_bytes`` is None where no level was seen.  ``r_squared`` is that of the line over the ``points_used`` sizes
    it was fitted on; ``worst_relative_error`` is the law's largest error over all measured sizes, as a share of the
    measured peak.
    """

    fixed_bytes: int
    per_sample_bytes: float
    r_squared: float
    worst_relative_error: float
    points_used: int
    floor_bytes: int | None = None

    def peak_bytes(self, size: int) -> int:
        """The law's peak at ``size``, in bytes."""
        return max(self.floor_bytes or 0, round(self.fixed_bytes + self.per_sample_bytes * size))

    def largest_size(self, capacity_bytes: int) -> int | None:
        """The largest size whose peak the law puts within ``capacity_bytes``; 0 when none.

        None when the law does not say: a line that does not rise puts no bound on the size.
        """
        if self.per_sample_bytes <= 0:
            return None
        if (self.floor_bytes or 0) > capacity_bytes:
            return 0
        size = max(0, int((capacity_bytes - self.fixed_bytes) / self.per_sample_bytes))
        # The division and ``peak_bytes`` round differently, so at the very edge they can be one apart.
        if size > 0 and self.peak_bytes(size) > capacity_bytes:
            return size - 1
        return size + 1 if self.peak_bytes(size + 1) <= capacity_bytes else size


def fit_law(measured: Iterable[tuple[int, int]]) -> MemoryLaw | None:
    """Fit the memory law to pairs of a size and its peak in bytes; None with fewer than two sizes.

    A size measured more than once counts with its largest peak.  Ordinary least squares; a level of small sizes is
    taken out of the line only when that explains all points far better than one line does.
    """
    points: dict[int, int] = {}
    for size, peak in measured:
        points[size] = max(peak, points.get(size, peak))
    sizes = sorted(points)
    if len(sizes) < 2:
        return None
    plain = _law(points, sizes, on_level=0)
    if plain.worst_relative_error <= _LEVEL_WORST_ERROR:
        return plain
    levelled = [_law(points, sizes, on_level=count) for count in range(1, len(sizes) - _LINE_POINTS + 1)]
    best = min(
        (law for law in levelled if law.per_sample_bytes > 0), key=lambda law: _error(law, points), default=plain
    )
    return best if _error(best, points) < _LEVEL_ERROR_SHARE * _error(plain, points) else plain


def _law(points: Mapping[int, int], sizes: list[int], *, on_level: int) -> MemoryLaw:
    """The law with the first ``on_level`` sizes on the level and the line through the others."""
    used = sizes[on_level:]
    peaks = [points[size] for size in used]
    slope, fixed = statistics.linear_regression(used, peaks)
    mean = statistics.fmean(peaks)
    spread = sum((peak - mean) ** 2 for peak in peaks)
    missed = sum((points[size] - fixed - slope * size) ** 2 for size in used)
    level = round(statistics.fmean(points[size] for size in sizes[:on_level])) if on_level else None
    line = MemoryLaw(
        fixed_bytes=round(fixed),
        per_sample_bytes=slope,
        r_squared=1.0 if spread == 0 else max(0.0, 1 - missed / spread),
        worst_relative_error=0.0,
        points_used=len(used),
        floor_bytes=level,
    )
    worst = max(abs(line.peak_bytes(size) - points[size]) / max(1, points[size]) for size in sizes)
    return MemoryLaw(
        fixed_bytes=line.fixed_bytes,
        per_sample_bytes=line.per_sample_bytes,
        r_squared=line.r_squared,
        worst_relative_error=worst,
        points_used=line.points_used,
        floor_bytes=level,
    )


def _error(law: MemoryLaw, points: Mapping[int, int]) -> int:
    return sum((law.peak_bytes(size) - peak) ** 2 for size, peak in points.items())


@dataclass(frozen=True, slots=True)
class LimitEstimate:
    """The largest ``size`` that a line through measured peaks lets fit, give or take ``doubt`` sizes."""

    size: int
    doubt: float


def estimate_limit(points: Mapping[int, int], capacity_bytes: int) -> LimitEstimate | None:
    """Extend the line through the largest measured peaks to ``capacity_bytes``; None when there is no rising line.

    The line passes through the largest size measured, where the boundary is closest, and through the largest size well
    below it.  Integers throughout, so peaks that are exactly affine give the boundary exactly.  ``doubt`` is how far
    the other measured sizes lie off the line, carried on to where it is used.
    """
    sizes = sorted(points)
    if len(sizes) < 2:
        return None
    far = sizes[-1]
    near = next((size for size in reversed(sizes) if size <= _NEAR_RATIO * far), sizes[0])
    run, rise = far - near, points[far] - points[near]
    if rise <= 0:
        return None
    size = min(far + (capacity_bytes - points[far]) * run // rise, _FARTHEST * far)
    missed = max(abs((points[far] - points[s]) * run - (far - s) * rise) for s in sizes if s >= _CHECK_RATIO * far)
    return LimitEstimate(size=size, doubt=missed / rise * (1 + max(0, size - far) / run))


def size_at_peak(points: Mapping[int, int], target_bytes: int) -> int:
    """The largest size whose peak, on the straight lines between the measured ones, is within ``target_bytes``.

    Below the smallest size measured the line goes through the origin, which flatters small sizes: what does not
    depend on the batch is left out.  At most the largest size measured.
    """
    through = {0: 0, **points}
    low = max(size for size, peak in through.items() if peak <= target_bytes)
    high = min((size for size in through if size > low), default=None)
    if high is None:
        return low
    return low + (target_bytes - through[low]) * (high - low) // (through[high] - through[low])


def knee(samples_per_second: Mapping[int, float], *, within: float = 0.05) -> int | None:
    """The smallest size whose speed is within ``within`` (a share) of the best measured; None when none was measured.

    A larger batch than this costs memory and buys next to no speed.
    """
    if not samples_per_second:
        return None
    enough = (1 - within) * max(samples_per_second.values())
    return min(size for size, speed in samples_per_second.items() if speed >= enough)

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

*The square.*  That is along the batch.  Along the side of an image, or the length of a sequence where attention holds
its scores, the peak also grows with the square of the size, and the law has that term where a line misses the peaks.

What is not known here: how much before, and so whether a size that was not measured fits.  ``search`` uses these
numbers to choose what to run, never to answer.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

__all__ = ["LimitEstimate", "MemoryLaw", "estimate_limit", "fit_law", "knee", "size_at_peak"]

# A level of small sizes is believed only if it leaves less than this share of the squared error of the plain line...
_LEVEL_ERROR_SHARE = 0.25
# ...and only if the plain line is off by more than this share of a peak somewhere: below that, it is the allocator.
_LEVEL_WORST_ERROR = 0.01
_LINE_POINTS = 2  # so a line above a level may rest on two sizes; ``points_used`` says so
_SQUARE_POINTS = 3
_SQUARE_SHARE = 0.1  # of the growth up to the largest size: a smaller square is what the small sizes left over
_BENT_SHARE = 0.01  # of a peak: what a line may miss it by, as above, before the peaks are called bent

# Two sizes closer than this ratio differ by little more than the allocator's noise: no slope is taken from them.
_NEAR_RATIO = 0.75
_CHECK_RATIO = 0.25  # sizes below this share of the largest do not say how straight the line is where it is used
_FARTHEST = 4  # no estimate beyond this many times the largest size measured, however flat the line


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLaw:
    """``peak = max(floor_bytes, fixed_bytes + per_sample_bytes * size + per_square_bytes * size**2)``, in bytes.

    ``floor_bytes`` is None where no level was seen, ``per_square_bytes`` 0 where a line says enough.  ``r_squared`` is
    that of the curve over the ``points_used`` sizes it was fitted on; ``worst_relative_error`` is the law's largest
    error over all measured sizes, as a share of the measured peak.
    """

    fixed_bytes: int
    per_sample_bytes: float
    r_squared: float
    worst_relative_error: float
    points_used: int
    floor_bytes: int | None = None
    per_square_bytes: float = 0.0

    def peak_bytes(self, size: int) -> int:
        """The law's peak at ``size``, in bytes."""
        grown = self.per_sample_bytes * size + self.per_square_bytes * size * size
        return max(self.floor_bytes or 0, round(self.fixed_bytes + grown))

    def largest_size(self, capacity_bytes: int) -> int | None:
        """The largest size whose peak the law puts within ``capacity_bytes``; 0 when none.

        None when the law does not say: a line that does not rise puts no bound on the size.
        """
        if self.per_square_bytes == 0 and self.per_sample_bytes <= 0:
            return None
        if (self.floor_bytes or 0) > capacity_bytes:
            return 0
        size = self._where(capacity_bytes)
        # The root and ``peak_bytes`` round differently, so at the very edge they can be one apart.
        if size > 0 and self.peak_bytes(size) > capacity_bytes:
            return size - 1
        return size + 1 if self.peak_bytes(size + 1) <= capacity_bytes else size

    def _where(self, capacity_bytes: int) -> int:
        """Where the rising curve reaches ``capacity_bytes``, rounded down; 0 where it is above from the start."""
        left = capacity_bytes - self.fixed_bytes
        if self.per_square_bytes == 0:
            return max(0, int(left / self.per_sample_bytes))
        inside = self.per_sample_bytes**2 + 4 * self.per_square_bytes * left
        return (
            max(0, int((math.sqrt(inside) - self.per_sample_bytes) / (2 * self.per_square_bytes))) if inside > 0 else 0
        )


def fit_law(measured: Iterable[tuple[int, int]], *, curved: bool = False) -> MemoryLaw | None:
    """Fit the memory law to pairs of a size and its peak in bytes; None with fewer than two sizes.

    A size measured more than once counts with its largest peak.  Ordinary least squares, and the plainest law that
    does: one line, where it is within 1 % of every peak.  Else a level of small sizes is taken out of the line, and
    where the law may be ``curved`` a square is added to it, each only when that leaves less than a quarter of the
    squared error of what is plainer; a square must be a tenth of the growth as well.  So growth with the square is said
    of three sizes or more, of four above a level, and never of peaks that a line explains.
    """
    points: dict[int, int] = {}
    for size, peak in measured:
        points[size] = max(peak, points.get(size, peak))
    sizes = sorted(points)
    if len(sizes) < 2:
        return None
    best = _law(points, sizes, on_level=0)
    if best.worst_relative_error <= _LEVEL_WORST_ERROR:
        return best
    for square in (False, True) if curved else (False,):
        if square and len(sizes) < _SQUARE_POINTS:
            break
        # Above a level a curve must pass through one size more than it needs, or it proves nothing beside a square.
        above = _SQUARE_POINTS + 1 if square else _LINE_POINTS + curved
        levels = range(max(1, len(sizes) - above + 1))
        laws = [_law(points, sizes, on_level=count, square=square) for count in levels]
        if square:
            laws = [law for law in laws if _square_share(law, sizes[-1]) >= _SQUARE_SHARE]
        rising = [law for law in laws if square or law.per_sample_bytes > 0]
        other = min(rising, key=lambda law: _error(law, points), default=best)
        if _error(other, points) < _LEVEL_ERROR_SHARE * _error(best, points):
            best = other
    return best


def _square_share(law: MemoryLaw, size: int) -> float:
    """The square's share of what ``size`` adds to the fixed bytes; 0 of a law that bends down."""
    squared = law.per_square_bytes * size * size
    grown = law.per_sample_bytes * size + squared
    return squared / grown if squared > 0 and grown > 0 else 0.0


def _law(points: Mapping[int, int], sizes: list[int], *, on_level: int, square: bool = False) -> MemoryLaw:
    """The law with the first ``on_level`` sizes on the level and the line, or ``square``, through the others."""
    used = sizes[on_level:]
    peaks = [points[size] for size in used]
    fixed, slope, bend = _square_through(used, peaks) if square else (*_line_through(used, peaks), 0.0)
    mean = statistics.fmean(peaks)
    spread = sum((peak - mean) ** 2 for peak in peaks)
    missed = sum((points[size] - fixed - slope * size - bend * size * size) ** 2 for size in used)
    law = MemoryLaw(
        fixed_bytes=round(fixed),
        per_sample_bytes=slope,
        r_squared=1.0 if spread == 0 else max(0.0, 1 - missed / spread),
        worst_relative_error=0.0,
        points_used=len(used),
        floor_bytes=round(statistics.fmean(points[size] for size in sizes[:on_level])) if on_level else None,
        per_square_bytes=bend,
    )
    worst = max(abs(law.peak_bytes(size) - points[size]) / max(1, points[size]) for size in sizes)
    return replace(law, worst_relative_error=worst)


def _line_through(sizes: Sequence[int], peaks: Sequence[int]) -> tuple[float, float]:
    slope, fixed = statistics.linear_regression(sizes, peaks)
    return fixed, slope


def _square_through(sizes: Sequence[int], peaks: Sequence[int]) -> tuple[float, float, float]:
    """The coefficients of 1, size and size**2 that leave the least squared error; three sizes or more.

    The normal equations by Cramer's rule, in whole numbers: sizes to the fourth power lose digits as floats.
    """
    powers = [sum(size**power for size in sizes) for power in range(5)]
    right = [sum(peak * size**power for size, peak in zip(sizes, peaks, strict=True)) for power in range(3)]
    rows = [powers[row : row + 3] for row in range(3)]
    below = _determinant(rows)

    def coefficient(column: int) -> float:
        replaced = [[*row[:column], value, *row[column + 1 :]] for row, value in zip(rows, right, strict=True)]
        return _determinant(replaced) / below

    return coefficient(0), coefficient(1), coefficient(2)


def _determinant(rows: Sequence[Sequence[int]]) -> int:
    (a, b, c), (d, e, f), (g, h, i) = rows
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def _error(law: MemoryLaw, points: Mapping[int, int]) -> int:
    return sum((law.peak_bytes(size) - peak) ** 2 for size, peak in points.items())


@dataclass(frozen=True, slots=True)
class LimitEstimate:
    """The largest ``size`` that a line through measured peaks lets fit, give or take ``doubt`` sizes."""

    size: int
    doubt: float


def estimate_limit(points: Mapping[int, int], capacity_bytes: int, *, curved: bool = False) -> LimitEstimate | None:
    """Extend the line through the largest measured peaks to ``capacity_bytes``; None when there is no rising line.

    The line passes through the largest size measured, where the boundary is closest, and through the largest size well
    below it.  Integers throughout, so peaks that are exactly affine give the boundary exactly.  ``doubt`` is how far
    the other measured sizes lie off the line, carried on to where it is used.  Where peaks may be ``curved`` and bend
    upwards, a parabola through one size more takes the line's place.
    """
    sizes = sorted(points)
    if len(sizes) < 2:
        return None
    far = sizes[-1]
    near = next((size for size in reversed(sizes) if size <= _NEAR_RATIO * far), sizes[0])
    run, rise = far - near, points[far] - points[near]
    if rise <= 0:
        return None
    if curved and (bent := _bent_limit(points, far, near, capacity_bytes)) is not None:
        return bent
    size = min(far + (capacity_bytes - points[far]) * run // rise, _FARTHEST * far)
    missed = max(abs((points[far] - points[s]) * run - (far - s) * rise) for s in sizes if s >= _CHECK_RATIO * far)
    return LimitEstimate(size=size, doubt=missed / rise * (1 + max(0, size - far) / run))


def _bent_limit(points: Mapping[int, int], far: int, near: int, capacity_bytes: int) -> LimitEstimate | None:
    """The same by the parabola through ``far``, ``near`` and the largest size well below; None where none bends up.

    Newton's divided differences: ``peak = points[far] + slope * (size - far) + bend * (size - far) * (size - near)``.
    """
    third = next((size for size in sorted(points, reverse=True) if size <= _NEAR_RATIO * near), None)
    if third is None:
        return None
    slope = (points[far] - points[near]) / (far - near)
    bend = (slope - (points[near] - points[third]) / (near - third)) / (far - third)
    missed_bytes = bend * (far - third) * (near - third)  # by the line, at the third
    if bend <= 0 or missed_bytes <= _BENT_SHARE * points[third]:
        return None
    # In steps d above ``far``: bend * d**2 + (slope + bend * (far - near)) * d = what is left.
    left, steep = capacity_bytes - points[far], slope + bend * (far - near)
    inside = steep * steep + 4 * bend * left
    size = far + math.floor((math.sqrt(inside) - steep) / (2 * bend)) if inside > 0 else third
    size = min(size, _FARTHEST * far)
    off_bytes = max(
        abs(points[far] + (s - far) * (slope + bend * (s - near)) - points[s])
        for s in points
        if s >= _CHECK_RATIO * far
    )
    there = steep + 2 * bend * max(0, size - far)  # bytes a size where the limit is, at least as at ``far``
    return LimitEstimate(size=size, doubt=off_bytes / there * (1 + max(0, size - far) / (far - near)))


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

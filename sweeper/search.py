"""Which size to run next, and what the sizes run so far prove.

Theory of operation.  A search is a frozen value: bounds, what is wished, and the probes so far.  Everything else is
derived from the probes: there is no clock, process or log here, ``after`` returns a new value, and to resume is to
replay.  ``next_size`` goes through three phases; None means that nothing is left to learn.

1. *curve*: at most ``points`` sizes in geometric progression from the floor, smallest first, so that the first trials
   are cheap and the plot and the memory law have points.  With a prediction they are the last powers of two (times the
   floor) up to 90 % of it, and half as much again where that is still below; without one they are spread over
   everything up to the cap.  A failure ends the phase, and so does a line through three measured peaks that says the
   next size is past the capacity.

2. *boundary*: a pair is looked for, ``low`` fitted and ``high`` failed, with nothing between.  Two voices say where.
   The *line* through the measured peaks is sure of the bytes but not of where they run out: real allocators fail when
   the allocated peak is somewhere between 85 and 100 % of the capacity.  The *prediction* models the allocator, so
   where the line does not grossly contradict it, its own pair is run first, beginning with the side that the line
   would have otherwise.  Beside the two there is everything around them, ever less likely.  ``belief`` adds all this
   up and the size run is the one that cuts it in half, among the sizes still between ``low`` and ``high``.  The two
   ends also say between which shares of the capacity memory ran out; where peaks are affine that is the same
   statement, so nothing else is drawn from it.  While nothing has failed the cut lies a little higher, where a failure
   is more likely than a fit, because a failure closes the interval.

   The bound is not a matter of luck.  To bisect n sizes takes log2(n) + 1 trials, rounded down; the budget is one more
   than that, and a size is run only if after the worse of its two answers the budget still covers bisection; else the
   nearest size for which that holds is.  So this phase runs at most 2 + log2(sizes) distinct sizes, whatever the peaks
   and the prediction say.  A fit far below the cap leaves nearly everything to bisect: where the budget has no room
   for such a surprise, the size that should fail keeps well clear of the estimates.  Only a *reversal*, a failure at or
   below a size that had fitted, goes past the bound: what was known is no longer true, and the interval starts again
   from the largest size that fitted below the failure.  When the budget is used up it is bisected, log2(sizes) + 1
   trials a reversal.

3. *confirm*: the largest size that fitted is run until it has fitted ``confirm`` times.  Doubt moves the answer down:
   one failure there, or anywhere below, and the boundary is looked for below the failure.

How few trials can do.  A trial is one bit.  An exact prediction takes two (three where the bound makes the first keep
clear), an exact line two or three; an estimate that may be off by d sizes either way takes about log2(2 d) more, and no
rule can do with less.

What it does not know: memory need not grow steadily with the size.  Sizes between two that fitted are not all run,
and one of them may fail (seen in the field: 16 fails, 32 runs).  The answer is then the largest size *run* without a
failure at or below it *among those run*; ``not_monotone`` says when such a thing was seen.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from sweeper.belief import Belief, Estimates
from sweeper.curve import estimate_limit
from sweeper.probes import Probe, Probed

__all__ = ["Listed", "Probe", "Purpose", "Search"]

Purpose = Literal["curve", "boundary", "confirm", "listed"]

_CURVE_SHARE = 0.9  # of the prediction: a curve point must fit although the prediction may be some percent too high
_CURVE_TRUSTED_POINTS = 3  # measured before the line may end the curve
_CORRECTING_POINTS = 4  # measured before the line may correct the prediction
_SAME_SHARE = 0.005  # of the prediction: a correction that is smaller is the line's own error

_OPEN_SHARE = 0.6  # while nothing has failed a failure is worth more than a fit: it closes the interval


@dataclass(frozen=True, kw_only=True)
class Search(Probed):
    """The search for the largest size from ``floor`` to ``cap`` that fits, on the grid ``floor + k * step``.

    ``predicted_max`` is the largest size expected to fit, ``predicted_peak_bytes`` its expected peak, and
    ``capacity_bytes`` what the device can give a trial, and ``curved`` is whether peaks may grow with the square of
    the size: they only choose what is run.  Raises ``ValueError`` for values out of range.
    """

    cap: int
    floor: int = 1
    step: int = 1
    points: int = 6
    predicted_max: int | None = None
    predicted_peak_bytes: int | None = None
    curved: bool = False

    def __post_init__(self) -> None:
        if self.floor < 1 or self.step < 1 or self.points < 1:
            raise ValueError("floor, step and points must be 1 or more")
        if self.cap < self.floor:
            raise ValueError(f"the cap {self.cap} is below the floor {self.floor}")
        super().__post_init__()

    def _check(self, size: int) -> None:
        if not self.floor <= size <= self.cap:
            raise ValueError(f"size {size} is outside {self.floor}..{self.cap}")
        if (size - self.floor) % self.step:
            raise ValueError(f"size {size} is not {self.floor} and a multiple of {self.step}")

    @property
    def top(self) -> int:
        """The largest size on the grid."""
        return _on_grid(self.cap, self.floor, self.step)

    @property
    def curve_sizes(self) -> tuple[int, ...]:
        """The sizes of the curve phase, ascending; a failure or the line may end it before the last."""
        return _curve_sizes(self.floor, self.top, self.step, self.points, self.predicted_max)

    @property
    def trial_bound(self) -> int:
        """The most distinct sizes the boundary phase runs without a reversal: 2 + log2 of the number of sizes."""
        return 1 + ((self.top - self.floor) // self.step + 1).bit_length()

    def next_size(self) -> int | None:
        """The size to run next, or None when there is nothing left to learn."""
        return None if self._next is None else self._next[0]

    @property
    def purpose(self) -> Purpose:
        """What the next size is for.  Raises ``ValueError`` when there is none."""
        return _asked(self._next)[1]

    @property
    def proven(self) -> bool:
        """Whether both sides of the answer were run: the next size failed, or is past the cap.

        Of the answer None: whether the floor failed.
        """
        answer, failed = self.answer, self.tally.failed
        if answer is None:
            return self.floor in failed
        return answer == self.top or answer + self.step in failed

    @cached_property
    def _next(self) -> tuple[int, Purpose] | None:
        low, high = self.tally.low, self.tally.high
        if (size := self._next_on_curve()) is not None:
            return size, "curve"
        below = self.floor - self.step if low is None else low
        above = self.top + self.step if high is None else high
        if above - below > self.step:
            size = self._between(below, above)
            return size, "curve" if size in self.curve_sizes else "boundary"
        if low is None:
            return None
        return (low, "confirm") if self.tally.fits[low] < self.confirm else None

    def _next_on_curve(self) -> int | None:
        tally = self.tally
        size = next((size for size in self.curve_sizes if tally.low is None or size > tally.low), None)
        if size is None or (tally.high is not None and size >= tally.high):
            return None
        line = self._estimates.line
        if line is not None and len(tally.measured) >= _CURVE_TRUSTED_POINTS and line.size + line.doubt < size:
            return None
        return size

    def _between(self, low: int, high: int) -> int:
        """A size strictly between ``low`` and ``high``, each a run or one step outside the bounds."""
        most = self.step << max(0, self._left - 1)  # of an interval that can still be bisected after one more trial
        least, greatest = max(low + self.step, high - most), min(high - self.step, low + most)
        if least > greatest:
            return low + (high - low) // self.step // 2 * self.step
        return min(max(self._wished(low, high), least), greatest)

    def _wished(self, low: int, high: int) -> int:
        """The size that would tell the most, were there no bound."""
        belief, closed = self._belief, high <= self.top
        if belief is None:
            return low + (high - low) // self.step // 2 * self.step if closed else self._down(2 * low)
        size = belief.cut(low, high, step=self.step, failing=0.5 if closed else _OPEN_SHARE, closed=closed)
        if not closed and self._left - 1 <= _bisections(size, high, self.step):
            # A fit would leave no choice but to bisect up to the cap.
            return max(size, self._clear)
        return size

    @cached_property
    def _estimates(self) -> Estimates:
        predicted = None if self._predicted is None else self._down(self._predicted)
        found = Estimates.of(self.tally.measured, self.capacity_bytes, predicted, curved=self.curved)
        if found.line is None:
            return found
        # The line ends between two sizes of the grid, and the lower one fits.
        return replace(found, line=replace(found.line, size=self._down(found.line.size)))

    @property
    def _predicted(self) -> int | None:
        """The prediction, corrected by what was measured.

        A prediction that is some percent off in bytes still knows how full the device is when memory runs out: its
        own peak at its own boundary.  The line through the measured peaks says which size comes to that.
        """
        measured = self.tally.measured
        if self.predicted_max is None or self.predicted_peak_bytes is None or len(measured) < _CORRECTING_POINTS:
            return self.predicted_max
        line = estimate_limit(measured, self.predicted_peak_bytes, curved=self.curved)
        if line is None or abs(line.size - self.predicted_max) <= max(self.step, _SAME_SHARE * self.predicted_max):
            return self.predicted_max
        return max(self.floor, line.size)

    @cached_property
    def _belief(self) -> Belief | None:
        return self._estimates.belief(self.top)

    @property
    def _clear(self) -> int:
        """A size that almost surely fails, by all that is believed."""
        guess, doubt = self._estimates.clear
        return self._down(guess) + self.step - int(-doubt // self.step) * self.step

    def _down(self, size: int) -> int:
        return _on_grid(size, self.floor, self.step)

    @cached_property
    def _spent(self) -> int:
        """Distinct sizes run beyond the curve's."""
        return len((self.tally.fits.keys() | self.tally.failed) - set(self.curve_sizes))

    @property
    def _left(self) -> int:
        """Distinct sizes that may still be run within the bound."""
        return self.trial_bound - self._spent


@dataclass(frozen=True, kw_only=True)
class Listed(Probed):
    """The sizes a person named, smallest first, until one does not fit; with the verbs of ``Search``.

    Nothing else is run, so the answer is the largest of the list that fits, and is proven only when the size right
    above it was on the list and failed.  Raises ``ValueError`` for an empty list or a size below 1.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError("the list of sizes must have at least one, each 1 or more")
        object.__setattr__(self, "sizes", tuple(sorted(set(self.sizes))))
        super().__post_init__()

    def _check(self, size: int) -> None:
        if size not in self.sizes:
            raise ValueError(f"size {size} is not on the list {', '.join(map(str, self.sizes))}")

    def next_size(self) -> int | None:
        """The size to run next, or None when the list is at its end or a size has failed."""
        return None if self._next is None else self._next[0]

    @property
    def purpose(self) -> Purpose:
        """What the next size is for.  Raises ``ValueError`` when there is none."""
        return _asked(self._next)[1]

    @cached_property
    def _next(self) -> tuple[int, Purpose] | None:
        low, high = self.tally.low, self.tally.high
        untried = next((size for size in self.sizes if size not in self.tally.fits), None)
        if untried is not None and (high is None or untried < high):
            return untried, "listed"
        return (low, "confirm") if low is not None and self.tally.fits[low] < self.confirm else None

    @property
    def not_tried(self) -> tuple[int, ...]:
        """The sizes of the list that were not run."""
        return tuple(size for size in self.sizes if size not in self.tally.fits and size not in self.tally.failed)

    @property
    def proven(self) -> bool:
        """Whether the size right above the answer failed; for None, whether 1 did."""
        return (self.answer or 0) + 1 in self.tally.failed


def _asked(move: tuple[int, Purpose] | None) -> tuple[int, Purpose]:
    if move is None:
        raise ValueError("nothing is left to run, so it has no purpose")
    return move


def _on_grid(size: int, floor: int, step: int) -> int:
    """The largest size on the grid that is at most ``size``; below the floor when ``size`` is."""
    return floor + (size - floor) // step * step


def _bisections(low: int, high: int, step: int) -> int:
    """Trials to bisect what lies strictly between ``low`` and ``high``."""
    return ((high - low) // step - 1).bit_length()


@lru_cache(maxsize=256)
def _curve_sizes(floor: int, top: int, step: int, points: int, predicted_max: int | None) -> tuple[int, ...]:
    doublings = [floor]
    while 2 * doublings[-1] <= top:
        doublings.append(2 * doublings[-1])
    sizes = sorted({_on_grid(size, floor, step) for size in doublings})
    if predicted_max is None:
        return tuple(sizes[:: max(1, -(-(len(sizes) - 1) // points))][:points])
    highest = min(top, _CURVE_SHARE * predicted_max)
    sizes = [size for size in sizes if size <= highest] or [floor]
    # Half as much again, where it still fits: the closer the last point, the better the line.
    last = _on_grid(sizes[-1] * 3 // 2, floor, step)
    return tuple([*sizes, last] if sizes[-1] < last <= highest else sizes)[-points:]

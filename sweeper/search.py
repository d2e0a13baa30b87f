"""Which size to run next, and what the sizes run so far prove.

Theory of operation.  A search is a frozen value: bounds, what is wished, and the probes so far.  Everything else is
derived from the probes: there is no clock, process or log here, ``after`` returns a new value, and to resume is to
replay.  ``next_size`` goes through four phases; None means that nothing is left to learn.

1. *curve*: at most ``points`` sizes in geometric progression from the floor, smallest first, so that the first trials
   are cheap and the plot and the memory law have points.  With a prediction they are the last powers of two (times the
   floor) up to 90 % of it, and half as much again where that is still below; without one they are spread over
   everything up to the cap.  A failure ends the phase, and so does a line through three measured peaks that says the
   next size is past the capacity.

2. *boundary*: a pair is looked for, ``low`` fitted and ``high`` failed, with nothing between.  The *guess* says where:
   it is the prediction as long as no run and no measured peak contradicts it, else the line through the measured
   peaks.  While nothing has failed, the size run is just above the guess: it should fail, and a failure closes the
   interval.  Inside a closed interval the size run is the guess itself, or one *reach* away from the end that the guess
   has come to lie on.  The reach is the doubt about the line, and from the fourth trial on it is multiplied by four
   with every trial, until it covers the interval: then the interval is bisected.  Each peak measured close to the
   boundary corrects the line, so with affine peaks two or three trials find the pair.

   The bound is not a matter of luck.  To bisect n sizes takes log2(n) + 1 trials, rounded down; the budget is one more
   than that, and a guess is run only if after the worse of its two answers the budget still covers bisection.  So this
   phase runs at most 2 + log2(sizes) distinct sizes, whatever the peaks and the prediction say.  That is why the size
   that should fail goes first, and keeps well clear of the guess when there is budget for one surprise only: a fit
   far below the cap leaves nearly everything to bisect.  Only a *reversal*, a failure at or below a size that had
   fitted, goes past the bound: what was known is no longer true, and the interval starts again from the largest size
   that fitted below the failure.  When the budget is used up it is bisected, log2(sizes) + 1 trials a reversal.

3. *confirm*: the largest size that fitted is run until it has fitted ``confirm`` times.  Doubt moves the answer down:
   one failure there, or anywhere below, and the boundary is looked for below the failure.

4. *recommended*: a size that was run, fitted, and whose measured peak leaves ``margin`` of the capacity free; a
   multiple of ``round_to`` if that is given.  The largest run already that does is good enough when interpolation
   between the measured peaks promises no more than 1 % above it; otherwise at most three sizes are run for it.

What it does not know: memory need not grow steadily with the size.  Sizes between ``low`` and the guess are not run,
and one of them may fail (seen in the field: 16 fails, 32 runs).  The answer is then the largest size *run* without a
failure at or below it *among those run*; ``not_monotone`` says when such a thing was seen.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd
from typing import Literal

from sweeper.curve import LimitEstimate, estimate_limit, size_at_peak
from sweeper.probes import Probe, Probed

__all__ = ["Listed", "Probe", "Purpose", "Search"]

Purpose = Literal["curve", "boundary", "confirm", "recommended", "listed"]

# Chosen by counting trials over many laws of the peak (straight, in steps, noisy, biased); scripts/count_trials.py.
_CURVE_SHARE = 0.9  # of the prediction: a curve point must fit although the prediction may be some percent too high
_CURVE_TRUSTED_POINTS = 3  # measured before the line may end the curve
_CLEAR_SHARE = 0.08  # of the guess: how far above it a size almost surely fails
_FREE_TRIALS = 3  # from the fourth trial on, each one multiplies the reach...
_REACH_DOUBLINGS = 2  # ...by four
_RECOMMENDED_TRIALS = 3
_WORTH_SHARE = 0.01  # of the answer: a recommended size that gains no more is not run


@dataclass(frozen=True, kw_only=True)
class Search(Probed):
    """The search for the largest size from ``floor`` to ``cap`` that fits, on the grid ``floor + k * step``.

    ``predicted_max`` is the largest size expected to fit, ``capacity_bytes`` what the device can give a trial: both
    only choose what is run.  ``margin`` is a share of the capacity.  Raises ``ValueError`` for values out of range.
    """

    cap: int
    floor: int = 1
    step: int = 1
    points: int = 6
    predicted_max: int | None = None

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
        if self.tally.fits[low] < self.confirm:
            return low, "confirm"
        if (size := self._next_recommended(low)) is not None:
            return size, "recommended"
        return None

    def _next_on_curve(self) -> int | None:
        tally = self.tally
        size = next((size for size in self.curve_sizes if tally.low is None or size > tally.low), None)
        if size is None or (tally.high is not None and size >= tally.high):
            return None
        line = self._line
        if line is not None and len(tally.measured) >= _CURVE_TRUSTED_POINTS and line.size + line.doubt < size:
            return None
        return size

    @cached_property
    def _line(self) -> LimitEstimate | None:
        return self._line_through(self.tally.measured)

    def _line_through(self, sizes: Iterable[int]) -> LimitEstimate | None:
        if self.capacity_bytes is None:
            return None
        measured = self.tally.measured
        return estimate_limit({size: measured[size] for size in sizes if size in measured}, self.capacity_bytes)

    def _between(self, low: int, high: int) -> int:
        """A size strictly between ``low`` and ``high``, each a run or one step outside the bounds."""
        size = self._above(low) if high > self.top else self._inside(low, high)
        if size is not None and max(_bisections(low, size, self.step), _bisections(size, high, self.step)) < self._left:
            return size
        return low + (high - low) // self.step // 2 * self.step

    def _above(self, low: int) -> int:
        """A size that should fail, when none has yet."""
        guess = self._guess(low, self.top + self.step)
        if guess is None:
            return min(max(self._down(2 * low), low + self.step), self.top)
        reach = self.step
        if self._left - _bisections(low, self.top + self.step, self.step) < 2:
            # There is budget for one more surprise at most: keep well clear of the guess.
            reach += self._up(max(2 * guess.doubt, _CLEAR_SHARE * guess.size))
        return min(max(self._down(guess.size), low) + reach, self.top)

    def _inside(self, low: int, high: int) -> int | None:
        """The guess, or as close as the reach allows; None when there is no guess, or the reach covers it all."""
        guess = self._guess(low, high)
        if guess is None:
            return None
        reach = max(self.step, self._up(guess.doubt)) << _REACH_DOUBLINGS * min(max(0, self._spent - _FREE_TRIALS), 16)
        if low + reach > high - reach:
            return None
        return min(max(self._down(guess.size), low + reach), high - reach)

    def _guess(self, low: int, high: int) -> LimitEstimate | None:
        """The largest size expected to fit.

        Where prediction and line disagree, measured peaks outweigh simulated ones; but once a run has shown the line
        of the curve to be wrong, the prediction has its turn.
        """
        line = self._line
        if self.predicted_max is None:
            return line
        predicted = min(self._down(self.predicted_max), self.top)
        if line is None:
            return LimitEstimate(predicted, doubt=0.0) if low <= predicted <= high else None
        if low <= predicted < high and self._curve_refuted(low, high):
            return LimitEstimate(predicted, line.doubt)
        agreed = abs(min(line.size, self.top) - predicted) <= line.doubt
        return LimitEstimate(predicted, line.doubt) if agreed and low < predicted < high else line

    def _curve_refuted(self, low: int, high: int) -> bool:
        """Whether a run contradicts the line through the curve's own points."""
        line = self._line_through(self.curve_sizes)
        return line is not None and not low - int(line.doubt) <= line.size < high + int(line.doubt)

    def _down(self, size: int) -> int:
        return _on_grid(size, self.floor, self.step)

    def _up(self, distance: float) -> int:
        return -(-int(distance) // self.step) * self.step

    @cached_property
    def _spent(self) -> int:
        """Distinct sizes run beyond the curve's."""
        return len((self.tally.fits.keys() | self.tally.failed) - set(self.curve_sizes))

    @property
    def _left(self) -> int:
        """Distinct sizes that may still be run within the bound."""
        return self.trial_bound - self._spent

    def _next_recommended(self, answer: int) -> int | None:
        aim = self._next_aim(answer)
        known = self.recommended
        if aim is None or aim in self.tally.fits:
            return None
        return aim if known is None or aim - known > max(self.step, _WORTH_SHARE * answer) else None

    def _next_aim(self, answer: int) -> int | None:
        """The largest size on the grid that should leave the margin, and more than the margin after each miss."""
        spent = self._spent_on_recommended(answer)
        if spent >= _RECOMMENDED_TRIALS:
            return None
        if self.margin == 0:
            return self._multiple_at_most(answer)
        if self.capacity_bytes is None or not self.tally.measured:
            return None
        target_bytes = max(0, int((1 - self.margin * (1 + spent / 2)) * self.capacity_bytes))
        return self._multiple_at_most(min(answer, size_at_peak(self.tally.measured, target_bytes)))

    def _multiple_at_most(self, size: int) -> int | None:
        unit = self.round_to or 1
        size = self._down(size)
        for candidate in range(size, max(self.floor, size - unit // gcd(unit, self.step) * self.step) - 1, -self.step):
            if candidate % unit == 0:
                return candidate
        return None

    def _spent_on_recommended(self, answer: int) -> int:
        """Distinct sizes first run after both sides of ``answer`` were."""
        seen: set[int] = set()
        fitted, open_above = 0, answer != self.top
        spent = 0
        for probe in self.probes:
            if fitted >= self.confirm and not open_above and probe.size not in seen:
                spent += 1
            seen.add(probe.size)
            fitted += probe.size == answer and probe.fits
            open_above = open_above and (probe.size != answer + self.step or probe.fits)
        return spent


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

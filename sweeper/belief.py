"""Where the boundary is believed to lie: how likely each size is to be the largest that fits.

The belief is a sum of a few shapes, each an estimate with its own way of being wrong.  A *spread* has a centre and
falls off with the logarithm of the distance, so that an error of one size and one of a hundred are both looked for in
few trials; with no width it is the centre and nothing else.  An *even* shape is the same everywhere between two ends,
and ``anywhere`` is even in the logarithm of the size: nothing is ruled out but by a run.

There are two voices.  The *line* through the measured peaks is sure of the bytes, but not of where they run out: a real
allocator fails when the allocated peak is somewhere between 85 and 100 % of the capacity.  The *prediction* models the
allocator, and stands one of four ways to the line: *alone* where there is no line; *believed* where it lies within
those shares; *doubted* where it promises more than the line lets fit; *contradicted* where it is off by more than that.

A trial that cuts the belief in half tells the most, and ``Belief.cut`` finds it.  Runs are not folded into the shapes:
what lies outside of the sizes still possible is simply not counted.

What it does not know: whether the weights are right.  A wrong belief costs trials, up to the bound that ``search``
keeps, and never the answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log1p
from typing import Literal

from sweeper.curve import LimitEstimate, estimate_limit

__all__ = ["Belief", "Estimates", "Shape", "Standing", "anywhere", "even", "spread"]

Standing = Literal["alone", "believed", "doubted", "contradicted"]

# Of the capacity: at what peak the boundary was seen to come.  Allocated bytes on cuda and sim reach 85 to 100 % (the
# rest is fragments and segments that were not split), resident bytes on cpu 93 to 107 % of a data limit.
_LOW, _HIGH = 0.85, 1.07

# Weights, by how the prediction stands to the line: of the predicted size itself and of the sizes around it; of the
# line's own size, of those below it and of those above.  Chosen, with the widths, by counting trials over many laws of
# the peak (straight, in steps, noisy, fragmented); scripts/count_trials.py.
_PREDICTED: dict[Standing, tuple[float, float]] = {
    "alone": (0.6, 0.3),
    "believed": (0.5, 0.2),
    "doubted": (0.15, 0.05),
    "contradicted": (0.05, 0.02),
}
_LINE: dict[Standing, tuple[float, float, float]] = {
    "alone": (0.5, 0.25, 0.15),
    "believed": (0.2, 0.05, 0.02),
    "doubted": (0.5, 0.2, 0.05),
    "contradicted": (0.6, 0.25, 0.05),
}
_ANYWHERE = 0.03
_POINT = 1e-3  # sizes: what is narrower is a point
_NEAR_WIDTH, _NEAR_REACH = 0.005, 0.05  # of the prediction
_DOUBT_REACH = 8  # times the line's doubt
_CLEAR_SHARE = 0.08  # of the one estimate there is: how far above it a size almost surely fails

Shape = Callable[[float], float]  # the share of the shape that lies below a size, from 0 to 1


def spread(center: float, *, width: float, reach: float) -> Shape:
    """Around ``center``: log-uniform in the distance, blunted within ``width`` of it, nothing beyond ``reach``."""

    def below(size: float) -> float:
        if min(width, reach) < _POINT:
            return float(size > center)
        share = min(1.0, log1p(abs(size - center) / width) / log1p(reach / width))
        return (1 + share) / 2 if size > center else (1 - share) / 2

    return below


def even(start: float, end: float) -> Shape:
    """Uniform from ``start`` to ``end``."""

    def below(size: float) -> float:
        return min(1.0, max(0.0, (size - start) / (end - start))) if end > start else float(size > start)

    return below


def anywhere(top: int) -> Shape:
    """Log-uniform from 0 to ``top``."""

    def below(size: float) -> float:
        return min(1.0, log1p(max(0.0, size)) / log1p(top))

    return below


@dataclass(frozen=True, slots=True)
class Belief:
    """Shapes with their weights; the weights need not add up to 1."""

    parts: tuple[tuple[float, Shape], ...]

    def below(self, size: float) -> float:
        """The weight of all boundaries below ``size``."""
        return sum(weight * shape(size) for weight, shape in self.parts)

    def cut(self, low: int, high: int, *, step: int, failing: float, closed: bool = True) -> int:
        """The size between ``low`` and ``high`` whose chance to fail is nearest to ``failing``; the larger of two.

        ``low`` fits and ``high`` does not, both on a grid of ``step`` with at least one size between them.  Where
        nothing at ``high`` was run (``closed`` is False), all that is believed of larger sizes counts as fitting.
        """
        least = self.below(low - step / 2)
        most = self.below(high - step / 2) if closed else sum(weight for weight, _ in self.parts)
        target = least + failing * (most - least)
        # The smallest size that is at least so likely to fail, by bisection over the grid.
        under, over = low, high
        while over - under > step:
            middle = under + (over - under) // step // 2 * step
            if self.below(middle - step / 2) >= target:
                over = middle
            else:
                under = middle
        return min(
            (size for size in (over, under) if low < size < high),
            key=lambda size: abs(self.below(size - step / 2) - target),
        )


@dataclass(frozen=True, slots=True)
class Estimates:
    """The two voices.  ``reached`` are the sizes between which the line says that memory usually runs out."""

    line: LimitEstimate | None
    reached: tuple[int, int]
    predicted: int | None

    @classmethod
    def of(
        cls,
        measured: Mapping[int, int],
        capacity_bytes: int | None,
        predicted: int | None,
        *,
        curved: bool = False,
    ) -> "Estimates":
        """From the peaks in bytes of sizes that fitted, what the device can give, and the predicted largest size.

        Peaks that may be ``curved`` are of another axis than the batch.
        """
        if capacity_bytes is None:
            return cls(None, (0, 0), predicted)
        low, line, high = (
            estimate_limit(measured, int(share * capacity_bytes), curved=curved) for share in (_LOW, 1, _HIGH)
        )
        if low is None or line is None or high is None:
            return cls(None, (0, 0), predicted)
        return cls(line, (low.size, high.size), predicted)

    @property
    def standing(self) -> Standing:
        """How the prediction stands to the line; ``"alone"`` when either is missing."""
        if self.line is None or self.predicted is None:
            return "alone"
        if not self.reached[0] <= self.predicted <= self.reached[1]:
            return "contradicted"
        return "doubted" if self.predicted > self.line.size + self.line.doubt else "believed"

    def belief(self, top: int) -> Belief | None:
        """Both voices and ``anywhere`` up to ``top`` in one; None when there is neither."""
        line, predicted, standing = self.line, self.predicted, self.standing
        if line is None and predicted is None:
            return None
        parts = [(_ANYWHERE, anywhere(top + 1))]
        if predicted is not None:
            exact, near = _PREDICTED[standing]
            parts.append((exact, spread(predicted, width=0, reach=0)))
            parts.append((near, spread(predicted, width=_NEAR_WIDTH * predicted, reach=_NEAR_REACH * predicted)))
        if line is not None:
            exact, usual, over = _LINE[standing]
            parts.append((exact, spread(line.size, width=line.doubt / 2, reach=_DOUBT_REACH * line.doubt)))
            parts.append((usual, even(self.reached[0], line.size)))
            parts.append((over, even(line.size, self.reached[1])))
        return Belief(tuple(parts))

    @property
    def clear(self) -> tuple[int, float]:
        """An estimate, and how far above it a size almost surely fails.  Not to be asked when there is none.

        The higher of two that agree is enough; a single one must be kept well clear of.
        """
        line, predicted = self.line, self.predicted
        doubt = 2 * line.doubt if line is not None else 0.0
        if line is not None and predicted is not None and self.standing != "contradicted":
            return max(line.size, predicted), doubt
        guess = line.size if line is not None else predicted or 0
        return guess, max(doubt, _CLEAR_SHARE * guess)

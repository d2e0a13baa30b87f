"""The batch to use, beside the largest that fits: one that ran with a margin of the capacity withheld.

The largest batch leaves nothing for a longer input, another process, or fragmentation that comes with time.  How much
smaller to go cannot be read off what was reserved: near its limit the allocator takes all there is, and gives back
only what it must, so a batch that reserved 99 % may well do with 95 %.  It can only be tried: the same trial, under a
memory limit of (1 - margin) x capacity.  A batch that fits there is recommended, and so is one that never reserved
more than that when nothing was withheld.

The first try is where the allocated peak, which is straight in the batch, is (1 - margin) of the answer's: where memory
runs out at the same share of a smaller limit, that is the best size there is.  Each miss goes lower, by more each
time; after three there is no recommendation rather than an unproven one.  A miss outranks everything above it.

What it does not know: whether the share is the same.  Fragmentation depends on the limit, so a larger size may do, and
after a miss the steps are coarse; no trial is spent on going back up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sweeper.curve import size_at_peak

__all__ = ["Recommendation"]

_MISS_SHARES = (0.0, 0.02, 0.06)  # of the answer's peak: how much lower to aim after no miss, one, two
_WORTH_SHARE = 0.01  # of the answer: a size that gains no more over one already proven is not run


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What is known when the boundary is.  Sizes of ``allocated`` and ``reserved`` fitted with nothing withheld.

    ``allocated`` and ``reserved`` are each size's peak bytes; ``tried`` says of each size that was run with the
    margin withheld whether it fitted.
    """

    answer: int
    floor: int
    margin: float
    round_to: int
    capacity_bytes: int
    allocated: Mapping[int, int]
    reserved: Mapping[int, int]
    tried: Mapping[int, bool] = field(default_factory=dict)

    @property
    def withheld_bytes(self) -> int:
        """What a trial of ``next_size`` is not given.  0 makes it a trial like any other."""
        return int(self.margin * self.capacity_bytes)

    @property
    def size(self) -> int | None:
        """The largest size that is proven to leave the margin and is a multiple of ``round_to``."""
        limit = self.capacity_bytes - self.withheld_bytes
        proven = {size for size, fits in self.tried.items() if fits}
        # With nothing withheld, to have fitted is all there is to prove, whatever was reserved.
        proven |= {size for size, peak in self.reserved.items() if peak <= limit or self.withheld_bytes == 0}
        return max((size for size in proven if size <= self._most and size % self.round_to == 0), default=None)

    def next_size(self) -> int | None:
        """The size to run with the margin withheld; None when there is nothing worth running."""
        misses = len(self._misses)
        if misses >= len(_MISS_SHARES):
            return None
        aim = min(self._aim(_MISS_SHARES[misses]), self._most) // self.round_to * self.round_to
        if aim < self.floor or aim in self.tried:
            return None
        known = self.size
        worth = max(1, int(_WORTH_SHARE * self.answer))
        return aim if known is None or aim - known >= worth else None

    @property
    def _misses(self) -> list[int]:
        return [size for size, fits in self.tried.items() if not fits]

    @property
    def _most(self) -> int:
        """No size above this is recommended: the answer, or what lies below the smallest miss."""
        return min([self.answer, *(size - 1 for size in self._misses)])

    def _aim(self, lower: float) -> int:
        measured = {size: peak for size, peak in self.allocated.items() if size <= self.answer}
        if self.answer not in measured:
            return self.answer
        return size_at_peak(measured, int(max(0.0, 1 - self.margin - lower) * measured[self.answer]))

"""What has been run, and what follows from that alone, in whatever order it was run.

A probe is one trial as the search sees it: a size, and whether it fitted.  Doubt moves the answer down, never up: one
failure at a size outweighs every success at it, and a size is the answer only if nothing failed at or below it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

__all__ = ["Probe", "Probed", "Tally"]

_P = TypeVar("_P", bound="Probed")


@dataclass(frozen=True, slots=True)
class Probe:
    """One run.  ``peak_bytes`` is allocated bytes on cuda and sim, resident bytes on cpu; None where not measured.

    Allocated and not reserved: the allocator gives its cache back when memory runs short, so reserved bytes bend near
    the capacity.
    """

    size: int
    fits: bool
    peak_bytes: int | None = None


class Tally:
    """What a set of probes says, whatever their order."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        self.fits: dict[int, int] = {}  # size -> times it fitted
        self.failed: set[int] = set()
        self.peaks: dict[int, int] = {}  # size that fitted -> the most it took
        for probe in probes:
            if not probe.fits:
                self.failed.add(probe.size)
                continue
            self.fits[probe.size] = self.fits.get(probe.size, 0) + 1
            if probe.peak_bytes is not None:
                self.peaks[probe.size] = max(probe.peak_bytes, self.peaks.get(probe.size, 0))
        self.high = min(self.failed, default=None)
        self.sound = sorted(size for size in self.fits if self.high is None or size < self.high)
        self.low = self.sound[-1] if self.sound else None
        self.measured = {size: self.peaks[size] for size in self.sound if size in self.peaks}


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The probes so far, and the answer they give.  What to run next is decided by the subclasses.

    ``confirm`` is how often a size must fit to be the answer, ``capacity_bytes`` what the device can give a trial.
    """

    confirm: int = 1
    capacity_bytes: int | None = None
    probes: tuple[Probe, ...] = ()

    def __post_init__(self) -> None:
        if self.confirm < 1:
            raise ValueError(f"confirm is {self.confirm}, must be 1 or more")
        for probe in self.probes:
            self._check(probe.size)

    def _check(self, size: int) -> None:
        """Raise ``ValueError`` when ``size`` can never be asked for."""
        raise NotImplementedError

    def takes(self, size: int) -> bool:
        """Whether ``size`` is one that could be asked for."""
        try:
            self._check(size)
        except ValueError:
            return False
        return True

    @cached_property
    def tally(self) -> Tally:
        return Tally(self.probes)

    def after(self: _P, size: int, fits: bool, peak_bytes: int | None = None) -> _P:
        """The search with one more probe, asked for or not.

        Raises ``ValueError`` for a size that is out of bounds or not on the grid; ``self`` is as it was.
        """
        return replace(self, probes=(*self.probes, Probe(size, fits, peak_bytes)))

    @property
    def answer(self) -> int | None:
        """The largest size that fitted ``confirm`` times, with no failure at or below it; None when there is none."""
        tally = self.tally
        return next((size for size in reversed(tally.sound) if tally.fits[size] >= self.confirm), None)

    @property
    def first_failure(self) -> int | None:
        """The smallest size that ever failed."""
        return self.tally.high

    @property
    def not_monotone(self) -> tuple[int, ...]:
        """Sizes that fitted although a smaller one failed."""
        high = self.tally.high
        return () if high is None else tuple(sorted(size for size in self.tally.fits if size > high))

    @property
    def unsteady(self) -> tuple[int, ...]:
        """Sizes that both fitted and failed."""
        return tuple(sorted(self.tally.failed & self.tally.fits.keys()))

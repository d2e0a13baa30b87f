"""The boundary in two dimensions: the largest batch at each length, by replays, and what else is told beside it.

At each length the boundary is found from above.  No allocator fits a step whose tensors alone, all that are alive at
once, are more than there is, and that is a sum and no replay; so the largest batch whose tensors fit is where replays
begin.  What an allocator adds is little, so a few replays further down there is a batch that fits whose next does not.

As in ``prediction``, what is found is *a* boundary: memory may not grow steadily with the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Literal, Protocol

from sweeper.cards import Card
from sweeper.prediction import Replays, Room, Traces, host_bytes
from sweeper.trial import Broken, DeviceReport, Fit, Outcome, TrialSpec

__all__ = [
    "CardJob",
    "Frontier",
    "FrontierPoint",
    "HostJob",
    "Job",
    "MeasuredPoint",
    "PeakMap",
    "largest_batch",
    "lengths_up_to",
    "map_batches",
    "spread",
]

_MOST_LENGTHS = 40  # the default step is the least power of two that gives no more
_MAP_BATCHES = 25  # rows of the heat map, as far as whole numbers allow


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """The largest batch that fits at one length, by prediction.  Bytes; None where no batch fits.

    ``peak_bytes`` is what is reserved at the most within the capacity; ``live_bytes`` is the most that tensors alone
    hold at once.
    """

    length: int
    max_batch: int | None
    peak_bytes: int | None = None
    live_bytes: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens in the largest batch; 0 where none fits."""
        return self.length * (self.max_batch or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One trial beside the prediction."""

    length: int
    batch: int
    predicted_fits: bool
    outcome: Outcome

    @property
    def fits(self) -> bool | None:
        """None where the trial broke, which says nothing."""
        return None if isinstance(self.outcome, Broken) else isinstance(self.outcome, Fit)

    @property
    def agrees(self) -> bool:
        return self.fits == self.predicted_fits


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMap:
    """The most bytes that tensors hold at once, one row a batch, one column a length of the frontier."""

    batches: tuple[int, ...]
    live_bytes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The largest batch that fits at each length, on one device.  Bytes.

    All of it is predicted, but ``measured``.  ``method`` is ``"allocator"`` where the caching allocator was simulated,
    ``"live bytes"``, a sum and a first guess, on the CPU.  ``notes`` are sentences.
    """

    spec: TrialSpec  # its device is that of the trials
    device: DeviceReport
    card: Card  # that was simulated
    cap: int  # the largest batch that was looked at
    step: int  # of the lengths
    points: tuple[FrontierPoint, ...]
    map: PeakMap
    method: Literal["allocator", "live bytes"] = "allocator"
    measured: tuple[MeasuredPoint, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def best(self) -> FrontierPoint | None:
        """The point with most tokens, the shortest where several have them; None where nothing fits."""
        fitting = [point for point in self.points if point.max_batch is not None]
        return max(fitting, key=lambda point: (point.tokens, -point.length), default=None)

    @property
    def agreeing(self) -> int:
        """How many trials ended as predicted."""
        return sum(point.agrees for point in self.measured)


class Job(Protocol):
    """One job at one length, on what there is: questions about its batches."""

    def fits(self, batch: int) -> bool: ...

    def may_fit(self, batch: int) -> bool:
        """Whether its tensors alone are no more than there is; where they are more it does not fit."""
        ...

    def live_bytes(self, batch: int) -> int: ...

    def peak_bytes(self, batch: int) -> int:
        """Of a batch that fits: the most it reserves."""
        ...


class CardJob:
    """On a card: the caching allocator, replayed.  ``as_reserved`` turns its peaks into the card's."""

    def __init__(self, replays: Replays, room: Room, as_reserved: Callable[[int], int] = lambda size: size) -> None:
        self._replays, self._room, self._as_reserved = replays, room, as_reserved

    def fits(self, batch: int) -> bool:
        return self._replays.fits(batch, self._room)

    def may_fit(self, batch: int) -> bool:
        return self.live_bytes(batch) <= self._room.capacity_bytes

    def live_bytes(self, batch: int) -> int:
        return self._replays.live_bytes(batch)

    def peak_bytes(self, batch: int) -> int:
        return self._as_reserved(self._replays.within(batch, self._room).peak_reserved_bytes)


class HostJob:
    """On the CPU: the most bytes alive at once, which is a first guess (see ``prediction.predict_host``)."""

    def __init__(self, traces: Traces, budget_bytes: int) -> None:
        self._traces, self._budget_bytes = traces, budget_bytes

    def fits(self, batch: int) -> bool:
        return self.live_bytes(batch) <= self._budget_bytes

    may_fit = fits

    def live_bytes(self, batch: int) -> int:
        return host_bytes(self._traces.at(batch))

    peak_bytes = live_bytes


def largest_batch(job: Job, cap: int) -> int | None:
    """A batch up to ``cap`` that fits whose next does not, or is beyond the cap; None where batch 1 does not."""
    too_large = _bisect(job.may_fit, 0, cap + 1)
    fitting, stride = too_large - 1, 1
    while fitting > 0 and not job.fits(fitting):
        too_large = fitting
        fitting, stride = max(fitting - stride, 0), 2 * stride
    return _bisect(job.fits, fitting, too_large) - 1 or None


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The ``n`` in ``low + 1 .. high`` at which ``holds`` stops; it is taken to hold at ``low`` and not at ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


def lengths_up_to(longest: int, *, shortest: int | None, step: int | None, token_step: int = 1) -> tuple[range, int]:
    """The lengths to look at, which are multiples of their step, and that step; the range is empty where none lies in.

    Without a ``step`` it is a power of two, times ``token_step``, that makes some 20 to 40 lengths.
    """
    if step is None:
        step = token_step
        while longest // step > _MOST_LENGTHS:
            step *= 2
    first = -(-max(shortest or step, 1) // step) * step
    return range(first, longest + 1, step), step


def map_batches(cap: int) -> tuple[int, ...]:
    """Batches from 1 to ``cap``, spread evenly over its logarithm."""
    return tuple(sorted({round(cap ** (n / (_MAP_BATCHES - 1))) for n in range(_MAP_BATCHES)}))


def spread(points: Sequence[FrontierPoint], count: int) -> tuple[FrontierPoint, ...]:
    """``count`` of ``points``, evenly over the logarithm of the length, both ends among them; all if they are fewer."""
    left = list(points)
    chosen = list[FrontierPoint]()
    for number in range(min(count, len(points))):
        share = number / (count - 1) if count > 1 else 0.5
        aim = points[0].length * (points[-1].length / points[0].length) ** share
        chosen.append(min(left, key=lambda point: abs(log(point.length / aim))))
        left.remove(chosen[-1])
    return tuple(sorted(chosen, key=lambda point: point.length))

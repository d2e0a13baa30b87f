"""A replay with everything the allocator did written down, as PyTorch's memory history has it.

``torch.cuda.memory._record_memory_history`` makes the real allocator keep an entry for every block it hands out or
takes back and every segment it gets from or gives to the driver.  ``recorded`` makes the simulated one do the same for
a trace.  From the entries everything else follows: what each kind of memory held after any event, what was reserved
then, and the snapshot that PyTorch's own viewer opens (``snapshot``).

What this does not know: when anything happened.  There are no times in a trace, so there are none here.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

from sweeper.allocator import AllocatorOutOfMemory, CachingAllocator, Segment, SegmentAction
from sweeper.allocator_conf import AllocatorConf
from sweeper.trace import Mark, Replay, Trace, replay
from sweeper.trial import KINDS, Kind, Phase

__all__ = ["Action", "History", "PhaseSpan", "RecordingAllocator", "recorded", "without_the_end"]

# What a job holds from one step to the next.
_LASTING: frozenset[Kind] = frozenset({"weights", "buffers", "optimizer"})

ActionName = Literal["alloc", "free", "oom"] | SegmentAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing the allocator did: gave ``allocation``, took it back, or, to segments, since it was asked for.  Bytes.

    ``size_bytes`` is what was asked for; of an ``oom`` that, rounded; of a segment all of it.  ``held_bytes`` is the
    block's own size, 0 where there is no block.  ``free_bytes``, of an ``oom``, is what the device had left.
    """

    name: ActionName
    allocation: int
    address: int
    size_bytes: int
    held_bytes: int = 0
    free_bytes: int = 0

    def is_of(self, event: int) -> bool:
        """Whether this is what ``event`` of the trace asked for: its own allocation, or its own free."""
        return self.allocation == (event if event >= 0 else ~event) and (self.name == "free") == (event < 0)


class RecordingAllocator(CachingAllocator):
    """A ``CachingAllocator`` that keeps ``actions``.  Its allocations are numbered in the order they are asked for.

    0 bytes are no block, and so no action.
    """

    def __init__(self, **room: Any) -> None:
        super().__init__(on_segment=self._on_reserved, **room)
        self.actions: list[Action] = []
        self._asked = 0
        self._serving = 0
        self._owners: dict[int, Action] = {}  # of the live blocks, by address

    def allocate(self, requested_bytes: int, stream: int = 0) -> int:
        self._serving, self._asked = self._asked, self._asked + 1
        before = self.allocated_bytes
        try:
            address = super().allocate(requested_bytes, stream)
        except AllocatorOutOfMemory as refusal:
            self.actions.append(
                Action(
                    name="oom",
                    allocation=self._serving,
                    address=0,
                    size_bytes=self._rounded(requested_bytes),
                    free_bytes=refusal.free_bytes,
                )
            )
            raise
        if address:
            made = Action(
                name="alloc",
                allocation=self._serving,
                address=address,
                size_bytes=requested_bytes,
                held_bytes=self.allocated_bytes - before,
            )
            self._owners[address] = made
            self.actions.append(made)
        return address

    def free(self, address: int) -> None:
        super().free(address)
        if (made := self._owners.pop(address, None)) is not None:
            self.actions.append(
                Action(
                    name="free",
                    allocation=made.allocation,
                    address=address,
                    size_bytes=made.size_bytes,
                    held_bytes=made.held_bytes,
                )
            )

    def _on_reserved(self, name: SegmentAction, address: int, size: int) -> None:
        self.actions.append(Action(name=name, allocation=self._serving, address=address, size_bytes=size))


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """Events ``first`` to ``end``, the latter not included, are in ``phase`` of ``step`` (from 0)."""

    first: int
    end: int
    phase: Phase
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """``actions`` in order, and the ``segments`` there were in the end, or where memory ran out.

    ``capacity_bytes`` is what the allocator could have had; None is without end.
    """

    trace: Trace
    replay: Replay
    actions: tuple[Action, ...]
    segments: tuple[Segment, ...]
    conf: AllocatorConf
    capacity_bytes: int | None

    @property
    def reached(self) -> int:
        """How many events were replayed: all, or those before the one that was refused."""
        return len(self.trace.events) if self.replay.failure is None else self.replay.failure.event

    def actions_by_event(self) -> tuple[tuple[Action, ...], ...]:
        """What the allocator did at each event of the trace that was reached, the refused one included.

        What was done to segments belongs to the event before which it was done; an event may do nothing at all.
        """
        found: list[tuple[Action, ...]] = []
        place = 0
        for event in self.trace.events[: self.reached + 1]:
            own = place
            while own < len(self.actions) and self.actions[own].name.startswith("segment_"):
                own += 1
            first = place
            if own < len(self.actions) and self.actions[own].is_of(event):
                place = own + 1
            found.append(self.actions[first:place])
        if found:
            found[-1] += self.actions[place:]
        return tuple(found)

    def held(self) -> dict[Kind, tuple[int, ...]]:
        """The bytes of each kind after each event that was reached; the kinds add up to what is allocated."""
        changes: dict[Kind, list[int]] = {kind: [0] * self.reached for kind in KINDS}
        for event, actions in enumerate(self.actions_by_event()):
            for action in actions:
                if action.name in ("alloc", "free"):
                    kind = self.trace.label(action.allocation).kind
                    changes[kind][event] += action.held_bytes if action.name == "alloc" else -action.held_bytes
        return {kind: tuple(accumulate(rows)) for kind, rows in changes.items()}

    def reserved(self) -> tuple[int, ...]:
        """The bytes that were reserved after each event that was reached."""
        signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
        changes = (sum(signs.get(a.name, 0) * a.size_bytes for a in actions) for actions in self.actions_by_event())
        return tuple(accumulate(changes))[: self.reached]

    def phases(self) -> tuple[PhaseSpan, ...]:
        """The phases of all steps that have an event, also of those that were not reached."""
        last = Mark(len(self.trace.events), "setup", 0)
        spans = (
            PhaseSpan(mark.event, after.event, mark.phase, mark.step)
            for mark, after in pairwise([*self.trace.marks, last])
        )
        return tuple(span for span in spans if span.end > span.first)


def without_the_end(trace: Trace) -> Trace:
    """``trace`` up to where the model itself is let go, after the last step: a job that goes on never comes there."""
    end = len(trace.events)
    while end and trace.events[end - 1] < 0:
        end -= 1
    lasting = (n for n in range(end, len(trace.events)) if trace.label(~trace.events[n]).kind in _LASTING)
    end = next(lasting, len(trace.events))
    return replace(trace, events=trace.events[:end], empties=tuple(event for event in trace.empties if event <= end))


def recorded(
    trace: Trace,
    conf: AllocatorConf,
    *,
    capacity_bytes: int | None = None,
    limit_bytes: int | None = None,
    total_bytes: int | None = None,
) -> History:
    """Replay ``trace`` through a new allocator that writes all of it down; ``limit_bytes`` is a memory fraction's."""
    allocator = RecordingAllocator(
        capacity_bytes=capacity_bytes, memory_fraction_limit_bytes=limit_bytes, total_bytes=total_bytes, conf=conf
    )
    said = replay(trace, allocator)
    known = [size for size in (capacity_bytes, limit_bytes) if size is not None]
    return History(
        trace=trace,
        replay=said,
        actions=tuple(allocator.actions),
        segments=allocator.segments(),
        conf=conf,
        capacity_bytes=min(known, default=None),
    )

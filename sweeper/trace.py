"""A trace: every allocation and free of a training step, in order, as a value; and traces joined over the batch size.

Theory of operation.  A trace holds what the step asked of the allocator, not what the allocator did: allocations are
numbered 0, 1, 2, ... in the order they were made, and the events are one list of integers in which ``n >= 0`` is
allocation ``n`` and ``~n`` is its free.  Each allocation has its bytes as asked for (rounding is the allocator's
affair) and a label: the operator that made it, the module it ran for, the phase, and the kind of what it holds.  Beside
them stand the moments at which the step had the allocator give back its cache.

The memory of most models is *affine* in the batch: at every batch size the events are the same in the same order, and
allocation ``n`` asks for ``fixed[n] + per_sample[n] * batch`` bytes, exactly.  So two traces at small batches give the
trace at every batch, and a batch on a card is a replay of milliseconds.  ``AffineTrace.join`` checks that and raises
``NotAffine`` where it does not hold; a third trace makes the check mean something, because any two events of the same
kind lie on a line.

What this does not know: whether the model does the same thing on other *values* (a mixture of experts does not), and
whether an operator changes its algorithm at a batch size that was not traced.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from sweeper.allocator import AllocatorOutOfMemory, CachingAllocator
from sweeper.trial import KINDS, PHASES, Breakdown, Kind, Phase

__all__ = [
    "SCHEMA",
    "WORKSPACE_OPERATOR",
    "AffineTrace",
    "Label",
    "Mark",
    "NoLaw",
    "NotAffine",
    "Replay",
    "ReplayFailure",
    "Trace",
    "TraceError",
    "breakdown_of",
    "difference",
    "place",
    "replay",
    "replayed_breakdowns",
]

# 1  first version
# 2  adds empties; a trace of 1 reads as one that never empties the cache
SCHEMA = 2

# The operator of an allocation that the step can do without: a workspace, for which cuDNN has other plans.
WORKSPACE_OPERATOR = "cudnn_workspace"


class TraceError(ValueError):
    """A file that is no trace of this schema, or events that contradict each other; the message says which."""


class NoLaw(ValueError):
    """Traces that are not what one law gives; ``event`` is the first that tells."""

    def __init__(self, message: str, *, event: int) -> None:
        super().__init__(message)
        self.event = event


class NotAffine(NoLaw):
    """Two traces that do not differ by the batch alone."""


@dataclass(frozen=True, slots=True)
class Label:
    """Where an allocation came from; ``module`` is a dotted path, in backward that of the forward's module."""

    operator: str
    module: str
    phase: Phase
    kind: Kind


@dataclass(frozen=True, slots=True)
class Mark:
    """From event number ``event`` on, the step is in ``phase`` of ``step`` (from 0)."""

    event: int
    phase: Phase
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One run of some training steps.  ``sizes`` are bytes as asked for, ``labels_of`` indexes ``labels``.

    Before event ``n``, for each ``n`` of ``empties``, the allocator gave back all that was wholly free.
    """

    batch_size: int
    events: tuple[int, ...]
    sizes: tuple[int, ...]
    labels: tuple[Label, ...]
    labels_of: tuple[int, ...]
    marks: tuple[Mark, ...] = ()
    empties: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_events(self.events, len(self.sizes))
        if len(self.labels_of) != len(self.sizes):
            raise TraceError(f"{len(self.sizes)} sizes but {len(self.labels_of)} labels")
        if not all(0 <= label < len(self.labels) for label in self.labels_of):
            raise TraceError(f"a label outside the {len(self.labels)} there are")
        if list(self.empties) != sorted(self.empties) or not all(0 <= n <= len(self.events) for n in self.empties):
            raise TraceError("empties: expected events in their order")

    def label(self, allocation: int) -> Label:
        return self.labels[self.labels_of[allocation]]

    def phase_at(self, event: int) -> tuple[Phase, int]:
        """Return the phase and step that event number ``event`` is in; ``setup`` before the first mark."""
        found: tuple[Phase, int] = ("setup", 0)
        for mark in self.marks:
            if mark.event > event:
                break
            found = (mark.phase, mark.step)
        return found

    def to_json(self) -> str:
        """One line.  Frees are written as negative numbers, labels once each."""
        return json.dumps(
            {
                "schema": SCHEMA,
                "batch_size": self.batch_size,
                "events": self.events,
                "sizes": self.sizes,
                "labels": [[label.operator, label.module, label.phase, label.kind] for label in self.labels],
                "labels_of": self.labels_of,
                "marks": [[mark.event, mark.phase, mark.step] for mark in self.marks],
                "empties": self.empties,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "Trace":
        """Raises ``TraceError`` when ``text`` is no trace of this schema."""
        try:
            data = json.loads(text)
        except ValueError as problem:
            raise TraceError(f"not JSON: {problem}") from None
        keys = {"schema", "batch_size", "events", "sizes", "labels", "labels_of", "marks", "empties"}
        if not isinstance(data, dict) or "schema" not in data:
            raise TraceError("no schema number")
        if data["schema"] == 1:
            data = {**data, "schema": 2, "empties": []}
        if data["schema"] != SCHEMA:
            raise TraceError(f"trace of schema {data['schema']!r}; this sweeper reads 1 to {SCHEMA}")
        if data.keys() != keys:
            raise TraceError(f"keys differ from the agreed ones: {', '.join(sorted(data.keys() ^ keys))}")
        return cls(
            batch_size=_integers([data["batch_size"]], "batch_size")[0],
            events=_integers(data["events"], "events"),
            sizes=_integers(data["sizes"], "sizes"),
            labels=tuple(_label(row) for row in _rows(data["labels"], "labels")),
            labels_of=_integers(data["labels_of"], "labels_of"),
            marks=tuple(_mark(row) for row in _rows(data["marks"], "marks")),
            empties=_integers(data["empties"], "empties"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineTrace:
    """Every trace of one job: allocation ``n`` asks for ``fixed[n] + per_sample[n] * batch`` bytes."""

    events: tuple[int, ...]
    fixed: tuple[int, ...]
    per_sample: tuple[int, ...]
    labels: tuple[Label, ...]
    labels_of: tuple[int, ...]
    marks: tuple[Mark, ...]
    empties: tuple[int, ...] = ()

    @classmethod
    def join(cls, first: Trace, second: Trace, *others: Trace) -> "AffineTrace":
        """Return the law through ``first`` and ``second``, held against ``others``.

        Raises ``NotAffine`` with the first event that differs: another order, another operator, or bytes that are on
        no line of whole bytes.
        """
        if first.batch_size == second.batch_size:
            raise ValueError(f"both traces are of batch {first.batch_size}; a line needs two batches")
        _same_events(first, second)
        span = second.batch_size - first.batch_size
        fixed, per_sample = [], []
        for allocation, (low, high) in enumerate(zip(first.sizes, second.sizes, strict=True)):
            slope, rest = divmod(high - low, span)
            if rest:
                raise _not_affine(first, allocation, f"{low} and {high} bytes are on no line of whole bytes")
            per_sample.append(slope)
            fixed.append(low - slope * first.batch_size)
        law = cls(
            events=first.events,
            fixed=tuple(fixed),
            per_sample=tuple(per_sample),
            labels=first.labels,
            labels_of=first.labels_of,
            marks=first.marks,
            empties=first.empties,
        )
        for other in others:
            law.check(other)
        return law

    def at(self, batch_size: int) -> Trace:
        """Return the trace at ``batch_size``.  Raises ``ValueError`` where the law asks for less than nothing."""
        sizes = tuple(a + b * batch_size for a, b in zip(self.fixed, self.per_sample, strict=True))
        if batch_size < 1 or min(sizes, default=0) < 0:
            raise ValueError(f"the law says nothing of batch {batch_size}")
        return Trace(
            batch_size=batch_size,
            events=self.events,
            sizes=sizes,
            labels=self.labels,
            labels_of=self.labels_of,
            marks=self.marks,
            empties=self.empties,
        )

    def check(self, trace: Trace) -> None:
        """Raise ``NotAffine`` unless this law gives ``trace``, event by event and to the byte."""
        expected = self.at(trace.batch_size)
        _same_events(expected, trace)
        for allocation, (said, found) in enumerate(zip(expected.sizes, trace.sizes, strict=True)):
            if said != found:
                raise _not_affine(trace, allocation, f"the line says {said} bytes, the trace {found}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFailure:
    """The allocation that the allocator refused.  Bytes; ``free_bytes`` is what was left to give."""

    allocation: int
    event: int
    label: Label
    step: int
    requested_bytes: int
    segment_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What an allocator said to a trace.  ``breakdown`` is at ``peak_event``; ``holdings`` the most of each kind."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    breakdown: Breakdown
    holdings: Breakdown
    peak_event: int
    peak_phase: Phase
    retries: int
    failure: ReplayFailure | None = None

    @property
    def fits(self) -> bool:
        return self.failure is None


def replay(trace: Trace, allocator: CachingAllocator) -> Replay:
    """Hand every event of ``trace`` to ``allocator``, which is used up by it, until the end or the first refusal.

    A refused ``WORKSPACE_OPERATOR`` is passed over, as the step passes over it.
    """
    addresses: list[int | None] = []
    held: list[int] = []
    failure = None
    empties = frozenset(trace.empties)
    for index, event in enumerate(trace.events):
        if index in empties:
            allocator.empty_cache()
        if event < 0:
            if (address := addresses[~event]) is not None:
                allocator.free(address)
            continue
        before = allocator.allocated_bytes
        try:
            addresses.append(allocator.allocate(trace.sizes[event]))
        except AllocatorOutOfMemory as refusal:
            if trace.label(event).operator != WORKSPACE_OPERATOR:
                failure = _failure(trace, index, event, refusal)
                break
            addresses.append(None)
        held.append(allocator.allocated_bytes - before)
    done = trace.events if failure is None else trace.events[: failure.event]
    kinds = [trace.labels[label].kind for label in trace.labels_of[: len(held)]]
    at_peak, holdings, peak_event = replayed_breakdowns(done, held, kinds)
    return Replay(
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        breakdown=at_peak,
        holdings=holdings,
        peak_event=peak_event,
        peak_phase=trace.phase_at(peak_event)[0],
        retries=allocator.retries,
        failure=failure,
    )


def replayed_breakdowns(
    events: Sequence[int], held: Sequence[int], kinds: Sequence[Kind]
) -> tuple[Breakdown, Breakdown, int]:
    """Return (bytes by kind at the peak, the most each kind held, the event of the peak).

    ``held[n]`` is what allocation ``n`` took of the allocator's count, after its rounding, so the kinds at the peak
    add up to the peak allocated.
    """
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    total = peak = 0
    peak_event, at_peak = 0, Counter[str]()
    for index, event in enumerate(events):
        if event < 0:
            now[kinds[~event]] -= held[~event]
            total -= held[~event]
            continue
        kind = kinds[event]
        now[kind] += held[event]
        total += held[event]
        if now[kind] > most[kind]:
            most[kind] = now[kind]
        if total > peak:
            peak, peak_event, at_peak = total, index, now.copy()
    return breakdown_of(at_peak), breakdown_of(most), peak_event


def breakdown_of(bytes_by_kind: dict[str, int]) -> Breakdown:
    return Breakdown(**{kind: bytes_by_kind.get(kind, 0) for kind in KINDS})


def _failure(trace: Trace, index: int, allocation: int, refusal: AllocatorOutOfMemory) -> ReplayFailure:
    return ReplayFailure(
        allocation=allocation,
        event=index,
        label=trace.label(allocation),
        step=trace.phase_at(index)[1],
        requested_bytes=trace.sizes[allocation],
        segment_bytes=refusal.segment_bytes,
        allocated_bytes=refusal.allocated_bytes,
        reserved_bytes=refusal.reserved_bytes,
        free_bytes=refusal.free_bytes,
    )


def difference(first: Trace, second: Trace, names: tuple[str, str]) -> tuple[int, str] | None:
    """The first event that the two do not share, with a sentence about it; None where only bytes differ.

    ``names`` say of what each is: ``batch 4``.
    """
    for index, (one, other) in enumerate(zip(first.events, second.events, strict=False)):
        if one != other or (one >= 0 and first.label(one) != second.label(other)):
            words = (f"{_words(trace, index)} at {name}" for trace, name in zip((first, second), names, strict=True))
            return index, f"event {index} is {' but '.join(words)}"
    if len(first.events) != len(second.events):
        shorter = min(len(first.events), len(second.events))
        return shorter, (
            f"{names[0]} has {len(first.events)} events, {names[1]} has {len(second.events)}; they are the same up to "
            f"event {shorter}"
        )
    if first.empties != second.empties:
        event = min(set(first.empties) ^ set(second.empties), default=0)
        return event, f"{names[0]} gives the cache back at other moments than {names[1]}, first at event {event}"
    return None


def place(trace: Trace, allocation: int) -> tuple[int, str]:
    """The event that makes ``allocation``, and who asks for it, in words."""
    index = trace.events.index(allocation)
    return index, f"event {index}, {_words(trace, index)}"


def _same_events(first: Trace, second: Trace) -> None:
    found = difference(first, second, (f"batch {first.batch_size}", f"batch {second.batch_size}"))
    if found is not None:
        raise NotAffine(found[1], event=found[0])


def _words(trace: Trace, index: int) -> str:
    event = trace.events[index]
    label = trace.label(event if event >= 0 else ~event)
    verb = "an allocation" if event >= 0 else "a free"
    return f"{verb} by {label.operator} in {label.module or 'the model'} ({label.phase})"


def _not_affine(trace: Trace, allocation: int, why: str) -> NotAffine:
    index, who = place(trace, allocation)
    return NotAffine(f"{who}: {why}", event=index)


def _check_events(events: Sequence[int], allocations: int) -> None:
    made, freed = 0, bytearray(allocations)
    for index, event in enumerate(events):
        if event >= 0:
            if event != made or made >= allocations:
                raise TraceError(f"event {index} is allocation {event}, expected {made} of {allocations}")
            made += 1
        elif ~event >= made or freed[~event]:
            raise TraceError(f"event {index} frees allocation {~event}, which is not held then")
        else:
            freed[~event] = 1
    if made != allocations:
        raise TraceError(f"{allocations} sizes but {made} allocations")


def _integers(data: Any, where: str) -> tuple[int, ...]:
    if not isinstance(data, list) or not all(type(item) is int for item in data):
        raise TraceError(f"{where}: expected whole numbers")
    return tuple(data)


def _rows(data: Any, where: str) -> Iterator[list[Any]]:
    if not isinstance(data, list) or not all(isinstance(row, list) for row in data):
        raise TraceError(f"{where}: expected rows")
    return iter(data)


def _label(row: list[Any]) -> Label:
    if len(row) != 4 or not all(isinstance(item, str) for item in row):
        raise TraceError(f"labels: expected operator, module, phase and kind, found {row!r}")
    operator, module, phase, kind = row
    if phase not in PHASES or kind not in get_args(Kind):
        raise TraceError(f"labels: no phase and kind {phase!r}, {kind!r}")
    return Label(operator, module, phase, kind)


def _mark(row: list[Any]) -> Mark:
    if len(row) != 3 or type(row[0]) is not int or type(row[2]) is not int or row[1] not in PHASES:
        raise TraceError(f"marks: expected event, phase and step, found {row!r}")
    return Mark(*row)

"""The replay written down: what it says adds up to what the replay says, event by event."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.allocator import CachingAllocator
from sweeper.allocator_conf import DEFAULT_CONF, AllocatorConf
from sweeper.history import History, PhaseSpan, RecordingAllocator, recorded, without_the_end
from sweeper.trace import WORKSPACE_OPERATOR, Label, Trace, replay
from sweeper.units import MIB
from tests.traces import LABELS, a_trace, golden, traces

CONFS = [
    DEFAULT_CONF,
    AllocatorConf.parse("expandable_segments:True"),
    AllocatorConf.parse("max_split_size_mb:24"),
    AllocatorConf.parse("garbage_collection_threshold:0.5"),
]
each_conf = pytest.mark.parametrize("conf", CONFS, ids=["default", "expandable", "max split", "garbage collection"])
capacities = st.none() | st.integers(2, 200).map(lambda pages: pages * MIB)


@each_conf
@given(trace=traces(), capacity=capacities)
def test_writing_it_down_changes_nothing(conf: AllocatorConf, trace: Trace, capacity: int | None) -> None:
    limit = None if capacity is None else capacity * 3 // 4
    said = replay(trace, CachingAllocator(capacity_bytes=capacity, memory_fraction_limit_bytes=limit, conf=conf))
    history = recorded(trace, conf, capacity_bytes=capacity, limit_bytes=limit)
    assert history.replay == said
    assert history.capacity_bytes == limit


@each_conf
@given(trace=traces(), capacity=capacities)
def test_the_kinds_add_up_to_what_is_allocated_after_every_event(
    conf: AllocatorConf, trace: Trace, capacity: int | None
) -> None:
    history = recorded(trace, conf, capacity_bytes=capacity, limit_bytes=None)
    allocator, addresses = CachingAllocator(capacity_bytes=capacity, conf=conf), list[int]()
    held, reserved = history.held(), history.reserved()
    assert len(reserved) == history.reached == len(trace.events[: history.reached])
    for index, event in enumerate(trace.events[: history.reached]):
        if index in trace.empties:
            allocator.empty_cache()
        if event >= 0:
            addresses.append(allocator.allocate(trace.sizes[event]))
        else:
            allocator.free(addresses[~event])
        assert sum(rows[index] for rows in held.values()) == allocator.allocated_bytes
        assert reserved[index] == allocator.reserved_bytes
    assert max((sum(moment) for moment in zip(*held.values(), strict=True)), default=0) == (
        history.replay.peak_allocated_bytes
    )


@each_conf
@given(trace=traces(), capacity=capacities)
def test_the_actions_on_segments_end_in_the_segments_there_are(
    conf: AllocatorConf, trace: Trace, capacity: int | None
) -> None:
    history = recorded(trace, conf, capacity_bytes=capacity, limit_bytes=None)
    mapped = set[int]()  # every reserved MiB, by its number
    for action in history.actions:
        pages = range(action.address // MIB, (action.address + action.size_bytes) // MIB)
        if action.name in ("segment_alloc", "segment_map"):
            assert mapped.isdisjoint(pages)
            mapped.update(pages)
        elif action.name in ("segment_free", "segment_unmap"):
            assert mapped.issuperset(pages)
            mapped.difference_update(pages)
        elif action.name == "alloc":
            assert {action.address // MIB, (action.address + action.held_bytes - 1) // MIB} <= mapped
    left = {page for s in history.segments for page in range(s.address // MIB, (s.address + s.size_bytes) // MIB)}
    assert mapped == left
    assert all(before.address < after.address for before, after in pairwise(history.segments))


@given(trace=traces(), capacity=capacities)
def test_every_event_has_its_actions_and_a_refusal_is_the_last(trace: Trace, capacity: int | None) -> None:
    history = recorded(trace, DEFAULT_CONF, capacity_bytes=capacity)
    by_event = history.actions_by_event()
    assert [action for actions in by_event for action in actions] == list(history.actions)
    for index, actions in enumerate(by_event):
        event = trace.events[index]
        last = actions[-1].name
        if index == history.reached:
            assert (last, history.replay.failure is not None) == ("oom", True)
        else:
            assert last == ("alloc" if event >= 0 else "free")
        if event >= 0 and last == "alloc":
            assert actions[-1].size_bytes == trace.sizes[event] <= actions[-1].held_bytes


def test_a_refused_workspace_is_written_down_and_passed_over() -> None:
    scratch = Label(WORKSPACE_OPERATOR, "conv", "forward", "workspace")
    trace = Trace(
        batch_size=1,
        events=(0, 1, ~1, 2),
        sizes=(40 * MIB, 40 * MIB, 4 * MIB),
        labels=(*LABELS, scratch),
        labels_of=(2, 3, 2),
    )
    history = recorded(trace, DEFAULT_CONF, capacity_bytes=64 * MIB)
    assert history.replay.fits
    names = [[action.name for action in actions] for actions in history.actions_by_event()]
    assert names == [["segment_alloc", "alloc"], ["oom"], [], ["segment_alloc", "alloc"]]
    refused = history.actions[2]
    assert (refused.allocation, refused.size_bytes, refused.free_bytes) == (1, 40 * MIB, 24 * MIB)


def test_pages_that_are_unmapped_are_written_down_where_they_lie() -> None:
    """A free block from 30 to 60 MiB holds one page of 20 MiB whole; the small pool needs what that takes."""
    trace = Trace(
        batch_size=1, events=(0, 1, ~1, 2), sizes=(30 * MIB, 30 * MIB, 1024), labels=LABELS, labels_of=(2, 2, 2)
    )
    history = recorded(trace, AllocatorConf.parse("expandable_segments:True"), capacity_bytes=60 * MIB)
    assert history.replay.fits
    *_, refused = history.actions_by_event()
    base = history.actions[0].address
    assert [(a.name, a.size_bytes) for a in refused] == [
        ("segment_unmap", 20 * MIB), ("segment_map", 2 * MIB), ("alloc", 1024),
    ]  # fmt: skip
    assert refused[0].address == base + 40 * MIB
    assert history.reserved() == (40 * MIB, 60 * MIB, 60 * MIB, 42 * MIB)


def test_a_cache_that_is_emptied_between_two_events_belongs_to_the_second() -> None:
    allocator, trace = RecordingAllocator(), a_trace(hidden=10 * MIB)
    weights, inputs, hidden = (allocator.allocate(size) for size in trace.sizes)
    allocator.free(hidden)
    allocator.empty_cache()
    allocator.free(inputs)
    allocator.empty_cache()
    history = History(
        trace=trace,
        replay=replay(trace, CachingAllocator()),
        actions=tuple(allocator.actions),
        segments=allocator.segments(),
        conf=DEFAULT_CONF,
        capacity_bytes=None,
    )
    names = [[action.name for action in actions] for actions in history.actions_by_event()]
    made = ["segment_alloc", "alloc"]
    assert names == [made, made, made, ["free"], ["segment_free", "free", "segment_free"]]
    assert history.reserved()[-1] == allocator.reserved_bytes == sum(s.size_bytes for s in history.segments)
    assert weights in {segment.address for segment in history.segments}


def test_nothing_is_done_for_no_bytes() -> None:
    allocator = RecordingAllocator()
    allocator.free(allocator.allocate(0))
    allocator.allocate(1)
    assert [(action.name, action.allocation) for action in allocator.actions] == [("segment_alloc", 1), ("alloc", 1)]


def test_the_phases_follow_each_other_over_the_whole_trace() -> None:
    history = recorded(golden(8), DEFAULT_CONF)
    spans = history.phases()
    assert [span.first for span in spans] == [0, *(span.end for span in spans[:-1])]
    assert spans[-1].end == len(history.trace.events)
    assert all(span.first < span.end for span in spans)
    for span in spans:
        for event in (span.first, span.end - 1):
            assert history.trace.phase_at(event) == (span.phase, span.step)
    assert spans[0] == PhaseSpan(0, spans[0].end, "setup", 0)
    assert {span.phase for span in spans} >= {"inputs", "forward", "loss", "backward", "step"}


def test_the_end_that_is_left_out_is_the_models_own() -> None:
    whole, kept = golden(61), without_the_end(golden(61))
    left_out = whole.events[len(kept.events) :]
    assert left_out
    assert kept.events == whole.events[: len(kept.events)]
    assert all(event < 0 for event in left_out)
    assert whole.label(~left_out[0]).kind in ("weights", "buffers", "optimizer")
    history = recorded(kept, DEFAULT_CONF)
    assert history.replay == replay(whole, CachingAllocator())
    held = {kind: rows[-1] for kind, rows in history.held().items()}
    assert held["weights"] == max(history.held()["weights"])
    assert held["optimizer"] == max(history.held()["optimizer"])


@given(traces())
def test_what_is_left_out_of_any_trace_changes_no_peak(trace: Trace) -> None:
    kept = without_the_end(trace)
    assert without_the_end(kept) == kept
    assert replay(kept, CachingAllocator()) == replay(trace, CachingAllocator())

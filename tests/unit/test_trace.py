"""The trace as a value: its JSON, the law over the batch, and its replay."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.allocator import CachingAllocator
from sweeper.trace import SCHEMA, AffineTrace, NotAffine, Trace, TraceError, replay, replayed_breakdowns
from sweeper.trial import KINDS
from sweeper.units import MIB
from tests.traces import GOLDEN, LABELS, a_trace, golden, traces


@given(traces())
def test_a_trace_survives_json(trace: Trace) -> None:
    assert Trace.from_json(trace.to_json()) == trace


def test_the_marks_survive_json_and_say_the_phase() -> None:
    trace = Trace.from_json(a_trace().to_json())
    assert [trace.phase_at(event)[0] for event in range(5)] == ["setup", "inputs", "forward", "forward", "forward"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": SCHEMA + 1}, "schema"),
        ({"surplus": 1}, "surplus"),
        ({"events": [0, 1, 2, 2]}, "allocation 2, expected 3"),
        ({"events": [0, 2, 1]}, "allocation 2, expected 1"),
        ({"events": [0, -2, 1, 2]}, "frees allocation 1"),
        ({"events": [0, 1, 2, -1, -1]}, "frees allocation 0"),
        ({"events": [0, 1]}, "3 sizes but 2 allocations"),
        ({"events": [0, 1, "2"]}, "events"),
        ({"sizes": [1, 2]}, "allocation"),
        ({"labels_of": [0, 1, 3]}, "label"),
        ({"labels_of": [0, 1]}, "labels"),
        ({"labels": [["a", "b", "nowhere", "weights"]] * 3}, "nowhere"),
        ({"labels": [["a", "b"]] * 3}, "labels"),
        ({"marks": [[0, "setup"]]}, "marks"),
        ({"empties": [6]}, "empties"),
        ({"empties": [3, 1]}, "empties"),
        ({"empties": ["1"]}, "empties"),
    ],
)
def test_what_is_no_trace_is_an_error_that_says_why(change: dict[str, object], words: str) -> None:
    data = json.loads(a_trace().to_json()) | change
    with pytest.raises(TraceError, match=words):
        Trace.from_json(json.dumps(data))


def test_a_trace_of_the_first_schema_never_empties_the_cache() -> None:
    data = json.loads(a_trace().to_json()) | {"schema": 1}
    del data["empties"]
    assert Trace.from_json(json.dumps(data)) == a_trace()


def test_a_replay_gives_the_cache_back_where_the_step_did() -> None:
    # 30 MiB come and go, then 40 MiB: one segment after the other, or one at a time.
    kept = Trace(
        batch_size=1, events=(0, ~0, 1, ~1), sizes=(30 * MIB, 40 * MIB), labels=LABELS, labels_of=(2, 2)
    )  # fmt: skip
    peaks = [
        replay(dataclasses.replace(kept, empties=empties), CachingAllocator()).peak_reserved_bytes
        for empties in [(), (0,), (1,), (2,), (3,), (4,)]
    ]
    assert peaks == [70 * MIB, 70 * MIB, 70 * MIB, 40 * MIB, 70 * MIB, 70 * MIB]


def test_traces_that_give_the_cache_back_at_other_moments_are_on_no_line() -> None:
    with pytest.raises(NotAffine, match="event 2"):
        AffineTrace.join(a_trace(2), dataclasses.replace(a_trace(4), empties=(2,)))


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_what_is_no_object_with_a_schema_is_an_error(text: str) -> None:
    with pytest.raises(TraceError):
        Trace.from_json(text)


@given(traces(), st.integers(1, 50), st.integers(1, 50), st.integers(1, 500), st.data())
def test_two_traces_of_a_line_give_every_trace_of_it(
    shape: Trace, first: int, distance: int, other: int, data: st.DataObject
) -> None:
    fixed = [data.draw(st.integers(1, 10**6)) for _ in shape.sizes]
    slopes = [data.draw(st.integers(0, 10**6)) for _ in shape.sizes]

    def at(batch: int) -> Trace:
        sizes = tuple(a + b * batch for a, b in zip(fixed, slopes, strict=True))
        return dataclasses.replace(shape, batch_size=batch, sizes=sizes)

    law = AffineTrace.join(at(first), at(first + distance), at(other))
    assert law.at(other) == at(other)
    assert law == AffineTrace.join(at(first + distance), at(first))


def test_a_third_trace_off_the_line_is_caught() -> None:
    with pytest.raises(NotAffine) as caught:
        AffineTrace.join(a_trace(2), a_trace(4), a_trace(6, hidden=3 * MIB + 1))
    assert caught.value.event == 2


def test_bytes_on_no_line_of_whole_bytes_are_caught() -> None:
    odd = dataclasses.replace(a_trace(6), sizes=(5 * MIB, 6001, 6 * 3 * MIB))
    with pytest.raises(NotAffine) as caught:
        AffineTrace.join(a_trace(4), odd)
    assert caught.value.event == 1


@pytest.mark.parametrize(
    ("change", "event"),
    [
        ({"events": (0, 1, 2, ~1, ~2)}, 3),
        ({"events": (0, 1, 2, ~2)}, 4),
        ({"labels_of": (0, 1, 1)}, 2),
    ],
)
def test_traces_that_differ_name_the_first_event_that_does(change: dict[str, tuple[int, ...]], event: int) -> None:
    other = dataclasses.replace(a_trace(8), **change)  # type: ignore[arg-type]
    with pytest.raises(NotAffine) as caught:
        AffineTrace.join(a_trace(4), other)
    assert caught.value.event == event


def test_a_line_needs_two_batches() -> None:
    with pytest.raises(ValueError, match="two batches"):
        AffineTrace.join(a_trace(4), a_trace(4))


def test_the_law_says_nothing_below_one_or_of_negative_bytes() -> None:
    falling = dataclasses.replace(a_trace(8), sizes=(5 * MIB, 8000, 100))
    law = AffineTrace.join(a_trace(4, hidden=100), falling)
    for batch in (0, 10, 100):
        with pytest.raises(ValueError, match="nothing"):
            law.at(batch)


@given(traces())
def test_a_replay_is_the_allocator_event_by_event(trace: Trace) -> None:
    allocator, addresses = CachingAllocator(), []
    for index, event in enumerate(trace.events):
        if index in trace.empties:
            allocator.empty_cache()
        if event >= 0:
            addresses.append(allocator.allocate(trace.sizes[event]))
        else:
            allocator.free(addresses[~event])
    said = replay(trace, CachingAllocator())
    assert said.fits
    assert said.peak_allocated_bytes == allocator.peak_allocated_bytes
    assert said.peak_reserved_bytes == allocator.peak_reserved_bytes
    assert said.breakdown.total_bytes == allocator.peak_allocated_bytes


@given(traces(), st.integers(2 * MIB, 200 * MIB))
def test_a_replay_fits_or_names_what_did_not(trace: Trace, capacity: int) -> None:
    said = replay(trace, CachingAllocator(capacity_bytes=capacity))
    assert said.peak_reserved_bytes <= capacity
    if said.failure is None:
        assert said.peak_allocated_bytes == replay(trace, CachingAllocator()).peak_allocated_bytes
    else:
        failure = said.failure
        assert trace.events[failure.event] == failure.allocation
        assert failure.requested_bytes == trace.sizes[failure.allocation]
        assert failure.label == trace.label(failure.allocation)
        assert failure.segment_bytes > failure.free_bytes
        assert said.breakdown.total_bytes == said.peak_allocated_bytes


@given(traces())
def test_the_breakdown_is_the_moment_of_the_peak_and_the_holdings_are_each_kinds_own(trace: Trace) -> None:
    kinds = [trace.label(allocation).kind for allocation in range(len(trace.sizes))]
    at_peak, holdings, event = replayed_breakdowns(trace.events, trace.sizes, kinds)
    moments = []
    for end in range(len(trace.events) + 1):
        freed = {~e for e in trace.events[:end] if e < 0}
        alive = [e for e in trace.events[:end] if e >= 0 and e not in freed]
        moments.append({kind: sum(trace.sizes[n] for n in alive if kinds[n] == kind) for kind in KINDS})
    totals = [sum(moment.values()) for moment in moments]
    assert at_peak.total_bytes == max(totals)
    if trace.events:
        assert totals[event + 1] == max(totals)
    for kind in KINDS:
        assert getattr(holdings, kind) == max(moment[kind] for moment in moments)


# -- the golden traces: small-cnn's step as the worker traced it when the schema was new


each_schema = pytest.mark.parametrize("schema", GOLDEN)


@each_schema
def test_the_golden_traces_are_still_read_and_replay_to_the_same_peaks(schema: int) -> None:
    said = json.loads((GOLDEN[schema] / "peaks.json").read_text(encoding="utf-8"))
    assert len(said) >= 6
    for one in said:
        found = replay(golden(one["batch"], schema), CachingAllocator(capacity_bytes=one["capacity_bytes"]))
        assert found.fits == one["fits"]
        assert found.peak_allocated_bytes == one["peak_allocated_bytes"]
        assert found.peak_reserved_bytes == one["peak_reserved_bytes"]
        assert {kind: getattr(found.breakdown, kind) for kind in KINDS} == one["breakdown"]
    assert {one["fits"] for one in said} == {True, False}


def test_there_is_a_golden_trace_of_every_schema() -> None:
    assert list(GOLDEN) == list(range(1, SCHEMA + 1)), "run python -m tests.data.trace.make_golden once"


def test_a_golden_trace_of_the_present_schema_is_written_as_it_was_read() -> None:
    for path in GOLDEN[SCHEMA].glob("small-cnn-b*.json"):
        assert Trace.from_json(path.read_text(encoding="utf-8")).to_json() == path.read_text(encoding="utf-8").strip()


@each_schema
def test_two_golden_traces_give_the_third_event_by_event_and_to_the_byte(schema: int) -> None:
    law = AffineTrace.join(golden(4, schema), golden(8, schema))
    assert law.at(61) == golden(61, schema)
    assert any(law.per_sample)
    assert any(fixed and not slope for fixed, slope in zip(law.fixed, law.per_sample, strict=True))
    law.check(golden(61, schema))
    # One byte more in any allocation is off the line, and the law names it.
    third = golden(61, schema)
    for allocation in range(0, len(third.sizes), 17):
        sizes = (*third.sizes[:allocation], third.sizes[allocation] + 1, *third.sizes[allocation + 1 :])
        with pytest.raises(NotAffine) as caught:
            law.check(dataclasses.replace(third, sizes=sizes))
        assert third.events[caught.value.event] == allocation

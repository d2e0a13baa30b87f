"""A prediction is a replay at every size: its boundary is the one that trying every size would find."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.allocator import CachingAllocator
from sweeper.allocator_conf import AllocatorConf
from sweeper.prediction import (
    Prediction,
    Replays,
    Room,
    curve_sizes,
    largest_within,
    predict,
    predict_host,
    predict_within,
)
from sweeper.trace import AffineTrace, Label, Mark, replay
from sweeper.units import MIB
from sweeper.wire import from_jsonable, to_jsonable


def a_law(*, fixed: int = 3 * MIB, per_sample: int = MIB, workspace: int = 0) -> AffineTrace:
    """Weights and a workspace of a fixed size, and one activation a sample, which goes again."""
    return AffineTrace(
        events=(0, 1, 2, ~2),
        fixed=(fixed, workspace, 0),
        per_sample=(0, 0, per_sample),
        labels=(
            Label("to", "fc", "setup", "weights"),
            Label("cublas_workspace", "fc", "forward", "workspace"),
            Label("addmm", "fc", "forward", "activations"),
        ),
        labels_of=(0, 1, 2),
        marks=(Mark(0, "setup", 0), Mark(1, "forward", 0)),
    )


def fits(law: AffineTrace, size: int, capacity: int) -> bool:
    return replay(law.at(size), CachingAllocator(capacity_bytes=capacity)).fits


@pytest.mark.parametrize(("floor", "step"), [(1, 1), (1, 3), (4, 4), (5, 2), (30, 7)])
def test_the_boundary_is_the_one_that_trying_every_size_finds(floor: int, step: int) -> None:
    law = a_law(workspace=8 * MIB, per_sample=11 * MIB)  # from 10 MiB on a segment is no larger than it needs to be
    for capacity in range(4 * MIB, 600 * MIB, 14 * MIB):
        for cap in (floor, 31, 40):
            sizes = range(floor, cap + 1, step)
            good = [size for size in sizes if fits(law, size, capacity)]
            said = predict(law, capacity_bytes=capacity, cap=cap, floor=floor, step=step)
            assert said.max_batch == max(good, default=None)
            if said.max_batch is None or said.max_batch + step <= cap:
                assert said.failure is not None
                assert said.failure.size == (floor if said.max_batch is None else said.max_batch + step)
                assert not fits(law, said.failure.size, capacity)
            else:
                assert said.failure is None


@given(st.integers(1, 40 * MIB), st.integers(1, 5 * MIB), st.integers(1, 400 * MIB), st.integers(1, 300))
def test_both_sides_of_the_boundary_are_known(fixed: int, per_sample: int, capacity: int, cap: int) -> None:
    law = a_law(fixed=fixed, per_sample=per_sample)
    said = predict(law, capacity_bytes=capacity, cap=cap)
    if said.max_batch is not None:
        assert fits(law, said.max_batch, capacity)
        assert said.peak_bytes_at_max is not None
        assert said.peak_bytes_at_max <= capacity
    else:
        assert not any(fits(law, 1 << power, capacity) for power in range(cap.bit_length()))
    above = 1 if said.max_batch is None else said.max_batch + 1
    assert above > cap or not fits(law, above, capacity)
    assert (said.failure is None) == (above > cap)


def test_the_points_are_the_uncapped_peaks_and_include_both_sides() -> None:
    law = a_law()
    said = predict(law, capacity_bytes=40 * MIB, cap=100)
    assert said.max_batch is not None
    assert {said.max_batch, said.max_batch + 1} <= {point.size for point in said.points}
    for point in said.points:
        uncapped = replay(law.at(point.size), CachingAllocator())
        assert point.peak_reserved_bytes == uncapped.peak_reserved_bytes
        assert point.breakdown == uncapped.breakdown
        assert said.point(point.size) is point
    with pytest.raises(KeyError):
        said.point(1000)


def test_where_it_ran_out_is_the_replays_failure() -> None:
    said = predict(a_law(), capacity_bytes=40 * MIB, cap=100)
    assert said.failure is not None
    assert (said.failure.operator, said.failure.module, said.failure.phase) == ("addmm", "fc", "forward")
    assert said.failure.requested_bytes == said.failure.size * MIB


@given(
    st.integers(1, 9), st.integers(0, 500), st.integers(1, 7), st.one_of(st.none(), st.integers(0, 60)), st.booleans()
)
def test_the_curve_doubles_within_bounds_and_stays_on_the_grid(
    floor: int, more: int, step: int, found: int | None, capped: bool
) -> None:
    cap = floor + more
    largest = None if found is None else min(floor + found * step, floor + (cap - floor) // step * step)
    above = floor if largest is None else largest + step
    refused = above if above <= cap and not capped else None
    sizes = curve_sizes(floor=floor, cap=cap, step=step, largest=largest, refused=refused)
    assert list(sizes) == sorted(set(sizes))
    assert all(floor <= size <= cap and (size - floor) % step == 0 for size in sizes)
    assert floor in sizes
    assert {size for size in (largest, refused) if size is not None} <= set(sizes)
    assert len(sizes) <= cap.bit_length() + 4


@pytest.mark.parametrize(("floor", "cap", "step"), [(0, 5, 1), (6, 5, 1), (1, 5, 0)])
def test_no_range_is_an_error(floor: int, cap: int, step: int) -> None:
    with pytest.raises(ValueError, match="no sizes"):
        predict(a_law(), capacity_bytes=MIB, cap=cap, floor=floor, step=step)


def test_a_prediction_survives_json() -> None:
    for capacity in (MIB, 40 * MIB, 4000 * MIB):
        said = predict(a_law(), capacity_bytes=capacity, cap=64)
        assert from_jsonable(Prediction, json.loads(json.dumps(to_jsonable(said)))) == said


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(64, 10**6))
def test_on_the_host_the_peak_is_live_bytes_in_blocks_of_64_without_cuda_workspaces(
    fixed: int, per_sample: int, budget: int
) -> None:
    law = a_law(fixed=fixed, per_sample=per_sample, workspace=8 * MIB)
    said = predict_host(law, budget_bytes=budget, cap=200)
    peaks = {size: -(-fixed // 64) * 64 + -(-per_sample * size // 64) * 64 for size in range(1, 201)}
    assert said.max_batch == max((size for size, peak in peaks.items() if peak <= budget), default=None)
    assert all(point.peak_allocated_bytes == peaks[point.size] for point in said.points)
    assert said.method == "live bytes"


ROOMS = [
    Room(capacity_bytes=90 * MIB),
    Room(capacity_bytes=90 * MIB, limit_bytes=61 * MIB, total_bytes=100 * MIB),
]


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize(
    "words", ["", "expandable_segments:True", "garbage_collection_threshold:0.5", "per_process_memory_fraction:0.5"]
)
def test_what_is_not_replayed_is_what_the_replay_would_say(room: Room, words: str) -> None:
    conf = AllocatorConf.parse(words)
    for law in (a_law(), a_law(fixed=30 * MIB, per_sample=700_000), a_law(workspace=8 * MIB, per_sample=11 * MIB)):
        replays, fresh = Replays(law, conf), Replays(law, conf)
        for size in (1, 2, 5, 20, 28, 58, 59, 60, 61, 86, 87, 88, 200):
            replays.uncapped(size)
            assert replays.fits(size, room) == fresh.within(size, room).fits


@given(st.integers(1, 40 * MIB), st.integers(1, 5 * MIB), st.integers(1, 100))
def test_the_least_capacity_is_enough_and_a_page_less_is_not(fixed: int, per_sample: int, size: int) -> None:
    law = a_law(fixed=fixed, per_sample=per_sample)
    least = Replays(law).least_capacity_bytes(size)
    assert least % (2 * MIB) == 0
    assert fits(law, size, least)
    assert not fits(law, size, least - 2 * MIB)


@given(st.integers(1, 5 * MIB), st.integers(1, 3 * MIB), st.integers(1, 300), st.integers(1, 60))
def test_the_largest_batch_alone_is_that_of_the_whole_prediction(
    fixed: int, per_sample: int, pages: int, cap: int
) -> None:
    law, room = a_law(fixed=fixed, per_sample=per_sample), Room(capacity_bytes=pages * MIB)
    alone = largest_within(Replays(law), room, cap=cap)
    assert alone == predict_within(Replays(law), room, cap=cap).max_batch


def test_room_for_a_share_is_of_the_capacity_and_of_the_limit() -> None:
    room = Room(capacity_bytes=1000, limit_bytes=600, total_bytes=1200)
    assert room.times(0.5) == Room(capacity_bytes=500, limit_bytes=300, total_bytes=1200)
    assert Room(capacity_bytes=1000).times(1.5) == Room(capacity_bytes=1500)

"""The boundary in two dimensions: at each length the one that trying every batch would find."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.boundary import CardJob, FrontierPoint, HostJob, largest_batch, lengths_up_to, map_batches, spread
from sweeper.cards import card
from sweeper.prediction import Replays, Room, largest_within, predict_host
from sweeper.units import MIB
from tests.frontiers import a_frontier
from tests.unit.test_prediction import a_law


class Threshold:
    """Fits up to ``fits``; its tensors alone would fit up to ``may_fit``."""

    def __init__(self, fitting: int, possible: int) -> None:
        self._fitting, self._possible = fitting, possible
        self.asked: list[int] = []

    def fits(self, batch: int) -> bool:
        assert batch >= 1
        self.asked.append(batch)
        return batch <= self._fitting

    def may_fit(self, batch: int) -> bool:
        return batch <= self._possible

    def live_bytes(self, batch: int) -> int:
        return batch

    peak_bytes = live_bytes


@pytest.mark.parametrize("cap", [1, 2, 7, 64])
def test_the_largest_batch_is_the_threshold_whatever_the_tensors_alone_say(cap: int) -> None:
    for fitting in range(cap + 3):
        for possible in range(fitting, cap + 5):
            job = Threshold(fitting, possible)
            assert largest_batch(job, cap) == (min(fitting, cap) or None)
            # Few replays where what the allocator adds is little.
            gap = min(possible, cap) - min(fitting, cap)
            assert len(job.asked) <= 2 + 2 * gap.bit_length()


@given(st.sets(st.integers(1, 40)), st.integers(1, 40))
def test_where_memory_does_not_grow_steadily_the_next_batch_still_does_not_fit(fitting: set[int], cap: int) -> None:
    class Any(Threshold):
        def fits(self, batch: int) -> bool:
            return batch in fitting

    found = largest_batch(Any(0, 40), cap)
    assert found is None or found in fitting
    assert (found or 0) == cap or (found or 0) + 1 not in fitting


@pytest.mark.parametrize("capacity", [MIB, 30 * MIB, 200 * MIB, 1024 * MIB])
@pytest.mark.parametrize("limit", [None, 150 * MIB])
def test_on_a_card_it_is_what_a_prediction_finds(capacity: int, limit: int | None) -> None:
    law = a_law(workspace=8 * MIB, per_sample=11 * MIB)
    room = Room(capacity_bytes=capacity, limit_bytes=limit)
    job = CardJob(Replays(law), room)
    found = largest_batch(job, 60)
    assert found == largest_within(Replays(law), room, cap=60)
    if found is not None:
        assert job.live_bytes(found) <= job.peak_bytes(found) <= room.least_bytes


@pytest.mark.parametrize("budget", [MIB, 30 * MIB, 200 * MIB, 1024 * MIB])
def test_on_the_host_it_is_the_same_first_guess(budget: int) -> None:
    law = a_law(per_sample=11 * MIB)
    said = predict_host(law, budget_bytes=budget, cap=60)
    job = HostJob(law, budget)
    assert largest_batch(job, 60) == said.max_batch
    if said.max_batch is not None:
        assert job.peak_bytes(said.max_batch) == said.peak_bytes_at_max


@given(st.integers(1, 200_000), st.integers(1, 64))
def test_lengths_are_multiples_and_some_twenty_to_forty(longest: int, token_step: int) -> None:
    lengths, step = lengths_up_to(longest, shortest=None, step=None, token_step=token_step)
    assert step % token_step == 0
    assert all(length % step == 0 for length in lengths)
    assert len(lengths) <= 40
    if longest >= 40 * token_step:
        assert len(lengths) >= 20
        assert lengths[-1] > longest - step


@pytest.mark.parametrize(
    ("longest", "shortest", "step", "found"),
    [
        (4096, None, None, range(128, 4097, 128)),
        (1024, None, None, range(32, 1025, 32)),
        (4096, 1000, None, range(1024, 4097, 128)),
        (1000, 100, 300, range(300, 1001, 300)),
        (100, None, 128, range(0)),
        (7, 7, 7, range(7, 8, 7)),
    ],
)
def test_lengths_that_are_asked_for(longest: int, shortest: int | None, step: int | None, found: range) -> None:
    lengths, _ = lengths_up_to(longest, shortest=shortest, step=step)
    assert list(lengths) == list(found)


@given(st.integers(1, 5000))
def test_the_rows_of_the_map_go_from_one_to_the_cap(cap: int) -> None:
    batches = map_batches(cap)
    assert (batches[0], batches[-1]) == (1, cap)
    assert list(batches) == sorted(set(batches))
    assert len(batches) <= 25


@given(st.lists(st.integers(1, 10_000), min_size=1, unique=True), st.integers(1, 20))
def test_points_that_are_spread_are_different_ones_with_both_ends(lengths: list[int], count: int) -> None:
    points = [FrontierPoint(length=length, max_batch=1) for length in sorted(lengths)]
    chosen = spread(points, count)
    assert len(set(chosen)) == len(chosen) == min(count, len(points))
    assert list(chosen) == sorted(chosen, key=lambda point: point.length)
    if count > 1:
        assert {points[0], points[-1]} <= set(chosen)
    assert spread((), count) == ()


def test_most_tokens_are_those_of_the_shortest_length_that_has_them() -> None:
    found = a_frontier({128: 64, 256: 40, 512: 20, 1024: 10, 2048: None})
    assert found.best is not None
    assert (found.best.length, found.best.max_batch, found.best.tokens) == (256, 40, 10_240)
    assert a_frontier({128: None}).best is None
    assert found.card == card("rtx4060")

"""The recommended batch: never more than is proven, in few trials, and close to the best there is."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.recommend import Recommendation

MIB = 1 << 20
MOST_MISSES = 3


def recommendation(
    answer: int,
    *,
    peak: Callable[[int], int],
    capacity_bytes: int,
    sizes: tuple[int, ...] = (),
    floor: int = 1,
    margin: float = 0.05,
    round_to: int = 1,
    reached: float = 0.9,
) -> Recommendation:
    """``sizes`` up to ``answer`` fitted; ``reached`` of what they reserved is allocated, and the answer took it all."""
    allocated = {size: peak(size) for size in (*sizes, answer) if size <= answer}
    reserved = {size: min(capacity_bytes, math.ceil(peak / reached)) for size, peak in allocated.items()}
    return Recommendation(
        answer=answer,
        floor=floor,
        margin=margin,
        round_to=round_to,
        capacity_bytes=capacity_bytes,
        allocated=allocated,
        reserved={**reserved, answer: capacity_bytes},
    )


def tried(known: Recommendation, size: int, fits: bool) -> Recommendation:
    return replace(known, tried={**known.tried, size: fits})


def run(known: Recommendation, fits: Callable[[int], bool]) -> Recommendation:
    """Answer until nothing is asked; fails rather than hangs when it loops."""
    while (size := known.next_size()) is not None:
        assert size not in known.tried
        assert len(known.tried) <= MOST_MISSES, f"no end in sight: {known.tried}"
        known = tried(known, size, fits(size))
    return known


def every_ending(known: Recommendation) -> Iterator[Recommendation]:
    """Every end that can come of answering each question in every way."""
    size = known.next_size()
    if size is None:
        yield known
        return
    assert size not in known.tried
    assert known.floor <= size <= known.answer
    assert size % known.round_to == 0
    assert len(known.tried) <= MOST_MISSES
    for fits in (True, False):
        yield from every_ending(tried(known, size, fits))


def check(known: Recommendation) -> None:
    misses = [size for size, fits in known.tried.items() if not fits]
    assert len(misses) <= MOST_MISSES
    size = known.size
    if size is None:
        return
    assert known.floor <= size <= known.answer
    assert size % known.round_to == 0
    assert all(size < miss for miss in misses)
    ran_withheld = known.tried.get(size, False)
    stayed_within = known.reserved.get(size, known.capacity_bytes + 1) <= (1 - known.margin) * known.capacity_bytes + 1
    assert ran_withheld or stayed_within or known.withheld_bytes == 0


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("round_to", [1, 4, 7, 100])
@pytest.mark.parametrize("fixed", [0, 50, 5000])
def test_no_sequence_of_answers_makes_it_recommend_what_is_not_proven(margin: float, round_to: int, fixed: int) -> None:
    for answer in range(1, 65):
        for floor in {1, (answer + 1) // 2, answer}:
            known = recommendation(
                answer,
                peak=lambda size: fixed + 10 * size,
                capacity_bytes=fixed + 10 * answer + 5,
                sizes=tuple(size for size in (1, 2, 4, 8, 16, 32) if size >= floor),
                floor=floor,
                margin=margin,
                round_to=round_to,
            )
            for ending in every_ending(known):
                check(ending)


@settings(max_examples=200, deadline=None)
@given(
    answer=st.integers(1, 10**6),
    peaks=st.dictionaries(st.integers(1, 10**6), st.integers(1, 10**12), max_size=8),
    reserved=st.dictionaries(st.integers(1, 10**6), st.integers(1, 10**12), max_size=8),
    measured=st.booleans(),
    capacity_bytes=st.integers(1, 10**12),
    margin=st.floats(0, 0.999),
    round_to=st.integers(1, 1000),
)
def test_nothing_unproven_whatever_the_peaks(
    answer: int,
    peaks: dict[int, int],
    reserved: dict[int, int],
    measured: bool,
    capacity_bytes: int,
    margin: float,
    round_to: int,
) -> None:
    known = Recommendation(
        answer=answer,
        floor=1,
        margin=margin,
        round_to=round_to,
        capacity_bytes=capacity_bytes,
        allocated={**peaks, answer: 10**12} if measured else peaks,
        reserved=reserved,
    )
    for ending in every_ending(known):
        check(ending)


@settings(max_examples=300, deadline=None)
@given(
    fixed=st.integers(0, 2000 * MIB),
    slope=st.integers(1 * MIB, 40 * MIB),
    answer=st.integers(8, 100_000),
    reached=st.floats(0.85, 1),
    margin=st.floats(0.01, 0.3),
    round_to=st.sampled_from([1, 8, 32]),
)
def test_where_memory_runs_out_in_proportion_it_is_within_three_percent_of_the_best(
    fixed: int, slope: int, answer: int, reached: float, margin: float, round_to: int
) -> None:
    capacity_bytes = math.ceil((fixed + slope * answer + slope // 2) / reached)

    def threshold(limit_bytes: int) -> int:
        return max(0, math.floor((reached * limit_bytes - fixed) / slope))

    sizes = tuple(1 << power for power in range(answer.bit_length()))
    known = recommendation(
        answer,
        peak=lambda size: fixed + slope * size,
        capacity_bytes=capacity_bytes,
        sizes=sizes,
        margin=margin,
        round_to=round_to,
        reached=reached,
    )
    true_best = threshold(capacity_bytes - known.withheld_bytes)
    known = run(known, fits=lambda size: size <= true_best)
    check(known)
    best = true_best // round_to * round_to
    assert (known.size or 0) <= best
    if best:
        assert sum(not fits for fits in known.tried.values()) == 0
        # One size for the halves that are rounded away, one multiple where that size is just below it.
        assert (known.size or 0) >= best - max(1, 0.03 * true_best) - (round_to - 1)


def test_a_miss_goes_lower_by_more_each_time_and_three_end_it() -> None:
    known = recommendation(437, peak=lambda size: 20 * size, capacity_bytes=10_000, sizes=(16, 64, 256))
    asked = []
    while (size := known.next_size()) is not None:
        asked.append(size)
        known = tried(known, size, False)
    assert len(asked) == MOST_MISSES
    first, second, third = asked
    assert 0 < first - second < second - third
    assert known.size == 256  # reserved 5689 of 10,000 when nothing was withheld


def test_a_fit_after_misses_is_recommended_and_nothing_more_is_run() -> None:
    for misses in range(MOST_MISSES):
        known = recommendation(437, peak=lambda size: 20 * size, capacity_bytes=10_000)
        for _ in range(misses):
            size = known.next_size()
            assert size is not None
            known = tried(known, size, False)
        size = known.next_size()
        assert size is not None
        known = tried(known, size, True)
        assert (known.size, known.next_size()) == (size, None)


def test_a_size_that_never_reserved_more_than_the_limit_needs_no_trial() -> None:
    known = recommendation(512, peak=lambda size: 20 * size, capacity_bytes=50_000)
    known = replace(known, reserved={512: 47_500})
    assert (known.size, known.next_size()) == (512, None)
    assert replace(known, reserved={512: 47_501}).size is None


def test_what_gains_no_more_than_a_percent_is_not_run() -> None:
    known = recommendation(1000, peak=lambda size: 20 * size, capacity_bytes=20_000)
    for proven, worth in ((941, False), (940, True)):
        near = replace(known, reserved={proven: 19_000})
        assert near.size == proven
        assert near.next_size() == (950 if worth else None)


def test_a_miss_outranks_what_was_reserved_above_it() -> None:
    known = recommendation(437, peak=lambda size: 20 * size, capacity_bytes=10_000, sizes=(200, 256))
    assert known.size == 256
    assert tried(known, 256, False).size == 200
    assert tried(known, 100, False).size is None


@pytest.mark.parametrize("margin", [0.0, 1e-9])
def test_with_nothing_withheld_the_answer_itself_is_recommended_whatever_it_reserved(margin: float) -> None:
    # Resident bytes on the cpu can be more than a limit on the data segment.
    known = recommendation(437, peak=lambda size: 20 * size, capacity_bytes=10_000, margin=margin)
    known = replace(known, reserved={437: 10_700})
    assert (known.withheld_bytes, known.size, known.next_size()) == (0, 437, None)


def test_the_only_multiple_is_found_or_nothing_is_asked() -> None:
    for round_to in range(1, 40):
        known = recommendation(
            20, peak=lambda size: 20 * size, capacity_bytes=405, sizes=(1, 2, 4, 8, 16), floor=5, round_to=round_to
        )
        known = run(known, fits=lambda size: size <= 19)
        check(known)
        multiples = [size for size in range(5, 20) if size % round_to == 0]
        assert (known.size is None) == (not multiples)


def test_without_the_answers_peak_the_answer_is_tried_first() -> None:
    known = recommendation(100, peak=lambda size: 20 * size, capacity_bytes=2_001)
    assert replace(known, allocated={50: 1000}).next_size() == 100


def test_a_margin_that_leaves_next_to_nothing_ends_when_there_is_no_lower_to_go() -> None:
    known = recommendation(1000, peak=lambda size: 20 * size, capacity_bytes=20_001, margin=0.95)
    known = run(known, fits=lambda size: False)
    assert (sorted(known.tried), known.size) == ([30, 50], None)

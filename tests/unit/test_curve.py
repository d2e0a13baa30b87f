"""The memory law and its neighbours: what measured peaks say, and where they say nothing."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.curve import MemoryLaw, estimate_limit, fit_law, knee, size_at_peak

MIB = 1 << 20
SIZES = (8, 16, 32, 64, 128, 256)

lines = st.tuples(st.integers(0, 4000 * MIB), st.integers(1, 100 * MIB))


def on_line(fixed: int, slope: int, sizes: tuple[int, ...] = SIZES) -> dict[int, int]:
    return {size: fixed + slope * size for size in sizes}


@given(line=lines, sizes=st.sets(st.integers(1, 10_000), min_size=2, max_size=8))
def test_a_line_is_found_again(line: tuple[int, int], sizes: set[int]) -> None:
    fixed, slope = line
    law = fit_law(on_line(fixed, slope, tuple(sizes)).items())
    assert law is not None
    assert law.fixed_bytes == pytest.approx(fixed, rel=1e-6, abs=2)
    assert law.per_sample_bytes == pytest.approx(slope, rel=1e-6)
    assert law.r_squared == pytest.approx(1)
    assert law.worst_relative_error < 1e-6
    assert (law.points_used, law.floor_bytes) == (len(sizes), None)


squares = st.tuples(st.integers(0, 4000 * MIB), st.integers(0, 4 * MIB), st.integers(64, 64 * 1024))
LENGTHS = (8, 32, 128, 512, 2048)


def on_square(fixed: int, slope: int, bend: int, sizes: tuple[int, ...] = LENGTHS) -> dict[int, int]:
    return {size: fixed + slope * size + bend * size * size for size in sizes}


@given(square=squares)
def test_a_square_is_found_again_where_a_line_misses_the_peaks_and_only_where_it_may_be(
    square: tuple[int, int, int],
) -> None:
    points = on_square(*square)
    straight, law = fit_law(points.items()), fit_law(points.items(), curved=True)
    assert straight is not None
    assert law is not None
    assert straight.per_square_bytes == 0
    if law.per_square_bytes:
        assert law.per_square_bytes == pytest.approx(square[2], rel=1e-3)
        assert law.worst_relative_error < 1e-3
    else:
        assert law == straight
        assert law.worst_relative_error <= 0.01


@given(line=lines, noise=st.lists(st.floats(-0.003, 0.003), min_size=5, max_size=5))
def test_a_line_is_no_square_whatever_the_allocator_rounds(line: tuple[int, int], noise: list[float]) -> None:
    points = on_line(*line, sizes=LENGTHS)
    rough = {size: round(peak * (1 + off)) for (size, peak), off in zip(points.items(), noise, strict=True)}
    law, straight = fit_law(rough.items(), curved=True), fit_law(rough.items())
    assert law is not None
    assert straight is not None
    assert law.per_square_bytes == 0 or straight.worst_relative_error > 0.01


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_square_takes_three_sizes_and_four_above_a_level(count: int) -> None:
    bent = fit_law(list(on_square(MIB, 0, 1024).items())[-count:], curved=True)
    assert bent is not None
    assert (bent.per_square_bytes > 0) == (count >= 3)
    level = 40 * MIB
    levelled = {4: level, **{size: max(level, peak) for size, peak in on_square(MIB, 0, 1024).items()}}
    law = fit_law(levelled.items(), curved=True)
    assert law is not None
    assert law.points_used >= 4 or law.per_square_bytes == 0


@given(square=squares, beyond=st.integers(1, 5000))
def test_a_curved_law_reaches_the_largest_size_within_the_capacity(square: tuple[int, int, int], beyond: int) -> None:
    fixed, slope, bend = square
    law = MemoryLaw(
        fixed_bytes=fixed, per_sample_bytes=float(slope), per_square_bytes=float(bend),
        r_squared=1, worst_relative_error=0, points_used=6,
    )  # fmt: skip
    assert law.largest_size(law.peak_bytes(beyond)) == beyond
    assert law.largest_size(law.peak_bytes(beyond) - 1) == beyond - 1
    assert law.largest_size(fixed - 1) == 0


@given(square=squares, beyond=st.integers(1, 2000))
def test_a_parabola_says_where_bent_peaks_reach_the_capacity(square: tuple[int, int, int], beyond: int) -> None:
    points = on_square(*square)
    capacity = on_square(*square, sizes=(max(points) + beyond,)).popitem()[1]
    bent, line = estimate_limit(points, capacity, curved=True), estimate_limit(points, capacity)
    assert bent is not None
    assert line is not None
    third, near, far = sorted(points)[-3:]
    chord = points[far] - (points[far] - points[near]) * (far - third) // (far - near)
    if points[third] - chord > 0.011 * points[third] + 1:
        assert abs(bent.size - (max(points) + beyond)) <= 1
    elif points[third] - chord < 0.009 * points[third] - 1:
        assert bent == line
    flat = on_line(square[0], square[1] + 1, sizes=LENGTHS)
    assert estimate_limit(flat, capacity, curved=True) == estimate_limit(flat, capacity)


@given(line=lines, beyond=st.integers(0, 5000))
def test_the_law_reaches_the_largest_size_within_the_capacity(line: tuple[int, int], beyond: int) -> None:
    fixed, slope = line
    law = MemoryLaw(
        fixed_bytes=fixed, per_sample_bytes=float(slope), r_squared=1, worst_relative_error=0, points_used=6
    )
    for spare in (0, slope // 2, slope - 1):
        assert law.largest_size(fixed + slope * beyond + spare) == beyond
    assert law.largest_size(fixed - 1) == 0


@settings(max_examples=50)
@given(fixed=st.integers(100 * MIB, 1000 * MIB), slope=st.integers(8 * MIB, 40 * MIB), on_level=st.integers(1, 3))
def test_small_sizes_on_the_level_of_the_optimizer_step_are_kept_out_of_the_line(
    fixed: int, slope: int, on_level: int
) -> None:
    level = fixed + slope * (SIZES[on_level] - 1)
    points = {size: max(level, peak) for size, peak in on_line(fixed, slope).items()}
    law = fit_law(points.items())
    assert law is not None
    assert law.points_used == len(SIZES) - on_level
    assert law.floor_bytes == level
    assert law.worst_relative_error < 0.01
    assert law.per_sample_bytes == pytest.approx(slope, rel=0.02)
    for size, peak in points.items():
        assert law.peak_bytes(size) == pytest.approx(peak, rel=0.01)


def test_a_level_is_named_and_bounds_what_fits() -> None:
    level = 2000 * MIB
    points = {size: max(level, peak) for size, peak in on_line(100 * MIB, 20 * MIB).items()}
    law = fit_law(points.items())
    assert law is not None
    assert law.floor_bytes == level
    assert law.peak_bytes(1) == level
    assert law.largest_size(level - 1) == 0
    assert law.largest_size(level) == 95
    assert law.largest_size(100 * MIB + 437 * 20 * MIB) == 437


def test_noise_of_the_allocator_is_not_taken_for_a_level() -> None:
    for seed in range(200):
        noise = random.Random(seed)
        points = {
            size: int(peak * (1 + noise.uniform(-0.02, 0.02))) for size, peak in on_line(300 * MIB, 20 * MIB).items()
        }
        law = fit_law(points.items())
        assert law is not None
        assert law.per_sample_bytes == pytest.approx(20 * MIB, rel=0.05)
        assert law.worst_relative_error < 0.2


def test_one_size_is_no_law_and_the_larger_of_two_runs_counts() -> None:
    assert fit_law([]) is None
    assert fit_law([(8, 100), (8, 200)]) is None
    law = fit_law([(8, 100), (8, 108), (16, 116), (16, 10)])
    assert law is not None
    assert law.fixed_bytes == 100
    assert law.per_sample_bytes == pytest.approx(1)


@pytest.mark.parametrize("slope", [0, -3 * MIB])
def test_a_law_that_does_not_rise_puts_no_bound_on_the_size(slope: int) -> None:
    law = fit_law(on_line(3000 * MIB, slope).items())
    assert law is not None
    assert law.per_sample_bytes <= 0
    assert law.largest_size(8000 * MIB) is None


# -- the estimate the search uses -------------------------------------------------------------------------------------


@given(line=lines, threshold=st.integers(257, 1000), spare=st.floats(0, 0.999))
def test_affine_peaks_give_the_boundary_exactly_and_without_doubt(
    line: tuple[int, int], threshold: int, spare: float
) -> None:
    fixed, slope = line
    capacity_bytes = fixed + slope * threshold + math.floor(slope * spare)
    found = estimate_limit(on_line(fixed, slope), capacity_bytes)
    assert found is not None
    assert (found.size, found.doubt) == (threshold, 0)


@pytest.mark.parametrize("slope", [0, -3 * MIB])
def test_a_flat_or_falling_line_is_distrusted(slope: int) -> None:
    assert estimate_limit(on_line(3000 * MIB, slope), 8000 * MIB) is None


def test_no_line_without_two_sizes() -> None:
    assert estimate_limit({}, 100) is None
    assert estimate_limit({8: 50}, 100) is None


def test_a_nearly_flat_line_does_not_promise_more_than_four_times_the_largest_size() -> None:
    found = estimate_limit({8: 1000, 16: 1000, 32: 1001}, 10**9)
    assert found is not None
    assert found.size == 128


def test_two_sizes_close_together_are_not_made_into_a_slope() -> None:
    points = {**on_line(300, 10), 437: 300 + 4370 + 40, 438: 300 + 4380 - 40}
    found = estimate_limit(points, 300 + 5000)
    assert found is not None
    assert found.size == pytest.approx(500, abs=10)


@pytest.mark.parametrize("share", [0.005, 0.01, 0.02])
def test_the_doubt_grows_with_the_noise_and_covers_it_mostly(share: float) -> None:
    covered, doubts = 0, []
    for seed in range(300):
        noise = random.Random(seed)
        points = {
            size: int(peak * (1 + noise.uniform(-share, share))) for size, peak in on_line(300 * MIB, 20 * MIB).items()
        }
        found = estimate_limit(points, 300 * MIB + 437 * 20 * MIB)
        assert found is not None
        doubts.append(found.doubt)
        covered += abs(found.size - 437) <= 2 * found.doubt + 1
    assert covered > 200
    assert 0.2 * share * 437 < sum(doubts) / len(doubts) < 5 * share * 437


# -- between the points -----------------------------------------------------------------------------------------------


def interpolated(points: dict[int, int], size: int) -> int | None:
    """The peak at ``size`` on the straight line between its measured neighbours; None outside of them."""
    if size in points:
        return points[size]
    low, high = max((s for s in points if s < size), default=None), min((s for s in points if s > size), default=None)
    if low is None or high is None:
        return None
    return points[low] + (points[high] - points[low]) * (size - low) // (high - low)


@given(
    peaks=st.dictionaries(st.integers(1, 300), st.integers(1, 10**6), max_size=6), target_bytes=st.integers(0, 10**6)
)
def test_the_size_at_a_peak_is_the_last_that_interpolation_puts_within_it(
    peaks: dict[int, int], target_bytes: int
) -> None:
    size = size_at_peak(peaks, target_bytes)
    through = {0: 0, **peaks}
    peak_there, peak_after = interpolated(through, size), interpolated(through, size + 1)
    assert peak_there is not None
    assert peak_there <= target_bytes
    assert peak_after is None or peak_after >= target_bytes
    assert size <= max(peaks, default=0)


def test_the_knee_is_the_smallest_size_within_five_percent_of_the_fastest() -> None:
    speed = {8: 50.0, 16: 90.0, 32: 96.0, 64: 100.0, 128: 99.0}
    assert knee(speed) == 32
    assert knee(speed, within=0.1) == 16
    assert knee(speed, within=0.0) == 64
    assert knee({8: 3.0}) == 8
    assert knee({}) is None

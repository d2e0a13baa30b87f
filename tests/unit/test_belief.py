"""The belief about the boundary: shapes that are shares, cuts that cut, and how two estimates stand to each other."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.belief import Belief, Estimates, Shape, Standing, anywhere, even, spread

MIB = 1 << 20
FIXED_BYTES, SLOPE_BYTES = 300 * MIB, 20 * MIB

sizes = st.integers(-10, 300)
shapes: st.SearchStrategy[Shape] = st.one_of(
    st.builds(lambda c, w, r: spread(c, width=w, reach=r), sizes, st.floats(0, 20), st.floats(0, 100)),
    st.builds(even, sizes, sizes),
    st.builds(anywhere, st.integers(1, 300)),
)
beliefs = st.lists(st.tuples(st.floats(0.01, 1), shapes), max_size=5).map(
    lambda parts: Belief(((0.02, anywhere(300)), *parts))
)


def on_line(*measured: int) -> Mapping[int, int]:
    return {size: FIXED_BYTES + SLOPE_BYTES * size for size in measured}


@given(shape=shapes, points=st.lists(st.floats(-1000, 1000), min_size=2, max_size=20))
def test_a_shape_grows_from_nothing_to_all_of_it(shape: Shape, points: list[float]) -> None:
    shares = [shape(point) for point in sorted(points)]
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    assert (shape(-1000), shape(1000)) == (0, 1)


def test_a_spread_is_balanced_and_looks_closer_at_its_centre() -> None:
    shape = spread(100, width=1, reach=50)
    assert shape(100) == 0.5
    for distance in range(1, 60):
        assert shape(100 + distance) + shape(100 - distance) == pytest.approx(1)
    near, far = shape(101) - shape(100), shape(140) - shape(139)
    assert near > 10 * far > 0
    assert (shape(50), shape(150)) == (0, 1)


def test_a_spread_without_a_width_is_its_centre() -> None:
    shape = spread(100, width=0, reach=0)
    assert [shape(size) for size in (99.5, 100, 100.5)] == [0, 0, 1]


@settings(max_examples=200, deadline=None)
@given(
    belief=beliefs,
    low=st.integers(0, 100),
    count=st.integers(2, 40),
    step=st.integers(1, 4),
    failing=st.floats(0.05, 0.95),
    closed=st.booleans(),
)
def test_the_cut_is_the_size_whose_chance_to_fail_is_nearest_to_the_one_wished(
    belief: Belief, low: int, count: int, step: int, failing: float, closed: bool
) -> None:
    high = low + count * step
    size = belief.cut(low, high, step=step, failing=failing, closed=closed)
    assert low < size < high
    assert (size - low) % step == 0
    least = belief.below(low - step / 2)
    most = belief.below(high - step / 2) if closed else belief.below(10_000)

    def off(size: int) -> float:
        return abs(belief.below(size - step / 2) - least - failing * (most - least))

    assert off(size) <= min(off(other) for other in range(low + step, high, step)) + 1e-9


def test_a_point_that_outweighs_the_rest_is_cut_on_the_side_where_the_rest_lies() -> None:
    for other, expected in ((150, 101), (50, 100)):
        belief = Belief(((0.6, spread(100, width=0, reach=0)), (0.4, spread(other, width=0, reach=0))))
        assert belief.cut(0, 200, step=1, failing=0.5) == expected


@pytest.mark.parametrize(
    ("predicted", "standing"),
    [
        (None, "alone"),
        (300, "contradicted"),
        (368, "contradicted"),
        (369, "believed"),
        (437, "believed"),
        (438, "doubted"),
        (468, "doubted"),
        (469, "contradicted"),
    ],
)
def test_a_prediction_stands_to_the_line_by_the_share_of_the_capacity_it_reaches(
    predicted: int | None, standing: Standing
) -> None:
    # The capacity is 9,040 MiB: 85 % of it are reached at (7,684 - 300) / 20 = 369 samples, 107 % at 468.
    capacity_bytes = FIXED_BYTES + SLOPE_BYTES * 437
    estimates = Estimates.of(on_line(64, 128, 256), capacity_bytes, predicted)
    assert estimates.standing == standing
    assert estimates.line is not None
    assert estimates.line.size == 437


def test_without_peaks_or_a_capacity_there_is_no_line_and_without_any_voice_no_belief() -> None:
    for estimates in (Estimates.of({}, 10**9, None), Estimates.of(on_line(8, 16), None, None)):
        assert (estimates.line, estimates.standing, estimates.belief(512)) == (None, "alone", None)
    assert Estimates.of({}, None, 437).belief(512) is not None


def test_clear_is_above_both_voices_or_well_above_a_single_one() -> None:
    capacity_bytes = FIXED_BYTES + SLOPE_BYTES * 437
    measured = on_line(64, 128, 256)
    for predicted, expected in (
        (400, (437, 0.0)),
        (450, (450, 0.0)),
        (None, (437, 0.08 * 437)),
        (100, (437, 0.08 * 437)),
    ):
        guess, doubt = Estimates.of(measured, capacity_bytes, predicted).clear
        assert (guess, round(doubt, 6)) == expected
    assert Estimates.of({}, None, 400).clear == (400, 32.0)

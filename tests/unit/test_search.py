"""The laws of the search: over every threshold, over every sequence of answers, and over many laws of the peak."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.search import Listed, Probe, Search

MIB = 1 << 20
FIXED_BYTES, SLOPE_BYTES = 300 * MIB, 20 * MIB + 4321

Peak = Callable[[int], int | None]
Log = list[tuple[int, str]]


def line(size: int) -> int:
    return FIXED_BYTES + SLOPE_BYTES * size


def capacity_for(threshold: int) -> int:
    """Bytes under which ``line`` lets exactly ``threshold`` fit."""
    return line(threshold) + SLOPE_BYTES // 3


LAWS: dict[str, Peak] = {
    "unmeasured": lambda size: None,
    "linear": line,
    "noisy": lambda size: int(line(size) * (1 + random.Random(size).uniform(-0.02, 0.02))),
    "flat": lambda size: FIXED_BYTES,
    "falling": lambda size: FIXED_BYTES - size * MIB,
    "stepped": lambda size: line(size) // (100 * MIB) * 100 * MIB,
    "on a level": lambda size: max(line(24), line(size)),
    "biased": lambda size: int(0.9 * line(size)),
}


def run(search: Search, *, threshold: int, peak: Peak = line) -> tuple[Search, Log]:
    """Answer by ``threshold`` until nothing is asked; fails rather than hangs when the search loops."""
    log: Log = []
    while (size := search.next_size()) is not None:
        log.append((size, search.purpose))
        assert len(log) <= 200, f"no end in sight: {log}"
        search = search.after(size, size <= threshold, peak(size) if size <= threshold else None)
    return search, log


def boundary_sizes(search: Search, log: Log) -> set[int]:
    return {size for size, purpose in log if purpose == "boundary"}


def check_end(search: Search, log: Log, *, threshold: int) -> None:
    expected = search.floor + (min(threshold, search.top) - search.floor) // search.step * search.step
    assert search.answer == (expected if expected >= search.floor else None)
    assert search.proven
    assert search.not_monotone == () == search.unsteady
    assert all(search.floor <= size <= search.cap and (size - search.floor) % search.step == 0 for size, _ in log)
    assert len(boundary_sizes(search, log)) <= search.trial_bound <= 2 + math.log2(search.cap)
    assert sum(purpose == "curve" for _, purpose in log) <= search.points
    repeated = len(log) - len({size for size, _ in log})
    assert repeated == (search.confirm - 1 if search.answer is not None else 0)


@pytest.mark.parametrize("cap", range(1, 65))
def test_the_answer_is_the_threshold_whatever_it_is(cap: int) -> None:
    for threshold in range(cap + 2):
        for capacity_bytes in (None, capacity_for(threshold)):
            for predicted in (None, threshold):
                search = Search(cap=cap, capacity_bytes=capacity_bytes, predicted_max=predicted)
                check_end(*run(search, threshold=threshold), threshold=threshold)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("wrong", [None, 0.8, 1.0, 1.2, 0.0, 1e6])
def test_no_law_of_the_peak_and_no_prediction_changes_the_answer(law: str, wrong: float | None) -> None:
    for cap in (2, 13, 64):
        for threshold in range(cap + 2):
            predicted = None if wrong is None else round((threshold + (wrong == 1e6)) * wrong)
            search = Search(cap=cap, capacity_bytes=capacity_for(threshold), predicted_max=predicted)
            check_end(*run(search, threshold=threshold, peak=LAWS[law]), threshold=threshold)


@pytest.mark.parametrize(("floor", "step"), [(1, 2), (2, 1), (3, 7), (8, 8), (5, 60), (64, 1)])
@pytest.mark.parametrize("confirm", [1, 3])
def test_other_floors_and_steps_obey_the_same_laws(floor: int, step: int, confirm: int) -> None:
    for threshold in range(66):
        for predicted in (None, threshold, 2 * threshold):
            search = Search(
                floor=floor,
                step=step,
                cap=64,
                confirm=confirm,
                capacity_bytes=capacity_for(threshold),
                predicted_max=predicted,
            )
            check_end(*run(search, threshold=threshold), threshold=threshold)


@settings(max_examples=200, deadline=None)
@given(
    cap=st.integers(1, 10**6),
    share=st.floats(0, 1.1),
    predicted=st.none() | st.integers(-5, 2 * 10**6),
    law=st.sampled_from(sorted(LAWS)),
    off=st.floats(0.2, 5),
    points=st.integers(1, 9),
    floor=st.integers(1, 9),
    step=st.integers(1, 9),
)
def test_the_bound_holds_for_large_caps(
    cap: int, share: float, predicted: int | None, law: str, off: float, points: int, floor: int, step: int
) -> None:
    threshold = int(cap * share)
    search = Search(
        cap=max(cap, floor),
        floor=floor,
        step=step,
        points=points,
        capacity_bytes=int(capacity_for(threshold) * off),
        predicted_max=predicted,
    )
    check_end(*run(search, threshold=threshold, peak=LAWS[law]), threshold=threshold)


@pytest.mark.parametrize("cap", [512, 1000, 2047, 4095, 4096, 65536])
def test_a_prediction_within_three_percent_takes_three_trials_when_peaks_are_affine(cap: int) -> None:
    for threshold in (*range(1, 300, 23), 437, *range(300, min(cap, 4096), 173), cap - 1, cap):
        for percent in (-3, -1.3, -0.3, 0, 0.3, 1.3, 3):
            predicted = threshold + math.trunc(threshold * percent / 100)
            search = Search(cap=cap, capacity_bytes=capacity_for(threshold), predicted_max=predicted)
            search, log = run(search, threshold=threshold)
            check_end(search, log, threshold=threshold)
            assert len(boundary_sizes(search, log)) <= 3, (threshold, predicted, log)


def test_the_size_that_should_fail_keeps_clear_of_the_guess_when_only_one_surprise_is_affordable() -> None:
    # From 256 to the cap are 12 bisections; 2 + log2 of 4096 is 14, and of 4095 it is 13.
    for cap, spare in ((4096, 2), (4095, 1)):
        search = Search(cap=cap, capacity_bytes=capacity_for(437))
        _, log = run(search, threshold=437)
        first = next(size for size, purpose in log if purpose == "boundary")
        assert search.trial_bound == 12 + spare
        assert (first == 438) if spare == 2 else (460 < first < 480)


def test_when_runs_refute_the_line_the_prediction_has_its_turn() -> None:
    for threshold in range(64, 512, 7):
        search = Search(cap=512, capacity_bytes=capacity_for(threshold), predicted_max=threshold)
        search, log = run(search, threshold=threshold, peak=LAWS["biased"])
        assert len(boundary_sizes(search, log)) <= 4, log


def test_an_exact_prediction_takes_the_pair_and_nothing_else_even_with_nothing_measured() -> None:
    for threshold in range(2, 512):
        search = Search(cap=512, predicted_max=threshold)
        search, log = run(search, threshold=threshold, peak=LAWS["unmeasured"])
        assert boundary_sizes(search, log) <= {threshold, threshold + 1}


# -- a boundary that comes before the capacity ------------------------------------------------------------------------


def fragmented(threshold: int, share: float) -> int:
    """A capacity of which allocated bytes reach only ``share`` before memory runs out."""
    return int(capacity_for(threshold) / share)


@pytest.mark.parametrize("share", [0.88, 0.93, 0.97, 0.99, 1.0])
@pytest.mark.parametrize(("cap", "most"), [(512, 2), (4096, 2), (1000, 3), (4095, 3)])
def test_an_exact_prediction_takes_the_pair_wherever_memory_runs_out(cap: int, most: int, share: float) -> None:
    # Three where one surprise only is affordable, and the first size run must keep clear of the line as well.
    for threshold in range(24, cap, 1 + cap // 97):
        search = Search(cap=cap, capacity_bytes=fragmented(threshold, share), predicted_max=threshold)
        search, log = run(search, threshold=threshold)
        check_end(search, log, threshold=threshold)
        assert len(boundary_sizes(search, log)) <= most, (threshold, log)


def test_an_exact_prediction_for_a_real_allocator_takes_the_pair() -> None:
    # resnet18 at 224 x 224, SGD, simulated on 7,728 MiB: allocated peaks in MiB; 356 does not fit, and 357 would by
    # the line.
    measured = {8: 263, 16: 430, 32: 761, 64: 1442, 128: 2806, 256: 5538, 355: 7647}
    search = Search(cap=512, floor=8, capacity_bytes=7728 * MIB, predicted_max=355)
    search, log = run(search, threshold=355, peak=lambda size: measured[size] * MIB)
    assert [size for size, purpose in log if purpose == "boundary"] == [356, 355]


@pytest.mark.parametrize("percent", [-3, -1.5, -0.5, 0.5, 1.5, 3])
def test_a_prediction_a_little_wrong_costs_about_the_logarithm_of_its_error(percent: float) -> None:
    # One trial is one bit: three for the pair and the line's own proposal, then to double and to halve up to the error.
    for share in (0.88, 0.93, 0.97, 0.99):
        for threshold in (50, 120, 200, 300, 355, 437, 500):
            predicted = round(threshold * (1 + percent / 100))
            search = Search(cap=512, capacity_bytes=fragmented(threshold, share), predicted_max=predicted)
            search, log = run(search, threshold=threshold)
            check_end(search, log, threshold=threshold)
            error = abs(predicted - threshold)
            assert len(boundary_sizes(search, log)) <= 3 + 2 * math.log2(1 + error), (threshold, log)


@pytest.mark.parametrize("wrong", [0.5, 0.75, 1.25, 2, 50])
def test_a_prediction_that_the_line_grossly_contradicts_is_not_run(wrong: float) -> None:
    for threshold in range(100, 512, 7):
        predicted = int(wrong * threshold)
        search = Search(cap=512, capacity_bytes=capacity_for(threshold), predicted_max=predicted)
        search, log = run(search, threshold=threshold)
        assert len(boundary_sizes(search, log)) <= 3, log
        assert not {predicted, predicted + 1} & boundary_sizes(search, log)


# -- an adversary -----------------------------------------------------------------------------------------------------


def every_ending(search: Search, peaks: tuple[int | None, ...], log: tuple[Probe, ...] = ()) -> Iterator[Search]:
    """Every search that can come of answering each question in every way."""
    size = search.next_size()
    if size is None:
        yield search
        return
    check_bound(search, log)
    for peak in peaks:
        yield from every_ending(search.after(size, True, peak), peaks, (*log, Probe(size, True, peak)))
    yield from every_ending(search.after(size, False), peaks, (*log, Probe(size, False)))


def check_bound(search: Search, log: tuple[Probe, ...]) -> None:
    """A reversal may cost a bisection once more; nothing else goes past the bound."""
    fitted = [probe.size for probe in log if probe.fits]
    failed = {probe.size for probe in log if not probe.fits}
    reversals = sum(size <= max(fitted, default=0) for size in failed)
    beyond = {probe.size for probe in log} - set(search.curve_sizes)
    assert len(beyond) <= search.trial_bound * (1 + reversals), log
    assert len(log) <= search.confirm * len({probe.size for probe in log}), log


def check_ending(search: Search) -> None:
    probes, answer = search.probes, search.answer
    failed = [probe.size for probe in probes if not probe.fits]
    assert all(search.floor <= probe.size <= search.cap for probe in probes)
    assert search.proven
    if answer is None:
        assert search.floor in failed
    else:
        assert [probe.size for probe in probes if probe.fits].count(answer) >= search.confirm
        assert all(size > answer for size in failed)
        assert answer == search.cap or answer + 1 in failed
    assert search.first_failure == min(failed, default=None)


@pytest.mark.parametrize("confirm", [1, 2, 3])
@pytest.mark.parametrize("predicted", [None, 2, 5, 100])
def test_no_sequence_of_answers_makes_the_search_lie_or_loop(confirm: int, predicted: int | None) -> None:
    for cap in range(1, {1: 33, 2: 15, 3: 8}[confirm]):
        search = Search(cap=cap, confirm=confirm, predicted_max=predicted)
        endings = 0
        for ending in every_ending(search, peaks=(None,)):
            check_ending(ending)
            endings += 1
        assert endings > cap  # at least one for each threshold


@pytest.mark.parametrize(("predicted", "confirm", "largest_cap"), [(None, 1, 9), (4, 1, 9), (4, 2, 5)])
def test_no_sequence_of_answers_and_peaks_makes_the_search_lie_or_loop(
    predicted: int | None, confirm: int, largest_cap: int
) -> None:
    answers = set()
    for cap in range(1, largest_cap + 1):
        search = Search(cap=cap, confirm=confirm, capacity_bytes=100, predicted_max=predicted, points=3)
        for ending in every_ending(search, peaks=(40, 89, 99)):
            check_ending(ending)
            answers.add(ending.answer)
    assert answers == {None, *range(1, largest_cap + 1)}


def test_one_side_of_the_boundary_proves_nothing() -> None:
    search = Search(cap=64).after(32, True)
    assert (search.answer, search.proven) == (32, False)
    search = search.after(34, False)
    assert (search.answer, search.proven) == (32, False)
    assert search.after(33, False).proven
    assert Search(cap=64).after(64, True).proven
    assert not Search(cap=64).after(2, False).proven


def test_a_later_failure_outranks_every_earlier_success() -> None:
    search = Search(cap=16, confirm=2)
    for size, fits in [(8, True), (8, True), (9, False), (8, False), (7, True), (7, True)]:
        search = search.after(size, fits)
    assert search.answer == 7
    assert search.proven
    assert search.unsteady == (8,)
    assert search.next_size() is None


def test_a_failure_below_the_answer_moves_it_below_the_failure() -> None:
    search, _ = run(Search(cap=64), threshold=40)
    search, log = run(search.after(33, False), threshold=32)
    assert search.answer == 32
    assert search.not_monotone == (40,)
    assert {size for size, _ in log} <= set(range(33))


# -- the record and the order of things -------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    threshold=st.integers(0, 600),
    predicted=st.none() | st.integers(1, 600),
    confirm=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
def test_the_order_of_the_probes_does_not_matter(
    threshold: int, predicted: int | None, confirm: int, order: random.Random
) -> None:
    start = Search(cap=512, confirm=confirm, capacity_bytes=capacity_for(threshold), predicted_max=predicted)
    end, _ = run(start, threshold=threshold)
    shuffled = list(end.probes)
    order.shuffle(shuffled)
    replayed = start
    for probe in shuffled:
        replayed = replayed.after(probe.size, probe.fits, probe.peak_bytes)
    for law in ("answer", "first_failure", "proven", "not_monotone", "unsteady"):
        assert getattr(replayed, law) == getattr(end, law)
    assert replayed.next_size() is None


@settings(max_examples=60, deadline=None)
@given(threshold=st.integers(0, 600), cut=st.integers(0, 40), order=st.randoms(use_true_random=False))
def test_a_search_cut_short_and_resumed_in_any_order_ends_the_same(
    threshold: int, cut: int, order: random.Random
) -> None:
    start = Search(cap=512, confirm=2, capacity_bytes=capacity_for(threshold), predicted_max=threshold + 9)
    end, log = run(start, threshold=threshold)
    kept = list(end.probes[:cut])
    resumed = replace(start, probes=tuple(kept))
    assert run(resumed, threshold=threshold)[1] == log[cut:]
    order.shuffle(kept)
    shuffled = replace(start, probes=tuple(kept))
    assert run(shuffled, threshold=threshold)[0].answer == end.answer


def test_the_phases_come_in_order_and_the_curve_ascends() -> None:
    for predicted in (None, 400, 437, 450):
        search = Search(cap=512, confirm=2, capacity_bytes=capacity_for(437), predicted_max=predicted)
        _, log = run(search, threshold=437)
        purposes = [purpose for _, purpose in log]
        assert sorted(purposes, key=["curve", "boundary", "confirm"].index) == purposes
        assert set(purposes) == {"curve", "boundary", "confirm"}
        curve = [size for size, purpose in log if purpose == "curve"]
        assert curve == sorted(curve)
        assert curve == list(search.curve_sizes)[: len(curve)]


def test_with_a_prediction_the_curve_is_expected_to_fit() -> None:
    assert Search(cap=512, predicted_max=437).curve_sizes == (16, 32, 64, 128, 256, 384)
    assert Search(cap=512, predicted_max=300).curve_sizes == (8, 16, 32, 64, 128, 256)
    assert Search(cap=512, predicted_max=0).curve_sizes == (1,)
    assert Search(cap=512).curve_sizes == (1, 4, 16, 64, 256)
    for predicted in range(1, 600):
        sizes = Search(cap=512, predicted_max=predicted).curve_sizes
        assert sizes == (1,) or max(sizes) <= 0.9 * predicted


def test_the_first_failure_ends_the_curve_and_the_search_goes_down() -> None:
    for threshold in range(16):
        search, log = run(Search(cap=512, predicted_max=437), threshold=threshold)
        assert log[0] == (16, "curve")
        assert max(size for size, _ in log) == 16
        assert search.answer == (threshold or None)


def test_nothing_fits_when_the_floor_does_not() -> None:
    search, log = run(Search(cap=64, floor=4), threshold=3)
    assert (search.answer, search.first_failure, search.proven) == (None, 4, True)
    assert log == [(4, "curve")]


def test_before_anything_is_run_nothing_is_claimed() -> None:
    search = Search(cap=64)
    assert (search.answer, search.first_failure, search.proven) == (None, None, False)


def test_a_size_that_fitted_above_a_failure_is_reported_and_is_not_the_answer() -> None:
    search = Search(cap=64).after(16, False).after(32, True).after(15, True)
    assert search.not_monotone == (32,)
    assert (search.answer, search.first_failure, search.proven) == (15, 16, True)


@pytest.mark.parametrize("size", [0, -1, 3, 66, 65])
def test_an_illegal_move_raises_and_changes_nothing(size: int) -> None:
    search = Search(cap=64, floor=2, step=2).after(2, True)
    before = (search.next_size(), search.probes)
    with pytest.raises(ValueError, match=f"size {size} is"):
        search.after(size, True)
    assert (search.next_size(), search.probes) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"cap": 0},
        {"floor": 0},
        {"floor": 65},
        {"step": 0},
        {"confirm": 0},
        {"points": 0},
        {"probes": (Probe(65, True),)},
    ],
)
def test_a_search_out_of_range_cannot_be_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Search(**{"cap": 64, **wrong})  # type: ignore[arg-type]


def test_no_purpose_when_nothing_is_asked() -> None:
    search, _ = run(Search(cap=4), threshold=2)
    with pytest.raises(ValueError, match="nothing is left"):
        _ = search.purpose


# -- a list of sizes --------------------------------------------------------------------------------------------------


def test_a_list_is_run_in_ascending_order_until_it_runs_out() -> None:
    sizes = (32, 8, 64, 16, 8)
    for threshold in range(70):
        search, asked = Listed(sizes=sizes), []
        while (size := search.next_size()) is not None:
            assert search.purpose == "listed"
            asked.append(size)
            search = search.after(size, size <= threshold)
        fitting = [size for size in (8, 16, 32, 64) if size <= threshold]
        assert asked == [8, 16, 32, 64][: len(fitting) + 1]
        assert search.answer == (max(fitting) if fitting else None)
        assert search.first_failure == next((size for size in (8, 16, 32, 64) if size > threshold), None)
        assert search.not_tried == tuple(size for size in (8, 16, 32, 64) if size not in asked)
        assert not search.proven


def test_a_list_proves_the_answer_only_when_the_size_right_above_failed() -> None:
    assert Listed(sizes=(437, 438)).after(437, True).after(438, False).proven
    assert not Listed(sizes=(437, 439)).after(437, True).after(439, False).proven
    assert Listed(sizes=(1, 2)).after(1, False).proven
    assert not Listed(sizes=(8, 16)).after(8, False).proven


def test_a_list_repeats_its_answer_as_often_as_asked_and_believes_the_failure() -> None:
    search = Listed(sizes=(8, 16), confirm=2).after(8, True).after(16, True)
    assert (search.next_size(), search.purpose, search.answer) == (16, "confirm", None)
    assert search.after(16, True).answer == 16
    failed = search.after(16, False)
    assert (failed.answer, failed.next_size(), failed.purpose) == (None, 8, "confirm")
    assert failed.after(8, True).answer == 8


@pytest.mark.parametrize("sizes", [(), (0, 8), (-1,)])
def test_a_list_needs_sizes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Listed(sizes=sizes)


def test_a_size_that_is_not_on_the_list_is_refused() -> None:
    with pytest.raises(ValueError, match="not on the list 8, 16"):
        Listed(sizes=(8, 16)).after(9, True)


@pytest.mark.parametrize("law", ["straight", "square", "square on a level"])
def test_on_another_axis_an_exact_law_takes_two_trials_beyond_the_curve(law: str) -> None:
    def peak(size: int) -> int:
        grown = 300 * MIB + 20 * 1024 * size + (0 if law == "straight" else 2000 * size * size)
        return max(grown, 310 * MIB) if law == "square on a level" else grown

    trials, by_a_line = 0, 0
    for threshold in range(1024, 8192, 736):
        start = Search(floor=8, cap=8192, step=8, capacity_bytes=(peak(threshold) + peak(threshold + 8)) // 2)
        curved, log = run(replace(start, curved=True), threshold=threshold, peak=peak)
        check_end(curved, log, threshold=threshold)
        straight, longer = run(start, threshold=threshold, peak=peak)
        check_end(straight, longer, threshold=threshold)
        # On a level one of the three sizes may not be on the parabola.
        assert law == "square on a level" or len(boundary_sizes(curved, log)) <= 2
        trials += len(log)
        by_a_line += len(longer)
    assert trials < by_a_line or (law == "straight" and trials == by_a_line)


def test_peaks_that_may_be_curved_change_no_answer_whatever_they_are() -> None:
    for law in LAWS.values():
        for threshold in range(0, 300, 7):
            start = Search(floor=8, cap=256, step=8, capacity_bytes=capacity_for(threshold), curved=True)
            check_end(*run(start, threshold=threshold, peak=law), threshold=threshold)

"""What follows from runs set side by side: the common batch, the order, the effect of a choice."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.comparison import SORTS, Compared, Sort
from sweeper.record import Record, Settings
from sweeper.trial import StepRecord
from sweeper.units import MIB
from tests.builders import a_broken, a_fit, a_header, a_record, a_spec, an_oom
from tests.comparisons import VARY, a_compared, a_run, an_entry


def two(first: Record, second: Record) -> Compared:
    entries = (an_entry(first, mode="train"), an_entry(second, mode="inference"))
    return Compared(vary={"mode": ("train", "inference")}, entries=entries)


def fits(*sizes: int) -> Record:
    return a_record(*((size, a_fit(size)) for size in sizes), (max(sizes) + 1, an_oom()))


@given(st.sets(st.integers(1, 40), min_size=1), st.sets(st.integers(1, 40), min_size=1))
def test_the_common_batch_is_the_largest_that_both_ran_else_the_smallest_answer_is_wanted(
    first: set[int], second: set[int]
) -> None:
    found = two(fits(*sorted(first)), fits(*sorted(second)))
    assert found.common_size == max(first & second, default=None)
    assert found.wanted_size == (None if first & second else min(max(first), max(second)))


def test_a_size_above_a_failure_is_no_common_one() -> None:
    reversal = a_record((8, a_fit(8)), (16, a_fit(16)), (12, an_oom()))
    assert two(reversal, fits(8, 16)).common_size == 8


def test_a_combination_without_an_answer_does_not_keep_the_others_from_comparison() -> None:
    nothing = a_record((1, an_oom()))
    entries = (*two(fits(4, 8), fits(8, 9)).entries, an_entry(nothing, mode="x"))
    found = Compared(vary={"mode": ("train", "inference", "x")}, entries=entries)
    assert found.common_size == 8
    assert found.effects[1].largest is None
    assert two(fits(4, 8), nothing).common_size is None
    assert two(fits(4, 8), nothing).wanted_size is None


def test_a_combination_that_was_not_begun_is_there_and_unfinished() -> None:
    found = two(fits(4, 8), Record(header=a_header()))
    assert not found.finished
    assert found.entries[1].largest is None


def test_the_effect_of_a_choice_is_of_it_alone() -> None:
    precision, optimizer = a_compared().effects
    assert (precision.field, precision.word, precision.against) == ("precision", "amp-bf16", "fp32")
    assert precision.per_sample is not None
    assert precision.largest is not None
    assert precision.per_sample.mean == pytest.approx(0.5)
    assert precision.per_sample.pairs == 2
    assert precision.largest.mean == pytest.approx(2.0, rel=0.01)
    assert precision.peak is not None
    assert precision.peak.least == pytest.approx((240 + 12 * 32) / (240 + 24 * 32))
    assert precision.peak.greatest == pytest.approx((480 + 12 * 32) / (480 + 24 * 32))
    assert precision.peak.least < precision.peak.mean < precision.peak.greatest
    assert optimizer.per_sample is not None
    assert optimizer.per_sample.mean == pytest.approx(1.0)
    assert precision.speed is None
    measured = a_compared("cuda").effects[0]
    assert measured.speed is not None
    assert measured.speed.mean == pytest.approx(1.0)


def test_a_cap_that_fits_is_no_boundary_and_no_effect_is_taken_from_it() -> None:
    capped = a_record((8, a_fit(8)), (16, a_fit(16)), settings=Settings(cap=16, margin=0))
    found = two(fits(8, 12), capped)
    assert found.entries[1].largest == 16
    assert found.entries[1].boundary is None
    assert found.effects[0].largest is None
    assert found.effects[0].peak is not None


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_has_every_entry_and_those_without_the_number_last(sort: Sort) -> None:
    broken = an_entry(a_record((8, a_broken()), (8, a_broken())), precision="fp8", optimizer="sgd")
    whole = a_compared("cuda")
    found = Compared(vary={**VARY, "precision": (*VARY["precision"], "fp8")}, entries=(broken, *whole.entries))
    shown = found.by(sort)
    assert shown[-1] is broken
    assert sorted(map(id, shown)) == sorted(map(id, found.entries))
    label = {"largest": "amp-bf16, sgd", "peak": "amp-bf16, sgd", "per-sample": "amp-bf16", "speed": "fp32, sgd"}[sort]
    assert shown[0].label.startswith(label)


@pytest.mark.parametrize(
    ("losses", "mode", "finite"),
    [((1.0, 2.0), "train", True), ((1.0, None), "train", False), ((None, None), "inference", None)],
)
def test_a_loss_that_is_no_number_is_told(losses: tuple[float | None, ...], mode: str, finite: bool | None) -> None:
    steps = tuple(
        StepRecord(seconds=0.1, loss=loss, peak_allocated_bytes=MIB, peak_reserved_bytes=MIB) for loss in losses
    )
    fit = dataclasses.replace(a_fit(8), steps=steps)
    assert an_entry(a_record((8, fit), spec=a_spec(mode=mode))).loss_finite is finite
    assert an_entry(a_run(per_sample=24, fixed=240)).loss_finite is None


def test_a_label_says_what_a_bare_value_would_not() -> None:
    entry = an_entry(a_run(per_sample=24, fixed=240), precision="fp32", checkpointing="on", device="sim:l4")
    assert entry.label == "fp32, checkpointing on, sim:l4"

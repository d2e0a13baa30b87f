"""What changed between two runs, and what of it matters."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.difference import difference
from sweeper.errors import UsageError
from sweeper.record import Record, Settings
from sweeper.report import differences
from tests.builders import a_device, a_finished_record, a_fit, a_header, a_measured_fit, a_record, a_spec, an_oom

BEFORE, AFTER = Path("a"), Path("b")


def test_a_run_does_not_differ_from_itself() -> None:
    run = a_finished_record()
    found = difference(run, run, tolerance=0)
    assert not found.matters
    assert (found.machine, found.versions, found.spec, found.settings) == ((), (), (), ())
    assert [change.size for change in found.curve] == [p.size for p in run.curve if p.outcome == "fit"]
    said = differences.summary(found, before=BEFORE, after=AFTER, color=False)
    assert "Nothing differs that matters" in said
    assert "the same: machine, versions, asked, settings" in said


@given(st.integers(1, 10**12), st.integers(1, 10**12), st.floats(0, 0.5))
def test_a_peak_matters_exactly_above_the_tolerance(before: int, after: int, tolerance: float) -> None:
    runs = [a_record((8, a_fit(8, peak_allocated_bytes=1, peak_reserved_bytes=peak))) for peak in (before, after)]
    found = difference(*runs, tolerance=tolerance)
    assert found.matters == (abs(after - before) / before > tolerance)


@pytest.mark.parametrize(
    ("largest", "matters"), [(200, False), (201, False), (202, False), (203, True), (197, True), (198, False)]
)
def test_a_boundary_matters_above_the_tolerance(largest: int, matters: bool) -> None:
    def run(size: int) -> Record:
        return a_record((1, a_fit(1)), (size, a_fit(size)), (size + 1, an_oom()))

    found = difference(run(200), run(largest), tolerance=0.01)
    assert found.boundary_matters is matters
    assert found.matters is matters


def test_an_answer_where_there_was_none_matters_whatever_the_tolerance() -> None:
    some, none = a_record((1, a_fit(1)), (2, an_oom())), a_record((1, an_oom()))
    assert difference(some, none, tolerance=9).matters
    assert difference(none, some, tolerance=9).matters
    assert not difference(none, none).matters
    assert "no size fitted in both" in differences.summary(
        difference(some, none), before=BEFORE, after=AFTER, color=False
    )


def test_speed_is_told_and_never_judged() -> None:
    fast = a_measured_fit(8)
    slow = dataclasses.replace(fast, samples_per_second=1.0)
    found = difference(*(a_record((8, fit), spec=a_spec(device="cuda")) for fit in (fast, slow)), tolerance=0)
    assert not found.matters
    (change,) = found.curve
    assert change.speed_share is not None
    assert change.speed_share < -0.9
    assert "samples/s" in differences.summary(found, before=BEFORE, after=AFTER, color=False)


def test_every_field_that_is_not_the_same_is_named_where_it_belongs() -> None:
    before = a_record(device=a_device(torch="2.13.0"))
    after = dataclasses.replace(
        a_record(
            spec=a_spec(device="cuda", optimizer="adamw", model_args={"depth": 4}, memory_limit_bytes=1 << 30),
            settings=Settings(cap=64, margin=0.05),
            device=a_device(device="cuda", driver="590.1"),
        )
    )
    after = dataclasses.replace(after, header=dataclasses.replace(after.header, python="3.13.0"))
    found = difference(before, after)
    assert {change.name for change in found.machine} == {"simulated", "driver"}
    assert {change.name for change in found.versions} == {"torch", "python"}
    assert {c.name for c in found.spec} == {"device", "optimizer", "model_args.depth", "memory_limit_bytes"}
    assert {change.name for change in found.settings} == {"cap"}
    said = differences.summary(found, before=BEFORE, after=AFTER, color=False)
    assert "1.00 GiB" in said
    for changes in (found.machine, found.versions, found.spec, found.settings):
        assert all(change.name in said for change in changes)


def test_the_size_that_the_sweep_varies_is_not_what_was_asked() -> None:
    runs = [a_record(spec=a_spec(batch_size=size)) for size in (1, 8)]
    assert difference(*runs).spec == ()


def test_runs_along_two_axes_are_refused_and_a_tolerance_below_nothing() -> None:
    other = Record(header=a_header(settings=Settings(cap=512, axis="seq-len")))
    with pytest.raises(UsageError, match="seq-len"):
        difference(a_finished_record(), other)
    with pytest.raises(UsageError, match="tolerance"):
        difference(other, other, tolerance=-0.1)


def test_the_object_is_json_and_says_what_the_text_says() -> None:
    some, none = a_finished_record(), a_record((1, an_oom()))
    for before, after in ((some, none), (some, some), (none, some)):
        found = difference(before, after)
        body = differences.to_json(found, before=BEFORE, after=AFTER)
        assert json.loads(json.dumps(body, allow_nan=False)) == body
        assert body["matters"] == found.matters
        assert [row["size"] for row in body["curve"]] == [change.size for change in found.curve]

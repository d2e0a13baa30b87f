"""What was measured beside memory: the knee, the losses, and all of it in text, JSON and CSV where it was measured."""

import csv
import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.cost import Price, Schedule
from sweeper.measured import Numeric, Throughput, first_not_finite, losses_finite, numeric_warnings, throughput_of
from sweeper.record import Record, Settings
from sweeper.report import curve_csv, summary, to_json
from sweeper.trial import CardActivity, Fit, Fragmentation, NotFinite, StepRecord, response_from_json, response_to_json
from sweeper.units import MIB
from tests.builders import BOUNDARY, a_fit, a_measured_fit, a_record, a_spec
from tests.report_cases import CASES

speeds = st.dictionaries(st.integers(1, 4096), st.floats(0.01, 1e6), min_size=1)
values = st.sampled_from(["nan", "inf", "-inf"]) | st.none()
RUN = Path("results/a-run")


@given(speeds)
def test_the_knee_is_the_smallest_within_five_percent_and_never_above_the_fastest(timed: dict[int, float]) -> None:
    found = throughput_of(timed)
    assert found is not None
    assert timed[found.fastest] == found.fastest_samples_per_second == max(timed.values())
    assert timed[found.knee] == found.knee_samples_per_second >= 0.95 * max(timed.values())
    assert found.knee <= found.fastest
    assert all(speed < 0.95 * max(timed.values()) for size, speed in timed.items() if size < found.knee)


def test_nothing_timed_has_no_knee_and_neither_has_another_axis() -> None:
    assert throughput_of({}) is None
    assert CASES["boundary-simulated"].throughput is None
    fits = ((size, a_measured_fit(size)) for size in (8, 16))
    spec, settings = a_spec(device="cuda", seq_len=8), Settings(cap=64, axis="seq-len", step=8)
    assert a_record(*fits, spec=spec, settings=settings).throughput is None


def steps(*found: NotFinite | None) -> tuple[StepRecord, ...]:
    return tuple(
        StepRecord(
            seconds=0.1,
            loss=1.0 if one is None else None,
            not_finite=one,
            peak_allocated_bytes=1,
            peak_reserved_bytes=1,
        )
        for one in found
    )


@given(st.lists(st.lists(values, min_size=1, max_size=4), max_size=3))
def test_the_first_loss_that_is_no_number_is_found_wherever_it_is(trials: list[list[NotFinite | None]]) -> None:
    fits = [a_fit(1, steps=steps(*one)) for one in trials]
    places = [(n, one) for trial in trials for n, one in enumerate(trial, start=1) if one is not None]
    expected = Numeric(step=places[0][0], value=places[0][1]) if places else None
    assert first_not_finite(fits) == expected
    assert losses_finite(fits) == ((expected is None) if fits else None)


@given(st.lists(values, min_size=1, max_size=4))
def test_a_loss_that_is_no_number_crosses_the_wall(found: list[NotFinite | None]) -> None:
    fit = a_fit(1, steps=steps(*found))
    assert response_from_json(response_to_json(fit)) == fit


def test_one_warning_a_case_names_all_its_sizes() -> None:
    nan, inf = Numeric(step=2, value="nan"), Numeric(step=1, value="inf")
    first, second = numeric_warnings({16: nan, 8: nan, 32: inf})
    assert "nan at step 2, at 8, 16;" in first
    assert "inf at step 1, at 32;" in second


def test_a_loss_that_is_no_number_moves_no_boundary() -> None:
    """The record with it and without it is one search."""
    losing = a_record(*((size, a_fit(size, steps=steps(None, "nan", "inf"))) for size in (1, 2, 4)))
    well = a_record(*((size, a_fit(size, steps=steps(None, None, None))) for size in (1, 2, 4)))
    assert losing.next_trial() == well.next_trial()
    assert (losing.max_batch, losing.broken) == (well.max_batch, None)
    assert [w for w in losing.warnings if w.startswith("numeric")] == [
        "numeric: the loss is not finite, nan at step 2, at 1, 2, 4; memory was measured all the same"
    ]
    assert not [w for w in well.warnings if w.startswith("numeric")]


def _exported(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(to_json(record, RUN), allow_nan=False))
    return found


def test_everything_that_was_measured_is_exported() -> None:
    record = CASES["measured-cuda"]
    found = _exported(record)
    point = next(p for p in found["curve"] if p["size"] == BOUNDARY)
    assert point["tokens_per_second"] == pytest.approx(128 * point["samples_per_second"])
    assert set(point["activity"]) == {field.name for field in fields(CardActivity)}
    assert point["fragmentation"]["unused_bytes"] == 48 * MIB
    assert (point["loss_finite"], point["numeric"]) == (False, {"step": 2, "value": "nan"})
    assert set(found["throughput"]) == {field.name for field in fields(Throughput)}
    schedule = record.header.settings.schedule
    assert schedule is not None
    hours = schedule.samples * schedule.epochs / point["samples_per_second"] / 3600
    assert point["hours"] == pytest.approx(hours)
    assert point["money"] == pytest.approx(hours * 0.7992)
    assert "list price of NVIDIA L4" in found["cost"]["list_price"]
    rows = {int(row["size"]): row for row in csv.DictReader(io.StringIO(curve_csv(record)))}
    row = rows[BOUNDARY]
    for name in ("tokens_per_second", "host_peak_bytes", "context_bytes", "hours", "money"):
        assert float(row[name]) == point[name]
    assert (row["loss_finite"], row["unused_bytes"]) == ("false", str(48 * MIB))
    assert float(row["power_max_w"]) == point["activity"]["power_max_w"]
    assert rows[BOUNDARY + 1]["hours"] == ""


@pytest.mark.parametrize("name", ["boundary-simulated", "unfinished", "nothing-fits"])
def test_nothing_simulated_has_a_time_a_load_or_a_cost(name: str) -> None:
    schedule = Schedule(samples=1000, epochs=1, price=Price(per_hour=1.0))
    record = CASES[name].with_schedule(schedule)  # as a run folder made by hand could ask
    for point in _exported(record)["curve"]:
        for key in ("step_seconds", "samples_per_second", "tokens_per_second", "activity", "hours", "money"):
            assert point[key] is None
    text = summary(record, folder=RUN, color=False)
    assert not any(word in text for word in ("samples/s", "tokens/s", "busy", "power", "hours"))


def test_fragmentation_is_told_of_a_simulated_card_as_simulated() -> None:
    pieces = Fragmentation(allocated_bytes=100 * MIB, reserved_bytes=148 * MIB, largest_free_bytes=20 * MIB)
    text = " ".join(summary(a_record((1, a_fit(1, fragmentation=pieces))), folder=RUN, color=False).split())
    assert "48.00 MiB reserved and not allocated when 100.00 MiB were, in free pieces of at most 20.00 MiB" in text
    assert "(batch 1) (simulated)" in text


@pytest.mark.parametrize("field", fields(CardActivity)[1:], ids=lambda field: field.name)
def test_what_a_card_does_not_tell_is_left_out_of_the_sentence(field: Any) -> None:
    pair = {"utilization_mean_percent": "utilization_max_percent", "power_mean_w": "power_max_w"}
    told = {name: 50.0 for names in pair.items() if field.name in names for name in names} or {field.name: 50.0}
    fit: Fit = a_measured_fit(8, activity=CardActivity(samples=3, **told))
    text = summary(a_record((8, fit), spec=a_spec(device="cuda")), folder=RUN, color=False)
    assert "None" not in text
    assert "3 readings" in text

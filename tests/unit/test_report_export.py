"""The machine-readable forms: every agreed key with its agreed type, and nothing lost on the way to CSV."""

import csv
import io
import json
import statistics
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.record import Record
from sweeper.report import curve_csv, to_json
from sweeper.report.export import CSV_COLUMNS
from sweeper.trial import Breakdown
from sweeper.units import MIB
from tests.builders import (
    BOUNDARY,
    CAPACITY_BYTES,
    a_device,
    a_fit,
    a_header,
    a_measured_fit,
    a_record,
    a_spec,
    an_oom,
    reserved_at,
)
from tests.report_cases import CASES

NUMBER, MAYBE_INT = (int, float), (int, type(None))
MAYBE_NUMBER = (int, float, type(None))

# The object that the design promises.  Types as JSON gives them back.
AGREED: dict[str, Any] = {
    "schema": int, "model": str, "device": str, "simulated": bool, "axis": str, "max_batch": MAYBE_INT,
    "proven": bool, "first_failure": MAYBE_INT, "recommended_batch": MAYBE_INT, "capacity_bytes": int,
    "trials": dict, "seconds": NUMBER, "prediction": (dict, type(None)), "curve": list, "folder": str,
}  # fmt: skip
AGREED_POINT: dict[str, Any] = {
    "size": int, "outcome": str, "peak_allocated_bytes": int, "peak_reserved_bytes": int, "process_bytes": MAYBE_INT,
    "step_seconds": MAYBE_NUMBER, "samples_per_second": MAYBE_NUMBER, "breakdown": (dict, type(None)),
}  # fmt: skip
AGREED_KINDS = {"weights", "gradients", "optimizer", "activations", "inputs", "workspace"}

each_case = pytest.mark.parametrize("record", CASES.values(), ids=CASES)


def _there_and_back(record: Record) -> dict[str, Any]:
    found = json.loads(json.dumps(to_json(record, Path("results/a run")), allow_nan=False))
    assert isinstance(found, dict)
    return found


@each_case
def test_every_agreed_key_is_there_with_its_type(record: Record) -> None:
    found = _there_and_back(record)
    for key, kind in AGREED.items():
        assert isinstance(found[key], kind), key
    assert set(found["trials"]) == {"fit", "oom", "broken"}
    if found["prediction"] is not None:
        assert set(found["prediction"]) == {"max_batch", "peak_bytes_at_max"}
    for point in found["curve"]:
        for key, kind in AGREED_POINT.items():
            assert isinstance(point[key], kind), key
        assert point["outcome"] in ("fit", "oom", "broken")
        if point["breakdown"] is not None:
            assert set(point["breakdown"]) >= AGREED_KINDS
            assert all(type(size) is int for size in point["breakdown"].values())


@each_case
def test_the_numbers_are_those_of_the_record(record: Record) -> None:
    found = _there_and_back(record)
    assert found["max_batch"] == record.max_batch
    assert found["first_failure"] == record.first_failure
    assert found["recommended_batch"] == record.recommended_batch
    assert found["proven"] == record.proven
    assert found["trials"] == record.counts
    assert [point["size"] for point in found["curve"]] == [point.size for point in record.curve]
    assert found["finished"] == (record.broken is None and record.next_trial() is None)
    assert (found["broken"] is None) == (record.broken is None)


def test_every_kind_of_memory_is_exported() -> None:
    record = a_record((1, a_fit(1)))
    kinds = {field.name for field in fields(Breakdown)}
    assert set(_there_and_back(record)["curve"][0]["breakdown"]) == kinds
    assert {f"{kind}_bytes" for kind in kinds} <= set(CSV_COLUMNS)


def test_where_it_ran_out_is_told_in_full() -> None:
    found = _there_and_back(CASES["boundary-simulated"])
    failure = found["failure"]
    assert failure["size"] == found["first_failure"] == BOUNDARY + 1
    assert (failure["phase"], failure["module"]) == ("forward", "layer1.0.conv2")
    assert failure["requested_bytes"] + failure["allocated_bytes"] > found["capacity_bytes"] == CAPACITY_BYTES


def test_a_run_that_has_not_met_its_device_is_exported_all_the_same() -> None:
    found = _there_and_back(Record(header=a_header()))
    assert found["simulated"] is True
    assert found["capacity_bytes"] == 0
    assert found["curve"] == []


def test_what_json_cannot_say_is_null() -> None:
    endless = replace(a_measured_fit(1), samples_per_second=float("inf"), step_seconds=float("nan"))
    record = a_record((1, endless), spec=a_spec(device="cuda"))
    point = _there_and_back(record)["curve"][0]
    assert point["samples_per_second"] is None
    assert point["step_seconds"] is None


@pytest.mark.parametrize("device", ["cuda", "cpu", "sim:rtx4060"])
def test_simulated_is_true_of_a_simulated_device_alone(device: str) -> None:
    record = a_record((1, a_fit(1)), spec=a_spec(device=device), device=a_device(device=device))
    simulated = device.startswith("sim:")
    assert _there_and_back(record)["simulated"] is simulated
    (row,) = csv.DictReader(io.StringIO(curve_csv(record)))
    assert row["simulated"] == str(simulated).lower()


@each_case
def test_the_csv_reads_back_as_the_curve(record: Record) -> None:
    text = curve_csv(record)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert text.splitlines()[0].split(",") == list(CSV_COLUMNS)
    assert len(rows) == len(record.curve)
    for row, point in zip(rows, record.curve, strict=True):
        assert row["outcome"] == point.outcome
        for name in ("size", "trials", "peak_allocated_bytes", "peak_reserved_bytes"):
            assert int(row[name]) == getattr(point, name)
        for name in ("process_bytes", "step_seconds", "samples_per_second"):
            value = getattr(point, name)
            assert (float(row[name]) if row[name] else None) == value
        for field in fields(Breakdown):
            share = row[f"{field.name}_bytes"]
            assert (int(share) if share else None) == getattr(point.breakdown, field.name, None)


def test_an_unknown_peak_of_an_out_of_memory_is_zero_and_not_left_out() -> None:
    failed = an_oom(peak_allocated_bytes=0, peak_reserved_bytes=0)
    (point,) = _there_and_back(a_record((1, failed)))["curve"]
    assert (point["peak_allocated_bytes"], point["peak_reserved_bytes"]) == (0, 0)


def test_what_was_predicted_is_beside_what_was_measured_and_only_on_a_gpu() -> None:
    record = CASES["beside-prediction"]
    found = _there_and_back(record)
    errors = {point["size"]: point["prediction_error"] for point in found["curve"]}
    assert errors.pop(BOUNDARY + 1) is None
    for size, error in errors.items():
        assert error == pytest.approx((64 if size == 64 else -2) * MIB / reserved_at(size))
    worst = {"sizes": len(errors), "worst": errors[64], "worst_size": 64}
    assert found["prediction_errors"] == {**worst, "median": statistics.median(map(abs, errors.values()))}
    failed = found["curve"][-1]
    assert (failed["predicted_fits"], failed["predicted_least_capacity_bytes"]) == (False, reserved_at(BOUNDARY + 1))
    rows = list(csv.DictReader(io.StringIO(curve_csv(record))))
    assert [int(row["predicted_reserved_bytes"]) for row in rows] == [
        point["predicted_reserved_bytes"] for point in found["curve"]
    ]
    assert [row["predicted_fits"] for row in rows] == ["true"] * len(errors) + ["false"]
    simulated = _there_and_back(CASES["calibrated-simulated"])
    assert simulated["prediction_errors"] is None
    assert {point[key] for point in simulated["curve"] for key in point if "predict" in key} == {None}


def test_a_calibration_is_named_with_its_date_versions_and_bytes() -> None:
    said = {"card": "rtx4060", "date": "2026-11-30", "torch": "2.14.1+cu130", "driver": "580.95.05"}
    simulated, real = (_there_and_back(CASES[name]) for name in ("calibrated-simulated", "beside-prediction"))
    assert simulated["calibration"] == {**said, "outside_bytes": 312 * MIB, "reserved_offset_bytes": 0}
    assert real["calibration"] == {**said, "outside_bytes": 312 * MIB, "reserved_offset_bytes": 2 * MIB}
    assert _there_and_back(CASES["boundary-simulated"])["calibration"] is None


def test_the_largest_size_is_called_a_batch_only_where_the_batch_is_varied() -> None:
    along, over_batches = (_there_and_back(CASES[name]) for name in ("sequence-length", "boundary-simulated"))
    assert (along["axis"], along["step"], along["max_size"], along["max_batch"]) == ("seq-len", 8, 1152, None)
    assert (along["recommended_size"], along["recommended_batch"]) == (1152, None)
    assert (along["spec"]["batch_size"], along["spec"]["model_args"]) == (4, {"n_positions": 4096})
    assert "seq_len" not in along["spec"]
    assert along["law"]["per_square_bytes"] == pytest.approx(4980, rel=0.001)
    assert (over_batches["step"], over_batches["max_size"], over_batches["max_batch"]) == (1, BOUNDARY, BOUNDARY)
    assert "batch_size" not in over_batches["spec"]
    assert over_batches["law"]["per_square_bytes"] == 0

"""The run for programs: one JSON object and one CSV table.

The object of ``to_json`` (schema 1; bytes are integers, times seconds, what was not measured null)::

    schema             1
    model, device      as asked; "device_label" is the device's own name
    simulated          whether the numbers are of a device that is not there
    axis               "batch"
    max_batch          the largest size that was run and fitted; null when none did
    proven             both sides of the boundary were run, or the cap fits
    first_failure      the smallest size that ran out of memory; null when none did
    recommended_batch  leaves the margin free; null when no size that was run does
    capacity_bytes     what the device could give, under the limit asked for
    trials             how many ended each way: {"fit", "oom", "broken"}
    seconds            of all trials together
    prediction         {"max_batch", "peak_bytes_at_max"}; null when none was made
    curve              one entry a size, ascending: {"size", "outcome": "fit" | "oom" | "broken", "trials",
                       "peak_allocated_bytes", "peak_reserved_bytes", "process_bytes", "step_seconds",
                       "samples_per_second", "breakdown", "holdings"}.  The peaks of an out of memory are how far it
                       came, those of a broken trial 0.  "breakdown" (bytes by kind at the peak) and "holdings" (the
                       most of each kind at any time) hold "weights", "buffers", "gradients", "optimizer",
                       "activations", "inputs", "workspace"; null when not known
    law                {"fixed_bytes", "per_sample_bytes", "r_squared", "worst_relative_error", "points_used"}; or null
    failure            where first_failure ran out: {"size", "failure", "phase", "step", "operator", "module",
                       "requested_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "message"}; or null
    broken             why the sweep stopped: {"failure", "reason", "phase", "traceback"}; null when it did not
    finished           nothing is left to run
    prediction_error   (predicted - found) / found; or null
    warnings           sentences
    spec               all that was asked of a trial but its size
    versions           {"sweeper", "python", "torch", "torchvision", "cuda", "driver"}
    folder             the run's

Keys may be added under the same schema number; none is taken away.
"""

import csv
import io
from dataclasses import fields
from pathlib import Path
from typing import Any

from sweeper.record import CurvePoint, Record
from sweeper.report.words import on_simulated
from sweeper.wire import to_jsonable

__all__ = ["CSV_COLUMNS", "SCHEMA", "curve_csv", "to_json"]

# 1  first version
SCHEMA = 1

_KINDS = ("weights", "buffers", "gradients", "optimizer", "activations", "inputs", "workspace")
_CURVE_KEYS = (
    "size", "outcome", "trials", "peak_allocated_bytes", "peak_reserved_bytes",
    "process_bytes", "step_seconds", "samples_per_second",
)  # fmt: skip
_FAILURE_KEYS = (
    "failure", "phase", "step", "operator", "module",
    "requested_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "message",
)  # fmt: skip

CSV_COLUMNS = (*_CURVE_KEYS, "simulated", *(f"{kind}_bytes" for kind in _KINDS))


def to_json(record: Record, folder: Path) -> dict[str, Any]:
    """Return the object above, ready for ``json.dumps(..., allow_nan=False)``."""
    spec, device, guess = record.header.spec, record.device, record.prediction
    body = {
        "schema": SCHEMA,
        "model": spec.model,
        "device": spec.device,
        "device_label": device.label if device else None,
        "simulated": on_simulated(record),
        "axis": record.header.settings.axis,
        "max_batch": record.max_batch,
        "proven": record.proven,
        "first_failure": record.first_failure,
        "recommended_batch": record.recommended_batch,
        "capacity_bytes": record.capacity_bytes,
        "trials": record.counts,
        "seconds": record.seconds,
        "prediction": guess and {"max_batch": guess.max_batch, "peak_bytes_at_max": guess.peak_bytes_at_max},
        "curve": [_point(point) for point in record.curve],
        "law": record.law,
        "failure": _failure(record),
        "broken": _broken(record),
        "finished": record.broken is None and record.next_trial() is None,
        "prediction_error": record.prediction_error,
        "warnings": record.warnings,
        "spec": {f.name: getattr(spec, f.name) for f in fields(spec) if f.name != "batch_size"},
        "versions": {
            "sweeper": record.header.sweeper,
            "python": record.header.python,
            **{name: getattr(device, name, None) for name in ("torch", "torchvision", "cuda", "driver")},
        },
        "folder": str(folder),
    }
    return to_jsonable(body)  # type: ignore[no-any-return]


def curve_csv(record: Record) -> str:
    """Return the curve as CSV (RFC 4180), a header and a row a size; bytes are integers, unknown cells empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for point in record.curve:
        shares = [getattr(point.breakdown, kind, None) for kind in _KINDS]
        simulated = "true" if on_simulated(record) else "false"
        writer.writerow([*(getattr(point, key) for key in _CURVE_KEYS), simulated, *shares])
    return text.getvalue()


def _point(point: CurvePoint) -> dict[str, Any]:
    body = {key: getattr(point, key) for key in _CURVE_KEYS}
    for name in ("breakdown", "holdings"):
        held = getattr(point, name)
        body[name] = held and {kind: getattr(held, kind) for kind in _KINDS}
    return body


def _failure(record: Record) -> dict[str, Any] | None:
    if record.failure is None:
        return None
    size, failure = record.failure
    return {"size": size, **{key: getattr(failure, key) for key in _FAILURE_KEYS}}


def _broken(record: Record) -> dict[str, Any] | None:
    if record.broken is None:
        return None
    return {key: getattr(record.broken, key) for key in ("failure", "reason", "phase", "traceback")}

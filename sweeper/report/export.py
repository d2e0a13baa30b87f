"""The run for programs: one JSON object and one CSV table.

The object of ``to_json`` (schema 1; bytes are integers, times seconds, what was not measured null)::

    schema             1
    model, device      as asked; "device_label" is the device's own name
    simulated          whether the numbers are of a device that is not there
    axis               what was varied: "batch", "seq-len", "image-size" or "model.ARG"
    step               sizes are multiples of it
    max_size           the largest size that was run and fitted; null when none did
    max_batch          the same where the axis is the batch, else null
    proven             both sides of the boundary were run, or the cap fits
    first_failure      the smallest size that ran out of memory; null when none did
    recommended_size   leaves the margin free; null when no size that was run does
    recommended_batch  the same where the axis is the batch, else null
    capacity_bytes     what the device could give, under the limit asked for
    trials             how many ended each way: {"fit", "oom", "broken"}
    seconds            of all trials together
    prediction         {"max_batch", "peak_bytes_at_max"}; null when none was made
    curve              one entry a size, ascending: {"size", "outcome": "fit" | "oom" | "broken", "trials",
                       "peak_allocated_bytes", "peak_reserved_bytes", "process_bytes", "step_seconds",
                       "samples_per_second", "breakdown", "holdings", and of a GPU, elsewhere null, "predicted_fits",
                       "predicted_allocated_bytes", "predicted_reserved_bytes", "predicted_least_capacity_bytes" (of
                       one that ran out or was predicted to), "prediction_error" ((predicted - measured) / measured,
                       of what is reserved)}.  The peaks of an out of memory are how far it came, those of a broken
                       trial 0.  "breakdown" (bytes by kind at the peak) and "holdings" (the
                       most of each kind at any time) hold "weights", "buffers", "gradients", "optimizer",
                       "activations", "inputs", "workspace"; null when not known.  Beside memory: "tokens_per_second";
                       "loss_finite", and "numeric" of a loss that was not, {"step" (from 1), "value": "nan" | "inf" |
                       "-inf"}; "context_bytes" and "host_peak_bytes"; "activity" of the card, {"samples",
                       "utilization_mean_percent", "utilization_max_percent", "power_mean_w", "power_max_w",
                       "clock_mean_mhz", "temperature_max_c"}; "fragmentation", {"allocated_bytes", "reserved_bytes",
                       "unused_bytes", "largest_free_bytes"}, of the fullest end of a forward or a loss; "hours" and
                       "money" of "cost"
    law                {"fixed_bytes", "per_sample_bytes", "per_square_bytes" (0 of a line), "floor_bytes" (or null),
                       "r_squared", "worst_relative_error", "points_used"}; or null
    failure            where first_failure ran out: {"size", "failure", "phase", "step", "operator", "module",
                       "requested_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "message"}; or null
    broken             why the sweep stopped: {"failure", "reason", "phase", "traceback"}; null when it did not
    finished           nothing is left to run
    prediction_error   (predicted - found) / found of max_batch; or null
    prediction_errors  of the curve's: {"sizes", "median" (of their size), "worst" (signed), "worst_size"}; or null
    throughput         {"knee", "knee_samples_per_second", "fastest", "fastest_samples_per_second"}, the knee being the
                       smallest batch within 5 % of the fastest; null where nothing was timed
    cost               what was asked of a whole training: {"samples", "epochs", "price_per_hour", "currency",
                       "list_price" (words, where the price is a list's)}; or null
    calibration        what was measured of the card and is used: {"card", "date", "torch", "driver", "outside_bytes",
                       "reserved_offset_bytes"}; or null
    accumulation       how the effective batch is kept: {"target_batch", "micro_batch", "accumulate", "last" (the last
                       micro-batch's), "was_run"}; null where none was asked for, or nothing is proven to fit
    facts              what was done to the model for the choices of its training: sentences
    warnings           sentences
    spec               all that was asked of a trial but its size
    versions           {"sweeper", "python", "torch", "torchvision", "cuda", "driver"}
    folder             the run's

Keys may be added under the same schema number; none is taken away.
"""

import csv
import io
import platform
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from sweeper import __version__
from sweeper.axes import without_size
from sweeper.cards import Card
from sweeper.curve import fit_law
from sweeper.predicting import Forecast
from sweeper.prediction import PredictedPoint
from sweeper.record import CurvePoint, Record
from sweeper.report import costs, measured
from sweeper.report.words import on_simulated
from sweeper.wire import to_jsonable

__all__ = ["CSV_COLUMNS", "SCHEMA", "curve_csv", "forecast_to_json", "forecasts_to_json", "to_json"]

# 1  first version
SCHEMA = 1

_KINDS = ("weights", "buffers", "gradients", "optimizer", "activations", "inputs", "workspace")
_CURVE_KEYS = (
    "size", "outcome", "trials", "peak_allocated_bytes", "peak_reserved_bytes",
    "process_bytes", "step_seconds", "samples_per_second",
)  # fmt: skip
_PREDICTED_KEYS = (
    "predicted_fits", "predicted_allocated_bytes", "predicted_reserved_bytes", "predicted_least_capacity_bytes",
    "prediction_error",
)  # fmt: skip
_MEASURED_KEYS = (
    "tokens_per_second", "loss_finite", "numeric", "context_bytes", "host_peak_bytes", "activity", "fragmentation",
)  # fmt: skip
_FAILURE_KEYS = (
    "failure", "phase", "step", "operator", "module",
    "requested_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "message",
)  # fmt: skip

CSV_COLUMNS = (*_CURVE_KEYS, "simulated", *(f"{kind}_bytes" for kind in _KINDS), *_PREDICTED_KEYS)
CSV_COLUMNS += (*measured.CSV_COLUMNS, *costs.CSV_COLUMNS)


def to_json(record: Record, folder: Path) -> dict[str, Any]:
    """Return the object above, ready for ``json.dumps(..., allow_nan=False)``."""
    spec, device, guess = record.header.spec, record.device, record.prediction
    body = {
        "schema": SCHEMA,
        "model": spec.model,
        "device": spec.device,
        "device_label": device.label if device else None,
        "simulated": on_simulated(record),
        "axis": record.axis,
        "step": record.header.settings.step,
        "max_size": record.max_size,
        "max_batch": record.max_batch,
        "proven": record.proven,
        "first_failure": record.first_failure,
        "recommended_size": record.recommended_size,
        "recommended_batch": record.recommended_batch,
        "capacity_bytes": record.capacity_bytes,
        "trials": record.counts,
        "seconds": record.seconds,
        "prediction": guess and {"max_batch": guess.max_batch, "peak_bytes_at_max": guess.peak_bytes_at_max},
        "curve": [_point(point) | _cost(record, point) for point in record.curve],
        "law": record.law,
        "failure": _failure(record),
        "broken": _broken(record),
        "finished": record.broken is None and record.next_trial() is None,
        "prediction_error": record.prediction_error,
        "prediction_errors": record.prediction_errors,
        "throughput": record.throughput,
        "cost": costs.in_json(record),
        "calibration": _calibration(record.card or spec.card),
        "accumulation": record.split,
        "facts": record.facts,
        "warnings": record.warnings,
        "spec": without_size(spec, record.axis),
        "versions": {
            "sweeper": record.header.sweeper,
            "python": record.header.python,
            **{name: getattr(device, name, None) for name in ("torch", "torchvision", "cuda", "driver")},
        },
        "folder": str(folder),
    }
    return to_jsonable(body)  # type: ignore[no-any-return]


def forecast_to_json(found: Forecast) -> dict[str, Any]:
    """Return the same object for what is predicted: no trials, nothing proven, and in addition::

        predicted            true
        card                 the catalogue's name
        uncapped_peak_bytes  what max_batch would reserve on a card without end
        least_capacity_bytes the least that max_batch runs in
        headroom_bytes       the capacity less that, of "asked" where a batch was asked for
        asked                {"size", "fits", "uncapped_peak_bytes", "least_capacity_bytes", "failure"}; or null
        accuracy             how far predictions were from published measurements, as shares of what was measured:
                             {"date", "versions", "peaks", "kinds", "boundaries"}, "peaks" and each kind with "rows",
                             "median", "percentile_90" (of their size) and "bias" (signed); or null
        error_band           what "percentile_90", either way, makes of this: {"share", "least_peak_bytes",
                             "most_peak_bytes", "least_batch", "most_batch"}, the peaks uncapped, the batches the
                             largest that fit (null: nothing does); or null
        timeline             the files of --timeline: {"png", "svg", "snapshot"}; or null
        notes                sentences

    The curve's "peak_reserved_bytes" are uncapped, also where a size does not fit.
    """
    spec, guess, failure = found.spec, found.prediction, found.prediction.failure
    law = fit_law([(p.size, p.peak_allocated_bytes) for p in guess.points if p.size in found.fitting])
    body = {
        "schema": SCHEMA,
        "model": spec.model,
        "device": spec.device,
        "device_label": found.card.label,
        "simulated": True,
        "predicted": True,
        "card": found.card.name,
        "axis": "batch",
        "step": 1,
        "max_size": found.max_batch,
        "max_batch": found.max_batch,
        "proven": False,
        "first_failure": found.first_failure,
        "recommended_size": None,
        "recommended_batch": None,
        "capacity_bytes": found.capacity_bytes,
        "trials": {"fit": 0, "oom": 0, "broken": 0},
        "seconds": found.seconds,
        "prediction": {"max_batch": guess.max_batch, "peak_bytes_at_max": guess.peak_bytes_at_max},
        "uncapped_peak_bytes": found.uncapped_peak_bytes,
        "least_capacity_bytes": found.least_capacity_bytes,
        "headroom_bytes": found.headroom_bytes,
        "asked": found.asked and {**to_jsonable(found.asked), "fits": found.asked.fits},
        "accuracy": found.accuracy and {f.name: getattr(found.accuracy, f.name) for f in fields(found.accuracy)[1:]},
        "error_band": found.band,
        "timeline": None,
        "curve": [_predicted_point(point, found) for point in guess.points],
        "law": law,
        "failure": failure and {"size": failure.size, **{key: getattr(failure, key, None) for key in _FAILURE_KEYS}},
        "broken": None,
        "finished": True,
        "prediction_error": None,
        "prediction_errors": None,
        "throughput": None,
        "cost": None,
        "calibration": _calibration(found.card),
        "accumulation": None,
        "facts": (),
        "warnings": (),
        "notes": found.notes,
        "spec": without_size(spec, "batch"),
        "versions": {
            "sweeper": __version__,
            "python": platform.python_version(),
            **{name: found.versions.get(name) for name in ("torch", "torchvision")},
            "cuda": None,
            "driver": None,
        },
        "folder": None,
    }
    return to_jsonable(body)  # type: ignore[no-any-return]


def forecasts_to_json(found: Sequence[Forecast]) -> dict[str, Any]:
    """Return ``{"schema", "model", "predicted", "cards"}``, the last a list of the objects above."""
    cards = [forecast_to_json(one) for one in found]
    return {"schema": SCHEMA, "model": found[0].spec.model, "predicted": True, "cards": cards}


def _predicted_point(point: PredictedPoint, found: Forecast) -> dict[str, Any]:
    return {
        **dict.fromkeys((*_CURVE_KEYS, *_PREDICTED_KEYS, *_MEASURED_KEYS, *costs.CSV_COLUMNS)),
        "size": point.size,
        "outcome": "fit" if point.size in found.fitting else "oom",
        "trials": 0,
        "peak_allocated_bytes": point.peak_allocated_bytes,
        "peak_reserved_bytes": point.peak_reserved_bytes,
        "breakdown": {kind: getattr(point.breakdown, kind) for kind in _KINDS},
        "holdings": None,
    }


def curve_csv(record: Record) -> str:
    """Return the curve as CSV (RFC 4180), a header and a row a size; bytes are integers, unknown cells empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for point in record.curve:
        shares = [getattr(point.breakdown, kind, None) for kind in _KINDS]
        simulated = "true" if on_simulated(record) else "false"
        predicted = ("" if value is None else str(value).lower() for value in _beside(point).values())
        row = [*(getattr(point, key) for key in _CURVE_KEYS), simulated, *shares, *predicted]
        writer.writerow([*row, *measured.cells(point), *costs.cells(record, point)])
    return text.getvalue()


def _point(point: CurvePoint) -> dict[str, Any]:
    body = {key: getattr(point, key) for key in _CURVE_KEYS}
    for name in ("breakdown", "holdings"):
        held = getattr(point, name)
        body[name] = held and {kind: getattr(held, kind) for kind in _KINDS}
    return body | _beside(point) | measured.in_json(point)


def _cost(record: Record, point: CurvePoint) -> dict[str, Any]:
    return dict(zip(costs.CSV_COLUMNS, costs.cells(record, point), strict=True))


def _beside(point: CurvePoint) -> dict[str, Any]:
    """What was predicted of ``point``, under ``_PREDICTED_KEYS``."""
    predicted = point.predicted
    values = (
        predicted and predicted.fits,
        predicted and predicted.peak_allocated_bytes,
        predicted and predicted.peak_reserved_bytes,
        predicted and predicted.least_capacity_bytes,
        point.prediction_error,
    )
    return dict(zip(_PREDICTED_KEYS, values, strict=True))


def _calibration(card: Card | None) -> dict[str, Any] | None:
    if card is None or card.calibrated is None:
        return None
    return {
        "card": card.name,
        "date": card.calibrated.date,
        "torch": card.calibrated.torch,
        "driver": card.calibrated.driver,
        "outside_bytes": card.context_bytes,
        "reserved_offset_bytes": card.calibrated.reserved_offset_bytes,
    }


def _failure(record: Record) -> dict[str, Any] | None:
    if record.failure is None:
        return None
    size, failure = record.failure
    return {"size": size, **{key: getattr(failure, key) for key in _FAILURE_KEYS}}


def _broken(record: Record) -> dict[str, Any] | None:
    if record.broken is None:
        return None
    return {key: getattr(record.broken, key) for key in ("failure", "reason", "phase", "traceback")}

"""What a real GPU says, beside what is simulated and was predicted of it: run once on a machine that has one.

    PYTHONPATH=. python scripts/gpu_check.py                   writes results/gpu/<card>.json
    PYTHONPATH=. python scripts/gpu_check.py --out FOLDER

Needs the source tree, torch and torchvision, matplotlib, nvidia-ml-py and filelock; neither an installation nor
pytest.  It runs the gpu tests, calibrates the card (what it finds is written down here and kept nowhere else), then
runs real sweeps under a memory limit of 8 GiB, without a calibration.  Each batch that was measured stands beside what
was predicted of it before, and is simulated on the same card.  It ends within 6 minutes: what there was no time for is
listed as left out.
"""

import argparse
import dataclasses
import inspect
import json
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import sweeper  # noqa: E402 - the tree may not be installed
from sweeper.calibrating import calibrate  # noqa: E402
from sweeper.record import Record  # noqa: E402
from sweeper.report import words  # noqa: E402
from sweeper.runner import open_runner  # noqa: E402
from sweeper.trial import Fit, OutOfMemory  # noqa: E402
from sweeper.wire import to_jsonable  # noqa: E402

LIMIT = "8GiB"
BUDGET_S = 330.0
JOBS: tuple[Mapping[str, Any], ...] = (
    {"model": "resnet18", "precision": "fp32", "optimizer": "sgd"},
    {"model": "resnet50", "precision": "amp-fp16", "optimizer": "adam"},
    {"model": "vit_b_16", "precision": "fp32", "optimizer": "adamw"},
    {"model": "resnet50", "precision": "amp-bf16", "optimizer": "sgd"},
    {"model": "vit_b_16", "precision": "amp-bf16", "optimizer": "adamw"},
)


def run_tests() -> dict[str, str]:
    """Run every test function of tests/gpu here; a test asks for a scratch folder by the name pytest has for it."""
    from tests.gpu import test_gpu

    found = {}
    for name, test in sorted(vars(test_gpu).items()):
        if not name.startswith("test_"):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            arguments = {"tmp_path": Path(scratch)} if "tmp_path" in inspect.signature(test).parameters else {}
            try:
                test(**arguments)
                found[name] = "passed"
            except Exception:  # any failure is a line of the report
                found[name] = traceback.format_exc()
        print(f"{name}: {found[name].strip().splitlines()[-1]}", flush=True)
    return found


def calibrated() -> dict[str, Any]:
    """What ``sweep calibrate`` would keep; or why it could not be measured."""
    with open_runner("fork", timeout_s=60) as runner, tempfile.TemporaryDirectory() as scratch:
        try:
            found = calibrate(runner, "cuda", Path(scratch))
        except sweeper.SweepError as error:
            return {"error": f"{error.message}; {error.hint}"}
    print(f"outside the allocator: {found.outside_bytes} bytes, offset {found.reserved_offset_bytes}", flush=True)
    used = {"outside_bytes": found.outside_bytes, "reserved_offset_bytes": found.reserved_offset_bytes}
    return {**to_jsonable(found), **used}


def check(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One real sweep, what was predicted of each batch, and the same batches simulated."""
    given: dict[str, Any] = {
        "device": "cuda",
        "memory_limit": LIMIT,
        "max_batch": 512,
        "timeout_s": 90,
        "calibration": False,
    }
    real = sweeper.sweep(**job, **given, folder=folder / "real")
    record = real.record
    beside = simulated(record, folder)
    rows = [
        {
            "batch": point.size,
            "outcome": point.outcome,
            "measured_allocated_bytes": point.peak_allocated_bytes,
            "measured_reserved_bytes": point.peak_reserved_bytes,
            "measured_process_bytes": point.process_bytes,
            "step_seconds": point.step_seconds,
            "predicted": to_jsonable(point.predicted),
            "prediction_error": point.prediction_error,
            **beside[point.size],
        }
        for point in real.curve
    ]
    contexts = [trial.outcome.context_bytes for trial in record.trials if isinstance(trial.outcome, Fit | OutOfMemory)]
    predicted = record.prediction.max_batch if record.prediction else None
    print(f"{job}: {words.prediction(record)}", flush=True)
    return {
        "job": dict(job),
        "memory_limit": LIMIT,
        "measured_max_batch": real.max_batch,
        "measured_proven": real.proven,
        "recommended_batch": real.recommended_batch,
        "predicted_max_batch": predicted,
        "prediction_errors": to_jsonable(record.prediction_errors),
        "context_bytes": next((size for size in contexts if size is not None), None),
        "broken": to_jsonable(record.broken),
        "warnings": list(record.warnings),
        "rows": rows,
        "seconds": record.seconds,
    }


def simulated(record: Record, folder: Path) -> dict[int, dict[str, Any]]:
    """What a simulated trial says of each batch that was measured; one host for all."""
    card = record.card
    assert card is not None
    found = {}
    with open_runner("fork", timeout_s=60) as runner:
        for point in record.curve:
            device = f"sim:{card.name}"
            spec = dataclasses.replace(record.header.spec, device=device, card=card, batch_size=point.size)
            outcome = runner.run(spec, folder / f"sim-{point.size}")
            found[point.size] = {
                "simulated_outcome": type(outcome).__name__,
                "simulated_allocated_bytes": getattr(outcome, "peak_allocated_bytes", None),
                "simulated_reserved_bytes": getattr(outcome, "peak_reserved_bytes", None),
            }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu")
    options = parser.parse_args()
    began = time.monotonic()
    found: dict[str, Any] = {
        "schema": 2,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "tests": run_tests(),
        "calibration": calibrated(),
        "jobs": [],
        "left_out": [],
    }
    with tempfile.TemporaryDirectory() as scratch:
        for number, job in enumerate(JOBS):
            if time.monotonic() - began > BUDGET_S * (1 - 1 / len(JOBS)):
                found["left_out"].append(dict(job))
                continue
            try:
                found["jobs"].append(check(job, Path(scratch) / str(number)))
            except Exception:  # the other jobs are still worth having
                found["jobs"].append({"job": dict(job), "error": traceback.format_exc()})
                traceback.print_exc()
            report = next(Path(scratch).glob("*/real/journal.jsonl"), None)
            if report is not None:
                found["device"] = to_jsonable(sweeper.load(report.parent).record.device)
            _write(options.out, found)
    found["seconds"] = time.monotonic() - began
    print(f"wrote {_write(options.out, found)} after {found['seconds']:.0f} s")
    failed = [name for name, result in found["tests"].items() if result != "passed"]
    return 1 if failed or any("error" in job for job in found["jobs"]) else 0


def _write(folder: Path, found: Mapping[str, Any]) -> Path:
    """Written after every job, so that what was measured survives a machine that is taken away."""
    label = found["device"]["label"] if "device" in found else "unknown"
    path = folder / f"{re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-')}.json"
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    return partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())

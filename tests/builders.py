"""Records, trials and outcomes for tests: defaults that hang together, and only what a test is about said in it.

The default world is a model of 512 MiB and 22 MiB an image on a card that gives 7,680 MiB: 325 fits, 326 does not.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from sweeper.calibration import Calibration, CalibrationJob
from sweeper.cards import Card
from sweeper.prediction import PredictedPoint, Prediction
from sweeper.record import Header, PredictedTrial, Purpose, Record, Settings, TrialRecord
from sweeper.trial import (
    Breakdown,
    Broken,
    CardMemory,
    DeviceReport,
    Fit,
    Outcome,
    OutOfMemory,
    PhasePeak,
    StepRecord,
    TrialSpec,
)
from sweeper.units import MIB

FIXED_BYTES = 512 * MIB
PER_IMAGE_BYTES = 22 * MIB
CAPACITY_BYTES = 7680 * MIB
BOUNDARY = (CAPACITY_BYTES - FIXED_BYTES) // PER_IMAGE_BYTES


def a_spec(**changes: Any) -> TrialSpec:
    return TrialSpec(**{"model": "resnet18", "batch_size": 1, "device": "sim:rtx4060", **changes})


def a_device(*, device: str = "sim:rtx4060", **changes: Any) -> DeviceReport:
    """The device of that name: simulated where its name says so."""
    simulated = device.startswith("sim:")
    given: dict[str, Any] = {
        "device": device,
        "label": "AMD EPYC 7B13" if device == "cpu" else "NVIDIA GeForce RTX 4060",
        "simulated": simulated,
        "total_bytes": 8_318_222_336,
        "capacity_bytes": CAPACITY_BYTES,
        "compute_capability": None if device == "cpu" else "8.9",
        "driver": None if simulated or device == "cpu" else "580.95.05",
        "torch": "2.14.1+cu130",
        "torchvision": "0.29.1",
    }
    return DeviceReport(**{**given, **changes})


def a_header(*, spec: TrialSpec | None = None, settings: Settings | None = None, **changes: Any) -> Header:
    given: dict[str, Any] = {
        "created": "2026-01-02T03:04:05+00:00",
        "command": ("sweep", "--model", "resnet18", "--max-batch", "512"),
        "spec": spec or a_spec(),
        "settings": settings or Settings(cap=512, margin=0.05),
        "sweeper": "0.1.0",
        "python": "3.11.9",
        "platform": "Linux-x86_64",
    }
    return Header(**{**given, **changes})


def a_breakdown(size: int) -> Breakdown:
    """Bytes by kind that add up to ``allocated_at(size)``."""
    fixed = {"weights": 45 * MIB, "buffers": MIB, "gradients": 45 * MIB, "optimizer": 45 * MIB, "workspace": 8 * MIB}
    inputs = size * 3 * 224 * 224 * 4
    activations = allocated_at(size) - sum(fixed.values()) - inputs
    return Breakdown(**fixed, inputs=inputs, activations=activations)


def reserved_at(size: int) -> int:
    return FIXED_BYTES + PER_IMAGE_BYTES * size


def allocated_at(size: int) -> int:
    return reserved_at(size) - 48 * MIB


def a_fit(size: int = 8, **changes: Any) -> Fit:
    """A fit on a simulated device: nothing timed, everything by kind."""
    given: dict[str, Any] = {
        "peak_allocated_bytes": allocated_at(size),
        "peak_reserved_bytes": reserved_at(size),
        "capacity_bytes": CAPACITY_BYTES,
        "breakdown": a_breakdown(size),
        "holdings": a_breakdown(size),
    }
    given.update(changes)
    allocated, reserved = given["peak_allocated_bytes"], given["peak_reserved_bytes"]
    step = StepRecord(
        seconds=given.get("step_seconds"), loss=None, peak_allocated_bytes=allocated, peak_reserved_bytes=reserved
    )
    phase = PhasePeak(phase="backward", peak_allocated_bytes=allocated, peak_reserved_bytes=reserved)
    return Fit(**{"steps": (step,) * 3, "phases": (phase,), **given})


def a_measured_fit(size: int = 8, **changes: Any) -> Fit:
    """A fit on a real GPU: timed, seen by the driver, kinds not known."""
    seconds = 0.01 + size / 1000
    context = 300 * MIB
    memory = CardMemory(
        total_bytes=8_318_222_336, used_bytes=reserved_at(size) + context, process_bytes=reserved_at(size) + context
    )
    given: dict[str, Any] = {
        "breakdown": None,
        "holdings": None,
        "step_seconds": seconds,
        "samples_per_second": size / seconds,
        "process_bytes": reserved_at(size) + context,
        "context_bytes": context,
        "allocator_retries": 0,
        "card_before": CardMemory(total_bytes=8_318_222_336, used_bytes=context, process_bytes=context),
        "card_after": memory,
    }
    return a_fit(size, **{**given, **changes})


def an_oom(**changes: Any) -> OutOfMemory:
    """A true shortage in the forward of a convolution, every size known."""
    given: dict[str, Any] = {
        "failure": "oom_device",
        "phase": "forward",
        "step": 0,
        "message": "CUDA out of memory. Tried to allocate 98.00 MiB.",
        "requested_bytes": 98 * MIB,
        "free_bytes": 30 * MIB,
        "capacity_bytes": CAPACITY_BYTES,
        "allocated_bytes": 7602 * MIB,
        "reserved_bytes": 7650 * MIB,
        "peak_allocated_bytes": 7602 * MIB,
        "peak_reserved_bytes": 7650 * MIB,
        "operator": "aten.convolution",
        "module": "layer1.0.conv2",
    }
    return OutOfMemory(**{**given, **changes})


def a_broken(**changes: Any) -> Broken:
    given: dict[str, Any] = {
        "failure": "model_error",
        "reason": "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        "phase": "forward",
        "traceback": 'Traceback (most recent call last):\n  File "model.py", line 7, in forward\nRuntimeError: mat1',
    }
    return Broken(**{**given, **changes})


def a_trial(
    number: int,
    size: int,
    outcome: Outcome,
    *,
    purpose: Purpose = "curve",
    seconds: float = 0.5,
    withheld_bytes: int = 0,
    predicted: PredictedTrial | None = None,
) -> TrialRecord:
    return TrialRecord(
        number=number,
        size=size,
        purpose=purpose,
        outcome=outcome,
        started="2026-01-02T03:04:05+00:00",
        seconds=seconds,
        folder=f"trials/{number:04}-b{size:04}",
        withheld_bytes=withheld_bytes,
        predicted=predicted,
    )


def a_calibration_job(difference_bytes: int = 0, **changes: Any) -> CalibrationJob:
    """A small job that reserved ``difference_bytes`` more on the card than in its simulation."""
    given: dict[str, Any] = {
        "model": "resnet18",
        "precision": "fp32",
        "batch_size": 8,
        "measured_allocated_bytes": 200 * MIB,
        "measured_reserved_bytes": 256 * MIB + difference_bytes,
        "simulated_allocated_bytes": 200 * MIB,
        "simulated_reserved_bytes": 256 * MIB,
        "outside_bytes": 312 * MIB,
        "cublas_workspace_bytes": 8_519_680,
    }
    return CalibrationJob(**{**given, **changes})


def a_calibration(*differences: int, **changes: Any) -> Calibration:
    """An RTX 4060 with 312 MiB outside the allocator, after jobs whose reserved peaks were off by ``differences``."""
    given: dict[str, Any] = {
        "name": "rtx4060",
        "label": "NVIDIA GeForce RTX 4060",
        "total_bytes": 8_318_222_336,
        "compute_capability": "8.9",
        "multiprocessors": 24,
        "context_bytes": 280 * MIB,
        "others_bytes": 0,
        "jobs": tuple(a_calibration_job(difference) for difference in differences or (0,)),
        "date": "2026-11-30",
        "sweeper": "0.1.0",
        "torch": "2.14.1+cu130",
        "cuda": "13.0",
        "driver": "580.95.05",
    }
    return Calibration(**{**given, **changes})


def a_prediction(max_batch: int | None = BOUNDARY, sizes: Iterable[int] = (1, 100, 200, 300, BOUNDARY)) -> Prediction:
    points = tuple(
        PredictedPoint(
            size=size,
            peak_allocated_bytes=allocated_at(size),
            peak_reserved_bytes=reserved_at(size),
            breakdown=a_breakdown(size),
        )
        for size in sizes
    )
    return Prediction(
        max_batch=max_batch, peak_bytes_at_max=None if max_batch is None else reserved_at(max_batch), points=points
    )


def a_record(
    *outcomes: tuple[int, Outcome],
    spec: TrialSpec | None = None,
    settings: Settings | None = None,
    device: DeviceReport | None = None,
    prediction: Prediction | None = None,
    card: Card | None = None,
    predicted: Mapping[int, PredictedTrial] = MappingProxyType({}),
) -> Record:
    """A record of ``outcomes``, (size, outcome) pairs in the order they were run, on the device that ``spec`` names."""
    header = a_header(spec=spec, settings=settings)
    trials = tuple(
        a_trial(number, size, outcome, predicted=predicted.get(size))
        for number, (size, outcome) in enumerate(outcomes, start=1)
    )
    return Record(
        header=header,
        device=device or a_device(device=header.spec.device),
        prediction=prediction,
        card=card,
        trials=trials,
    )


def a_finished_record(**changes: Any) -> Record:
    """The default world, swept to its proven boundary; 307 ran with the margin withheld."""
    fits = [(size, a_fit(size)) for size in (1, 2, 4, 8, 16, 32, BOUNDARY)]
    record = a_record(*fits, (BOUNDARY + 1, an_oom()), **changes)
    withheld = int(record.header.settings.margin * record.capacity_bytes)
    return record.with_trial(a_trial(len(fits) + 2, 307, a_fit(307), purpose="recommended", withheld_bytes=withheld))

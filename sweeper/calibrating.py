"""Measuring one GPU: a few small jobs on it, each beside its simulation, every one a trial in a process of its own.

What lies outside PyTorch's allocator is read twice.  The driver's count of the process (NVML), less what the allocator
reserved, is the process's own; where the driver hides processes, as in many containers, it is what of the card is
neither free nor reserved (cudaMemGetInfo), and then other processes count too.  The two differ by what others hold
and the driver keeps for itself, which is told and not kept as the card's.

The jobs are a CNN and a transformer, in fp32 and under autocast, so that cuDNN's and cuBLAS's kernels of both are
loaded.  They are small: their peaks say how far the allocator's constant part is off, not how a large model's grows.
"""

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from sweeper import __version__, cards
from sweeper.calibration import Calibration, CalibrationJob
from sweeper.cards import Card
from sweeper.errors import TrialsBroke, UsageError, WorkerFailed
from sweeper.runner import Runner
from sweeper.trial import (
    Broken,
    Calibrate,
    CalibrationTrial,
    Describe,
    DeviceReport,
    Fit,
    OutOfMemory,
    Refused,
    Request,
    Response,
    TrialSpec,
)

__all__ = ["JOBS", "calibrate", "card_at_hand"]

T = TypeVar("T")

_BATCH = 8
JOBS: tuple[TrialSpec, ...] = (
    TrialSpec(model="resnet18", batch_size=_BATCH, device="cuda"),
    TrialSpec(model="resnet18", batch_size=_BATCH, device="cuda", precision="amp-fp16"),
    TrialSpec(model="tiny-transformer", batch_size=_BATCH, device="cuda", optimizer="adamw"),
    TrialSpec(model="tiny-transformer", batch_size=_BATCH, device="cuda", optimizer="adamw", precision="amp-fp16"),
)


def calibrate(
    runner: Runner,
    device: str,
    folder: Path,
    *,
    jobs: Sequence[TrialSpec] = JOBS,
    on_job: Callable[[TrialSpec], None] | None = None,
) -> Calibration:
    """Measure the GPU that is ``device`` by ``jobs``; requests go in ``folder``.  ``on_job`` is told before each.

    Raises ``UsageError`` where there is no such GPU, ``TrialsBroke`` where a job does not run on it.
    """
    report = _described(runner, device, folder / "device")
    card = card_at_hand(report)
    measured, trials = [], []
    for number, job in enumerate(jobs):
        if on_job:
            on_job(job)
        spec = dataclasses.replace(job, device=report.device)
        trial = _answered(runner, Calibrate(spec=spec), folder / f"{number}-measured", job, CalibrationTrial)
        beside = dataclasses.replace(job, device=f"sim:{card.name}", card=card)
        simulated = _answered(runner, beside, folder / f"{number}-simulated", job, Fit)
        measured.append(_job(job, trial, simulated))
        trials.append(trial)
    others = [trial.outside_bytes - job.outside_bytes for job, trial in zip(measured, trials, strict=True)]
    return Calibration(
        name=card.name,
        label=report.label,
        total_bytes=report.total_bytes,
        compute_capability=card.compute_capability,
        context_bytes=max(_context_bytes(trial) for trial in trials),
        others_bytes=max(0, *others) if all(trial.fit.context_bytes is not None for trial in trials) else None,
        jobs=tuple(measured),
        date=datetime.now(timezone.utc).date().isoformat(),
        sweeper=__version__,
        torch=report.torch or "unknown",
        cuda=report.cuda,
        driver=report.driver,
    )


def card_at_hand(device: DeviceReport) -> Card:
    """The GPU that is here, as a card to simulate: total and capability as reported, the rest from the catalogue.

    A card that the catalogue lacks has the context that can be told from the report.
    """
    known = cards.find(device.label, device.total_bytes)
    capability = device.compute_capability or (known.compute_capability if known else "8.9")
    if known is not None:
        return dataclasses.replace(known, total_bytes=device.total_bytes, compute_capability=capability)
    return Card(
        name=cards.name_for(device.label, device.total_bytes),
        label=device.label,
        total_bytes=device.total_bytes,
        total_source="as the driver reports it here",
        compute_capability=capability,
        architecture="not in the catalogue",
        context_bytes=device.total_bytes - device.capacity_bytes,
        context_source="what was not free here when it was described",
        memory_bandwidth_bytes_per_s=None,
        vendor="not in the catalogue",
    )


def _described(runner: Runner, device: str, folder: Path) -> DeviceReport:
    if device.partition(":")[0] != "cuda":
        raise UsageError(f"{device} is no GPU, and only a GPU can be calibrated", hint="give --device cuda or cuda:1")
    match _twice(runner, Describe(device=device), folder):
        case DeviceReport() as report:
            return report
        case Refused(message=message):
            hint = "calibrate on the machine that has the GPU; `sweep calibrate --list` shows what is kept here"
            raise UsageError(message, hint=hint)
        case Broken(reason=reason):
            raise WorkerFailed(f"{device}: {reason}", hint="look at the card and its driver (nvidia-smi, dmesg)")
        case response:
            raise WorkerFailed(f"the worker answered with {type(response).__name__}", hint="reinstall sweeper")


def _twice(runner: Runner, request: Request, folder: Path) -> Response:
    """A request that breaks is run once more, as a trial is."""
    response = runner.run(request, folder)
    return runner.run(request, folder.with_name(f"{folder.name}-again")) if isinstance(response, Broken) else response


def _answered(runner: Runner, request: Request, folder: Path, job: TrialSpec, wanted: type[T]) -> T:
    response = _twice(runner, request, folder)
    if isinstance(response, wanted):
        return response
    match response:
        case Refused(message=message, hint=hint):
            raise UsageError(message, hint=hint)
        case Broken(reason=reason):
            hint = f"try it alone: sweep --model {job.model} --precision {job.precision} --batches {job.batch_size}"
            raise TrialsBroke(f"{job.model} ({job.precision}) broke: {reason}", hint=hint)
        case OutOfMemory():
            raise TrialsBroke(
                f"{job.model} ({job.precision}) ran out of memory at batch {job.batch_size}",
                hint="end what else runs on the card, and calibrate again",
            )
    raise WorkerFailed(f"the worker answered with {type(response).__name__}", hint="reinstall sweeper")


def _job(job: TrialSpec, trial: CalibrationTrial, simulated: Fit) -> CalibrationJob:
    return CalibrationJob(
        model=job.model,
        precision=job.precision,
        batch_size=job.batch_size,
        measured_allocated_bytes=trial.fit.peak_allocated_bytes,
        measured_reserved_bytes=trial.fit.peak_reserved_bytes,
        simulated_allocated_bytes=simulated.peak_allocated_bytes,
        simulated_reserved_bytes=simulated.peak_reserved_bytes,
        outside_bytes=trial.outside_bytes if trial.fit.context_bytes is None else trial.fit.context_bytes,
        cublas_workspace_bytes=trial.cublas_workspace_bytes,
    )


def _context_bytes(trial: CalibrationTrial) -> int:
    """What the process took before its first tensor."""
    before = trial.fit.card_before
    return trial.context_bytes if before is None or before.process_bytes is None else before.process_bytes

"""One trial from its spec to its outcome, and what else a worker is asked: a device, a trace, a calibration.

Everything a trial can raise is caught in ``_measure``, once, and read by ``failures.classify``: this module gathers
the evidence (types, codes, the frames, what the device says of its memory) and decides nothing.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any, TypeVar

import torch

from sweeper import failures
from sweeper.axes import at_size
from sweeper.errors import SweepError
from sweeper.model_names import DETECTION
from sweeper.trace import Trace
from sweeper.trial import (
    Broken,
    CalibrationTrial,
    Describe,
    DeviceReport,
    Fit,
    ModelReport,
    Outcome,
    OutOfMemory,
    Refused,
    TrialSpec,
)
from sweeper.untraceable import lacks_values
from sweeper.worker.devices import Device, DeviceMissing, FailureDetail, map_tensors, open_device
from sweeper.worker.devices.cuda import CudaDevice
from sweeper.worker.devices.simulated import SimulatedDevice
from sweeper.worker.meter import Meter
from sweeper.worker.optimizers import import_optimizer
from sweeper.worker.training import train
from sweeper.worker.workload import load

__all__ = ["calibrate", "describe", "describe_model", "run", "trace"]

T = TypeVar("T")


def describe(request: Describe) -> DeviceReport | Refused:
    """What ``request.device`` is; refused when it is not on this machine."""
    device = _open(request)
    return device if isinstance(device, Refused) else device.report()


def describe_model(spec: TrialSpec) -> ModelReport | Refused:
    """What ``spec`` trains, built on meta tensors: nothing of it is held."""
    try:
        with torch.device("meta"):
            workload = load(spec)
            inputs, _ = workload.make_batch(1)
    except SweepError as refused:
        return Refused(message=refused.message, hint=refused.hint)
    parameters = list(workload.model.parameters())
    return ModelReport(
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        **{"inputs": _shapes(inputs), **workload.sizes},
    )


def _shapes(inputs: Any) -> str:
    """The shapes of one sample, without the axis of the batch."""
    found: list[str] = []
    map_tensors(inputs, lambda t: found.append(" x ".join(map(str, t.shape[1:])) or "1"))
    return ", ".join(found)


def run(spec: TrialSpec) -> Outcome | Refused:
    """Train as ``spec`` says and return what came of it."""
    device = _open(spec)
    return device if isinstance(device, Refused) else _measure(spec, device)


def calibrate(spec: TrialSpec) -> CalibrationTrial | Outcome | Refused:
    """Train as ``spec`` says on a GPU, and tell what of the card is not the allocator's, before and after."""
    device = _open(spec)
    if isinstance(device, Refused):
        return device
    if not isinstance(device, CudaDevice):
        return Refused(message=f"{spec.device} is not a GPU that is here", hint="calibrate --device cuda")
    context_bytes = device.outside_bytes()
    outcome = _measure(spec, device)
    if not isinstance(outcome, Fit):
        return outcome
    return CalibrationTrial(
        fit=outcome,
        context_bytes=context_bytes,
        outside_bytes=device.outside_bytes(),
        cublas_workspace_bytes=device.drop_cublas_workspaces(),
    )


def trace(spec: TrialSpec, size: int, axis: str = "batch") -> Trace | Broken | Refused:
    """The trace of ``spec``'s steps at ``size`` along ``axis``, on a card without end; its device is ``sim:CARD``."""
    device = SimulatedDevice(spec.card or spec.device.partition(":")[2], record=True)
    sized = at_size(spec, axis, size)
    outcome = _measure(sized, device)
    if isinstance(outcome, Fit):
        return device.trace(sized.batch_size)
    assert not isinstance(outcome, OutOfMemory)
    return outcome


def _open(asked: TrialSpec | Describe) -> Device | Refused:
    try:
        return open_device(asked.device, asked.memory_limit_bytes, asked.card, asked.alloc_conf)
    except DeviceMissing as missing:
        hint = "simulate a card, for example --device sim:rtx4060, or train on --device cpu"
        return Refused(message=f"{asked.device}: {missing}", hint=hint)
    except SweepError as refused:
        return Refused(message=refused.message, hint=refused.hint)


def _measure(spec: TrialSpec, device: Device) -> Outcome | Refused:
    if not isinstance(device, SimulatedDevice):
        return _attempt(spec, device)
    if spec.model in DETECTION:
        device.start_over(with_values=True)
    outcome = _attempt(spec, device)
    if not device.has_values and isinstance(outcome, Broken) and lacks_values(outcome):
        device.start_over(with_values=True)
        outcome = _attempt(spec, device)
    return outcome


def _attempt(spec: TrialSpec, device: Device) -> Outcome | Refused:
    meter = Meter(device, look_in=1 if spec.steps > 2 else 0)
    meter.card_before = device.card_memory()
    try:
        import_optimizer(spec)
        with device.session():
            try:
                with device.build_context():
                    workload = load(spec)
                train(spec, workload, device, meter)
                return _fit(spec, device, meter, workload.tokens)
            except Exception as error:
                # Here and not outside: what the device says of itself is true only while it is still full.
                detail = device.failure_detail(error)
                meter.read_card()
                caught = error
        return _failed(spec, device, meter, detail, caught)
    except SweepError as refused:
        return Refused(message=refused.message, hint=refused.hint)


def _fit(spec: TrialSpec, device: Device, meter: Meter, tokens: int | None) -> Fit | Broken:
    """``tokens`` is how many one sample has, of models of sequences."""
    kinds = device.breakdowns() or meter.breakdowns()
    seconds = meter.step_seconds()
    samples_per_second = spec.accumulate * spec.batch_size / seconds if seconds else None
    fit = Fit(
        peak_allocated_bytes=meter.peak_allocated_bytes,
        peak_reserved_bytes=meter.peak_reserved_bytes,
        capacity_bytes=device.capacity_bytes,
        steps=tuple(meter.steps),
        phases=meter.phase_peaks(),
        breakdown=kinds[0] if kinds else None,
        holdings=kinds[1] if kinds else None,
        step_seconds=seconds,
        samples_per_second=samples_per_second,
        tokens_per_second=tokens * samples_per_second if tokens and samples_per_second else None,
        process_bytes=meter.card_peak.process_bytes if meter.card_peak else None,
        context_bytes=meter.context_bytes,
        host_peak_bytes=device.host_peak_bytes(),
        fragmentation=meter.fragmentation,
        activity=meter.activity,
        allocator_retries=device.allocator_retries(),
        card_before=meter.card_before,
        card_after=device.card_memory(),
        notes=device.notes(),
        facts=meter.facts,
    )
    doubt = failures.doubt(fit)
    return Broken(failure=doubt.failure, reason=doubt.reason) if doubt else fit


def _failed(
    spec: TrialSpec, device: Device, meter: Meter, detail: FailureDetail, error: Exception
) -> OutOfMemory | Broken | Refused:
    if isinstance(error, SweepError):  # an argument that the model does not take, a batch it cannot make
        return Refused(message=error.message, hint=error.hint)
    kind = spec.device.partition(":")[0]
    verdict = failures.classify(failures.evidence_of(error, device=kind))
    trace_text = _traceback_text(error)
    if not failures.is_out_of_memory(verdict.failure, device=kind):
        return Broken(failure=verdict.failure, reason=verdict.reason, phase=meter.phase_now, traceback=trace_text)
    assert verdict.failure in ("oom_device", "oom_suspect", "oom_host")
    said = verdict.sizes or failures.ParsedSizes()
    kinds = device.breakdowns() or meter.breakdowns()
    return OutOfMemory(
        failure=verdict.failure,
        phase=meter.phase_now,
        step=meter.step_now,
        message=_first_line(error),
        traceback=trace_text,
        requested_bytes=_first(detail.requested_bytes, said.requested_bytes),
        free_bytes=_first(detail.free_bytes, said.free_bytes),
        capacity_bytes=device.capacity_bytes,
        allocated_bytes=_first(detail.allocated_bytes, said.allocated_bytes),
        reserved_bytes=_first(detail.reserved_bytes, said.reserved_bytes),
        peak_allocated_bytes=meter.peak_allocated_bytes,
        peak_reserved_bytes=meter.peak_reserved_bytes,
        operator=detail.operator,
        module=_first(detail.module, meter.module_now),
        breakdown=kinds[0] if kinds else None,
        process_bytes=meter.card_peak.process_bytes if meter.card_peak else None,
        context_bytes=meter.context_bytes,
        allocator_retries=device.allocator_retries(),
        card_before=meter.card_before,
        card_after=device.card_memory(),
        notes=(*meter.failure_notes(), *device.notes()),
    )


def _traceback_text(error: Exception) -> str:
    """The whole traceback, in which installed packages are named from where they are imported.

    ``torch/nn/modules/module.py`` is the same on every machine, and a run that is passed on names nobody's folders.
    """
    text = "".join(traceback.format_exception(error))
    # The longest first: site-packages lies inside the standard library's folder.
    roots = {entry for entry in sys.path if entry.endswith("-packages")} | {str(Path(os.__file__).parent)}
    roots.add(str(Path(__file__).resolve().parents[2]))
    for root in sorted(roots, key=len, reverse=True):
        text = text.replace(f'File "{root}{os.sep}', 'File "')
    return text


def _first_line(error: Exception) -> str:
    """The error's first line; its type where it has no text, as a MemoryError."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)

"""One sweep: ask the record what to run, run it, write it down, until there is nothing left to learn.

The loop holds no decision of its own.  What comes next is ``Record.next_trial``; a sweep that was killed goes on from
its journal as if nothing had happened.  One thing can be known to the folder and not to the journal: a trial that
finished just before the driver died.  Its result is adopted, so that no trial is lost and none is run twice.
"""

import dataclasses
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from sweeper import axes, cards
from sweeper.calibrations import Calibrations
from sweeper.checks import check_limit
from sweeper.errors import UsageError, WorkerFailed
from sweeper.journal import Journal
from sweeper.prediction import Prediction
from sweeper.record import NextTrial, Record, TrialRecord
from sweeper.runner import Exit, Runner, read_response
from sweeper.seeding import Seed, card_of
from sweeper.trial import (
    Broken,
    Describe,
    DeviceReport,
    Fit,
    Outcome,
    OutOfMemory,
    Refused,
    Request,
    TrialSpec,
    request_from_json,
)
from sweeper.wire import WireError

__all__ = ["Observer", "Silent", "begin_sweep", "describe", "run_sweep"]

_NONE_KEPT = Calibrations(None)


class Observer(Protocol):
    """Told what happens, as it happens; the command line draws a progress bar with it."""

    def chose(self, device: str) -> None: ...

    def opened(self, folder: Path) -> None: ...

    def described(self, device: DeviceReport, prediction: Prediction | None) -> None: ...

    def started(self, record: Record, trial: NextTrial) -> None: ...

    def ended(self, record: Record, trial: TrialRecord) -> None: ...


class Silent:
    """The observer that does nothing."""

    def chose(self, device: str) -> None: ...

    def opened(self, folder: Path) -> None: ...

    def described(self, device: DeviceReport, prediction: Prediction | None) -> None: ...

    def started(self, record: Record, trial: NextTrial) -> None: ...

    def ended(self, record: Record, trial: TrialRecord) -> None: ...


def run_sweep(
    journal: Journal,
    runner: Runner,
    observer: Observer,
    calibrations: Calibrations = _NONE_KEPT,
    also: Sequence[int] = (),
) -> Record:
    """Take the sweep in ``journal`` to its end and return it; then run each size of ``also`` that it had no need of.

    The calibration of a GPU is looked up among ``calibrations`` when the sweep begins; from then on the journal has it.
    Raises ``WorkerFailed`` when no worker runs, ``UsageError`` when the device cannot do what is asked.  Trials that
    break end the sweep without raising: ``Record.broken`` says why.
    """
    trials = journal.folder / "trials"
    observer.opened(journal.folder)
    seed = begin_sweep(journal, runner, calibrations)
    assert journal.record.device is not None
    observer.described(journal.record.device, journal.record.prediction)
    while (asked := journal.record.next_trial() or _besides(journal.record, also)) is not None:
        observer.started(journal.record, asked)
        trial = _run_trial(journal.record, asked, runner, trials)
        if seed is not None and not asked.withheld_bytes:
            trial = dataclasses.replace(trial, predicted=seed.beside(asked.size, trial.outcome))
        journal.add(trial)
        observer.ended(journal.record, trial)
    return journal.record


def begin_sweep(journal: Journal, runner: Runner, calibrations: Calibrations = _NONE_KEPT) -> Seed | None:
    """Write down what the device is and what is predicted, where that is not done, and run no trial.

    Returns what says what is to be expected of each trial on a GPU.  Raises as ``run_sweep`` does.
    """
    trials = journal.folder / "trials"
    if journal.record.device is None:
        return _begin(journal, runner, trials, calibrations)
    return _begun(journal.record, runner, trials)


def _besides(record: Record, sizes: Sequence[int]) -> NextTrial | None:
    """The first of ``sizes`` that was not run and can be, of a sweep that came to its end."""
    if record.broken is not None:
        return None
    ran = {point.size for point in record.curve}
    size = next((size for size in sizes if size not in ran and record.search.takes(size)), None)
    return None if size is None else NextTrial(number=len(record.trials) + 1, size=size, purpose="compared")


def describe(runner: Runner, spec: TrialSpec, folder: Path) -> DeviceReport:
    """Ask the worker what ``spec.device`` is.  Raises ``UsageError`` when it is not there."""
    request = Describe(
        device=spec.device, memory_limit_bytes=spec.memory_limit_bytes, card=spec.card, alloc_conf=spec.alloc_conf
    )
    response = runner.run(request, folder)
    if isinstance(response, Broken):  # as with a trial: once more, then it is a fault
        response = runner.run(request, folder)
    match response:
        case DeviceReport():
            return response
        case Refused(message=message, hint=hint):
            raise UsageError(message, hint=hint)
        case Broken(reason=reason):
            raise WorkerFailed(f"{spec.device}: {reason}", hint=f"read {folder}/stderr")
    raise WorkerFailed(f"the worker answered with {type(response).__name__}", hint="reinstall sweeper")


def _begin(journal: Journal, runner: Runner, trials: Path, calibrations: Calibrations) -> Seed | None:
    """Write down what the device is and what is predicted; return what says what is to be expected of each trial.

    None of a device that is no GPU: a simulated trial is the prediction.  Along another axis than the batch nothing is
    predicted.
    """
    header = journal.record.header
    device = describe(runner, header.spec, trials / "0000-device")
    check_limit(header.spec.memory_limit_bytes, device.label, device.total_bytes)
    if not header.settings.predict or header.settings.axis != "batch":
        journal.set_device(device, None)
        return None
    measured = header.settings.calibration and _is_gpu(device)
    kept = calibrations.get(cards.name_for(device.label, device.total_bytes)) if measured else None
    card = card_of(device, asked=header.spec.card, kept=kept)
    seed = Seed(dataclasses.replace(journal.record, device=device), card, runner, trials / "0000-trace")
    journal.set_device(device, seed.prediction(), card if _is_gpu(device) else None)
    return seed if _is_gpu(device) else None


def _begun(record: Record, runner: Runner, trials: Path) -> Seed | None:
    """The same of a sweep that goes on, on the device it began on."""
    assert record.device is not None
    if record.next_trial() is not None:
        _check_same_device(record.device, describe(runner, record.header.spec, trials / "0000-device"))
    if record.card is None:
        return None
    return Seed(record, record.card, runner, trials / "0000-trace")


def _is_gpu(device: DeviceReport) -> bool:
    return not device.simulated and device.device != "cpu"


def _run_trial(record: Record, asked: NextTrial, runner: Runner, trials: Path) -> TrialRecord:
    assert record.device is not None
    axis = record.header.settings.axis
    spec = dataclasses.replace(axes.at_size(record.header.spec, axis, asked.size), device=record.device.device)
    if spec.device == "cpu":
        # Half of what is free moves from trial to trial; a boundary needs one budget for all.
        spec = dataclasses.replace(spec, memory_limit_bytes=record.device.capacity_bytes)
    if asked.withheld_bytes:
        spec = dataclasses.replace(spec, memory_limit_bytes=record.capacity_bytes - asked.withheld_bytes)
    name = f"{asked.number:04d}-{axes.words(axis).letter}{asked.size:04d}"
    started, began = datetime.now(timezone.utc).isoformat(timespec="milliseconds"), time.monotonic()
    adopted = _adopt(trials / name, spec)
    response = adopted or runner.run(spec, trials / name)
    if isinstance(response, Refused):
        raise UsageError(response.message, hint=response.hint)
    if not isinstance(response, Fit | OutOfMemory | Broken):
        raise WorkerFailed(f"the worker answered with {type(response).__name__}", hint="reinstall sweeper")
    return TrialRecord(
        number=asked.number,
        size=asked.size,
        purpose=asked.purpose,
        outcome=response,
        started=started,
        seconds=time.monotonic() - began,
        folder=f"trials/{name}",
        withheld_bytes=asked.withheld_bytes,
    )


def _adopt(folder: Path, request: Request) -> Outcome | None:
    """The result of a trial that finished when the driver was no longer there to write it down."""
    try:
        if request_from_json((folder / "request.json").read_text()) != request:
            return None
        result = (folder / "result.json").read_text()
    except (OSError, WireError):
        return None
    response = read_response(Exit(code=0), result, log_tail="", timeout_s=0)
    return response if isinstance(response, Fit | OutOfMemory) else None


def _check_same_device(before: DeviceReport, now: DeviceReport) -> None:
    """A curve measured on two machines is none."""
    for what, old, new in (
        ("device", before.label, now.label),
        ("total memory", before.total_bytes, now.total_bytes),
        ("torch", before.torch, now.torch),
    ):
        if old != new:
            raise UsageError(
                f"this run was made with {what} {old}, here it is {new}", hint="start a new sweep on this machine"
            )

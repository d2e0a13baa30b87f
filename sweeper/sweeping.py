"""One sweep: ask the record what to run, run it, write it down, until there is nothing left to learn.

The loop holds no decision of its own.  What comes next is ``Record.next_trial``; a sweep that was killed goes on from
its journal as if nothing had happened.  One thing can be known to the folder and not to the journal: a trial that
finished just before the driver died.  Its result is adopted, so that no trial is lost and none is run twice.
"""

import dataclasses
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from sweeper import cards
from sweeper.allocator_conf import AllocatorConf
from sweeper.checks import check_limit
from sweeper.errors import Untraceable, UsageError, WorkerFailed
from sweeper.journal import Journal
from sweeper.predicting import StepTracer, affine_law
from sweeper.prediction import Prediction, Replays, Room, predict_host, predict_within
from sweeper.record import NextTrial, Record, TrialRecord
from sweeper.runner import Exit, Runner, read_response
from sweeper.trace import NotAffine
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
    with_size,
)
from sweeper.wire import WireError

__all__ = ["Observer", "Silent", "card_like", "describe", "run_sweep"]


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


def run_sweep(journal: Journal, runner: Runner, observer: Observer) -> Record:
    """Take the sweep in ``journal`` to its end and return it.

    Raises ``WorkerFailed`` when no worker runs, ``UsageError`` when the device cannot do what is asked.  Trials that
    break end the sweep without raising: ``Record.broken`` says why.
    """
    trials = journal.folder / "trials"
    observer.opened(journal.folder)
    if journal.record.device is None:
        _begin(journal, runner, trials)
    elif journal.record.next_trial() is not None:
        _check_same_device(journal.record.device, describe(runner, journal.record.header.spec, trials / "0000-device"))
    assert journal.record.device is not None
    observer.described(journal.record.device, journal.record.prediction)
    while (asked := journal.record.next_trial()) is not None:
        observer.started(journal.record, asked)
        trial = _run_trial(journal.record, asked, runner, trials)
        journal.add(trial)
        observer.ended(journal.record, trial)
    return journal.record


def describe(runner: Runner, spec: TrialSpec, folder: Path) -> DeviceReport:
    """Ask the worker what ``spec.device`` is.  Raises ``UsageError`` when it is not there."""
    request = Describe(device=spec.device, memory_limit_bytes=spec.memory_limit_bytes)
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


def _begin(journal: Journal, runner: Runner, trials: Path) -> None:
    header = journal.record.header
    device = describe(runner, header.spec, trials / "0000-device")
    check_limit(header.spec.memory_limit_bytes, device.label, device.total_bytes)
    prediction = _predict(journal.record, device, runner, trials / "0000-trace") if header.settings.predict else None
    journal.set_device(device, prediction)


def _predict(record: Record, device: DeviceReport, runner: Runner, folder: Path) -> Prediction | None:
    """The prediction, from traces of small batches; None where the step cannot be traced or is not affine.

    It only seeds the search: without it the sweep takes a few trials more.
    """
    settings, card = record.header.settings, cards.card(card_like(device))
    spec = dataclasses.replace(record.header.spec, device=f"sim:{card.name}", memory_limit_bytes=None)
    try:
        law = affine_law(StepTracer(runner, folder), spec, card.compute_capability)
    except (NotAffine, Untraceable):
        return None
    if device.device == "cpu":
        return predict_host(law, budget_bytes=device.capacity_bytes, cap=settings.cap, floor=settings.floor)
    try:
        conf = AllocatorConf.parse(device.allocator_conf or "")
    except UsageError:  # words for the allocator that are not simulated
        return None
    room = Room(
        capacity_bytes=device.capacity_bytes,
        limit_bytes=record.header.spec.memory_limit_bytes,
        total_bytes=device.total_bytes,
    )
    return predict_within(Replays(law, conf), room, cap=settings.cap, floor=settings.floor)


def card_like(device: DeviceReport) -> str:
    """The catalogue's name for a real or simulated card; its size where the catalogue does not have it."""
    if device.simulated:
        return device.device.partition(":")[2]
    for name, card in cards.cards().items():
        if card.label in device.label and abs(card.total_bytes - device.total_bytes) < 0.05 * card.total_bytes:
            return name
    return f"{max(device.total_bytes, 1)}B"


def _run_trial(record: Record, asked: NextTrial, runner: Runner, trials: Path) -> TrialRecord:
    assert record.device is not None
    spec = dataclasses.replace(with_size(record.header.spec, asked.size), device=record.device.device)
    if spec.device == "cpu":
        # Half of what is free moves from trial to trial; a boundary needs one budget for all.
        spec = dataclasses.replace(spec, memory_limit_bytes=record.device.capacity_bytes)
    if asked.withheld_bytes:
        spec = dataclasses.replace(spec, memory_limit_bytes=record.capacity_bytes - asked.withheld_bytes)
    name = f"{asked.number:04d}-b{asked.size:04d}"
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

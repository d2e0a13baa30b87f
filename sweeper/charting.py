"""The frontier of a job on a device: asks what the model takes, has it traced, looks for the boundary, runs trials.

The worker is asked three kinds of things: what the device and the model are, for traces of the step, and, where points
are to be measured, for trials on both sides of the boundary there.  A trial is written down when it has ended, in
``trials.jsonl`` of the folder: a first line that says what was asked, then one a trial, each flushed.  The same
question in the same folder goes on from there: what is written down is not run again.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper import calibration
from sweeper.allocator_conf import AllocatorConf
from sweeper.axes import at_size
from sweeper.boundary import (
    CardJob,
    Frontier,
    FrontierPoint,
    HostJob,
    Job,
    MeasuredPoint,
    PeakMap,
    largest_batch,
    lengths_up_to,
    map_batches,
    spread,
)
from sweeper.calibration import Calibration
from sweeper.cards import Card
from sweeper.errors import FolderUnusable, UsageError, WorkerFailed
from sweeper.laws import LawsBySize
from sweeper.model_names import is_factory
from sweeper.predicting import StepTracer
from sweeper.prediction import Replays, Room
from sweeper.runner import Runner
from sweeper.seeding import card_of, room_of
from sweeper.sizing import with_positions
from sweeper.trace_cache import versions
from sweeper.trial import (
    Broken,
    DescribeModel,
    DeviceReport,
    Fit,
    ModelReport,
    Outcome,
    OutOfMemory,
    Refused,
    TrialSpec,
)
from sweeper.wire import WireError, from_jsonable, to_jsonable

__all__ = ["TRIALS", "Asked", "chart", "fitted_to", "measure"]

# 1  first version
SCHEMA = 1

TRIALS = "trials.jsonl"
_AXIS = "seq-len"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The sizes of a frontier: batches up to ``cap``, and lengths; what is None follows from the model."""

    cap: int
    longest: int | None = None
    shortest: int | None = None
    step: int | None = None


def fitted_to(runner: Runner, spec: TrialSpec, asked: Asked, folder: Path) -> tuple[TrialSpec, range, tuple[str, ...]]:
    """``spec`` made for all the lengths, those lengths, and sentences about what had to be done for it.

    A model with an embedding a position gets as many as the longest length needs, once: another model at each length
    would have another number of weights.  Raises ``UsageError`` where the model takes no such lengths.
    """
    model = _describe_model(runner, spec, folder)
    if model.seq_len is None and not is_factory(spec.model):
        raise UsageError(
            f"{spec.model} has no sequences, so there is no length to vary",
            hint=f"sweep --model {spec.model} finds its largest batch",
        )
    longest = asked.longest or model.positions
    if longest is None:
        raise UsageError("how long?", hint="give --max-seq-len 4096")
    lengths, step = lengths_up_to(longest, shortest=asked.shortest, step=asked.step, token_step=model.token_step or 1)
    if not lengths:
        raise UsageError(
            f"no length from {asked.shortest or step} to {longest} is a multiple of {step}",
            hint="give a smaller --step, or a larger --max-seq-len",
        )
    built, argument = with_positions(
        spec,
        model,
        lengths[-1],
        describe=lambda longer: _describe_model(runner, longer, folder),
        flag="--max-seq-len",
    )
    if argument is None:
        return spec, lengths, ()
    given = built.model_args[argument]
    note = f"built with {argument}={given} at every length: its own {model.positions} positions are too few"
    return built, lengths, (note,)


def chart(
    tracer: StepTracer, spec: TrialSpec, device: DeviceReport, lengths: range, cap: int, kept: Calibration | None
) -> Frontier:
    """The frontier of ``spec`` on ``device`` over ``lengths``, batches up to ``cap``.  Nothing is run.

    Raises what ``StepTracer.traces`` raises, and ``UsageError`` for an allocator's configuration that is not simulated.
    """
    began = time.monotonic()
    card = card_of(device, asked=spec.card, kept=kept)
    traced = dataclasses.replace(spec, device=f"sim:{card.name}", memory_limit_bytes=None, card=card)
    laws = LawsBySize(tracer, traced, card.kernels, _AXIS, lengths)
    room = room_of(device, card, spec.memory_limit_bytes)
    conf = AllocatorConf.parse(device.allocator_conf or "")
    points, columns = [], []
    for length in lengths:
        job = _job(laws, length, device, card, room, conf)
        points.append(_point(job, length, cap))
        columns.append([job.live_bytes(batch) for batch in map_batches(cap)])
    return Frontier(
        spec=dataclasses.replace(spec, device=device.device),
        device=device,
        card=card,
        cap=cap,
        step=lengths.step,
        points=tuple(points),
        map=PeakMap(batches=map_batches(cap), live_bytes=tuple(zip(*columns, strict=True))),
        method="live bytes" if device.device == "cpu" else "allocator",
        notes=laws.notes,
        versions=versions(),
        seconds=time.monotonic() - began,
    )


def measure(
    found: Frontier,
    count: int,
    runner: Runner,
    folder: Path,
    *,
    on_trial: Callable[[MeasuredPoint], None] | None = None,
) -> Frontier:
    """``found`` with trials at ``count`` of its points, at the largest batch and the next; they go in ``folder``.

    ``on_trial`` is told of each, also of those that were run before.  Raises ``UsageError`` where a trial is refused,
    ``FolderUnusable`` where the folder holds trials of another question.
    """
    written = _Written.open(folder, found)
    measured = []
    for length, batch, fits in _both_sides(found, count):
        outcome = written.outcomes.get((length, batch))
        if outcome is None:
            outcome = _run(found, length, batch, runner, folder)
            written.add(length, batch, outcome)
        measured.append(MeasuredPoint(length=length, batch=batch, predicted_fits=fits, outcome=outcome))
        if on_trial:
            on_trial(measured[-1])
    return dataclasses.replace(found, measured=tuple(measured))


def _describe_model(runner: Runner, spec: TrialSpec, folder: Path) -> ModelReport:
    match runner.run(DescribeModel(spec=spec), folder):
        case ModelReport() as report:
            return report
        case Refused(message=message, hint=hint):
            raise UsageError(message, hint=hint)
        case Broken(reason=reason):
            raise WorkerFailed(f"{spec.model}: {reason}", hint="mend the model, or read its traceback in a trial")
        case response:
            raise WorkerFailed(f"the worker answered with {type(response).__name__}", hint="reinstall sweeper")


def _job(laws: LawsBySize, length: int, device: DeviceReport, card: Card, room: Room, conf: AllocatorConf) -> Job:
    traces = laws.at(length)
    if device.device == "cpu":
        return HostJob(traces, device.capacity_bytes)
    return CardJob(Replays(traces, conf), room, lambda size: calibration.reserved_bytes(card, size))


def _point(job: Job, length: int, cap: int) -> FrontierPoint:
    largest = largest_batch(job, cap)
    if largest is None:
        return FrontierPoint(length=length, max_batch=None)
    return FrontierPoint(
        length=length, max_batch=largest, peak_bytes=job.peak_bytes(largest), live_bytes=job.live_bytes(largest)
    )


def _both_sides(found: Frontier, count: int) -> Iterator[tuple[int, int, bool]]:
    """(length, batch, whether it is predicted to fit) of each trial.

    A batch above the cap is nobody's question, so where the boundary is below the cap has the first claim.
    """
    inside = [point for point in found.points if point.max_batch != found.cap]
    for point in spread(inside or found.points, count):
        if point.max_batch is not None:
            yield point.length, point.max_batch, True
        if (above := (point.max_batch or 0) + 1) <= found.cap:
            yield point.length, above, False


def _run(found: Frontier, length: int, batch: int, runner: Runner, folder: Path) -> Outcome:
    spec = at_size(at_size(found.spec, _AXIS, length), "batch", batch)
    if found.device.device == "cpu":  # one budget for all, as in a sweep
        spec = dataclasses.replace(spec, memory_limit_bytes=found.device.capacity_bytes)
    place = folder / "trials" / f"s{length:05d}-b{batch:04d}"
    response = runner.run(spec, place)
    if isinstance(response, Broken):  # as in a sweep: once more
        response = runner.run(spec, place)
    if isinstance(response, Refused):
        raise UsageError(response.message, hint=response.hint)
    if not isinstance(response, Fit | OutOfMemory | Broken):
        raise WorkerFailed(f"the worker answered with {type(response).__name__}", hint="reinstall sweeper")
    return response


class _Written:
    """The trials of one frontier on the disk, those of an earlier command among them."""

    def __init__(self, path: Path, outcomes: dict[tuple[int, int], Outcome]) -> None:
        self._path = path
        self.outcomes = outcomes

    @classmethod
    def open(cls, folder: Path, found: Frontier) -> "_Written":
        """Raises ``FolderUnusable``."""
        path = folder / TRIALS
        header = {"schema": SCHEMA, "entry": "header", **to_jsonable({"spec": found.spec, "device": found.device})}
        written = cls(path, {})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            whole, torn = _lines(path)
            if torn:
                os.truncate(path, path.stat().st_size - torn)
        except OSError as problem:
            raise _unusable(folder, problem) from None
        if not whole:
            written._append(header)
            return written
        first, *rest = whole
        if not _same_question(first, header):
            raise FolderUnusable(
                f"{path} holds the trials of another question", hint="choose another --folder, or move it away"
            )
        try:
            trials = [from_jsonable(_Entry, entry) for entry in rest]
        except WireError as problem:
            raise FolderUnusable(f"{path} cannot be read: {problem}", hint="move it away, and run again") from None
        written.outcomes = {(trial.length, trial.batch): trial.outcome for trial in trials}
        return written

    def add(self, length: int, batch: int, outcome: Outcome) -> None:
        """A trial that broke is not kept: the next command tries it again."""
        if not isinstance(outcome, Broken):
            self._append(to_jsonable(_Entry(length=length, batch=batch, outcome=outcome)))

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, separators=(",", ":")) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise _unusable(self._path.parent, problem) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    length: int
    batch: int
    outcome: Outcome


def _lines(path: Path) -> tuple[Sequence[dict[str, Any]], int]:
    """The lines of the file, none where there is none, and the bytes of a torn last one."""
    if not path.exists():
        return (), 0
    *whole, torn = path.read_bytes().split(b"\n")
    try:
        return [json.loads(line) for line in whole], len(torn)
    except ValueError as problem:
        raise FolderUnusable(f"{path} cannot be read: {problem}", hint="move it away, and run again") from None


def _same_question(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """What is free on a GPU differs from one command to the next; on the CPU it is what trials may have."""
    now = json.loads(json.dumps(now))
    moving = ("notes",) if now["device"]["device"] == "cpu" else ("notes", "capacity_bytes")
    for entry in (before, now):
        entry["device"] = {name: value for name, value in entry.get("device", {}).items() if name not in moving}
    return before == now


def _unusable(folder: Path, problem: OSError) -> FolderUnusable:
    return FolderUnusable(
        f"cannot write in {folder}: {problem.strerror or problem}", hint="choose another --folder, or make room"
    )

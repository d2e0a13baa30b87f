"""A prediction from a model's name: the traces (kept, or taken by the worker), their law, the answer for a card.

The step is traced at two small batches, and at a third to check that what happens at any batch follows from the two.
Where it does not follow, each batch that is asked about is traced by itself, and the answer says so; that takes as
long as a ``sim:`` trial does each time.  A sweep, whose prediction is only a first guess, does without then.

With all traces kept from before no worker is started.  Nothing is measured here, and every number of a ``Forecast`` is
one that a ``sim:`` trial of the same installation would report.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper import calibration
from sweeper.accuracy import Accuracy
from sweeper.allocator_conf import AllocatorConf
from sweeper.axes import at_size
from sweeper.cards import Card
from sweeper.errors import Untraceable, UsageError
from sweeper.history import History
from sweeper.model_names import DETECTION
from sweeper.prediction import (
    PredictedFailure,
    Prediction,
    Replays,
    Room,
    largest_within,
    predict_within,
    predicted_failure,
)
from sweeper.runner import Runner
from sweeper.trace import AffineTrace, NoLaw, NotAffine, Trace
from sweeper.trace_cache import TraceCache, question, versions
from sweeper.trial import Broken, Refused, TakeTraces, Traced, TrialSpec
from sweeper.untraceable import untraceable

__all__ = [
    "AskedBatch",
    "EachSize",
    "ErrorBand",
    "Forecast",
    "StepTracer",
    "Wanted",
    "affine_law",
    "as_reserved_on",
    "forecasts",
    "job_traces",
    "room_on",
]

# Small, so that tracing is quick and nothing special happens at them (a batch of 1 breaks batch norm after pooling);
# the third is far from both, and odd.
_LAW_SIZES = (4, 8, 61)


class StepTracer:
    """Takes traces of a step: from ``cache``, where one is given and has them, else from a worker run in ``folder``."""

    def __init__(
        self,
        runner: Runner,
        folder: Path,
        *,
        cache: TraceCache | None = None,
        on_trace: Callable[[TrialSpec, str], None] | None = None,
    ) -> None:
        self._runner = runner
        self._folder = folder
        self._cache = cache
        self._on_trace = on_trace

    def traces(self, spec: TrialSpec, kernels: str, sizes: Sequence[int], *, axis: str = "batch") -> tuple[Trace, ...]:
        """The traces of ``spec``, whose device is ``sim:CARD``, at ``sizes`` along ``axis``.

        Raises ``UsageError`` where the worker refuses the question, ``Untraceable`` where the step cannot be traced.
        """
        asked = {size: question(at_size(spec, axis, size), kernels) for size in sizes}
        found: dict[int, Trace] = {}
        if self._cache:
            found = {size: kept for size in sizes if (kept := self._cache.get(asked[size])) is not None}
        missing = tuple(size for size in sizes if size not in found)
        if missing:
            if self._on_trace:
                self._on_trace(spec, kernels)
            taken, sources = self._take(spec, missing, axis)
            for size, trace in zip(missing, taken, strict=True):
                found[size] = trace
                if self._cache:
                    self._cache.put(asked[size], trace, sources)
        return tuple(found[size] for size in sizes)

    def _take(self, spec: TrialSpec, sizes: tuple[int, ...], axis: str) -> tuple[list[Trace], tuple[str, ...]]:
        request = TakeTraces(spec=spec, sizes=sizes, axis=axis)
        response = self._runner.run(request, self._folder)
        if isinstance(response, Broken) and response.failure == "infra":  # as with a trial: once more
            response = self._runner.run(request, self._folder)
        match response:
            case Traced(files=files, sources=sources):
                return [Trace.from_json((self._folder / name).read_text()) for name in files], sources
            case Refused(message=message, hint=hint):
                raise UsageError(message, hint=hint)
            case Broken():
                raise untraceable(at_size(spec, axis, sizes[0]), response)
        raise Untraceable(f"the worker answered with {type(response).__name__}", hint="reinstall sweeper")


class EachSize:
    """The traces of a job that has no law along ``axis``: each size is traced when it is first asked for.

    ``taken`` are traces there are already, by size; ``why`` says where there is no law.
    """

    def __init__(
        self,
        tracer: StepTracer,
        spec: TrialSpec,
        kernels: str,
        *,
        taken: Mapping[int, Trace],
        why: NoLaw | None,
        axis: str = "batch",
    ) -> None:
        self._tracer, self._spec, self._kernels, self._axis = tracer, spec, kernels, axis
        self._traces = dict(taken)
        self.why = why

    def at(self, size: int) -> Trace:
        """Raises ``Untraceable`` where that size cannot be traced."""
        if size not in self._traces:
            self._traces[size], *_ = self._tracer.traces(self._spec, self._kernels, (size,), axis=self._axis)
        return self._traces[size]


def affine_law(tracer: StepTracer, spec: TrialSpec, kernels: str) -> AffineTrace:
    """The law of ``spec``'s step.  Raises ``NotAffine`` where there is none, and what ``StepTracer.traces`` raises."""
    return AffineTrace.join(*tracer.traces(spec, kernels, _LAW_SIZES))


def job_traces(tracer: StepTracer, spec: TrialSpec, kernels: str) -> AffineTrace | EachSize:
    """The law of ``spec``'s step over the batch; where there is none, its traces one by one."""
    if spec.model in DETECTION:
        why = NotAffine(
            "a detector runs operators of its own for every image; of its boxes the most is assumed", event=0
        )
        return EachSize(tracer, spec, kernels, taken={}, why=why)
    taken = tracer.traces(spec, kernels, _LAW_SIZES)
    try:
        return AffineTrace.join(*taken)
    except NotAffine as why:
        return EachSize(tracer, spec, kernels, taken=dict(zip(_LAW_SIZES, taken, strict=True)), why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBatch:
    """Whether one batch fits.  ``failure`` says where it runs out, and is None when it fits."""

    size: int
    uncapped_peak_bytes: int  # reserved, with nothing in its way
    least_capacity_bytes: int  # the least it runs in
    failure: PredictedFailure | None

    @property
    def fits(self) -> bool:
        return self.failure is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """Where the truth lies if the prediction is off by at most ``share`` of what is true, either way.

    The peaks are of the largest batch, uncapped, in bytes.  The batches are the largest that fit when the job takes
    the most and the least of the band; None where then nothing fits.
    """

    share: float
    least_peak_bytes: int
    most_peak_bytes: int
    least_batch: int | None
    most_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is predicted of one job on one card.  Bytes.

    ``uncapped_peak_bytes`` and ``least_capacity_bytes`` are of the largest batch that fits: the most it would reserve
    on a card without end, and the least capacity it runs in; None where nothing fits.  The allocator keeps what it has
    while there is room, so the first is more.  ``notes`` are sentences.

    ``accuracy`` is what is known of the errors of predictions, ``band`` what its 90th percentile makes of this one:
    of one card alone, of a job whose law is known, and where something fits.  ``history`` is of the asked batch, else
    of the largest, or of the smallest where nothing fits; it is there when it was wanted.
    """

    spec: TrialSpec  # its device is ``sim:CARD``, its limit the budget
    card: Card
    capacity_bytes: int
    cap: int
    floor: int
    prediction: Prediction
    fitting: tuple[int, ...]  # those of the prediction's points that fit
    uncapped_peak_bytes: int | None
    least_capacity_bytes: int | None
    asked: AskedBatch | None = None
    accuracy: Accuracy | None = None
    band: ErrorBand | None = None
    history: History | None = dataclasses.field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def max_batch(self) -> int | None:
        """The largest batch that fits; None when nothing does."""
        return self.prediction.max_batch

    @property
    def first_failure(self) -> int | None:
        """The smallest batch that does not fit; None when the cap does."""
        return self.prediction.failure.size if self.prediction.failure else None

    @property
    def headroom_bytes(self) -> int | None:
        """What the asked batch, else the largest, leaves of the capacity at its least; negative where it lacks that."""
        least = self.asked.least_capacity_bytes if self.asked else self.least_capacity_bytes
        return None if least is None else self.capacity_bytes - least

    @property
    def fits(self) -> bool:
        """The answer: whether the asked batch fits; without one, whether any does."""
        return self.asked.fits if self.asked else self.max_batch is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of each card: the sizes to look among, one batch in particular, a budget in bytes.

    ``accuracy`` is what is known of the errors of predictions; ``history`` asks for the step event by event.
    """

    cap: int
    floor: int = 1
    batch: int | None = None
    budget_bytes: int | None = None
    accuracy: Accuracy | None = None
    history: bool = False


def forecasts(
    spec: TrialSpec, cards: Sequence[Card], wanted: Wanted, tracer: StepTracer, conf: AllocatorConf
) -> Iterator[Forecast]:
    """What is predicted of ``spec`` on each card in turn; those that choose the same kernels share traces.

    Raises what ``StepTracer.traces`` raises.
    """
    jobs: dict[str, _Job] = {}
    for card in cards:
        began = time.monotonic()
        on_card = dataclasses.replace(spec, device=f"sim:{card.name}", card=card if card.calibrated else None)
        job = jobs.get(card.kernels)
        if job is None:
            traces = job_traces(tracer, on_card, card.kernels)
            job = jobs[card.kernels] = _Job(traces, conf, wanted.floor)
        found = job.forecast(on_card, card, wanted)
        if len(cards) == 1:
            found = dataclasses.replace(found, band=job.band(found, wanted))
        yield dataclasses.replace(found, versions=versions(), seconds=time.monotonic() - began)


class _Job:
    """The replays of one job for cards that choose the same kernels."""

    def __init__(self, traces: AffineTrace | EachSize, conf: AllocatorConf, floor: int) -> None:
        self._replays = Replays(traces, conf)
        self._has_law = isinstance(traces, AffineTrace)
        self._floor = floor
        self._notes: tuple[str, ...] = ()
        if isinstance(traces, EachSize):
            self._notes = (f"memory is not affine in the batch, so each size was traced by itself ({traces.why})",)
            self._start_where_it_runs(traces)

    def _start_where_it_runs(self, traces: EachSize) -> None:
        """Batch 1 breaks where batch norm follows pooling, whatever the memory; the law would not have asked it."""
        if self._floor > 1:
            return
        try:
            traces.at(1)
        except Untraceable as problem:
            self._floor = 2
            self._notes += (f"batch 1 does not run, so the sizes start at 2 ({problem.message})",)

    def forecast(self, spec: TrialSpec, card: Card, wanted: Wanted) -> Forecast:
        room = room_on(card, card.capacity_bytes, wanted.budget_bytes)
        floor = max(wanted.floor, self._floor)
        prediction = predict_within(self._replays, room, cap=max(wanted.cap, floor), floor=floor)
        largest = prediction.max_batch
        return Forecast(
            spec=dataclasses.replace(spec, memory_limit_bytes=wanted.budget_bytes),
            card=card,
            capacity_bytes=min(card.capacity_bytes, wanted.budget_bytes or card.capacity_bytes),
            cap=max(wanted.cap, floor),
            floor=floor,
            prediction=as_reserved_on(card, prediction),
            fitting=tuple(point.size for point in prediction.points if self._replays.fits(point.size, room)),
            uncapped_peak_bytes=None if largest is None else self._uncapped_peak_bytes(largest, card),
            least_capacity_bytes=None if largest is None else self._least_capacity_bytes(largest, card),
            asked=None if wanted.batch is None else self._asked(wanted.batch, card, room),
            accuracy=wanted.accuracy,
            history=self._replays.recorded(wanted.batch or largest or floor, room) if wanted.history else None,
            notes=self._notes,
        )

    def band(self, found: Forecast, wanted: Wanted) -> ErrorBand | None:
        """What the errors known so far make of ``found``.

        An error of e is (predicted - true) / true, so the job fits in what is there when its prediction fits in 1 + e
        times that.  A job without a law would have to be traced at many sizes for this, so it has none.
        """
        peak, known = found.uncapped_peak_bytes, wanted.accuracy
        if known is None or known.peaks.percentile_90 >= 1 or peak is None or not self._has_law:
            return None
        share, room = known.peaks.percentile_90, room_on(found.card, found.card.capacity_bytes, wanted.budget_bytes)
        least, most = (
            largest_within(self._replays, room.times(times), cap=found.cap, floor=found.floor)
            for times in (1 - share, 1 + share)
        )
        return ErrorBand(
            share=share,
            least_peak_bytes=int(peak / (1 + share)),
            most_peak_bytes=int(peak / (1 - share)),
            least_batch=least,
            most_batch=most,
        )

    def _uncapped_peak_bytes(self, size: int, card: Card) -> int:
        ran = self._replays.uncapped(size)
        return calibration.reserved_bytes(card, ran.peak_reserved_bytes, at_least=ran.peak_allocated_bytes)

    def _least_capacity_bytes(self, size: int, card: Card) -> int:
        return calibration.reserved_bytes(card, self._replays.least_capacity_bytes(size))

    def _asked(self, size: int, card: Card, room: Room) -> AskedBatch:
        failure = None if self._replays.fits(size, room) else self._replays.within(size, room).failure
        return AskedBatch(
            size=size,
            uncapped_peak_bytes=self._uncapped_peak_bytes(size, card),
            least_capacity_bytes=self._least_capacity_bytes(size, card),
            failure=None if failure is None else predicted_failure(size, failure),
        )


def room_on(card: Card, capacity_bytes: int, limit_bytes: int | None) -> Room:
    """What a simulated allocator may have where one on ``card`` has ``capacity_bytes``, under a limit of its own."""
    return Room(
        capacity_bytes=calibration.allocator_bytes(card, capacity_bytes),
        limit_bytes=None if limit_bytes is None else calibration.allocator_bytes(card, limit_bytes),
        total_bytes=card.total_bytes,
    )


def as_reserved_on(card: Card, simulated: Prediction) -> Prediction:
    """``simulated`` with the reserved peaks that ``card`` would show."""
    points = tuple(
        dataclasses.replace(
            point,
            peak_reserved_bytes=calibration.reserved_bytes(
                card, point.peak_reserved_bytes, at_least=point.peak_allocated_bytes
            ),
        )
        for point in simulated.points
    )
    peak = simulated.peak_bytes_at_max
    return dataclasses.replace(
        simulated,
        points=points,
        peak_bytes_at_max=None if peak is None else calibration.reserved_bytes(card, peak),
    )

"""A run as a value: what was asked, what each trial answered, and all that follows from it.

``Record`` is the journal in memory.  Everything shown or exported is derived from it, and so is the next move:
``next_trial`` folds the trials into a search and says what to run.  A sweep that was killed and one that never was
are therefore the same computation.

How a trial counts.  A fit or an out of memory is a probe of the search.  An out of memory that is only suspected
(``oom_suspect``) is run once more, and ``failures.confirm_suspect`` reads the pair.  A broken trial says nothing about
memory: it is run once more, and when it breaks again the sweep ends (``Record.broken``), its boundary untouched.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sweeper import axes
from sweeper.cards import Card
from sweeper.cost import Cost, Schedule
from sweeper.curve import MemoryLaw, fit_law
from sweeper.effective_batch import Split, split
from sweeper.failures import confirm_suspect
from sweeper.measured import Numeric, Throughput, first_not_finite, losses_finite, numeric_warnings, throughput_of
from sweeper.prediction import PredictedPoint, Prediction
from sweeper.recommend import Recommendation
from sweeper.search import Listed, Search
from sweeper.trial import (
    Breakdown,
    Broken,
    CardActivity,
    DeviceReport,
    Fit,
    Fragmentation,
    Outcome,
    OutOfMemory,
    TrialSpec,
)
from sweeper.units import MIB

__all__ = [
    "CurvePoint",
    "Header",
    "NextTrial",
    "PredictedTrial",
    "PredictionErrors",
    "Purpose",
    "Record",
    "Settings",
    "TrialRecord",
]

Purpose = Literal["curve", "boundary", "confirm", "recommended", "listed", "repeat", "retry", "compared"]

# torch.nn.functional._verify_batch_size, torch 2.14: batch norm over one value a channel.  At batch 1 some models
# cannot be trained at all, or not on small images, whatever the memory; that is no fault of theirs, and no boundary.
_TOO_FEW_VALUES = "Expected more than 1 value per channel when training"

# A change in what other processes hold below this is their ordinary breathing (a desktop redrawing a window).
NOISE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the sweep goes about it; ``sizes`` is ``--batches``: just these, no search.

    ``calibration`` is whether a kept calibration of the card is used, where there is one.  ``positions_argument`` is
    the model's argument that says how many positions it has, where that was set for the longest sequence.
    ``schedule`` is the whole training whose hours and cost are asked for.
    """

    floor: int = 1
    cap: int
    confirm: int = 1
    points: int = 6
    margin: float = 0.05
    round_to: int | None = None
    sizes: tuple[int, ...] = ()
    timeout_s: float = 600.0
    isolation: Literal["fork", "spawn"] = "fork"
    predict: bool = True
    host_memory_limit_bytes: int | None = None
    axis: str = "batch"
    step: int = 1  # sizes are the floor and a multiple of it
    positions_argument: str | None = None
    target_batch: int | None = None  # the effective batch to keep by accumulation
    calibration: bool = True
    schedule: Schedule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What was asked, by which command, of which versions.  ``spec`` is at the floor of the axis; trials vary it."""

    created: str  # ISO 8601, UTC
    command: tuple[str, ...]
    spec: TrialSpec
    settings: Settings
    sweeper: str
    python: str
    platform: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTrial:
    """What was to be expected of a trial on a GPU.  Bytes.

    The peaks are those within what the trial could have where it was predicted to fit, else with nothing in its way.
    ``least_capacity_bytes`` is the least the batch runs in, of one that ran out or was predicted to.
    """

    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    least_capacity_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionErrors:
    """(predicted - measured) / measured of the reserved peaks of all batches that were measured to fit.

    ``median`` is of their size; ``worst`` is the largest, with its sign, at ``worst_size``.
    """

    sizes: int
    median: float
    worst: float
    worst_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial as the journal keeps it; ``folder`` is relative to the run's.

    ``predicted`` is for trials on a GPU that were given the whole capacity.
    """

    number: int
    size: int
    purpose: Purpose
    outcome: Outcome
    started: str
    seconds: float
    folder: str
    withheld_bytes: int = 0
    predicted: PredictedTrial | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTrial:
    """What to run.  ``withheld_bytes`` of the capacity are not given to the trial, for the recommended batch."""

    number: int
    size: int
    purpose: Purpose
    withheld_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """What is known of one size, over all its trials: the worst outcome, and the largest peak of that outcome.

    Times and all else that was measured are of that trial too; the losses are of all.
    """

    size: int
    outcome: Literal["fit", "oom", "broken"]
    trials: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    process_bytes: int | None = None
    step_seconds: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    context_bytes: int | None = None
    host_peak_bytes: int | None = None
    fragmentation: Fragmentation | None = None
    activity: CardActivity | None = None
    loss_finite: bool | None = None  # None where no step had a loss
    numeric: Numeric | None = None
    breakdown: Breakdown | None = None
    holdings: Breakdown | None = None
    predicted: PredictedTrial | None = None

    @property
    def prediction_error(self) -> float | None:
        """(predicted - measured) / measured of the reserved peak; None where nothing is predicted, or it ran out."""
        if self.predicted is None or self.outcome != "fit" or not self.peak_reserved_bytes:
            return None
        return (self.predicted.peak_reserved_bytes - self.peak_reserved_bytes) / self.peak_reserved_bytes


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run.  ``device``, ``prediction`` and ``card`` are None until the worker has answered.

    ``card`` is what the prediction is of: for a GPU the one that is there, as it was calibrated.
    """

    header: Header
    device: DeviceReport | None = None
    prediction: Prediction | None = None
    card: Card | None = None
    trials: tuple[TrialRecord, ...] = ()

    def with_trial(self, trial: TrialRecord) -> "Record":
        return dataclasses.replace(self, trials=(*self.trials, trial))

    def with_schedule(self, schedule: Schedule) -> "Record":
        """The same run, asked about another training."""
        settings = dataclasses.replace(self.header.settings, schedule=schedule)
        return dataclasses.replace(self, header=dataclasses.replace(self.header, settings=settings))

    # -- the next move ------------------------------------------------------------------------------------------

    def next_trial(self) -> NextTrial | None:
        """What to run now; None when there is nothing left to learn, or trials broke."""
        number = len(self.trials) + 1
        last = self.trials[-1] if self.trials else None
        if self.broken is not None:
            return None
        if last is not None and isinstance(last.outcome, Broken) and last.size >= self.floor:
            return NextTrial(number=number, size=last.size, purpose="retry", withheld_bytes=last.withheld_bytes)
        if last is not None and _is_suspect(last.outcome) and last.purpose != "repeat":
            return NextTrial(number=number, size=last.size, purpose="repeat", withheld_bytes=last.withheld_bytes)
        if (size := self.search.next_size()) is not None:
            return NextTrial(number=number, size=size, purpose=self.search.purpose)
        recommending = self.recommendation
        if recommending is None or (size := recommending.next_size()) is None:
            return None
        withheld = recommending.withheld_bytes
        return NextTrial(number=number, size=size, purpose="recommended", withheld_bytes=withheld)

    @cached_property
    def verdicts(self) -> tuple[tuple[TrialRecord, Outcome], ...]:
        """Each trial that settled something with the whole capacity given to it, and the outcome that counts."""
        return tuple((trial, outcome) for trial, outcome in self._resolved if not trial.withheld_bytes)

    @cached_property
    def _resolved(self) -> tuple[tuple[TrialRecord, Outcome], ...]:
        """The same for every trial: suspects and their repeats are one outcome."""
        return tuple(self._resolve())

    def _resolve(self) -> Iterator[tuple[TrialRecord, Outcome]]:
        pending: OutOfMemory | None = None
        for trial in self.trials:
            outcome = trial.outcome
            if pending is not None and not isinstance(outcome, Broken):
                yield trial, confirm_suspect(pending, outcome)
                pending = None
            elif isinstance(outcome, OutOfMemory) and _is_suspect(outcome):
                pending = outcome
            else:
                yield trial, outcome

    @cached_property
    def floor(self) -> int:
        """The smallest size that can be trained: as asked, or twice the largest that batch norm refused.

        A batch of 1 makes it 2.  At a batch of 1 it also refuses images so small that they end as one pixel.
        """
        settings, alone = self.header.settings, self.header.spec.batch_size == 1
        refused = [
            trial.size
            for trial in self.trials
            if (trial.size == 1 if self.axis == "batch" else self.axis == "image-size" and alone)
            and 2 * trial.size <= settings.cap
            and _too_few_values(trial)
        ]
        return max([settings.floor, *(2 * size for size in refused)])

    @cached_property
    def broken(self) -> Broken | None:
        """Why the sweep ended before its answer: a trial that broke twice, or a suspect that was not memory."""
        previous_broke_at: int | None = None
        for trial, outcome in self._resolved:
            if not isinstance(outcome, Broken) or trial.size < self.floor:
                previous_broke_at = None
            elif not isinstance(trial.outcome, Broken) or previous_broke_at == trial.size:
                return outcome
            else:
                previous_broke_at = trial.size
        return None

    @cached_property
    def search(self) -> Search | Listed:
        """The search after every trial so far."""
        settings, predicted = self.header.settings, self._predicted
        search: Search | Listed
        if settings.sizes:
            search = Listed(sizes=settings.sizes)
        else:
            search = Search(
                floor=self.floor,
                cap=settings.cap,
                step=settings.step,
                confirm=settings.confirm,
                points=settings.points,
                curved=settings.axis != "batch",
                capacity_bytes=self.capacity_bytes or None,
                predicted_max=predicted.size if predicted else None,
                predicted_peak_bytes=predicted.peak_allocated_bytes if predicted else None,
            )
        for trial, outcome in self.verdicts:
            match outcome:
                case Fit():
                    # Allocated and not reserved: near the capacity the allocator reserves all there is, and the line
                    # would bend.
                    search = search.after(trial.size, fits=True, peak_bytes=outcome.peak_allocated_bytes)
                case OutOfMemory():
                    search = search.after(trial.size, fits=False, peak_bytes=None)
                case Broken():
                    pass
        return search

    @property
    def _predicted(self) -> PredictedPoint | None:
        """The point of the predicted boundary; None where nothing is predicted, or that nothing fits."""
        points = self.prediction.points if self.prediction else ()
        return next((p for p in points if self.prediction and p.size == self.prediction.max_batch), None)

    # -- the answer ---------------------------------------------------------------------------------------------

    @property
    def axis(self) -> str:
        """What is varied; see ``axes``."""
        return self.header.settings.axis

    @property
    def max_size(self) -> int | None:
        """The largest size that was run and fitted as often as asked, with no failure at or below it."""
        return self.search.answer

    @property
    def max_batch(self) -> int | None:
        """The same where the batch is varied, else None."""
        return self.max_size if self.axis == "batch" else None

    @property
    def first_failure(self) -> int | None:
        """The smallest size that ran out of memory."""
        return self.search.first_failure

    @property
    def proven(self) -> bool:
        """Both sides of the boundary were run; or the cap itself fits."""
        return self.search.proven

    @property
    def recommended_size(self) -> int | None:
        """The largest size that ran with the margin withheld or unused, and is a multiple of ``round_to``."""
        return self.recommendation.size if self.recommendation else None

    @property
    def recommended_batch(self) -> int | None:
        """The same where the batch is varied, else None."""
        return self.recommended_size if self.axis == "batch" else None

    @cached_property
    def recommendation(self) -> Recommendation | None:
        """How far the recommended size is found; None until there is an answer, and for a list of sizes."""
        settings, answer = self.header.settings, self.max_size
        if settings.sizes or answer is None or not self.proven:
            return None
        fits = [point for point in self.curve if point.outcome == "fit"]
        return Recommendation(
            answer=answer,
            floor=self.floor,
            margin=settings.margin,
            round_to=math.lcm(settings.step, settings.round_to or 1),
            capacity_bytes=self.capacity_bytes,
            allocated={point.size: point.peak_allocated_bytes for point in fits},
            reserved={point.size: point.peak_reserved_bytes for point in fits},
            tried={
                trial.size: isinstance(outcome, Fit)
                for trial, outcome in self._resolved
                if trial.withheld_bytes and not isinstance(outcome, Broken)
            },
        )

    @cached_property
    def split(self) -> Split | None:
        """How the effective batch that was asked for is kept; None where none was, or nothing is proven to fit."""
        target, answer = self.header.settings.target_batch, self.max_batch
        if target is None or answer is None or not self.proven:
            return None
        return split(target, largest=answer, fitted={p.size for p in self.curve if p.outcome == "fit"})

    @cached_property
    def facts(self) -> tuple[str, ...]:
        """What was done to the model for the choices of its training, a sentence each."""
        fits = (outcome for _, outcome in self.verdicts if isinstance(outcome, Fit))
        return tuple(dict.fromkeys(fact for fit in fits for fact in fit.facts))

    @property
    def capacity_bytes(self) -> int:
        """What the device could give: as the last trial that fitted found it, or as first reported."""
        for trial in reversed(self.trials):
            if isinstance(trial.outcome, Fit) and not trial.withheld_bytes:
                return trial.outcome.capacity_bytes
        return self.device.capacity_bytes if self.device else 0

    @property
    def seconds(self) -> float:
        """Wall time of all trials."""
        return sum(trial.seconds for trial in self.trials)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How many trials ended each way: fit, oom, broken."""
        tally = {"fit": 0, "oom": 0, "broken": 0}
        for trial in self.trials:
            tally[_word(trial.outcome)] += 1
        return tally

    @cached_property
    def curve(self) -> tuple[CurvePoint, ...]:
        """One point a size, ascending; of the trials that were given the whole capacity."""
        by_size: dict[int, list[Outcome]] = {}
        for trial, outcome in self.verdicts:
            by_size.setdefault(trial.size, []).append(outcome)
        predicted = {trial.size: trial.predicted for trial, _ in self.verdicts if trial.predicted is not None}
        return tuple(
            dataclasses.replace(_point(size, by_size[size]), predicted=predicted.get(size)) for size in sorted(by_size)
        )

    @cached_property
    def law(self) -> MemoryLaw | None:
        """The law of the allocated peaks that fitted, a line along the batch; None with fewer than two sizes."""
        fits = [(p.size, p.peak_allocated_bytes) for p in self.curve if p.outcome == "fit"]
        return fit_law(fits, curved=self.axis != "batch")

    @cached_property
    def failure(self) -> tuple[int, OutOfMemory] | None:
        """The out of memory just above the answer, and its size."""
        found = [(trial.size, out) for trial, out in self.verdicts if isinstance(out, OutOfMemory)]
        return min(found, key=lambda pair: pair[0]) if found else None

    @cached_property
    def prediction_error(self) -> float | None:
        """(predicted - found) / found for the largest batch; None where the two cannot be compared."""
        if self.prediction is None or self.prediction.max_batch is None or not self.max_batch or not self.proven:
            return None
        if self.first_failure is None:
            return None
        return (self.prediction.max_batch - self.max_batch) / self.max_batch

    @cached_property
    def prediction_errors(self) -> PredictionErrors | None:
        """How far off the predicted peaks were; None where none stands beside a batch that fits."""
        errors = {p.size: error for p in self.curve if (error := p.prediction_error) is not None}
        if not errors:
            return None
        worst = max(errors, key=lambda size: abs(errors[size]))
        return PredictionErrors(
            sizes=len(errors),
            median=statistics.median(map(abs, errors.values())),
            worst=errors[worst],
            worst_size=worst,
        )

    @cached_property
    def throughput(self) -> Throughput | None:
        """How fast the batches are; None where no step was timed, and where something else is varied."""
        if self.header.settings.axis != "batch":
            return None
        timed = {p.size: p.samples_per_second for p in self.curve if p.outcome == "fit" and p.samples_per_second}
        return throughput_of(timed)

    def cost(self, point: CurvePoint) -> Cost | None:
        """What the schedule takes at ``point``; None where none was asked about, or the point was not timed."""
        schedule = self.header.settings.schedule
        return schedule.cost(point.samples_per_second) if schedule and point.samples_per_second else None

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know before trusting the answer, a sentence each."""
        found = list(self._noise())
        word = axes.words(self.axis).size
        if self.floor > self.header.settings.floor:
            refused = "a batch of 1" if self.axis == "batch" else f"{word} {self.floor // 2} and less, at batch 1,"
            found.append(
                f"{refused} cannot be trained (batch norm needs two values a channel): started at {self.floor}"
            )
        if odd := self.search.not_monotone:
            sizes = ", ".join(map(str, odd))
            found.append(f"not monotone: {sizes} fitted although a smaller {word} ran out; the answer stays below")
        peaks = [p.peak_reserved_bytes for p in self.curve if p.outcome == "fit"]
        if len(peaks) >= 3 and peaks[-1] <= peaks[0]:
            found.append(f"the peak does not grow with the {word}: is the {word} really used by the model?")
        found.extend(numeric_warnings({p.size: p.numeric for p in self.curve if p.numeric is not None}))
        notes = (note for _, outcome in self.verdicts if isinstance(outcome, Fit) for note in outcome.notes)
        found.extend(dict.fromkeys(notes))
        return tuple(found)

    def _noise(self) -> Iterator[str]:
        """Other processes' memory on the card that changed during the run."""
        seen: list[tuple[int, int]] = []
        for trial in self.trials:
            for memory in (getattr(trial.outcome, "card_before", None), getattr(trial.outcome, "card_after", None)):
                if memory is not None and memory.others_bytes is not None:
                    seen.append((trial.number, memory.others_bytes))
        if seen and (spread := max(b for _, b in seen) - min(b for _, b in seen)) >= NOISE_BYTES:
            low, high = min(seen, key=lambda s: s[1]), max(seen, key=lambda s: s[1])
            yield (
                f"noisy card: what other processes hold changed by {spread // MIB} MiB "
                f"(least in trial {low[0]}, most in trial {high[0]}); run again on a quiet card"
            )


def _too_few_values(trial: TrialRecord) -> bool:
    return isinstance(trial.outcome, Broken) and _TOO_FEW_VALUES in trial.outcome.reason


def _is_suspect(outcome: Outcome) -> bool:
    return isinstance(outcome, OutOfMemory) and outcome.failure == "oom_suspect"


def _word(outcome: Outcome) -> Literal["fit", "oom", "broken"]:
    match outcome:
        case Fit():
            return "fit"
        case OutOfMemory():
            return "oom"
        case Broken():
            return "broken"


def _point(size: int, outcomes: list[Outcome]) -> CurvePoint:
    ooms = [o for o in outcomes if isinstance(o, OutOfMemory)]
    fits = [o for o in outcomes if isinstance(o, Fit)]
    if ooms:
        worst = max(ooms, key=lambda o: o.peak_reserved_bytes)
        return CurvePoint(
            size=size,
            outcome="oom",
            trials=len(outcomes),
            peak_allocated_bytes=worst.peak_allocated_bytes,
            peak_reserved_bytes=worst.peak_reserved_bytes,
            process_bytes=worst.process_bytes,
            breakdown=worst.breakdown,
        )
    if not fits:
        return CurvePoint(
            size=size, outcome="broken", trials=len(outcomes), peak_allocated_bytes=0, peak_reserved_bytes=0
        )
    top = max(fits, key=lambda o: o.peak_reserved_bytes)
    return CurvePoint(
        size=size,
        outcome="fit",
        trials=len(outcomes),
        peak_allocated_bytes=top.peak_allocated_bytes,
        peak_reserved_bytes=top.peak_reserved_bytes,
        process_bytes=top.process_bytes,
        step_seconds=top.step_seconds,
        samples_per_second=top.samples_per_second,
        tokens_per_second=top.tokens_per_second,
        context_bytes=top.context_bytes,
        host_peak_bytes=top.host_peak_bytes,
        fragmentation=top.fragmentation,
        activity=top.activity,
        loss_finite=losses_finite(fits),
        numeric=first_not_finite(fits),
        breakdown=top.breakdown,
        holdings=top.holdings,
    )

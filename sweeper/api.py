"""The Python interface: ``sweep`` asks the question, ``Run`` is the answer.

Importing this brings in neither torch nor matplotlib; a sweep starts a worker that does.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper import calibrating, cards
from sweeper.accuracy import accuracy
from sweeper.allocator_conf import AllocatorConf, words_in_force
from sweeper.boundary import Frontier, MeasuredPoint
from sweeper.calibration import Calibration
from sweeper.calibrations import Calibrations
from sweeper.charting import Asked, chart, fitted_to, measure
from sweeper.checks import bytes_of, check_lengths, check_not_given, check_numbers, check_sizes
from sweeper.choices import Choices, check_choices, job
from sweeper.comparing import Comparison, compare, is_comparison, load_comparison, resume_comparison
from sweeper.difference import Difference, difference
from sweeper.drawing import draw, draw_comparison, draw_frontier, draw_timeline
from sweeper.errors import FolderUnusable, UsageError, WorkerFailed
from sweeper.journal import Journal, read_record
from sweeper.libraries import imports_of
from sweeper.model_names import modules_of
from sweeper.predicting import Forecast, StepTracer, Wanted, forecasts
from sweeper.prices import cost_question
from sweeper.questions import AUTO_CARD, Options, calibrations, new_folder, question, runner_for, runner_of, settled
from sweeper.record import CurvePoint, Record
from sweeper.runner import Runner, open_runner
from sweeper.sweeping import Observer, Silent, describe, run_sweep
from sweeper.trace_cache import TraceCache, default_folder
from sweeper.trial import DescribeModel, ModelReport, TrialSpec
from sweeper.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

__all__ = [
    "AUTO_CARD",
    "Choices",
    "Comparison",
    "Difference",
    "Forecast",
    "Frontier",
    "Run",
    "calibrate",
    "calibrations",
    "compare",
    "describe_models",
    "diff",
    "draw",
    "draw_comparison",
    "draw_timeline",
    "draw_frontier",
    "frontier",
    "is_comparison",
    "load",
    "load_comparison",
    "predict",
    "predict_all",
    "resume",
    "resume_comparison",
    "sweep",
]

_TRACE_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Run:
    """A finished (or interrupted) sweep and the folder that holds it."""

    record: Record
    folder: Path

    @property
    def max_batch(self) -> int | None:
        """The largest batch that was run and fitted; None when nothing fits, or something else was varied."""
        return self.record.max_batch

    @property
    def max_size(self) -> int | None:
        """The largest size along the axis that was run and fitted; None when nothing fits."""
        return self.record.max_size

    @property
    def proven(self) -> bool:
        """Whether both sides of the boundary were run."""
        return self.record.proven

    @property
    def recommended_batch(self) -> int | None:
        """The largest batch run that leaves the margin free; None where something else was varied."""
        return self.record.recommended_batch

    @property
    def recommended_size(self) -> int | None:
        """The largest size run that leaves the margin free."""
        return self.record.recommended_size

    @property
    def first_failure(self) -> int | None:
        """The smallest size that ran out of memory."""
        return self.record.first_failure

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        """One point for each size that was run, ascending; peaks in bytes."""
        return self.record.curve

    def plot(self) -> "Figure":
        """Size against peak memory, as a matplotlib Figure."""
        from sweeper.report import figures

        return figures.memory(self.record)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        from sweeper.report import export

        return export.to_json(self.record, self.folder)

    def __str__(self) -> str:
        from sweeper.report import text

        return text.summary(self.record, folder=self.folder, color=False)

    def _repr_html_(self) -> str:
        from sweeper.report import html

        return html.short_form(self.record, self.folder)


def sweep(
    model: str,
    *,
    max_batch: int = 512,
    min_batch: int = 1,
    batches: Sequence[int] = (),
    axis: str = "batch",
    min_size: int | None = None,
    max_size: int | None = None,
    step: int | None = None,
    target_batch: int | None = None,
    device: str = "auto",
    memory_limit: int | str | None = None,
    confirm: int | None = None,
    points: int = 6,
    margin: float = 0.05,
    round_to: int | None = None,
    predict: bool = True,
    calibration: bool = True,
    price: str | None = None,
    samples: int | None = None,
    epochs: float | None = None,
    timeout_s: float = 600.0,
    isolation: str = "fork",
    host_memory_limit: int | str | None = None,
    folder: str | Path | None = None,
    observer: Observer | None = None,
    command: Sequence[str] = (),
    **choices: "Unpack[Choices]",
) -> Run:
    """Find and prove the largest batch of ``model`` that fits; returns a ``Run``.

    ``choices`` say how it is trained (see ``Choices``).  ``batches`` measures just those instead.  ``axis`` varies
    something else than the batch, from ``min_size`` to ``max_size`` in steps of ``step``, at the ``batch_size`` among
    the choices; ``target_batch`` is the effective batch to keep by accumulation.  ``memory_limit`` and
    ``host_memory_limit`` are bytes or a text such as ``"8GiB"``; ``margin`` is the share of capacity the recommended
    batch leaves free; ``confirm`` is how often the answer must fit (1 on simulated cards, 2 on real devices when
    None).  ``calibration`` is whether a kept calibration of the card is used.  ``samples`` (of one epoch) and
    ``epochs`` (1 when None) ask for the hours of a whole training, ``price`` for its cost: a text such as ``"0.80/h"``
    or ``"0.80 EUR/h"``, or ``"list"`` for a list price; nothing simulated has either.  ``folder`` defaults to a new
    one in ``results/``.  Raises ``UsageError`` before anything runs when the question cannot be asked,
    ``CalibrationUnusable`` for what is kept of the card, ``FolderUnusable`` or ``FolderInUse`` for the folder,
    ``WorkerFailed`` when no worker starts.  A trial that breaks does not raise: see ``Run.record.broken``.
    """
    asked = question(
        model,
        Options(
            max_batch=max_batch,
            min_batch=min_batch,
            batches=batches,
            axis=axis,
            min_size=min_size,
            max_size=max_size,
            step=step,
            target_batch=target_batch,
            device=device,
            memory_limit=memory_limit,
            confirm=confirm,
            points=points,
            margin=margin,
            round_to=round_to,
            predict=predict,
            calibration=calibration,
            price=price,
            samples=samples,
            epochs=epochs,
            timeout_s=timeout_s,
            isolation=isolation,
            host_memory_limit=host_memory_limit,
            **choices,
        ),
    )
    with runner_for(asked) as runner:
        asked = settled(asked, runner, observer or Silent())
        header = asked.header(command)
        path = Path(folder) if folder is not None else new_folder(header.spec.model, header.spec.device)
        with Journal.create(path, header) as journal:
            try:
                return _finish(journal, runner, observer, calibrations(calibration))
            except (UsageError, WorkerFailed):
                if not journal.record.trials:
                    journal.discard()
                raise


def predict(
    model: str,
    *,
    card: str | None = None,
    budget: int | str | None = None,
    batch: int | None = None,
    max_batch: int = 4096,
    cache: bool = True,
    history: bool = False,
    calibration: bool = True,
    on_trace: Callable[[TrialSpec, str], None] | None = None,
    **choices: "Unpack[Choices]",
) -> Forecast:
    """Say, without a GPU and without a trial, what fits on ``card``: the largest batch, the curve, and why not more.

    ``choices`` say how it is trained (see ``Choices``).  ``card`` is a name of the catalogue or a size; ``budget`` is
    bytes or a text such as ``"16GiB"``, a limit below the card's or, without a card, all there is (with the kernels of
    compute capability 8.9).  ``batch`` asks about that batch too: ``Forecast.fits`` and ``Forecast.headroom_bytes``
    are then its.  ``cache`` keeps and uses the traces of earlier questions, ``calibration`` a kept calibration of the
    card.  ``history`` asks for ``Forecast.history``, the step event by event, which ``draw_timeline`` draws.
    ``on_trace`` is told what is traced, and for which compute capability, before it is.  Raises ``UsageError`` when
    the question cannot be asked, ``CalibrationUnusable`` for what is kept of the card, ``Untraceable`` when the model
    cannot run without values, ``WorkerFailed`` when no worker starts.
    """
    spec = job(model, choices)
    check_not_given(spec, "batch")
    limit = bytes_of(budget)
    wanted = _wanted(spec, max_batch=max_batch, batch=batch, budget_bytes=limit, history=history)
    asked = _card_of(card, limit, calibrations(calibration))
    _check_simulated(spec, asked)
    return _forecasts(spec, (asked,), wanted, cache=cache, on_trace=on_trace)[0]


def predict_all(
    model: str,
    *,
    budget: int | str | None = None,
    batch: int | None = None,
    max_batch: int = 4096,
    cache: bool = True,
    calibration: bool = True,
    on_trace: Callable[[TrialSpec, str], None] | None = None,
    **choices: "Unpack[Choices]",
) -> tuple[Forecast, ...]:
    """The same of every card in the catalogue, the smallest answer first; a budget limits the cards that have more.

    Cards that cannot do what is asked (tf32 before compute capability 8.0) are left out.
    """
    spec = job(model, choices)
    check_not_given(spec, "batch")
    wanted = _wanted(spec, max_batch=max_batch, batch=batch, budget_bytes=bytes_of(budget))
    found = _forecasts(spec, _able(spec, calibrations(calibration)), wanted, cache=cache, on_trace=on_trace)
    return tuple(sorted(found, key=lambda one: (one.max_batch or 0, one.capacity_bytes, one.card.name)))


def frontier(
    model: str,
    *,
    max_batch: int = 64,
    max_seq_len: int | None = None,
    min_seq_len: int | None = None,
    step: int | None = None,
    device: str = "auto",
    memory_limit: int | str | None = None,
    measure_points: int = 0,
    timeout_s: float = 600.0,
    folder: str | Path | None = None,
    cache: bool = True,
    calibration: bool = True,
    observer: Observer | None = None,
    on_trace: Callable[[TrialSpec, str], None] | None = None,
    on_trial: Callable[[MeasuredPoint], None] | None = None,
    **choices: "Unpack[Choices]",
) -> tuple[Frontier, Path]:
    """Say what the largest batch is at each sequence length; returns the ``Frontier`` and the folder of its files.

    Lengths are the multiples of ``step`` from ``min_seq_len`` to ``max_seq_len``, by default as many as the model has
    positions; batches go up to ``max_batch``.  All of it is predicted; ``measure_points`` of it, spread along the
    boundary, are run as trials on ``device``, on both sides.  ``folder`` defaults to a new one in ``results/``; the
    same question in the same folder runs no trial twice.  ``observer`` is told what ``auto`` came to; the rest is as
    in ``sweep`` and ``predict``, and so is what is raised.
    """
    where: Options = {"max_batch": max_batch, "device": device, "memory_limit": memory_limit}
    how: Options = {"timeout_s": timeout_s, "calibration": calibration}
    asked = question(model, Options(**choices, **where, **how))
    check_lengths(asked.spec, shortest=min_seq_len, longest=max_seq_len, step=step, measured=measure_points)
    traces = TraceCache(default_folder()) if cache else None
    with runner_for(asked) as runner, tempfile.TemporaryDirectory() as scratch:
        spec = settled(asked, runner, observer or Silent()).spec
        report = describe(runner, spec, Path(scratch) / "device")
        wanted = Asked(cap=max_batch, longest=max_seq_len, shortest=min_seq_len, step=step)
        spec, lengths, notes = fitted_to(runner, spec, wanted, Path(scratch) / "model")
        tracer = StepTracer(runner, Path(scratch) / "trace", cache=traces, on_trace=on_trace)
        kept = calibrations(calibration)
        of_card = kept.get(cards.name_for(report.label, report.total_bytes)) if report.device != "cpu" else None
        found = chart(tracer, spec, report, lengths, max_batch, of_card)
        found = dataclasses.replace(found, notes=notes + found.notes)
        path = Path(folder) if folder is not None else new_folder(f"frontier-{model}", spec.device)
        if measure_points:
            found = measure(found, measure_points, runner, path, on_trial=on_trial)
    draw_frontier(found, path)
    return found, path


def resume(folder: str | Path, *, observer: Observer | None = None) -> Run:
    """Go on with the sweep in ``folder``, or return it when it is finished."""
    if is_comparison(Path(folder)):
        raise FolderUnusable(f"{folder} holds a comparison", hint=f"go on with it: sweep compare --resume {folder}")
    with Journal.reopen(Path(folder)) as journal:
        spec, settings = journal.record.header.spec, journal.record.header.settings
        with runner_of(settings, spec) as runner:
            return _finish(journal, runner, observer, calibrations(settings.calibration))


def calibrate(
    *, device: str = "cuda", timeout_s: float = 600.0, on_job: Callable[[TrialSpec], None] | None = None
) -> tuple[Calibration, Path]:
    """Measure the GPU that is ``device`` and keep what was found; returns it, and the file it is kept in.

    ``on_job`` is told of each job before it runs.  Raises ``UsageError`` where there is no such GPU, ``TrialsBroke``
    where a job does not run on it, ``FolderUnusable`` where nothing can be kept.
    """
    check_numbers(confirm=None, points=1, margin=0, round_to=None, timeout_s=timeout_s)
    with open_runner("fork", timeout_s=timeout_s) as runner, tempfile.TemporaryDirectory() as scratch:
        found = calibrating.calibrate(runner, device, Path(scratch), on_job=on_job)
    return found, calibrations().put(found)


def describe_models(names: Sequence[str]) -> dict[str, ModelReport]:
    """What each of ``names`` is, asked of a worker; those that it refuses, or that break, are left out.

    Raises ``WorkerFailed`` when no worker starts.
    """
    found: dict[str, ModelReport] = {}
    preload = sorted({module for name in names for module in modules_of(name, None)})
    with (
        open_runner("fork", timeout_s=_TRACE_TIMEOUT_S, preload=preload) as runner,
        tempfile.TemporaryDirectory() as scratch,
    ):
        for name in names:
            spec = TrialSpec(model=name, batch_size=1, device=f"sim:{AUTO_CARD}")
            answer = runner.run(DescribeModel(spec=spec), Path(scratch) / "model")
            if isinstance(answer, ModelReport):
                found[name] = answer
    return found


def _finish(journal: Journal, runner: Runner, observer: Observer | None, kept: Calibrations) -> Run:
    """Run to the end, then derive the files that a person opens."""
    record = run_sweep(journal, runner, observer or Silent(), kept)
    draw(journal.folder)
    return Run(record, journal.folder)


def diff(before: str | Path, after: str | Path, *, tolerance: float = 0.01) -> Difference:
    """What changed from the run in ``before`` to the one in ``after``; ``tolerance`` is a share, 0.01 for 1 %.

    Raises ``UsageError`` for runs along two axes, ``FolderUnusable`` for a folder that holds no run.
    """
    return difference(*(_single_run(Path(folder)) for folder in (before, after)), tolerance=tolerance)


def _single_run(folder: Path) -> Record:
    """Raises ``FolderUnusable`` also for a comparison, with the runs that are in it."""
    if is_comparison(folder):
        inside = [entry.folder for entry in load_comparison(folder).entries]
        raise FolderUnusable(
            f"{folder} holds a comparison of {len(inside)} runs", hint=f"name one of them, such as {folder / inside[0]}"
        )
    return read_record(folder)


def load(
    folder: str | Path, *, price: str | None = None, samples: int | None = None, epochs: float | None = None
) -> Run:
    """The run in ``folder``, as far as it got; nothing is run.

    ``price``, ``samples`` and ``epochs`` ask for the cost of a whole training, as in ``sweep``.
    """
    record = read_record(Path(folder))
    if (cost := cost_question(price, samples, epochs)) is not None:
        if record.device is None:
            raise UsageError(f"no trial of {folder} was run yet", hint=f"go on with it: sweep --resume {folder}")
        record = record.with_schedule(cost.on(record.device))
    return Run(record, Path(folder))


def _check_simulated(spec: TrialSpec, card: cards.Card) -> None:
    """Raises ``UsageError`` where ``spec`` cannot be simulated on ``card``, as far as its words tell."""
    check_choices(dataclasses.replace(spec, device=f"sim:{card.name}", card=card))


def _able(spec: TrialSpec, kept: Calibrations) -> tuple[cards.Card, ...]:
    """The cards that can do what ``spec`` asks.  Raises ``UsageError`` where none can."""
    able, refused = [], None
    for card in kept.cards():
        try:
            _check_simulated(spec, card)
            able.append(card)
        except UsageError as problem:
            refused = problem
    if not able and refused is not None:
        raise refused
    return tuple(able)


def _card_of(name: str | None, budget_bytes: int | None, kept: Calibrations) -> cards.Card:
    """The card that is meant; without a name one that is the budget, all of it for the allocator."""
    if name is not None:
        card = kept.card(name)
        if budget_bytes is not None and budget_bytes > card.total_bytes:
            raise UsageError(
                f"the budget of {format_bytes(budget_bytes)} is more than {card.label} has "
                f"({format_bytes(card.total_bytes)})",
                hint="leave --budget out, or give less",
            )
        return card
    if budget_bytes is None:
        raise UsageError("which card?", hint="give --card l4, --card all or --budget 16GiB; `sweep cards` lists them")
    return dataclasses.replace(
        cards.card(f"{budget_bytes}B"),
        label=f"a budget of {format_bytes(budget_bytes)}",
        context_bytes=0,
        context_source="none: a budget is what the allocator may have",
    )


def _wanted(
    spec: TrialSpec, *, max_batch: int, batch: int | None, budget_bytes: int | None, history: bool = False
) -> Wanted:
    check_sizes(min_batch=1, max_batch=max_batch, batches=() if batch is None else (batch,))
    return Wanted(
        cap=max(max_batch, batch or 1),
        batch=batch,
        budget_bytes=budget_bytes,
        accuracy=accuracy(),
        history=history,
    )


def _forecasts(
    spec: TrialSpec,
    on: Sequence[cards.Card],
    wanted: Wanted,
    *,
    cache: bool,
    on_trace: Callable[[TrialSpec, str], None] | None,
) -> list[Forecast]:
    # As the simulated device reads it, so that both allocators keep the same rules.
    conf = AllocatorConf.parse(words_in_force(spec.alloc_conf))
    kept = TraceCache(default_folder()) if cache else None
    preload = imports_of(spec)
    with (
        open_runner("fork", timeout_s=_TRACE_TIMEOUT_S, preload=preload) as runner,
        tempfile.TemporaryDirectory() as scratch,
    ):
        tracer = StepTracer(runner, Path(scratch) / "trace", cache=kept, on_trace=on_trace)
        return list(forecasts(spec, on, wanted, tracer, conf))

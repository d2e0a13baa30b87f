"""The Python interface: ``sweep`` asks the question, ``Run`` is the answer.

Importing this brings in neither torch nor matplotlib; a sweep starts a worker that does.
"""

import contextlib
import dataclasses
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper import calibrating, cards
from sweeper.accuracy import accuracy
from sweeper.allocator_conf import AllocatorConf, words_in_force
from sweeper.axes import at_size
from sweeper.calibration import Calibration
from sweeper.calibrations import Calibrations
from sweeper.calibrations import default_folder as calibrations_folder
from sweeper.checks import bytes_of, check_device, check_not_given, check_numbers, check_sizes, sizes_of
from sweeper.choices import Choices, check_choices, check_on_card, job
from sweeper.drawing import draw, draw_timeline
from sweeper.errors import UnknownName, UsageError, WorkerFailed
from sweeper.journal import Journal, read_record
from sweeper.predicting import Forecast, StepTracer, Wanted, forecasts
from sweeper.record import CurvePoint, Header, Record, Settings
from sweeper.runner import Runner, open_runner
from sweeper.sweeping import Observer, Silent, run_sweep
from sweeper.trace_cache import TraceCache, default_folder
from sweeper.trial import Describe, DeviceReport, TrialSpec
from sweeper.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

__all__ = [
    "AUTO_CARD",
    "Choices",
    "Forecast",
    "Run",
    "calibrate",
    "calibrations",
    "draw",
    "draw_timeline",
    "load",
    "predict",
    "predict_all",
    "resume",
    "sweep",
]

# What `auto` simulates on a machine without a GPU: a card that many students have.
AUTO_CARD = "rtx4060"
_CONFIRM_SIMULATED, _CONFIRM_REAL = 1, 2
_TRACE_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Run:
    """A finished (or interrupted) sweep and the folder that holds it."""

    record: Record
    folder: Path

    @property
    def max_batch(self) -> int | None:
        """The largest batch that was run and fitted; None when nothing fits."""
        return self.record.max_batch

    @property
    def proven(self) -> bool:
        """Whether both sides of the boundary were run."""
        return self.record.proven

    @property
    def recommended_batch(self) -> int | None:
        """The largest batch run that leaves the margin free."""
        return self.record.recommended_batch

    @property
    def first_failure(self) -> int | None:
        """The smallest batch that ran out of memory."""
        return self.record.first_failure

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        """One point for each batch that was run, ascending; sizes in bytes."""
        return self.record.curve

    def plot(self) -> "Figure":
        """Batch against peak memory, as a matplotlib Figure."""
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
    None).  ``calibration`` is whether a kept calibration of the card is used.  ``folder`` defaults to a new one in
    ``results/``.  Raises ``UsageError`` before anything runs when the question cannot be asked, ``CalibrationUnusable``
    for what is kept of the card, ``FolderUnusable`` or ``FolderInUse`` for the folder, ``WorkerFailed`` when no worker
    starts.  A trial that breaks does not raise: see ``Run.record.broken``.
    """
    sizes = sizes_of(
        axis, min_batch=min_batch, max_batch=max_batch, batches=batches, min_size=min_size, max_size=max_size, step=step
    )
    spec = dataclasses.replace(job(model, choices), device=device, memory_limit_bytes=bytes_of(memory_limit))
    check_not_given(spec, axis)
    spec = at_size(spec, axis, sizes.listed[0] if sizes.listed else sizes.floor)
    if isolation not in ("fork", "spawn"):
        raise UnknownName("isolation", isolation, ("fork", "spawn"), listing="fork and spawn exist")
    check_numbers(confirm=confirm, points=points, margin=margin, round_to=round_to, timeout_s=timeout_s)
    kept = calibrations(calibration)
    spec = _as_calibrated(spec, kept)
    check_device(spec)
    check_choices(spec)
    host_limit = bytes_of(host_memory_limit)
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(open_runner(isolation, timeout_s=timeout_s, host_memory_limit_bytes=host_limit))
        if spec.device == "auto":
            spec = _as_calibrated(dataclasses.replace(spec, device=_choose_device(runner)), kept)
            check_choices(spec)
            (observer or Silent()).chose(spec.device)
        if confirm is None:
            confirm = _CONFIRM_SIMULATED if spec.device.startswith("sim:") else _CONFIRM_REAL
        settings = Settings(
            floor=sizes.floor,
            cap=sizes.cap,
            step=sizes.step,
            confirm=confirm,
            points=points,
            margin=margin,
            round_to=round_to,
            sizes=sizes.listed,
            timeout_s=timeout_s,
            isolation=isolation,  # type: ignore[arg-type]
            predict=predict,
            host_memory_limit_bytes=host_limit,
            axis=axis,
            target_batch=target_batch,
            calibration=calibration,
        )
        header = _header(spec, settings, command)
        path = Path(folder) if folder is not None else _new_folder(header)
        with Journal.create(path, header) as journal:
            try:
                return _finish(journal, runner, observer, kept)
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
    check_on_card(spec, asked.compute_capability, asked.label)
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
    """The same of every card in the catalogue, the smallest answer first; a budget limits the cards that have more."""
    spec = job(model, choices)
    check_not_given(spec, "batch")
    wanted = _wanted(spec, max_batch=max_batch, batch=batch, budget_bytes=bytes_of(budget))
    found = _forecasts(spec, tuple(calibrations(calibration).cards()), wanted, cache=cache, on_trace=on_trace)
    return tuple(sorted(found, key=lambda one: (one.max_batch or 0, one.capacity_bytes, one.card.name)))


def resume(folder: str | Path, *, observer: Observer | None = None) -> Run:
    """Go on with the sweep in ``folder``, or return it when it is finished."""
    with Journal.reopen(Path(folder)) as journal:
        settings = journal.record.header.settings
        with open_runner(
            settings.isolation,
            timeout_s=settings.timeout_s,
            host_memory_limit_bytes=settings.host_memory_limit_bytes,
        ) as runner:
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


def calibrations(used: bool = True) -> Calibrations:
    """What is kept of this user's cards; none of it unless it is ``used``."""
    return Calibrations(calibrations_folder() if used else None)


def _as_calibrated(spec: TrialSpec, kept: Calibrations) -> TrialSpec:
    """``spec`` with the card to simulate, where its card was calibrated."""
    kind, _, name = spec.device.partition(":")
    if kind != "sim" or not name:
        return spec
    card = kept.card(name)
    return dataclasses.replace(spec, device=f"sim:{card.name}", card=card) if card.calibrated else spec


def _finish(journal: Journal, runner: Runner, observer: Observer | None, kept: Calibrations) -> Run:
    """Run to the end, then derive the files that a person opens."""
    record = run_sweep(journal, runner, observer or Silent(), kept)
    draw(journal.folder)
    return Run(record, journal.folder)


def load(folder: str | Path) -> Run:
    """The run in ``folder``, as far as it got; nothing is run."""
    return Run(read_record(Path(folder)), Path(folder))


def _choose_device(runner: Runner) -> str:
    """What ``auto`` is here: the GPU if torch can use one, else a simulated card."""
    if _driver_sees_gpu():
        # The driver alone cannot tell whether this torch can use it.
        with tempfile.TemporaryDirectory() as scratch:
            if isinstance(runner.run(Describe(device="cuda"), Path(scratch) / "auto"), DeviceReport):
                return "cuda"
    return f"sim:{AUTO_CARD}"


def _driver_sees_gpu() -> bool:
    """Whether a GPU driver is on this machine: NVML answers, or the ROCm kernel driver's file is there."""
    if Path("/dev/kfd").exists():
        return True
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount()) > 0
    except pynvml.NVMLError:
        return False


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
    with open_runner("fork", timeout_s=_TRACE_TIMEOUT_S) as runner, tempfile.TemporaryDirectory() as scratch:
        tracer = StepTracer(runner, Path(scratch) / "trace", cache=kept, on_trace=on_trace)
        return list(forecasts(spec, on, wanted, tracer, conf))


def _header(spec: TrialSpec, settings: Settings, command: Sequence[str]) -> Header:
    from sweeper import __version__

    return Header(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=tuple(command),
        spec=spec,
        settings=settings,
        sweeper=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()} {sys.implementation.name}",
    )


def _new_folder(header: Header) -> Path:
    when = datetime.now().strftime("%Y%m%d-%H%M%S")
    # my/model.py:factory is model.py-factory; what a shell would want quoted goes.
    model = re.sub(r"[^\w.+-]+", "-", header.spec.model.rpartition("/")[2])
    name = f"{when}-{model}-{header.spec.device.replace(':', '-')}"
    return next(path for path in _numbered(Path("results") / name) if not path.exists())


def _numbered(path: Path) -> Iterator[Path]:
    """``path``, then ``path-2``, ``path-3``: for sweeps that begin in the same second."""
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.name}-{number}")
        number += 1

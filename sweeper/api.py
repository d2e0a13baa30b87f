"""The Python interface: ``sweep`` asks the question, ``Run`` is the answer.

Importing this brings in neither torch nor matplotlib; a sweep starts a worker that does.
"""

import contextlib
import dataclasses
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper import cards, model_names
from sweeper.errors import FolderUnusable, UnknownName, UsageError, WorkerFailed
from sweeper.host_memory import total_bytes
from sweeper.journal import Journal, read_record
from sweeper.record import CurvePoint, Header, Record, Settings
from sweeper.runner import Runner, open_runner, python_command
from sweeper.sweeping import Observer, Silent, check_limit, run_sweep
from sweeper.trial import MODES, OPTIMIZERS, PRECISIONS, Describe, DeviceReport, TrialSpec
from sweeper.units import parse_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AUTO_CARD", "Run", "draw", "load", "resume", "sweep"]

# What `auto` simulates on a machine without a GPU: a card that many students have.
AUTO_CARD = "rtx4060"
DEVICES = ("auto", "cuda", "cuda:1", "cpu", "sim:CARD")
_CONFIRM_SIMULATED, _CONFIRM_REAL = 1, 2


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
    device: str = "auto",
    model_args: Mapping[str, int | float | bool | str] | None = None,
    precision: str = "fp32",
    optimizer: str = "sgd",
    mode: str = "train",
    image_size: int | None = None,
    steps: int = 3,
    memory_limit: int | str | None = None,
    confirm: int | None = None,
    points: int = 6,
    margin: float = 0.05,
    round_to: int | None = None,
    predict: bool = True,
    timeout_s: float = 600.0,
    isolation: str = "fork",
    host_memory_limit: int | str | None = None,
    folder: str | Path | None = None,
    observer: Observer | None = None,
    command: Sequence[str] = (),
) -> Run:
    """Find and prove the largest batch of ``model`` that fits; returns a ``Run``.

    ``batches`` measures just those instead.  ``memory_limit`` and ``host_memory_limit`` are bytes or a text such as
    ``"8GiB"``; ``margin`` is the share of capacity the recommended batch leaves free; ``confirm`` is how often the
    answer must fit (1 on simulated cards, 2 on real devices when None).  ``folder`` defaults to a new one in
    ``results/``.  Raises ``UsageError`` before anything runs when the question cannot be asked, ``FolderUnusable`` or
    ``FolderInUse`` for the folder, ``WorkerFailed`` when no worker starts.  A trial that breaks does not raise: see
    ``Run.record.broken``.
    """
    spec = TrialSpec(
        model=model,
        batch_size=min(batches) if batches else min_batch,
        device=device,
        model_args=dict(model_args or {}),
        precision=_one_of("precision", precision, PRECISIONS),
        optimizer=_one_of("optimizer", optimizer, OPTIMIZERS),
        mode=_one_of("mode", mode, MODES),
        image_size=image_size,
        steps=steps,
        memory_limit_bytes=_bytes_of(memory_limit),
    )
    if isolation not in ("fork", "spawn"):
        raise UnknownName("isolation", isolation, ("fork", "spawn"), listing="fork and spawn exist")
    _check_sizes(min_batch=min_batch, max_batch=max_batch, batches=batches)
    _check_numbers(steps=steps, confirm=confirm, points=points, margin=margin, round_to=round_to, timeout_s=timeout_s)
    model_names.check_model(model)
    _check_device(spec)
    host_limit = _bytes_of(host_memory_limit)
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(open_runner(isolation, timeout_s=timeout_s, host_memory_limit_bytes=host_limit))
        if spec.device == "auto":
            spec = dataclasses.replace(spec, device=_choose_device(runner))
            (observer or Silent()).chose(spec.device)
        if confirm is None:
            confirm = _CONFIRM_SIMULATED if spec.device.startswith("sim:") else _CONFIRM_REAL
        settings = Settings(
            floor=min_batch,
            cap=max(batches) if batches else max_batch,
            confirm=confirm,
            points=points,
            margin=margin,
            round_to=round_to,
            sizes=tuple(sorted(set(batches))),
            timeout_s=timeout_s,
            isolation=isolation,  # type: ignore[arg-type]
            predict=predict,
            host_memory_limit_bytes=host_limit,
        )
        header = _header(spec, settings, command)
        path = Path(folder) if folder is not None else _new_folder(header)
        with Journal.create(path, header) as journal:
            try:
                return _finish(journal, runner, observer)
            except (UsageError, WorkerFailed):
                if not journal.record.trials:
                    journal.discard()
                raise


def resume(folder: str | Path, *, observer: Observer | None = None) -> Run:
    """Go on with the sweep in ``folder``, or return it when it is finished."""
    with Journal.reopen(Path(folder)) as journal:
        settings = journal.record.header.settings
        with open_runner(
            settings.isolation,
            timeout_s=settings.timeout_s,
            host_memory_limit_bytes=settings.host_memory_limit_bytes,
        ) as runner:
            return _finish(journal, runner, observer)


def _finish(journal: Journal, runner: Runner, observer: Observer | None) -> Run:
    """Run to the end, then derive the files that a person opens."""
    record = run_sweep(journal, runner, observer or Silent())
    draw(journal.folder)
    return Run(record, journal.folder)


def draw(folder: Path) -> None:
    """Write everything that is derived from the journal in ``folder``, in a process that ends with it.

    Raises ``FolderUnusable`` when it cannot be written.
    """
    command, environment = python_command("sweeper.report", str(folder))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    *_, message, hint = ["", "", *done.stderr.strip().splitlines()]
    if done.returncode != 2:
        message, hint = f"drawing failed: {hint}", f"the journal is whole; try again: sweep report {folder}"
    raise FolderUnusable(message, hint=hint)


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


def _check_device(spec: TrialSpec) -> None:
    kind, _, rest = spec.device.partition(":")
    listing = f"known: {', '.join(DEVICES)}; `sweep cards` lists the cards"
    limit = spec.memory_limit_bytes
    match kind, rest:
        case (("auto" | "cpu" | "cuda"), ""):
            pass
        case "cuda", index if index.isdigit():
            pass
        case "sim", name if name:
            card = cards.card(name)
            check_limit(limit, card.label, card.total_bytes)
        case "sim", _:
            raise UsageError("sim: names no card", hint="write --device sim:rtx4060; `sweep cards` lists them")
        case _:
            raise UnknownName("device", spec.device, ("auto", "cuda", "cpu", "sim:rtx4060"), listing=listing)
    if kind == "cpu":
        check_limit(limit, "this machine", total_bytes() or 0)


def _check_sizes(*, min_batch: int, max_batch: int, batches: Sequence[int]) -> None:
    if min_batch < 1 or max_batch < 1 or any(size < 1 for size in batches):
        raise UsageError("a batch has at least one sample", hint="give sizes of 1 or more")
    if min_batch > max_batch:
        raise UsageError(
            f"--min-batch {min_batch} is above --max-batch {max_batch}", hint="give a range that is not empty"
        )


def _check_numbers(
    *, steps: int, confirm: int | None, points: int, margin: float, round_to: int | None, timeout_s: float
) -> None:
    if steps < 2:
        raise UsageError(
            f"{steps} step is too few: the optimizer makes its state in the first, so the second needs more",
            hint="give --steps 2 or more; 3 is the default",
        )
    for name, value, least in (
        ("--confirm", confirm, 1),
        ("--points", points, 1),
        ("--round-to", round_to, 1),
        ("--timeout", timeout_s, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{name} {value} is too small", hint=f"give {least} or more")
    if not 0 <= margin < 1:
        raise UsageError(f"--margin {margin} is no share of the capacity", hint="give a number from 0 to 0.9")


def _one_of(kind: str, name: str, known: Sequence[Any]) -> Any:
    if name not in known:
        raise UnknownName(kind, name, known, listing=f"known: {', '.join(known)}")
    return name


def _bytes_of(size: int | str | None) -> int | None:
    if isinstance(size, str):
        return parse_bytes(size)
    if size is not None and size < 1:
        raise UsageError(f"{size} bytes is no limit", hint="write it as 8GiB")
    return size


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

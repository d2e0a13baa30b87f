"""From the words of a question to the header of a run: what is asked for, checked, and on which device.

``question`` knows what the words alone tell and starts nothing; ``settled`` asks a worker what ``auto`` is here.  One
sweep asks one question, a comparison one for each combination.
"""

import dataclasses
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from sweeper.axes import at_size
from sweeper.calibrations import Calibrations
from sweeper.calibrations import default_folder as calibrations_folder
from sweeper.checks import Sizes, bytes_of, check_device, check_not_given, check_numbers, sizes_of
from sweeper.choices import Choices, check_choices, job
from sweeper.cost import Schedule
from sweeper.effective_batch import accumulating
from sweeper.errors import UnknownName
from sweeper.libraries import imports_of
from sweeper.prices import CostQuestion, cost_question
from sweeper.record import Header, Settings
from sweeper.runner import ForkRunner, Runner, SpawnRunner, open_runner
from sweeper.sizing import settle
from sweeper.sweeping import Observer, describe
from sweeper.trial import Describe, DeviceReport, TrialSpec

__all__ = [
    "AUTO_CARD",
    "Options",
    "Question",
    "calibrations",
    "new_folder",
    "question",
    "runner_for",
    "runner_of",
    "settled",
]

# What `auto` simulates on a machine without a GPU: a card that many students have.
AUTO_CARD = "rtx4060"
_CONFIRM_SIMULATED, _CONFIRM_REAL = 1, 2


class Options(Choices, total=False):
    """All that ``sweep`` takes beside the model and the folder; each as it says there, where its defaults stand too."""

    max_batch: int
    min_batch: int
    batches: Sequence[int]
    axis: str
    min_size: int | None
    max_size: int | None
    step: int | None
    target_batch: int | None
    device: str
    memory_limit: int | str | None
    confirm: int | None
    points: int
    margin: float
    round_to: int | None
    predict: bool
    calibration: bool
    timeout_s: float
    isolation: str
    host_memory_limit: int | str | None
    price: str | None
    samples: int | None
    epochs: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a sweep is asked.  Until it is ``settled`` the device may be ``auto``, and ``confirm`` None."""

    spec: TrialSpec
    settings: Settings
    confirm: int | None
    sizes: Sizes
    cost: CostQuestion | None = None

    def header(self, command: Sequence[str]) -> Header:
        """The first line of the journal, with ``command`` as what was typed."""
        from sweeper import __version__

        return Header(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=tuple(command),
            spec=self.spec,
            settings=self.settings,
            sweeper=__version__,
            python=platform.python_version(),
            platform=f"{platform.system()} {platform.release()} {platform.machine()} {sys.implementation.name}",
        )


def question(model: str, options: Options) -> Question:
    """What is asked of ``model``.  Raises ``UsageError`` where the words alone tell that it cannot be."""
    given = dict(options)
    told = {name: given.pop(name) for name in Options.__annotations__ if name in given and name not in _CHOICES}
    choices: Choices = given  # type: ignore[assignment]
    return _question(model, choices, **told)  # type: ignore[arg-type]


_CHOICES = frozenset(Choices.__annotations__)


def _question(
    model: str,
    choices: Choices,
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
    price: str | None = None,
    samples: int | None = None,
    epochs: float | None = None,
) -> Question:
    sizes = sizes_of(
        axis, min_batch=min_batch, max_batch=max_batch, batches=batches, min_size=min_size, max_size=max_size, step=step
    )
    spec = dataclasses.replace(job(model, choices), device=device, memory_limit_bytes=bytes_of(memory_limit))
    check_not_given(spec, axis)
    spec = accumulating(spec, target_batch, axis)
    spec = at_size(spec, axis, sizes.first)
    if isolation not in ("fork", "spawn"):
        raise UnknownName("isolation", isolation, ("fork", "spawn"), listing="fork and spawn exist")
    check_numbers(confirm=confirm, points=points, margin=margin, round_to=round_to, timeout_s=timeout_s)
    spec = _as_calibrated(spec, calibrations(calibration))
    check_device(spec)
    check_choices(spec)
    cost = cost_question(price, samples, epochs)
    if cost is not None:
        cost.check(spec.device)
    settings = Settings(
        floor=sizes.first if sizes.floor is None else sizes.floor,
        cap=sizes.cap,
        step=sizes.step or 1,
        points=points,
        margin=margin,
        round_to=round_to,
        sizes=sizes.listed,
        timeout_s=timeout_s,
        isolation=isolation,  # type: ignore[arg-type]
        predict=predict,
        host_memory_limit_bytes=bytes_of(host_memory_limit),
        axis=axis,
        target_batch=target_batch,
        calibration=calibration,
    )
    return Question(spec=spec, settings=settings, confirm=confirm, sizes=sizes, cost=cost)


def runner_for(asked: Question, *others: Question) -> ForkRunner | SpawnRunner:
    """The runner that the settings of ``asked`` name, with what the models of all of them need."""
    return runner_of(asked.settings, *(one.spec for one in (asked, *others)))


def runner_of(settings: Settings, *specs: TrialSpec) -> ForkRunner | SpawnRunner:
    """The runner that ``settings`` name, for trials of ``specs``."""
    return open_runner(
        settings.isolation,
        timeout_s=settings.timeout_s,
        host_memory_limit_bytes=settings.host_memory_limit_bytes,
        preload=tuple(dict.fromkeys(name for spec in specs for name in imports_of(spec))),
    )


def settled(asked: Question, runner: Runner, observer: Observer) -> Question:
    """The same on a device that has a name, over sizes that the model takes.

    Raises ``UsageError`` where the device cannot do what is asked, or the model.
    """
    spec, confirm = asked.spec, asked.confirm
    if spec.device == "auto":
        spec = dataclasses.replace(spec, device=_choose_device(runner))
        spec = _as_calibrated(spec, calibrations(asked.settings.calibration))
        check_choices(spec)
        if asked.cost is not None:
            asked.cost.check(spec.device)
        observer.chose(spec.device)
    if confirm is None:
        confirm = _CONFIRM_SIMULATED if spec.device.startswith("sim:") else _CONFIRM_REAL
    settings = dataclasses.replace(asked.settings, confirm=confirm, schedule=_schedule(asked.cost, spec, runner))
    spec, settings = settle(runner, spec, settings, asked.sizes)
    return dataclasses.replace(asked, spec=spec, settings=settings, confirm=confirm)


def _schedule(cost: CostQuestion | None, spec: TrialSpec, runner: Runner) -> Schedule | None:
    """What was asked, on the device that is there: a list price depends on it."""
    if cost is None:
        return None
    if not cost.listed:
        return cost.given()
    with tempfile.TemporaryDirectory() as scratch:
        return cost.on(describe(runner, spec, Path(scratch) / "device"))


def calibrations(used: bool = True) -> Calibrations:
    """What is kept of this user's cards; none of it unless it is ``used``."""
    return Calibrations(calibrations_folder() if used else None)


def new_folder(model: str, device: str) -> Path:
    """A folder in ``results/`` that is not there yet, named after the time, the model and the device."""
    when = datetime.now().strftime("%Y%m%d-%H%M%S")
    # my/model.py:factory is model.py-factory; what a shell would want quoted goes.
    named = re.sub(r"[^\w.+-]+", "-", model.rpartition("/")[2])
    name = f"{when}-{named}-{device.replace(':', '-')}"
    return next(path for path in _numbered(Path("results") / name) if not path.exists())


def _as_calibrated(spec: TrialSpec, kept: Calibrations) -> TrialSpec:
    """``spec`` with the card to simulate, where its card was calibrated."""
    kind, _, name = spec.device.partition(":")
    if kind != "sim" or not name:
        return spec
    card = kept.card(name)
    return dataclasses.replace(spec, device=f"sim:{card.name}", card=card) if card.calibrated else spec


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


def _numbered(path: Path) -> Iterator[Path]:
    """``path``, then ``path-2``, ``path-3``: for sweeps that begin in the same second."""
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.name}-{number}")
        number += 1

"""A comparison: one sweep for each combination of choices, one after the other on one worker host, in one folder.

``plan.json`` says which combinations there are and what each is asked, whole before anything runs.  Each has an
ordinary run folder inside, whose journal is the truth of it; everything else is derived from those.  So a comparison
that was killed goes on as its sweeps do: one that is finished is read, one that has begun goes on, one that has not is
begun with the header of the plan.

A worker describes the device and traces the step of every combination before the first trial, so that a choice which
only a model can refuse is refused before anything was run in vain.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sweeper.comparison import Compared, Effect, Entry, Sort
from sweeper.drawing import draw_comparison
from sweeper.errors import FolderUnusable, JournalBroken, SchemaTooNew, UsageError, WorkerFailed
from sweeper.journal import FILE as JOURNAL
from sweeper.journal import Journal, read_record
from sweeper.questions import Options, Question, calibrations, new_folder, question, runner_for, runner_of, settled
from sweeper.record import Header, Record
from sweeper.report import write_whole
from sweeper.runner import Runner
from sweeper.sweeping import Observer, Silent, begin_sweep, run_sweep
from sweeper.trial import DescribeModel, Refused
from sweeper.varying import Varied, changed, check_unvaried, combinations, read_vary
from sweeper.wire import WireError, from_jsonable, to_jsonable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

__all__ = [
    "CAP",
    "Comparison",
    "ComparisonObserver",
    "Plan",
    "Planned",
    "compare",
    "is_comparison",
    "load_comparison",
    "resume_comparison",
]

PLAN = "plan.json"
# 1  first version
SCHEMA = 1
# A choice can let many times the batch fit; 512, a sweep's own default, would be the answer of several combinations.
CAP = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One combination: the words of what is varied, its run's folder, and its header."""

    choices: Mapping[str, str]
    folder: str
    header: Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What ``plan.json`` holds, beside its schema number."""

    vary: Mapping[str, tuple[str, ...]]
    combinations: tuple[Planned, ...]


@dataclass(frozen=True)
class Comparison:
    """A finished (or interrupted) comparison and the folder that holds it."""

    compared: Compared
    folder: Path

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every combination with its run, the first varied field changing slowest."""
        return self.compared.entries

    @property
    def common_size(self) -> int | None:
        """The size at which the combinations are compared: the largest that all with an answer ran."""
        return self.compared.common_size

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What each value of each choice does against the first, as ratios."""
        return self.compared.effects

    def plot(self) -> "Figure":
        """Peak memory against the batch, a line a combination, as a matplotlib Figure."""
        from sweeper.report import comparison_figures

        return comparison_figures.curves(self.compared)

    def to_dict(self) -> dict[str, Any]:
        """What ``sweep compare --json`` prints."""
        from sweeper.report import comparison

        return comparison.to_json(self.compared, self.folder)

    def text(self, *, sort: Sort = "largest", color: bool = False) -> str:
        """What ``sweep compare`` prints."""
        from sweeper.report import comparison

        return comparison.summary(self.compared, folder=self.folder, sort=sort, color=color)

    def __str__(self) -> str:
        return self.text()


class ComparisonObserver(Observer, Protocol):
    """Told what happens in each sweep, and which one it is."""

    def planned(self, folder: Path, labels: Sequence[str]) -> None: ...

    def beginning(self, number: int, label: str) -> None: ...

    def running(self, number: int, label: str) -> None: ...


class _SilentComparison(Silent):
    def planned(self, folder: Path, labels: Sequence[str]) -> None: ...

    def beginning(self, number: int, label: str) -> None: ...

    def running(self, number: int, label: str) -> None: ...


def compare(
    model: str | None = None,
    *,
    vary: Mapping[str, Iterable[object]],
    folder: str | Path | None = None,
    observer: ComparisonObserver | None = None,
    command: Sequence[str] = (),
    **options: "Unpack[Options]",
) -> Comparison:
    """Sweep every combination of the choices in ``vary``, and set them side by side.

    ``vary`` is the values of each field, by the name of its option: ``{"precision": ["fp32", "amp-bf16"],
    "checkpointing": [False, True], "model.depth": [4, 8]}``; ``model`` and ``device`` can be among them.  ``options``
    are those of ``sweep``, for all alike; ``max_batch`` is 4096 where it is not given.  ``folder`` defaults to a new
    one in ``results/``.  Raises ``UsageError`` before the first trial, naming the combination, where one of them
    cannot be asked; ``FolderUnusable`` for the folder, ``WorkerFailed`` when no worker starts.  A combination whose
    trials break does not raise, and the others are run: see ``Entry.record.broken``.
    """
    varied = read_vary(vary)
    if model is None and "model" not in varied:
        raise UsageError("which model?", hint="give one, or vary it; `sweep models` lists them")
    given: dict[str, Any] = {**options, **({} if model is None else {"model": model})}
    check_unvaried(varied, given)
    if given.get("axis", "batch") == "batch" and given.get("max_size") is None:
        given.setdefault("max_batch", CAP)
    asked = []
    for combination in combinations(varied):
        with _named(combination):
            asked.append((combination, _question(given, combination)))
    watched = observer or _SilentComparison()
    with runner_for(*(one for _, one in asked)) as runner:
        planned = []
        for number, (combination, one) in enumerate(asked, 1):
            with _named(combination):
                header = settled(one, runner, watched if number == 1 else Silent()).header(command)
            choices = {field: value.word for field, value in combination.items()}
            planned.append(Planned(choices=choices, folder=_folder_name(number, choices), header=header))
        vary_words = {field: tuple(value.word for value in values) for field, values in varied.items()}
        plan = Plan(vary=vary_words, combinations=tuple(planned))
        path = Path(folder) if folder is not None else _new_folder(plan)
        _write_plan(plan, path)
        try:
            return _finish(plan, path, runner, watched)
        except (UsageError, WorkerFailed):
            _discard_untried(plan, path)
            raise


def resume_comparison(folder: str | Path, *, observer: ComparisonObserver | None = None) -> Comparison:
    """Go on with the comparison in ``folder``, or return it when it is finished."""
    plan, path = _read_plan(Path(folder)), Path(folder)
    headers = [one.header for one in plan.combinations]
    with runner_of(headers[0].settings, *(header.spec for header in headers)) as runner:
        return _finish(plan, path, runner, observer or _SilentComparison())


def load_comparison(folder: str | Path) -> Comparison:
    """The comparison in ``folder``, as far as it got; nothing is run."""
    plan, path = _read_plan(Path(folder)), Path(folder)
    return Comparison(Compared(vary=plan.vary, entries=tuple(_entry(one, path) for one in plan.combinations)), path)


def is_comparison(folder: Path) -> bool:
    """Whether ``folder`` holds a comparison, and not a single run."""
    return (folder / PLAN).is_file()


# -- the sweeps -------------------------------------------------------------------------------------------------


def _finish(plan: Plan, folder: Path, runner: Runner, observer: ComparisonObserver) -> Comparison:
    observer.planned(folder, [_entry(one, folder).label for one in plan.combinations])
    for number, one in enumerate(plan.combinations, 1):
        observer.beginning(number, _entry(one, folder).label)
        _begin(one, folder, runner)
    _run_all(plan, folder, runner, observer)
    # A trial more where no size is shared; should it fail, that sweep's answer is another, and so is what is shared.
    while (size := load_comparison(folder).compared.wanted_size) is not None:
        if not _run_all(plan, folder, runner, observer, also=size):
            break
    draw_comparison(folder)
    return load_comparison(folder)


def _begin(one: Planned, folder: Path, runner: Runner) -> None:
    """Have the worker say of one combination what it can before a trial.  Raises ``UsageError`` where it refuses."""
    with _named(one.choices), _journal(one, folder) as journal:
        if journal.record.device is not None:
            return
        if not one.header.settings.predict:  # else the step is traced, which refuses all that this does and more
            response = runner.run(DescribeModel(spec=one.header.spec), journal.folder / "trials" / "0000-model")
            if isinstance(response, Refused):
                raise UsageError(response.message, hint=response.hint)
        begin_sweep(journal, runner, calibrations(one.header.settings.calibration))


def _run_all(plan: Plan, folder: Path, runner: Runner, observer: ComparisonObserver, also: int | None = None) -> int:
    """Take every sweep to its end, and ``also`` to that size where it has an answer; returns the trials run."""
    before = after = 0
    for number, one in enumerate(plan.combinations, 1):
        with _named(one.choices), _journal(one, folder) as journal:
            record = journal.record
            before += len(record.trials)
            sizes = (also,) if also is not None and record.max_batch is not None else ()
            if record.next_trial() is not None or (sizes and _entry(one, folder).at(also) is None):
                observer.running(number, _entry(one, folder).label)
                kept = calibrations(one.header.settings.calibration)
                record = run_sweep(journal, runner, observer, kept, also=sizes)
            after += len(record.trials)
    return after - before


@contextmanager
def _journal(one: Planned, folder: Path) -> Iterator[Journal]:
    """The journal of one combination, made where it has none; a header that was torn off is none."""
    path = folder / one.folder
    file = path / JOURNAL
    if file.is_file() and b"\n" not in file.read_bytes():
        file.unlink()
    with Journal.reopen(path) if file.is_file() else Journal.create(path, one.header) as journal:
        yield journal


def _entry(one: Planned, folder: Path) -> Entry:
    begun = (folder / one.folder / JOURNAL).is_file() and b"\n" in (folder / one.folder / JOURNAL).read_bytes()
    record = read_record(folder / one.folder) if begun else Record(header=one.header)
    return Entry(choices=one.choices, folder=one.folder, record=record)


def _question(given: Mapping[str, Any], combination: Mapping[str, Varied]) -> Question:
    options = changed(given, combination)
    model = options.pop("model")
    return question(model, Options(**options))  # type: ignore[typeddict-item]


@contextmanager
def _named(combination: Mapping[str, Any]) -> Iterator[None]:
    """What is refused inside is refused of ``combination``."""
    try:
        yield
    except UsageError as refused:
        words = ", ".join(f"{field} {getattr(word, 'word', word)}" for field, word in combination.items())
        raise UsageError(f"with {words}: {refused.message}", hint=refused.hint) from None


# -- the folder -------------------------------------------------------------------------------------------------


def _folder_name(number: int, choices: Mapping[str, str]) -> str:
    words = [re.sub(r"[^\w.+-]+", "-", word.rpartition("/")[2]) for word in choices.values()]
    return f"{number:02d}-{'-'.join(words)}"[:80]


def _new_folder(plan: Plan) -> Path:
    first = plan.combinations[0].header.spec
    model = f"{len(plan.vary['model'])}-models" if "model" in plan.vary else first.model
    device = f"{len(plan.vary['device'])}-devices" if "device" in plan.vary else first.device
    return new_folder(f"compare-{model.rpartition('/')[2]}", device)


def _write_plan(plan: Plan, folder: Path) -> None:
    if is_comparison(folder) or (folder / JOURNAL).exists():
        raise FolderUnusable(
            f"{folder} already holds a {'comparison' if is_comparison(folder) else 'run'}",
            hint="name another --folder, or go on with it by --resume",
        )
    body = json.dumps({"schema": SCHEMA, **to_jsonable(plan)}, indent=1) + "\n"
    write_whole(folder, {PLAN: body.encode()}, what="the plan", hint="choose another --folder, or make room")


def _read_plan(folder: Path) -> Plan:
    path = folder / PLAN
    if not path.is_file():
        raise FolderUnusable(
            f"{folder} holds no comparison", hint="name the folder that an earlier `sweep compare` printed"
        )
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        found = body.pop("schema", None) if isinstance(body, dict) else None
        if isinstance(found, int) and found > SCHEMA:
            raise SchemaTooNew(
                f"{path} was written with schema {found}; this sweeper reads up to {SCHEMA}",
                hint="upgrade sweeper, or point at a comparison made with this version",
            )
        plan: Plan = from_jsonable(Plan, body)
    except (ValueError, WireError) as problem:
        raise JournalBroken(
            f"{path} cannot be read: {problem}", hint="restore it from a copy, or start the comparison again"
        ) from None
    return plan


def _discard_untried(plan: Plan, folder: Path) -> None:
    """Take back a comparison that came to nothing: something cannot be asked, and no trial was run."""
    if any(_entry(one, folder).record.trials for one in plan.combinations):
        return
    for one in plan.combinations:
        if (folder / one.folder / JOURNAL).is_file():
            with _journal(one, folder) as journal:
                journal.discard()
    with contextlib.suppress(OSError):
        (folder / PLAN).unlink()
        folder.rmdir()

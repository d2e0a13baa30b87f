"""Rows with their answers, to statistics and a table.

The error of a peak is (predicted - measured) / measured.  A cap is right when the predicted least capacity lies between
the cap that failed and the one that did not, with 2 % slack at either end; a bracket when the batch that ran fits and
the next does not.  A slope is bytes a sample by least squares over the batches of one job, of at least two.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scoring.answer import OUTSIDE_BYTES, Answer
from scoring.rows import OTHERS, Bracket, Cap, Peak

__all__ = [
    "Scored",
    "SetScore",
    "cap_is_right",
    "outside_bytes",
    "percentile",
    "predicted_bytes",
    "score",
    "slope_errors",
    "table",
]

CAP_SLACK = 0.02


@dataclass(frozen=True, slots=True)
class Scored:
    row: Peak | Cap | Bracket
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScore:
    """One line of the table.  Errors are shares, not per cent; None where the set has no such rows."""

    name: str
    rows: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    median: float | None = None
    percentile_90: float | None = None
    right: int | None = None
    wrong: tuple[str, ...] = ()
    seconds: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)  # the median |error| of other estimators


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lies, between neighbours in proportion.

    Raises ``ValueError`` when there is no value.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def cap_is_right(row: Cap, least_bytes: int) -> bool:
    return row.fails_bytes * (1 - CAP_SLACK) < least_bytes <= row.fits_bytes * (1 + CAP_SLACK)


def predicted_bytes(item: Scored) -> int:
    """What would have been measured: the peak reserved, with the process's own memory where that counts."""
    assert isinstance(item.row, Peak)
    assert item.answer.peak_bytes is not None
    return item.answer.peak_bytes + outside_bytes(item.row)


def outside_bytes(row: Peak) -> int:
    """What was measured besides the allocator's memory; 0 where the context is not in the number."""
    return OUTSIDE_BYTES if row.with_context else 0


def score(items: Iterable[Scored]) -> list[SetScore]:
    """One score a set, in the order of their first rows; sets of several batches a job have a line of slopes too."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for item in items:
        groups[item.row.group].append(item)
    scores = []
    for name, members in groups.items():
        done = [item for item in members if item.answer.problem is None]
        skipped = dict(Counter(item.answer.problem for item in members if item.answer.problem is not None))
        scores.append(_score_of(name, done, skipped))
        if slopes := slope_errors(done, predicted_bytes):
            scores.append(_slopes(name, done, slopes))
    return scores


def _score_of(name: str, done: Sequence[Scored], skipped: Mapping[str, int]) -> SetScore:
    seconds = statistics.median(item.answer.seconds for item in done) if done else None
    peaks = [item for item in done if isinstance(item.row, Peak)]
    if peaks:
        errors = [abs(_error(predicted_bytes(item), item)) for item in peaks]
        return SetScore(
            name=name,
            rows=len(done),
            skipped=skipped,
            median=statistics.median(errors),
            percentile_90=percentile(errors, 0.9),
            seconds=seconds,
            others=_others(peaks),
        )
    wrong = tuple(item.row.id for item in done if not _right(item))
    return SetScore(
        name=name, rows=len(done), skipped=skipped, right=len(done) - len(wrong), wrong=wrong, seconds=seconds
    )


def _slopes(name: str, done: Sequence[Scored], errors: Sequence[float]) -> SetScore:
    others = {}
    for other in OTHERS:
        known = [item for item in done if isinstance(item.row, Peak) and other in item.row.others]
        if found := slope_errors(known, lambda item, other=other: item.row.others[other]):  # type: ignore[misc]
            others[other] = statistics.median(map(abs, found))
    absolute = [abs(error) for error in errors]
    return SetScore(
        name=f"{name} slopes",
        rows=len(errors),
        median=statistics.median(absolute),
        percentile_90=percentile(absolute, 0.9),
        others=others,
    )


def slope_errors(items: Sequence[Scored], predicted: Callable[[Scored], int]) -> list[float]:
    """The error of each job's bytes a sample; jobs of one batch have none."""
    jobs: dict[str, list[Scored]] = defaultdict(list)
    for item in items:
        if isinstance(item.row, Peak) and item.row.job is not None:
            jobs[item.row.job.key].append(item)
    errors = []
    for members in jobs.values():
        points = [(item.row.batch, predicted(item), item.row.measured_bytes) for item in members]  # type: ignore[union-attr]
        if len({batch for batch, _, _ in points}) >= 2:
            batches = [batch for batch, _, _ in points]
            ours, theirs = (statistics.linear_regression(batches, [p[n] for p in points]).slope for n in (1, 2))
            errors.append(ours / theirs - 1)
    return errors


def _others(peaks: Sequence[Scored]) -> Mapping[str, float]:
    found = {}
    for name in OTHERS:
        errors = [abs(_error(item.row.others[name], item)) for item in peaks if name in item.row.others]  # type: ignore[union-attr]
        if errors:
            found[name] = statistics.median(errors)
    return found


def _error(predicted: int, item: Scored) -> float:
    return predicted / item.row.measured_bytes - 1  # type: ignore[union-attr]


def _right(item: Scored) -> bool:
    answer = item.answer
    if isinstance(item.row, Cap):
        assert answer.least_bytes is not None
        return cap_is_right(item.row, answer.least_bytes)
    return bool(answer.fits and answer.fails)


def table(scores: Sequence[SetScore]) -> str:
    """The scores as text, one line a set, then the reasons of skipped rows."""
    head = (
        f"{'set':<34} {'rows':>5} {'skipped':>7} {'median':>8} {'90 %':>8} {'right':>14} {'s a row':>8}  others, median"
    )
    lines = [head, "-" * len(head)]
    for one in scores:
        right = (
            "" if one.right is None else f"{one.right}/{one.rows} {_percent(one.right / one.rows if one.rows else 0)}"
        )
        lines.append(
            f"{one.name:<34} {one.rows:>5} {sum(one.skipped.values()):>7} {_percent(one.median):>8} "
            f"{_percent(one.percentile_90):>8} {right:>14} {'' if one.seconds is None else f'{one.seconds:.2f}':>8}  "
            + ", ".join(f"{name} {_percent(error)}" for name, error in one.others.items())
        )
    for one in scores:
        lines.extend(f"skipped, {one.name}: {count} x {reason}" for reason, count in one.skipped.items())
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"

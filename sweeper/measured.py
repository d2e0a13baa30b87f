"""What was measured beside memory, over the sizes of a run: how fast, and whether the losses were numbers.

A loss that is NaN or infinite is of the class ``numeric`` (``trial.FailureClass``), which says nothing of memory: the
step took what any step takes.  So its trial is a fit like another, the boundary stays where it was found, and a reader
is told the first step and the value.  The infinite gradients that a gradient scaler looks for in its first steps are no
losses, and are not meant here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sweeper.curve import knee
from sweeper.trial import Fit, NotFinite

__all__ = ["Numeric", "Throughput", "first_not_finite", "losses_finite", "numeric_warnings", "throughput_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric:
    """A loss that was no number: ``value``, first seen in ``step``, which counts from 1."""

    step: int
    value: NotFinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The fastest size that was measured, and the knee: the smallest within 5 % of its samples a second."""

    knee: int
    knee_samples_per_second: float
    fastest: int
    fastest_samples_per_second: float


def throughput_of(samples_per_second: Mapping[int, float]) -> Throughput | None:
    """By size; None where no size was timed.  Of sizes that are equally fast the smallest is the fastest."""
    enough = knee(samples_per_second)
    if enough is None:
        return None
    fastest = min(samples_per_second, key=lambda size: (-samples_per_second[size], size))
    return Throughput(
        knee=enough,
        knee_samples_per_second=samples_per_second[enough],
        fastest=fastest,
        fastest_samples_per_second=samples_per_second[fastest],
    )


def losses_finite(fits: Sequence[Fit]) -> bool | None:
    """Whether every loss of ``fits`` was a finite number; None where none had a loss."""
    known = [fit.loss_finite for fit in fits if fit.loss_finite is not None]
    return all(known) if known else None


def first_not_finite(fits: Sequence[Fit]) -> Numeric | None:
    """The first loss that was no number, of the first of ``fits`` that had one."""
    cases = (
        Numeric(step=number, value=step.not_finite)
        for fit in fits
        for number, step in enumerate(fit.steps, start=1)
        if step.not_finite is not None
    )
    return next(cases, None)


def numeric_warnings(cases: Mapping[int, Numeric]) -> Iterator[str]:
    """A sentence for each different case; ``cases`` are by size."""
    sizes: dict[Numeric, list[str]] = {}
    for size, case in sorted(cases.items()):
        sizes.setdefault(case, []).append(str(size))
    for case, found in sizes.items():
        yield (
            f"numeric: the loss is not finite, {case.value} at step {case.step}, at {', '.join(found)}; "
            "memory was measured all the same"
        )

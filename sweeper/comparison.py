"""Runs that differ in a few choices, side by side: the batch at which they are compared, and what each choice does.

*The common batch* is the largest that every combination with an answer ran and fitted.  Where there is none, it is the
smallest of their answers, and ``wanted_size`` asks for one trial more of those that have not run it.

*The effect of a choice* is a ratio over pairs of combinations that differ in that choice alone, so nothing else is in
it.  Several pairs make a geometric mean, with the least and the greatest beside it.  A largest batch that is the cap is
no boundary, and a pair with one is left out.

What this does not know: whether choices that meet do more than each alone; the range beside a mean is all it says.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sweeper.record import CurvePoint, Record
from sweeper.trial import Fit

__all__ = ["SORTS", "Compared", "Effect", "Entry", "Ratio", "Sort"]

Sort = Literal["largest", "peak", "per-sample", "speed"]
SORTS: tuple[Sort, ...] = ("largest", "peak", "per-sample", "speed")

# Choices whose values say by themselves what they are.
_SPEAK_FOR_THEMSELVES = frozenset({"precision", "optimizer", "mode", "model", "device"})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One combination and its run; ``choices`` are the varied fields and the words of their values."""

    choices: Mapping[str, str]
    folder: str  # in the comparison's
    record: Record

    @property
    def label(self) -> str:
        """``amp-bf16, checkpointing on``."""
        words = (word if field in _SPEAK_FOR_THEMSELVES else f"{field} {word}" for field, word in self.choices.items())
        return ", ".join(words)

    @property
    def largest(self) -> int | None:
        """The largest size that was run and fitted."""
        return self.record.max_batch

    @property
    def boundary(self) -> int | None:
        """The same where the next size was run too and failed."""
        return self.largest if self.record.proven and self.record.first_failure is not None else None

    @property
    def per_sample_bytes(self) -> float | None:
        """The slope of the memory law."""
        return self.record.law.per_sample_bytes if self.record.law else None

    @property
    def fixed_bytes(self) -> int | None:
        """What does not grow with the size, by the memory law."""
        return self.record.law.fixed_bytes if self.record.law else None

    @property
    def samples_per_second(self) -> float | None:
        """The best of all sizes; None where nothing was timed."""
        speeds = [p.samples_per_second for p in self.record.curve if p.samples_per_second and p.outcome == "fit"]
        return max(speeds, default=None)

    @cached_property
    def loss_finite(self) -> bool | None:
        """Whether every loss that was computed in training is a number; None where none was."""
        if self.record.header.spec.mode != "train":
            return None
        fits = [outcome for _, outcome in self.record.verdicts if isinstance(outcome, Fit)]
        losses = [step.loss is not None for fit in fits for step in fit.steps if step.seconds is not None]
        return all(losses) if losses else None

    def at(self, size: int | None) -> CurvePoint | None:
        """What is known of ``size`` where it fitted."""
        return next((p for p in self.record.curve if p.size == size and p.outcome == "fit"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as much, over ``pairs`` pairs: the geometric mean, the least and the greatest."""

    mean: float
    least: float
    greatest: float
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What ``word`` instead of ``against`` does, all else alike.  None where no pair was measured.

    ``peak`` is of the reserved peaks at the common size (resident ones on the CPU), ``per_sample`` of the laws' slopes.
    """

    field: str
    word: str
    against: str
    largest: Ratio | None
    peak: Ratio | None
    per_sample: Ratio | None
    speed: Ratio | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Every combination of ``vary``, in order; its first field changes slowest."""

    vary: Mapping[str, tuple[str, ...]]
    entries: tuple[Entry, ...]

    @cached_property
    def common_size(self) -> int | None:
        """The size at which all that have an answer are compared; None where fewer than two ran one."""
        answered = self._answered
        ran = [{p.size for p in entry.record.curve if p.outcome == "fit"} for entry in answered]
        shared = set[int].intersection(*ran) if len(ran) > 1 else set()
        return max((size for size in shared if all(size <= (e.largest or 0) for e in answered)), default=None)

    @property
    def wanted_size(self) -> int | None:
        """The size to run once more where there is no common one; None where there is, or nothing to compare."""
        if self.common_size is not None or len(self._answered) < 2:
            return None
        return min(entry.largest for entry in self._answered if entry.largest is not None)

    @property
    def _answered(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.largest is not None]

    @property
    def finished(self) -> bool:
        """Nothing is left to run in any combination."""
        return all(e.record.broken is None and e.record.next_trial() is None for e in self.entries)

    @property
    def axis(self) -> str:
        return self.entries[0].record.header.settings.axis

    def by(self, sort: Sort) -> tuple[Entry, ...]:
        """The entries, best first; those without the number last, ties in the order of ``vary``."""
        keys: Mapping[Sort, Callable[[Entry], float | None]] = {
            "largest": lambda entry: -entry.largest if entry.largest is not None else None,
            "peak": lambda entry: getattr(entry.at(self.common_size), "peak_reserved_bytes", None),
            "per-sample": lambda entry: entry.per_sample_bytes,
            "speed": lambda entry: -entry.samples_per_second if entry.samples_per_second is not None else None,
        }
        found = {id(entry): keys[sort](entry) for entry in self.entries}
        return tuple(sorted(self.entries, key=lambda e: (found[id(e)] is None, found[id(e)] or 0.0)))

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """Of each value of each field against the first, in the order of ``vary``."""
        return tuple(
            self._effect(field, word, against) for field, (against, *others) in self.vary.items() for word in others
        )

    def _effect(self, field: str, word: str, against: str) -> Effect:
        pairs = list(self._pairs(field, word, against))

        def peak(entry: Entry) -> float | None:
            return getattr(entry.at(self.common_size), "peak_reserved_bytes", None)

        return Effect(
            field=field,
            word=word,
            against=against,
            largest=_ratio(pairs, lambda entry: entry.boundary),
            peak=_ratio(pairs, peak),
            per_sample=_ratio(pairs, lambda entry: entry.per_sample_bytes),
            speed=_ratio(pairs, lambda entry: entry.samples_per_second),
        )

    def _pairs(self, field: str, word: str, against: str) -> Iterator[tuple[Entry, Entry]]:
        others = {
            tuple(sorted((name, said) for name, said in entry.choices.items() if name != field)): entry
            for entry in self.entries
            if entry.choices[field] == against
        }
        for entry in self.entries:
            if entry.choices[field] == word:
                rest = tuple(sorted((name, said) for name, said in entry.choices.items() if name != field))
                yield others[rest], entry


def _ratio(pairs: Sequence[tuple[Entry, Entry]], number: Callable[[Entry], float | None]) -> Ratio | None:
    found = []
    for before, after in pairs:
        was, now = number(before), number(after)
        if was is not None and now is not None and was > 0 and now > 0:
            found.append(now / was)
    if not found:
        return None
    mean = math.exp(math.fsum(map(math.log, found)) / len(found))
    return Ratio(mean=mean, least=min(found), greatest=max(found), pairs=len(found))

"""An effective batch by gradient accumulation: which micro-batch, and how many of them make one optimizer step.

The rule.  Among what fits, the largest micro-batch that divides the effective batch, if it is at least half of the
largest that fits: 256 where 100 fits is 64 x 4.  Otherwise as few micro-batches as there can be, of one size but for a
smaller last one: 257 where 100 fits is 86 + 86 + 85.  An effective batch that fits as it is needs no accumulation.

What fits must be known of a step that accumulates: gradients are kept while the next micro-batch is computed, so its
peak is higher than that of a step of one batch, by up to the gradients' bytes.  From the second micro-batch on every
one is alike, so trials take two (``accumulating``).
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from sweeper.errors import UsageError
from sweeper.trial import TrialSpec

__all__ = ["Split", "accumulating", "split"]

_MICRO_BATCHES = 2  # in a trial's step
_LEAST_SHARE = 0.5  # of the largest micro-batch that fits: a smaller divisor wastes the card


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """``accumulate`` micro-batches of ``micro_batch`` samples, the last of them of ``last``."""

    target_batch: int
    micro_batch: int
    accumulate: int
    last: int
    was_run: bool  # whether a trial ran and fitted at this micro-batch


def split(target_batch: int, *, largest: int, fitted: Collection[int]) -> Split:
    """How ``target_batch`` is made of what fits: ``largest`` at most; ``fitted`` are the sizes that ran."""
    divisor = max(size for size in range(1, min(largest, target_batch) + 1) if target_batch % size == 0)
    micro = divisor
    if divisor < min(_LEAST_SHARE * largest, target_batch):
        micro = -(-target_batch // -(-target_batch // largest))
    times = -(-target_batch // micro)
    return Split(
        target_batch=target_batch,
        micro_batch=micro,
        accumulate=times,
        last=target_batch - micro * (times - 1),
        was_run=micro in fitted,
    )


def accumulating(spec: TrialSpec, target_batch: int | None, axis: str) -> TrialSpec:
    """``spec`` as it must be tried to keep ``target_batch``; itself where there is none.

    Raises ``UsageError`` where accumulation cannot be the question.
    """
    if target_batch is None:
        return spec
    if target_batch < 1:
        raise UsageError(f"--target-batch {target_batch} is too small", hint="give 1 or more")
    if axis != "batch":
        raise UsageError(
            f"--target-batch is about the largest batch, and the axis is {axis}", hint="leave one of them out"
        )
    if spec.mode == "inference":
        raise UsageError(
            "--target-batch is about gradients, and inference has none", hint="leave it out, or take --mode train"
        )
    if spec.accumulate != 1:
        raise UsageError(
            f"--target-batch finds the accumulation that --accumulate {spec.accumulate} fixes",
            hint="leave one of them out",
        )
    return dataclasses.replace(spec, accumulate=_MICRO_BATCHES)

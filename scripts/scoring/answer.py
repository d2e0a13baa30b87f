"""What a row's trace says to its question: the peak on its card, the least capacity, whether a batch fits.

Everything is a replay of the trace through the caching allocator, as a prediction of sweeper's is.  A measured peak is
the peak *on that card*: where memory runs short the allocator gives back its cache, and the process stays below what it
would take on a larger one.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scoring.rows import Bracket, Cap, Job, Peak, Unsupported
from scoring.step import take_trace
from sweeper.allocator import CachingAllocator
from sweeper.cards import card
from sweeper.trace import AffineTrace, NotAffine, Trace, replay
from sweeper.units import MIB

__all__ = ["OUTSIDE_BYTES", "Answer", "answers", "capacity_on", "least_capacity"]

# What a process holds and the allocator does not, where a source counts it: context, loaded kernels, cuDNN and cuBLAS.
# Fitted, because no source gives it (the nearest is 1.38 GiB on an A100-40): what mobilenet_v2, inception_v3 and vgg16
# of gmn-tv leave at batch 32, in the median.
OUTSIDE_BYTES = 1822 * MIB
# The same before CUDA 11.7 loaded kernels lazily, with a desktop's share (brackets.csv: an RTX 3090 under CUDA 11.3;
# the nearest source is 1.3 GiB on a V100).  Fitted to those rows: of nine values from 1300 to 2600 MiB the one that
# leaves the fewest wrong, 18 of the 330 near the card's capacity; 1822 MiB leaves 23.
OUTSIDE_BEFORE_LAZY_LOADING_BYTES = 2100 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``problem`` says why there is none.  ``seconds`` is processor time: the row's share of its job."""

    id: str
    digest: str
    group: str
    seconds: float = 0.0
    problem: str | None = None
    peak_bytes: int | None = None  # reserved, on the row's card, without context
    allocated_bytes: int | None = None
    least_bytes: int | None = None
    fits: bool | None = None  # the batch that ran
    fails: bool | None = None  # the batch that did not
    peaks_bytes: tuple[int, ...] = ()  # reserved without an end, by batch, for brackets


def answers(job: Job, rows: Sequence[Peak | Cap | Bracket]) -> Iterator[Answer]:
    """The answers to all rows of one job; a failure is the answer to each."""
    began = time.process_time()
    problem = None
    try:
        traces = _traces(job, sorted({batch for row in rows for batch in _batches(row)}))
    except Unsupported as reason:
        problem = str(reason)
    except Exception as error:  # whatever a model raises on meta tensors is the row's reason
        problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error).strip() else ''}"
    shared = (time.process_time() - began) / len(rows)
    for row in rows:
        began = time.process_time()
        found = {} if problem else _answer(row, job, traces)
        seconds = shared + time.process_time() - began
        yield Answer(id=row.id, digest=row.digest, group=row.group, seconds=seconds, problem=problem, **found)  # type: ignore[arg-type]


def _batches(row: Peak | Cap | Bracket) -> tuple[int, ...]:
    return (row.batch_fits, row.batch_fails) if isinstance(row, Bracket) else (row.batch,)


def _traces(job: Job, batches: Sequence[int]) -> Mapping[int, Trace]:
    """A trace at every batch: three traces at most where the step is affine in the batch."""
    if len(batches) <= 2:
        return {batch: take_trace(job, batch) for batch in batches}
    low, high = batches[0], batches[-1]
    taken = {batch: take_trace(job, batch) for batch in (low, high)}
    try:
        law = AffineTrace.join(taken[low], taken[high], take_trace(job, batches[1]))
    except NotAffine:
        return {batch: take_trace(job, batch) for batch in batches}
    return {batch: law.at(batch) for batch in batches}


def _answer(row: Peak | Cap | Bracket, job: Job, traces: Mapping[int, Trace]) -> Mapping[str, object]:
    match row:
        case Peak():
            # What does not fit by our account still ran: then the uncapped peak is the answer.
            on_card = replay(traces[row.batch], CachingAllocator(capacity_bytes=capacity_on(job.card)))
            found = on_card if on_card.fits else replay(traces[row.batch], CachingAllocator())
            return {"peak_bytes": found.peak_reserved_bytes, "allocated_bytes": found.peak_allocated_bytes}
        case Cap():
            return {"least_bytes": least_capacity(traces[row.batch])}
        case Bracket():
            capacity = row.capacity_bytes - OUTSIDE_BEFORE_LAZY_LOADING_BYTES
            fit, fail = (
                replay(traces[batch], CachingAllocator(capacity_bytes=capacity)).fits
                for batch in (row.batch_fits, row.batch_fails)
            )
            peaks = (replay(traces[batch], CachingAllocator()).peak_reserved_bytes for batch in _batches(row))
            return {"fits": fit, "fails": not fail, "peaks_bytes": tuple(peaks)}


def capacity_on(name: str) -> int:
    """Bytes that a process can take on the catalogue's card."""
    found = card(name)
    return found.total_bytes - found.context_bytes


def least_capacity(trace: Trace) -> int:
    """The least capacity that ``trace`` fits in, in bytes, to 2 MiB, by bisection below its uncapped peak."""
    step = 2 * MIB
    fails, fits = 0, -(-replay(trace, CachingAllocator()).peak_reserved_bytes // step)
    while fits - fails > 1:
        middle = (fails + fits) // 2
        if replay(trace, CachingAllocator(capacity_bytes=middle * step)).fits:
            fits = middle
        else:
            fails = middle
    return fits * step

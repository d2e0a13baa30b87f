"""Which traces are taken for a law along another axis than the batch, and what stands in where there is none.

A law is drawn through sizes at both ends of those asked about and in the middle, and held against others between, at
a batch that is none of the first: so it is never stretched beyond what was traced, and a kernel that changes on
the way is noticed by one of them.  Tracing costs the same at any size, since nothing is computed.

Kernels pad lengths, so a law holds on sizes that leave the same remainder by ``LAW_STEP``, and there is one for each
remainder.  Where there are too few sizes of one remainder, or their traces are on no polynomial, each size has an
affine law over the batch of its own; where that does not hold either, each batch is traced by itself.

A batch of 1 is traced for itself.  Its transposed tensors count as contiguous, which spares copies that every larger
batch makes, so it is on no line with the others; and where sequences are long it is the batch that matters.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from sweeper.axes import at_size, words
from sweeper.errors import Untraceable
from sweeper.polynomial import NotPolynomial, PolynomialTrace, QuadraticTrace
from sweeper.predicting import EachSize, StepTracer, job_traces
from sweeper.trace import AffineTrace, NoLaw, Trace
from sweeper.trial import TrialSpec

__all__ = ["LAW_STEP", "BatchLaw", "LawsBySize", "law_sizes", "traces_along"]

# What the sizes of one law differ by.  Tokens: the backward of flash attention rounds lengths up to 128
# (seqlen_q_rounded, mha_bwd, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp), that of efficient
# attention works in blocks of 64 or 128 queries and keys (kBlockSizeI, kernel_backward.h, mem_eff_attention beside it);
# torch 2.14.  Pixels: the usual networks halve an image five times.
LAW_STEP = {"seq-len": 128, "image-size": 32}

# As for the law over the batch: small, and held against one that is odd.  Not far from both here: at 61 sequences of
# thousands of tokens, logits have more elements than kernels can count in 32 bits.
_LAW_BATCHES = (4, 8)
_CHECK_BATCH = 13


def law_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Five of ascending ``sizes``: both ends and the middle, then two between them.  Empty where there are not five."""
    if len(sizes) < 5:
        return ()
    last = len(sizes) - 1
    return tuple(sizes[place] for place in (0, last // 2, last, last // 4, (3 * last + 3) // 4))


def traces_along(
    tracer: StepTracer, spec: TrialSpec, kernels: str, axis: str, sizes: range
) -> QuadraticTrace | EachSize:
    """The law of ``spec``'s step at its batch over ``sizes`` of ``axis``; where there is none, its traces one by one.

    There is none along a model's argument: a deeper model has more events.  Raises what ``StepTracer.traces`` raises.
    """
    chosen = law_sizes(sizes) if sizes.step % LAW_STEP.get(axis, sizes.step + 1) == 0 else ()
    if not chosen:
        return EachSize(tracer, spec, kernels, taken={}, why=None, axis=axis)
    taken = dict(zip(chosen, tracer.traces(spec, kernels, chosen, axis=axis), strict=True))
    try:
        return QuadraticTrace.join(taken)
    except NotPolynomial as why:
        return EachSize(tracer, spec, kernels, taken=taken, why=why, axis=axis)


class BatchLaw:
    """The traces of one job at one size: ``law`` over the batch, and a batch of 1 as ``first`` traces it."""

    def __init__(self, law: AffineTrace, first: Callable[[], Trace]) -> None:
        self._law, self._first = law, first
        self._found: Trace | None = None

    def at(self, batch_size: int) -> Trace:
        """Raises ``ValueError`` where the law asks for less than nothing."""
        if batch_size != 1:
            return self._law.at(batch_size)
        if self._found is None:
            self._found = self._first()
        return self._found


class LawsBySize:
    """The traces of one job over the batch, at each of ``sizes`` along ``axis``; each law is found when first needed.

    ``notes`` are sentences about what has no law, as far as that was found out.
    """

    def __init__(self, tracer: StepTracer, spec: TrialSpec, kernels: str, axis: str, sizes: Sequence[int]) -> None:
        self._tracer, self._spec, self._kernels, self._axis = tracer, spec, kernels, axis
        self._classes: dict[int, list[int]] = defaultdict(list)
        for size in sorted(sizes):
            self._classes[self._remainder(size)].append(size)
        self._laws: dict[int, PolynomialTrace | None] = {}
        self._firsts: dict[int, QuadraticTrace | EachSize] = {}
        self._reasons: dict[str, NoLaw | str] = {}

    def at(self, size: int) -> BatchLaw | EachSize:
        """Raises what ``StepTracer.traces`` raises, ``Untraceable`` among it."""
        remainder = self._remainder(size)
        if remainder not in self._laws:
            self._laws[remainder] = self._joint(self._classes[remainder])
        law = self._laws[remainder]
        found = law.at(size) if law is not None else self._alone(size)
        return found if isinstance(found, EachSize) else BatchLaw(found, lambda: self._of_one(size, found))

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"{sentence} ({why})" for sentence, why in self._reasons.items())

    def _alone(self, size: int) -> AffineTrace | EachSize:
        found = job_traces(self._tracer, at_size(self._spec, self._axis, size), self._kernels)
        if isinstance(found, EachSize) and found.why is not None:
            self._reasons.setdefault("memory is not affine in the batch, so each batch was traced by itself", found.why)
        return found

    def _of_one(self, size: int, law: AffineTrace) -> Trace:
        """The trace of batch 1; what ``law`` says of it where it does not run, as after pooling under batch norm."""
        remainder = self._remainder(size)
        try:
            if remainder not in self._firsts:
                sizes = self._classes[remainder]
                members = range(sizes[0], sizes[-1] + 1, sizes[1] - sizes[0] if len(sizes) > 1 else 1)
                spec = at_size(self._spec, "batch", 1)
                self._firsts[remainder] = traces_along(self._tracer, spec, self._kernels, self._axis, members)
            return self._firsts[remainder].at(size)
        except Untraceable as problem:
            self._reasons.setdefault("batch 1 does not run, and is taken to be as the others are", problem.message)
            return law.at(1)

    def _remainder(self, size: int) -> int:
        return size % LAW_STEP.get(self._axis, 1)

    def _joint(self, sizes: Sequence[int]) -> PolynomialTrace | None:
        """The law of one remainder.  It is asked for every size here, so that none is found wanting later."""
        chosen = law_sizes(sizes)
        if not chosen:
            return None
        nodes, others = chosen[:3], chosen[3:]
        rows = [self._take(batch, *nodes) for batch in _LAW_BATCHES]
        try:
            law = PolynomialTrace.join({size: column for size, *column in zip(nodes, *rows, strict=True)})
            for size, trace in zip(others, self._take(_CHECK_BATCH, *others), strict=True):
                law.check(size, trace)
            for size in sizes:
                law.at(size)
        except NoLaw as why:
            noun = words(self._axis).size
            self._reasons[f"memory is no polynomial of the {noun}, so each {noun} was traced by itself"] = why
            return None
        return law

    def _take(self, batch: int, *sizes: int) -> tuple[Trace, ...]:
        spec = at_size(self._spec, "batch", batch)
        return self._tracer.traces(spec, self._kernels, sizes, axis=self._axis)

"""Laws over more than the batch: what a step asks for along another axis, exactly, from traces at three sizes.

Theory of operation.  Along the length of a sequence, or the side of an image, a tensor grows with the first or the
second power of the size: activations and logits with the length, attention's scores and an image's maps with the
square.  So at a fixed batch every allocation is a polynomial of degree at most 2 in the size; jointly with the batch

    a + b*batch + c*size + d*batch*size + e*size**2 + f*batch*size**2

A polynomial of degree 2 is known from three sizes.  ``QuadraticTrace`` holds the traces at three of them,
``PolynomialTrace`` the affine laws over the batch; what either says of another size is Lagrange's interpolation, in
whole numbers: coefficients may be fractions, bytes may not.  As with ``AffineTrace`` any three points lie on some such
curve, so only traces at further sizes make a law of it: ``check`` holds it against one.

Where a kernel pads the length, to 128 in flash attention's backward, to 32 or 64 in others, the polynomial holds on
sizes that leave the same remainder, and which sizes those are is for the caller to choose (``laws``).

What this does not know: a kernel that is chosen by the size, between sizes that were traced.  There the events differ,
and a trace on the other side of the change is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from sweeper.trace import AffineTrace, NoLaw, Trace, difference, place

__all__ = ["NotPolynomial", "PolynomialTrace", "QuadraticTrace"]

_NODES = 3  # a polynomial of degree 2


class NotPolynomial(NoLaw):
    """Traces along an axis that do not differ by bytes alone, or whose bytes are on no polynomial of degree 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticTrace:
    """Every trace of one job at one batch: at size ``s`` of the axis an allocation asks for ``a + b*s + c*s**2``."""

    sizes: tuple[int, ...]
    traces: tuple[Trace, ...]

    @classmethod
    def join(cls, traces: Mapping[int, Trace]) -> "QuadraticTrace":
        """Return the law through the first three of ``traces``, by size, held against the rest.

        Raises ``NotPolynomial`` with the first event that differs; ``ValueError`` where there are fewer than three.
        """
        law = cls(sizes=_nodes(traces), traces=tuple(traces.values())[:_NODES])
        for size, trace in zip(law.sizes, law.traces, strict=True):
            _same_events(law.traces[0], trace, (f"size {law.sizes[0]}", f"size {size}"))
        for size, trace in traces.items():
            law.check(size, trace)
        return law

    def at(self, size: int) -> Trace:
        """Return the trace at ``size``.  Raises ``NotPolynomial`` where the law says no whole bytes, or less than 0."""
        first = self.traces[0]
        found = _through(self.sizes, [trace.sizes for trace in self.traces], size)
        for allocation, asked in enumerate(found):
            if asked is None or asked < 0:
                raise _off(first, allocation, f"the law says no bytes at size {size}")
        return replace(first, sizes=tuple(asked for asked in found if asked is not None))

    def check(self, size: int, trace: Trace) -> None:
        """Raise ``NotPolynomial`` unless this law gives ``trace``, event by event and to the byte."""
        if trace.batch_size != self.traces[0].batch_size:
            raise ValueError(f"a law of batch {self.traces[0].batch_size} says nothing of batch {trace.batch_size}")
        _same_events(self.traces[0], trace, (f"size {self.sizes[0]}", f"size {size}"))
        _same_bytes(self.at(size), trace, f"size {size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolynomialTrace:
    """Every trace of one job over the batch and another size: at each size an affine law over the batch."""

    sizes: tuple[int, ...]
    laws: tuple[AffineTrace, ...]

    @classmethod
    def join(cls, traces: Mapping[int, Sequence[Trace]]) -> "PolynomialTrace":
        """Return the law through the first three of ``traces``, which have two batches or more at each size.

        Raises ``NotPolynomial`` with the first event that differs between sizes, ``NotAffine`` where the batches of
        one size are on no line, ``ValueError`` where there are fewer than three sizes.
        """
        sizes = _nodes(traces)
        shown = traces[sizes[0]][0]
        for size in sizes[1:]:
            first = traces[size][0]
            _same_events(shown, first, (_name(sizes[0], shown), _name(size, first)))
        return cls(sizes=sizes, laws=tuple(AffineTrace.join(*traces[size]) for size in sizes))

    def at(self, size: int) -> AffineTrace:
        """Return the law over the batch at ``size``.  Raises ``NotPolynomial`` where it is none of whole bytes."""
        rows = [
            _through(self.sizes, [getattr(law, name) for law in self.laws], size) for name in ("fixed", "per_sample")
        ]
        for allocation, found in enumerate(zip(*rows, strict=True)):
            if None in found:
                event = self.laws[0].events.index(allocation)
                raise NotPolynomial(f"event {event}: the law says no whole bytes at size {size}", event=event)
        fixed, per_sample = (tuple(asked for asked in row if asked is not None) for row in rows)
        return replace(self.laws[0], fixed=fixed, per_sample=per_sample)

    def check(self, size: int, trace: Trace) -> None:
        """Raise ``NotPolynomial`` unless this law gives ``trace``, event by event and to the byte."""
        try:
            said = self.at(size).at(trace.batch_size)
        except NotPolynomial:
            raise
        except ValueError as nothing:  # bytes below zero
            raise NotPolynomial(f"{nothing}, size {size}", event=0) from None
        _same_events(said, trace, ("the law", _name(size, trace)))
        _same_bytes(said, trace, _name(size, trace))


def _nodes(traces: Mapping[int, object]) -> tuple[int, ...]:
    if len(traces) < _NODES:
        raise ValueError(f"{len(traces)} sizes; a polynomial of degree 2 needs {_NODES}")
    return tuple(traces)[:_NODES]


def _through(nodes: Sequence[int], rows: Sequence[Sequence[int]], size: int) -> list[int | None]:
    """The polynomial through ``rows`` at ``nodes``, each taken at ``size``; None where that is no whole number.

    Lagrange's weights depend on the sizes alone, so one set of them serves all allocations.
    """
    above, below = [], []
    for node in nodes:
        over, under = 1, 1
        for other in nodes:
            if other != node:
                over *= size - other
                under *= node - other
        above.append(over)
        below.append(under)
    common = lcm(*below)
    weights = [over * (common // under) for over, under in zip(above, below, strict=True)]
    sums = (
        sum(weight * asked for weight, asked in zip(weights, column, strict=True)) for column in zip(*rows, strict=True)
    )
    return [None if total % common else total // common for total in sums]


def _name(size: int, trace: Trace) -> str:
    return f"batch {trace.batch_size}, size {size}"


def _same_events(first: Trace, second: Trace, names: tuple[str, str]) -> None:
    if (found := difference(first, second, names)) is not None:
        raise NotPolynomial(found[1], event=found[0])


def _same_bytes(said: Trace, found: Trace, name: str) -> None:
    for allocation, (expected, asked) in enumerate(zip(said.sizes, found.sizes, strict=True)):
        if expected != asked:
            raise _off(found, allocation, f"the law says {expected} bytes, the trace at {name} {asked}")


def _off(trace: Trace, allocation: int, why: str) -> NotPolynomial:
    index, who = place(trace, allocation)
    return NotPolynomial(f"{who}: {why}", event=index)

"""Laws along another axis: any polynomial of degree 2 is found and held to the byte, nothing else passes for one."""

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sweeper.polynomial import NotPolynomial, PolynomialTrace, QuadraticTrace
from sweeper.trace import NoLaw, NotAffine, Trace
from sweeper.units import MIB
from tests.traces import LABELS, a_trace, traces

Job = Callable[[int, int], Trace]  # of a batch and a size

four_sizes = st.lists(st.integers(1, 5000), min_size=4, max_size=4, unique=True)
three_batches = st.lists(st.integers(1, 100), min_size=3, max_size=3, unique=True)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Job, int]:
    """A job whose allocations are (a + b*B + c*S + d*B*S + e*S*S + f*B*S*S) of whole numbers, and how many there are.

    Every third is of S*(S+1)/2 in place of S*S, which is whole bytes of half coefficients.
    """
    shape = draw(traces())
    factors = [[draw(st.integers(0, 10**6)) for _ in range(6)] for _ in shape.sizes]

    def at(batch: int, size: int) -> Trace:
        sizes = []
        for number, (a, b, c, d, e, f) in enumerate(factors):
            square = size * size if number % 3 else size * (size + 1) // 2
            sizes.append(a + b * batch + (c + d * batch) * size + (e + f * batch) * square)
        return dataclasses.replace(shape, batch_size=batch, sizes=tuple(sizes))

    return at, len(factors)


@given(jobs(), four_sizes, three_batches)
def test_three_sizes_and_two_batches_give_the_trace_at_every_other(
    drawn: tuple[Job, int], sizes: list[int], batches: list[int]
) -> None:
    job, _ = drawn
    *nodes, other = sizes
    law = PolynomialTrace.join({size: [job(batch, size) for batch in batches[:2]] for size in nodes})
    for size in sizes:
        for batch in batches:
            law.check(size, job(batch, size))
            assert law.at(size).at(batch) == job(batch, size)
    assert law.at(other) == PolynomialTrace.join({s: [job(b, s) for b in batches] for s in reversed(sizes)}).at(other)


@given(jobs(), four_sizes, st.integers(1, 100))
def test_three_sizes_give_the_trace_at_every_other_of_one_batch(
    drawn: tuple[Job, int], sizes: list[int], batch: int
) -> None:
    job, _ = drawn
    law = QuadraticTrace.join({size: job(batch, size) for size in sizes})
    assert law == QuadraticTrace.join({size: job(batch, size) for size in sizes[:3]})
    assert [law.at(size) for size in sizes] == [job(batch, size) for size in sizes]


@given(jobs(), four_sizes, three_batches, st.data())
def test_one_allocation_that_is_off_in_one_trace_is_named(
    drawn: tuple[Job, int], sizes: list[int], batches: list[int], data: st.DataObject
) -> None:
    job, allocations = drawn
    assume(allocations > 0)
    place = data.draw(st.integers(0, allocations - 1))
    by = data.draw(st.integers(1, 2**20) | st.integers(-50, -1))
    other, batch = sizes[3], batches[2]

    def off(trace: Trace) -> Trace:
        found = list(trace.sizes)
        found[place] += by
        return dataclasses.replace(trace, sizes=tuple(found))

    event = job(1, 1).events.index(place)
    law = PolynomialTrace.join({size: [job(b, size) for b in batches[:2]] for size in sizes[:3]})
    with pytest.raises(NotPolynomial) as caught:
        law.check(other, off(job(batch, other)))
    assert caught.value.event == event
    # And where the one that is off is among those the law is drawn through, the others are off the law.
    wrong = data.draw(st.integers(0, 2))
    taken = {size: job(batch, size) for size in sizes}
    taken[sizes[wrong]] = off(taken[sizes[wrong]])
    with pytest.raises(NotPolynomial) as caught:
        QuadraticTrace.join(taken)
    assert caught.value.event == event


def cubic(batch: int, size: int) -> Trace:
    return a_trace(batch, hidden=size**3)


def padded(batch: int, size: int) -> Trace:
    return a_trace(batch, hidden=MIB * (-(-size // 128) * 128))


def test_what_grows_with_the_cube_is_no_law() -> None:
    with pytest.raises(NotPolynomial, match=r"event 2.*addmm"):
        QuadraticTrace.join({size: cubic(4, size) for size in (1, 2, 3, 5)})
    law = PolynomialTrace.join({size: [cubic(4, size), cubic(8, size)] for size in (1, 2, 3)})
    with pytest.raises(NotPolynomial, match=r"event 2.*the trace at batch 13, size 5"):
        law.check(5, cubic(13, 5))


@pytest.mark.parametrize("remainder", [0, 1, 32, 127])
def test_a_padded_length_is_a_law_on_sizes_of_one_remainder(remainder: int) -> None:
    sizes = range(128 + remainder, 2000, 128)
    law = PolynomialTrace.join({size: [padded(4, size), padded(8, size)] for size in sizes[:3]})
    for size in sizes:
        law.check(size, padded(61, size))
    with pytest.raises(NotPolynomial):
        law.check(sizes[3] + 1 if remainder != 127 else sizes[3] - 1, padded(61, sizes[3] + 1))


@pytest.mark.parametrize(
    ("change", "event"),
    [
        ({"events": (0, 1, 2, ~1, ~2)}, 3),
        ({"events": (0, 1, 2, ~2)}, 4),
        ({"labels_of": (0, 1, 1)}, 2),
        ({"empties": (3,)}, 3),
    ],
)
def test_another_order_at_another_size_is_named_wherever_it_is(change: dict[str, tuple[int, ...]], event: int) -> None:
    def taken(other: int) -> dict[int, Trace]:
        return {
            size: dataclasses.replace(a_trace(4), **change) if size == other else a_trace(4)  # type: ignore[arg-type]
            for size in (128, 256, 512, 384)
        }

    for other in (256, 512, 384):
        with pytest.raises(NotPolynomial) as caught:
            QuadraticTrace.join(taken(other))
        assert caught.value.event == event
        assert f"size {other}" in str(caught.value)
        law = PolynomialTrace.join({size: (a_trace(4), a_trace(8)) for size in (64, 640, 1024)})
        with pytest.raises(NotPolynomial) as caught:
            law.check(other, taken(other)[other])
        assert caught.value.event == event


@pytest.mark.parametrize("other", [256, 512])
def test_sizes_whose_batches_agree_but_not_with_each_other_are_no_law(other: int) -> None:
    def pair(size: int) -> list[Trace]:
        empties = (2,) if size == other else ()
        return [dataclasses.replace(a_trace(batch), empties=empties) for batch in (4, 8)]

    with pytest.raises(NotPolynomial, match=f"batch 4, size {other}.*event 2"):
        PolynomialTrace.join({size: pair(size) for size in (128, 256, 512)})


def test_batches_of_one_size_on_no_line_are_not_affine() -> None:
    odd = dataclasses.replace(a_trace(6), sizes=(5 * MIB, 6001, 6 * 3 * MIB))
    with pytest.raises(NotAffine):
        PolynomialTrace.join({size: [a_trace(4), odd] for size in (1, 2, 3)})
    assert issubclass(NotAffine, NoLaw)


def test_bytes_that_are_no_whole_number_or_below_zero_are_no_law() -> None:
    fall = {size: a_trace(4, hidden=10 - size) for size in (1, 3, 5)}
    assert QuadraticTrace.join(fall).at(10).sizes[2] == 0
    with pytest.raises(NotPolynomial, match=r"event 2.*no bytes at size 11"):
        QuadraticTrace.join(fall).at(11)
    # Through 1, 1 and 2 bytes at 1, 3 and 6: a fifteenth of a byte is missing between the first two.
    bent = {size: a_trace(4, hidden=0, weights=weights) for size, weights in ((1, 1), (3, 1), (6, 2))}
    with pytest.raises(NotPolynomial, match="event 0"):
        QuadraticTrace.join(bent).at(2)
    pairs = {size: (trace, dataclasses.replace(trace, batch_size=8, sizes=(trace.sizes[0], 8000, 0)))
             for size, trace in bent.items()}  # fmt: skip
    with pytest.raises(NotPolynomial, match="event 0"):
        PolynomialTrace.join(pairs).at(2)
    lower = {size: [a_trace(b, hidden=10 - size) for b in (4, 8)] for size in (1, 3, 5)}
    with pytest.raises(NotPolynomial, match="batch 4, size 11"):
        PolynomialTrace.join(lower).check(11, a_trace(4, hidden=0))


def test_fewer_than_three_sizes_are_no_law_and_another_batch_is_another_job() -> None:
    with pytest.raises(ValueError, match="2 sizes"):
        QuadraticTrace.join({1: a_trace(4), 2: a_trace(4)})
    with pytest.raises(ValueError, match="2 sizes"):
        PolynomialTrace.join({1: [a_trace(4), a_trace(8)], 2: [a_trace(4), a_trace(8)]})
    with pytest.raises(ValueError, match="batch 4 says nothing of batch 8"):
        QuadraticTrace.join({1: a_trace(4), 2: a_trace(4), 3: a_trace(8)})


def test_a_law_without_allocations_is_one() -> None:
    empty = Trace(batch_size=4, events=(), sizes=(), labels=LABELS, labels_of=())
    assert QuadraticTrace.join(dict.fromkeys((1, 2, 3), empty)).at(9) == empty

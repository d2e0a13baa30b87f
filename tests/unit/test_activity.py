"""The card's readings: taken at both ends and between, by a thread that ends; told as means and maxima."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")  # the sampler is the worker's

from sweeper.worker.activity import Reading, Sampler, summary

ENDLESS_S = 3600.0
numbers = st.none() | st.floats(0, 1e6)
readings = st.lists(
    st.builds(Reading, utilization_percent=numbers, power_w=numbers, clock_mhz=numbers, temperature_c=numbers)
)


def counted() -> Iterator[Reading]:
    number = 0.0
    while True:
        number += 1
        yield Reading(power_w=number)


def test_both_ends_are_read_even_where_the_period_never_passes() -> None:
    source = counted()
    with Sampler(lambda: next(source), period_s=ENDLESS_S) as sampler:
        assert [r.power_w for r in sampler.readings] == [1.0]
    assert [r.power_w for r in sampler.readings] == [1.0, 2.0]


def test_the_thread_reads_between_the_ends_in_order_and_is_gone_afterwards() -> None:
    source, enough = counted(), threading.Event()

    def read() -> Reading:
        reading = next(source)
        if reading.power_w == 5:
            enough.set()
        return reading

    with Sampler(read, period_s=0.0) as sampler:
        assert enough.wait(60)
    powers = [r.power_w for r in sampler.readings]
    assert powers == [float(n) for n in range(1, len(powers) + 1)]
    assert len(powers) >= 6
    assert not [t for t in threading.enumerate() if t.name == "card activity"]


def test_an_error_inside_ends_the_thread_and_comes_through() -> None:
    source = counted()
    with pytest.raises(MemoryError), Sampler(lambda: next(source), period_s=ENDLESS_S):
        raise MemoryError
    assert not [t for t in threading.enumerate() if t.name == "card activity"]


def test_where_there_is_nobody_to_ask_nobody_is_asked_again() -> None:
    asked = []
    with Sampler(lambda: asked.append(1), period_s=0.0) as sampler:
        assert not [t for t in threading.enumerate() if t.name == "card activity"]
    assert len(asked) == 1
    assert summary(sampler.readings) is None


@given(readings)
def test_a_mean_lies_between_what_was_read_and_the_maximum_was_read(found: list[Reading]) -> None:
    told = summary(found)
    powers = [r.power_w for r in found if r.power_w is not None]
    if told is None:
        assert not powers
        return
    assert told.samples == len(found)
    assert (told.power_mean_w is None) == (told.power_max_w is None) == (not powers)
    if told.power_mean_w is not None:
        assert min(powers) <= told.power_mean_w * (1 + 1e-9)
        assert told.power_mean_w <= max(powers) * (1 + 1e-9)
        assert told.power_max_w == max(powers)
    temperatures = [r.temperature_c for r in found if r.temperature_c is not None]
    assert told.temperature_max_c == max(temperatures, default=None)


def test_nothing_told_is_nothing() -> None:
    assert summary([]) is None
    assert summary([Reading(), Reading()]) is None

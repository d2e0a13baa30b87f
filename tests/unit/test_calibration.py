"""What a calibration changes: the same sentences in both directions, and nothing where nothing was measured."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.calibration import allocator_bytes, apply, offset_bytes, reserved_bytes, sentence, shared_offset
from sweeper.cards import card, cards
from sweeper.units import MIB
from tests.builders import a_calibration, a_calibration_job

differences = st.lists(st.integers(-(1 << 30), 1 << 30), min_size=1, max_size=6)


@given(differences)
def test_the_offset_is_a_part_of_every_difference(found: list[int]) -> None:
    offset = shared_offset(found)
    for difference in found:
        # Taken off, no job is further from its simulation than it was, nor on the other side of it.
        assert offset * difference >= 0
        assert abs(difference - offset) <= abs(difference)
    if offset:
        assert offset in found
    else:
        assert min(found) <= 0 <= max(found)


def test_without_jobs_there_is_no_offset() -> None:
    assert shared_offset([]) == 0
    assert a_calibration(jobs=()).outside_bytes == a_calibration().context_bytes


@given(st.integers(-64 * MIB, 64 * MIB), st.integers(1, 1 << 33), st.integers(1, 1 << 33))
def test_what_fits_in_the_simulation_is_shown_within_the_capacity(offset: int, capacity: int, reserved: int) -> None:
    one = apply(a_calibration(offset), card("rtx4060"))
    assert offset_bytes(one) == offset
    if reserved <= allocator_bytes(one, capacity):
        assert reserved_bytes(one, reserved) <= capacity
    elif offset <= capacity:
        assert reserved_bytes(one, reserved) > capacity


@given(st.integers(-64 * MIB, 64 * MIB), st.integers(0, 1 << 30))
def test_what_is_reserved_is_no_less_than_what_is_allocated(offset: int, simulated: int) -> None:
    one = apply(a_calibration(offset), card("rtx4060"))
    assert reserved_bytes(one, simulated, at_least=simulated) >= simulated
    assert reserved_bytes(one, 0) == 0


@pytest.mark.parametrize("name", cards())
def test_a_card_of_the_catalogue_has_no_offset_and_nothing_to_say(name: str) -> None:
    one = card(name)
    assert (offset_bytes(one), sentence(one)) == (0, None)
    assert allocator_bytes(one, one.capacity_bytes) == one.capacity_bytes
    assert reserved_bytes(one, 5 * MIB) == 5 * MIB


def test_what_was_measured_takes_the_place_of_what_was_known() -> None:
    kept = a_calibration(2 * MIB, 6 * MIB, total_bytes=8_000_000_000, compute_capability="8.7")
    known = card("rtx4060")
    one = apply(kept, known)
    assert one.capacity_bytes == 8_000_000_000 - 312 * MIB
    assert one.compute_capability == "8.7"
    assert offset_bytes(one) == 2 * MIB
    assert one.calibrated is not None
    assert one.calibrated.loaded_bytes == 32 * MIB
    assert "2026-11-30" in one.total_source
    assert "2026-11-30" in one.context_source
    unchanged = {"name", "label", "architecture", "memory_bandwidth_bytes_per_s", "multiprocessors", "vendor"}
    for field in dataclasses.fields(one):
        assert (getattr(one, field.name) == getattr(known, field.name)) == (field.name in unchanged), field.name


def test_the_most_that_lay_outside_counts() -> None:
    jobs = tuple(a_calibration_job(outside_bytes=size * MIB) for size in (300, 340, 320))
    assert a_calibration(jobs=jobs).outside_bytes == 340 * MIB


def test_a_card_that_the_catalogue_lacks_is_made_of_its_calibration() -> None:
    one = apply(a_calibration(label="Rig card", total_bytes=8 << 30), None)
    assert (one.name, one.label, one.total_bytes) == ("rig-card-8gb", "Rig card", 8 << 30)
    assert one.context_bytes == 312 * MIB


@pytest.mark.parametrize(
    ("offset", "more"),
    [
        (0, ""),
        (2 * MIB, ", 2.00 MiB more reserved than predicted"),
        (-4 * MIB, ", 4.00 MiB less reserved than predicted"),
    ],
)
def test_it_is_named_with_its_date_and_version(offset: int, more: str) -> None:
    text = sentence(apply(a_calibration(offset), card("rtx4060")))
    assert text == f"calibrated on 2026-11-30, torch 2.14.1+cu130: 312.00 MiB outside the allocator{more}"

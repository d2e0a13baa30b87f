"""Sizes as people write them and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import UsageError
from sweeper.units import GIB, KIB, MIB, format_bytes, format_mib, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1073741824", GIB),
        ("8GiB", 8 * GIB),
        ("8 gib", 8 * GIB),
        ("8G", 8 * GIB),
        ("16GB", 16 * 10**9),
        ("1.5GiB", 3 * GIB // 2),
        ("512MiB", 512 * MIB),
        ("300m", 300 * MIB),
        ("64KB", 64_000),
        ("64K", 64 * KIB),
        ("2TiB", 2048 * GIB),
        ("5 B", 5),
    ],
)
def test_a_size_is_read_as_its_unit_says(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "0.0001B", "8GiBs", "8 GiB of it", "1e9", "8;", "8GiB x"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_bytes(text)
    assert "8GiB" in refused.value.hint


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536 * KIB, "1.50 MiB"),
        (GIB - 1, "1.00 GiB"),
        (8_318_222_336, "7.75 GiB"),
        (-2 * MIB, "-2.00 MiB"),
        (3 << 40, "3.00 TiB"),
    ],
)
def test_a_size_is_written_in_the_unit_a_person_would_choose(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(min_value=1, max_value=1 << 49))
def test_what_is_written_reads_back_to_within_its_last_digit(size: int) -> None:
    back = parse_bytes(format_bytes(size))
    assert abs(back - size) <= 0.005 * max(size, 1) + 1
    assert "1024." not in format_bytes(size)


def test_table_cells_are_whole_mib() -> None:
    assert format_mib(6268 * MIB + 1) == "6,268"

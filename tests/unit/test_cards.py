"""The catalogue: every row is plausible and sourced, and what a person types finds the card that is meant."""

import pytest

from sweeper.cards import Card, card, cards, find, name_for
from sweeper.errors import UnknownName, UsageError
from sweeper.units import GIB, MIB

# GB on the box, by the vendors' datasheets.
NOMINAL_GB = {
    "gtx1080ti": 11, "p100-16gb": 16, "v100-16gb": 16, "v100-32gb": 32, "gtx1650": 4, "rtx2060": 6, "rtx2080ti": 11,
    "titan-rtx": 24, "t4": 16, "a100-40gb": 40, "a100-pcie-40gb": 40, "a100-80gb": 80, "a30": 24, "a10": 24, "a40": 48,
    "rtxa4000": 16, "rtxa5000": 24, "rtxa6000": 48, "rtx3050-laptop": 4, "rtx3060": 12, "rtx3060ti": 8, "rtx3070": 8,
    "rtx3070ti": 8, "rtx3080-10gb": 10, "rtx3080-12gb": 12, "rtx3080ti": 12, "rtx3090": 24, "l4": 24, "l40s": 48,
    "rtx6000ada": 48, "rtx4060": 8, "rtx4060-laptop": 8, "rtx4060ti-8gb": 8, "rtx4060ti-16gb": 16, "rtx4070": 12,
    "rtx4070ti": 12, "rtx4080": 16, "rtx4080super": 16, "rtx4090": 24, "h100": 80, "h100-nvl": 94, "h200": 141,
    "b200": 180, "rtx5060ti-8gb": 8, "rtx5060ti-16gb": 16, "rtx5070": 12, "rtx5070ti": 16, "rtx5080": 16,
    "rtx5090": 32, "rtxpro6000": 96, "rx7900xtx": 24, "mi250x": 64, "mi300x": 192,
}  # fmt: skip

# NVIDIA's "CUDA GPUs" page, and the gfx target that ROCm's torch splits into two numbers.
CAPABILITIES = {
    "Pascal": {"6.0", "6.1"}, "Volta": {"7.0"}, "Turing": {"7.5"}, "Ampere": {"8.0", "8.6"}, "Ada Lovelace": {"8.9"},
    "Hopper": {"9.0"}, "Blackwell": {"10.0", "12.0"}, "RDNA 3": {"11.0"}, "CDNA 2": {"9.0"}, "CDNA 3": {"9.4"},
}  # fmt: skip


def test_the_catalogue_is_large_and_every_card_in_it_is_checked_here() -> None:
    assert len(cards()) >= 40
    assert cards().keys() == NOMINAL_GB.keys()
    assert {entry.vendor for entry in cards().values()} == {"NVIDIA", "AMD"}


@pytest.mark.parametrize("entry", cards().values(), ids=cards().keys())
def test_a_card_is_plausible_and_says_where_its_numbers_are_from(entry: Card) -> None:
    assert cards()[entry.name] is entry
    assert abs(entry.total_bytes / (NOMINAL_GB[entry.name] * GIB) - 1) < 0.12
    assert entry.total_source
    assert entry.context_source.startswith(("measured, ", "estimated: "))
    assert 100 * MIB < entry.context_bytes < min(GIB, entry.total_bytes // 10)
    assert entry.compute_capability in CAPABILITIES[entry.architecture]
    assert (entry.multiprocessors is None) == (entry.vendor == "AMD")
    assert entry.multiprocessors is None or 10 <= entry.multiprocessors <= 192
    bandwidth = entry.memory_bandwidth_bytes_per_s
    assert bandwidth is None or 100e9 <= bandwidth <= 10e12
    assert entry.label.startswith(("NVIDIA ", "Tesla ", "AMD "))


@pytest.mark.parametrize(("text", "total"), [
    ("rtx4060", 8_318_222_336),
    ("rtx3060", 12_622_168_064),
    ("a100-40gb", 42_474_471_424),
    ("a10", 23_609_475_072),
    ("h200", 143156 * MIB),
])  # fmt: skip
def test_totals_that_a_driver_reported_in_full_are_exact(text: str, total: int) -> None:
    assert card(text).total_bytes == total


@pytest.mark.parametrize(("name", "low_gib", "high_gib"), [
    ("rtx3090", 23.69, 23.70), ("t4", 14.56, 14.76), ("v100-16gb", 15.78, 15.78), ("p100-16gb", 15.90, 15.90),
    ("a100-80gb", 79.35, 79.44), ("h100-nvl", 93.02, 93.02), ("h200", 139.80, 139.80),
])  # fmt: skip
def test_totals_lie_where_measurements_saw_them(name: str, low_gib: float, high_gib: float) -> None:
    assert low_gib <= round(card(name).total_bytes / GIB, 2) <= high_gib


@pytest.mark.parametrize("entry", cards().values(), ids=cards().keys())
def test_a_card_is_found_by_its_name_however_it_is_written(entry: Card) -> None:
    name = entry.name
    for written in (name, name.upper(), f"  {name} ", name.replace("-", " "), name.replace("-", "_"), f"NVIDIA {name}"):
        assert card(written) is entry


@pytest.mark.parametrize("entry", cards().values(), ids=cards().keys())
def test_a_label_finds_its_card_or_names_all_that_share_it(entry: Card) -> None:
    same = [other for other in cards().values() if other.label == entry.label]
    if len(same) == 1:
        assert card(entry.label) is entry
    else:
        with pytest.raises(UsageError) as error:
            card(entry.label)
        assert all(other.name in str(error.value) for other in same)


@pytest.mark.parametrize(("text", "name"), [
    ("4060", "rtx4060"), ("RTX 4060", "rtx4060"), ("GeForce RTX 4060 Laptop GPU", "rtx4060-laptop"),
    ("1080 Ti", "gtx1080ti"), ("Tesla T4", "t4"), ("RTX 3080 12GB", "rtx3080-12gb"), ("A100 80GB", "a100-80gb"),
    ("A100-SXM4-80GB", "a100-80gb"), ("A6000", "rtxa6000"), ("RTX 6000 Ada", "rtx6000ada"), ("7900 XTX", "rx7900xtx"),
    ("Instinct MI300X", "mi300x"), ("P100", "p100-16gb"), ("H100 80GB HBM3", "h100"),
])  # fmt: skip
def test_what_people_write_finds_the_card_they_mean(text: str, name: str) -> None:
    assert card(text).name == name


@pytest.mark.parametrize(("text", "names"), [
    ("a100", ("a100-40gb", "a100-80gb")), ("V100", ("v100-16gb", "v100-32gb")),
    ("RTX 3080", ("rtx3080-10gb", "rtx3080-12gb")), ("4060 Ti", ("rtx4060ti-8gb", "rtx4060ti-16gb")),
])  # fmt: skip
def test_what_can_be_two_cards_names_both_and_takes_neither(text: str, names: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        card(text)
    assert all(name in str(error.value) for name in names)


@pytest.mark.parametrize("text", ["rtx4061", "banana", "", "   ", "24", "GiB", "-8GiB", "rtx", "nvidia", "gb"])
def test_an_unknown_card_says_where_the_list_is(text: str) -> None:
    with pytest.raises(UnknownName) as error:
        card(text)
    assert "sweep cards" in error.value.hint


def test_a_misspelt_card_names_the_close_ones() -> None:
    with pytest.raises(UnknownName) as error:
        card("rtx409")
    assert "rtx4090" in error.value.hint


@pytest.mark.parametrize(("text", "total"), [
    ("24GiB", 24 * GIB), ("24 GiB", 24 * GIB), ("24G", 24 * GIB), ("24gb", 24 * 10**9), ("512MiB", 512 * MIB),
    ("1.5GiB", 3 * GIB // 2), ("8318222336B", 8_318_222_336),
])  # fmt: skip
def test_a_size_is_a_card_of_that_total_whose_context_leaves_most_of_it(text: str, total: int) -> None:
    made = card(text)
    assert made.total_bytes == total
    assert 0 < made.context_bytes <= total // 8
    assert made.name not in cards()
    assert made.context_source.startswith("estimated: ")
    assert card(made.name) == made


def test_a_size_of_nothing_is_no_card() -> None:
    with pytest.raises(UsageError):
        card("0GiB")


@pytest.mark.parametrize("entry", cards().values(), ids=cards().keys())
@pytest.mark.parametrize("share", [0.95, 1.0, 1.05])
def test_what_the_driver_reports_finds_its_card(entry: Card, share: float) -> None:
    total = int(share * entry.total_bytes)
    assert find(entry.label, total) is entry
    assert name_for(entry.label, total) == entry.name


@pytest.mark.parametrize(
    ("label", "total", "name"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 8 * GIB, "rtx4060ti-8gb"),  # not the RTX 4060, whose label is in it
        ("AMD Instinct MI250X / MI250", 64 * GIB, "mi250x"),
    ],
)
def test_a_label_that_has_anothers_in_it_is_not_taken_for_it(label: str, total: int, name: str) -> None:
    assert name_for(label, total) == name


@pytest.mark.parametrize(
    ("label", "total", "name"),
    [
        ("NVIDIA GeForce RTX 4060", 12 * GIB, "nvidia-geforce-rtx-4060-12gb"),  # of another size
        ("NVIDIA GeForce RTX 4070 Laptop GPU", 8 * GIB, "nvidia-geforce-rtx-4070-laptop-gpu-8gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 * GIB, "nvidia-a100-sxm4-40gb-mig-1g-5gb-5gb"),
        ("../../etc", GIB // 4, "etc-1gb"),
        ("???", GIB, "card-1gb"),
    ],
)
def test_a_card_that_the_catalogue_lacks_gets_a_name_that_can_be_a_files(label: str, total: int, name: str) -> None:
    assert find(label, total) is None
    assert name_for(label, total) == name

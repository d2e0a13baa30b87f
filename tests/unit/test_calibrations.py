"""Calibrations on the disk: kept whole, found by name, refused when they cannot be read, gone when forgotten."""

import json
from pathlib import Path

import pytest

from sweeper import cards
from sweeper.calibration import apply
from sweeper.calibrations import SCHEMA, Calibrations, default_folder
from sweeper.errors import CalibrationUnusable, FolderUnusable, UnknownName, UsageError
from sweeper.units import MIB
from tests.builders import a_calibration

GOLDEN = Path(__file__).parents[1] / "data" / "calibration"
UNKNOWN = a_calibration(name="rig-card-8gb", label="Rig card", total_bytes=8 << 30)


@pytest.fixture
def kept(tmp_path: Path) -> Calibrations:
    return Calibrations(tmp_path / "data" / "calibrations")


def test_what_is_kept_is_found_whole_and_the_newest_counts(kept: Calibrations) -> None:
    assert (kept.names(), kept.get("rtx4060")) == ((), None)
    first = kept.put(a_calibration())
    newer = a_calibration(2 * MIB, date="2026-12-01", driver=None, others_bytes=None)
    assert kept.put(newer) == first
    assert kept.get("rtx4060") == newer
    assert [path.name for path in first.parent.iterdir()] == ["rtx4060.json"]


@pytest.mark.parametrize("version", range(1, SCHEMA + 1))
def test_every_schema_can_be_read(version: int) -> None:
    assert Calibrations(GOLDEN / f"schema-{version}").get("rtx4060") == a_calibration(0, 2 * MIB)


def test_the_folder_is_the_users_own_or_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_folder() != tmp_path
    monkeypatch.setenv("SWEEPER_CALIBRATIONS", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("SWEEPER_CALIBRATIONS")
    assert default_folder().parts[-2:] == ("sweeper", "calibrations")


def test_a_calibrated_card_is_found_by_every_name_that_it_has(kept: Calibrations) -> None:
    kept.put(a_calibration())
    kept.put(UNKNOWN)
    for name in ("rtx4060", "4060", "NVIDIA GeForce RTX 4060"):
        assert kept.card(name) == apply(a_calibration(), cards.card("rtx4060"))
    for name in ("rig-card-8gb", "Rig card 8GB"):
        assert kept.card(name) == apply(UNKNOWN, None)
    assert kept.card("t4") == cards.card("t4")
    assert kept.card("24GiB") == cards.card("24GiB")
    with pytest.raises(UsageError, match="can be"):
        kept.card("a100")
    with pytest.raises(UnknownName) as unknown:
        kept.card("rig-card-9gb")
    assert "rig-card-8gb" in unknown.value.hint


def test_the_list_of_cards_has_the_catalogue_and_what_it_lacks(kept: Calibrations) -> None:
    assert tuple(kept.cards()) == tuple(cards.cards().values())
    kept.put(a_calibration())
    kept.put(UNKNOWN)
    found = {card.name: card for card in kept.cards()}
    assert found.keys() == {*cards.cards(), "rig-card-8gb"}
    assert {name for name, card in found.items() if card.calibrated} == {"rtx4060", "rig-card-8gb"}


def test_with_no_folder_nothing_is_kept() -> None:
    none = Calibrations(None)
    assert (none.names(), none.get("rtx4060"), none.card("rtx4060")) == ((), None, cards.card("rtx4060"))


def test_forgetting_takes_one_away(kept: Calibrations) -> None:
    kept.put(a_calibration())
    kept.put(UNKNOWN)
    assert kept.forget("RTX 4060") == "rtx4060"
    assert kept.names() == ("rig-card-8gb",)
    assert kept.forget("Rig card 8gb") == "rig-card-8gb"
    with pytest.raises(UnknownName, match="rtx4060"):
        kept.forget("rtx4060")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', '{"schema": "1"}', '{"schema": 0}'])
def test_a_damaged_file_is_an_error_where_its_card_is_asked_for_and_can_be_forgotten(
    kept: Calibrations, text: str
) -> None:
    kept.put(a_calibration(name="t4")).write_text(text)
    assert kept.card("rtx4060") == cards.card("rtx4060")
    with pytest.raises(CalibrationUnusable, match=r"t4\.json cannot be read") as broken:
        kept.card("t4")
    assert (broken.value.exit_code, "--forget t4" in broken.value.hint) == (2, True)
    assert kept.forget("t4") == "t4"


def test_a_newer_schema_is_refused_by_name(kept: Calibrations) -> None:
    path = kept.put(a_calibration())
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": SCHEMA + 1, "unheard": 1}))
    with pytest.raises(CalibrationUnusable, match=f"schema {SCHEMA + 1}"):
        kept.get("rtx4060")


def test_an_unknown_key_is_refused(kept: Calibrations) -> None:
    path = kept.put(a_calibration())
    path.write_text(json.dumps({**json.loads(path.read_text()), "unheard": 1}))
    with pytest.raises(CalibrationUnusable, match="unheard"):
        kept.get("rtx4060")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable, match="cannot be kept"):
        Calibrations(tmp_path / "file" / "calibrations").put(a_calibration())

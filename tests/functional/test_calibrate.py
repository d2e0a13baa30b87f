"""Calibrations as a person meets them: listed, forgotten, used and named, and left out when that is asked for."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.calibrations import Calibrations
from sweeper.units import MIB
from tests.builders import a_calibration

Sweep = Callable[..., tuple[int, str, str]]
JOB = ("--model", "small-cnn", "--image-size", "32", "--max-batch", "64")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where calibrations are kept; there is no GPU."""
    monkeypatch.setenv("SWEEPER_CALIBRATIONS", str(tmp_path / "calibrations"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path / "calibrations"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "sim:t4"], ["no GPU", "cuda"]),
        (["--list", "--forget", "rtx4060"], ["two questions"]),
        (["--list", "--device", "cuda:1"], ["--device", "leave it out"]),
        (["--forget", "rtx4060", "--timeout", "9"], ["--timeout", "leave it out"]),
        (["--forget", "rtx4060"], ["rtx4060", "--list"]),
        ([], ["no usable GPU", "machine that has the GPU"]),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_hint(sweep: Sweep, arguments: list[str], words: list[str]) -> None:
    code, out, err = sweep("calibrate", *arguments)
    assert (code, out) == (2, "")
    assert all(word in err for word in words), err


def test_a_calibration_is_used_named_left_out_and_forgotten(sweep: Sweep, folder: Path) -> None:
    plain = json.loads(sweep("predict", *JOB, "--card", "rtx4060", "--json")[1])
    Calibrations(folder).put(a_calibration(2 * MIB))
    assert "rtx4060" in sweep("calibrate", "--list")[1]

    used = json.loads(sweep("predict", *JOB, "--card", "rtx4060", "--json")[1])
    assert used["capacity_bytes"] == a_calibration().total_bytes - a_calibration().outside_bytes
    # Of what every job reserved too much there, the peak has its part.
    assert used["uncapped_peak_bytes"] == plain["uncapped_peak_bytes"] + 2 * MIB
    assert "calibrated on 2026-11-30" in " ".join(sweep("predict", *JOB, "--card", "rtx4060")[1].split())
    run = sweep(*JOB, "--device", "sim:rtx4060", "--batches", "64", "--json", "--folder", "run")
    assert json.loads(run[1])["capacity_bytes"] == used["capacity_bytes"]

    left_out = json.loads(sweep("predict", *JOB, "--card", "rtx4060", "--no-calibration", "--json")[1])
    assert left_out["capacity_bytes"] == plain["capacity_bytes"]
    assert sweep("calibrate", "--forget", "rtx4060")[0] == 0
    assert (
        json.loads(sweep("predict", *JOB, "--card", "rtx4060", "--json")[1])["capacity_bytes"]
        == plain["capacity_bytes"]
    )


def test_a_run_goes_on_with_the_card_that_it_began_with(sweep: Sweep, folder: Path) -> None:
    Calibrations(folder).put(a_calibration())
    options = (*JOB, "--device", "sim:rtx4060", "--batches", "4,8")
    assert sweep(*options, "--folder", "run")[0] == 0
    journal = Path("run/journal.jsonl")
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:-1]) + "\n")  # as if it had died before the last trial was written
    Calibrations(folder).put(a_calibration(total_bytes=4 << 30))
    code, out, err = sweep("--resume", "run", "--json")
    assert code == 0, err
    assert json.loads(out)["capacity_bytes"] == a_calibration().total_bytes - a_calibration().outside_bytes


def test_a_calibration_that_cannot_be_read_is_named_with_the_way_out(sweep: Sweep, folder: Path) -> None:
    folder.mkdir()
    (folder / "rtx4060.json").write_text("{")
    code, _, err = sweep("predict", *JOB, "--card", "rtx4060")
    assert code != 0
    assert "rtx4060.json" in err

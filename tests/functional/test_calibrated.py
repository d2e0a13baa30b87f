"""A kept calibration at work: the simulation and the prediction use the same of it, name it, and leave it out if asked.

Nothing is measured here; ``tests/rig`` does that.  How the commands are used is in ``test_calibrate``.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sweeper import api
from sweeper.allocator_conf import DEFAULT_CONF
from sweeper.calibration import Calibration, apply
from sweeper.calibrations import Calibrations
from sweeper.cards import Card, card
from sweeper.journal import Journal, read_record
from sweeper.predicting import Forecast, StepTracer, Wanted, forecasts
from sweeper.record import Record, Settings
from sweeper.runner import ForkRunner
from sweeper.sweeping import Silent, run_sweep
from sweeper.trace_cache import TraceCache
from sweeper.trial import OutOfMemory, TrialSpec
from sweeper.units import GIB, MIB
from tests.builders import a_calibration, a_calibration_job, a_header, a_spec

Command = Callable[..., tuple[int, str, str]]
JOB = ("--model", "small-cnn", "--image-size", "64", "--steps", "2")
TOTAL = 2 * GIB


def small(offset_bytes: int = 0, outside_bytes: int = 312 * MIB) -> Card:
    """A card of 2 GiB that the catalogue lacks, as calibrated."""
    return apply(kept(offset_bytes, outside_bytes), None)


def kept(offset_bytes: int = 0, outside_bytes: int = 312 * MIB) -> Calibration:
    jobs = (a_calibration_job(offset_bytes, outside_bytes=outside_bytes),)
    return a_calibration(name="rig-card-2gb", label="Rig card", total_bytes=TOTAL, jobs=jobs)


@pytest.fixture(scope="module")
def runner() -> Iterator[ForkRunner]:
    with closing(ForkRunner(timeout_s=120)) as one:
        yield one


def swept(runner: ForkRunner, folder: Path, spec: TrialSpec) -> Record:
    header = a_header(spec=spec, settings=Settings(cap=4096, points=1, margin=0))
    with Journal.create(folder, header) as journal:
        return run_sweep(journal, runner, Silent())


def predicted(runner: ForkRunner, folder: Path, spec: TrialSpec, on: Card, budget: int | None = None) -> Forecast:
    tracer = StepTracer(runner, folder / "predicting", cache=TraceCache(folder.parent / "cache"))
    wanted = Wanted(cap=4096, budget_bytes=budget)
    (found,) = forecasts(dataclasses.replace(spec, card=None), (on,), wanted, tracer, DEFAULT_CONF)
    return found


@pytest.mark.parametrize("offset", [0, 70 * MIB, -30 * MIB])
@pytest.mark.parametrize("limit", [None, GIB], ids=["whole", "limited"])
def test_a_sweep_and_a_prediction_of_a_calibrated_card_agree(
    runner: ForkRunner, tmp_path: Path, offset: int, limit: int | None
) -> None:
    on = small(offset)
    spec = a_spec(model="small-cnn", image_size=64, steps=2, device=f"sim:{on.name}", card=on, memory_limit_bytes=limit)
    record, found = swept(runner, tmp_path / "run", spec), predicted(runner, tmp_path, spec, on, limit)
    assert record.proven
    assert (found.max_batch, found.first_failure) == (record.max_batch, record.first_failure)
    assert record.capacity_bytes == found.capacity_bytes == (limit or TOTAL - 312 * MIB)
    best = next(point for point in record.curve if point.size == record.max_batch)
    assert found.prediction.peak_bytes_at_max == best.peak_reserved_bytes <= record.capacity_bytes
    assert record.prediction is not None
    assert record.prediction.points == found.prediction.points
    failed, said = record.failure, found.prediction.failure
    assert failed is not None
    assert said is not None
    assert isinstance(failed[1], OutOfMemory)
    assert (failed[1].requested_bytes, failed[1].free_bytes) == (said.requested_bytes, said.free_bytes)
    assert failed[1].reserved_bytes is not None
    assert failed[1].reserved_bytes <= record.capacity_bytes


def test_what_lies_outside_and_the_offset_move_the_boundary(runner: ForkRunner, tmp_path: Path) -> None:
    spec = a_spec(model="small-cnn", image_size=64, steps=2)
    plain, outside, offset = (
        predicted(runner, tmp_path, spec, on) for on in (small(), small(0, 712 * MIB), small(400 * MIB))
    )
    assert plain.max_batch is not None
    # The allocator is given the same in both; what it is said to reserve is the capacity's, less or more.
    assert outside.max_batch == offset.max_batch
    assert offset.max_batch is not None
    assert offset.max_batch < plain.max_batch
    assert (plain.capacity_bytes, offset.capacity_bytes) == (TOTAL - 312 * MIB,) * 2
    for number, other in zip(
        (outside.uncapped_peak_bytes, outside.least_capacity_bytes),
        (offset.uncapped_peak_bytes, offset.least_capacity_bytes),
        strict=True,
    ):
        assert number is not None
        assert other == number + 400 * MIB


# -- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calibrations:
    """The user's own, where the RTX 4060 and a card of no catalogue are calibrated."""
    monkeypatch.setenv("SWEEPER_CALIBRATIONS", str(tmp_path / "calibrations"))
    found = api.calibrations()
    found.put(a_calibration(2 * MIB))
    found.put(kept())
    return found


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def sweep(sweep: Command, monkeypatch: pytest.MonkeyPatch, traces: Path) -> Command:
    """With traces that are kept between these tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(traces))
    return sweep


def test_a_calibrated_card_that_the_catalogue_lacks_is_one_until_it_is_left_out(
    sweep: Command, store: Calibrations
) -> None:
    assert json.loads(sweep("predict", *JOB, "--card", "rig-card-2gb", "--json")[1])["card"] == "rig-card-2gb"
    code, _, err = sweep("predict", *JOB, "--card", "rig-card-2gb", "--no-calibration")
    assert (code, "no card is called 'rig-card-2gb'" in err) == (2, True)


def test_a_simulated_sweep_names_its_calibration_and_writes_it_down(
    sweep: Command, store: Calibrations, tmp_path: Path
) -> None:
    asked = (*JOB, "--device", "sim:rig-card-2gb", "--batches", "4,8")
    code, out, err = sweep(*asked, "--folder", str(tmp_path / "run"), "--no-color")
    assert code == 0
    named = "calibrated on 2026-11-30, torch 2.14.1+cu130: 312.00 MiB outside the allocator"
    assert named in err.splitlines()[0]
    assert f"{named} (simulated)" in " ".join(out.split())
    record = read_record(tmp_path / "run")
    assert record.header.spec.card == store.card("rig-card-2gb")
    assert record.capacity_bytes == TOTAL - 312 * MIB
    assert all(trial.predicted is None for trial in record.trials)


def test_a_sweep_that_left_the_calibration_out_is_proven_again_without_it(
    sweep: Command, store: Calibrations, tmp_path: Path
) -> None:
    asked = (*JOB, "--device", "sim:rtx4060", "--batches", "4")
    code, out, _ = sweep(*asked, "--folder", str(tmp_path / "run"), "--no-calibration", "--no-color")
    assert code == 0
    assert "calibrated" not in out
    (again,) = (line for line in out.splitlines() if "prove it again" in line)
    assert again.endswith("--no-calibration")
    assert read_record(tmp_path / "run").capacity_bytes == card("rtx4060").capacity_bytes


def test_the_list_of_cards_marks_what_was_calibrated(sweep: Command, store: Calibrations) -> None:
    _, out, _ = sweep("cards")
    marked = {line.split()[0] for line in out.splitlines() if line.split() and line.split()[0].endswith("*")}
    assert marked - {"*"} == {"rtx4060*", "rig-card-2gb*"}
    found = {one["name"]: one["calibrated"] for one in json.loads(sweep("cards", "--json")[1])}
    assert {name for name, calibrated in found.items() if calibrated} == {"rtx4060", "rig-card-2gb"}
    assert found["rtx4060"]["reserved_offset_bytes"] == 2 * MIB


def test_what_is_kept_is_listed_and_forgotten(sweep: Command, store: Calibrations) -> None:
    _, out, _ = sweep("calibrate", "--list")
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if "2026-11-30" in row] == ["rig-card-2gb", "rtx4060"]
    listed = json.loads(sweep("calibrate", "--list", "--json")[1])
    assert {one["name"]: one["reserved_offset_bytes"] for one in listed} == {"rtx4060": 2 * MIB, "rig-card-2gb": 0}
    assert sweep("calibrate", "--forget", "RTX 4060")[:2] == (0, "forgot the calibration of rtx4060\n")
    assert json.loads(sweep("calibrate", "--forget", "rig-card-2gb", "--json")[1]) == {"forgot": "rig-card-2gb"}
    assert store.names() == ()
    assert "no card is calibrated here" in sweep("calibrate", "--list")[1]


def test_a_damaged_calibration_stops_what_would_use_it_and_nothing_else(sweep: Command, store: Calibrations) -> None:
    store.put(a_calibration()).write_text("{")
    code, _, err = sweep("predict", *JOB, "--card", "rtx4060")
    assert (code, "--forget rtx4060" in err) == (2, True)
    assert sweep("predict", *JOB, "--card", "rig-card-2gb", "--quiet")[0] == 0
    assert sweep("predict", *JOB, "--card", "rtx4060", "--quiet", "--no-calibration")[0] == 0

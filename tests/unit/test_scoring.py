"""scripts/score_predictions.py: the rows it reads, the protocols it runs them by, and the statistics it prints."""

import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

_SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(_SCRIPTS))

from scoring.answer import Answer  # noqa: E402
from scoring.condensing import condensed  # noqa: E402
from scoring.rows import Bracket, Cap, Peak, read_folder  # noqa: E402
from scoring.scores import Scored, cap_is_right, outside_bytes, percentile, score, slope_errors, table  # noqa: E402

GIB = 2**30
PEAK = {
    "id": "mine-01", "library": "torchvision", "model": "resnet18", "model_args": "num_classes=10", "batch": "8",
    "image_size": "86", "seq_len": "", "precision": "fp32-tf32conv", "layout": "nchw", "optimizer": "adam",
    "optimizer_args": "lr=1e-3,foreach", "zero_grad": "none-before-forward", "steps": "2", "card": "RTX 3060 12GB",
    "measured": "NVML used", "peak_bytes": str(GIB), "xmem_bytes": str(2 * GIB), "naive_bytes": "",
}  # fmt: skip
CAP = {
    "id": "cap-01", "library": "torchvision", "model": "resnet18", "model_args": "", "batch": "8", "image_size": "86",
    "seq_len": "", "precision": "fp32", "optimizer": "sgd", "card": "RTX 4060 8GB",
    "cap_fails_bytes": "1000", "cap_fits_bytes": "2000",
}  # fmt: skip
BRACKET = {
    "id": "row-01", "library": "torchvision", "model": "resnet18", "torchvision_twin": "resnet18", "image_size": "96",
    "precision": "amp-fp16", "layout": "nhwc", "optimizer": "sgd momentum=0.9 nesterov", "card": "RTX 3090 24GB",
    "capacity_bytes": str(24 * GIB), "batch_fits": "4", "batch_fails": "65536",
}  # fmt: skip


def write(folder: Path, name: str, *rows: Mapping[str, str]) -> None:
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read_one(folder: Path, name: str, row: Mapping[str, str], **changes: str) -> Peak | Cap | Bracket:
    write(folder, name, {**row, **changes})
    (found,) = read_folder(folder)
    return found


def peak(batch: int, measured: int, group: str = "mine", others: Mapping[str, int] | None = None) -> Peak:
    return Peak(
        id=f"{group}-{batch}", group=group, job=None, digest="", batch=batch, measured_bytes=measured,
        with_context=False, others=others or {},
    )  # fmt: skip


def scored(row: Peak | Cap | Bracket, **answer: object) -> Scored:
    return Scored(row, Answer(id=row.id, digest=row.digest, group=row.group, **answer))  # type: ignore[arg-type]


# ---- rows and protocols


def test_a_peak_is_read_with_its_job_and_what_others_said(tmp_path: Path) -> None:
    row = read_one(tmp_path, "peaks.csv", PEAK)
    assert isinstance(row, Peak)
    assert (row.group, row.batch, row.measured_bytes, row.others) == ("mine", 8, GIB, {"xmem": 2 * GIB})
    assert row.job is not None
    assert (row.job.card, row.job.image_size, dict(row.job.model_args)) == ("rtx3060", 86, {"num_classes": 10})
    protocol = row.job.protocol
    assert (protocol.precision, protocol.optimizer, protocol.steps) == ("fp32", "adam", 2)
    assert dict(protocol.optimizer_args) == {"lr": 1e-3, "foreach": True}
    assert (protocol.zero_grad, protocol.keeps_gradients, protocol.backward_in_autocast) == (
        "before-forward", False, False,
    )  # fmt: skip


def test_a_bracket_is_run_as_in_2022(tmp_path: Path) -> None:
    row = read_one(tmp_path, "brackets.csv", BRACKET)
    assert isinstance(row, Bracket)
    assert row.group == "brackets nhwc of torchvision twins"
    assert row.job is not None
    protocol = row.job.protocol
    assert protocol.channels_last
    assert protocol.keeps_gradients
    assert protocol.backward_in_autocast
    assert not protocol.fused_attention
    assert not protocol.scales_gradients
    assert dict(protocol.optimizer_args) == {"momentum": 0.9, "nesterov": True, "foreach": False}


@pytest.mark.parametrize(
    ("text", "place", "keeps"),
    [
        ("none-before-forward", "before-forward", False),
        ("none-before-backward", "before-backward", False),
        ("none-after-backward", "after-step", False),
        ("zero-before-forward", "before-forward", True),
        ("", "before-forward", False),
    ],
)
def test_where_gradients_are_dropped_is_what_the_row_says(tmp_path: Path, text: str, place: str, keeps: bool) -> None:
    job = read_one(tmp_path, "peaks.csv", PEAK, zero_grad=text).job
    assert job is not None
    assert (job.protocol.zero_grad, job.protocol.keeps_gradients) == (place, keeps)


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("precision", "fp8", "precision is 'fp8'"),
        ("zero_grad", "sometimes", "zero_grad is 'sometimes'"),
        ("card", "Voodoo 2", "no card 'Voodoo 2'"),
        ("optimizer", "", "no optimizer"),
    ],
)
def test_what_cannot_be_run_is_a_row_with_its_reason(tmp_path: Path, column: str, text: str, reason: str) -> None:
    row = read_one(tmp_path, "peaks.csv", {**PEAK, "optimizer_args": ""}, **{column: text})
    assert row.job is None
    assert row.problem is not None
    assert reason in row.problem


def test_a_remark_in_brackets_is_no_part_of_a_value(tmp_path: Path) -> None:
    changes = {"precision": "fp32-tf32conv (not stated)", "optimizer": "sgd-momentum (not stated)"}
    job = read_one(tmp_path, "peaks.csv", {**PEAK, "optimizer_args": ""}, **changes).job
    assert job is not None
    assert (job.protocol.precision, job.protocol.optimizer) == ("fp32", "sgd")
    assert dict(job.protocol.optimizer_args) == {"momentum": 0.9}


def test_a_number_that_is_none_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, "caps.csv", CAP, {**CAP, "batch": "many"})
    with pytest.raises(ValueError, match=r"caps\.csv, line 3"):
        list(read_folder(tmp_path))


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"peaks\.csv"):
        list(read_folder(tmp_path))


def test_a_changed_row_has_another_digest(tmp_path: Path) -> None:
    before = read_one(tmp_path, "caps.csv", CAP)
    assert before.digest == read_one(tmp_path, "caps.csv", CAP).digest
    assert before.digest != read_one(tmp_path, "caps.csv", CAP, cap_fits_bytes="2001").digest


# ---- statistics


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_a_percentile_lies_between_the_ends_and_grows(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert min(values) <= found <= max(values)
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)
    assert found <= percentile(values, min(1.0, share + 0.1))


def test_the_ninetieth_percentile_of_eleven_values_is_the_tenth() -> None:
    assert percentile([float(n) for n in range(11)], 0.9) == pytest.approx(9)
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("least", "right"), [(979, False), (980, False), (981, True), (1500, True), (2040, True), (2041, False)]
)
def test_a_cap_is_right_between_its_two_caps_with_two_per_cent_of_slack(
    tmp_path: Path, least: int, right: bool
) -> None:
    row = read_one(tmp_path, "caps.csv", CAP)
    assert isinstance(row, Cap)
    assert cap_is_right(row, least) is right
    (found,) = score([scored(row, least_bytes=least)])
    assert (found.right, found.wrong) == (int(right), () if right else ("cap-01",))


@pytest.mark.parametrize(("fits", "fails"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_bracket_is_right_only_on_both_sides(tmp_path: Path, fits: bool, fails: bool) -> None:
    row = read_one(tmp_path, "brackets.csv", BRACKET)
    (found,) = score([scored(row, fits=fits, fails=fails)])
    assert found.right == int(fits and fails)


def test_errors_are_of_the_measurement_and_skipped_rows_are_counted_apart() -> None:
    others = {"xmem": 150}
    items = [scored(peak(n, 100, others=others), peak_bytes=size) for n, size in enumerate((90, 100, 130))]
    items.append(scored(peak(9, 100, others=others), problem="not installed"))
    (found,) = score(items)
    assert (found.rows, dict(found.skipped)) == (3, {"not installed": 1})
    assert found.median == pytest.approx(0.1)
    assert found.percentile_90 == pytest.approx(0.26)
    assert found.others == {"xmem": pytest.approx(0.5)}
    assert "skipped, mine: 1 x not installed" in table([found])


def test_a_slope_knows_nothing_of_what_is_added_to_every_batch(tmp_path: Path) -> None:
    rows = []
    for batch in (8, 16, 32):
        row = read_one(tmp_path, "peaks.csv", PEAK, batch=str(batch), peak_bytes=str(5000 + 100 * batch))
        rows.append(scored(row, peak_bytes=120 * batch))
    assert slope_errors(rows, lambda item: item.answer.peak_bytes or 0) == [pytest.approx(0.2)]
    assert slope_errors(rows[:1], lambda item: 1) == []
    assert [one.name for one in score(rows)] == ["mine", "mine slopes"]


def test_the_context_counts_only_where_it_was_measured(tmp_path: Path) -> None:
    row = read_one(tmp_path, "peaks.csv", PEAK)
    assert isinstance(row, Peak)
    assert outside_bytes(row) == 0
    row = read_one(tmp_path, "peaks.csv", PEAK, measured="nvidia-smi, context included")
    assert isinstance(row, Peak)
    assert outside_bytes(row) > 0


# ---- the script, whole


def test_a_folder_is_scored_and_a_second_run_takes_what_the_first_wrote(tmp_path: Path) -> None:
    write(tmp_path, "peaks.csv", PEAK, {**PEAK, "id": "mine-02", "library": "jax"})
    write(tmp_path, "brackets.csv", BRACKET)
    done = tmp_path / "done.jsonl"
    packaged = _SCRIPTS.parent / "sweeper" / "data" / "accuracy.json"
    before = packaged.read_bytes()
    command = [sys.executable, str(_SCRIPTS / "score_predictions.py"), str(tmp_path)]
    command += ["--json", "--processes", "1", "--resume", str(done), "--out", str(tmp_path / "kept")]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    first, second = (json.loads(run.stdout) for run in runs)
    assert "of 3 jobs" in runs[0].stderr
    assert "jobs" not in runs[1].stderr
    assert first["rows"] == second["rows"]
    mine, other, bracket = first["rows"]
    assert mine["problem"] is None
    assert 50 * 2**20 < mine["peak_bytes"] < GIB
    assert other["problem"] == "library 'jax'"
    assert (bracket["fits"], bracket["fails"]) == (True, True)
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"accuracy.json", "accuracy.png", "accuracy.txt"}
    kept = json.loads((tmp_path / "kept" / "accuracy.json").read_text())
    assert (condensed(kept).peaks.rows, condensed(kept).boundaries["brackets"].right) == (1, 1)
    assert packaged.read_bytes() == before  # what is kept elsewhere is not what the package tells

"""The main job, as typed in a shell: a simulated card, the CPU, and what a kill leaves behind."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def sweep(*arguments: str) -> dict[str, Any]:
    """What ``sweep ... --json`` prints; it must have been answered."""
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *arguments, "--json"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def sides_again(question: list[str], answer: dict[str, Any], folder: Path) -> list[str]:
    """Both sides of the boundary in a run of their own."""
    both = f"{answer['max_batch']},{answer['first_failure']}"
    return [point["outcome"] for point in sweep(*question, "--batches", both, "--folder", str(folder))["curve"]]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("sim") / "run"
    question = ["--model", "resnet18", "--max-batch", "512", "--device", "sim:rtx4060"]
    return sweep(*question, "--folder", str(folder)), folder


def test_the_simulated_boundary_is_proven(simulated: tuple[dict[str, Any], Path]) -> None:
    answer, _ = simulated
    assert answer["simulated"] is True
    assert answer["proven"] is True
    assert 200 <= answer["max_batch"] <= 450
    assert answer["first_failure"] == answer["max_batch"] + 1
    assert answer["prediction"]["max_batch"] == answer["max_batch"]
    # Nothing simulated has a time.
    assert all(point["step_seconds"] is None and point["samples_per_second"] is None for point in answer["curve"])
    # The pair, when the prediction is exact, and at most three for the recommended batch.
    trials = len(list((simulated[1] / "trials").glob("*-b*")))
    assert trials <= 6 + 2 + 3


def test_both_simulated_sides_come_again(simulated: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    question = ["--model", "resnet18", "--device", "sim:rtx4060"]
    assert sides_again(question, simulated[0], tmp_path / "again") == ["fit", "oom"]


def test_the_folder_holds_what_was_promised(simulated: tuple[dict[str, Any], Path]) -> None:
    answer, folder = simulated
    names = {"journal.jsonl", "summary.json", "curve.csv", "memory.png", "memory.svg", "breakdown.png"}
    assert names <= {path.name for path in folder.iterdir()}
    assert json.loads((folder / "summary.json").read_text()) == answer
    for trial in (folder / "trials").glob("0001-*"):
        assert {"request.json", "result.json", "stdout", "stderr"} <= {path.name for path in trial.iterdir()}
    assert "simulated" in (folder / "memory.svg").read_text()


def test_real_training_on_the_cpu_has_a_boundary_that_comes_again(tmp_path: Path) -> None:
    question = ["--model", "small-cnn", "--image-size", "32", "--device", "cpu", "--memory-limit", "96MiB"]
    answer = sweep(*question, "--max-batch", "4096", "--points", "3", "--folder", str(tmp_path / "run"))
    assert answer["simulated"] is False
    assert answer["proven"] is True
    assert answer["first_failure"] == answer["max_batch"] + 1
    measured = [point for point in answer["curve"] if point["outcome"] == "fit"]
    assert all(point["step_seconds"] > 0 for point in measured)
    # The budget is of data; code that is read in on the way is resident too.
    assert max(point["peak_allocated_bytes"] for point in measured) <= (96 << 20) * 1.05
    # Run twice by the sweep, and once more here, by another host with another heap: mostly the same to the image, and
    # within 2 MiB of the budget always.
    images = -(-(2 << 20) // int(answer["law"]["per_sample_bytes"]))
    apart = {"max_batch": answer["max_batch"] - images, "first_failure": answer["first_failure"] + images}
    assert sides_again(question, apart, tmp_path / "again") == ["fit", "oom"]


def test_a_sweep_killed_at_random_moments_comes_to_the_same_end() -> None:
    """Two here; scripts/kill_and_resume.py --kills 20 is the long form."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "kill_and_resume.py"), "--kills", "2", "--seed", "5"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 of 2 the same"

"""Comparisons as they are typed: simulated and measured, killed and resumed, refused; and two of their runs apart."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sweeper.comparing import PLAN, compare, load_comparison, resume_comparison
from sweeper.errors import FolderUnusable, JournalBroken, SchemaTooNew
from tests.functional.conftest import Command

ROOT = Path(__file__).resolve().parents[2]
QUESTION = ["--model", "small-cnn", "--image-size", "32", "--device", "sim:rtx4060", "--memory-limit", "256MiB"]
QUESTION += ["--points", "2", "--margin", "0"]
VARY = ["--vary", "precision=fp32,amp-bf16", "--vary", "optimizer=sgd,adamw"]


def journals(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The trials of each run inside, without what differs between any two runs: times."""
    found = {}
    for journal in sorted(folder.glob("*/journal.jsonl")):
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        found[journal.parent.name] = [line for line in lines if line["entry"] == "trial"]
        for trial in found[journal.parent.name]:
            del trial["started"], trial["seconds"]
    return found


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What a comparison prints, and its folder, left alone."""
    folder = tmp_path_factory.mktemp("compare") / "calm"
    command = [sys.executable, "-m", "sweeper", "compare", *QUESTION, *VARY, "--folder", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[1 of 4] fp32, sgd") == 1
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer, folder


def test_every_combination_is_swept_to_its_proven_boundary(simulated: tuple[dict[str, Any], Path]) -> None:
    answer, folder = simulated
    assert answer["finished"]
    assert [list(one["choices"].values()) for one in answer["combinations"]] == [
        ["fp32", "sgd"], ["fp32", "adamw"], ["amp-bf16", "sgd"], ["amp-bf16", "adamw"],
    ]  # fmt: skip
    for one in answer["combinations"]:
        assert one["proven"]
        assert one["first_failure"] == one["max_batch"] + 1
        assert one["simulated"]
        assert one["common"]["step_seconds"] is None
    (half, *_), (more, *_) = (
        [e for e in answer["effects"] if e["field"] == field] for field in ("precision", "optimizer")
    )
    # Most of this network is its activations, which autocast holds in 16 bits; Adam's state is two weights'.
    assert half["largest"]["mean"] > 1.1
    assert half["per_sample"]["mean"] < 0.9
    assert more["peak"]["least"] >= 1
    assert {"compare.json", "compare.csv", "compare.png", "compare.svg", "breakdowns.png", "breakdowns.svg", PLAN} == {
        path.name for path in folder.iterdir() if path.is_file()
    }
    assert json.loads((folder / "compare.json").read_text()) == answer
    assert all((run / "memory.png").is_file() for run in folder.iterdir() if run.is_dir())


def test_a_finished_comparison_is_shown_again_and_runs_nothing(
    simulated: tuple[dict[str, Any], Path], sweep: Command
) -> None:
    answer, folder = simulated
    before = journals(folder)
    code, out, err = sweep("compare", "--resume", str(folder), "--json")
    assert (code, json.loads(out)) == (0, answer), err
    code, out, err = sweep("report", str(folder))
    assert code == 0, err
    assert "4 of 4 boundaries proven" in out
    assert journals(folder) == before


def test_a_comparison_that_was_killed_goes_on_and_runs_nothing_twice(
    simulated: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """Killed as soon as five trials are written down; and as if the last header had been torn off."""
    answer, calm = simulated
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "sweeper", "compare", *QUESTION, *VARY, "--folder", str(folder)]
    driver = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and driver.poll() is None:
        if (folder / PLAN).is_file() and sum(map(len, map(_whole_trials, folder.glob("*/journal.jsonl")))) >= 5:
            break
        time.sleep(0.005)
    os.kill(driver.pid, signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    *_, last = sorted(folder.glob("*/journal.jsonl"))
    assert not _whole_trials(last)
    last.write_bytes(last.read_bytes()[:40])
    assert len(load_comparison(folder).entries) == 4
    before = journals_on_disk(folder)
    found = resume_comparison(folder)
    assert found.compared.finished
    assert journals(folder) == journals(calm)
    for name, lines in before.items():
        assert (folder / name / "journal.jsonl").read_bytes().startswith(lines), name
    told = found.to_dict()
    for ours, theirs in zip(told["combinations"], answer["combinations"], strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


def _whole_trials(journal: Path) -> list[bytes]:
    return [line for line in journal.read_bytes().splitlines() if b'"entry":"trial"' in line]


def journals_on_disk(folder: Path) -> dict[str, bytes]:
    """The whole lines of each journal, as bytes."""
    found = {}
    for journal in folder.glob("*/journal.jsonl"):
        content = journal.read_bytes()
        found[journal.parent.name] = content[: content.rfind(b"\n") + 1]
    return found


def test_where_no_batch_is_shared_the_smallest_answer_is_run_by_all(tmp_path: Path) -> None:
    found = compare(
        "mlp",
        vary={"memory_limit": ["64MiB", "2GiB"]},
        device="sim:rtx4060",
        points=1,
        margin=0,
        max_batch=1 << 20,
        folder=tmp_path / "far",
    )
    small, large = found.entries
    assert found.common_size == small.largest
    assert [trial.size for trial in large.record.trials if trial.purpose == "compared"] == [small.largest]
    assert large.record.proven


def test_measured_on_the_cpu(tmp_path: Path, sweep: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # beside other tests, threads that wait for each other take minutes
    question = ["--model", "small-cnn", "--image-size", "16", "--device", "cpu", "--memory-limit", "32MiB"]
    question += ["--points", "1", "--margin", "0", "--confirm", "1", "--steps", "2"]
    vary = ["--vary", "mode=train,inference"]
    code, out, err = sweep("compare", *question, *vary, "--folder", str(tmp_path / "cpu"), "--json", "--sort", "speed")
    assert code == 0, err
    answer = json.loads(out)
    train, inference = answer["combinations"]
    assert train["proven"]
    assert inference["proven"]
    assert not train["simulated"]
    assert inference["max_batch"] > train["max_batch"]
    assert inference["per_sample_bytes"] < train["per_sample_bytes"]
    assert train["loss_finite"] is True
    assert inference["loss_finite"] is None
    assert train["common"]["step_seconds"] > 0
    assert train["samples_per_second"] > 0
    assert train["common"]["peak_reserved_bytes"] > inference["common"]["peak_reserved_bytes"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--vary", "mode=train,inference", "--vary", "optimizer=sgd,adamw"], "mode inference, optimizer adamw"),
        (["--vary", "precision=fp32,tf32", "--device", "cpu"], "precision tf32"),
        (["--vary", "device=sim:l4,sim:nothing"], "device sim:nothing"),
        (["--vary", "model=small-cnn,smal-cnn"], "model smal-cnn"),
        (["--vary", "model.nothing=1,2"], "model.nothing 1"),  # which only the worker can tell
        (["--vary", "model.nothing=1,2", "--no-predict"], "model.nothing 1"),
        (["--vary", "precision=fp32,tf32", "--vary", "device=sim:l4,sim:t4"], "precision tf32, device sim:t4"),
    ],
)
def test_a_combination_that_cannot_be_is_refused_by_name_before_anything_runs(
    sweep: Command, tmp_path: Path, arguments: list[str], names: str
) -> None:
    folder = tmp_path / "refused"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    model = [] if "model=small-cnn,smal-cnn" in arguments else ["--model", "small-cnn"]
    device = [] if any("device" in word for word in arguments) else ["--device", "sim:l4"]
    code, out, err = sweep("compare", *model, *device, *arguments, "--folder", str(folder))
    assert (code, out) == (2, "")
    assert f"with {names}: " in err
    assert len(err.strip().splitlines()) == 2
    assert [path.name for path in folder.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "small-cnn"], "--vary precision=fp32,amp-bf16"),
        (["--vary", "precision=fp32,bf16"], "which model?"),
        (["--model", "small-cnn", "--vary", "precision"], "write it as precision=fp32,amp-bf16"),
        (["--model", "small-cnn", "--vary", "precision=fp32,"], "write it as precision=fp32,amp-bf16"),
        (["--model", "small-cnn", "--vary", "seed=1,2", "--vary", "seed=3,4"], "in one --vary"),
        (["--model", "small-cnn", "--vary", "seed=1,2", "--seed", "3"], "leave --seed out"),
        (["--model", "small-cnn", "--vary", "seed=1,2", "--sort", "biggest"], "known: largest"),
        (["--resume", "nowhere"], "holds no comparison"),
        (["--resume", "nowhere", "--vary", "seed=1,2", "--model", "mlp"], "does not take --vary, --model"),
        (["--vary", "seed=1,2", "--model", "mlp", "--quiet"], "No such option"),
    ],
)
def test_what_is_no_question_is_answered_with_what_to_write(sweep: Command, arguments: list[str], says: str) -> None:
    code, out, err = sweep("compare", *arguments)
    assert (code, out) == (2, "")
    assert says in err


def test_a_folder_that_holds_a_run_already_is_left_alone(simulated: tuple[dict[str, Any], Path]) -> None:
    _, calm = simulated
    run = calm / load_comparison(calm).entries[0].folder
    for taken in (calm, run):
        with pytest.raises(FolderUnusable, match="already holds"):
            compare("mlp", vary={"seed": [1, 2]}, device="sim:l4", folder=taken)


def test_a_plan_that_cannot_be_read_is_one_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / PLAN).write_text('{"schema": 1')
    with pytest.raises(JournalBroken):
        load_comparison(tmp_path)
    (tmp_path / PLAN).write_text('{"schema": 99}')
    with pytest.raises(SchemaTooNew):
        load_comparison(tmp_path)


def test_two_of_its_runs_are_told_apart(simulated: tuple[dict[str, Any], Path], sweep: Command) -> None:
    _, folder = simulated
    sgd, adamw, half, _ = (str(folder / entry.folder) for entry in load_comparison(folder).entries)
    code, out, _ = sweep("diff", sgd, half)
    assert code == 1
    assert "precision" in out
    code, out, _ = sweep("diff", sgd, adamw, "--json", "--tolerance", "10")
    body = json.loads(out)
    assert code == 0
    assert [change["name"] for change in body["spec"]] == ["optimizer"]
    assert (body["machine"], body["versions"], body["settings"]) == ([], [], [])
    assert sweep("diff", sgd, sgd, "--tolerance", "0")[0] == 0
    code, _, err = sweep("diff", sgd, str(folder))
    assert code == 2
    assert "holds a comparison of 4 runs" in err
    code, _, err = sweep("--resume", str(folder))
    assert code == 2
    assert "sweep compare --resume" in err

"""The command as a person meets it: what is refused, in one line and a hint, before anything runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sweeper.host_memory import children_of
from sweeper.journal import Journal, read_record
from tests.builders import a_finished_record, a_header

Sweep = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["calibrat"], "no command is called 'calibrat'", "did you mean calibrate?"),
        (["resnet18"], "no command is called 'resnet18'", "sweep --help"),
        (["--model", "resnet19"], "no model is called 'resnet19'", "resnet18"),
        (["--model", "resnet19"], "no model is called 'resnet19'", "sweep models"),
        (["--model", "quantized_resnet50"], "for inference on a CPU", "resnet50"),
        (["--model", "nowhere.py:factory"], "nowhere.py", ""),
        (["--model", "resnet18", "--device", "sim:rtx4061"], "rtx4061", "rtx4060"),
        (["--model", "resnet18", "--device", "sim:"], "names no card", "sweep cards"),
        (["--model", "resnet18", "--device", "tpu"], "no device is called 'tpu'", "cuda"),
        (["--model", "resnet18", "--device", "cuda:x"], "cuda:x", "cuda"),
        (["--model", "resnet18", "--precision", "fp33"], "no precision is called 'fp33'", "fp32"),
        (["--model", "resnet18", "--optimizer", "adma"], "no optimizer is called 'adma'", "adam"),
        (["--model", "resnet18", "--mode", "sleep"], "no mode is called 'sleep'", "inference"),
        (["--model", "resnet18", "--isolation", "jail"], "no isolation is called 'jail'", "spawn"),
        (["--model", "resnet18", "--max-batch", "0"], "at least one sample", "1 or more"),
        (["--model", "resnet18", "--batches", "0,8"], "at least one sample", "1 or more"),
        (["--model", "resnet18", "--min-batch", "9", "--max-batch", "8"], "--min-batch 9 is above --max-batch 8", ""),
        (["--model", "resnet18", "--device", "sim:rtx4060", "--memory-limit", "80GiB"], "is more than", "less"),
        (["--model", "resnet18", "--device", "cpu", "--memory-limit", "900TiB"], "is more than", "less"),
        (["--model", "resnet18", "--memory-limit", "lots"], "'lots' is not a size", "8GiB"),
        (["--model", "resnet18", "--steps", "1"], "too few", "--steps 2"),
        (["--model", "resnet18", "--margin", "1.5"], "--margin 1.5", ""),
        (["--model", "resnet18", "--confirm", "0"], "--confirm 0", "1 or more"),
        (["--model", "resnet18", "--round-to", "0"], "--round-to 0", "1 or more"),
        (["--model", "resnet18", "--timeout", "0"], "--timeout 0", "1 or more"),
        (["--model", "resnet18", "--json", "--quiet"], "--json and --quiet", ""),
        ([], "", ""),
        (["--max-batch", "8"], "which model?", "resnet18"),
        (["--resume", "nowhere"], "nowhere holds no run", "folder"),
        (["report", "nowhere"], "nowhere holds no run", "folder"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_line_and_a_hint(
    sweep: Sweep, tmp_path: Path, arguments: list[str], message: str, hint: str
) -> None:
    code, out, err = sweep(*arguments)
    assert message in err + out
    assert hint in err + out
    assert "Traceback" not in err
    if arguments:
        assert code == 2
        assert len(err.splitlines()) == 2, err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "resnet18", "--batches", "8,many"], "no list of numbers"),
        (["--model", "resnet18", "--model-arg", "depth"], "depth=8"),
        (["--model", "resnet18", "--max-batch", "many"], "not a valid integer"),
        (["--modle", "resnet18"], "--model"),
    ],
)
def test_a_mistyped_flag_is_answered_by_the_flag(sweep: Sweep, arguments: list[str], message: str) -> None:
    code, _, err = sweep(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_cards_and_models_are_listed(sweep: Sweep) -> None:
    code, out, _ = sweep("cards")
    assert code == 0
    assert sum("GiB" in line for line in out.splitlines()) >= 12
    assert "rtx4060" in sweep("cards", "4060")[1]
    cards = {card["name"]: card for card in json.loads(sweep("cards", "rtx4060", "--json")[1])}
    assert cards["rtx4060"]["total_bytes"] == 8_318_222_336
    assert all(card["total_source"] for card in cards.values())
    heading, row, *_ = sweep("models", "resnet5*")[1].splitlines()
    assert heading.split() == ["model", "parameters", "one", "sample"]
    assert row.split() == ["resnet50", "25,557,032", "3", "x", "224", "x", "224"]
    code, _, err = sweep("models", "resnt50")
    assert code == 1
    assert "did you mean resnet50" in err


def test_a_run_is_shown_again_from_its_journal(sweep: Sweep, tmp_path: Path) -> None:
    record = a_finished_record()
    with Journal.create(tmp_path / "run", record.header) as journal:
        assert record.device is not None
        journal.set_device(record.device, None)
        for trial in record.trials:
            journal.add(trial)
    code, out, _ = sweep("report", "run")
    assert code == 0
    assert f"{record.max_batch} ran and fitted" in out
    assert "\x1b" not in out
    assert (tmp_path / "run" / "memory.png").stat().st_size > 10_000
    assert json.loads(sweep("report", "run", "--json")[1])["max_batch"] == record.max_batch


def test_a_folder_in_use_says_who_holds_it(sweep: Sweep, tmp_path: Path) -> None:
    with Journal.create(tmp_path / "run", a_header()):
        code, _, err = sweep("--resume", "run")
    assert code == 2
    assert f"in use by process {os.getpid()}" in err


@pytest.mark.parametrize("folder", ["file/run", "file"])
def test_a_folder_that_cannot_be_written_is_one_line(sweep: Sweep, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("kept")
    code, _, err = sweep("--model", "mlp", "--device", "sim:t4", "--folder", folder)
    assert code == 2
    assert "cannot write in" in err
    assert len(err.splitlines()) == 2
    assert (tmp_path / "file").read_text() == "kept"


def test_what_cannot_be_run_leaves_no_folder(sweep: Sweep, tmp_path: Path) -> None:
    code, _, err = sweep("--model", "mlp", "--model-arg", "colour=red", "--device", "sim:t4")
    assert code == 2
    assert "colour" in err
    assert not list((tmp_path / "results").iterdir())


def test_what_would_change_the_question_is_refused_on_resume(sweep: Sweep) -> None:
    code, _, err = sweep("--resume", "run", "--max-batch", "64", "--json")
    assert code == 2
    assert "--max-batch" in err
    assert "--json" not in err


@contextmanager
def _started(folder: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """The command in a process of its own, which ends with the test."""
    command = [sys.executable, "-m", "sweeper", "--folder", str(folder), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        try:
            yield driver
        finally:
            driver.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_ends_its_trials_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    model = Path(__file__).parents[1] / "workers" / "misbehaving.py"
    with _started(tmp_path / "run", "--model", f"{model}:hang", "--device", "cpu", "--no-predict") as driver:
        # The trial has begun when its child has opened its own stderr.
        deadline = time.monotonic() + 60
        while not list((tmp_path / "run").glob("trials/0001-*/stderr")):
            assert driver.poll() is None, driver.communicate()
            assert time.monotonic() < deadline
        children = children_of(driver.pid)
        assert len(children) >= 2
        driver.send_signal(number)
        _, err = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert err.splitlines()[-1] == f"interrupted; go on with: sweep --resume {tmp_path / 'run'}"
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert read_record(tmp_path / "run").trials == ()


def test_a_users_error_is_shown_and_leaves_with_3(tmp_path: Path) -> None:
    model = Path(__file__).parents[1] / "workers" / "misbehaving.py"
    question = ["--model", f"{model}:user_error", "--device", "sim:t4", "--max-batch", "8"]
    with _started(tmp_path / "run", *question) as driver:
        out, err = driver.communicate(timeout=60)
    assert driver.returncode == 3, err
    assert "loss became NaN after host ran out of memory budget config" in out
    assert "in misbehave" in out
    record = read_record(tmp_path / "run")
    assert [getattr(trial.outcome, "failure", None) for trial in record.trials] == ["model_error"] * 2
    assert record.first_failure is None

"""Sweeps along other axes than the batch, by the command: proven on both sides, or refused before there is a folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.journal import read_record
from sweeper.trial import Fit, OutOfMemory

Command = Callable[..., tuple[int, str, str]]


def _swept(sweep: Command, *arguments: str) -> dict[str, Any]:
    code, out, err = sweep(*arguments, "--folder", "run", "--margin", "0", "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    record = read_record(Path("run"))
    assert found["proven"]
    assert found["max_batch"] is None
    outcomes = {trial.size: trial.outcome for trial in record.trials}
    assert isinstance(outcomes[found["max_size"]], Fit)
    assert isinstance(outcomes[found["max_size"] + found["step"]], OutOfMemory)
    return found


def test_the_largest_image_on_a_simulated_card(sweep: Command) -> None:
    words = ("--model", "small-cnn", "--axis", "image-size", "--max", "2048", "--step", "16", "--batch-size", "64")
    found = _swept(sweep, *words, "--device", "sim:t4")
    assert (found["axis"], found["step"], found["curve"][0]["size"]) == ("image-size", 16, 32)
    law = found["law"]
    assert law["per_square_bytes"] > 0
    # A convolution's map alone, in and out of batch norm and ReLU, is three times batch x channels x side^2 floats.
    assert law["per_square_bytes"] > 3 * 64 * 16 * 4
    _, out, _ = sweep("report", "run")
    assert "Largest image that fits" in out
    assert "grows with the square of the image size" in out
    assert "at batch 64" in out


def test_the_longest_sequence_on_a_simulated_card(sweep: Command) -> None:
    words = ("--model", "tiny-transformer", "--axis", "seq-len", "--max", "65536", "--batch-size", "32")
    found = _swept(sweep, *words, "--device", "sim:t4", "--memory-limit", "4GiB")
    assert (found["axis"], found["step"], found["curve"][0]["size"]) == ("seq-len", 8, 8)
    assert found["law"]["per_square_bytes"] == 0
    assert "grows in a straight line with the sequence length" in sweep("report", "run")[1]


def test_the_deepest_network_on_the_cpu_goes_on_after_a_kill(sweep: Command, tmp_path: Path) -> None:
    words = ("--model", "mlp", "--axis", "model.depth", "--min", "4", "--step", "4", "--max", "64", "--steps", "2")
    how = ("--batch-size", "8", "--memory-limit", "192MiB", "--device", "cpu", "--confirm", "1")
    found = _swept(sweep, *words, *how)
    assert found["spec"]["model_args"] == {}
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:4]))
    code, out, _ = sweep("--resume", "run", "--json")
    assert code == 0
    again = json.loads(out)
    assert (again["axis"], again["step"], again["proven"]) == ("model.depth", 4, True)
    assert abs(again["max_size"] - found["max_size"]) <= 4  # resident bytes differ by a few from run to run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "mlp", "--axis", "image-size", "--max", "64"], "mlp"),
        (["--model", "resnet18", "--axis", "seq-len", "--max", "64"], "resnet18 takes no"),
        (["--model", "resnet18", "--axis", "model.nonsense", "--max", "64"], "no argument 'nonsense'"),
        (["--model", "small-cnn", "--axis", "model.depth"], "how far along model.depth"),
        (["--model", "small-cnn", "--axis", "model.depth", "--max", "8", "--model-arg", "depth=4"], "is the axis too"),
        (["--model", "vit_b_16", "--axis", "image-size", "--max", "512", "--step", "24"], "multiples of 16"),
        (["--model", "inception_v3", "--axis", "image-size", "--max", "200"], "smallest"),
    ],
)
def test_an_axis_that_a_model_has_not_is_refused_in_two_lines_and_leaves_no_folder(
    sweep: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, _, err = sweep(*arguments, "--device", "sim:t4")
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 2, err
    assert not (tmp_path / "results").exists()

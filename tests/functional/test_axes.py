"""Sweeps along other axes than the batch, by the command: proven on both sides, or refused before there is a folder."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeper.checks import Sizes
from sweeper.errors import UsageError
from sweeper.journal import read_record
from sweeper.record import Settings
from sweeper.runner import Runner, open_runner
from sweeper.sizing import settle
from sweeper.trial import Fit, OutOfMemory
from tests.builders import a_spec

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
    words = ("--model", "mlp", "--axis", "model.depth", "--min", "4", "--step", "4", "--max", "32", "--steps", "2")
    how = ("--batch-size", "8", "--memory-limit", "128MiB", "--device", "cpu", "--confirm", "1")
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


def test_an_argument_that_a_model_has_not_leaves_no_folder(sweep: Command, tmp_path: Path) -> None:
    code, _, err = sweep("--model", "resnet18", "--axis", "model.nonsense", "--max", "64", "--device", "sim:t4")
    assert code == 2
    assert "no argument 'nonsense'" in err
    assert len(err.splitlines()) == 2, err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "small-cnn", "--axis", "model.depth"], "how far along model.depth"),
        (["--model", "small-cnn", "--axis", "model.depth", "--max", "8", "--model-arg", "depth=4"], "is the axis too"),
        (["--model", "small-cnn", "--axis", "image-size", "--max", "64", "--max-batch", "8"], "bound the batch"),
    ],
)
def test_an_axis_that_the_words_deny_is_refused_in_two_lines(
    sweep: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, _, err = sweep(*arguments, "--device", "sim:t4")
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 2, err
    assert not (tmp_path / "results").exists()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with open_runner("fork", timeout_s=120) as opened:
        yield opened


@pytest.mark.parametrize(
    ("model", "axis", "most", "step", "message"),
    [
        ("mlp", "image-size", 64, None, "mlp"),
        ("mlp", "seq-len", 64, None, "mlp"),
        ("resnet18", "seq-len", 64, None, "resnet18 takes no"),
        ("tiny-transformer", "image-size", 64, None, "tiny-transformer"),
        ("vit_b_16", "image-size", 512, 24, "multiples of 16"),
        ("inception_v3", "image-size", 200, None, "smallest size is 299"),
        ("small-cnn", "model.depht", 8, None, "no argument 'depht'"),
    ],
)
def test_an_axis_that_a_model_has_not_is_refused_by_the_model(
    runner: Runner, model: str, axis: str, most: int, step: int | None, message: str
) -> None:
    sizes = Sizes(floor=None, cap=most, step=step)
    with pytest.raises(UsageError, match=message):
        settle(runner, a_spec(model=model), Settings(cap=most, axis=axis), sizes)


@pytest.mark.parametrize(
    ("model", "axis", "grid"),
    [
        ("vit_b_16", "image-size", (32, 1024, 16)),
        ("small-cnn", "image-size", (32, 1024, 1)),
        ("inception_v3", "image-size", (299, 1024, 1)),
        ("tiny-transformer", "seq-len", (8, 1024, 8)),
    ],
)
def test_the_grid_is_the_models_own(runner: Runner, model: str, axis: str, grid: tuple[int, int, int]) -> None:
    sizes = Sizes(floor=None, cap=1024, step=None)
    _, found = settle(runner, a_spec(model=model), Settings(cap=1024, axis=axis), sizes)
    assert (found.floor, found.cap, found.step) == grid

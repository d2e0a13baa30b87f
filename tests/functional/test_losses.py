"""A loss that is no number: recorded as what it is, told with its first step, and no obstacle to the boundary."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sweeper.runner import ForkRunner
from sweeper.trial import Fit, TrialSpec

LOSSES = Path(__file__).parents[1] / "workers" / "losses.py"

Train = Callable[..., Fit]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    folder = tmp_path_factory.mktemp("losses")
    numbers = iter(range(1000))
    with closing(ForkRunner(timeout_s=120, log=folder / "log")) as runner:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")
            runner.start()

        def run(device: str = "cpu", model: str = f"{LOSSES}:turning", **changes: Any) -> Fit:
            spec = TrialSpec(**{"model": model, "batch_size": 2, "device": device, **changes})
            found = runner.run(spec, folder / f"{next(numbers)}")
            assert isinstance(found, Fit), found
            return found

        yield run


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("at", [1, 3])
def test_each_step_says_what_its_loss_was(train: Train, value: str, at: int) -> None:
    fit = train(model_args={"value": value, "at": at}, steps=4)
    for number, step in enumerate(fit.steps, start=1):
        if number < at:
            assert step.loss is not None
            assert step.not_finite is None
        elif number == at:
            assert (step.loss, step.not_finite) == (None, value)
        else:  # the weights were updated with gradients that are no numbers
            assert step.loss is None
            assert step.not_finite is not None
    assert fit.loss_finite is False
    assert fit.notes == ()


def test_a_finite_loss_is_said_to_be_one_and_no_loss_is_nothing(train: Train) -> None:
    assert train(model_args={"at": 99}).loss_finite is True
    for nothing in (train(model_args={"at": 1}, mode="inference"), train("sim:rtx4060", model_args={"at": 1})):
        assert nothing.loss_finite is None
        assert {(step.loss, step.not_finite) for step in nothing.steps} == {(None, None)}


def test_the_first_steps_of_a_gradient_scaler_are_no_numeric_failure(train: Train) -> None:
    """Its first scale of 65536 makes gradients of fp16 overflow; the loss is as finite as ever."""
    fit = train(model="mlp", precision="amp-fp16")
    assert fit.loss_finite is True


def test_the_boundary_is_found_and_the_reader_is_told(
    sweep: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = str(tmp_path / "run")
    question = ("--model", f"{LOSSES}:turning", "--device", "cpu", "--batches", "1,2", "--folder", folder)
    code, out, _ = sweep(*question, "--json")
    answer = json.loads(out)
    assert (code, answer["max_batch"], answer["broken"]) == (0, 2, None)
    assert [(p["loss_finite"], p["numeric"]) for p in answer["curve"]] == [(False, {"step": 2, "value": "nan"})] * 2
    told = "numeric: the loss is not finite, nan at step 2, at 1, 2; memory was measured all the same"
    assert answer["warnings"] == [told]
    code, out, _ = sweep("report", folder)
    assert code == 0
    assert told in " ".join(out.split())
    assert "loss_finite" in (tmp_path / "run" / "curve.csv").read_text().splitlines()[0]

"""What a frontier asks of the worker, and what it writes down: each trial once, whatever happens in between."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.boundary import MeasuredPoint
from sweeper.charting import TRIALS, Asked, fitted_to, measure
from sweeper.errors import FolderUnusable, UsageError, WorkerFailed
from sweeper.trial import DescribeModel, ModelReport, Outcome, Refused, Request, Response, TrialSpec
from sweeper.units import MIB
from tests.builders import a_broken, a_device, a_fit, a_spec, an_oom
from tests.frontiers import a_frontier


def a_model(**changes: Any) -> ModelReport:
    given: dict[str, Any] = {"parameters": 1, "trainable": 1, "inputs": "512 tokens", "seq_len": 512}
    return ModelReport(**{**given, **changes})


class ModelRunner:
    """Answers ``DescribeModel`` by ``answer``."""

    def __init__(self, answer: Callable[[TrialSpec], Response]) -> None:
        self._answer = answer

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        assert isinstance(request, DescribeModel)
        return self._answer(request.spec)

    def close(self) -> None:
        """Nothing runs."""


def with_positions(own: int, *, kept: int = 0) -> Callable[[TrialSpec], ModelReport]:
    """A model of ``own`` positions, or as many as its argument says; ``kept`` of them are its own."""

    def answer(spec: TrialSpec) -> ModelReport:
        said = int(spec.model_args.get("n_positions", own + kept))
        return a_model(positions=said - kept, positions_argument="n_positions")

    return answer


@pytest.mark.parametrize(("own", "kept", "given"), [(4096, 0, None), (1024, 0, 4096), (512, 2, 4098)])
def test_a_model_gets_as_many_positions_as_the_longest_length_needs(
    own: int, kept: int, given: int | None, tmp_path: Path
) -> None:
    runner = ModelRunner(with_positions(own, kept=kept))
    spec, lengths, notes = fitted_to(runner, a_spec(model="hf:gpt2"), Asked(cap=64, longest=4096), tmp_path)
    assert lengths == range(128, 4097, 128)
    assert spec.model_args.get("n_positions") == given
    if given is None:
        assert notes == ()
    else:
        assert notes == (f"built with n_positions={given} at every length: its own {own} positions are too few",)


def test_without_a_longest_length_it_is_all_the_positions(tmp_path: Path) -> None:
    runner = ModelRunner(with_positions(1024))
    _, lengths, notes = fitted_to(runner, a_spec(model="hf:gpt2"), Asked(cap=64, shortest=100), tmp_path)
    assert (lengths, notes) == (range(128, 1025, 32), ())


@pytest.mark.parametrize(
    ("model", "answer", "asked", "words"),
    [
        ("resnet18", a_model(seq_len=None), {"longest": 512}, "resnet18 has no sequences"),
        ("hf:gpt2", a_model(), {}, "how long"),
        ("hf:gpt2", a_model(positions=512), {"longest": 1024}, "takes at most 512 tokens"),
        ("hf:gpt2", a_model(), {"longest": 100, "step": 128}, "no length from 128 to 100 is a multiple of 128"),
        ("hf:gpt2", Refused(message="no such model", hint="look"), {"longest": 100}, "no such model"),
    ],
)
def test_lengths_that_the_model_does_not_take_are_refused(
    model: str, answer: Response, asked: dict[str, int], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        fitted_to(ModelRunner(lambda _: answer), a_spec(model=model), Asked(cap=8, **asked), tmp_path)


def test_a_model_that_cannot_be_built_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="mat1 and mat2"):
        fitted_to(ModelRunner(lambda _: a_broken()), a_spec(model="hf:gpt2"), Asked(cap=8, longest=64), tmp_path)


def test_a_users_own_model_may_take_any_length(tmp_path: Path) -> None:
    runner = ModelRunner(lambda _: a_model(seq_len=None))
    spec, lengths, _ = fitted_to(runner, a_spec(model="my.py:model"), Asked(cap=8, longest=64, step=16), tmp_path)
    assert (spec, lengths) == (a_spec(model="my.py:model"), range(16, 65, 16))


class TrialRunner:
    """Answers each trial by ``answer``; ``ran`` is (batch, length, limit) of each."""

    def __init__(self, answer: Callable[[int, int], Response]) -> None:
        self._answer = answer
        self.ran: list[tuple[int | None, int]] = []

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        assert isinstance(request, TrialSpec)
        assert request.seq_len is not None
        self.ran.append((request.seq_len, request.batch_size))
        self.spec = request
        return self._answer(request.seq_len, request.batch_size)

    def close(self) -> None:
        """Nothing runs."""


FOUND = a_frontier({128: 64, 256: 40, 512: 20, 1024: None})


def as_predicted(length: int, batch: int) -> Outcome:
    largest = {point.length: point.max_batch or 0 for point in FOUND.points}
    return a_fit(batch) if batch <= largest[length] else an_oom()


@pytest.mark.parametrize(
    ("count", "ran"),
    [
        (1, [(512, 20), (512, 21)]),
        (2, [(256, 40), (256, 41), (1024, 1)]),
        (9, [(256, 40), (256, 41), (512, 20), (512, 21), (1024, 1)]),
    ],
)
def test_both_sides_of_the_boundary_are_run_where_it_is_below_the_cap(
    count: int, ran: list[tuple[int, int]], tmp_path: Path
) -> None:
    runner = TrialRunner(as_predicted)
    told: list[MeasuredPoint] = []
    found = measure(FOUND, count, runner, tmp_path, on_trial=told.append)
    assert runner.ran == ran == [(point.length, point.batch) for point in found.measured]
    assert list(found.measured) == told
    assert found.agreeing == len(ran)
    assert [point.predicted_fits for point in found.measured] == [point.fits for point in found.measured]


def test_where_all_is_at_the_cap_the_cap_is_run(tmp_path: Path) -> None:
    runner = TrialRunner(lambda length, batch: a_fit(batch))
    measure(a_frontier({128: 64, 256: 64}), 2, runner, tmp_path)
    assert runner.ran == [(128, 64), (256, 64)]


def test_a_trial_that_ends_otherwise_does_not_agree(tmp_path: Path) -> None:
    found = measure(FOUND, 9, TrialRunner(lambda length, batch: an_oom()), tmp_path)
    assert (len(found.measured), found.agreeing) == (5, 3)
    broken = measure(FOUND, 9, TrialRunner(lambda length, batch: a_broken()), tmp_path / "broken")
    assert (broken.agreeing, {point.fits for point in broken.measured}) == (0, {None})


def test_what_is_written_down_is_not_run_again_and_a_trial_that_broke_is(tmp_path: Path) -> None:
    def breaks_once(length: int, batch: int) -> Outcome:
        return a_broken() if (length, batch) == (512, 20) else as_predicted(length, batch)

    first = TrialRunner(breaks_once)
    measure(FOUND, 9, first, tmp_path)
    assert first.ran.count((512, 20)) == 2  # once more, as in a sweep
    again = TrialRunner(as_predicted)
    found = measure(FOUND, 9, again, tmp_path)
    assert again.ran == [(512, 20)]
    assert found.agreeing == 5
    nothing = TrialRunner(as_predicted)
    assert measure(FOUND, 9, nothing, tmp_path) == found
    assert nothing.ran == []


def test_a_torn_last_line_is_cut_off_and_its_trial_run_again(tmp_path: Path) -> None:
    found = measure(FOUND, 9, TrialRunner(as_predicted), tmp_path)
    whole = (tmp_path / TRIALS).read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in (last, last + 1, (last + len(whole)) // 2, len(whole) - 1):
        (tmp_path / TRIALS).write_bytes(whole[:cut])
        again = TrialRunner(as_predicted)
        assert measure(FOUND, 9, again, tmp_path) == found
        assert again.ran == [(1024, 1)]
        assert (tmp_path / TRIALS).read_bytes() == whole


@pytest.mark.parametrize("line", ["{", '{"length": 1}', "[]"])
def test_a_line_that_is_no_trial_is_an_error(line: str, tmp_path: Path) -> None:
    measure(FOUND, 1, TrialRunner(as_predicted), tmp_path)
    with (tmp_path / TRIALS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(FolderUnusable, match="cannot be read"):
        measure(FOUND, 1, TrialRunner(as_predicted), tmp_path)


@pytest.mark.parametrize(
    "other",
    [
        {"spec": a_spec(model="tiny-transformer", precision="bf16")},
        {"device": a_device(total_bytes=1)},
        {"device": a_device(torch="2.9.1")},
    ],
)
def test_trials_of_another_question_are_not_mixed_in(other: dict[str, Any], tmp_path: Path) -> None:
    measure(FOUND, 1, TrialRunner(as_predicted), tmp_path)
    with pytest.raises(FolderUnusable, match="another question"):
        measure(dataclasses.replace(FOUND, **other), 1, TrialRunner(as_predicted), tmp_path)


@pytest.mark.parametrize(("device", "same"), [("cuda", True), ("cpu", False)])
def test_what_is_free_may_change_on_a_gpu_and_is_the_question_on_the_cpu(
    device: str, same: bool, tmp_path: Path
) -> None:
    for capacity, ran in ((900 * MIB, 2), (800 * MIB, 0)):
        report = a_device(device=device, capacity_bytes=capacity)
        found = dataclasses.replace(FOUND, device=report, spec=a_spec(model="tiny-transformer", device=device))
        runner = TrialRunner(as_predicted)
        if not same and not ran:
            with pytest.raises(FolderUnusable, match="another question"):
                measure(found, 1, runner, tmp_path)
            return
        measure(found, 1, runner, tmp_path)
        assert len(runner.ran) == ran
        if device == "cpu":
            assert runner.spec.memory_limit_bytes == capacity
        assert json.loads((tmp_path / TRIALS).read_text().splitlines()[0])["schema"] == 1


def test_a_trial_that_is_refused_or_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not here"):
        measure(FOUND, 1, TrialRunner(lambda length, batch: Refused(message="not here", hint="")), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable):
        measure(FOUND, 1, TrialRunner(as_predicted), tmp_path / "file")


def test_positions_that_were_asked_for_are_not_overridden(tmp_path: Path) -> None:
    spec = a_spec(model="hf:gpt2", model_args={"n_positions": 512})
    with pytest.raises(UsageError, match="n_positions=512 leaves no room for 1024 tokens") as refused:
        fitted_to(ModelRunner(with_positions(512)), spec, Asked(cap=8, longest=1024), tmp_path)
    assert "--max-seq-len" in refused.value.hint

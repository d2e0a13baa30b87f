"""The loop: what the record asks for is run and written down, whatever the trials answer."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.axes import at_size, size_of
from sweeper.errors import UsageError
from sweeper.journal import Journal, read_record
from sweeper.record import Header, Record, Settings
from sweeper.runner import Exit, read_response
from sweeper.sweeping import Silent, run_sweep
from sweeper.trial import (
    Broken,
    CardMemory,
    Fit,
    Outcome,
    OutOfMemory,
    Refused,
    Request,
    Response,
    TrialSpec,
    request_to_json,
    response_to_json,
)
from sweeper.units import GIB, MIB
from tests.builders import a_broken, a_device, a_fit, a_header, a_spec, an_oom
from tests.scripted import CAPACITY, ScriptedRunner, threshold_at

Script = Callable[[TrialSpec], Outcome]


def header(**settings: object) -> Header:
    return a_header(spec=a_spec(device="cuda"), settings=Settings(**{"cap": 512, **settings}))  # type: ignore[arg-type]


def swept(folder: Path, script: Script, **settings: object) -> tuple[Record, ScriptedRunner]:
    runner = ScriptedRunner(script)
    with Journal.create(folder, header(**settings)) as journal:
        return run_sweep(journal, runner, Silent()), runner


@pytest.mark.parametrize("threshold", [0, 1, 2, 3, 31, 32, 33, 100, 437, 511, 512, 600])
def test_the_threshold_is_found_proven_and_written_down(tmp_path: Path, threshold: int) -> None:
    record, runner = swept(tmp_path / "run", threshold_at(threshold), confirm=2)
    assert record.max_batch == (min(threshold, 512) or None)
    assert record.proven
    assert read_record(tmp_path / "run") == record
    assert [trial.size for trial in record.trials] == runner.sizes
    assert [trial.number for trial in record.trials] == list(range(1, len(runner.sizes) + 1))
    if record.max_batch is not None:
        assert runner.sizes.count(record.max_batch) >= 2


def test_the_recommended_batch_ran_with_the_margin_withheld(tmp_path: Path) -> None:
    record, _ = swept(tmp_path / "run", threshold_at(437), margin=0.1, round_to=8)
    recommended = record.recommended_batch
    assert recommended is not None
    assert recommended % 8 == 0
    assert 0.85 * 437 < recommended < 0.92 * 437
    proof = [t for t in record.trials if t.size == recommended and t.withheld_bytes]
    assert isinstance(proof[-1].outcome, Fit)
    assert proof[-1].outcome.capacity_bytes == CAPACITY - proof[-1].withheld_bytes
    # What was withheld says nothing of the curve, nor of the capacity.
    assert record.capacity_bytes == CAPACITY
    assert recommended not in [p.size for p in record.curve] or not all(t.withheld_bytes for t in proof)


def test_a_list_is_run_upwards_until_it_runs_out(tmp_path: Path) -> None:
    record, runner = swept(tmp_path / "run", threshold_at(40), sizes=(8, 16, 32, 64, 128))
    assert runner.sizes == [8, 16, 32, 64]
    assert record.max_batch == 32
    assert not record.proven


def _broken_at(size: int, times: int) -> Script:
    left = [times]

    def script(spec: TrialSpec) -> Outcome:
        if spec.batch_size == size and left[0]:
            left[0] -= 1
            return a_broken()
        return threshold_at(437)(spec)

    return script


def test_a_trial_that_breaks_once_is_run_again_and_moves_nothing(tmp_path: Path) -> None:
    record, runner = swept(tmp_path / "run", _broken_at(64, times=1))
    assert record.max_batch == 437
    assert record.broken is None
    assert record.counts["broken"] == 1
    at = runner.sizes.index(64)
    assert runner.sizes[at : at + 2] == [64, 64]


def test_a_trial_that_breaks_twice_ends_the_sweep_and_moves_nothing(tmp_path: Path) -> None:
    record, runner = swept(tmp_path / "run", _broken_at(64, times=2))
    assert record.broken is not None
    assert runner.sizes[-2:] == [64, 64]
    assert record.first_failure is None
    assert record.max_batch is None or record.max_batch < 64
    assert not record.proven


def test_batch_norm_that_needs_two_values_makes_the_sweep_start_at_two(tmp_path: Path) -> None:
    def script(spec: TrialSpec) -> Outcome:
        if spec.batch_size == 1:
            text = "ValueError: Expected more than 1 value per channel when training, got input size [1, 512, 1, 1]"
            return Broken(failure="model_error", reason=text)
        return threshold_at(37)(spec)

    record, runner = swept(tmp_path / "run", script, cap=64)
    assert runner.sizes.count(1) == 1
    assert (record.max_batch, record.proven, record.broken) == (37, True, None)
    assert any("started at 2" in warning for warning in record.warnings)


def suspect(free: int) -> OutOfMemory:
    return an_oom(failure="oom_suspect", free_bytes=free, reserved_bytes=CAPACITY - free, capacity_bytes=CAPACITY)


@pytest.mark.parametrize(
    ("answers", "fits", "ends"),
    [
        ([suspect(MIB), suspect(MIB)], False, False),  # again, and little was free: out of memory
        ([suspect(MIB), "fit"], True, False),  # not again: it fits
        ([suspect(6 * GIB), suspect(6 * GIB)], None, True),  # again, with plenty free: something else
        ([suspect(MIB), an_oom(capacity_bytes=CAPACITY)], False, False),  # now said plainly
    ],
    ids=["confirmed", "gone", "not memory", "plain at last"],
)
def test_a_suspect_is_run_once_more(
    tmp_path: Path, answers: list[Outcome | str], fits: bool | None, ends: bool
) -> None:
    script = iter(answers)

    def run(spec: TrialSpec) -> Outcome:
        if spec.batch_size != 256:
            return threshold_at(300)(spec)
        answer = next(script, "fit")
        return threshold_at(300)(spec) if isinstance(answer, str) else answer

    record, runner = swept(tmp_path / "run", run, sizes=(128, 256))
    assert runner.sizes == [128, 256, 256]
    assert (record.broken is not None) == ends
    point = next(p for p in record.curve if p.size == 256)
    assert point.outcome == {True: "fit", False: "oom", None: "broken"}[fits]


def test_noise_of_other_processes_is_reported(tmp_path: Path) -> None:
    others = itertools.chain([2 * GIB] * 3, itertools.repeat(0))

    def script(spec: TrialSpec) -> Outcome:
        held = next(others)
        outcome = threshold_at(100)(spec)
        memory = CardMemory(total_bytes=16 * GIB, used_bytes=held + GIB, process_bytes=GIB)
        assert isinstance(outcome, Fit | OutOfMemory)
        return dataclasses.replace(outcome, card_before=memory, card_after=memory)

    record, _ = swept(tmp_path / "run", script)
    assert any("2048 MiB" in warning and "noisy" in warning for warning in record.warnings)


def test_a_limit_above_the_card_is_refused_before_any_trial(tmp_path: Path) -> None:
    asked = a_header(spec=a_spec(device="cuda", memory_limit_bytes=9999 * GIB), settings=Settings(cap=8))
    runner = ScriptedRunner(threshold_at(3))
    with Journal.create(tmp_path / "run", asked) as journal, pytest.raises(UsageError, match="is more than"):
        run_sweep(journal, runner, Silent())
    assert runner.sizes == []


def test_what_the_worker_refuses_is_a_usage_error(tmp_path: Path) -> None:
    class Refusing(ScriptedRunner):
        def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
            response = super().run(request, folder, timeout_s=timeout_s)
            return Refused(message="no such argument", hint="see") if isinstance(request, TrialSpec) else response

    with Journal.create(tmp_path / "run", header()) as journal, pytest.raises(UsageError, match="no such argument"):
        run_sweep(journal, Refusing(threshold_at(3)), Silent())


class _DriverDied(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


class _Dying(ScriptedRunner):
    """Writes what a worker writes; the driver dies at the ``at``-th trial, before or after its result is there."""

    def __init__(self, script: Script, *, at: int, result_is_there: bool) -> None:
        super().__init__(script)
        self._at, self._result_is_there = at, result_is_there

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        response = super().run(request, folder, timeout_s=timeout_s)
        if isinstance(request, TrialSpec):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "request.json").write_text(request_to_json(request))
            dies = len(self.sizes) == self._at
            if not dies or self._result_is_there:
                (folder / "result.json").write_text(response_to_json(response))
            if dies:
                raise _DriverDied
        return response


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("result_is_there", [False, True])
def test_a_driver_that_dies_at_any_trial_loses_none_and_runs_none_twice(
    tmp_path: Path, at: int, result_is_there: bool
) -> None:
    calm, calm_runner = swept(tmp_path / "calm", threshold_at(300))
    dying = _Dying(threshold_at(300), at=at, result_is_there=result_is_there)
    with Journal.create(tmp_path / "run", header()) as journal, pytest.raises(_DriverDied):
        run_sweep(journal, dying, Silent())
    second = ScriptedRunner(threshold_at(300))
    with Journal.reopen(tmp_path / "run") as journal:
        record = run_sweep(journal, second, Silent())
    assert [(t.number, t.size, t.outcome) for t in record.trials] == [
        (t.number, t.size, t.outcome) for t in calm.trials
    ]
    ran = dying.sizes + second.sizes
    # A finished result is adopted; one that was not there is run, for the first time to its end.
    assert ran == (calm_runner.sizes if result_is_there else dying.sizes + calm_runner.sizes[at - 1 :])


def test_a_finished_run_is_resumed_without_a_worker(tmp_path: Path) -> None:
    record, _ = swept(tmp_path / "run", threshold_at(30))

    class NoWorker(ScriptedRunner):
        def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
            raise AssertionError("nothing is left to run")

    with Journal.reopen(tmp_path / "run") as journal:
        assert run_sweep(journal, NoWorker(threshold_at(30)), Silent()) == record


def test_resuming_on_another_machine_is_refused(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "run", header()) as journal:
        journal.set_device(a_device(device="cuda", label="One card"), None)
    other = ScriptedRunner(threshold_at(30), device=a_device(device="cuda", label="Another card"))
    with Journal.reopen(tmp_path / "run") as journal, pytest.raises(UsageError, match="Another card"):
        run_sweep(journal, other, Silent())


RESULT = response_to_json(a_fit(8))


@pytest.mark.parametrize(
    ("ended", "result", "failure"),
    [
        (Exit(code=0), RESULT, None),
        (Exit(code=0), None, "infra"),
        (Exit(code=0), RESULT[: len(RESULT) // 2], "infra"),
        (Exit(code=1), RESULT, "infra"),
        (Exit(code=-11), None, "cuda_fault"),
        (Exit(code=-9), None, "infra"),
        (Exit(code=-9, oom_kills=1), None, "oom_host"),
        (Exit(code=None, timed_out=True), None, "timeout"),
        (Exit(code=None, timed_out=True), RESULT, "timeout"),
        (Exit(code=None, host_memory=True), None, "oom_host"),
        (Exit(code=None, host_died=True), None, "infra"),
    ],
)
def test_how_a_process_ended_is_read_in_one_table(ended: Exit, result: str | None, failure: str | None) -> None:
    response = read_response(ended, result, log_tail="the end", timeout_s=7)
    if failure is None:
        assert response == a_fit(8)
    else:
        assert isinstance(response, Broken)
        assert (response.failure, response.log_tail) == (failure, "the end")


# -- along another axis -----------------------------------------------------------------------------------------


def _largest(axis: str, most: int) -> Script:
    """Fits while the size along ``axis`` is at most ``most``; peaks grow with its square, the batch plays no part."""

    def answer(spec: TrialSpec) -> Outcome:
        size = size_of(spec, axis)
        assert size is not None
        limit = min(CAPACITY, spec.memory_limit_bytes or CAPACITY)
        need = 256 * MIB + (CAPACITY - 256 * MIB) * size * size // (most * most)
        if need > limit:
            return an_oom(capacity_bytes=limit)
        return Fit(peak_allocated_bytes=need, peak_reserved_bytes=need, capacity_bytes=limit, steps=())

    return answer


@pytest.mark.parametrize("axis", ["seq-len", "image-size", "model.depth"])
@pytest.mark.parametrize("most", [8, 96, 104, 1000, 4096])
def test_the_largest_size_of_an_axis_is_proven_on_its_grid(tmp_path: Path, axis: str, most: int) -> None:
    spec = at_size(a_spec(device="cuda", batch_size=4), axis, 8)
    settings = Settings(floor=8, cap=2048, step=8, axis=axis, margin=0.1, round_to=3)
    with Journal.create(tmp_path / "run", a_header(spec=spec, settings=settings)) as journal:
        record = run_sweep(journal, ScriptedRunner(_largest(axis, most)), Silent())
    assert record.max_size == min(most, 2048)
    assert record.max_batch is None
    assert record.recommended_batch is None
    assert record.proven
    assert record.first_failure in (None, record.max_size + 8)
    assert all(trial.size % 8 == 0 for trial in record.trials)
    assert (record.recommended_size or 0) % 24 == 0
    assert record.prediction is None
    assert len(record.trials) <= 22
    letters = {"seq-len": "s", "image-size": "i", "model.depth": "m"}
    assert record.trials[0].folder == f"trials/0001-{letters[axis]}0008"
    assert read_record(tmp_path / "run") == record


def test_a_sweep_along_an_axis_that_was_killed_is_the_same_sweep(tmp_path: Path) -> None:
    spec = a_spec(device="cuda", seq_len=8)
    header = a_header(spec=spec, settings=Settings(floor=8, cap=512, step=8, axis="seq-len"))
    with Journal.create(tmp_path / "whole", header) as journal:
        whole = run_sweep(journal, ScriptedRunner(_largest("seq-len", 304)), Silent())
    for done in range(len(whole.trials)):
        with Journal.create(tmp_path / f"half-{done}", header) as journal:
            assert whole.device is not None
            journal.set_device(whole.device, None)
            for trial in whole.trials[:done]:
                journal.add(trial)
        with Journal.reopen(tmp_path / f"half-{done}") as journal:
            again = run_sweep(journal, ScriptedRunner(_largest("seq-len", 304)), Silent())
        assert [trial.size for trial in again.trials] == [trial.size for trial in whole.trials]


@pytest.mark.parametrize(("batch", "refused_to"), [(1, 32), (1, 64), (1, 512), (2, 32)])
def test_images_that_batch_norm_refuses_at_batch_one_raise_the_floor(
    tmp_path: Path, batch: int, refused_to: int
) -> None:
    largest = _largest("image-size", 700)

    def script(spec: TrialSpec) -> Outcome:
        if spec.image_size is not None and spec.image_size <= refused_to:
            return a_broken(reason="ValueError: Expected more than 1 value per channel when training, got input size 1")
        return largest(spec)

    header = a_header(
        spec=a_spec(device="cuda", image_size=32, batch_size=batch),
        settings=Settings(floor=32, cap=800, axis="image-size"),
    )
    with Journal.create(tmp_path / "run", header) as journal:
        record = run_sweep(journal, ScriptedRunner(script), Silent())
    if batch > 1 or refused_to == 512:  # another fault, or nothing left below the cap
        assert record.broken is not None
        return
    assert (record.floor, record.max_size, record.proven) == (2 * refused_to, 700, True)
    assert any(f"started at {2 * refused_to}" in warning for warning in record.warnings)

"""Every device keeps the same laws: what a trial on it says is whole, adds up, and stays within its limit.

``rig`` is the ``cuda`` device on the stand-in runtime (tests/rig); ``cuda`` is a real GPU, where there is one.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sweeper.runner import ForkRunner
from sweeper.trial import (
    KINDS,
    PHASES,
    Describe,
    DeviceReport,
    Fit,
    Outcome,
    OutOfMemory,
    PhasePeak,
    Response,
    StepRecord,
    TrialSpec,
)
from sweeper.units import GIB, MIB
from tests.rig.build import Rig
from tests.rig.fixtures import rig

__all__ = ["rig"]

NETWORKS = Path(__file__).parents[1] / "workers" / "networks.py"
PARAMETERS = 4 * (1024 * 1024 + 1024)  # of the network `linears`
WEIGHTS = 4 * PARAMETERS
INPUT_BYTES = 4 * 1024  # of one sample
LIMIT = 128 * MIB

Ask = Callable[[TrialSpec | Describe], Response]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, Mapping[str, str]], Ask]]:
    """``hosts(name, environment)`` starts a host once and returns what runs a request on it, once each."""
    folder = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:

        @cache
        def host(name: str) -> tuple[ForkRunner, dict[str, Response]]:
            return stack.enter_context(closing(ForkRunner(timeout_s=120, log=folder / f"{name}.log"))), {}

        def ask_on(name: str, environment: Mapping[str, str]) -> Ask:
            runner, answers = host(name)
            with pytest.MonkeyPatch.context() as patch:
                for variable, value in environment.items():
                    patch.setenv(variable, value)
                runner.start()

            def ask(request: TrialSpec | Describe) -> Response:
                key = repr(request)
                if key not in answers:
                    answers[key] = runner.run(request, folder / f"{name}-{len(answers)}")
                return answers[key]

            return ask

        yield ask_on


class Bench:
    """One device, and the network ``linears`` on it."""

    def __init__(self, device: str, ask: Ask) -> None:
        self.device, self._ask = device, ask

    def report(self, memory_limit_bytes: int | None = None) -> DeviceReport:
        report = self._ask(Describe(device=self.device, memory_limit_bytes=memory_limit_bytes))
        assert isinstance(report, DeviceReport), report
        return report

    def outcome(self, **changes: Any) -> Outcome:
        given = {"model": f"{NETWORKS}:linears", "batch_size": 64, "device": self.device, **changes}
        outcome = self._ask(TrialSpec(**given))
        assert isinstance(outcome, Outcome), outcome
        return outcome

    def fit(self, **changes: Any) -> Fit:
        outcome = self.outcome(**changes)
        assert isinstance(outcome, Fit), outcome
        return outcome

    def out_of_memory(self, **changes: Any) -> OutOfMemory:
        outcome = self.outcome(**changes)
        assert isinstance(outcome, OutOfMemory), outcome
        return outcome


def real_gpu(ask: Ask) -> None:
    if not any(os.access(node, os.R_OK) for node in ("/dev/nvidiactl", "/dev/kfd")):
        pytest.skip("no GPU on this machine")
    report = ask(Describe(device="cuda"))
    if not isinstance(report, DeviceReport):
        pytest.skip(f"no usable GPU: {report}")


@pytest.fixture(
    params=[
        "cpu",
        "sim:rtx4060",
        pytest.param("rig", marks=pytest.mark.rig),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def bench(request: pytest.FixtureRequest, hosts: Callable[[str, Mapping[str, str]], Ask]) -> Bench:
    if request.param == "rig":
        stand_in: Rig = request.getfixturevalue("rig")
        return Bench("cuda", hosts("rig", stand_in.environment(2 * GIB, context_bytes=16 * MIB)))
    ask = hosts("here", {})
    if request.param == "cuda":
        real_gpu(ask)
    return Bench(request.param, ask)


EVERY_WAY: list[dict[str, Any]] = [
    {},
    {"optimizer": "adam"},
    {"precision": "amp-bf16"},
    {"precision": "bf16"},
    {"mode": "inference"},
    {"steps": 5},
    {"memory_limit_bytes": LIMIT},
]
WAYS = pytest.mark.parametrize(
    "changes", EVERY_WAY, ids=lambda changes: "-".join(map(str, changes.values())) or "plain"
)


class TestEveryDevice:
    @WAYS
    def test_peaks_are_in_order(self, bench: Bench, changes: dict[str, Any]) -> None:
        fit = bench.fit(**changes)
        assert 0 < fit.peak_allocated_bytes <= fit.peak_reserved_bytes <= fit.capacity_bytes
        parts: tuple[PhasePeak | StepRecord, ...] = (*fit.phases, *fit.steps)
        for part in parts:
            assert 0 <= part.peak_allocated_bytes <= part.peak_reserved_bytes
            assert part.peak_allocated_bytes <= fit.peak_allocated_bytes
            assert part.peak_reserved_bytes <= fit.peak_reserved_bytes

    @WAYS
    def test_the_highest_phase_is_the_peak(self, bench: Bench, changes: dict[str, Any]) -> None:
        fit = bench.fit(**changes)
        assert max(p.peak_allocated_bytes for p in fit.phases) == fit.peak_allocated_bytes
        assert max(p.peak_reserved_bytes for p in fit.phases) == fit.peak_reserved_bytes
        phases = [phase.phase for phase in fit.phases]
        training = changes.get("mode") != "inference"
        own = ("train_step",)  # of a step of the user's own
        sweepers = [phase for phase in PHASES if phase not in own]
        assert phases == (sweepers if training else ["setup", "inputs", "forward"])

    @WAYS
    def test_the_kinds_add_up_to_the_peak(self, bench: Bench, changes: dict[str, Any]) -> None:
        fit = bench.fit(**changes)
        assert fit.breakdown is not None
        assert fit.holdings is not None
        assert fit.breakdown.total_bytes == fit.peak_allocated_bytes
        for kind in KINDS:
            assert 0 <= getattr(fit.breakdown, kind) <= getattr(fit.holdings, kind)

    @WAYS
    def test_the_steps_asked_for_were_run(self, bench: Bench, changes: dict[str, Any]) -> None:
        assert len(bench.fit(**changes).steps) == changes.get("steps", 3)

    @WAYS
    def test_what_is_computed_is_timed_and_what_is_not_is_not(self, bench: Bench, changes: dict[str, Any]) -> None:
        fit = bench.fit(**changes)
        times = [step.seconds for step in fit.steps]
        if bench.report().simulated:
            assert (fit.step_seconds, fit.samples_per_second) == (None, None)
            assert times == [None] * len(times)
            assert {step.loss for step in fit.steps} == {None}
        else:
            assert fit.step_seconds is not None
            assert all(seconds is not None and seconds > 0 for seconds in times)
            assert fit.samples_per_second == pytest.approx(64 / fit.step_seconds)

    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
    def test_weights_gradients_and_state_are_exact(self, bench: Bench, optimizer: str) -> None:
        # A simulated step counts Adam's scratch as the optimizer's.  With many samples the peak is in the backward,
        # where there is none; on a real device it is never counted.
        fit = bench.fit(optimizer=optimizer, batch_size=8192 if bench.report().simulated else 64)
        assert fit.breakdown is not None
        assert fit.holdings is not None
        assert fit.holdings.weights == fit.breakdown.weights == WEIGHTS
        assert fit.holdings.gradients == WEIGHTS
        assert fit.holdings.buffers == 0
        assert fit.breakdown.optimizer == (0 if optimizer == "sgd" else 2 * WEIGHTS)

    def test_inputs_at_the_peak_are_one_batch(self, bench: Bench) -> None:
        at_peak = bench.fit().breakdown
        assert at_peak is not None
        assert at_peak.inputs == 64 * INPUT_BYTES

    def test_bf16_weights_take_half(self, bench: Bench) -> None:
        held, half = bench.fit().holdings, bench.fit(precision="bf16").holdings
        assert held is not None
        assert half is not None
        assert half.weights * 2 == held.weights
        assert half.gradients * 2 == held.gradients
        assert half.inputs * 2 == held.inputs

    def test_inference_takes_less_and_holds_no_gradients(self, bench: Bench) -> None:
        training, inference = bench.fit(), bench.fit(mode="inference")
        assert inference.peak_allocated_bytes < training.peak_allocated_bytes
        assert inference.holdings is not None
        assert (inference.holdings.gradients, inference.holdings.optimizer) == (0, 0)

    def test_more_samples_take_more(self, bench: Bench) -> None:
        small, large = bench.fit(), bench.fit(batch_size=512)
        assert large.peak_allocated_bytes - small.peak_allocated_bytes >= (512 - 64) * INPUT_BYTES
        assert large.breakdown is not None
        assert small.breakdown is not None
        assert large.breakdown.activations > small.breakdown.activations

    def test_a_limit_is_reported_and_kept(self, bench: Bench) -> None:
        assert bench.report(LIMIT).capacity_bytes == LIMIT
        assert bench.report().capacity_bytes > LIMIT
        assert bench.report().total_bytes >= bench.report().capacity_bytes
        assert bench.fit(memory_limit_bytes=LIMIT).capacity_bytes == LIMIT
        for batch_size in (1 << 13, 1 << 18):
            failure = bench.out_of_memory(memory_limit_bytes=LIMIT, batch_size=batch_size)
            assert failure.capacity_bytes == LIMIT
            assert failure.peak_allocated_bytes <= failure.peak_reserved_bytes <= LIMIT

    def test_too_many_samples_run_out_and_say_where(self, bench: Bench) -> None:
        failure = bench.out_of_memory(memory_limit_bytes=LIMIT, batch_size=1 << 13)
        assert failure.phase in ("forward", "loss", "backward")
        assert failure.step == 0
        assert failure.module is None or failure.module.startswith("layers.")
        self._sizes_add_up(bench, failure, (1 << 13) * INPUT_BYTES)

    def test_a_batch_that_is_itself_too_large_runs_out_as_it_is_placed(self, bench: Bench) -> None:
        failure = bench.out_of_memory(memory_limit_bytes=LIMIT, batch_size=1 << 18)
        assert failure.phase == "inputs"
        self._sizes_add_up(bench, failure, (1 << 18) * INPUT_BYTES)

    @staticmethod
    def _sizes_add_up(bench: Bench, failure: OutOfMemory, requested_bytes: int) -> None:
        assert failure.requested_bytes == requested_bytes
        if failure.breakdown is not None:
            assert failure.breakdown.total_bytes == failure.peak_allocated_bytes
        if bench.device == "cpu":  # which cannot tell how it was when the allocation was refused
            assert failure.failure == "oom_host"
            assert (failure.free_bytes, failure.allocated_bytes, failure.reserved_bytes) == (None, None, None)
            return
        assert failure.failure == "oom_device"
        assert failure.free_bytes is not None
        assert failure.allocated_bytes is not None
        assert failure.reserved_bytes is not None
        # A caching allocator gives back every segment that is wholly free before it refuses.
        assert failure.allocated_bytes <= failure.reserved_bytes <= LIMIT < failure.reserved_bytes + requested_bytes

    def test_the_same_trial_again_takes_the_same(self, bench: Bench) -> None:
        first, again = bench.fit(), bench.fit(seed=1)
        if bench.device == "cpu":  # pages that libraries touch come and go
            assert abs(first.peak_allocated_bytes - again.peak_allocated_bytes) < 4 * MIB
        else:
            assert first.phases == again.phases

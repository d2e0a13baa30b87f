"""Whatever a trial does, it ends as its class, leaves nothing behind, and the next trial runs as if it had not been."""

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.host_memory import children_of
from sweeper.runner import ForkRunner, SpawnRunner
from sweeper.trial import Broken, Fit, TrialSpec

WORKERS = Path(__file__).parents[1] / "workers" / "misbehaving.py"


def spec(factory: str, device: str = "cpu") -> TrialSpec:
    return TrialSpec(model=f"{WORKERS}:{factory}", batch_size=2, device=device)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkRunner]:
    """One host for all: that it survives them is the point."""
    with ForkRunner(timeout_s=30, log=tmp_path_factory.mktemp("host") / "log") as runner:
        yield runner


@pytest.mark.parametrize(
    ("factory", "failure", "reason"),
    [
        ("segfault", "cuda_fault", "SIGSEGV"),
        ("killed", "infra", "SIGKILL"),
        ("silent_exit", "infra", "left no result"),
        ("exit_code_7", "infra", "7"),
        ("python_exit", "infra", "1"),
        ("half_a_result", "infra", "cannot be read"),
        ("user_error", "model_error", "loss became NaN"),
        ("factory_raises", "model_error", "no layers asked for"),
    ],
)
def test_each_ends_as_its_class(runner: ForkRunner, tmp_path: Path, factory: str, failure: str, reason: str) -> None:
    outcome = runner.run(spec(factory), tmp_path / "trial")
    assert isinstance(outcome, Broken)
    assert outcome.failure == failure
    assert reason in outcome.reason
    assert isinstance(runner.run(spec("well"), tmp_path / "next"), Fit)


def test_a_users_own_traceback_is_kept(runner: ForkRunner, tmp_path: Path) -> None:
    outcome = runner.run(spec("factory_raises"), tmp_path / "trial")
    assert isinstance(outcome, Broken)
    assert "misbehaving.py" in outcome.traceback
    assert outcome.traceback.rstrip().endswith("ZeroDivisionError: no layers asked for")


def test_a_trial_that_hangs_is_ended_at_its_time_limit(runner: ForkRunner, tmp_path: Path) -> None:
    outcome = runner.run(spec("hang"), tmp_path / "trial", timeout_s=2)
    assert isinstance(outcome, Broken)
    assert outcome.failure == "timeout"
    assert isinstance(runner.run(spec("well"), tmp_path / "next"), Fit)


def test_a_child_left_behind_is_ended(runner: ForkRunner, tmp_path: Path) -> None:
    before = _sleepers()
    assert isinstance(runner.run(spec("leave_a_child"), tmp_path / "trial"), Fit)
    assert _sleepers() == before


def test_a_spawned_trial_keeps_the_same_contract(tmp_path: Path) -> None:
    before = _sleepers()
    with SpawnRunner(timeout_s=60) as runner:
        assert isinstance(runner.run(spec("leave_a_child"), tmp_path / "trial"), Fit)
        hung = runner.run(spec("hang"), tmp_path / "hang", timeout_s=3)
    left = _sleepers() - before  # not sooner: what is killed takes its time to go
    # What stayed in the trial's group is gone.  There is no host to adopt what left it, one in each of three steps.
    assert len(left) == 3
    for pid in left:
        os.kill(pid, 9)
    assert isinstance(hung, Broken)
    assert hung.failure == "timeout"


def test_garbage_on_stdout_changes_nothing(runner: ForkRunner, tmp_path: Path) -> None:
    assert isinstance(runner.run(spec("garbage_on_stdout"), tmp_path / "trial"), Fit)
    assert b"\xff" in (tmp_path / "trial" / "stdout").read_bytes()


def test_host_memory_over_the_limit_is_no_boundary(tmp_path: Path) -> None:
    with ForkRunner(timeout_s=60, host_memory_limit_bytes=1 << 30) as runner:
        outcome = runner.run(spec("two_gb_of_host_memory", device="sim:rtx4060"), tmp_path / "trial")
        assert isinstance(outcome, Broken)
        assert outcome.failure == "oom_host"
        assert isinstance(runner.run(spec("well"), tmp_path / "next"), Fit)


def test_a_host_that_dies_takes_its_trial_with_it_and_is_replaced(runner: ForkRunner, tmp_path: Path) -> None:
    assert isinstance(runner.run(spec("well"), tmp_path / "before"), Fit)
    host = runner.host_pid
    assert host is not None
    trial: list[int] = []
    watched: list[int] = []

    def kill_when_it_runs() -> None:
        while not trial:
            trial.extend(children_of(host))
        watched.append(os.pidfd_open(trial[0]))
        os.kill(host, 9)

    killer = threading.Thread(target=kill_when_it_runs)
    killer.start()
    outcome = runner.run(spec("hang"), tmp_path / "trial")
    killer.join()
    assert isinstance(outcome, Broken)
    assert outcome.failure == "infra"
    # It is killed with the host, and then takes its time to give its memory back.
    assert select.select(watched, [], [], 20)[0] == watched
    os.close(watched[0])
    assert isinstance(runner.run(spec("well"), tmp_path / "after"), Fit)


def _sleepers() -> set[int]:
    """Every living process whose command is `sleep 600`."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes() == b"sleep\x00600\x00":
                found.add(int(folder.name))
    return found

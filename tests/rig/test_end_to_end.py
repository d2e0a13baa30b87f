"""``sweep --device cuda`` from the shell to the answer, on cards of the stand-in runtime.

The main ones run the command in processes of their own.  They all begin with the first test, two at a time, and the
last tests read what came of them.  The others run the same sweep in this process, each trial forked.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sweeper
from sweeper.errors import UsageError
from sweeper.host_memory import children_of
from sweeper.journal import Journal
from sweeper.record import NextTrial, Record, Settings
from sweeper.runner import ForkRunner, Runner
from sweeper.sweeping import Observer, Silent, run_sweep
from sweeper.trial import Broken, Fit, OutOfMemory
from sweeper.units import GIB, MIB
from tests.builders import a_header, a_spec
from tests.rig.build import Failure, Rig, new_card
from tests.rig.hold import held
from tests.rig.trials import Trials

pytestmark = pytest.mark.rig

_ROOT = Path(__file__).parents[2]
NETWORKS = _ROOT / "tests" / "workers" / "networks.py"
CONTEXT = 300 * 10**6


@dataclass(frozen=True)
class Said:
    """What one command did."""

    exit_code: int
    out: str
    errors: str
    folder: Path

    @property
    def answer(self) -> Any:
        assert self.exit_code == 0, self.errors
        return json.loads(self.out)

    @property
    def record(self) -> Record:
        return sweeper.load(self.folder).record


def shell(environment: Mapping[str, str], folder: Path, *options: str) -> Said:
    """``sweep --model resnet18 OPTIONS --json``."""
    command = [sys.executable, "-m", "sweeper", "--model", "resnet18", *options, "--json", "--folder", str(folder)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=_ROOT, capture_output=True, text=True, timeout=300
    )
    return Said(done.returncode, done.stdout, done.stderr, folder)


def proven_twice(environment: Mapping[str, str], folder: Path) -> tuple[Said, Said]:
    """A sweep, and both sides of its boundary again."""
    first = shell(environment, folder / "first", "--device", "cuda")
    return first, shell(environment, folder / "again", "--device", "cuda", *both_sides(first))


def both_sides(said: Said) -> tuple[str, ...]:
    found = said.answer["max_batch"]
    return "--batches", f"{found},{found + 1}", "--no-predict"


@dataclass(frozen=True)
class Commands:
    """All that is run from the shell, begun together."""

    proven: Mapping[int, Future[tuple[Said, Said]]]  # by the card's bytes
    said: Mapping[str, Future[Said]]


@pytest.fixture(scope="module", autouse=True)
def commands(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("shell")
    no_gpu = {"CUDA_VISIBLE_DEVICES": ""}
    card = rig.environment(8 * GIB, name="NVIDIA Test 9000")
    faulty = rig.environment(GIB, failures=[Failure(function="cudaLaunchKernel", code=700, after_calls=20)])
    one, once = ("--device", "cuda"), ("--batches", "2", "--no-predict")
    with ThreadPoolExecutor(2) as pool:
        proven = {
            size: pool.submit(proven_twice, rig.environment(size, context_bytes=context), folder / f"{size}")
            for size, context in ((8 * GIB, CONTEXT), (GIB, 0))
        }
        said = {
            name: pool.submit(shell, environment, folder / name, *options)
            for name, environment, options in (
                ("fault", faulty, (*one, *once)),
                ("no gpu", no_gpu, one),
                ("auto, hidden", {**card, **no_gpu}, ("--device", "auto", *once)),
            )
        }

        def limited() -> Said:
            sizes = both_sides(proven[GIB].result()[0])
            return shell(card, folder / "auto", "--device", "auto", "--memory-limit", "1GiB", *sizes)

        yield Commands(proven=proven, said={**said, "auto, limited": pool.submit(limited)})


def in_process(
    runner: Runner,
    folder: Path,
    observer: Observer | None = None,
    *,
    network: str = "wide",
    memory_limit_bytes: int | None = None,
    **settings: Any,
) -> Record:
    """The same sweep without a shell: at least 3 points, nothing recommended."""
    spec = a_spec(model=f"{NETWORKS}:{network}", device="cuda", memory_limit_bytes=memory_limit_bytes)
    header = a_header(spec=spec, settings=Settings(**{"cap": 4096, "points": 3, "margin": 0.0, **settings}))
    with Journal.create(folder, header) as journal:
        return run_sweep(journal, runner, observer or Silent())


@pytest.fixture(scope="module")
def alone(rig: Rig, trials: Trials, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The boundary of ``wide`` on a card of 1 GiB."""
    record = in_process(trials.on(rig.environment(GIB)), tmp_path_factory.mktemp("alone") / "run")
    assert record.proven
    assert record.max_batch is not None
    return record.max_batch


# -- other processes on the card -------------------------------------------------------------------------------------


def test_what_another_process_holds_is_gone_like_a_limit_or_a_smaller_card(
    rig: Rig, trials: Trials, tmp_path: Path, alone: int
) -> None:
    large = rig.environment(3 * GIB, card_file=new_card())
    limited = in_process(trials.on(large), tmp_path / "limited", memory_limit_bytes=GIB)
    with held(2 * GIB, large):
        shared = in_process(trials.on(large), tmp_path / "shared")
    assert shared.proven
    assert limited.proven
    assert shared.max_batch == limited.max_batch == alone
    assert shared.capacity_bytes == limited.capacity_bytes == GIB
    assert not any("noisy" in warning for warning in shared.warnings)
    free = in_process(trials.on(large), tmp_path / "free", sizes=(alone + 1,), predict=False)
    assert free.max_batch == alone + 1


class Neighbour(Silent):
    """Takes and releases memory of the card before the trials that are named."""

    def __init__(self, holding: AbstractContextManager[object], *, takes: int, releases: int | None = None) -> None:
        self.stack, self.holding = ExitStack(), holding
        self.takes, self.releases = takes, releases

    def started(self, record: Record, trial: NextTrial) -> None:
        if trial.number == self.takes:
            self.stack.enter_context(self.holding)
        if trial.number == self.releases:
            self.stack.close()


def test_memory_taken_mid_run_is_noise_and_the_boundary_is_the_smaller(
    rig: Rig, trials: Trials, tmp_path: Path, alone: int
) -> None:
    card = rig.environment(3 * GIB, card_file=new_card())
    neighbour = Neighbour(held(2 * GIB, card), takes=2)
    with neighbour.stack:
        record = in_process(trials.on(card), tmp_path / "run", neighbour, confirm=2)
    assert record.max_batch == alone
    assert record.proven
    (noise,) = [warning for warning in record.warnings if "noisy card" in warning]
    assert "2048 MiB (least in trial 1, most in trial 2)" in noise


def test_memory_released_mid_run_is_noise_and_moves_no_boundary_up(
    rig: Rig, trials: Trials, tmp_path: Path, alone: int
) -> None:
    card = rig.environment(3 * GIB, card_file=new_card())
    neighbour = Neighbour(held(2 * GIB, card), takes=1, releases=6)
    with neighbour.stack:
        record = in_process(trials.on(card), tmp_path / "run", neighbour, confirm=3)
    failed = [t.size for t in record.trials if isinstance(t.outcome, OutOfMemory)]
    assert any(t.number < 6 for t in record.trials if isinstance(t.outcome, OutOfMemory))
    assert record.max_batch is not None
    assert record.max_batch < min(failed)
    assert sum("noisy card" in warning for warning in record.warnings) == 1


# -- faults ----------------------------------------------------------------------------------------------------------

NOT_INITIALIZED = "CUBLAS_STATUS_NOT_INITIALIZED"


def test_a_suspect_with_little_memory_free_is_repeated_and_moves_the_boundary(
    rig: Rig, trials: Trials, tmp_path: Path
) -> None:
    def sweep(name: str, *failures: Failure) -> Record:
        return in_process(trials.on(rig.environment(128 * MIB, failures=failures)), tmp_path / name, cap=512)

    sound = sweep("sound")
    faulty = sweep("faulty", Failure(function="cublasCreate_v2", code=1, free_below_bytes=60 * MIB))
    assert sound.proven
    assert faulty.proven
    assert sound.max_batch is not None
    assert faulty.max_batch is not None
    assert faulty.max_batch < sound.max_batch
    suspects = [t for t in faulty.trials if isinstance(t.outcome, OutOfMemory) and t.outcome.failure == "oom_suspect"]
    assert suspects
    # Each comes twice, the second time as a repeat.
    assert {t.size for t in suspects if t.purpose == "repeat"} == {t.size for t in suspects if t.purpose != "repeat"}
    assert all(NOT_INITIALIZED in t.outcome.message for t in suspects if isinstance(t.outcome, OutOfMemory))
    assert faulty.first_failure in {t.size for t in suspects}
    assert faulty.failure is not None
    assert faulty.failure[1].failure == "oom_device"


@pytest.mark.parametrize(
    ("failure", "text", "purpose"),
    [
        (Failure(function="cublasCreate_v2", code=1, free_below_bytes=700 * MIB), NOT_INITIALIZED, "repeat"),
        (Failure(function="cudaLaunchKernel", code=700, free_below_bytes=700 * MIB), "illegal memory access", "retry"),
    ],
)
def test_a_fault_with_much_memory_free_stops_the_sweep_and_moves_no_boundary(
    rig: Rig, trials: Trials, tmp_path: Path, failure: Failure, text: str, purpose: str
) -> None:
    record = in_process(trials.on(rig.environment(GIB, failures=[failure])), tmp_path / "run")
    assert record.broken is not None
    assert record.broken.failure == "cuda_fault"
    assert text in record.broken.reason
    assert [trial.purpose for trial in record.trials][-1] == purpose
    assert record.trials[-1].size == record.trials[-2].size
    assert record.first_failure is None
    assert not record.proven
    # What fitted before is still known.
    assert record.max_batch == record.trials[-3].size


def test_a_limit_above_the_card_is_wrong_usage_and_nothing_runs(rig: Rig, trials: Trials, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"2\.00 GiB is more than Rig card has \(1\.00 GiB\)") as refused:
        in_process(trials.on(rig.environment(GIB)), tmp_path / "run", memory_limit_bytes=2 * GIB)
    assert refused.value.exit_code == 2
    assert sweeper.load(tmp_path / "run").record.trials == ()


# -- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forking(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkRunner]:
    """The product's own host on a card of 1 GiB, also when it has to be started again."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in rig.environment(GIB, context_bytes=0, card_file=new_card()).items():
            patch.setenv(name, value)
        with closing(ForkRunner(timeout_s=120, log=tmp_path_factory.mktemp("host") / "log")) as runner:
            yield runner


def test_children_left_behind_give_back_the_card_before_the_next_trial(
    forking: ForkRunner, tmp_path: Path, alone: int
) -> None:
    record = in_process(forking, tmp_path / "run", network="leaves_children")
    assert record.proven
    assert record.max_batch == alone
    before = [getattr(trial.outcome, "card_before", None) for trial in record.trials]
    assert [memory and memory.used_bytes for memory in before] == [0] * len(record.trials)
    assert forking.host_pid is not None
    assert children_of(forking.host_pid) == []


def test_a_host_that_is_killed_mid_sweep_changes_no_answer(forking: ForkRunner, tmp_path: Path, alone: int) -> None:
    hosts = {forking.host_pid}
    record = in_process(forking, tmp_path / "run", network="ends_its_host")
    broken = [trial for trial in record.trials if isinstance(trial.outcome, Broken)]
    assert [(trial.number, trial.outcome.failure) for trial in broken if isinstance(trial.outcome, Broken)] == [
        (2, "infra")
    ]
    assert (record.trials[2].purpose, record.trials[2].size) == ("retry", record.trials[1].size)
    assert record.broken is None
    assert record.proven
    assert record.max_batch == alone
    assert forking.host_pid not in hosts
    assert all(memory.used_bytes == 0 for t in record.trials if (memory := getattr(t.outcome, "card_before", None)))


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8 * GIB, GIB])
def test_the_boundary_is_proven_and_both_sides_come_again(commands: Commands, size: int) -> None:
    first, again = (said.answer for said in commands.proven[size].result())
    assert (first["proven"], first["simulated"], first["device"]) == (True, False, "cuda")
    assert first["first_failure"] == first["max_batch"] + 1
    assert first["finished"]
    assert {point["size"]: point["outcome"] for point in again["curve"]} == {
        first["max_batch"]: "fit",
        first["max_batch"] + 1: "oom",
    }
    assert (again["max_batch"], again["proven"]) == (first["max_batch"], True)
    # The same trial takes the same bytes, whichever sweep it is in.
    peaks = [{p["size"]: p["peak_reserved_bytes"] for p in answer["curve"]} for answer in (first, again)]
    assert peaks[1].items() <= peaks[0].items()


@pytest.mark.parametrize("size", [8 * GIB, GIB])
def test_the_answer_is_what_its_trials_say(commands: Commands, size: int) -> None:
    said = commands.proven[size].result()[0]
    trials = said.record.trials
    # A trial for the recommended batch runs with less, and proves nothing of the boundary.
    fits = [t.size for t in trials if isinstance(t.outcome, Fit) and not t.withheld_bytes]
    ooms = [t.size for t in trials if isinstance(t.outcome, OutOfMemory) and not t.withheld_bytes]
    assert said.answer["max_batch"] == max(fits)
    assert said.answer["first_failure"] == min(ooms)
    assert fits.count(max(fits)) == 2
    assert said.answer["recommended_batch"] < max(fits)


@pytest.mark.parametrize(("size", "context"), [(8 * GIB, CONTEXT), (GIB, 0)])
def test_sizes_are_read_from_the_message(commands: Commands, size: int, context: int) -> None:
    failures = [
        t.outcome
        for said in commands.proven[size].result()
        for t in said.record.trials
        if isinstance(t.outcome, OutOfMemory)
    ]
    assert len(failures) >= 2
    for failure in failures:
        assert failure.failure == "oom_device"
        asked = re.search(r"Tried to allocate ([\d.]+) MiB", failure.message)
        assert asked is not None
        assert failure.requested_bytes == pytest.approx(float(asked[1]) * MIB, abs=0.005 * MIB)
        assert failure.reserved_bytes is not None
        assert failure.free_bytes == size - context - failure.reserved_bytes
        assert failure.capacity_bytes is not None
        assert 0 < failure.peak_allocated_bytes <= failure.peak_reserved_bytes <= failure.capacity_bytes


def test_the_context_has_a_row(commands: Commands) -> None:
    said = commands.proven[8 * GIB].result()[0]
    contexts = [t.outcome.context_bytes for t in said.record.trials if isinstance(t.outcome, Fit | OutOfMemory)]
    assert contexts == [CONTEXT] * len(said.record.trials)
    assert said.answer["capacity_bytes"] == (8 * GIB - CONTEXT) // (2 * MIB) * (2 * MIB)
    (row,) = [line for line in str(sweeper.load(said.folder)).splitlines() if line.startswith("  context")]
    assert "286.10 MiB outside PyTorch's allocator" in row


def test_a_measured_sweep_has_times_and_draws_them(commands: Commands) -> None:
    said = commands.proven[8 * GIB].result()[0]
    fits = [point for point in said.answer["curve"] if point["outcome"] == "fit"]
    for point in fits:
        assert point["samples_per_second"] == pytest.approx(point["size"] / point["step_seconds"])
    assert {path.name for path in said.folder.glob("*.png")} == {"memory.png", "breakdown.png", "throughput.png"}
    assert said.answer["versions"]["driver"]


def test_the_prediction_is_close_on_a_card_that_it_was_not_made_for(commands: Commands) -> None:
    for size in (8 * GIB, GIB):
        assert abs(commands.proven[size].result()[0].answer["prediction_error"]) <= 0.03


def test_a_limit_is_a_smaller_card(commands: Commands) -> None:
    small, limited = commands.proven[GIB].result()[0].answer, commands.said["auto, limited"].result().answer
    for key in ("max_batch", "first_failure", "proven", "capacity_bytes"):
        assert limited[key] == small[key]
    assert all(point["peak_reserved_bytes"] <= GIB for point in limited["curve"])


def test_no_gpu_is_one_line_and_what_to_do(commands: Commands) -> None:
    said = commands.said["no gpu"].result()
    assert said.exit_code == 2
    assert said.out == ""
    message, hint = said.errors.splitlines()
    assert message.startswith("sweep: cuda: no usable GPU: ")
    assert hint.startswith("  ")


def test_auto_takes_the_gpu_that_is_there(commands: Commands) -> None:
    answer = commands.said["auto, limited"].result().answer
    assert (answer["device"], answer["simulated"], answer["device_label"]) == ("cuda", False, "NVIDIA Test 9000")


def test_auto_simulates_when_the_gpu_is_hidden(commands: Commands) -> None:
    answer = commands.said["auto, hidden"].result().answer
    assert (answer["device"], answer["simulated"]) == ("sim:rtx4060", True)
    assert answer["curve"][0]["step_seconds"] is None


def test_an_illegal_access_leaves_the_command_with_3(commands: Commands) -> None:
    said = commands.said["fault"].result()
    assert said.exit_code == 3
    answer = json.loads(said.out)
    assert (answer["broken"]["failure"], answer["max_batch"], answer["first_failure"]) == ("cuda_fault", None, None)
    assert answer["trials"] == {"fit": 0, "oom": 0, "broken": 2}
    assert "illegal memory access" in said.errors

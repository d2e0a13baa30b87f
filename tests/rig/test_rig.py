"""The stand-in runtime behaves as a card does where sweeper looks: memory, processes, errors, forks, NVML."""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rig.build import Failure, Rig, RigUnavailable, build, new_card
from tests.rig.fixtures import must_run
from tests.rig.forked import Host, started
from tests.rig.hold import held
from tests.rig.stubs import stub_source

pytestmark = pytest.mark.rig

MIB = 1 << 20
GRANULE = 2 * MIB
RTX_4060 = 8_318_222_336  # total bytes as the driver reports them; no multiple of 2 MiB


@pytest.fixture(scope="module")
def host(rig: Rig) -> Iterator[Host]:
    with started(rig.environment(256 * MIB)) as host:
        yield host


@pytest.mark.parametrize("total", [64 * MIB, 100 * MIB + 1, RTX_4060, 80 << 30])
@pytest.mark.parametrize("context", [0, 3 * MIB + 17])
def test_the_boundary_is_exact(rig: Rig, host: Host, total: int, context: int) -> None:
    most = (total - context) // GRANULE * GRANULE
    fits = host.answer("allocate", rig.environment(total, context_bytes=context), size=most)
    assert fits == {"fits": True, "reserved": most, "allocated": most}
    fails = host.answer("allocate", rig.environment(total, context_bytes=context), size=most + 1)
    assert not fails["fits"]
    assert (fails["free"], fails["total"]) == (total - context, total)


def test_out_of_memory_is_told_as_torch_tells_it(rig: Rig, host: Host) -> None:
    environment = rig.environment(300 * MIB, context_bytes=44 * MIB)
    said = host.answer("fill_up", environment, size=48 * MIB)
    assert said["counts"] == [5, 5]  # what came back can be had again
    assert said["reserved"] == 0
    for message in said["messages"]:
        for part in (
            "CUDA out of memory. Tried to allocate 48.00 MiB.",
            "GPU 0 has a total capacity of 300.00 MiB of which 16.00 MiB is free.",
            "this process has 284.00 MiB memory in use.",
            "Of the allocated memory 240.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch",
        ):
            assert part in message


def test_the_memory_fraction_is_a_limit_of_its_own(rig: Rig, host: Host) -> None:
    environment = rig.environment(256 * MIB, context_bytes=20 * MIB)
    assert host.answer("allocate", environment, size=128 * MIB, fraction=0.5)["fits"]
    fails = host.answer("allocate", environment, size=130 * MIB, fraction=0.5)
    assert "of which 236.00 MiB is free" in fails["message"]
    assert "128.00 MiB allowed;" in fails["message"]


def test_torch_and_nvml_tell_the_same(rig: Rig, host: Host) -> None:
    context = 10 * MIB
    environment = rig.environment(512 * MIB, context_bytes=context, name="NVIDIA Test 9000", compute_capability=90)
    saw = host.answer("look", environment)
    used = context + saw["torch"]["reserved"]
    assert saw["torch"]["total"] - saw["torch"]["free"] == used
    assert saw["nvml"] == {"total": 512 * MIB, "used": used, "free": 512 * MIB - used}
    assert saw["nvml_2"] == {**saw["nvml"], "reserved": 0}
    assert saw["processes"] == {str(saw["pid"]): used}
    assert saw["name"] == saw["torch"]["name"] == "NVIDIA Test 9000"
    assert saw["capability"] == saw["nvml_capability"] == [9, 0]
    assert (saw["count"], saw["index"], saw["busy"]) == (1, 0, None)
    assert re.fullmatch(r"\d+\.\d+\.\d+", saw["driver"])
    assert saw["sum"] == 30 * MIB


def test_nvml_needs_no_preloaded_runtime(rig: Rig) -> None:
    card = new_card()
    environment = rig.environment(128 * MIB, context_bytes=6 * MIB, card_file=card)
    alone = {**os.environ, **environment}
    del alone["LD_PRELOAD"]
    code = """
import pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetMemoryInfo(card).used)
print(*(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card)))
"""
    with held(32 * MIB, environment) as holder:
        command = [sys.executable, "-c", code]
        said = subprocess.run(command, env=alone, check=True, capture_output=True, text=True).stdout
    assert said.split() == [str(38 * MIB), str(holder.pid)]


def test_a_container_may_hide_who_uses_the_card(rig: Rig, host: Host) -> None:
    saw = host.answer("look", rig.environment(128 * MIB, nvml_hides_processes=True))
    assert saw["processes"] == {}
    assert saw["nvml"]["used"] > 0


def test_processes_share_a_card(rig: Rig, host: Host) -> None:
    environment = rig.environment(256 * MIB, context_bytes=8 * MIB, card_file=new_card())
    others = 101 * MIB + MIB + 8 * MIB  # rounded up to 2 MiB, and a context
    with held(101 * MIB, environment) as other:
        saw = host.answer("look", environment)
        assert saw["processes"] == {str(other.pid): others, str(saw["pid"]): 8 * MIB + saw["torch"]["reserved"]}
        assert host.answer("allocate", environment, size=138 * MIB)["fits"]
        message = host.answer("allocate", environment, size=139 * MIB)["message"]
        assert f"Process {other.pid} has {others // MIB}.00 MiB memory in use" in message
        with pytest.raises(MemoryError), held(139 * MIB, environment):
            pass
    assert host.answer("allocate", environment, size=248 * MIB)["fits"]


def test_a_killed_process_gives_its_memory_back(rig: Rig, host: Host) -> None:
    environment = rig.environment(64 * MIB, context_bytes=2 * MIB, card_file=new_card())
    for _ in range(3):
        assert host.end("die_holding", environment, size=60 * MIB).exit_code == -signal.SIGKILL
    with held(60 * MIB, environment) as other:
        other.kill()
    assert host.answer("allocate", environment, size=62 * MIB)["fits"]


def test_a_forked_child_left_behind_keeps_the_memory_of_its_dead_parent(rig: Rig, host: Host) -> None:
    environment = rig.environment(64 * MIB, card_file=new_card())
    left = int(host.end("die_holding", environment, size=40 * MIB, leave_child=True).log)
    exited = os.pidfd_open(left)
    try:
        assert host.answer("allocate", environment, size=60 * MIB)["free"] == 24 * MIB
    finally:
        os.kill(left, signal.SIGKILL)
        assert select.select([exited], [], [], 10)[0]
        os.close(exited)
    assert host.answer("allocate", environment, size=60 * MIB)["fits"]


def test_a_fork_after_cuda_is_refused(rig: Rig, host: Host) -> None:
    said = host.answer("fork_after_cuda", rig.environment(64 * MIB))
    assert said["torch"].startswith("Cannot re-initialize CUDA in forked subprocess")
    assert said["runtime"].startswith("CUDA error: initialization error")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_training_step_leaves_what_it_should(rig: Rig, host: Host, precision: str) -> None:
    said = host.answer("train", rig.environment(RTX_4060), precision=precision)
    blocks = said["blocks"]
    assert sum(size for size, _ in blocks) == said["allocated"]
    # A block is rounded up to 512 bytes, and keeps a rest of at most 1 MiB that is not worth a split.
    assert all(0 <= size - tensor <= MIB + 512 for size, tensor in blocks if tensor is not None)
    assert sum(tensor is not None for _, tensor in blocks) == said["tensors"]
    scaler = [size for size, tensor in blocks if tensor is None]
    assert scaler == ([512, 512] if precision == "fp16" else [])  # its scale and its count of good steps
    assert said["states"] == 2 * 62  # two moments for each of resnet18's parameters
    assert said["device"] == "cuda:0"
    assert said["loss_is_a_float"]
    assert said["peak"] > said["allocated"]


def test_a_batch_too_large_runs_out_of_memory_while_training(rig: Rig, host: Host) -> None:
    fits, fails = (host.end("train", rig.environment(512 * MIB), precision="fp32", batch=batch) for batch in (8, 512))
    assert fits.exit_code == 0
    assert fits.answer["peak"] < 512 * MIB
    assert fails.exit_code == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in fails.log


def test_copies_carry_values(rig: Rig, host: Host) -> None:
    done = host.answer("round_trip", rig.environment(256 * MIB))
    assert all(done.values()), done


def test_the_allocator_keeps_its_record(rig: Rig, host: Host) -> None:
    assert host.answer("record_history", rig.environment(64 * MIB)) == [
        ["segment_alloc", 20 * MIB],
        ["alloc", 3 * MIB],
        ["free_completed", 3 * MIB],
    ]


PLANNED = [
    ("cudaMalloc", 2, "OutOfMemoryError", "CUDA out of memory"),
    ("cudaLaunchKernel", 2, "AcceleratorError", "CUDA error: out of memory"),
    ("cublasCreate_v2", 1, "RuntimeError", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate("),
    ("cublasCreate_v2", 3, "RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate("),
    ("cublasSgemm_v2", 13, "RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm"),
    ("cudnnCreate", 1001, "RuntimeError", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    (
        "cudnnBatchNormalizationForwardTrainingEx",
        4004,
        "RuntimeError",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ),
    ("cudnnBackendExecute", 5000, "RuntimeError", "GET was unable to find an engine to execute this computation"),
]


def _name_in(torch: str, error: str) -> str:
    """What torch 2.9 and 2.14 call an ``AcceleratorError`` is a plain ``RuntimeError`` in 2.6; new in 2.8."""
    release = tuple(map(int, torch.split(".")[:2]))
    return "RuntimeError" if error == "AcceleratorError" and release < (2, 8) else error


@pytest.mark.parametrize(("function", "code", "raised", "text"), PLANNED)
def test_a_planned_failure_arrives_as_torch_would_raise_it(
    rig: Rig, host: Host, function: str, code: int, raised: str, text: str
) -> None:
    failure = Failure(function=function, code=code)
    said = host.answer("small_network", rig.environment(256 * MIB, failures=[failure]))
    assert said["raised"] == _name_in(rig.torch, raised)
    assert text in said["message"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (700, "an illegal memory access was encountered"),
        (710, "device-side assert triggered"),
        (719, "unspecified launch failure"),
    ],
)
def test_a_fault_of_a_kernel_loses_the_context_of_that_process_only(rig: Rig, host: Host, code: int, text: str) -> None:
    card = new_card()
    failures = [Failure(function="cudaLaunchKernel", code=code, after_calls=3)]
    said = host.answer("small_network", rig.environment(256 * MIB, card_file=card, failures=failures))
    assert said["raised"] == _name_in(rig.torch, "AcceleratorError")
    assert said["message"].startswith(f"CUDA error: {text}")
    assert not said["answers"]
    assert host.answer("small_network", rig.environment(256 * MIB, card_file=card))["answers"]


def test_a_failure_can_wait_for_a_full_card(rig: Rig, host: Host) -> None:
    failure = Failure(function="cublasCreate_v2", code=1, free_below_bytes=32 * MIB)
    environment = rig.environment(256 * MIB, failures=[failure])
    assert host.answer("small_network", environment, hold_bytes=100 * MIB)["raised"] is None
    full = host.answer("small_network", environment, hold_bytes=220 * MIB)
    assert "CUBLAS_STATUS_NOT_INITIALIZED" in full["message"]
    assert full["answers"]


def test_a_cublas_handle_that_finds_no_memory_is_not_initialized(rig: Rig, host: Host) -> None:
    def with_handles_of(size: int) -> str:
        environment = rig.environment(256 * MIB, cublas_handle_bytes=size)
        message: str = host.answer("small_network", environment, hold_bytes=100 * MIB)["message"]
        return message

    assert with_handles_of(30 * MIB) == ""
    assert "CUBLAS_STATUS_NOT_INITIALIZED" in with_handles_of(200 * MIB)


def test_cudnn_falls_back_to_a_plan_whose_workspace_fits(rig: Rig, host: Host) -> None:
    none, large = (
        host.answer("small_network", rig.environment(512 * MIB, cudnn_workspace_bytes=workspace))
        for workspace in (0, [300 * MIB, 0])
    )
    assert large["peak"] >= 300 * MIB > none["peak"]
    assert (
        host.answer("small_network", rig.environment(256 * MIB, cudnn_workspace_bytes=[300 * MIB, 0]))["raised"] is None
    )
    only = host.answer("small_network", rig.environment(256 * MIB, cudnn_workspace_bytes=300 * MIB))
    assert only["raised"] is not None


@pytest.mark.parametrize(
    ("what", "text"), [("graphs", "operation not supported"), ("ctc", "CUDNN_STATUS_NOT_SUPPORTED")]
)
def test_what_the_stand_in_does_not_have_is_refused(rig: Rig, host: Host, what: str, text: str) -> None:
    assert text in host.answer("refused", rig.environment(256 * MIB), what=what)


def test_cuda_visible_devices_hides_the_card(rig: Rig, host: Host) -> None:
    environment = rig.environment(64 * MIB)
    assert host.answer("visible", environment) == [True, 1]
    assert host.answer("visible", {**environment, "CUDA_VISIBLE_DEVICES": "0"}) == [True, 1]
    assert host.answer("visible", {**environment, "CUDA_VISIBLE_DEVICES": ""}) == [False, 0]


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("RIG_FAIL", "cudaNoSuchCall=2", "no function here that can fail is called cudaNoSuchCall"),
        ("RIG_FAIL", "cudaGetLastError=2", "no function here that can fail is called cudaGetLastError"),
        ("RIG_FAIL", "cudaMalloc", "no code in cudaMalloc"),
        ("RIG_FAIL", "cudaMalloc=2%3", "cannot read cudaMalloc=2%3"),
        ("RIG_BYTES", "8GiB", "RIG_BYTES is no number: 8GiB"),
        ("RIG_CC", "42", "no compute capability 42"),
        ("RIG_CARD", "", "RIG_CARD does not name"),
    ],
)
def test_a_knob_that_cannot_be_read_ends_the_process(
    rig: Rig, host: Host, variable: str, value: str, reason: str
) -> None:
    ended = host.end("look", {**rig.environment(64 * MIB), variable: value})
    assert ended.exit_code == 70
    assert reason in ended.log


def test_a_card_has_one_size(rig: Rig, host: Host) -> None:
    card = new_card()
    host.answer("look", rig.environment(64 * MIB, card_file=card))
    assert "not the size" in host.end("look", rig.environment(65 * MIB, card_file=card)).log


def test_two_builds_at_once_give_one_result(rig: Rig, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: build(sys.executable, tmp_path), range(2))
    assert first == second
    assert {path.name for path in first.folder.iterdir()} == {"lib", "librig.so"}
    assert {path.suffix for path in tmp_path.iterdir() if path != first.folder} == {".lock"}
    assert first.folder.name == rig.folder.name


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("[null, null, null]", "has no torch"),
        ('["/x/torch", "2.9.1+cpu", null]', "not a CUDA build"),
        ('["/x/torch", "2.1.0+cu118", "11.8"]', "built for CUDA 11.8"),
        ('["/x/torch", "2.14.1+cu130", "13.0"]', "bring no crt/host_defines.h"),
    ],
)
def test_where_it_cannot_be_built_the_reason_is_given(tmp_path: Path, answer: str, reason: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)
    with pytest.raises(RigUnavailable, match=reason):
        build(str(python), tmp_path / "out")


def test_every_import_is_defined_or_left_or_answered() -> None:
    names = [
        "cudaMalloc",
        "cudaGetErrorString",
        "cudnnSetTensorNdDescriptor",
        "cublasSgemm_v2",
        "cudnnRNNForward",
        "cuMemCreate",
    ]
    planned = 'int planned = rig_planned_failure("{0}"); return planned ? planned : {1};'
    assert stub_source(names, ["cudaMalloc"]).splitlines()[1:] == [
        "int cuMemCreate() { return 801; }",
        "int cublasSgemm_v2() { " + planned.format("cublasSgemm_v2", 0) + " }",
        "int cudnnRNNForward() { " + planned.format("cudnnRNNForward", 3000) + " }",
    ]


@pytest.mark.parametrize(("ci", "must"), [("true", True), ("false", False), (None, False)])
def test_in_ci_a_missing_rig_is_a_failure(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, ci: str | None, must: bool
) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    assert must_run() is must


def test_a_new_card_is_nobody_elses() -> None:
    assert new_card() != new_card()
    assert new_card().parent == Path(tempfile.gettempdir())

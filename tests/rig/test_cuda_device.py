"""The ``cuda`` device, a trial at a time: what it reads from torch and from the driver, and how its errors are read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.trial import Broken, Describe, DeviceReport, Fit, OutOfMemory, Refused, Response, TrialSpec
from sweeper.units import GIB, KIB, MIB
from tests.rig.build import Failure, Rig
from tests.rig.trials import Trials

pytestmark = pytest.mark.rig

NETWORKS = Path(__file__).parents[1] / "workers" / "networks.py"
GRANULE = 2 * MIB
RTX_4060 = 8_318_222_336  # total bytes as the driver reports them; no multiple of 2 MiB

Answer = Callable[..., Response]


@pytest.fixture
def answer(rig: Rig, trials: Trials, tmp_path: Path) -> Answer:
    """Run one request on a new card: ``answer(request, total_bytes, **knobs of the card)``."""
    asked = iter(range(1000))

    def run(
        request: TrialSpec | Describe, total_bytes: int, *, more: dict[str, str] | None = None, **knobs: Any
    ) -> Response:
        environment = {"PYTORCH_CUDA_ALLOC_CONF": "", **rig.environment(total_bytes, **knobs), **(more or {})}
        return trials.on(environment).run(request, tmp_path / f"{next(asked)}")

    return run


def spec(network: str = "wide", batch_size: int = 64, **changes: Any) -> TrialSpec:
    return TrialSpec(**{"model": f"{NETWORKS}:{network}", "batch_size": batch_size, "device": "cuda", **changes})


def fit(response: Response) -> Fit:
    assert isinstance(response, Fit), response
    return response


def out_of_memory(response: Response) -> OutOfMemory:
    assert isinstance(response, OutOfMemory), response
    return response


def in_torch_words(size: int) -> str:
    """``format_size`` of c10/cuda/CUDACachingAllocator.cpp."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size > unit or (size == unit and unit != GIB):
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


@pytest.mark.parametrize("context", [0, 300 * 10**6 + 17])
@pytest.mark.parametrize("limit", [None, 3 * GIB + 1])
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_it_says_what_it_is(answer: Answer, context: int, limit: int | None, device: str) -> None:
    report = answer(
        Describe(device=device, memory_limit_bytes=limit),
        RTX_4060,
        context_bytes=context,
        name="NVIDIA GeForce RTX 4060",
        compute_capability=86,
    )
    assert isinstance(report, DeviceReport)
    free = (RTX_4060 - context) // GRANULE * GRANULE
    assert report.capacity_bytes == (free if limit is None else limit)
    assert (report.total_bytes, report.label, report.compute_capability) == (RTX_4060, "NVIDIA GeForce RTX 4060", "8.6")
    assert (report.simulated, report.device) == (False, "cuda:0")
    assert all((report.driver, report.torch, report.torchvision, report.cuda))


@pytest.mark.parametrize(
    ("device", "more", "text"),
    [
        ("cuda:1", {}, "cuda:1 is not there; this machine has 1"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, "no usable GPU"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(answer: Answer, device: str, more: dict[str, str], text: str) -> None:
    for request in (Describe(device=device), spec(device=device)):
        refused = answer(request, GIB, more=more)
        assert isinstance(refused, Refused)
        assert text in refused.message
        assert "sim:" in refused.hint


def test_the_allocator_configuration_is_reported(answer: Answer) -> None:
    more = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    report = answer(Describe(device="cuda"), GIB, more=more)
    assert isinstance(report, DeviceReport)
    assert report.allocator_conf == "max_split_size_mb:64"


def test_words_for_the_allocator_act_and_come_before_the_environments(answer: Answer) -> None:
    more = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    words = "roundup_power2_divisions:2"
    report = answer(Describe(device="cuda", alloc_conf=words), GIB, more=more)
    assert isinstance(report, DeviceReport)
    assert report.allocator_conf == words
    peaks = [
        fit(answer(spec("linears", 300, alloc_conf=asked), GIB, more=more)).peak_allocated_bytes
        for asked in (words, None)  # activations of 1200 KiB
    ]
    assert peaks[0] - peaks[1] >= 8 * 336 * KIB  # each rounded to 1536


@pytest.mark.parametrize("context", [1, 3 * MIB + 17, 300 * 10**6])
def test_the_driver_counts_the_context_and_the_allocator_does_not(answer: Answer, context: int) -> None:
    found = fit(answer(spec(), 4 * GIB, context_bytes=context))
    assert found.context_bytes == context
    assert found.process_bytes == found.peak_reserved_bytes + context
    for memory in (found.card_before, found.card_after):
        assert memory is not None
        assert memory.total_bytes == 4 * GIB
        assert memory.used_bytes == memory.process_bytes
        assert memory.others_bytes == 0
    assert found.card_before is not None
    assert found.card_before.used_bytes == context


def test_a_container_that_hides_processes_leaves_them_unknown(answer: Answer) -> None:
    found = fit(answer(spec(), 4 * GIB, context_bytes=MIB, nvml_hides_processes=True))
    assert (found.process_bytes, found.context_bytes) == (None, None)
    assert found.card_before is not None
    assert (found.card_before.used_bytes, found.card_before.others_bytes) == (MIB, None)


@pytest.mark.parametrize("total", [RTX_4060, 80 << 30, GIB + 1])
def test_a_limit_is_exact_to_the_byte(answer: Answer, total: int) -> None:
    free = fit(answer(spec(), total))
    limited = fit(answer(spec(memory_limit_bytes=free.peak_reserved_bytes), total))
    assert (limited.peak_allocated_bytes, limited.peak_reserved_bytes) == (
        free.peak_allocated_bytes,
        free.peak_reserved_bytes,
    )
    assert limited.allocator_retries == 0
    assert limited.capacity_bytes == free.peak_reserved_bytes
    less = answer(spec(memory_limit_bytes=free.peak_reserved_bytes - 1), total)
    assert isinstance(less, Fit | OutOfMemory)
    assert less.peak_reserved_bytes <= free.peak_reserved_bytes - GRANULE
    assert less.allocator_retries
    none = out_of_memory(answer(spec(memory_limit_bytes=free.peak_allocated_bytes - GRANULE), total))
    assert none.peak_reserved_bytes <= free.peak_allocated_bytes - GRANULE


def test_a_trial_may_fill_the_card_to_its_capacity_and_no_more(answer: Answer) -> None:
    context = 3 * MIB + 17
    peak = fit(answer(spec(), 4 * GIB)).peak_reserved_bytes
    full = fit(answer(spec(), peak + context, context_bytes=context))
    assert full.capacity_bytes == full.peak_reserved_bytes == peak
    assert full.allocator_retries == 0
    out_of_memory(answer(spec(), full.peak_allocated_bytes + context - GRANULE, context_bytes=context))


@pytest.mark.parametrize(("batch_size", "phase"), [(190, "backward"), (300, "forward"), (60000, "inputs")])
def test_an_out_of_memory_says_where_and_how_much(answer: Answer, batch_size: int, phase: str) -> None:
    context = 5 * MIB
    failure = out_of_memory(answer(spec(batch_size=batch_size), 512 * MIB, context_bytes=context))
    assert failure.failure == "oom_device"
    assert failure.message.startswith("CUDA out of memory. Tried to allocate ")
    assert failure.message.splitlines() == [failure.message]
    assert failure.message in failure.traceback
    assert failure.allocated_bytes is not None
    assert failure.reserved_bytes is not None
    assert failure.requested_bytes is not None
    assert failure.free_bytes == 512 * MIB - context - failure.reserved_bytes
    # All of one moment: when the allocator refused, before autograd dropped what it held.
    unused = failure.reserved_bytes - failure.allocated_bytes
    for size, said in (
        (failure.requested_bytes, "Tried to allocate {}"),
        (failure.free_bytes, "of which {} is free"),
        (failure.allocated_bytes, "{} is allocated by PyTorch"),
        (unused, "and {} is reserved by PyTorch but unallocated"),
    ):
        assert said.format(in_torch_words(size)) in failure.message
    assert failure.allocated_bytes <= failure.peak_allocated_bytes
    assert failure.breakdown is None or failure.breakdown.total_bytes == failure.peak_allocated_bytes
    assert failure.context_bytes == context
    assert failure.phase == phase


def test_the_module_that_ran_out_is_named(answer: Answer) -> None:
    failure = out_of_memory(answer(spec(batch_size=1000), 512 * MIB))
    assert failure.module is not None
    assert failure.module.startswith("body.")


FAULTS = [
    ("cudaMalloc", 2, "oom_device"),
    ("cudaLaunchKernel", 2, "oom_device"),
    ("cudaLaunchKernel", 700, "cuda_fault"),
    ("cudaLaunchKernel", 710, "cuda_fault"),
    ("cudaLaunchKernel", 719, "cuda_fault"),
    ("cublasCreate_v2", 3, "oom_device"),
    ("cublasCreate_v2", 1, "oom_suspect"),
    ("cublasSgemm_v2", 13, "oom_suspect"),
    ("cudnnBatchNormalizationForwardTrainingEx", 4004, "oom_device"),
    ("cudnnBackendExecute", 4004, "oom_suspect"),  # torch tries every plan, and says only that none would do
]


@pytest.mark.parametrize(("function", "code", "failure"), FAULTS)
def test_each_fault_ends_as_its_class(answer: Answer, function: str, code: int, failure: str) -> None:
    ended = answer(spec(model="resnet18", batch_size=4), GIB, failures=[Failure(function=function, code=code)])
    assert isinstance(ended, Broken | OutOfMemory), ended
    assert ended.failure == failure
    assert ended.phase is not None


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16", "bf16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_precision_and_optimizer_trains(answer: Answer, precision: str, optimizer: str) -> None:
    found = fit(answer(spec(precision=precision, optimizer=optimizer), GIB))
    assert len(found.steps) == 3
    assert found.breakdown is not None
    assert found.breakdown.total_bytes == found.peak_allocated_bytes

"""Evidence to class: published and written texts, who raised them, chains, deaths, suspicion and sizes."""

import json
import random
import signal
import string
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sweeper.failure_texts import BY_CODE, FALLBACK_ROWS, TEXT_ROWS
from sweeper.failures import (
    Death,
    Evidence,
    Origin,
    ParsedSizes,
    classify,
    classify_death,
    confirm_suspect,
    doubt,
    evidence_of,
    is_out_of_memory,
    parse_sizes,
)
from sweeper.trial import Broken, CardMemory, FailureClass, Fit, OutOfMemory, StepRecord
from sweeper.units import GIB, KIB, MIB

TRUTH = Path(__file__).parents[2].parent / "shared" / "truth" / "oom_texts.json"

ASYNC = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)
NEW = (
    "CUDA out of memory. Tried to allocate 996.00 MiB. GPU 0 has a total capacity of 44.43 GiB of which 9.06 GiB is "
    "free. Process 2102129 has 17.54 GiB memory in use. Including non-PyTorch memory, this process has 17.81 GiB "
    "memory in use. 17.69 GiB allowed; Of the allocated memory 17.44 GiB is allocated by PyTorch, and 59.88 MiB is "
    "reserved by PyTorch but unallocated."
)
MALLOC_ASYNC = (
    "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 29.97 GiB\n"
    "Requested               : 7.17 GiB\nDevice limit            : 15.92 GiB\nFree (according to CUDA): 0 bytes\n"
    "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB"
)
LINUX = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "70368744177664 bytes. Error code 12 (Cannot allocate memory)"
)

# Texts as native code raises them, by class; plain RuntimeErrors, so that the words alone decide.
TEXTS: dict[FailureClass, tuple[str, ...]] = {
    "oom_device": (
        NEW, MALLOC_ASYNC,
        "HIP out of memory. Tried to allocate 76.00 MiB. GPU 0 has a total capacity of 255.69 GiB of which "
        "252.82 GiB is free.",
        "XPU out of memory. Tried to allocate 12.82 GiB. GPU 0 has a total capacity of 63.98 GiB.",
        "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 43.24 GiB total capacity; 40.39 GiB already allocated)",
        "MPS backend out of memory (MPS allocated: 42.28 GiB, other allocations: 720.00 KiB, max allowed: 42.43 GiB).",
        "Execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "CUDA error: out of memory" + ASYNC, "HIP error: out of memory", "CUDA driver error: out of memory",
        "cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCGeneral.cpp:50",
        "Triton Error [CUDA]: out of memory", "Triton Error [HIP]:  Code: 2, Messsage: out of memory",
        "cuModuleLoadData failed with CUDA_ERROR_OUT_OF_MEMORY",
        "radix_sort: failed on 1st step: cudaErrorMemoryAllocation: out of memory",
        "hipModuleLoad failed: hipErrorOutOfMemory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "CUDA error: rocblas_status_memory_error when calling `rocblas_create_handle(handle)`",
        "cuFFT error: CUFFT_ALLOC_FAILED", "cuFFT error: HIPFFT_ALLOC_FAILED",
        "CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`",
        "CURAND_STATUS_ALLOCATION_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error, NCCL version "
        "2.14.3\nncclUnhandledCudaError: Call to "
        "CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes",
        "NCCL error in: NCCLUtils.hpp:317, unhandled cuda error\nLast error:\nCuda failure 'out of memory'",
        "RCCL: unhandled cuda error\nLast error:\nHIP failure 'out of memory'",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "zeMemAllocDevice: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "Native API failed. Native API returns: -4 (PI_ERROR_MEM_OBJECT_ALLOCATION_FAILURE)",
        "get_temporary_buffer failed",
        "std::bad_alloc: out_of_memory: CUDA error at: rmm/cuda_memory_resource.hpp:62",
        "some new library: out of memory",
    ),
    "oom_host": (
        LINUX,
        "[enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: not enough memory: you tried to allocate "
        "8589934592 bytes.",
        "[enforce fail at CPUAllocator.cpp:56] posix_memalign(&data, gAlignment, nbytes) == 0. 12 vs 0",
        "$ Torch: not enough memory: you tried to allocate 12GB. Buy new RAM! at TH/THGeneral.cpp:204",
        "std::bad_alloc", "unable to mmap 4096 bytes from file </torch_1_2>: Cannot allocate memory (12)",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
        "DataLoader worker (pid 4211) is killed by signal: Killed. ",
        "DataLoader worker (pid 4211) is killed by signal: Bus error. It is possible that dataloader's workers "
        "are out of "
        "shared memory. Please try to raise your shared memory limit.",
    ),
    "oom_suspect": (
        "CUDA error: device not ready" + ASYNC,
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`",
        "CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasGemmEx`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER", "cuDNN error: CUDNN_STATUS_MAPPING_ERROR",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED_SHAPE", "miopenStatusUnknownError", "miopenStatusAllocFailed",
        "FIND was unable to find an engine to execute this computation",
        "Unable to find a valid cuDNN algorithm to run convolution",
        "[cudnn_frontend] Error: No valid execution plans built.",
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "cuFFT error: CUFFT_INTERNAL_ERROR", "CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
        'handles_.at(i) INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":394, please report a bug',
        "level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "could not create a primitive",
        "NCCL error in: NCCLUtils.hpp:317, unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    ),
    "kernel_limit": (
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
        "CUDA error: invalid configuration argument" + ASYNC, "HIP error: invalid configuration argument",
        "CUDA error: too many resources requested for launch", "CUDA error: too many blocks in cooperative launch",
        "CUDA error: a kernel launch error has occurred due to cluster misconfiguration",
        "out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
        "Triton Error [CUDA]: invalid argument", "index tensor has more than 2**31 - 1 elements",
        "out of resource: threads, Required: 2048, Hardware limit: 1024",
        "nonzero is not supported for tensors with more than INT_MAX elements",
        "upsample_nearest_nhwc only supports output tensors with less than INT_MAX elements, but got [8, 3]",
        "numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64",
        "input tensor must fit into 32-bit index math",
        "Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output) to be true, but got false.",
        "add: Argument #0: tensor too large or too many dimensions", "quantile() input tensor is too large for sort",
        "Storage size calculation overflowed with sizes=[4611686018427387904]", "Invalid buffer size: 20.00 GiB",
        "[cudnn_frontend] Error: Workspace size is too large.", "grid size in dimension 1 exceeds 65535",
        "the requested shared memory per block exceeds the limit of this GPU",
    ),
    "cuda_fault": (
        "CUDA error: an illegal memory access was encountered" + ASYNC,
        "CUDA error: device-side assert triggered" + ASYNC,
        "CUDA error: unspecified launch failure", "HIP error: unspecified launch failure",
        "CUDA error: misaligned address", "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: the launch timed out and was terminated", "CUDA error: an illegal instruction was encountered",
        "CUDA error: uncorrectable NVLink error detected during the execution",
        "Cuda failure 700 'an illegal memory access was encountered'",
        "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", "NVRM: Xid (PCI:0000:01:00): 13, SM Exception",
        "NVML_ERROR_GPU_IS_LOST",
        "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
        "DataLoader worker (pid 77) is killed by signal: Segmentation fault. ",
        "CUDA error: unknown error", "Triton Error [CUDA]: unknown error",
        "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`",
        "cuDNN error: CUDNN_STATUS_BAD_PARAM", "level_zero backend failed with error: 2 "
        "(UR_RESULT_ERROR_INVALID_VALUE)",
    ),
    "numeric": (
        "Function 'LogBackward0' returned nan values in its 0th output.",
        "probability tensor contains either `inf`, `nan` or element < 0",
        "Function 'PowBackward1' returned nan values in its 1th output.",
    ),
    "timeout": (
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)",
        "DataLoader timed out after 30 seconds",
    ),
    "infra": (
        "Found no NVIDIA driver on your system.", "Torch not compiled with CUDA enabled", "No HIP GPUs are available",
        "CUDA error: no kernel image is available for execution on the device" + ASYNC,
        "CUDA error: no CUDA-capable device is detected", "CUDA error: invalid device ordinal",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "CUDA error: initialization error",
        "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        "CUDA error: API call is not supported in the installed CUDA driver",
        "CUDA error: CUDA driver is a stub library",
        "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "CUDA error: system not yet initialized",
        "CUDA error: system has unsupported display driver / cuda driver combination",
        "CUDA error: forward compatibility was attempted on non supported HW",
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use the 'spawn' start "
        "method",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH", "cuDNN error: CUDNN_STATUS_VERSION_MISMATCH",
        "unable to write to file </torch_1_2_3>: No space left on device (28)",
        "can't start new thread", "Could not load library libcudnn_cnn_infer.so.8. Error: not found",
        "libcudnn.so.9: cannot open shared object file: No such file or directory",
        "NCCL error in: NCCLUtils.hpp:317, remote process exited or there was a network error, ncclRemoteError",
        "DataLoader worker (pid(s) 12, 13) exited unexpectedly",
    ),
    "model_error": (
        "mat1 and mat2 shapes cannot be multiplied (32x512 and 2048x10)",
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
        "expected scalar type Half but found Float", "element 0 of tensors does not require grad",
        "Given groups=1, weight of size [64, 3, 7, 7], expected input[8, 1, 224, 224] to have 3 channels",
        "shape '[8, 10]' is invalid for input of size 81", "Trying to backward through the graph a second time",
        "loss became NaN after host ran out of memory budget config", "ran out of memory slots in the replay buffer",
        "the memory bank is full: 65536 entries", "", "CUDA graphs are not supported by this model",
    ),
}  # fmt: skip
PAIRS = [(failure, text) for failure, texts in TEXTS.items() for text in texts]
NOT_FROM_TEXT = {"spilled"}  # seen in a measurement, not in words


def evidence(text: str, origin: Origin = "native", **more: Any) -> Evidence:
    return Evidence(**{"type_names": ("RuntimeError", "Exception"), "text": text, "origin": origin, **more})


def raised(text: str, kind: type[BaseException] = RuntimeError, module: str = "user_model") -> BaseException:
    """An error that Python code of ``module`` raised."""
    try:
        exec("raise kind(text)", {"__name__": module, "kind": kind, "text": text})
    except kind as error:
        return error
    raise AssertionError


# -- texts -------------------------------------------------------------------------------------------------------------


def truth() -> list[dict[str, str]]:
    return json.loads(TRUTH.read_text()) if TRUTH.exists() else []


def test_published_texts_are_of_their_class_whether_or_not_their_origin_is_known() -> None:
    if not TRUTH.exists():
        pytest.skip(f"{TRUTH.name} is not beside this checkout (../shared/truth)")
    wrong = []
    for row in truth():
        by_program = row["id"].startswith("user")
        origins: tuple[Origin, ...] = ("user", "unknown") if by_program else ("native", "unknown")
        for origin in origins:
            verdict = classify(evidence(row["text"], origin, type_names=(row["raised_as"], "Exception")))
            if verdict.failure != row["class"]:
                wrong.append((row["id"], origin, verdict))
    assert wrong == []


def test_the_texts_here_are_many_and_of_every_class() -> None:
    assert set(TEXTS) == set(get_args(FailureClass)) - NOT_FROM_TEXT
    assert len(PAIRS) == len(set(PAIRS)) >= 4 * 28


@pytest.mark.parametrize(("failure", "text"), PAIRS)
def test_a_text_is_of_its_class(failure: FailureClass, text: str) -> None:
    verdict = classify(evidence(text))
    assert verdict.failure == failure
    assert verdict.reason
    assert "\n" not in verdict.reason


@pytest.mark.parametrize(("failure", "text"), PAIRS)
def test_case_line_breaks_and_colours_change_nothing(failure: FailureClass, text: str) -> None:
    for changed in (
        text.upper(),
        text.lower(),
        text.replace(" ", "\n  "),
        f"\x1b[31;1m{text}\x1b[0m",
        f"\n\n {text}\r\n",
    ):
        assert classify(evidence(changed)).failure == failure


@pytest.mark.parametrize(("failure", "text"), PAIRS)
def test_words_that_a_program_raised_itself_are_its_own_error(failure: FailureClass, text: str) -> None:
    assert classify(evidence_of(raised(text))).failure == "model_error"


@given(pair=st.sampled_from(PAIRS), before=st.text(max_size=30), after=st.text(max_size=30))
def test_no_token_in_a_programs_own_text_is_ever_out_of_memory(pair: Any, before: str, after: str) -> None:
    for kind in (RuntimeError, ValueError, AssertionError):
        assert classify(evidence_of(raised(f"{before} {pair[1]} {after}", kind))).failure == "model_error"


@given(pair=st.sampled_from(PAIRS), seed=st.integers(0, 2**32))
def test_the_order_of_rows_means_nothing(pair: Any, seed: int) -> None:
    shuffled = list(TEXT_ROWS)
    random.Random(seed).shuffle(shuffled)
    assert classify(evidence(pair[1]), rows=shuffled) == classify(evidence(pair[1]))


# One text a class that no row refines, in the order in which classes outrank each other.
RANKED = (
    "a tensor with more than INT_MAX elements",
    "CUDA error: out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "Function 'LogBackward0' returned nan values in its 0th output.",
    "Watchdog caught collective operation timeout",
    "CUDA error: invalid device ordinal",
    "CUDA error: device-side assert triggered",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
)


@pytest.mark.parametrize("high", range(len(RANKED)))
def test_of_two_claims_in_one_text_the_graver_class_wins(high: int) -> None:
    expected = classify(evidence(RANKED[high])).failure
    for low in range(high, len(RANKED)):
        for pair in ((RANKED[high], RANKED[low]), (RANKED[low], RANKED[high])):
            assert classify(evidence("\n".join(pair))).failure == expected


def test_every_row_decides_some_text() -> None:
    lines = ("", "batch = batch.pin_memory()")
    deciding = {
        (verdict.failure, row.reason)
        for _, text in PAIRS
        for line in lines
        for verdict in [classify(evidence(text, line=line))]
        for row in (*TEXT_ROWS, *FALLBACK_ROWS)
        if verdict.reason.startswith(row.reason) and row.search(text)
    }
    idle = [row.pattern for row in (*TEXT_ROWS, *FALLBACK_ROWS) if (row.failure, row.reason) not in deciding]
    assert idle == []


def test_every_row_alone_gives_its_class_to_a_text_of_that_class_and_to_none_it_should_lose() -> None:
    for row in TEXT_ROWS:
        assert row.source
        pinned = evidence("CUDA error: out of memory", line="batch = batch.pin_memory()")
        own = [evidence(text) for text in TEXTS[row.failure]] + [pinned]
        alone = [classify(item, rows=[row]) for item in own]
        assert any(verdict.reason.startswith(row.reason) for verdict in alone), row.pattern
        for text in TEXTS["model_error"]:
            assert classify(evidence(text), rows=[row]).failure == "model_error"


# -- types, codes, origins ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "failure"), [
    (("torch.OutOfMemoryError", "RuntimeError"), "oom_device"),
    (("torch.cuda.OutOfMemoryError", "RuntimeError"), "oom_device"),
    (("sweeper.worker.tracing.ledger.SimulatedOutOfMemory", "torch.OutOfMemoryError", "RuntimeError"), "oom_device"),
    (("cupy.cuda.memory.OutOfMemoryError", "MemoryError"), "oom_device"),
    (("numpy._core._exceptions._ArrayMemoryError", "MemoryError"), "oom_host"),
    (("MemoryError",), "oom_host"),
    (("triton.runtime.errors.OutOfResources", "triton.runtime.errors.TritonError"), "kernel_limit"),
    (("ModuleNotFoundError", "ImportError"), "infra"),
    (("sweeper.worker.devices.DeviceMissing", "Exception"), "infra"),
    (("KeyboardInterrupt",), "infra"),
    (("FloatingPointError",), "numeric"),
    (("my_package.OutOfMemoryError", "Exception"), "model_error"),
])  # fmt: skip
def test_a_type_speaks_without_words_and_its_most_derived_name_first(names: tuple[str, ...], failure: str) -> None:
    assert classify(evidence("no words of any row", type_names=names)).failure == failure


def test_a_type_counts_before_words_except_where_a_row_refines_it() -> None:
    oom = ("torch.OutOfMemoryError", "RuntimeError")
    assert classify(evidence("CUDA error: misaligned address", type_names=oom)).failure == "oom_device"
    assert classify(evidence("Tried to allocate more than 1EB memory.", type_names=oom)).failure == "kernel_limit"
    rmm = "std::bad_alloc: out_of_memory: CUDA error at: rmm"
    assert classify(evidence(rmm, type_names=("MemoryError",))).failure == "oom_device"


@pytest.mark.parametrize("code", range(1, 1000))
def test_an_error_code_counts_before_words(code: int) -> None:
    failure = BY_CODE[code][0] if code in BY_CODE else "cuda_fault"
    names = ("torch.AcceleratorError", "RuntimeError")
    assert classify(evidence("", type_names=names, error_code=code)).failure == failure
    if code in BY_CODE and code != 700:
        text = "CUDA error: an illegal memory access was encountered"
        assert classify(evidence(text, type_names=names, error_code=code)).failure == failure
    assert classify(evidence("", type_names=("subprocess.Error",), error_code=code)).failure == "model_error"


def test_pinned_memory_is_the_hosts_when_the_failing_line_says_so() -> None:
    text, names = "CUDA error: out of memory" + ASYNC, ("torch.AcceleratorError", "RuntimeError")
    pinned = evidence(text, type_names=names, error_code=2, line="return data.pin_memory()")
    assert classify(pinned).failure == "oom_host"
    assert classify(evidence(text, type_names=names, error_code=2, line="return self.conv(x)")).failure == "oom_device"
    # torch's device allocator never speaks of host memory, whatever the line is.
    device = evidence(NEW, type_names=("torch.OutOfMemoryError",), line="x = x.pin_memory().cuda()")
    assert classify(device).failure == "oom_device"


def test_on_the_cpu_there_is_only_the_hosts_memory() -> None:
    assert classify(evidence("oneDNN: out of memory", device="cpu")).failure == "oom_host"
    assert classify(evidence("oneDNN: out of memory", device="cuda")).failure == "oom_device"


def test_plain_words_are_believed_of_native_code_only() -> None:
    for text in ("some new library: out of memory", "std::bad_alloc", "fork: Cannot allocate memory"):
        assert classify(evidence(text, "native")).failure in ("oom_device", "oom_host")
        assert classify(evidence_of(raised(text, module="torch._inductor.codecache"))).failure == "model_error"


def native(call: Any, *arguments: Any) -> BaseException:
    try:
        call(*arguments)
    except Exception as error:
        return error
    raise AssertionError("did not raise")


def reraised(how: str) -> BaseException:
    """A native error that passed through Python code which raises it on, by each of the ways there are."""
    code = {
        "bare": "try:\n int('x')\nexcept ValueError:\n raise",
        "named": "try:\n int('x')\nexcept ValueError as e:\n raise e",
        "finally": "try:\n int('x')\nfinally:\n done = 1",
        "with": "import contextlib\nwith contextlib.ExitStack() as s:\n s.callback(list)\n int('x')",
        "generator": "import contextlib\n@contextlib.contextmanager\ndef g():\n try:\n  yield\n finally:\n  "
        "pass\nwith g():\n int('x')",
    }[how]
    return native(exec, code, {"__name__": "user_model"})


@pytest.mark.parametrize("how", ["bare", "named", "finally", "with", "generator"])
def test_a_native_error_stays_native_however_it_is_passed_on(how: str) -> None:
    assert evidence_of(reraised(how))[0].origin == "native"


def test_the_origin_is_read_off_the_deepest_frame() -> None:
    assert evidence_of(native(int, "x"))[0].origin == "native"
    assert evidence_of(raised("x"))[0].origin == "user"
    assert evidence_of(raised("x", module="torch._utils"))[0].origin == "library"
    assert evidence_of(raised("x", module="torchish.utils"))[0].origin == "user"
    assert evidence_of(RuntimeError("never raised"))[0].origin == "unknown"
    failed = native(exec, "assert 1 == 2, 'CUDA out of memory'", {"__name__": "user_model"})
    assert evidence_of(failed)[0].origin == "user"
    assert classify(evidence_of(failed)).failure == "model_error"
    assert evidence_of(native(bytearray, 1 << 62))[0].type_names[0] == "MemoryError"
    assert classify(evidence_of(native(bytearray, 1 << 62))).failure == "oom_host"


# -- chains and tracebacks passed on as text ---------------------------------------------------------------------------


def chained(inner: BaseException, how: str) -> BaseException:
    code = {
        "from": "try:\n raise inner\nexcept BaseException as e:\n raise RuntimeError('step failed') from e",
        "context": "try:\n raise inner\nexcept BaseException:\n raise RuntimeError('step failed')",
        "from None": "try:\n raise inner\nexcept BaseException:\n raise RuntimeError('step failed') from None",
        "twice": "try:\n try:\n  raise inner\n except BaseException as e:\n  raise ValueError('a') from e\n"
        "except ValueError as e:\n raise RuntimeError('b') from e",
    }[how]
    return native(exec, code, {"__name__": "user_model", "inner": inner})


@pytest.mark.parametrize("how", ["from", "context", "from None", "twice"])
def test_a_wrapped_error_is_what_it_was_raised_from(how: str) -> None:
    host = chained(native(bytearray, 1 << 62), how)
    assert classify(evidence_of(host)).failure == "oom_host"
    assert classify(evidence_of(chained(raised("CUDA out of memory. Tried"), how))).failure == "model_error"


def test_a_refusal_anywhere_in_a_chain_outweighs_the_rest() -> None:
    suspect, fault = evidence("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), evidence("CUDA error: misaligned address")
    oom, user = evidence(NEW), evidence("step failed", "user")
    assert classify([user, suspect, oom]).failure == "oom_device"
    assert classify([fault, oom]).failure == "oom_device"
    assert classify([user, suspect, fault]).failure == "oom_suspect"
    assert classify([user, fault, suspect]).failure == "cuda_fault"
    assert classify([user, user]) == classify(user)
    assert classify([user, oom]).sizes == parse_sizes(NEW)


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert [link.text for link in evidence_of(first)] == ["a", "b"]


def passed_on(inner: str, line: str, kind: str) -> BaseException:
    """What ``torch._utils.ExceptionWrapper.reraise`` raises for an error in a data loader's worker."""
    text = (
        "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "torch/utils/data/_utils/worker.py", line 349, in _worker_loop\n    data = fetcher.fetch(index)\n'
        f'  File "dataset.py", line 9, in __getitem__\n    {line}\n    ^^^^^^^^^^^^\n{kind}: {inner}\n'
    )
    return raised(text, module="torch._utils")


@pytest.mark.parametrize(("failure", "text"), PAIRS)
def test_a_workers_error_is_what_its_traceback_says_it_was(failure: FailureClass, text: str) -> None:
    assert classify(evidence_of(passed_on(text, "x = torch.empty(n)", "RuntimeError"))).failure == failure
    raises = "raise RuntimeError(message)"
    assert classify(evidence_of(passed_on(text, raises, "RuntimeError"))).failure == "model_error"


def test_the_innermost_of_nested_tracebacks_counts() -> None:
    inner = str(passed_on(NEW, "x = torch.empty(n)", "RuntimeError"))
    assert classify(evidence_of(passed_on(inner, "raise self.error", "RuntimeError"))).failure == "oom_device"
    inner = str(passed_on(NEW, "raise RuntimeError(NEW)", "RuntimeError"))
    assert classify(evidence_of(passed_on(inner, "run(step)", "RuntimeError"))).failure == "model_error"


def test_a_type_in_a_passed_on_traceback_counts() -> None:
    assert classify(evidence_of(passed_on("no words", "x = make()", "MemoryError"))).failure == "oom_host"
    assert classify(evidence_of(passed_on("no words", "x = make()", "torch.OutOfMemoryError"))).failure == "oom_device"


def test_with_torch_itself() -> None:
    torch = pytest.importorskip("torch")
    wrapper = pytest.importorskip("torch._utils").ExceptionWrapper
    refused = native(torch.empty, 1 << 44)
    verdict = classify(evidence_of(refused, device="cpu"))
    assert verdict.failure == "oom_host"
    assert verdict.sizes == ParsedSizes(requested_bytes=4 << 44)
    assert classify(evidence_of(native(torch.empty, 1 << 62))).failure == "kernel_limit"
    assert classify(evidence_of(native(torch.mm, torch.ones(2, 3), torch.ones(2, 3)))).failure == "model_error"
    assert classify(evidence_of(raised(NEW, torch.OutOfMemoryError))).failure == "oom_device"
    if hasattr(torch, "AcceleratorError"):  # 2.6 has none
        assert classify(evidence_of(raised(NEW, torch.AcceleratorError))).failure == "model_error"
    for error, failure in ((refused, "oom_host"), (raised(NEW), "model_error"), (raised("", MemoryError), "oom_host")):
        passed = native(
            wrapper((type(error), error, error.__traceback__), where="in DataLoader worker process 0").reraise
        )
        assert classify(evidence_of(passed)).failure == failure


# -- sizes -------------------------------------------------------------------------------------------------------------

SIZES = st.integers(0, (1 << 48))


def said(size: int) -> str:
    """As ``c10::CachingAllocator::format_size`` writes it."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size > unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


def said_by_metal(size: int) -> str:
    return said(size).replace("iB", "B")


def near(parsed: int | None, size: int) -> bool:
    unit = next((unit for unit in (GIB, MIB, KIB) if size > unit), 0)
    return parsed is not None and abs(parsed - size) <= 0.005 * unit + 1


@given(
    st.lists(SIZES, min_size=7, max_size=7),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["capacity", "capacty"]),
)
def test_sizes_survive_the_wording_since_2_1(
    sizes: list[int], own: bool, limited: bool, pools: bool, capacity: str
) -> None:
    asked, total, free, process, limit, allocated, cached = sizes
    text = (
        f"CUDA out of memory. Tried to allocate {said(asked)}. GPU 1 has a total {capacity} of {said(total)} of which "
    )
    text += f"{said(free)} is free. Process 17 has 9.99 GiB memory in use. "
    text += f"Including non-PyTorch memory, this process has {said(process)} memory in use. " if own else ""
    text += f"{said(limit)} allowed; " if limited else ""
    text += f"Of the allocated memory {said(allocated)} is allocated by PyTorch, "
    text += "with 17.00 MiB allocated in private pools (e.g., CUDA Graphs), " if pools else ""
    text += f"and {said(cached)} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large"
    parsed = parse_sizes(text)
    assert parsed is not None
    assert near(parsed.requested_bytes, asked)
    assert near(parsed.capacity_bytes, total)
    assert near(parsed.free_bytes, free)
    assert near(parsed.allocated_bytes, allocated)
    assert parsed.reserved_bytes is not None
    assert near(parsed.reserved_bytes - (parsed.allocated_bytes or 0), cached)
    assert near(parsed.process_bytes, process) if own else parsed.process_bytes is None
    assert near(parsed.limit_bytes, limit) if limited else parsed.limit_bytes is None


@given(st.lists(SIZES, min_size=6, max_size=6), st.booleans(), st.sampled_from(["CUDA", "HIP", "NPU"]), st.booleans())
def test_sizes_survive_the_wording_before_2_1(sizes: list[int], limited: bool, device: str, ancient: bool) -> None:
    asked, total, allocated, free, limit, reserved = sizes
    allowed = f"{said(limit)} allowed; " if limited else ""
    last = "cached" if ancient else "reserved in total by PyTorch"
    text = (
        f"{device} out of memory. Tried to allocate {said(asked)} (GPU 0; {said(total)} total capacity; "
        f"{said(allocated)} "
        f"already allocated; {said(free)} free; {allowed}{said(reserved)} {last}) If reserved memory is >> "
        f"allocated memory"
    )
    parsed = parse_sizes(text)
    assert parsed is not None
    assert near(parsed.requested_bytes, asked)
    assert near(parsed.capacity_bytes, total)
    assert near(parsed.allocated_bytes, allocated)
    assert near(parsed.free_bytes, free)
    assert near(parsed.reserved_bytes, reserved)
    assert near(parsed.limit_bytes, limit) if limited else parsed.limit_bytes is None


@given(st.lists(SIZES, min_size=4, max_size=4))
def test_sizes_survive_malloc_async(sizes: list[int]) -> None:
    allocated, asked, total, free = sizes
    text = (
        f"Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : "
        f"{said(allocated)}\n"
        f"Requested               : {said(asked)}\nDevice limit            : {said(total)}\nFree (according to CUDA): "
        f"{said(free)}\nPyTorch limit (set by user-supplied memory fraction)\n                        : "
        f"17179869184.00 GiB"
    )
    parsed = parse_sizes(text)
    assert parsed is not None
    assert near(parsed.allocated_bytes, allocated)
    assert near(parsed.requested_bytes, asked)
    assert near(parsed.capacity_bytes, total)
    assert near(parsed.free_bytes, free)
    assert parsed.limit_bytes is None  # 2**64 bytes is no limit


@given(st.lists(SIZES, min_size=4, max_size=4), st.sampled_from([said, said_by_metal]))
def test_sizes_survive_metal_in_either_of_its_spellings(sizes: list[int], write: Any) -> None:
    allocated, others, limit, asked = sizes
    parsed = parse_sizes(
        f"MPS backend out of memory (MPS allocated: {write(allocated)}, other allocations: {write(others)}, max "
        f"allowed: "
        f"{write(limit)}). Tried to allocate {write(asked)} on private pool."
    )
    assert parsed is not None
    assert near(parsed.allocated_bytes, allocated)
    assert near(parsed.limit_bytes, limit)
    assert near(parsed.requested_bytes, asked)
    assert parsed.capacity_bytes is None


@given(SIZES)
def test_sizes_survive_where_one_is_said(size: int) -> None:
    cpu = f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes. Error code 12"
    assert parse_sizes(cpu) == ParsedSizes(requested_bytes=size)
    for text in (
        f"Allocation was preemptively rejected because it would exceed limit. Requested size: {said(size)}",
        f"Unable to allocate {said(size)} for an array with shape (3,) and data type float64",
        f"Invalid buffer size: {said(size)}",
    ):
        parsed = parse_sizes(text)
        assert parsed is not None
        assert near(parsed.requested_bytes, size)
    assert parse_sizes(f"Failed to CUDA calloc {size} bytes") == ParsedSizes(requested_bytes=size)


@given(st.text(alphabet=string.printable, max_size=80))
@example("CUDA out of memory. Tried to allocate more than 1EB memory.")
@example("batch 512 of 1000 free")
@example("17179869184.00 GiB already allocated")
def test_a_text_without_sizes_has_none(text: str) -> None:
    assert parse_sizes(text) is None


def test_other_processes_are_not_this_one() -> None:
    parsed = parse_sizes(NEW)
    assert parsed is not None
    assert parsed.process_bytes == round(17.81 * GIB)
    assert parsed.limit_bytes == round(17.69 * GIB)
    unasked = parse_sizes("this process has 17179869184.00 GiB memory in use. 17.51 GiB allowed;")
    assert unasked == ParsedSizes(limit_bytes=round(17.51 * GIB))  # what a failed query prints


# -- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("death", "failure", "word"), [
    (Death(exit_code=-9, oom_kills=1), "oom_host", "kernel"),
    (Death(exit_code=137, oom_kills=2), "oom_host", "kernel"),
    (Death(exit_code=None, host_died=True, oom_kills=1), "oom_host", "kernel"),
    (Death(exit_code=-9), "infra", "SIGKILL"),
    (Death(exit_code=-15), "infra", "SIGTERM"),
    (Death(exit_code=-2), "infra", "SIGINT"),
    (Death(exit_code=-11), "cuda_fault", "SIGSEGV"),
    (Death(exit_code=139), "cuda_fault", "SIGSEGV"),
    (Death(exit_code=-6), "cuda_fault", "SIGABRT"),
    (Death(exit_code=-7), "cuda_fault", "SIGBUS"),
    (Death(exit_code=-4), "cuda_fault", "SIGILL"),
    (Death(exit_code=-8), "cuda_fault", "SIGFPE"),
    (Death(exit_code=-11, oom_kills=1), "cuda_fault", "SIGSEGV"),  # somebody else's kill
    (Death(exit_code=None, timed_out_s=30), "timeout", "30 s"),
    (Death(exit_code=-9, timed_out_s=0.5, oom_kills=1), "timeout", "0.5 s"),  # the driver killed it, for its time
    (Death(exit_code=None, host_memory=True), "oom_host", "host memory"),
    (Death(exit_code=None, host_died=True), "infra", "host"),
    (Death(exit_code=None), "infra", "lost"),
    (Death(exit_code=0), "infra", "no result"),
    (Death(exit_code=1), "infra", "code 1 and left no result"),
    (Death(exit_code=3, has_result=True), "infra", "code 3"),
    (Death(exit_code=255), "infra", "code 255"),
])  # fmt: skip
def test_a_death_is_of_its_class(death: Death, failure: FailureClass, word: str) -> None:
    found, reason = classify_death(death)
    assert found == failure
    assert word in reason


def test_no_death_is_out_of_memory_of_a_device_and_each_says_why() -> None:
    for code in [None, *range(-signal.NSIG, 300)]:
        for kills in (0, 1):
            for flags in ({}, {"host_died": True}, {"host_memory": True}, {"timed_out_s": 9.0}):
                failure, reason = classify_death(Death(exit_code=code, oom_kills=kills, **flags))
                assert failure in ("oom_host", "cuda_fault", "infra", "timeout")
                assert reason
                assert "\n" not in reason


# -- suspicion and doubt -----------------------------------------------------------------------------------------------

FIT = Fit(peak_allocated_bytes=GIB, peak_reserved_bytes=GIB, capacity_bytes=8 * GIB, steps=())


def oom(failure: Any = "oom_suspect", free: int | None = None, **more: Any) -> OutOfMemory:
    fields = {"capacity_bytes": 8 * GIB, "phase": "forward", "step": 0, "message": "CUDNN_STATUS_ALLOC_FAILED", **more}
    return OutOfMemory(failure=failure, free_bytes=free, **fields)


LITTLE, MUCH = 100 * MIB, 4 * GIB


@pytest.mark.parametrize("first", [LITTLE, MUCH, None])
@pytest.mark.parametrize("second", [LITTLE, MUCH, None])
def test_a_suspect_is_out_of_memory_only_twice_and_with_little_free_both_times(
    first: int | None, second: int | None
) -> None:
    found = confirm_suspect(oom(free=first), oom(free=second))
    if first == second == LITTLE:
        assert isinstance(found, OutOfMemory)
        assert found.failure == "oom_device"
        assert found.notes
    else:
        assert isinstance(found, Broken)
        assert found.failure == "cuda_fault"
        assert "CUDNN_STATUS_ALLOC_FAILED" in found.reason


def test_a_repeat_that_fits_fits_and_says_what_happened_before() -> None:
    found = confirm_suspect(oom(free=LITTLE), FIT)
    assert isinstance(found, Fit)
    assert "CUDNN_STATUS_ALLOC_FAILED" in found.notes[-1]


def test_a_repeat_that_knows_better_is_believed() -> None:
    plain, broken = oom("oom_device", free=MUCH), Broken(failure="cuda_fault", reason="x")
    assert confirm_suspect(oom(free=MUCH), plain) is plain
    assert confirm_suspect(oom(free=LITTLE), broken) is broken


def test_what_a_limit_leaves_is_free_memory_too() -> None:
    near_limit = oom(free=MUCH, reserved_bytes=8 * GIB - LITTLE)
    assert isinstance(confirm_suspect(near_limit, near_limit), OutOfMemory)
    unknown = oom(free=None, reserved_bytes=8 * GIB - LITTLE)
    assert isinstance(confirm_suspect(unknown, unknown), OutOfMemory)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 40))
def test_little_is_a_twentieth_or_64_mib(free: int, capacity: int) -> None:
    suspect = oom(free=free, capacity_bytes=capacity)
    confirmed = isinstance(confirm_suspect(suspect, suspect), OutOfMemory)
    assert confirmed == (free < capacity / 20 or free < 64 * MIB)


def test_only_memory_moves_the_boundary_and_the_hosts_only_on_the_cpu() -> None:
    for failure in get_args(FailureClass):
        for device in ("cuda", "cuda:1", "sim:rtx4060", "cpu"):
            expected = failure in ("oom_device", "oom_suspect") or (failure == "oom_host" and device == "cpu")
            assert is_out_of_memory(failure, device=device) == expected


def fit(**more: Any) -> Fit:
    return Fit(
        **{"peak_allocated_bytes": GIB, "peak_reserved_bytes": GIB, "capacity_bytes": 8 * GIB, "steps": (), **more}
    )


def test_more_than_the_card_has_is_a_spill() -> None:
    card = CardMemory(total_bytes=8 * GIB, used_bytes=0)
    for more in ({"peak_reserved_bytes": 8 * GIB + 1}, {"process_bytes": 9 * GIB}):
        found = doubt(fit(card_before=card, **more))
        assert found is not None
        assert found.failure == "spilled"
    assert doubt(fit(card_before=card, peak_reserved_bytes=8 * GIB)) is None
    assert doubt(fit(peak_reserved_bytes=9 * GIB)) is None


def test_a_loss_that_is_no_number_leaves_the_memory_in_no_doubt() -> None:
    not_finite = StepRecord(
        seconds=0.1, loss=None, peak_allocated_bytes=1, peak_reserved_bytes=1, not_finite="nan"
    )  # fmt: skip
    assert doubt(fit(steps=(not_finite,))) is None

"""How allocators, drivers and libraries word their failures: the rows of evidence, and the sizes in a message.

Data for ``sweeper.failures``, which says how rows are weighed.  Each row carries its class, what it means to a
person, and where its words come from.  A blank in a pattern is any white space, and case does not count.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from sweeper.trial import FailureClass

__all__ = [
    "BY_CODE",
    "BY_TYPE",
    "CODE_FALLBACK",
    "FALLBACK_ROWS",
    "TEXT_ROWS",
    "ParsedSizes",
    "Row",
    "parse_sizes",
    "plain",
]


class Row(NamedTuple):
    """``pattern`` (case does not count, a blank is any white space) in the text; ``line`` in the source line.

    ``native_only`` rows are too plain to be believed of a Python ``raise``, whoever's.  ``refines``: what the row says
    counts before the exception's type and code.
    """

    failure: FailureClass
    pattern: str
    reason: str
    source: str
    line: str = ""
    native_only: bool = False
    refines: bool = False

    def search(self, text: str) -> re.Match[str] | None:
        return _compiled(self.pattern).search(text)


BY_TYPE: dict[str, tuple[FailureClass, str]] = {
    # torch 2.5+: torch/csrc/Exceptions.cpp names it torch.OutOfMemoryError; 1.13 to 2.4 torch.cuda.OutOfMemoryError
    "torch.OutOfMemoryError": ("oom_device", "the device allocator was refused memory"),
    "torch.cuda.OutOfMemoryError": ("oom_device", "the device allocator was refused memory"),
    "torch._C.OutOfMemoryError": ("oom_device", "the device allocator was refused memory"),
    "cupy.cuda.memory.OutOfMemoryError": ("oom_device", "CuPy was refused device memory"),
    "sweeper.allocator.AllocatorOutOfMemory": ("oom_device", "the simulated allocator was refused memory"),
    "triton.runtime.errors.OutOfResources": ("kernel_limit", "a Triton kernel needs more than one multiprocessor has"),
    "triton.runtime.autotuner.OutOfResources": ("kernel_limit", "a Triton kernel needs more than a multiprocessor has"),
    "MemoryError": ("oom_host", "Python was refused host memory"),
    "FloatingPointError": ("numeric", "a floating-point trap"),
    "ImportError": ("infra", "an import failed"),
    "KeyboardInterrupt": ("infra", "the trial was interrupted"),
    "sweeper.worker.devices.DeviceMissing": ("infra", "the device is not there"),
}

# cudaError_t, from cudart 13.0 (driver_types.h, cudaGetErrorString); HIP gives the shared ones the same numbers and
# words (ROCm hip_runtime_api.h).  Every code that is not here is a fault of the device or of how it was called.
BY_CODE: dict[int, tuple[FailureClass, str, str]] = {
    2: ("oom_device", "out of memory", "the driver was refused device memory"),
    600: ("oom_suspect", "device not ready", "an asynchronous call was not ready"),
    9: ("kernel_limit", "invalid configuration argument", "a kernel's grid or block is larger than the device takes"),
    701: ("kernel_limit", "too many resources requested for launch", "a kernel needs too many registers or threads"),
    720: ("kernel_limit", "too many blocks in cooperative launch", "a cooperative kernel's grid is too large"),
    912: (
        "kernel_limit",
        "a kernel launch error has occurred due to cluster misconfiguration",
        "a kernel's cluster is larger than the device takes",
    ),
    3: ("infra", "initialization error", "CUDA could not be initialised"),
    34: ("infra", "CUDA driver is a stub library", "no real CUDA driver is installed"),
    35: ("infra", "CUDA driver version is insufficient for CUDA runtime version", "the CUDA driver is too old"),
    36: ("infra", "API call is not supported in the installed CUDA driver", "the CUDA driver is too old"),
    46: ("infra", r"CUDA-capable device\(s\) is/are busy or unavailable", "another process has the GPU to itself"),
    100: ("infra", "no CUDA-capable device is detected", "there is no GPU"),
    101: ("infra", "invalid device ordinal", "there is no GPU of that number"),
    209: (
        "infra",
        "no kernel image is available for execution on the device",
        "this build of torch has no code for this GPU",
    ),
    222: (
        "infra",
        "the provided PTX was compiled with an unsupported toolchain",
        "the CUDA driver is too old for a kernel",
    ),
    802: ("infra", "system not yet initialized", "the GPU fabric manager is not running"),
    803: (
        "infra",
        "system has unsupported display driver / cuda driver combination",
        "driver and library do not match",
    ),
    804: ("infra", "forward compatibility was attempted on non supported HW", "driver and library do not match"),
    # What follows would be a fault anyway; it is here for its reason.
    214: ("cuda_fault", "uncorrectable ECC error encountered", "the card's memory has an uncorrectable error"),
    700: ("cuda_fault", "an illegal memory access was encountered", "a kernel read or wrote outside its memory"),
    702: ("cuda_fault", "the launch timed out and was terminated", "a kernel ran past the display's watchdog"),
    710: ("cuda_fault", "device-side assert triggered", "an assertion failed inside a kernel"),
    715: ("cuda_fault", "an illegal instruction was encountered", "a kernel met an illegal instruction"),
    716: ("cuda_fault", "misaligned address", "a kernel read a misaligned address"),
    719: ("cuda_fault", "unspecified launch failure", "a kernel failed while running"),
}
CODE_FALLBACK: tuple[FailureClass, str] = ("cuda_fault", "the CUDA driver reported an error")

# How torch (c10/cuda/CUDAException.cpp, driver_api.h), THC before 1.8, Triton and NCCL put the driver's words.
_DRIVER_SAYS = (
    r"(?:\b(?:CUDA|HIP|Triton)(?: driver| runtime)? error[^:\n]{{0,20}}: (?:Code: \d+, Mess+age: )?"
    r"|(?:Cuda|HIP) failure (?:\d+ )?'){words}"
)

_ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp 2.14, hipified for ROCm; c10/xpu; torch_npu NPUCachingAllocator.cpp"
_BLAS, _DNN = "cublas_api.h, hipblas.h, rocblas-types.h", "cudnn_graph.h 9, miopen.h"
_CONV, _KERNELS = "ATen/native/cudnn/Conv_v8.cpp, Conv_v7.cpp 2.14", "ATen/native/cuda 2.14"
_HOST, _LOADER = "c10/core/impl/alloc_cpu.cpp 2.14", "torch/csrc/DataLoader.cpp 2.14"
_UR, _NCCL = "unified-runtime ur_api.h, level_zero ze_api.h, OpenCL cl.h", "nccl src/include/checks.h, alloc.h"

TEXT_ROWS: tuple[Row, ...] = (
    # -- the device has no more ------------------------------------------------------------------------------------
    Row("oom_device", r"\b(?:CUDA|HIP|XPU|NPU|MLU|MUSA|GCU|HPU|MTIA) out of memory\b",
        "the caching allocator was refused memory", _ALLOCATOR),
    Row("oom_device", r"\bMPS backend out of memory\b", "Metal was refused memory", "ATen/mps/MPSAllocator.mm 2.14"),
    Row("oom_device", r"kIOGPUCommandBufferCallbackErrorOutOfMemory", "Metal ran out of memory", "IOGPU.framework"),
    Row("oom_device", r"\bAllocation on device(?: \d+)? would exceed allowed memory",
        "cudaMallocAsync was refused memory", "c10/cuda/CUDAMallocAsyncAllocator.cpp 2.14"),
    Row("oom_device", r"\b(?:cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory"
        r"|hipErrorMemoryAllocation)\b", "the driver was refused device memory", "driver_types.h, cuda.h, hip"),
    Row("oom_device", r"\b(?:CU|HIP|ROC)BLAS(?:LT)?_STATUS_(?:ALLOC_FAILED|MEMORY_ERROR)\b",
        "the BLAS library was refused device memory", _BLAS),
    Row("oom_device", r"\b(?:CU|HIP|ROC)FFT_ALLOC_FAILED\b", "the FFT library was refused memory", "cufft.h, hipfft.h"),
    Row("oom_device", r"\b(?:CU|HIP|ROC)SPARSE_STATUS_(?:ALLOC_FAILED|MEMORY_ERROR)\b",
        "the sparse library was refused device memory", "cusparse.h, hipsparse.h"),
    Row("oom_device", r"\b(?:CU|HIP|ROC)RAND_STATUS_ALLOCATION_FAILED\b",
        "the random number library was refused device memory", "curand.h, hiprand.h"),
    Row("oom_device", r"\bCUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED\b",
        "cuDNN was refused device memory", _DNN),
    Row("oom_device", r"\bFailed to (?:CUDA|HIP) (?:m|c)alloc(?: async)? \d+ bytes", "NCCL was refused memory", _NCCL),
    Row("oom_device", r"_ERROR_OUT_OF_DEVICE_MEMORY\b"
        r"|\b(?:CL|PI_ERROR|UR_RESULT_ERROR)_MEM_OBJECT_ALLOCATION_FAILURE\b",
        "the oneAPI driver was refused device memory", _UR),
    Row("oom_device", r"\bget_temporary_buffer failed\b", "Thrust was refused scratch memory", "thrust 1.x"),
    Row("oom_device", r"\bout_of_memory: (?:CUDA|RMM)\b", "RMM was refused device memory", "rmm/error.hpp",
        refines=True),
    # A driver's words under a prefix that no row knows; nothing but these words, so that a sentence is not meant.
    Row("oom_device", r"(?:^|[:'\"(])\s*out of memory(?=\s*(?:$|[.,;'\")\n]))",
        "the driver was refused memory", "cudaGetErrorString, hipGetErrorString", native_only=True),
    # -- the host has no more --------------------------------------------------------------------------------------
    Row("oom_host", r"\bDefaultCPUAllocator: (?:can't allocate|not enough) memory",
        "the CPU allocator was refused", _HOST),
    Row("oom_host", r"\[enforce fail at (?:\S*/)?(?:alloc_cpu|CPUAllocator)\.cpp",
        "the CPU allocator was refused", _HOST),
    Row("oom_host", r"\bnot enough memory: you tried to allocate\b", "the CPU allocator was refused",
        "c10/core/impl/alloc_cpu.cpp (Windows), TH before 1.2"),
    Row("oom_host", r"\bstd::bad_alloc\b", "C++ was refused host memory", "libstdc++", native_only=True),
    Row("oom_host", r"\bCannot allocate memory\b", "the kernel refused memory (ENOMEM)", "errno 12", native_only=True),
    Row("oom_host", r"\bCUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED\b", "cuDNN was refused host memory", _DNN),
    Row("oom_host", r"_ERROR_OUT_OF_HOST_MEMORY\b|\bCL_OUT_OF_HOST_MEMORY\b",
        "the oneAPI driver lacks host memory", _UR),
    Row("oom_host", r"\bDataLoader worker \(pid\S* [\d, ]+\) is killed by signal: Killed\b",
        "a data loader worker was killed, as the kernel does when memory runs out", _LOADER),
    Row("oom_host", r"\bDataLoader worker \(pid\S* [\d, ]+\) is killed by signal: Bus error\b",
        "a data loader worker ran out of shared memory", _LOADER),
    # cudaHostAlloc fails with the words of cudaMalloc; only the failing line tells that the memory is the host's.
    Row("oom_host", _DRIVER_SAYS.format(words="out of memory") + r"|\bhipErrorOutOfMemory\b",
        "page-locked host memory was refused", "ATen/cuda/CachingHostAllocator.cpp 2.14", line=r"pin_memory",
        refines=True),
    # -- perhaps memory --------------------------------------------------------------------------------------------
    Row("oom_suspect", r"\b(?:CU|HIP|ROC)BLAS(?:LT)?_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED"
        r"|NOT_SUPPORTED|MAPPING_ERROR|INVALID_HANDLE)\b", "the BLAS library failed, as it may without memory", _BLAS),
    Row("oom_suspect", r"\bCUDNN_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED|MAPPING_ERROR"
        r"|(?:INTERNAL_ERROR|EXECUTION_FAILED)\w*"
        r"|NOT_SUPPORTED\w*)\b", "cuDNN failed, as it may without memory", _DNN),
    Row("oom_suspect", r"\bmiopenStatus(?:NotInitialized|AllocFailed|InternalError|UnknownError|NotImplemented"
        r"|UnsupportedOp|GpuOperationsSkipped)\b", "MIOpen failed, as it may without memory", _DNN),
    Row("oom_suspect", r"\bunable to find an engine\b|\bUnable to find a valid cuDNN algorithm\b"
        r"|\bNo (?:valid )?(?:engine configs|execution plans)\b|\bno (?:engine|algorithm) (?:was )?found\b",
        "no convolution plan could run, as when every workspace is refused", _CONV),
    Row("oom_suspect", r"\b(?:CU|HIP|ROC)SOLVER_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED|INTERNAL_ERROR|EXECUTION_FAILED"
        r"|MEMORY_ERROR)\b", "the solver library failed, as it may without memory", "cusolver_common.h, hipsolver"),
    Row("oom_suspect", r"\b(?:CU|HIP|ROC)FFT_(?:INTERNAL_ERROR|EXEC_FAILED|SETUP_FAILED|FAILURE)\b",
        "the FFT library failed, as it may without memory", "cufft.h, hipfft.h"),
    Row("oom_suspect", r"\b(?:CU|HIP|ROC)SPARSE_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED"
        r"|INSUFFICIENT_RESOURCES)\b", "the sparse library failed, as it may without memory", "cusparse.h"),
    Row("oom_suspect", r"INTERNAL ASSERT FAILED at \"?[^\"\n]*(?:Caching|MallocAsync|Host|MPS)Allocator",
        "an assertion of the allocator failed", "c10/cuda/CUDACachingAllocator.cpp 2.14"),
    Row("oom_suspect", r"_ERROR_OUT_OF_RESOURCES\b|\bCL_OUT_OF_RESOURCES\b",
        "the driver ran out of resources, which may be memory", _UR + ", hsa.h"),
    Row("oom_suspect", r"\bcould not create a (?:primitive|memory)(?! descriptor)",
        "oneDNN could not set up", "dnnl.hpp"),
    Row("oom_suspect", r"\bncclUnhandledCudaError\b|\bunhandled (?:cuda|hip) error\b",
        "NCCL met a CUDA error it does not name", _NCCL),
    # -- no card could, whatever its memory ------------------------------------------------------------------------
    Row("kernel_limit", r"\bTried to allocate more than 1EB\b", "more than an exabyte was asked for", _ALLOCATOR,
        refines=True),
    Row("kernel_limit", r"\bout of resource: \S", "a Triton kernel needs more than a multiprocessor has",
        "triton/runtime/errors.py"),
    Row("kernel_limit", r"\bINT_MAX\b|\bint32_t max\b|\b2(?:\^|\*\*)31\b|\bINT32_MAX\b|\b2147483647\b",
        "a tensor has more elements than a 32-bit integer counts", _KERNELS),
    Row("kernel_limit", r"\b32-bit index|\bcanUse32BitIndexMath\b",
        "a tensor is too large for 32-bit indices", _KERNELS),
    Row("kernel_limit", r"\btoo large to fit into an? (?:\w+ )?int\b|\btoo large for the channels_last CUDA kernel"
        r"|\b(?:tensor|input) (?:is )?too large (?:or too many|for)\b",
        "a tensor is too large for the kernel", _KERNELS),
    Row("kernel_limit", r"\b(?:Storage size|Stride) calculation overflowed\b|\bTensor storage size overflowed\b"
        r"|\bnumel: integer multiplication overflow\b", "the size asked for does not fit into 64 bits", "c10/core"),
    Row("kernel_limit", r"\bInvalid buffer size: [\d.]+ \w*B\b", "one buffer is larger than Metal takes",
        "ATen/mps/MPSAllocator.mm 2.14"),
    Row("kernel_limit", r"\bWorkspace size is too large\b",
        "a workspace is larger than cuDNN's type", "cudnn_frontend"),
    Row("kernel_limit", r"\bTriton Error \[\w+\]: (?:Code: \d+, Mess+age: )?invalid argument\b",
        "a Triton kernel's grid is larger than the device takes", "cuLaunchKernel; triton/backends/nvidia/driver.c"),
    Row("kernel_limit", r"\b(?:grid|block) (?:size|dim\w*) .{0,40}(?:exceed|larger than|greater than|too large)",
        "a kernel's grid is larger than the device takes", _KERNELS),
    Row("kernel_limit", r"\bshared memory\b.{0,60}\bexceed|\bexceed.{0,60}\bshared memory\b"
        r"|\btoo much shared (?:memory|data)\b",
        "a kernel needs more shared memory than a multiprocessor has", _KERNELS),
    # -- the device is broken, or was ------------------------------------------------------------------------------
    Row("cuda_fault", r"\bNVRM: Xid\b|\bXid \(PCI|\bXid \d+\b", "the driver logged an Xid", "nvidia Xid catalogue"),
    Row("cuda_fault", r"\bGPU is lost\b|\bfallen off the bus\b|_ERROR_GPU_IS_LOST\b|_ERROR_DEVICE_LOST\b",
        "the GPU went away", "nvml.h, " + _UR),
    Row("cuda_fault", r"\buncorrectable (?:ECC|NVLink) error\b",
        "the card has an uncorrectable error", "driver_types.h"),
    Row("cuda_fault", r"\bDataLoader worker \(pid\S* [\d, ]+\) is killed by signal: (?!Killed|Bus error)",
        "a data loader worker crashed", _LOADER),
    # -- numbers, time, surroundings -------------------------------------------------------------------------------
    Row("numeric", r"\breturned nan values in its \S+ output", "backward made NaN", "torch/csrc/autograd/engine.cpp"),
    Row("numeric", r"\bprobability tensor contains either `inf`, `nan` or element < 0", "probabilities are no numbers",
        "ATen/native/Distributions.cpp"),
    Row("timeout", r"\bWatchdog caught collective operation timeout\b|\bDataLoader timed out after\b",
        "an operation ran past its own time limit", "c10d/ProcessGroupNCCL.cpp, torch/utils/data/dataloader.py"),
    Row("infra", r"\bFound no NVIDIA driver\b|\bTorch not compiled with \w+ enabled\b|\bno NVIDIA GPU\b"
        r"|\bCUDA driver initialization failed\b|\bNVIDIA driver on your system is too old\b|\bNo HIP GPUs\b"
        r"|\bNo CUDA GPUs are available\b", "there is no usable GPU", "torch/cuda/__init__.py, c10/cuda"),
    Row("infra", r"\bCannot re-initialize CUDA in forked subprocess\b", "CUDA was used before a fork", "torch/cuda"),
    Row("infra", r"\bCUDNN_STATUS_\w*(?:ARCH|VERSION)_MISMATCH\b|\bCUDNN_STATUS_\w*SUBLIBRARY\w*"
        r"|\b(?:CU|HIP)BLAS_STATUS_ARCH_MISMATCH\b", "a library does not match the GPU", _DNN),
    Row("infra", r"\bNo space left on device\b|\bToo many open files\b|\bcan't start new thread\b",
        "disk, /dev/shm, files or threads ran out", "errno"),
    Row("infra", r"\bcannot open shared object file\b|\bundefined symbol: |\bCould not load library \S",
        "a library cannot be loaded", "ld.so"),
    *(Row(failure, _DRIVER_SAYS.format(words=words), reason, "cudaGetErrorString, cudart 13.0")
      for failure, words, reason in BY_CODE.values()),
)  # fmt: skip

FALLBACK_ROWS: tuple[Row, ...] = (
    Row("cuda_fault", r"\b(?:CUDA|HIP)(?: driver| runtime)? error\b|\bTriton Error \[", *CODE_FALLBACK[1:],
        "c10/cuda/CUDAException.cpp"),
    Row("cuda_fault", r"\b(?:CU|HIP|ROC)\w+_STATUS_\w+|\b(?:CU|HIP)FFT_\w+|\bmiopenStatus\w+|\brocblas_status_\w+",
        "a GPU library reported an error", _BLAS),
    Row("cuda_fault", r"\b(?:UR_RESULT|ZE_RESULT|PI)_ERROR_\w+", "the oneAPI driver reported an error", _UR),
    Row("infra", r"\bNCCL error\b|\bncclSystemError\b|\bncclRemoteError\b|\bncclInternalError\b",
        "NCCL reported an error", _NCCL),
    Row("infra", r"\bDataLoader worker \(pid\S* [\d, ]+\) exited unexpectedly\b"
        r"|\bPin memory thread exited unexpectedly\b",
        "a data loader worker went away", _LOADER),
)  # fmt: skip


# Compiled at first use: most runs classify nothing, and all of them import this.
@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.DOTALL)


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def plain(text: str) -> str:
    """Return ``text`` without a terminal's colours."""
    return _ANSI.sub("", text)


# -- sizes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSizes:
    """The bytes that a message names; None where it does not.  Messages round to 1/100 of their unit.

    ``limit_bytes`` is what the process was allowed (a memory fraction, MPS's high watermark).
    """

    requested_bytes: int | None = None
    capacity_bytes: int | None = None
    limit_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None


_SIZE = r"(\d+(?:\.\d+)?) ?(bytes?|[KMGTP]?i?B)\b"
_ABSURD = 1 << 60  # an unset limit and a failed NVML query are printed as 2**64 bytes
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}

# (field, pattern, source).  A field may be said in several wordings; the first that is there counts.
_SIZES: tuple[tuple[str, str, str], ...] = (
    ("requested_bytes", rf"tried to allocate {_SIZE}", "every caching allocator; c10/core/impl/alloc_cpu.cpp; MPS"),
    ("requested_bytes", rf"Requested size: {_SIZE}", "CUDACachingAllocator.cpp 2.14, over the memory fraction"),
    ("requested_bytes", rf"^Requested\s*: {_SIZE}", "CUDAMallocAsyncAllocator.cpp"),
    ("requested_bytes", rf"Invalid buffer size: {_SIZE}", "MPSAllocator.mm"),
    ("requested_bytes", rf"Unable to allocate {_SIZE} for an array", "numpy/_core/_exceptions.py"),
    ("requested_bytes", rf"Failed to (?:CUDA|HIP) (?:m|c)alloc(?: async)? {_SIZE}", "nccl alloc.h"),
    ("capacity_bytes", rf"total capaci?ty of {_SIZE}", "2.1 to 2.14; 2.1 writes capacty"),
    ("capacity_bytes", rf"{_SIZE} total capacity", "before 2.1, and torch_npu"),
    ("capacity_bytes", rf"^Device limit\s*: {_SIZE}", "CUDAMallocAsyncAllocator.cpp"),
    ("limit_bytes", rf"{_SIZE} allowed;", "with a memory fraction"),
    ("limit_bytes", rf"max allowed: {_SIZE}", "MPSAllocator.mm"),
    ("limit_bytes", rf"PyTorch limit \(set by user-supplied memory fraction\)\s*: {_SIZE}",
        "CUDAMallocAsyncAllocator.cpp; 2**64 where it is not set"),
    ("free_bytes", rf"of which {_SIZE} is free", "2.1 to 2.14"),
    ("free_bytes", rf"{_SIZE} free;", "before 2.1, and torch_npu"),
    ("free_bytes", rf"^Free \(according to CUDA\): {_SIZE}", "CUDAMallocAsyncAllocator.cpp"),
    ("allocated_bytes", rf"Of the allocated memory {_SIZE} is allocated by PyTorch", "2.1 to 2.14"),
    ("allocated_bytes", rf"{_SIZE} already allocated", "before 2.1, and torch_npu"),
    ("allocated_bytes", rf"^Currently allocated\s*: {_SIZE}", "CUDAMallocAsyncAllocator.cpp"),
    ("allocated_bytes", rf"MPS allocated: {_SIZE}", "MPSAllocator.mm"),
    ("unallocated", rf"{_SIZE} is reserved by PyTorch but unallocated", "2.1 to 2.14"),
    ("reserved_bytes", rf"{_SIZE} (?:reserved in total by PyTorch|cached)", "before 2.1; cached before 1.5"),
    ("process_bytes", rf"this process has {_SIZE} memory in use", "2.1 to 2.14, where NVML names this process"),
)  # fmt: skip


@cache
def _compiled_sizes() -> tuple[tuple[str, re.Pattern[str]], ...]:
    def compiled(pattern: str) -> re.Pattern[str]:
        spaced = pattern.replace(" ?", "\0").replace(" ", r"\s+").replace("\0", r"\s*")
        return re.compile(spaced, re.IGNORECASE | re.MULTILINE)

    return tuple((field, compiled(pattern)) for field, pattern, _ in _SIZES)


def parse_sizes(text: str) -> ParsedSizes | None:
    """Return the sizes that an allocator's message names; None when it names none.

    GB and MB are powers of two here, as the messages that use them compute them (MPSAllocator.mm and TH divide by
    2**30).  Since 2.1 what is reserved is not said but follows: allocated + reserved but unallocated.
    """
    text, found = plain(text), dict[str, int]()
    for field, pattern in _compiled_sizes():
        match = pattern.search(text)
        if match is not None and field not in found:
            unit = match[2].upper()
            scale = 1 if unit.startswith("BYTE") else _SIZE_UNITS[unit.removesuffix("B").removesuffix("I")]
            size = round(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale
            if size < _ABSURD:
                found[field] = size
    if (unallocated := found.pop("unallocated", None)) is not None and "allocated_bytes" in found:
        found["reserved_bytes"] = found["allocated_bytes"] + unallocated
    return ParsedSizes(**found) if found else None

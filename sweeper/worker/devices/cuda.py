"""Real training on a GPU (CUDA, and ROCm builds, which answer to the same names).

The allocator's own counters give the peaks; the driver (NVML) gives what they do not show: the context, other
processes, the card's and the driver's names.  A memory limit is torch's own per-process fraction: the allocator then
refuses by itself, with the usual error, and the context does not count.

What was allocated when it ran out is read while the allocator refuses (its out-of-memory observer).  When the
exception arrives it is too late: autograd has dropped what backward held, and the error's text is rounded.
"""

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pynvml
import torch

from sweeper.allocator_conf import VARIABLES, words_in_force
from sweeper.host_memory import status_bytes
from sweeper.trial import CardMemory, DeviceReport, Fragmentation, Precision
from sweeper.worker.activity import Reading
from sweeper.worker.devices import Device, DeviceMissing, FailureDetail, Usage, amp_dtype, torchvision_version

__all__ = ["CudaDevice"]

# cudaMalloc's own granularity for the allocator's segments; CUDACachingAllocator.cpp kSmallBuffer, torch 2.14.
_GRANULE_BYTES = 2 << 20


class CudaDevice(Device):
    """One GPU.  ``capacity_bytes`` is what cudaMalloc could give when the trial began, under the limit."""

    def __init__(self, *, index: int, memory_limit_bytes: int | None, alloc_conf: str | None = None) -> None:
        if alloc_conf is not None:
            # Read once, when the allocator begins: before the context.  All of them, whichever this release looks at.
            os.environ.update(dict.fromkeys(VARIABLES, alloc_conf))
        if not torch.cuda.is_available():
            raise DeviceMissing(_why_not())
        if index >= torch.cuda.device_count():
            raise DeviceMissing(f"cuda:{index} is not there; this machine has {torch.cuda.device_count()}")
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(index)
        self._driver = _Driver(index)
        # Free before the context exists would count the context as available.
        torch.cuda.init()
        torch.cuda.synchronize()
        free, self._total = torch.cuda.mem_get_info(index)
        self.capacity_bytes = free // _GRANULE_BYTES * _GRANULE_BYTES
        if memory_limit_bytes is not None:
            # A quarter of a byte more: fraction x total is then the limit, whether it is cut to an integer (torch
            # 2.6) or rounded (2.14), and whatever the division lost.
            torch.cuda.set_per_process_memory_fraction(min(1.0, (memory_limit_bytes + 0.25) / self._total), index)
            self.capacity_bytes = min(self.capacity_bytes, memory_limit_bytes)
        self._refusal: FailureDetail | None = None

    def session(self) -> AbstractContextManager[None]:
        torch._C._cuda_attach_out_of_memory_observer(self._refused)  # type: ignore[attr-defined]
        return nullcontext()

    def report(self) -> DeviceReport:
        properties = torch.cuda.get_device_properties(self.torch_device)
        return DeviceReport(
            device=str(self.torch_device),
            label=properties.name,
            simulated=False,
            total_bytes=self._total,
            capacity_bytes=self.capacity_bytes,
            compute_capability=f"{properties.major}.{properties.minor}",
            multiprocessors=None if torch.version.hip else properties.multi_processor_count,
            driver=self._driver.version(),
            cuda=torch.version.cuda or (torch.version.hip and f"ROCm {torch.version.hip}"),
            allocator_conf=words_in_force() or None,
            torch=torch.__version__,
            torchvision=torchvision_version(),
        )

    def autocast(self, precision: Precision) -> AbstractContextManager[Any]:
        dtype = amp_dtype(precision)
        return torch.autocast("cuda", dtype=dtype) if dtype else nullcontext()

    def grad_scaler(self, *, enabled: bool) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cuda", enabled=enabled)

    def usage(self) -> Usage:
        stats = torch.cuda.memory_stats(self.torch_device)
        return Usage(
            allocated_bytes=stats["allocated_bytes.all.current"],
            reserved_bytes=stats["reserved_bytes.all.current"],
            peak_allocated_bytes=stats["allocated_bytes.all.peak"],
            peak_reserved_bytes=stats["reserved_bytes.all.peak"],
        )

    def reset_peaks(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def seconds(self) -> float:
        torch.cuda.synchronize(self.torch_device)
        return time.perf_counter()

    def card_memory(self) -> CardMemory | None:
        return self._driver.memory()

    def activity(self) -> Reading | None:
        return self._driver.activity()

    def fragmentation(self) -> Fragmentation:
        usage = self.usage()
        free = (
            block["size"]
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == self.torch_device.index
            for block in segment["blocks"]
            if block["state"] == "inactive"  # torch/csrc/cuda/memory_snapshot.cpp, torch 2.14
        )
        return Fragmentation(
            allocated_bytes=usage.allocated_bytes,
            reserved_bytes=usage.reserved_bytes,
            largest_free_bytes=max(free, default=0),
        )

    def host_peak_bytes(self) -> int | None:
        return status_bytes("VmHWM")

    def allocator_retries(self) -> int:
        return int(torch.cuda.memory_stats(self.torch_device)["num_alloc_retries"])

    def outside_bytes(self) -> int:
        """What of the card is neither free nor the allocator's now, of all processes: contexts, kernels, libraries."""
        torch.cuda.synchronize(self.torch_device)
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free - self.usage().reserved_bytes

    def drop_cublas_workspaces(self) -> int:
        """Give back what the allocator holds for cuBLAS and cuBLASLt; returns those bytes.

        at::cuda keeps one workspace a handle and stream (aten/src/ATen/cuda/CublasHandlePool.cpp, torch 2.14).
        """
        before = self.usage().allocated_bytes
        torch._C._cuda_clearCublasWorkspaces()
        return before - self.usage().allocated_bytes

    def failure_detail(self, error: BaseException) -> FailureDetail:
        # The allocator also refuses what nobody raises: cuDNN, refused a workspace, takes a plan that needs less.
        if isinstance(error, torch.OutOfMemoryError) and self._refusal is not None:
            return self._refusal
        # After a fault of the device every call may raise the same error again.
        free, usage = None, None
        with contextlib.suppress(RuntimeError):
            free = torch.cuda.mem_get_info(self.torch_device)[0]
        with contextlib.suppress(RuntimeError):
            usage = self.usage()
        return FailureDetail(
            free_bytes=free,
            allocated_bytes=usage.allocated_bytes if usage else None,
            reserved_bytes=usage.reserved_bytes if usage else None,
        )

    def _refused(self, _device: int, requested_bytes: int, _allowed_bytes: int, free_bytes: int) -> None:
        """Called by the allocator, on the thread that asked, before it raises."""
        usage = self.usage()
        self._refusal = FailureDetail(
            requested_bytes=requested_bytes,
            free_bytes=free_bytes,
            allocated_bytes=usage.allocated_bytes,
            reserved_bytes=usage.reserved_bytes,
        )


class _Driver:
    """NVML's view of one card; every answer is None where NVML is not there or does not tell."""

    def __init__(self, index: int) -> None:
        self._handle: Any = None
        self._nvml: Any = pynvml
        # AttributeError: torch before 2.5, and some ROCm builds, have no uuid.
        with contextlib.suppress(pynvml.NVMLError, AttributeError):
            pynvml.nvmlInit()
            # CUDA_VISIBLE_DEVICES renumbers torch's devices and not NVML's; the UUID is the same for both.
            uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def version(self) -> str | None:
        if self._handle is None:
            return None
        with contextlib.suppress(self._nvml.NVMLError):
            found = self._nvml.nvmlSystemGetDriverVersion()
            return found.decode() if isinstance(found, bytes) else str(found)
        return None

    def memory(self) -> CardMemory | None:
        if self._handle is None:
            return None
        with contextlib.suppress(self._nvml.NVMLError):
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            return CardMemory(
                total_bytes=int(memory.total), used_bytes=int(memory.used), process_bytes=self._process_bytes()
            )
        return None

    def activity(self) -> Reading | None:
        if self._handle is None:
            return None
        nvml, handle = self._nvml, self._handle
        utilization = self._told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        milliwatts = self._told(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return Reading(
            utilization_percent=utilization,
            power_w=None if milliwatts is None else milliwatts / 1000,
            clock_mhz=self._told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            temperature_c=self._told(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        )

    def _told(self, ask: Callable[[], Any]) -> float | None:
        """What ``ask`` returns; None where this card or driver does not tell."""
        try:
            return float(ask())
        except self._nvml.NVMLError:
            return None

    def _process_bytes(self) -> int | None:
        """Bytes of this process; None inside a container that hides process numbers, and on Windows' WDDM."""
        with contextlib.suppress(self._nvml.NVMLError):
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
                if process.pid == os.getpid() and process.usedGpuMemory is not None:
                    return int(process.usedGpuMemory)
        return None


def _why_not() -> str:
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as reason:
        return f"no usable GPU: {str(reason).splitlines()[0]}"
    return "no usable GPU"

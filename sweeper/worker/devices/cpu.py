"""Real training on the CPU, under a byte budget that the allocator meets first.

Peak.  The growth of the resident set: the kernel's high-water mark (VmHWM) over what was resident when the trial
began.  Writing 5 to /proc/self/clear_refs resets the mark, so each phase has its own.

Budget.  ``RLIMIT_DATA`` at (data now + budget) makes mmap and brk fail, so that torch's own allocator says no, instead
of the kernel's killer.  For it to repeat, glibc needs one malloc arena (threads would make their own) and a fixed mmap
threshold (it grows by itself otherwise, and freed blocks then stay in the heap).  Thread pool and BLAS are warmed
before the limit is set, so that their stacks and buffers are not the trial's.  What a fork inherits half empty differs
from host to host: Python's arenas get room before (``_make_room``), and what is free in malloc's heap is charged
(``_free_heap_bytes``).  A size near the boundary can still go either way when an allocation outside torch lands on the
last pages, which is why a sweep on the CPU confirms its answer.

Where the kernel offers none of this (macOS) the device reports it and runs without a limit it could not keep.
"""

import contextlib
import ctypes
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from sweeper.host_memory import available_bytes, status_bytes, total_bytes
from sweeper.trial import DeviceReport, Precision
from sweeper.worker.devices import Device, FailureDetail, Usage, amp_dtype, torchvision_version

__all__ = ["CpuDevice"]

# mallopt(3), glibc's malloc.h
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MMAP_THRESHOLD_BYTES = 64 * 1024
_ROOM_BYTES = 4 << 20
_SMALL_BYTES = 480  # pymalloc takes up to 512 (Objects/obmalloc.c, CPython 3.11)
_ARENA_BYTES = 256 * 1024  # of CPython 3.9; 1 MiB since 3.10


class CpuDevice(Device):
    """``capacity_bytes`` is the budget: what was asked for, or half of what is free."""

    torch_device = torch.device("cpu")

    def __init__(self, *, memory_limit_bytes: int | None) -> None:
        free = available_bytes() or total_bytes() or 0
        self.capacity_bytes = memory_limit_bytes if memory_limit_bytes is not None else free // 2
        self._start_resident = 0
        self._start_data = 0
        self._limits_before = resource.getrlimit(resource.RLIMIT_DATA)

    def report(self) -> DeviceReport:
        can_limit = sys.platform == "linux"
        return DeviceReport(
            device="cpu",
            label=_cpu_name(),
            simulated=False,
            total_bytes=total_bytes() or 0,
            capacity_bytes=self.capacity_bytes,
            notes=() if can_limit else ("this system cannot hold a trial to a memory limit",),
            torch=torch.__version__,
            torchvision=torchvision_version(),
        )

    @contextmanager
    def session(self) -> Iterator[None]:
        _settle_malloc()
        _warm_up()
        kept = _make_room()
        self._start_resident = status_bytes("VmRSS") or 0
        # A small tensor that lies in what was free already is the trial's too.
        self._start_data = (status_bytes("VmData") or 0) - _free_heap_bytes()
        if sys.platform == "linux":
            hard = self._limits_before[1]
            resource.setrlimit(resource.RLIMIT_DATA, (self._start_data + self.capacity_bytes, hard))
        try:
            yield
        finally:
            self._lift_limit()
            del kept

    def autocast(self, precision: Precision) -> AbstractContextManager[Any]:
        dtype = amp_dtype(precision)
        return torch.autocast("cpu", dtype=dtype) if dtype else nullcontext()

    def grad_scaler(self, *, enabled: bool) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", enabled=enabled)

    def usage(self) -> Usage:
        now = max(0, (status_bytes("VmRSS") or 0) - self._start_resident)
        peak = max(now, (status_bytes("VmHWM") or 0) - self._start_resident)
        return Usage(allocated_bytes=now, reserved_bytes=now, peak_allocated_bytes=peak, peak_reserved_bytes=peak)

    def reset_peaks(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def seconds(self) -> float:
        return time.perf_counter()

    def failure_detail(self, error: BaseException) -> FailureDetail:
        # Telling what went wrong takes memory too.  By now the step has given back what it held, so how much was free
        # at the moment of failure is no longer to be seen; the peak is.
        self._lift_limit()
        return FailureDetail()

    def _lift_limit(self) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, self._limits_before)


def _settle_malloc() -> None:
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def _warm_up() -> None:
    """Start the thread pools and load the kernels that a step will need, so that they are not the trial's bytes."""
    image = torch.zeros(2, 8, 16, 16, requires_grad=True)
    weight = torch.zeros(8, 8, 3, 3, requires_grad=True)
    out = torch.nn.functional.conv2d(image, weight, padding=1).flatten(1)
    (out @ torch.zeros(out.shape[1], 256)).sum().backward()
    # Large enough to be shared out among all threads.
    torch.zeros(256, 1 << 12).exp().sum()


def _make_room() -> list[bytes]:
    """Leave free small blocks in Python's heap before the limit is set; keep what is returned until it is lifted.

    Otherwise a trial needs an arena of 1 MiB more or less of its budget by chance.  An arena stays as long as one
    object lives in it.
    """
    filled = [b"%0*d" % (_SMALL_BYTES - 64, number) for number in range(_ROOM_BYTES // _SMALL_BYTES)]
    return filled[:: _ARENA_BYTES // _SMALL_BYTES]


class _Mallinfo2(ctypes.Structure):
    """mallinfo(3), glibc 2.33 and later."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def _free_heap_bytes() -> int:
    """What malloc has taken from the kernel and not given out; 0 where it does not say."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return 0
    mallinfo2.restype = _Mallinfo2
    return int(mallinfo2().fordblks)


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()

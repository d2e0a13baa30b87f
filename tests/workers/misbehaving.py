"""Models that do to a trial what real jobs do: each factory misbehaves in its own way, in the worker's process.

Named as ``tests/workers/misbehaving.py:hang``.  Loaded by the worker only; the tests never import it.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn


class Small(nn.Module):
    """A model that trains at once and needs next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.misbehave(x)
        out: torch.Tensor = self.linear(x)
        return out

    def misbehave(self, x: torch.Tensor) -> None:
        """Nothing: this one behaves."""

    def example_inputs(self, batch: int) -> torch.Tensor:
        return torch.randn(batch, 8)


def well() -> nn.Module:
    return Small()


class _Hang(Small):
    def misbehave(self, x: torch.Tensor) -> None:
        while True:
            time.sleep(60)


def hang() -> nn.Module:
    return _Hang()


class _Signal(Small):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def misbehave(self, x: torch.Tensor) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(60)


def segfault() -> nn.Module:
    return _Signal(signal.SIGSEGV)


def killed() -> nn.Module:
    return _Signal(signal.SIGKILL)


class _Exit(Small):
    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def misbehave(self, x: torch.Tensor) -> None:
        os._exit(self.code)


def silent_exit() -> nn.Module:
    return _Exit(0)


def exit_code_7() -> nn.Module:
    return _Exit(7)


class _PythonExit(Small):
    def misbehave(self, x: torch.Tensor) -> None:
        sys.exit(0)


def python_exit() -> nn.Module:
    return _PythonExit()


class _HalfAResult(Small):
    def misbehave(self, x: torch.Tensor) -> None:
        folder = Path(os.readlink("/proc/self/fd/1")).parent  # noqa: PTH115
        (folder / "result.json").write_text('{"schema": 1, "type": "fit", "peak_alloc')
        os._exit(0)


def half_a_result() -> nn.Module:
    return _HalfAResult()


class _LeaveAChild(Small):
    def misbehave(self, x: torch.Tensor) -> None:
        # One in the trial's own group, one that has left it, as a daemon does.
        for new_session in (False, True):
            subprocess.Popen(["sleep", "600"], start_new_session=new_session, stdout=subprocess.DEVNULL)


def leave_a_child() -> nn.Module:
    return _LeaveAChild()


class _Garbage(Small):
    def misbehave(self, x: torch.Tensor) -> None:
        os.write(1, b'\x00\xff{"outcome": "oom"}\n' * 50)
        print("CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
        print("CUDA out of memory. Tried to allocate 2.00 GiB", file=sys.stderr, flush=True)


def garbage_on_stdout() -> nn.Module:
    return _Garbage()


class _UserError(Small):
    def misbehave(self, x: torch.Tensor) -> None:
        raise RuntimeError("loss became NaN after host ran out of memory budget config")


def user_error() -> nn.Module:
    return _UserError()


def factory_raises() -> nn.Module:
    raise ZeroDivisionError("no layers asked for")


class _HostMemory(Small):
    def misbehave(self, x: torch.Tensor) -> None:
        # In pieces, as a leak comes; every page touched.
        self.held = [bytearray(b"\x01") * (64 << 20) for _ in range(32)]
        time.sleep(60)


def two_gb_of_host_memory() -> nn.Module:
    return _HostMemory()

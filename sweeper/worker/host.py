"""The host: imports torch, and the library of the run's model, once; then forks a fresh process for each request.

Importing torch takes seconds and forking a process that has it takes milliseconds.  The child is as good as a new
interpreter as long as the host has not touched what a fork cannot carry: a CUDA context, and the threads of a parallel
CPU kernel.  So the host imports, computes nothing, asks no device for anything, and checks before every fork that no
driver has been opened.

The messages on the socket are in the contract (``__main__``).  The loop waits on two things at once, the socket and
the end of the child, which arrives as a byte in a pipe (``signal.set_wakeup_fd``).
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from sweeper.host_memory import children_of
from sweeper.worker.request import answer_in_fork

__all__ = ["die_with_parent", "serve"]

_PR_SET_PDEATHSIG = 1  # prctl(2): the signal this process gets when its parent dies
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2): orphaned descendants become children of this process
_DRIVER_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")


def serve(descriptor: int, modules: Sequence[str] = ()) -> None:
    """Answer the driver on the socket ``descriptor`` until it closes, having imported ``modules`` too."""
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    _import_once(modules)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # What is imported is never collected, and not moving it keeps its pages shared with the children.
    gc.collect()
    gc.freeze()
    Host(channel).run()


def _import_once(modules: Sequence[str]) -> None:
    import torch
    import torchvision  # noqa: F401

    import sweeper.worker.devices.cpu
    import sweeper.worker.devices.simulated
    import sweeper.worker.trial  # noqa: F401

    for module in modules:
        # One that is not there, or does not import, is said by the child, which needs it for what it was asked.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    if torch.cuda.is_initialized():
        raise RuntimeError("importing torch has created a CUDA context; use --isolation spawn")


class Host:
    """One driver's host; at most one child at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._incoming = b""
        self._child: int | None = None
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def run(self) -> None:
        self._send({"ready": os.getpid()})
        try:
            while True:
                readable, _, _ = select.select([self._channel.fileno(), self._wake_read], [], [])
                if self._wake_read in readable:
                    self._drain()
                    self._reap()
                if self._channel.fileno() in readable and not self._receive():
                    return
        finally:
            if self._child is not None:
                _end_group(self._child)
            _kill_adopted()

    def _receive(self) -> bool:
        """Take what the driver sent; False when it has gone."""
        try:
            data = self._channel.recv(65536)
        except ConnectionResetError:
            return False
        self._incoming += data
        *lines, self._incoming = self._incoming.split(b"\n")
        for line in lines:
            self._start(Path(json.loads(line)["run"]))
        return bool(data)

    def _start(self, folder: Path) -> None:
        if self._child is not None:
            raise RuntimeError("a request came while another was running")
        _assert_no_context()
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            # No return from here: nothing of the host's loop may run twice.
            code = 1
            try:
                self._become_child(host)
                code = answer_in_fork(folder)
            finally:
                os._exit(code)
        self._child = pid
        # Both sides set it, so that neither can be too late for a kill of the group.
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        self._send({"started": pid})

    def _become_child(self, host: int) -> None:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(host)
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        self._channel.close()

    def _reap(self) -> None:
        if self._child is None:
            _reap_adopted()
            return
        # Looked at without being reaped: until then its number cannot become another process's, or group's.
        if os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        child, self._child = self._child, None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        _kill_adopted()
        self._send({"ended": os.waitstatus_to_exitcode(status)})

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def _send(self, message: dict[str, Any]) -> None:
        # A driver that is gone is seen at the next read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")


def die_with_parent(parent: int) -> None:
    """End this process when ``parent``, which started it, dies (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _assert_no_context() -> None:
    """Raises RuntimeError when this process has opened a GPU driver: a fork could not use the GPU."""
    torch = sys.modules["torch"]
    opened = [link for link in _open_files() if link.startswith(_DRIVER_FILES)]
    if torch.cuda.is_initialized() or opened:
        raise RuntimeError(f"the host holds a GPU context ({', '.join(opened) or 'torch.cuda'}); cannot fork")


def _open_files() -> list[str]:
    links = []
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(entry.path))  # noqa: PTH115 - a hot path, and the target need not exist
    return links


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(leader, 0)


def _kill_adopted() -> None:
    """End what a child left behind outside its group (a daemon): orphans come to this process, the subreaper."""
    # Killing a parent orphans its children to us, so until none is left.
    while orphans := children_of(os.getpid()):
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap_adopted(block=True)


def _reap_adopted(*, block: bool = False) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0 if block else os.WNOHANG)[0]:
            pass


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    """Only the wake-up byte matters."""


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)

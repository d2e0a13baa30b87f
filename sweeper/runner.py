"""Runs one request in a process of its own and brings back what it answered.  The driver's only seam to a worker.

``ForkRunner`` keeps one host (``python -m sweeper.worker --host``) that forks a child a request; ``SpawnRunner`` starts
a new interpreter for each.  Both keep the contract in ``sweeper/worker/__main__.py``: a folder with request.json goes
in; result.json and an exit code come out.  Nothing is read from stdout.

What this module knows about death: ``read_response`` turns an exit code, a result's text and what the kernel counted
into a response, by ``failures.classify``; it is pure.  Whatever the runner itself does to a child (time limit, host
memory) it says as a fact, and never as "out of memory".
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from sweeper.errors import FolderUnusable, WorkerFailed
from sweeper.failures import Death, classify_death
from sweeper.host_memory import available_bytes, children_of, oom_kills, resident_bytes, status_bytes, total_bytes
from sweeper.trial import Broken, Request, Response, request_to_json, response_from_json
from sweeper.wire import WireError

__all__ = ["Exit", "ForkRunner", "Runner", "SpawnRunner", "open_runner", "python_command", "read_response"]

_HOST_START_S = 120.0  # importing torch from a cold disk
_POLL_S = 0.05
_KILL_GRACE_S = 30.0
_LOG_TAIL_BYTES = 4000
# A trial may not take the machine's last memory: below this share of the total it is ended (at least 256 MiB).
_HOST_RESERVE = 1 / 32

R = TypeVar("R", bound="_FolderRunner")


class Runner(Protocol):
    """Runs requests one at a time; a context manager, because it may hold a process."""

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a worker process ended, as its parent saw it.  ``code`` is None when it had to be ended or was lost."""

    code: int | None
    timed_out: bool = False
    host_memory: bool = False  # ended because the machine was running out of memory, or over its limit
    host_died: bool = False
    oom_kills: int = 0  # processes the kernel killed for memory meanwhile


def read_response(ended: Exit, result: str | None, *, log_tail: str, timeout_s: float) -> Response:
    """Return what a worker answered, or how it broke.  Pure: a table over ``ended`` and the text of result.json."""
    if ended.code == 0 and result is not None:
        try:
            return response_from_json(result)
        except WireError as problem:
            return Broken(failure="infra", reason=f"the worker's result cannot be read: {problem}", log_tail=log_tail)
    death = Death(
        exit_code=ended.code,
        timed_out_s=timeout_s if ended.timed_out else None,
        host_memory=ended.host_memory,
        host_died=ended.host_died,
        oom_kills=ended.oom_kills,
        has_result=result is not None,
    )
    failure, reason = classify_death(death)
    return Broken(failure=failure, reason=reason, log_tail=log_tail)


class _Watch:
    """Decides, at every poll of a running request, whether it must be ended; reads the machine, holds a deadline."""

    def __init__(self, *, timeout_s: float, memory_limit_bytes: int | None) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._limit = memory_limit_bytes
        self._reserve = max(256 << 20, int((total_bytes() or 0) * _HOST_RESERVE))
        self._kills_before = oom_kills()

    def verdict(self, pid: int) -> Exit | None:
        if time.monotonic() > self._deadline:
            return Exit(code=None, timed_out=True)
        available = available_bytes()
        if available is not None and available < self._reserve:
            return Exit(code=None, host_memory=True)
        if self._limit is not None and resident_bytes([pid, *children_of(pid)]) > self._limit:
            return Exit(code=None, host_memory=True)
        return None

    def ended(self, code: int) -> Exit:
        return Exit(code=code, oom_kills=oom_kills() - self._kills_before)


class _FolderRunner:
    """What both runners share: the folder of one request, before and after."""

    def __init__(self, *, timeout_s: float, host_memory_limit_bytes: int | None = None) -> None:
        self._timeout_s = timeout_s
        self._host_memory_limit_bytes = host_memory_limit_bytes

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        """Answer ``request`` in ``folder``, which is emptied first; ``timeout_s`` is the runner's own by default.

        Raises ``WorkerFailed`` when no worker starts, ``FolderUnusable`` when the folder cannot be written.
        """
        timeout_s = timeout_s or self._timeout_s
        _prepare(folder, request)
        watch = _Watch(timeout_s=timeout_s, memory_limit_bytes=self._host_memory_limit_bytes)
        ended = self._run_in(folder.resolve(), watch)
        return read_response(ended, _text(folder / "result.json"), log_tail=_tail(folder), timeout_s=timeout_s)

    def _run_in(self, folder: Path, watch: _Watch) -> Exit:
        raise NotImplementedError

    def close(self) -> None:
        """End what runs."""

    def __enter__(self: R) -> R:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SpawnRunner(_FolderRunner):
    """A new interpreter a request: where fork does not exist, or a library does not survive one."""

    _process: subprocess.Popen[bytes] | None = None

    def _run_in(self, folder: Path, watch: _Watch) -> Exit:
        command, environment = python_command("sweeper.worker", str(folder))
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            self._process = process = subprocess.Popen(
                command, env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        verdict = None
        while verdict is None and not _is_over(process.pid):
            time.sleep(_POLL_S)
            verdict = watch.verdict(process.pid)
        # Before it is reaped, so that the group's number is still its own; and also after a clean exit: a data
        # loader left behind keeps its CUDA context, and the next trial would start short.
        _kill_group(process.pid)
        self._process = None
        try:
            code = process.wait(_KILL_GRACE_S)
        except subprocess.TimeoutExpired:  # stuck in a driver: not even SIGKILL ends it
            return verdict or Exit(code=None)
        return verdict or watch.ended(code)

    def close(self) -> None:
        if self._process is not None:
            _kill_group(self._process.pid)
            self._process.wait()


class ForkRunner(_FolderRunner):
    """One host that has imported torch and the modules ``preload``, and a forked child a request.  The host starts at
    the first request, or at ``start``; one that dies is replaced at the next."""

    def __init__(
        self,
        *,
        timeout_s: float,
        host_memory_limit_bytes: int | None = None,
        log: Path | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(timeout_s=timeout_s, host_memory_limit_bytes=host_memory_limit_bytes)
        self._log = log
        self._preload = tuple(preload)
        self._host: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._incoming = b""
        self._is_ready = False
        self._child: int | None = None

    @property
    def host_pid(self) -> int | None:
        return self._host.pid if self._host else None

    def start(self) -> None:
        """Start the host without waiting for it; importing torch then overlaps what the driver does."""
        if self._host is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs, self._log.open("ab") if self._log else contextlib.nullcontext(subprocess.DEVNULL) as log:
            command, environment = python_command("sweeper.worker", "--host", str(theirs.fileno()), *self._preload)
            self._host = subprocess.Popen(
                command, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()],
                # Ctrl-C in the terminal is the driver's to answer.
                start_new_session=True,
            )  # fmt: skip
        self._channel, self._incoming, self._is_ready = ours, b"", False

    def _run_in(self, folder: Path, watch: _Watch) -> Exit:
        if self._host is not None and self._host.poll() is not None:
            self._bury_host()  # it died between two requests, and nothing was lost
        self.start()
        self._await_ready()
        assert self._channel is not None
        try:
            self._channel.sendall(json.dumps({"run": str(folder)}).encode() + b"\n")
            return self._await_end(watch)
        except (ConnectionError, EOFError):
            self._bury_host()
            return Exit(code=None, host_died=True)

    def _await_ready(self) -> None:
        if self._is_ready:
            return
        deadline = time.monotonic() + _HOST_START_S
        try:
            while (message := self._receive(_POLL_S)) is None:
                if time.monotonic() > deadline:
                    raise EOFError
            self._is_ready = "ready" in message
        except (ConnectionError, EOFError):
            log = _read_tail(self._log) if self._log else ""
            self._bury_host()
            last = log.strip().splitlines()[-1] if log.strip() else "it said nothing"
            raise WorkerFailed(
                f"the worker does not start: {last}",
                hint=f"is torch installed here? try: {Path(sys.executable).name} -c 'import torch, torchvision'",
            ) from None

    def _await_end(self, watch: _Watch) -> Exit:
        verdict: Exit | None = None
        killed_at = 0.0
        while True:
            message = self._receive(_POLL_S)
            if message and "started" in message:
                self._child = message["started"]
            elif message and "ended" in message:
                self._child = None
                return verdict or watch.ended(message["ended"])
            elif verdict is None and self._child is not None:
                verdict = watch.verdict(self._child)
                if verdict is not None:
                    _kill_group(self._child)
                    killed_at = time.monotonic()
            elif verdict is not None and time.monotonic() - killed_at > _KILL_GRACE_S:
                # Not even SIGKILL ends a process that is stuck in a driver; it, and its host, are left behind.
                self._abandon_host()
                return verdict

    def _receive(self, wait_s: float) -> dict[str, Any] | None:
        """One message, or None after ``wait_s``.  Raises EOFError when the host is gone."""
        assert self._channel is not None
        while b"\n" not in self._incoming:
            if not select.select([self._channel], [], [], wait_s)[0]:
                return None
            data = self._channel.recv(65536)
            if not data:
                raise EOFError
            self._incoming += data
        line, self._incoming = self._incoming.split(b"\n", 1)
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def _abandon_host(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._host = self._channel = self._child = None

    def _bury_host(self) -> None:
        """Make sure that the host and what it ran are gone, and forget them."""
        if self._child is not None:
            _kill_group(self._child)
            _await_memory_of(self._child)
        if self._channel is not None:
            self._channel.close()
        if self._host is not None:
            # Closing the channel asks it to end what runs, outside its group too; killing it would orphan that.
            try:
                self._host.wait(timeout=5)
            except subprocess.TimeoutExpired:
                _kill_group(self._host.pid)
                self._host.wait()
        self._host = self._channel = self._child = None

    def close(self) -> None:
        self._bury_host()


def open_runner(
    isolation: str,
    *,
    timeout_s: float,
    host_memory_limit_bytes: int | None = None,
    log: Path | None = None,
    preload: Sequence[str] = (),
) -> ForkRunner | SpawnRunner:
    """The runner for ``--isolation fork`` or ``spawn``.

    ``preload`` are modules that every request will import (``model_names.modules_of``): a host imports them once.
    """
    if isolation == "fork" and hasattr(os, "fork"):
        return ForkRunner(
            timeout_s=timeout_s, host_memory_limit_bytes=host_memory_limit_bytes, log=log, preload=preload
        )
    return SpawnRunner(timeout_s=timeout_s, host_memory_limit_bytes=host_memory_limit_bytes)


def python_command(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that run ``module`` of this very package in a new interpreter."""
    environment = dict(os.environ)
    tree = Path(__file__).resolve().parents[1]
    # From a source tree that is not installed, the new interpreter would look only where it stands.
    if (tree / "pyproject.toml").exists():
        paths = [str(tree), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return [sys.executable, "-m", module, *arguments], environment


def _prepare(folder: Path, request: Request) -> None:
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / "request.json").write_text(request_to_json(request))
    except OSError as problem:
        raise FolderUnusable(
            f"cannot write in {folder}: {problem.strerror or problem}", hint="choose another --folder, or make room"
        ) from None


def _is_over(pid: int) -> bool:
    """Whether the child ``pid`` has ended; it is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _await_memory_of(pid: int) -> None:
    """Wait until a killed process, which is not ours to reap, has given its memory back; not for ever."""
    deadline = time.monotonic() + _KILL_GRACE_S
    while status_bytes("VmRSS", pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _tail(folder: Path) -> str:
    return _read_tail(folder / "stderr") or _read_tail(folder / "stdout")


def _read_tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""

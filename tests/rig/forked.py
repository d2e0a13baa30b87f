"""Runs programs on the card, each in a fresh process, for the price of a fork.  Run as ``python -m tests.rig.forked``.

One host imports torch and torchvision and touches no CUDA.  For each line on stdin, a JSON object with ``program`` (a
function of ``tests.rig.programs``), ``arguments``, ``environment`` and ``folder``, it forks a child that writes the
function's value to ``folder/answer.json`` and whatever it prints to ``folder/log``; the host waits for it and prints
its exit code, which is negative for a signal.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Ended", "Host", "started"]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended; ``answer`` is None when it gave none."""

    exit_code: int
    answer: Any
    log: str


class Host:
    """The near end of a host."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def end(self, program: str, environment: Mapping[str, str], **arguments: Any) -> Ended:
        """Run ``program`` and return how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            request = {"program": program, "arguments": arguments, "environment": dict(environment), "folder": folder}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            answer = Path(folder, "answer.json")
            return Ended(
                code, json.loads(answer.read_text()) if answer.exists() else None, Path(folder, "log").read_text()
            )

    def answer(self, program: str, environment: Mapping[str, str], **arguments: Any) -> Any:
        """Run ``program`` and return its value; it must have ended well."""
        ended = self.end(program, environment, **arguments)
        assert ended.exit_code == 0, ended.log
        return ended.answer


@contextmanager
def started(environment: Mapping[str, str]) -> Iterator[Host]:
    """A host on the stand-in runtime; ``environment`` needs only to load it, the card is each program's own."""
    command = [sys.executable, "-m", "tests.rig.forked"]
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        try:
            yield Host(process)
        finally:
            process.stdin.close()


def _child(request: dict[str, Any]) -> int:
    from tests.rig import programs

    log = os.open(Path(request["folder"], "log"), os.O_WRONLY | os.O_CREAT)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(request["environment"])
    try:
        value = getattr(programs, request["program"])(**request["arguments"])
        Path(request["folder"], "answer.json").write_text(json.dumps(value))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    import torch
    import torchvision  # noqa: F401 - so that the children have it

    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = _child(json.loads(line))
            sys.stdout.flush()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()

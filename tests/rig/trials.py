"""Answers the worker's requests on any card, for the price of a fork each.  Run as ``python -m tests.rig.trials``.

The product's host puts every trial on the card of its own environment.  This one imports torch as it does, and takes
an environment with each request, so that one import serves every card and every planned failure.  For each line on
stdin, a JSON object with ``folder`` and ``environment``, it forks a child that keeps the worker's contract
(``sweeper/worker/__main__.py``) and prints the child's exit code.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sweeper.runner import Exit, read_response
from sweeper.trial import Request, Response, request_to_json
from tests.rig.build import Rig

__all__ = ["Trials", "trials"]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Trials:
    """The near end; ``on`` makes it a ``Runner`` whose trials run on one card."""

    process: "subprocess.Popen[str]"

    def on(self, environment: Mapping[str, str]) -> "OnCard":
        return OnCard(self.process, environment)


@dataclass(frozen=True)
class OnCard:
    """A ``sweeper.runner.Runner``; there is no time limit."""

    process: "subprocess.Popen[str]"
    environment: Mapping[str, str]

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if folder.exists():  # emptied first, as the product's runners do
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / "request.json").write_text(request_to_json(request))
        line = {"folder": str(folder), "environment": dict(self.environment)}
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        result = folder / "result.json"
        return read_response(
            Exit(code=code),
            result.read_text() if result.exists() else None,
            log_tail=(folder / "stderr").read_text(),
            timeout_s=0,
        )

    def close(self) -> None:
        """Nothing of its own: the process belongs to ``Trials``."""


@contextmanager
def _started(rig: Rig) -> Iterator[Trials]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.rig.trials"],
        env={**os.environ, **rig.environment(1 << 30)},  # only to load it; the card is each request's own
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        try:
            yield Trials(process)
        finally:
            process.stdin.close()


@pytest.fixture(scope="session")
def trials(rig: Rig) -> Iterator[Trials]:
    """Runs trials on any card."""
    with _started(rig) as trials:
        yield trials


def _main() -> None:
    import torch
    import torchvision  # noqa: F401 - so that the children have it

    import sweeper.worker.trial  # noqa: F401
    from sweeper.worker.request import answer_in_fork

    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ.update(asked["environment"])
            os._exit(answer_in_fork(Path(asked["folder"])))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _main()

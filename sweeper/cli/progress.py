"""What is being tried, on stderr while the sweep runs: a bar in a terminal, plain lines elsewhere, or nothing."""

import contextlib
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from sweeper import axes
from sweeper.prediction import Prediction
from sweeper.record import NextTrial, Record, TrialRecord
from sweeper.report import text, words
from sweeper.trial import DeviceReport

__all__ = ["Bar", "CompareBar", "CompareLines", "Lines", "Quiet"]

_REFRESH_S = 0.5


class Quiet:
    """Says nothing, and remembers the folder."""

    folder: Path | None = None

    def chose(self, device: str) -> None: ...

    def opened(self, folder: Path) -> None:
        self.folder = folder

    def described(self, device: DeviceReport, prediction: Prediction | None) -> None: ...

    def started(self, record: Record, trial: NextTrial) -> None: ...

    def ended(self, record: Record, trial: TrialRecord) -> None: ...

    def __enter__(self) -> "Quiet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put away."""


class Lines(Quiet):
    """One line a finished trial: for logs."""

    def chose(self, device: str) -> None:
        if device.startswith("sim:"):
            self._write(f"no GPU here that torch can use, so {device} is simulated; --device names another")

    def described(self, device: DeviceReport, prediction: Prediction | None) -> None:
        self._write(text.device_line(device, prediction))

    def ended(self, record: Record, trial: TrialRecord) -> None:
        self._write(text.trial_line(record, trial))

    def _write(self, line: str) -> None:
        click.echo(line, err=True)


class Bar(Lines):
    """The same lines, above a bar that names the size being tried and counts its seconds."""

    def __enter__(self) -> "Bar":
        from tqdm import tqdm

        self._bar: Any = tqdm(
            total=None, file=sys.stderr, leave=False, bar_format="{desc}  {n_fmt} trials done, {elapsed}"
        )
        self._bar.set_description_str("starting the worker (importing torch)")
        # tqdm draws only when something happens; a trial can take a minute.
        self._stopped = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._ticker.join()
        self._bar.close()

    def started(self, record: Record, trial: NextTrial) -> None:
        self._bar.set_description_str(f"{axes.words(record.axis).size} {trial.size} ({trial.purpose})")

    def ended(self, record: Record, trial: TrialRecord) -> None:
        super().ended(record, trial)
        self._bar.update()

    def _write(self, line: str) -> None:
        self._bar.write(line, file=sys.stderr)

    def _tick(self) -> None:
        while not self._stopped.wait(_REFRESH_S):
            with contextlib.suppress(ValueError):  # stderr closed under us
                self._bar.refresh()


class CompareLines(Lines):
    """The lines of each sweep of a comparison, under one that says which it is."""

    _count = 0

    def planned(self, folder: Path, labels: Sequence[str]) -> None:
        self.folder, self._count = folder, len(labels)

    def beginning(self, number: int, label: str) -> None: ...

    def running(self, number: int, label: str) -> None:
        self._write(f"[{number} of {self._count}] {words.printable(label)}")

    def opened(self, folder: Path) -> None:
        """The folder to go on with is the comparison's."""


class CompareBar(CompareLines, Bar):
    """The same, above the bar."""

    def beginning(self, number: int, label: str) -> None:
        self._bar.set_description_str(f"tracing {number} of {self._count}: {words.printable(label)}")

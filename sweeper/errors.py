"""What can go wrong on the driver's side, as one tree; each error carries what to do next.

::

    SweepError                  exit code
    ├── UsageError              2   a flag or value that cannot be used
    │   └── UnknownName         2   a model, card, device or precision that does not exist
    ├── RecordError             2   the run folder
    │   ├── FolderInUse             another driver holds it
    │   ├── FolderUnusable          cannot be written or is no run
    │   ├── JournalBroken           a line in the middle cannot be read
    │   └── SchemaTooNew            written by a newer sweeper
    ├── CalibrationUnusable     2   a kept calibration that cannot be read
    ├── WorkerFailed            3   the worker host does not start or keeps dying
    ├── TrialsBroke             3   trials failed for a reason that is not memory
    └── Untraceable             3   the step cannot be simulated, so nothing can be predicted

That nothing fits is an answer (exit code 1), not an error.  ``cli.main`` is the only place that catches these.
"""

import difflib
from collections.abc import Iterable

__all__ = [
    "CalibrationUnusable",
    "FolderInUse",
    "FolderUnusable",
    "JournalBroken",
    "RecordError",
    "SchemaTooNew",
    "SweepError",
    "TrialsBroke",
    "UnknownName",
    "Untraceable",
    "UsageError",
    "WorkerFailed",
]


class SweepError(Exception):
    """An expected failure.  ``hint`` is the next step, in a few words; ``exit_code`` is what the shell sees."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(SweepError):
    """A flag or value that cannot be used."""


class UnknownName(UsageError):
    """A name that is in no list: says the close ones, and where the list is."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, listing: str) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name.lower(), names, n=4, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}? {listing}" if close else listing
        super().__init__(f"no {kind} is called {name!r}", hint=hint)


class RecordError(SweepError):
    """Something about the run folder."""


class FolderInUse(RecordError):
    """Another driver holds the run folder."""


class FolderUnusable(RecordError):
    """The run folder cannot be written, or is no run."""


class JournalBroken(RecordError):
    """A line of the journal, not the last, cannot be read."""


class SchemaTooNew(RecordError):
    """A file written by a newer sweeper."""


class CalibrationUnusable(SweepError):
    """A kept calibration that cannot be read, or was written by a newer sweeper."""


class WorkerFailed(SweepError):
    """The worker host does not start, or dies again and again."""

    exit_code = 3


class TrialsBroke(SweepError):
    """A trial failed, twice, for a reason that is not memory."""

    exit_code = 3


class Untraceable(SweepError):
    """The step cannot be simulated: the model needs values, or raises."""

    exit_code = 3

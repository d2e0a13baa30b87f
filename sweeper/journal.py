"""The journal: the one file of a run that is the truth.  Everything else in the folder is derived from it.

``journal.jsonl`` holds one JSON object a line, each flushed to the disk before the sweep goes on:

    {"schema": 3, "entry": "header", ...}       what was asked                              always the first line
    {"entry": "device", ...}                    what the worker said of the device, the prediction, and of which card
    {"entry": "trial", ...}                     one line a trial, in order

It only grows.  A last line without its newline, or that cannot be read, means that the driver died while writing it:
it is dropped, and cut off before the next append.  A line elsewhere that cannot be read is an error that names it.
A lock next to it (``.lock``) keeps a second driver out; it goes with the process that holds it, however that dies.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sweeper.cards import Card
from sweeper.errors import FolderInUse, FolderUnusable, JournalBroken, SchemaTooNew
from sweeper.prediction import Prediction
from sweeper.record import Header, Record, TrialRecord
from sweeper.trial import DeviceReport
from sweeper.wire import WireError, from_jsonable, to_jsonable

__all__ = ["SCHEMA", "Journal", "read_record"]

# 1  first version
# 2  adds the card that is simulated or predicted, and what was predicted of each trial; entries of 1 read as None
# 3  adds the axis's step and the choices of a training job, all with defaults
SCHEMA = 3


def _from_1_to_2(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The other new fields have defaults.  A run of schema 1 that goes on has lines of 2 at its end already."""
    return [{"card": None, **entry} if entry.get("entry") == "device" else entry for entry in entries]


def _from_2_to_3(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All new fields have defaults."""
    return entries


# One function a step: takes every line of a journal of its number, as parsed, and returns those of the next.
_UPGRADES: Mapping[int, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {1: _from_1_to_2, 2: _from_2_to_3}

FILE = "journal.jsonl"


class Journal:
    """The journal of one run folder, held by this process; made by ``Journal.create`` or ``Journal.reopen``."""

    def __init__(self, folder: Path, record: Record) -> None:
        self.folder = folder
        self.record = record

    @classmethod
    @contextmanager
    def create(cls, folder: Path, header: Header) -> Iterator["Journal"]:
        """A new run in ``folder``, which is made.  Raises ``FolderUnusable`` when there is a run already."""
        with _errors_named(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _held(folder):
            if (folder / FILE).exists():
                raise FolderUnusable(
                    f"{folder} already holds a run",
                    hint=f"go on with it by --resume {folder}, or name another --folder",
                )
            journal = cls(folder, Record(header=header))
            journal._append({"schema": SCHEMA, "entry": "header", **to_jsonable(header)})
            yield journal

    @classmethod
    @contextmanager
    def reopen(cls, folder: Path) -> Iterator["Journal"]:
        """The run in ``folder``, to go on with.  A torn last line is cut off."""
        if not (folder / FILE).is_file():
            raise FolderUnusable(f"{folder} holds no run", hint="name the folder that an earlier sweep printed")
        with _held(folder), _errors_named(folder):
            record, whole_bytes = _read(folder / FILE)
            if whole_bytes < (folder / FILE).stat().st_size:
                os.truncate(folder / FILE, whole_bytes)
            yield cls(folder, record)

    def set_device(self, device: DeviceReport, prediction: Prediction | None, card: Card | None = None) -> None:
        """``card`` is what the prediction is of."""
        found = {"device": device, "prediction": prediction, "card": card}
        self._append({"entry": "device", **to_jsonable(found)})
        self.record = dataclasses.replace(self.record, device=device, prediction=prediction, card=card)

    def add(self, trial: TrialRecord) -> None:
        self._append({"entry": "trial", **to_jsonable(trial)})
        self.record = self.record.with_trial(trial)

    def discard(self) -> None:
        """Take back a run that came to nothing: what was asked could not be, and no trial was run."""
        with contextlib.suppress(OSError):
            (self.folder / FILE).unlink()
            shutil.rmtree(self.folder / "trials", ignore_errors=True)

    def _append(self, entry: dict[str, Any]) -> None:
        path = self.folder / FILE
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        with _errors_named(self.folder):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    _write_all(descriptor, line)
                    os.fsync(descriptor)
                except OSError:
                    # A full disk takes part of a line; a journal ends with a whole one.
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)


def read_record(folder: Path) -> Record:
    """The run in ``folder`` as far as it got.  Raises ``FolderUnusable``, ``JournalBroken`` or ``SchemaTooNew``."""
    path = folder / FILE
    if not path.is_file():
        raise FolderUnusable(f"{folder} holds no run", hint="name the folder that an earlier sweep printed")
    with _errors_named(folder):
        return _read(path)[0]


def _read(path: Path) -> tuple[Record, int]:
    """The record, and how many bytes of the file it comes from: all but a torn last line."""
    *whole, torn = path.read_bytes().split(b"\n")
    entries: list[dict[str, Any]] = []
    good_bytes = 0
    for number, line in enumerate(whole, 1):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError("not an object")
        except ValueError as problem:
            if number == len(whole) and not torn:
                break
            raise _broken(path, number, problem) from None
        entries.append(entry)
        good_bytes += len(line) + 1
    if not entries:
        raise FolderUnusable(f"{path} is empty: the sweep ended before it began", hint="start the sweep again")
    entries = _upgraded(entries, path)
    record: Record | None = None
    for number, entry in enumerate(entries, 1):
        try:
            record = _with_entry(record, entry)
        except WireError as problem:
            raise _broken(path, number, problem) from None
    assert record is not None
    return record, good_bytes


def _with_entry(record: Record | None, entry: dict[str, Any]) -> Record:
    if record is None:
        match entry:
            case {"entry": "header", "schema": _, **fields}:
                return Record(header=from_jsonable(Header, fields))
        raise WireError("the first line is not a header")
    match entry:
        case {"entry": "device", "device": device, "prediction": prediction, "card": card}:
            return dataclasses.replace(
                record,
                device=from_jsonable(DeviceReport, device),
                prediction=from_jsonable(Prediction | None, prediction),
                card=from_jsonable(Card | None, card),
            )
        case {"entry": "trial", **fields}:
            return record.with_trial(from_jsonable(TrialRecord, fields))
    raise WireError(f"unknown entry {entry.get('entry')!r}")


def _upgraded(entries: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    found = entries[0].get("schema")
    if not isinstance(found, int) or found < 1:
        raise _broken(path, 1, ValueError("no schema number"))
    if found > SCHEMA:
        raise SchemaTooNew(
            f"{path} was written with schema {found}; this sweeper reads up to {SCHEMA}",
            hint="upgrade sweeper, or point at a run made with this version",
        )
    for number in range(found, SCHEMA):
        entries = _UPGRADES[number](entries)
    return entries


def _broken(path: Path, number: int, problem: Exception) -> JournalBroken:
    return JournalBroken(
        f"line {number} of {path} cannot be read: {problem}",
        hint="restore the file from a copy, or move the folder away and start again",
    )


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; raises ``FolderInUse`` naming the process that does."""
    owner = folder / ".lock-owner"
    lock = FileLock(folder / ".lock")
    with _errors_named(folder):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            who = owner.read_text() if owner.exists() else "another process"
            hint = "wait for it, or name another --folder"
            raise FolderInUse(f"{folder} is in use by {who}", hint=hint) from None
    try:
        with _errors_named(folder):
            owner.write_text(f"process {os.getpid()}")
        yield
    finally:
        with contextlib.suppress(OSError):
            owner.unlink()
        lock.release()
        if not (folder / FILE).exists():  # discarded, or never begun
            with contextlib.suppress(OSError):
                (folder / ".lock").unlink()
                folder.rmdir()


@contextmanager
def _errors_named(folder: Path) -> Iterator[None]:
    """A full disk, a read-only folder, a file in the way: one line that says which folder."""
    try:
        yield
    except OSError as problem:
        raise FolderUnusable(
            f"cannot write in {folder}: {problem.strerror or problem}", hint="choose another --folder, or make room"
        ) from None


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]

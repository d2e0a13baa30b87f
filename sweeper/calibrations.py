"""Calibrations kept between commands: one JSON file a card, in the user's data folder or ``SWEEPER_CALIBRATIONS``.

A file is named after its card, ``rtx4060.json``, and holds ``{"schema": 1, ...}`` with the fields of ``Calibration``.
It is written whole, and a new calibration of a card takes the place of the old one.  Older schemas are upgraded, newer
ones refused by name.  A file that cannot be read is an error where its card is asked for: a card that was calibrated
must not quietly be simulated as if it had not been.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeper import cards
from sweeper.calibration import Calibration, apply
from sweeper.cards import Card
from sweeper.errors import CalibrationUnusable, FolderUnusable, UnknownName
from sweeper.wire import WireError, from_jsonable, to_jsonable

__all__ = ["SCHEMA", "Calibrations", "default_folder"]

# 1  first version
SCHEMA = 1

# One function a step: takes the object of its number, and returns that of the next.
_UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def default_folder() -> Path:
    """Where this user's calibrations are kept."""
    if folder := os.environ.get("SWEEPER_CALIBRATIONS"):
        return Path(folder)
    import platformdirs

    return Path(platformdirs.user_data_dir("sweeper", appauthor=False)) / "calibrations"


class Calibrations:
    """Those kept in ``folder``, which is made when the first is put there; with None there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def names(self) -> tuple[str, ...]:
        """The cards that a calibration is kept of."""
        found = self._folder.glob("*.json") if self._folder is not None else ()
        return tuple(sorted(path.stem for path in found))

    def get(self, name: str) -> Calibration | None:
        """The calibration of the card of exactly that name; None where none is kept.

        Raises ``CalibrationUnusable`` when its file cannot be read or is of a newer schema.
        """
        if self._folder is None:
            return None
        path = self._path(name)
        try:
            kept = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            raise _unusable(path, str(problem)) from None
        return _read(kept, path)

    def card(self, name: str) -> Card:
        """The card that ``name`` means, as it was calibrated where it was.

        Raises as ``cards.card`` does, and as ``get``; a calibrated card that the catalogue lacks is known too.
        """
        try:
            known = cards.card(name)
        except UnknownName:
            kept = self.get(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"))
            if kept is None:
                raise UnknownName("card", name, (*cards.cards(), *self.names()), listing=cards.LISTING) from None
            return apply(kept, None)
        return self.known(known)

    def known(self, card: Card) -> Card:
        """``card`` as it was calibrated; as it is where it was not.  Raises as ``get``."""
        kept = self.get(card.name)
        return card if kept is None else apply(kept, card)

    def cards(self) -> Iterator[Card]:
        """Every card there is: those of the catalogue, then the calibrated ones that it lacks.  Raises as ``get``."""
        known = cards.cards()
        yield from map(self.known, known.values())
        for name in self.names():
            if name not in known and (kept := self.get(name)) is not None:
                yield apply(kept, None)

    def put(self, calibration: Calibration) -> Path:
        """Keep ``calibration`` in place of an earlier one, whole or not at all; returns its file.

        Raises ``FolderUnusable``.
        """
        assert self._folder is not None
        whole = self._path(calibration.name)
        partial = whole.with_suffix(f".{os.getpid()}.partial")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps({"schema": SCHEMA, **to_jsonable(calibration)}, indent=1) + "\n")
            return partial.replace(whole)
        except OSError as problem:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise FolderUnusable(
                f"the calibration cannot be kept in {self._folder}: {problem.strerror or problem}",
                hint="make room, or name another folder in SWEEPER_CALIBRATIONS",
            ) from None

    def forget(self, name: str) -> str:
        """Remove the calibration of the card that ``name`` means; returns the card's name.

        Raises ``UnknownName`` when none is kept of it, ``FolderUnusable`` when its file cannot be removed.
        """
        path = self._path(self._meant(name))
        try:
            path.unlink()
        except FileNotFoundError:
            listing = "`sweep calibrate --list` lists those that are"
            raise UnknownName("calibrated card", name, self.names(), listing=listing) from None
        except OSError as problem:
            raise FolderUnusable(
                f"{path} cannot be removed: {problem.strerror or problem}", hint="remove it by hand"
            ) from None
        return path.stem

    def _meant(self, name: str) -> str:
        """Without reading a file: one that is damaged can be forgotten too."""
        try:
            return cards.card(name).name
        except UnknownName:
            return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.json"


def _read(kept: Any, path: Path) -> Calibration:
    schema = kept.pop("schema", None) if isinstance(kept, dict) else None
    if not isinstance(schema, int) or schema < 1:
        raise _unusable(path, "no schema number")
    if schema > SCHEMA:
        raise CalibrationUnusable(
            f"{path} was written with schema {schema}; this sweeper reads up to {SCHEMA}",
            hint="upgrade sweeper, calibrate again, or give --no-calibration",
        )
    for number in range(schema, SCHEMA):
        kept = _UPGRADES[number](kept)
    try:
        return from_jsonable(Calibration, kept)  # type: ignore[no-any-return]
    except WireError as problem:
        raise _unusable(path, str(problem)) from None


def _unusable(path: Path, why: str) -> CalibrationUnusable:
    return CalibrationUnusable(
        f"the calibration {path} cannot be read: {why}",
        hint=f"calibrate again, `sweep calibrate --forget {path.stem}`, or give --no-calibration",
    )

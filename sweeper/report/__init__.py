"""What a person or a program sees of a run: a record in, a string or a Figure out.

``text`` for terminals, ``html`` for notebooks, ``export`` for programs, ``figures`` for paper.  Nothing here prints,
and nothing here writes but ``write_all``; everything it writes can be made again from the journal.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sweeper.errors import FolderUnusable
from sweeper.record import Record
from sweeper.report.export import curve_csv, to_json
from sweeper.report.html import short_form
from sweeper.report.text import summary, trial_line

__all__ = ["curve_csv", "short_form", "summary", "to_json", "trial_line", "write_all"]


def write_all(record: Record, folder: Path) -> tuple[Path, ...]:
    """Write ``record``'s derived files into ``folder``, each whole or not at all; return their paths.

    ``summary.json``, ``curve.csv``, ``memory.png``, ``memory.svg``; ``breakdown.png`` and ``throughput.png`` where
    there is something to draw.  All are made before the first is written, and all are written beside their names
    before the first is renamed, so a full disk leaves what was there.  Raises ``FolderUnusable``.
    """
    files, partials = _files(record, folder), list[tuple[Path, Path]]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            partials.append((folder / f".{name}.{os.getpid()}.partial", folder / name))
            partials[-1][0].write_bytes(content)
        for partial, whole in partials:
            partial.replace(whole)
    except OSError as problem:
        _remove(partial for partial, _ in partials)
        raise FolderUnusable(
            f"the report cannot be written to {folder}: {problem.strerror or problem}",
            hint="make room or choose another folder; the journal is untouched, and `sweep report` draws from it",
        ) from problem
    return tuple(whole for _, whole in partials)


def _files(record: Record, folder: Path) -> dict[str, bytes]:
    from sweeper.report import figures

    memory = figures.memory(record)
    files = {
        "summary.json": (json.dumps(to_json(record, folder), indent=1, allow_nan=False) + "\n").encode(),
        "curve.csv": curve_csv(record).encode(),
        "memory.png": figures.render(memory, "png"),
        "memory.svg": figures.render(memory, "svg"),
    }
    for name, figure in (("breakdown.png", figures.breakdown(record)), ("throughput.png", figures.throughput(record))):
        if figure is not None:
            files[name] = figures.render(figure, "png")
    return files


def _remove(partials: Iterable[Path]) -> None:
    for partial in partials:
        with suppress(OSError):
            partial.unlink(missing_ok=True)

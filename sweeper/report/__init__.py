"""What a person or a program sees of a run: a record in, a string or a Figure out.

``text`` for terminals, ``html`` for notebooks, ``export`` for programs, ``figures`` for paper; ``forecasts``,
``timeline`` and ``frontier`` the same of what is predicted.  Nothing here prints, and nothing here writes but
``write_all``, ``write_comparison``, ``write_timeline`` and ``write_frontier``; everything they write can be made again.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.errors import FolderUnusable
from sweeper.record import Record
from sweeper.report.export import curve_csv, to_json
from sweeper.report.html import short_form
from sweeper.report.text import summary, trial_line

if TYPE_CHECKING:
    from sweeper.boundary import Frontier
    from sweeper.comparison import Compared
    from sweeper.report.timeline import Timeline

__all__ = [
    "curve_csv",
    "short_form",
    "summary",
    "to_json",
    "trial_line",
    "write_all",
    "write_comparison",
    "write_frontier",
    "write_timeline",
    "write_whole",
]


def write_all(record: Record, folder: Path) -> tuple[Path, ...]:
    """Write ``record``'s derived files into ``folder``, each whole or not at all; return their paths.

    ``summary.json``, ``curve.csv``, ``memory.png``, ``memory.svg``; ``breakdown.png`` and ``throughput.png`` where
    there is something to draw.  All are made before the first is written, and all are written beside their names
    before the first is renamed, so a full disk leaves what was there.  Raises ``FolderUnusable``.
    """
    return write_whole(
        folder,
        _files(record, folder),
        what="the report",
        hint="make room or choose another folder; the journal is untouched, and `sweep report` draws from it",
    )


def write_comparison(compared: "Compared", folder: Path) -> tuple[Path, ...]:
    """Write ``compared``'s derived files into ``folder``, and those of each of its runs that began; return their paths.

    ``compare.json``, ``compare.csv``, ``compare.png``, ``compare.svg``; ``breakdowns.png`` and ``breakdowns.svg`` where
    the kinds are known at the common size.  Raises ``FolderUnusable``.
    """
    from sweeper.report import comparison, comparison_figures, page

    files = {
        "compare.json": (json.dumps(comparison.to_json(compared, folder), indent=1, allow_nan=False) + "\n").encode(),
        "compare.csv": comparison.table_csv(compared).encode(),
    }
    drawn = (("compare", comparison_figures.curves(compared)), ("breakdowns", comparison_figures.breakdowns(compared)))
    for name, figure in drawn:
        if figure is not None:
            files |= {f"{name}.png": page.render(figure, "png"), f"{name}.svg": page.render(figure, "svg")}
    written: list[Path] = []
    for entry in compared.entries:
        if entry.record.device is not None:
            written += write_all(entry.record, folder / entry.folder)
    hint = "make room or choose another folder; the journals are untouched, and `sweep report` draws from them"
    return (*written, *write_whole(folder, files, what="the comparison", hint=hint))


def write_timeline(shown: "Timeline", picture: Path) -> tuple[Path, ...]:
    """Write ``shown`` as ``picture``, a PNG, and an SVG beside it; return their paths.  Raises ``FolderUnusable``."""
    from sweeper.report import page, timeline

    drawn = timeline.figure(shown)
    files = {picture.name: page.render(drawn, "png"), picture.with_suffix(".svg").name: page.render(drawn, "svg")}
    return write_whole(picture.parent, files, what="the timeline", hint="make room, or choose another name")


def write_frontier(found: "Frontier", folder: Path) -> tuple[Path, ...]:
    """Write all of ``found`` into ``folder``; return the paths.  Raises ``FolderUnusable``."""
    from sweeper.report import frontier

    return write_whole(folder, frontier.files(found), what="the frontier", hint="make room, or choose another folder")


def write_whole(folder: Path, files: Mapping[str, bytes], *, what: str, hint: str) -> tuple[Path, ...]:
    """Write all of ``files`` into ``folder`` beside their names, then rename them; return their paths.

    Raises ``FolderUnusable``, saying ``what`` cannot be written and the ``hint``, and then nothing has changed.
    """
    partials = list[tuple[Path, Path]]()
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
            f"{what} cannot be written to {folder}: {problem.strerror or problem}", hint=hint
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

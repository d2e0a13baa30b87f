"""Everything that is drawn is drawn in a process of its own: matplotlib takes more memory than the driver may have.

The process is ``python -m sweeper.report``; what it says on stderr when it cannot write is said again here.
"""

import json
import subprocess
import tempfile
from pathlib import Path

from sweeper.boundary import Frontier
from sweeper.cost import Schedule
from sweeper.errors import FolderUnusable
from sweeper.predicting import Forecast
from sweeper.report import write_whole
from sweeper.report.timeline import timeline
from sweeper.runner import python_command
from sweeper.snapshot import pickled
from sweeper.wire import to_jsonable

__all__ = ["draw", "draw_comparison", "draw_frontier", "draw_timeline"]


def draw(folder: Path, schedule: Schedule | None = None) -> None:
    """Write everything that is derived from the journal in ``folder``.

    ``schedule`` is another than the journal's, to say the cost of.  Raises ``FolderUnusable`` when it cannot be
    written.
    """
    asked = () if schedule is None else ("--schedule", json.dumps(to_jsonable(schedule)))
    _in_a_process(*asked, str(folder), otherwise=f"the journal is whole; try again: sweep report {folder}")


def draw_comparison(folder: Path) -> None:
    """Write everything that is derived from the journals of the comparison in ``folder``, its runs' own files too.

    Raises ``FolderUnusable`` when it cannot be written.
    """
    otherwise = f"the journals are whole; try again: sweep report {folder}"
    _in_a_process("--comparison", str(folder), otherwise=otherwise)


def draw_frontier(found: Frontier, folder: Path) -> None:
    """Write ``found`` into ``folder`` as a picture, JSON and CSV.  Raises ``FolderUnusable`` when it cannot be."""
    with tempfile.TemporaryDirectory() as scratch:
        shown = Path(scratch) / "frontier.json"
        shown.write_text(json.dumps(to_jsonable(found)), encoding="utf-8")
        _in_a_process("--frontier", str(shown), str(folder), otherwise="try again, or choose another --folder")


def draw_timeline(found: Forecast, picture: Path) -> tuple[Path, ...]:
    """Write the history of ``found``: ``picture``, a PNG; an SVG beside it; a snapshot for PyTorch's viewer.

    Returns the three paths, of which the last ends in ``.pickle``.  Raises ``FolderUnusable`` when they cannot be
    written, ``ValueError`` when the forecast was not asked for its history.
    """
    if found.history is None:
        raise ValueError("the forecast has no history; ask for it with history=True")
    with tempfile.TemporaryDirectory() as scratch:
        shown = Path(scratch) / "timeline.json"
        shown.write_text(json.dumps(to_jsonable(timeline(found))), encoding="utf-8")
        _in_a_process("--timeline", str(shown), str(picture), otherwise="try again, or choose another name")
    snapshot = picture.with_suffix(".pickle")
    content = {snapshot.name: pickled(found.history)}
    write_whole(picture.parent, content, what="the snapshot", hint="make room, or choose another name")
    return picture, picture.with_suffix(".svg"), snapshot


def _in_a_process(*arguments: str, otherwise: str) -> None:
    """Run the drawing process; ``otherwise`` is the hint where it fails without one of its own."""
    command, environment = python_command("sweeper.report", *arguments)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    *_, message, hint = ["", "", *done.stderr.strip().splitlines()]
    if done.returncode != 2:
        message, hint = f"drawing failed: {hint}", otherwise
    raise FolderUnusable(message, hint=hint)

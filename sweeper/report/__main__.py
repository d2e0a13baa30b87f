"""``python -m sweeper.report``: derive a run's files from its journal, or draw a prediction, in a process of its own.

    python -m sweeper.report FOLDER                         the files of the run in FOLDER
    python -m sweeper.report --schedule JSON FOLDER         the same, with the cost of this schedule
    python -m sweeper.report --comparison FOLDER            the files of the comparison in FOLDER, and of its runs
    python -m sweeper.report --timeline DATA.json FILE.png  FILE.png and FILE.svg, of what DATA.json says is drawn
    python -m sweeper.report --frontier DATA.json FOLDER    the files of the frontier that DATA.json is, in FOLDER

Drawing takes matplotlib, and matplotlib takes more memory than the whole driver may have.  Exits 0, or 2 with the
error and its hint, a line each, on stderr.
"""

import json
import sys
from pathlib import Path

from sweeper.boundary import Frontier
from sweeper.comparing import load_comparison
from sweeper.cost import Schedule
from sweeper.errors import SweepError
from sweeper.journal import read_record
from sweeper.report import write_all, write_comparison, write_frontier, write_timeline
from sweeper.report.timeline import Timeline
from sweeper.wire import from_jsonable


def main(*arguments: str) -> int:
    try:
        match arguments:
            case "--timeline", data, picture:
                shown = from_jsonable(Timeline, json.loads(Path(data).read_text(encoding="utf-8")))
                write_timeline(shown, Path(picture))
            case "--schedule", schedule, folder:
                record = read_record(Path(folder)).with_schedule(from_jsonable(Schedule, json.loads(schedule)))
                write_all(record, Path(folder))
            case "--comparison", folder:
                write_comparison(load_comparison(Path(folder)).compared, Path(folder))
            case "--frontier", data, folder:
                found = from_jsonable(Frontier, json.loads(Path(data).read_text(encoding="utf-8")))
                write_frontier(found, Path(folder))
            case (folder,):
                write_all(read_record(Path(folder)), Path(folder))
            case _:
                raise SystemExit(__doc__)
    except SweepError as error:
        print(error.message, error.hint, sep="\n", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""``python -m sweeper.report FOLDER``: derive a run's files from its journal, in a process of its own.

Drawing takes matplotlib, and matplotlib takes more memory than the whole driver may have.  Exits 0, or 2 with the
error and its hint, a line each, on stderr.
"""

import sys
from pathlib import Path

from sweeper.errors import SweepError
from sweeper.journal import read_record
from sweeper.report import write_all


def main(folder: Path) -> int:
    try:
        write_all(read_record(folder), folder)
    except SweepError as error:
        print(error.message, error.hint, sep="\n", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

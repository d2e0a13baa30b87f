"""Write the golden calibration of the present schema: ``python -m tests.data.calibration.make_golden``.

Run once, when a schema is new.  The file it writes is never touched again; it refuses to.
"""

from pathlib import Path

from sweeper.calibrations import SCHEMA, Calibrations
from sweeper.units import MIB
from tests.builders import a_calibration


def main() -> None:
    folder = Path(__file__).parent / f"schema-{SCHEMA}"
    if folder.exists():
        raise SystemExit(f"{folder} is there already, and is never written again")
    Calibrations(folder).put(a_calibration(0, 2 * MIB))


if __name__ == "__main__":
    main()

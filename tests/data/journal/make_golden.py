"""Write the golden journal of the present schema: ``python -m tests.data.journal.make_golden``.

Run once, when a schema is new.  The folder it writes is never touched again; it refuses to.
"""

from pathlib import Path

from sweeper.journal import SCHEMA, Journal
from tests.builders import a_finished_record, a_prediction


def main() -> None:
    record = a_finished_record(prediction=a_prediction())
    with Journal.create(Path(__file__).parent / f"schema-{SCHEMA}", record.header) as journal:
        assert record.device is not None
        journal.set_device(record.device, record.prediction)
        for trial in record.trials:
            journal.add(trial)


if __name__ == "__main__":
    main()

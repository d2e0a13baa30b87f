"""Write the golden journal of the present schema: ``python -m tests.data.journal.make_golden``.

Run once, when a schema is new.  The folder it writes is never touched again; it refuses to.
"""

from pathlib import Path

from sweeper.calibration import apply
from sweeper.cards import card
from sweeper.journal import SCHEMA, Journal
from sweeper.record import PredictedTrial
from tests.builders import a_calibration, a_finished_record, a_prediction, a_spec


def main() -> None:
    calibrated = apply(a_calibration(), card("rtx4060"))
    predicted = PredictedTrial(fits=True, peak_allocated_bytes=1, peak_reserved_bytes=2, least_capacity_bytes=3)
    record = a_finished_record(
        prediction=a_prediction(), spec=a_spec(card=calibrated), card=calibrated, predicted={32: predicted}
    )
    with Journal.create(Path(__file__).parent / f"schema-{SCHEMA}", record.header) as journal:
        assert record.device is not None
        journal.set_device(record.device, record.prediction, record.card)
        for trial in record.trials:
            journal.add(trial)


if __name__ == "__main__":
    main()

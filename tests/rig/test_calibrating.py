"""A GPU measured, and predicted from then on: on cards of the stand-in runtime, which takes what it was told to.

Its convolutions take no workspace unless they are told to, where the simulation has cuDNN's; so the models here are of
matrix products, in which the two take the same to the byte.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sweeper import cards
from sweeper.calibrating import JOBS, calibrate
from sweeper.calibration import Calibration
from sweeper.calibrations import Calibrations
from sweeper.journal import Journal, read_record
from sweeper.record import Record, Settings
from sweeper.sweeping import Silent, run_sweep
from sweeper.trial import Fit
from sweeper.units import GIB, MIB
from tests.builders import a_header, a_spec
from tests.rig.build import Rig, new_card
from tests.rig.hold import held
from tests.rig.trials import Trials

pytestmark = pytest.mark.rig

CONTEXT = 300 * 10**6
HANDLE = 40 * MIB  # what cuBLAS keeps for itself, a handle; forward and backward have one each
TOTAL = GIB
SIZES = (8, 16, 64, 512)  # the last runs out
_TRANSFORMER = tuple(job for job in JOBS if job.model == "tiny-transformer")


def on_card(rig: Rig, **knobs: object) -> Mapping[str, str]:
    given = {"context_bytes": CONTEXT, "cublas_handle_bytes": HANDLE, "compute_capability": 80, **knobs}
    return rig.environment(TOTAL, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def measured(rig: Rig, trials: Trials, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    return calibrate(trials.on(on_card(rig)), "cuda", tmp_path_factory.mktemp("calibrating"))


def swept(
    trials: Trials,
    environment: Mapping[str, str],
    folder: Path,
    kept: Calibrations,
    *,
    device: str = "cuda",
    sizes: tuple[int, ...] = (),
    **asked: Any,
) -> Record:
    card = kept.card(device.removeprefix("sim:")) if device.startswith("sim:") else None
    spec = a_spec(**{"model": "tiny-transformer", "optimizer": "adamw", "device": device, "card": card, **asked})
    with Journal.create(
        folder, a_header(spec=spec, settings=Settings(cap=32768, points=1, margin=0, sizes=sizes))
    ) as journal:
        return run_sweep(journal, trials.on(environment), Silent(), kept)


def test_a_card_of_no_catalogue_is_calibrated_to_what_its_driver_takes(measured: Calibration) -> None:
    assert cards.find(measured.label, measured.total_bytes) is None
    assert (measured.name, measured.total_bytes, measured.compute_capability) == ("rig-card-1gb", TOTAL, "8.0")
    assert measured.multiprocessors == 24
    assert measured.context_bytes == CONTEXT
    assert measured.outside_bytes == CONTEXT + 2 * HANDLE
    assert measured.others_bytes == 0
    assert [job.model for job in measured.jobs] == [job.model for job in JOBS]


def test_the_allocator_and_its_simulation_agree_on_matrix_products(measured: Calibration) -> None:
    jobs = [job for job in measured.jobs if job.model == "tiny-transformer"]
    assert [job.difference_bytes for job in jobs] == [0, 0]
    assert all(job.measured_allocated_bytes == job.simulated_allocated_bytes for job in jobs)
    # Two handles, forward's and backward's, with 8,519,680 bytes each below compute capability 9.0.
    assert all(job.cublas_workspace_bytes >= 2 * 8_519_680 for job in jobs)
    assert measured.reserved_offset_bytes == 0


def test_what_another_process_holds_is_told_and_not_taken_for_the_cards(
    rig: Rig, trials: Trials, tmp_path: Path
) -> None:
    environment = on_card(rig, card_file=new_card())
    with held(100 * MIB, environment):
        found = calibrate(trials.on(environment), "cuda", tmp_path, jobs=_TRANSFORMER[:1])
    assert (found.context_bytes, found.outside_bytes) == (CONTEXT, CONTEXT + 2 * HANDLE)
    assert found.others_bytes == 100 * MIB + CONTEXT


def test_where_the_driver_hides_processes_the_sizes_are_the_same_on_a_quiet_card(
    rig: Rig, trials: Trials, tmp_path: Path
) -> None:
    environment = on_card(rig, nvml_hides_processes=True)
    found = calibrate(trials.on(environment), "cuda", tmp_path, jobs=_TRANSFORMER[:1])
    assert (found.context_bytes, found.outside_bytes) == (CONTEXT, CONTEXT + 2 * HANDLE)
    assert found.others_bytes is None


def test_a_calibrated_card_is_predicted_right_and_without_is_not(
    rig: Rig, trials: Trials, tmp_path: Path, measured: Calibration
) -> None:
    kept = Calibrations(tmp_path / "kept")
    job: dict[str, Any] = {
        "model": "mlp",
        "optimizer": "sgd",
        "steps": 2,
    }  # affine in the batch, so there is a first guess
    blind = swept(trials, on_card(rig), tmp_path / "blind", kept, **job)
    kept.put(measured)
    real = swept(trials, on_card(rig), tmp_path / "real", kept, **job)
    simulated = swept(trials, {}, tmp_path / "simulated", kept, device=f"sim:{measured.name}", **job)
    assert real.proven
    assert real.max_batch == blind.max_batch == simulated.max_batch
    assert (real.prediction_error, simulated.prediction_error) == (0, 0)
    # What the handles take came after the card was described, so without a calibration it was not known.
    assert blind.prediction_error is not None
    assert blind.prediction_error > 0
    assert simulated.capacity_bytes == TOTAL - CONTEXT - 2 * HANDLE
    assert real.card is not None
    assert real.card.calibrated is not None
    assert blind.card is not None
    assert (blind.card.calibrated, blind.card.compute_capability) == (None, "8.0")


def test_every_batch_has_what_was_predicted_of_it_beside_it(
    rig: Rig, trials: Trials, tmp_path: Path, measured: Calibration
) -> None:
    kept = Calibrations(tmp_path / "kept")
    kept.put(measured)
    record = swept(trials, on_card(rig), tmp_path / "run", kept, sizes=SIZES)
    assert record.prediction is not None
    assert [isinstance(trial.outcome, Fit) for trial in record.trials] == [True, True, True, False]
    assert all(trial.predicted is not None for trial in record.trials)
    for trial in record.trials:
        assert trial.predicted is not None
        assert trial.predicted.fits == isinstance(trial.outcome, Fit)
        if isinstance(trial.outcome, Fit):
            assert trial.predicted.peak_allocated_bytes == trial.outcome.peak_allocated_bytes
            assert trial.predicted.peak_reserved_bytes == trial.outcome.peak_reserved_bytes
        else:
            assert trial.predicted.least_capacity_bytes is not None
            assert trial.predicted.least_capacity_bytes > TOTAL - CONTEXT - 2 * HANDLE
    assert record.prediction_errors is not None
    assert (record.prediction_errors.median, record.prediction_errors.worst) == (0, 0)


def test_a_sweep_that_goes_on_predicts_as_it_began_whatever_is_kept_by_then(
    rig: Rig, trials: Trials, tmp_path: Path, measured: Calibration
) -> None:
    kept = Calibrations(tmp_path / "kept")
    kept.put(measured)
    whole = swept(trials, on_card(rig), tmp_path / "run", kept, sizes=SIZES)
    lines = (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "journal.jsonl").write_bytes(b"".join(lines[:4]))
    kept.forget(measured.name)
    with Journal.reopen(tmp_path / "cut") as journal:
        run_sweep(journal, trials.on(on_card(rig)), Silent(), kept)
    again = read_record(tmp_path / "cut")
    assert again.card == whole.card
    assert [(t.size, t.predicted) for t in again.trials] == [(t.size, t.predicted) for t in whole.trials]

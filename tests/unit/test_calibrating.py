"""Measuring a card, whatever the worker answers: what is the process's own, and what ends it with what to do next."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.calibrating import JOBS, calibrate, card_at_hand
from sweeper.calibration import Calibration
from sweeper.cards import card
from sweeper.errors import SweepError, TrialsBroke, UsageError, WorkerFailed
from sweeper.trial import (
    Calibrate,
    CalibrationTrial,
    CardMemory,
    Describe,
    Refused,
    Request,
    Response,
    TrialSpec,
)
from sweeper.units import GIB, MIB
from tests.builders import a_broken, a_device, a_fit, an_oom

TOTAL = 8_318_222_336
CONTEXT, OUTSIDE, OTHERS = 280 * MIB, 312 * MIB, 90 * MIB


def a_measurement(*, more_bytes: int = 0, nvml: bool = True) -> CalibrationTrial:
    """A job that reserves ``more_bytes`` than its simulation, while others hold ``OTHERS``."""
    reserved = 256 * MIB + more_bytes
    before = CardMemory(total_bytes=TOTAL, used_bytes=CONTEXT + OTHERS, process_bytes=CONTEXT if nvml else None)
    fit = a_fit(
        peak_reserved_bytes=reserved,
        process_bytes=reserved + OUTSIDE if nvml else None,
        context_bytes=OUTSIDE if nvml else None,
        card_before=before,
    )
    return CalibrationTrial(
        fit=fit, context_bytes=CONTEXT + OTHERS, outside_bytes=OUTSIDE + OTHERS, cublas_workspace_bytes=8_519_680
    )


class Worker:
    """A GPU on which each job in turn is ``measured``; remembers what it was asked."""

    def __init__(self, measured: Sequence[Response], *, device: Response | None = None) -> None:
        self._device = device or a_device(device="cuda:0", capacity_bytes=TOTAL - CONTEXT - OTHERS)
        self._measured = iter(measured)
        self.asked: list[Request] = []
        self.folders: list[Path] = []

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        self.asked.append(request)
        self.folders.append(folder)
        match request:
            case Describe():
                return self._device
            case Calibrate():
                return next(self._measured)
            case _:
                return a_fit(peak_reserved_bytes=256 * MIB)

    def close(self) -> None:
        """Nothing runs."""


def calibrated(tmp_path: Path, *measured: Response, **worker: Response) -> Calibration:
    return calibrate(Worker(measured, **worker), "cuda", tmp_path, jobs=JOBS[: len(measured)])


def test_each_job_is_measured_on_the_card_and_simulated_for_it_in_folders_of_their_own(tmp_path: Path) -> None:
    worker, told = Worker([a_measurement()] * len(JOBS)), list[TrialSpec]()
    calibrate(worker, "cuda", tmp_path, on_job=told.append)
    assert tuple(told) == JOBS
    assert len(set(worker.folders)) == len(worker.folders) == 1 + 2 * len(JOBS)
    for job, real, simulated in zip(JOBS, worker.asked[1::2], worker.asked[2::2], strict=True):
        assert real == Calibrate(spec=replace(job, device="cuda:0"))
        assert isinstance(simulated, TrialSpec)
        assert simulated.card is not None
        assert (simulated.device, simulated.card.total_bytes) == ("sim:rtx4060", TOTAL)
        assert replace(simulated, device=job.device, card=None) == job


def test_the_jobs_load_the_kernels_of_a_cnn_and_a_transformer_in_fp32_and_under_autocast() -> None:
    models = {job.model for job in JOBS}
    assert {(job.model, job.precision) for job in JOBS} == {(m, p) for m in models for p in ("fp32", "amp-fp16")}
    assert len(models) == 2


def test_the_drivers_count_of_the_process_is_what_is_kept(tmp_path: Path) -> None:
    found = calibrated(tmp_path, a_measurement())
    assert (found.context_bytes, found.outside_bytes, found.others_bytes) == (CONTEXT, OUTSIDE, OTHERS)
    assert (found.name, found.total_bytes, found.compute_capability) == ("rtx4060", TOTAL, "8.9")
    assert (found.driver, found.torch) == ("580.95.05", "2.14.1+cu130")
    assert found.jobs[0].cublas_workspace_bytes == 8_519_680


def test_where_the_driver_hides_processes_others_count_and_that_is_known(tmp_path: Path) -> None:
    found = calibrated(tmp_path, a_measurement(nvml=False), a_measurement(nvml=False))
    assert (found.context_bytes, found.outside_bytes) == (CONTEXT + OTHERS, OUTSIDE + OTHERS)
    assert found.others_bytes is None


@pytest.mark.parametrize(("differences", "offset"), [((0,), 0), ((4, 6), 4), ((-6, -2), -2), ((-2, 4), 0), ((0, 8), 0)])
def test_what_all_jobs_reserve_beyond_the_simulation_is_the_offset(
    tmp_path: Path, differences: tuple[int, ...], offset: int
) -> None:
    found = calibrated(tmp_path, *(a_measurement(more_bytes=difference * MIB) for difference in differences))
    assert [job.difference_bytes for job in found.jobs] == [difference * MIB for difference in differences]
    assert found.reserved_offset_bytes == offset * MIB


def test_a_trial_that_breaks_once_is_run_again(tmp_path: Path) -> None:
    found = calibrate(Worker([a_broken(), a_measurement()]), "cuda", tmp_path, jobs=JOBS[:1])
    assert found.outside_bytes == OUTSIDE


@pytest.mark.parametrize(
    ("device", "measured", "error", "message", "hint"),
    [
        (None, [a_broken(), a_broken()], TrialsBroke, "resnet18.* broke: RuntimeError", "--model resnet18"),
        (None, [an_oom()], TrialsBroke, "ran out of memory at batch 8", "end what else runs"),
        (None, [Refused(message="no such model", hint="see")], UsageError, "no such model", "see"),
        (None, [a_fit()], WorkerFailed, "answered with Fit", "reinstall"),
        (Refused(message="cuda: no usable GPU", hint="x"), [], UsageError, "no usable GPU", "that has the GPU"),
        (a_broken(), [], WorkerFailed, "mat1", "nvidia-smi"),
        (a_fit(), [], WorkerFailed, "answered with Fit", "reinstall"),
    ],
)
def test_what_does_not_come_to_a_calibration_says_what_to_do(
    tmp_path: Path, device: Response | None, measured: list[Response], error: type[SweepError], message: str, hint: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        calibrate(Worker(measured, device=device), "cuda", tmp_path)
    assert hint in caught.value.hint


@pytest.mark.parametrize("device", ["cpu", "sim:rtx4060", "auto"])
def test_only_a_gpu_can_be_calibrated_and_nothing_is_asked(tmp_path: Path, device: str) -> None:
    worker = Worker([])
    with pytest.raises(UsageError, match="only a GPU"):
        calibrate(worker, device, tmp_path)
    assert worker.asked == []


def test_a_card_at_hand_has_what_the_driver_says_and_of_the_catalogue_the_rest() -> None:
    said = {"total_bytes": TOTAL - 64 * MIB, "compute_capability": "8.7", "multiprocessors": 20}
    assert card_at_hand(a_device(device="cuda:0", **said)) == replace(card("rtx4060"), **said)  # type: ignore[arg-type]


def test_a_card_of_no_catalogue_has_its_own_kernels_and_the_context_that_was_seen() -> None:
    here = a_device(device="cuda:0", label="Rig card", total_bytes=2 * GIB, capacity_bytes=2 * GIB - CONTEXT)
    one = card_at_hand(replace(here, compute_capability="7.5", multiprocessors=14))
    assert (one.name, one.total_bytes, one.context_bytes) == ("rig-card-2gb", 2 * GIB, CONTEXT)
    assert (one.compute_capability, one.multiprocessors) == ("7.5", 14)

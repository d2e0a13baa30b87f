"""The promises on a real GPU.  Plain functions of at most ``tmp_path``: ``scripts/gpu_check.py`` runs them too."""

import subprocess
import sys
from pathlib import Path

import sweeper
from sweeper.trial import Fit, OutOfMemory


def _sweep(folder: Path, **question: object) -> sweeper.Run:
    return sweeper.sweep("resnet18", device="cuda", folder=folder, **question)  # type: ignore[arg-type]


def test_the_boundary_is_proven_and_both_sides_come_again(tmp_path: Path) -> None:
    found = _sweep(tmp_path / "first", memory_limit="2GiB", max_batch=256)
    assert found.proven
    assert found.max_batch is not None
    again = _sweep(tmp_path / "again", memory_limit="2GiB", batches=[found.max_batch, found.max_batch + 1])
    assert [point.outcome for point in again.curve] == ["fit", "oom"]


def test_an_out_of_memory_says_how_much_was_asked_for(tmp_path: Path) -> None:
    found = _sweep(tmp_path / "run", memory_limit="1GiB", batches=[512])
    outcome = found.record.trials[0].outcome
    assert isinstance(outcome, OutOfMemory)
    assert outcome.failure == "oom_device"
    assert outcome.requested_bytes
    assert outcome.reserved_bytes is not None
    assert outcome.reserved_bytes <= 1 << 30


def test_a_fit_is_measured_in_every_way(tmp_path: Path) -> None:
    found = _sweep(tmp_path / "run", batches=[8])
    fit = found.record.trials[0].outcome
    assert isinstance(fit, Fit)
    assert 0 < fit.peak_allocated_bytes <= fit.peak_reserved_bytes <= fit.capacity_bytes
    assert len(fit.steps) == 3
    assert all(step.seconds and step.loss is not None for step in fit.steps)
    assert fit.breakdown is not None
    assert fit.breakdown.total_bytes == fit.peak_allocated_bytes
    assert fit.card_before is not None
    assert fit.fragmentation is not None
    assert 0 <= fit.fragmentation.largest_free_bytes <= fit.fragmentation.unused_bytes
    assert fit.host_peak_bytes
    assert fit.activity is not None
    assert fit.activity.samples >= 2
    assert 0 <= (fit.activity.utilization_max_percent or 0) <= 100
    assert fit.loss_finite is True


def test_the_driver_holds_no_context_and_the_host_forks(tmp_path: Path) -> None:
    code = (
        "import sweeper, sys; sweeper.sweep('resnet18', device='cuda', batches=[2, 4], folder=sys.argv[1]);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False).returncode == 0

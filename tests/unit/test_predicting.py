"""From traces to a forecast: what a scripted worker traces, the forecast says, and no more is asked than needed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.accuracy import Accuracy, Errors
from sweeper.allocator import CachingAllocator
from sweeper.allocator_conf import DEFAULT_CONF
from sweeper.cards import Card, card, cards
from sweeper.errors import Untraceable, UsageError
from sweeper.predicting import Forecast, StepTracer, Wanted, affine_law, forecasts
from sweeper.trace import NotAffine, Trace, replay
from sweeper.trace_cache import TraceCache
from sweeper.trial import Broken, Refused, Request, Response, TakeTraces, Traced
from sweeper.units import GIB, MIB
from tests.builders import a_broken, a_spec
from tests.unit.test_prediction import a_law

Step = Callable[[int], Trace]
T4 = card("t4")


def affine(size: int) -> Trace:
    return a_law(per_sample=37 * MIB).at(size)


def padded(size: int) -> Trace:
    """To a multiple of 48, as far as its activations go."""
    return dataclasses.replace(a_law(per_sample=37 * MIB).at(-(-size // 48) * 48), batch_size=size)


class TracingRunner:
    """Answers ``TakeTraces`` by ``step``; ``instead`` is answered first, one by one."""

    def __init__(self, step: Step, *instead: Response, breaks_at: int = 0) -> None:
        self._step, self._instead, self._breaks_at = step, list(instead), breaks_at
        self.sizes: list[int] = []

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        assert isinstance(request, TakeTraces)
        self.sizes += request.sizes
        if self._instead:
            return self._instead.pop(0)
        if self._breaks_at in request.sizes:
            return a_broken(reason="ValueError: Expected more than 1 value per channel when training")
        folder.mkdir(parents=True, exist_ok=True)
        for size in request.sizes:
            (folder / str(size)).write_text(self._step(size).to_json())
        return Traced(files=tuple(map(str, request.sizes)))

    def close(self) -> None:
        """Nothing runs."""


def forecast_on(
    runner: TracingRunner, folder: Path, *on: Card, cache: TraceCache | None = None, **wanted: Any
) -> Forecast:
    asked = Wanted(**{"cap": 600, **wanted})
    *_, last = forecasts(a_spec(), on or (T4,), asked, StepTracer(runner, folder, cache=cache), DEFAULT_CONF)
    return last


def fits(step: Step, size: int, capacity: int) -> bool:
    return replay(step(size), CachingAllocator(capacity_bytes=capacity)).fits


@pytest.mark.parametrize("step", [affine, padded])
def test_the_boundary_is_that_of_the_traces_and_both_numbers_are_its(tmp_path: Path, step: Step) -> None:
    found = forecast_on(TracingRunner(step), tmp_path)
    assert found.capacity_bytes == T4.total_bytes - T4.context_bytes
    assert found.max_batch is not None
    assert found.first_failure == found.max_batch + 1
    assert fits(step, found.max_batch, found.capacity_bytes)
    assert not fits(step, found.first_failure, found.capacity_bytes)
    uncapped = replay(step(found.max_batch), CachingAllocator())
    assert found.uncapped_peak_bytes == uncapped.peak_reserved_bytes
    assert found.least_capacity_bytes is not None
    assert fits(step, found.max_batch, found.least_capacity_bytes)
    assert not fits(step, found.max_batch, found.least_capacity_bytes - 2 * MIB)
    assert found.headroom_bytes == found.capacity_bytes - found.least_capacity_bytes >= 0
    assert set(found.fitting) == {p.size for p in found.prediction.points if fits(step, p.size, found.capacity_bytes)}


def test_an_affine_step_is_traced_three_times_and_never_again(tmp_path: Path) -> None:
    runner = TracingRunner(affine)
    found = forecast_on(runner, tmp_path, *(card for card in cards().values() if card.compute_capability == "8.9"))
    assert len(runner.sizes) == 3
    assert found.notes == ()


def test_cards_of_two_vendors_share_no_trace_though_they_share_a_capability(tmp_path: Path) -> None:
    runner = TracingRunner(affine)
    nvidia, amd = cards()["h100"], cards()["mi250x"]
    assert nvidia.compute_capability == amd.compute_capability
    forecast_on(runner, tmp_path, nvidia, amd, cache=TraceCache(tmp_path / "cache"))
    assert len(runner.sizes) == 6


def test_a_step_that_is_not_affine_is_traced_at_each_size_once_and_that_is_said(tmp_path: Path) -> None:
    runner = TracingRunner(padded)
    found = forecast_on(runner, tmp_path)
    assert len(runner.sizes) == len(set(runner.sizes)) > 3
    assert any("not affine" in note and "each size was traced" in note for note in found.notes)
    assert found.floor == 1
    with pytest.raises(NotAffine):
        affine_law(StepTracer(TracingRunner(padded), tmp_path), a_spec(), "7.5")


def test_where_batch_1_does_not_run_the_sizes_start_at_2(tmp_path: Path) -> None:
    found = forecast_on(TracingRunner(padded, breaks_at=1), tmp_path)
    assert found.floor == 2
    assert found.max_batch == forecast_on(TracingRunner(padded), tmp_path).max_batch
    assert any("start at 2" in note for note in found.notes)


def test_where_another_batch_does_not_run_the_error_is_the_models(tmp_path: Path) -> None:
    with pytest.raises(Untraceable, match=r"broke at batch 16.*more than 1 value"):
        forecast_on(TracingRunner(padded, breaks_at=16), tmp_path)


@pytest.mark.parametrize("batch", [1, 100, 402, 403, 404, 500])
def test_a_batch_that_is_asked_about_fits_or_lacks_what_it_lacks(tmp_path: Path, batch: int) -> None:
    found = forecast_on(TracingRunner(affine), tmp_path, batch=batch)
    assert found.asked is not None
    assert found.fits == found.asked.fits == fits(affine, batch, found.capacity_bytes)
    assert found.headroom_bytes is not None
    assert (found.headroom_bytes >= 0) == found.fits
    assert fits(affine, batch, found.capacity_bytes - found.headroom_bytes)
    assert not fits(affine, batch, found.capacity_bytes - found.headroom_bytes - 2 * MIB)


@pytest.mark.parametrize("budget", [30 * MIB, GIB, 5 * GIB, 100 * GIB])
def test_a_budget_lowers_the_capacity_and_never_raises_it(tmp_path: Path, budget: int) -> None:
    found = forecast_on(TracingRunner(affine), tmp_path, budget_bytes=budget)
    assert found.capacity_bytes == min(budget, T4.total_bytes - T4.context_bytes)
    assert found.fits == (budget > 30 * MIB)
    if found.max_batch is not None:
        assert fits(affine, found.max_batch, found.capacity_bytes)
        assert not fits(affine, found.max_batch + 1, found.capacity_bytes)
    else:
        assert (found.headroom_bytes, found.uncapped_peak_bytes, found.fitting) == (None, None, ())


@pytest.mark.parametrize("step", [affine, padded])
def test_with_all_traces_kept_no_worker_is_asked(tmp_path: Path, step: Step) -> None:
    cache = TraceCache(tmp_path / "cache")
    cold = forecast_on(TracingRunner(step), tmp_path / "run", cache=cache)
    warm = TracingRunner(step)
    again = forecast_on(warm, tmp_path / "run", cache=cache)
    assert warm.sizes == []
    assert dataclasses.replace(again, seconds=cold.seconds) == cold


def test_only_what_is_missing_is_traced(tmp_path: Path) -> None:
    cache = TraceCache(tmp_path / "cache")
    forecast_on(TracingRunner(affine), tmp_path / "run", cache=cache)
    sorted((tmp_path / "cache").iterdir())[0].unlink()
    runner = TracingRunner(affine)
    forecast_on(runner, tmp_path / "run", cache=cache)
    assert len(runner.sizes) == 1


def test_a_question_that_the_worker_refuses_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such argument"):
        forecast_on(TracingRunner(affine, Refused(message="no such argument", hint="see")), tmp_path)


def test_a_worker_that_dies_is_tried_once_more(tmp_path: Path) -> None:
    died = Broken(failure="infra", reason="the host died")
    assert forecast_on(TracingRunner(affine, died), tmp_path).max_batch is not None
    with pytest.raises(Untraceable, match="the host died"):
        forecast_on(TracingRunner(affine, died, died), tmp_path)


# -- the error band, and the history


def errors_of(share: float) -> Accuracy:
    peaks = Errors(rows=9, median=share / 2, percentile_90=share, bias=0.0)
    return Accuracy(schema=1, date="2026-01-02", versions={}, peaks=peaks, kinds={}, boundaries={})


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 0.9])
@pytest.mark.parametrize("budget", [None, 4 * GIB])
def test_the_band_is_what_fits_when_the_job_takes_more_or_less(
    tmp_path: Path, share: float, budget: int | None
) -> None:
    found = forecast_on(TracingRunner(affine), tmp_path, accuracy=errors_of(share), budget_bytes=budget, cap=4096)
    band = found.band
    assert band is not None
    assert found.uncapped_peak_bytes is not None
    assert found.max_batch is not None
    for size, times in ((band.least_batch, 1 - share), (band.most_batch, 1 + share)):
        assert size is not None
        capacity = int(times * found.capacity_bytes)
        assert fits(affine, size, capacity)
        assert not fits(affine, size + 1, capacity)
    assert band.least_batch is not None
    assert band.least_batch <= found.max_batch <= (band.most_batch or 0)
    # A prediction is off by exactly the share when the truth is at either end.
    assert found.uncapped_peak_bytes / band.least_peak_bytes - 1 == pytest.approx(share, abs=1e-6)
    assert 1 - found.uncapped_peak_bytes / band.most_peak_bytes == pytest.approx(share, abs=1e-6)


def test_where_even_one_might_not_fit_the_band_says_so_and_the_cap_is_its_end(tmp_path: Path) -> None:
    one = replay(affine(1), CachingAllocator()).peak_reserved_bytes
    found = forecast_on(TracingRunner(affine), tmp_path, accuracy=errors_of(0.5), budget_bytes=one, cap=1)
    assert found.band is not None
    assert (found.band.least_batch, found.max_batch, found.band.most_batch) == (None, 1, 1)


def test_there_is_no_band_where_none_can_be_told(tmp_path: Path) -> None:
    assert forecast_on(TracingRunner(affine), tmp_path).band is None
    assert forecast_on(TracingRunner(affine), tmp_path, accuracy=errors_of(1.0)).band is None
    assert forecast_on(TracingRunner(affine), tmp_path, accuracy=errors_of(0.1), budget_bytes=1).band is None
    several = forecast_on(TracingRunner(affine), tmp_path, T4, card("l4"), accuracy=errors_of(0.1))
    assert (several.band, several.accuracy) == (None, errors_of(0.1))
    runner = TracingRunner(padded)  # each size would be traced by itself
    assert forecast_on(runner, tmp_path, accuracy=errors_of(0.1)).band is None


@pytest.mark.parametrize("batch", [None, 3, 500])
@pytest.mark.parametrize("budget", [None, MIB])
def test_the_history_is_of_the_asked_batch_else_the_largest_else_the_smallest(
    tmp_path: Path, batch: int | None, budget: int | None
) -> None:
    assert forecast_on(TracingRunner(affine), tmp_path, batch=batch, budget_bytes=budget).history is None
    found = forecast_on(TracingRunner(affine), tmp_path, batch=batch, budget_bytes=budget, history=True)
    assert found.history is not None
    assert found.history.trace.batch_size == (batch or found.max_batch or 1)
    assert found.history.capacity_bytes == found.capacity_bytes
    assert found.history.replay.fits == (found.fits if batch or budget is None else False)

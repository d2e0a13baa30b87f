"""What a trial on a card measures beside its peaks: the driver's readings, host memory, the allocator's blocks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.cards import cards
from sweeper.errors import UsageError
from sweeper.prices import cost_question, list_prices
from sweeper.sweeping import describe
from sweeper.trial import Fit, Fragmentation, TrialSpec
from sweeper.units import GIB, MIB
from tests.rig.build import Rig
from tests.rig.trials import Trials

pytestmark = pytest.mark.rig

NETWORKS = Path(__file__).parents[1] / "workers" / "networks.py"
# Without convolutions: what cuDNN takes for itself is not on the stand-in runtime.
LAWFUL = [f"{NETWORKS}:linears", "mlp", "tiny-transformer"]

Train = Callable[..., Fit]


@pytest.fixture
def train(rig: Rig, trials: Trials, tmp_path: Path) -> Train:
    """Train on a new card and return the fit: ``train(spec's changes, **knobs of the card)``."""
    numbers = iter(range(1000))

    def run(changes: dict[str, Any], **knobs: Any) -> Fit:
        environment = {"PYTORCH_CUDA_ALLOC_CONF": "", **rig.environment(8 * GIB, **knobs)}
        spec = TrialSpec(**{"model": LAWFUL[0], "batch_size": 64, "device": "cuda", **changes})
        found = trials.on(environment).run(spec, tmp_path / f"{next(numbers)}")
        assert isinstance(found, Fit), found
        return found

    return run


def test_the_card_is_read_at_both_ends_and_told_as_mean_and_maximum(train: Train) -> None:
    activity = train({}, nvml_activity=["20:50000:900:40", "80:150000:1500:61"]).activity
    assert activity is not None
    # The first reading is the first of the list, all others are the last.
    others = activity.samples - 1
    assert others >= 1
    assert activity.utilization_mean_percent == pytest.approx((20 + 80 * others) / activity.samples)
    assert activity.power_mean_w == pytest.approx((50 + 150 * others) / activity.samples)
    assert activity.clock_mean_mhz == pytest.approx((900 + 1500 * others) / activity.samples)
    assert (activity.utilization_max_percent, activity.power_max_w, activity.temperature_max_c) == (80, 150, 61)


def test_what_a_card_does_not_tell_is_none_and_the_rest_is_there(train: Train) -> None:
    activity = train({}, nvml_activity=["-:70000:-:-"]).activity
    assert activity is not None
    assert (activity.power_mean_w, activity.power_max_w) == (70, 70)
    assert (activity.utilization_mean_percent, activity.clock_mean_mhz, activity.temperature_max_c) == (None,) * 3
    assert train({}).activity is None


def test_the_host_memory_is_the_whole_process(train: Train) -> None:
    small, large = train({"batch_size": 1}), train({"batch_size": 32768})
    assert small.host_peak_bytes is not None
    assert large.host_peak_bytes is not None
    assert small.host_peak_bytes > 64 * MIB  # Python and torch alone
    batch_bytes = 32768 * 1024 * 4
    assert large.host_peak_bytes - small.host_peak_bytes > 0.9 * batch_bytes


def test_tokens_and_accumulated_batches_count(train: Train) -> None:
    fit = train({"model": "tiny-transformer", "batch_size": 4})
    assert fit.step_seconds is not None
    assert fit.samples_per_second == pytest.approx(4 / fit.step_seconds)
    assert fit.tokens_per_second == pytest.approx(4 * 128 / fit.step_seconds)
    assert train({}).tokens_per_second is None
    twice = train({"model": "tiny-transformer", "batch_size": 4, "accumulate": 2})
    assert twice.step_seconds is not None
    assert twice.samples_per_second == pytest.approx(2 * 4 / twice.step_seconds)
    assert twice.tokens_per_second == pytest.approx(2 * 4 * 128 / twice.step_seconds)


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_the_step_that_was_looked_into_is_not_timed_where_another_is(train: Train, steps: int) -> None:
    fit = train({"steps": steps})
    times = [step.seconds for step in fit.steps if step.seconds is not None]
    assert fit.fragmentation is not None
    kept = sorted(times[2:] or times[1:])
    middle = len(kept) // 2
    assert fit.step_seconds == (kept[middle] if len(kept) % 2 else (kept[middle - 1] + kept[middle]) / 2)


@pytest.mark.parametrize("model", LAWFUL)
@pytest.mark.parametrize("changes", [{"optimizer": "adam"}, {"batch_size": 200}, {"mode": "inference"}, {"steps": 2}])
def test_fragmentation_is_the_simulations_to_the_byte(train: Train, model: str, changes: dict[str, Any]) -> None:
    from sweeper.worker import trial

    measured = train({"model": model, **changes}).fragmentation
    spec = TrialSpec(**{"model": model, "batch_size": 64, "device": "sim:rtx4060", **changes})
    simulated = trial.run(spec)
    assert isinstance(simulated, Fit)
    assert isinstance(measured, Fragmentation)
    assert measured == simulated.fragmentation
    assert 0 <= measured.largest_free_bytes <= measured.unused_bytes


def test_a_list_price_is_found_for_the_card_that_is_there(rig: Rig, trials: Trials, tmp_path: Path) -> None:
    """From what the driver says of the card, by way of the worker, to the price and its date."""
    card, listed = cards()["l4"], list_prices()["l4"]
    asked = cost_question("list", 1_281_167, 90)
    assert asked is not None
    for name, folder in ((card.label, "listed"), ("NVIDIA GeForce RTX 4060", "unlisted")):
        runner = trials.on(rig.environment(card.total_bytes, name=name))
        device = describe(runner, TrialSpec(model="mlp", batch_size=1, device="cuda"), tmp_path / folder)
        if name == card.label:
            price = asked.on(device).price
            assert price is not None
            assert price.per_hour == listed.per_hour
            assert f"as of {listed.date}" in (price.listed or "")
        else:
            with pytest.raises(UsageError, match="no list price"):
                asked.on(device)

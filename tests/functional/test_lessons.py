"""What is taught about memory, held against simulated training steps: the direction of each effect, and its size.

Figures are shares, because that is how the rules are said.  All steps are at a batch where activations are the larger
part, as they are in practice.  What one kind holds moves by a percent or two with what the allocator finds free.
"""

from functools import cache
from typing import Any

import pytest

from sweeper.trial import Breakdown, Fit, TrialSpec
from sweeper.worker import trial

BATCHES = {"resnet50": 32, "vit_b_16": 16, "vgg16": 8, "tiny-transformer": 32}


@cache
def trained(model: str, **choices: Any) -> Fit:
    found = trial.run(TrialSpec(model=model, batch_size=BATCHES[model], device="sim:a100-80gb", **choices))
    assert isinstance(found, Fit)
    return found


def most(model: str, **choices: Any) -> Breakdown:
    """The most that each kind held at any time."""
    holdings = trained(model, **choices).holdings
    assert holdings is not None
    return holdings


def state_bytes(held: Breakdown) -> int:
    return held.weights + held.gradients + held.optimizer


# Weights and gradients of 4 bytes, and what the optimizer keeps of each parameter.
TIMES = {"sgd": 2, "sgd-momentum": 3, "adagrad": 3, "rmsprop": 3, "adam": 4, "adamw": 4}


@pytest.mark.parametrize("optimizer", TIMES)
@pytest.mark.parametrize("model", BATCHES)
def test_training_takes_the_weights_several_times_before_any_activation(model: str, optimizer: str) -> None:
    """ "3 to 4 times the weights plus activations" is of Adam in fp32: weights, gradients, and two moments."""
    held = most(model, optimizer=optimizer)
    # Above the exact multiple by what the allocator does not split off large blocks, at most a MiB each.
    assert TIMES[optimizer] <= state_bytes(held) / held.weights < 1.04 * TIMES[optimizer]


@pytest.mark.parametrize("model", BATCHES)
def test_the_peak_of_training_is_that_and_the_activations(model: str) -> None:
    fit, held = trained(model, optimizer="adam"), most(model, optimizer="adam")
    together = state_bytes(held) + held.activations + held.inputs + held.buffers
    # Gradients grow while activations go, so the sum of what each holds at most is an upper bound, with workspaces.
    assert 0.6 * together < fit.peak_allocated_bytes < together + held.workspace


@pytest.mark.parametrize("model", BATCHES)
def test_half_the_bytes_of_a_number_are_half_the_memory(model: str) -> None:
    whole, half = most(model, optimizer="adam"), most(model, optimizer="adam", precision="bf16")
    assert 0.49 < half.weights / whole.weights < 0.53
    assert 0.49 < state_bytes(half) / state_bytes(whole) < 0.53
    assert 0.45 < half.activations / whole.activations < 0.6


# (the least and the most that is left of the activations)
@pytest.mark.parametrize(
    ("model", "least", "largest"), [("resnet50", 0.5, 0.56), ("vit_b_16", 0.58, 0.68), ("tiny-transformer", 0.6, 0.75)]
)
def test_autocast_halves_activations_alone_and_not_quite(model: str, least: float, largest: float) -> None:
    """What runs in fp32 all the same (norms, softmax, the loss) and the 16-bit copies of the weights are why not."""
    whole, mixed = most(model, optimizer="adam"), most(model, optimizer="adam", precision="amp-bf16")
    assert mixed.weights == whole.weights
    assert mixed.gradients == pytest.approx(whole.gradients, rel=0.02)
    assert mixed.optimizer == pytest.approx(whole.optimizer, rel=0.02)
    assert least < mixed.activations / whole.activations < largest


def test_autocast_saves_nothing_where_weights_are_the_larger_part() -> None:
    """VGG-16's 16-bit copies of 138 million weights are more than half of the activations of 8 images."""
    whole, mixed = trained("vgg16", optimizer="adam"), trained("vgg16", optimizer="adam", precision="amp-bf16")
    assert (
        most("vgg16", optimizer="adam", precision="amp-bf16").activations > most("vgg16", optimizer="adam").activations
    )
    assert mixed.peak_allocated_bytes > 0.95 * whole.peak_allocated_bytes


@pytest.mark.parametrize(
    ("model", "times"), [("resnet50", 6.0), ("vit_b_16", 6.0), ("vgg16", 3.5), ("tiny-transformer", 2.5)]
)
def test_inference_keeps_neither_gradients_nor_state_nor_activations(model: str, times: float) -> None:
    training, inference = trained(model, optimizer="adam"), trained(model, mode="inference")
    held = most(model, mode="inference")
    assert (held.gradients, held.optimizer) == (0, 0)
    assert held.weights == most(model, optimizer="adam").weights
    assert held.activations < most(model, optimizer="adam").activations / 2
    assert training.peak_allocated_bytes > times * inference.peak_allocated_bytes


# What is left of the activations with blocks computed again: the inputs of the blocks, and one block's inside.
@pytest.mark.parametrize(("model", "left"), [("resnet50", 0.6), ("vit_b_16", 0.25)])
def test_checkpointing_keeps_what_goes_into_a_block_and_no_more(model: str, left: float) -> None:
    kept, dropped = most(model, optimizer="adam"), most(model, optimizer="adam", checkpointing=True)
    assert dropped.activations < left * kept.activations
    assert dropped.weights == kept.weights
    assert dropped.optimizer == pytest.approx(kept.optimizer, rel=0.02)
    assert dropped.gradients == pytest.approx(kept.gradients, rel=0.02)


@pytest.mark.parametrize("model", BATCHES)
def test_accumulation_costs_nothing_but_the_gradients_that_stay(model: str) -> None:
    """The peak of four micro-batches is that of one, with the gradients already there when activations are fullest."""
    one, four = trained(model, optimizer="adam"), trained(model, optimizer="adam", accumulate=4)
    held = most(model, optimizer="adam")
    assert one.peak_allocated_bytes <= four.peak_allocated_bytes <= one.peak_allocated_bytes + 1.1 * held.gradients

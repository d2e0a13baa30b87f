"""No choice is accepted and ignored: each field of a trial changes what a step allocates, or is told why not."""

import dataclasses
from typing import Any

import pytest

from sweeper.trace import Trace
from sweeper.trial import TrialSpec
from sweeper.worker import trial

BASE: dict[str, dict[str, Any]] = {
    "small-cnn": {"model": "small-cnn"},
    "tiny-transformer": {"model": "tiny-transformer", "precision": "amp-bf16"},
}
# The field, the model it is tried on, and another value than its default.
CHANGES: list[tuple[str, str, Any]] = [
    ("model", "small-cnn", "mlp"),
    ("batch_size", "small-cnn", 9),
    ("model_args", "small-cnn", {"depth": 2}),
    ("image_size", "small-cnn", 32),
    ("seq_len", "tiny-transformer", 64),
    ("precision", "small-cnn", "amp-fp16"),
    ("precision", "small-cnn", "amp-bf16"),
    ("precision", "small-cnn", "fp16"),
    ("precision", "small-cnn", "bf16"),
    ("optimizer", "small-cnn", "sgd-momentum"),
    ("optimizer", "small-cnn", "adam"),
    ("optimizer", "small-cnn", "adamw"),
    ("optimizer", "small-cnn", "adagrad"),
    ("optimizer", "small-cnn", "rmsprop"),
    ("optimizer", "small-cnn", "adafactor"),
    ("optimizer_args", "small-cnn", {"momentum": 0.9}),
    ("mode", "small-cnn", "inference"),
    ("accumulate", "small-cnn", 2),
    ("checkpointing", "tiny-transformer", True),
    ("freeze", "small-cnn", ("0",)),
    ("channels_last", "small-cnn", True),
    ("attention", "tiny-transformer", "math"),
    ("attention", "tiny-transformer", "efficient"),
    ("steps", "small-cnn", 4),
]
ELSEWHERE = {
    "device": "where, not what: the card's kernels are in test_simulated",
    "card": "the same",
    "memory_limit_bytes": "what the allocator may have, not what it is asked",
    "alloc_conf": "how the allocator answers",
    "seed": "values, which a trace has none of",
    "config": "files of configurations are in test_libraries",
    "lora_rank": "needs an extra: test_altered",
    "compile": "refused on a card that is simulated: test_refusals",
}


def trace_of(**spec: Any) -> Trace:
    found = trial.trace(TrialSpec(**{"batch_size": 8, "device": "sim:a100-40gb", **spec}), spec.get("batch_size", 8))
    assert isinstance(found, Trace), found
    return found


def test_every_field_is_tried_here_or_elsewhere() -> None:
    fields = {field.name for field in dataclasses.fields(TrialSpec)}
    assert fields == {name for name, _, _ in CHANGES} | ELSEWHERE.keys()


@pytest.mark.parametrize(("name", "model", "value"), CHANGES)
def test_a_choice_changes_what_a_step_allocates(name: str, model: str, value: Any) -> None:
    base = BASE[model]
    plain, changed = trace_of(**base), trace_of(**{**base, name: value})
    assert (plain.events, plain.sizes) != (changed.events, changed.sizes)

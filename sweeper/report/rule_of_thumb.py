"""The rule that training takes the weights several times over, beside what was held: a sentence for the report.

The rule counts bytes of one parameter in fp32: 4 for the weight, 4 for its gradient, and what the optimizer keeps of
it.  It says nothing of activations, and it is of a model that is trained whole.
"""

from sweeper.record import Record
from sweeper.trial import Breakdown, TrialSpec
from sweeper.units import format_bytes

__all__ = ["rule_of_thumb", "times_the_weights"]

# Tensors of the parameter's own size and type that torch.optim keeps from the first step on, by optimizer.
_KEPT = {"sgd": 0, "sgd-momentum": 1, "adagrad": 1, "rmsprop": 1, "adam": 2, "adamw": 2}


def times_the_weights(spec: TrialSpec) -> int | None:
    """What weights, gradients and optimizer state are by the rule, in weights; None where the rule does not say."""
    whole = not spec.freeze and spec.lora_rank is None and not spec.optimizer_args
    if spec.mode != "train" or not whole or spec.precision == "fp8" or spec.optimizer not in _KEPT:
        return None
    return 2 + _KEPT[spec.optimizer]


def rule_of_thumb(record: Record) -> str | None:
    """What was held beside activations at the largest batch that fits, and what the rule makes of the weights."""
    spec = record.header.spec
    fits = [point for point in record.curve if point.outcome == "fit" and point.holdings is not None]
    if spec.mode != "train" or not fits:
        return None
    held = fits[-1].holdings
    assert held is not None
    state = held.weights + held.gradients + held.optimizer
    if not held.weights:
        return None
    rule = times_the_weights(spec)
    said = f"; the rule of thumb for {spec.optimizer} is {rule}" if rule is not None else ""
    return f"{_parts(held)}: {state / held.weights:.1f} times the weights before any activation{said}"


def _parts(held: Breakdown) -> str:
    named = [("weights", held.weights), ("gradients", held.gradients), ("optimizer state", held.optimizer)]
    return " + ".join(f"{name} {format_bytes(size)}" for name, size in named if size)

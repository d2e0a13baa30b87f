"""Where models come from.  One file a library, each with a ``build``; all of them return a ``Workload``.

A workload is what one training step needs besides the optimizer.  ``inputs`` are what the model is called with: a
tuple is spread over its positions, a dict over its keywords, anything else is the one argument.

Models and batches are made on the default device.  Under ``torch.device("meta")`` neither takes host memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.errors import UsageError

__all__ = ["Batch", "Workload", "call_model", "mean_of_outputs", "require_counts"]

Batch = tuple[Any, Any]  # (inputs, targets)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Return ``model(*inputs)`` for a tuple, ``model(**inputs)`` for a dict, ``model(inputs)`` for anything else."""
    if isinstance(inputs, tuple):
        return model(*inputs)
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(inputs)


@dataclass
class Workload:
    """A model with its batches and its loss.

    ``make_batch(size)`` returns (inputs, targets); ``loss(outputs, targets)`` returns a scalar to call backward on.
    ``tokens`` is how many one sample has, for models of sequences.  ``checkpoint`` is the library's own switch for
    computing activations again in backward; it returns what was wrapped, in words.  ``sizes`` are the fields of a
    ``ModelReport`` that say which inputs the model takes.  ``optimizer(parameters)`` makes the optimizer in place of
    ``--optimizer``; ``train_step(model, batch, optimizer)`` does forward, backward and step, and returns the loss or
    None.
    """

    model: nn.Module
    make_batch: Callable[[int], Batch]
    loss: Callable[[Any, Any], Tensor]
    forward: Callable[[nn.Module, Any], Any] = call_model
    tokens: int | None = None
    checkpoint: Callable[[], str] | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Callable[[list[nn.Parameter]], Any] | None = None
    train_step: Callable[[nn.Module, Batch, Any], Any] | None = None


def mean_of_outputs(outputs: Any, targets: Any) -> Tensor:
    """The loss of a model that comes without one: the mean of each floating-point output, added up.

    It sends a gradient to every output, which is what decides memory; its value means nothing.  ``targets`` are not
    used.  Raises ``UsageError`` when no output, in whatever tuples, lists and dicts, is floating-point.
    """
    means = [tensor.mean() for tensor in _tensors(outputs) if tensor.is_floating_point()]
    if not means:
        raise UsageError(
            f"the model returned {type(outputs).__name__} with no floating-point tensor to make a loss of",
            hint="return an object with model, make_batch and loss from the factory",
        )
    return torch.stack(means).sum() if len(means) > 1 else means[0]


def require_counts(**values: object) -> None:
    """Raises ``UsageError`` naming the first of ``values`` that is not a whole number of at least 1."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(
                f"{name} must be a whole number of at least 1, not {value!r}", hint=f"for example {name}=4"
            )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for item in value for tensor in _tensors(item)]

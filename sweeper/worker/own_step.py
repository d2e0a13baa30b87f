"""A training step of the user's own: ``train_step(model, batch, optimizer)`` does forward, backward and step itself.

All of it is one phase, ``train_step``, since nobody says where in it forward ends.  What is known of its parts comes
from PyTorch: a gradient is what autograd keeps, and what is made while an optimizer steps and stays is its state.

With a step or an optimizer of one's own some choices have nobody who would follow them; they are refused.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sweeper.errors import UsageError
from sweeper.trial import TrialSpec
from sweeper.worker.devices import Device, amp_dtype
from sweeper.worker.meter import Meter
from sweeper.worker.workload import Batch, Workload

__all__ = ["check_own", "make_own_optimizer", "own_step"]


def check_own(spec: TrialSpec, workload: Workload) -> None:
    """Raises ``UsageError`` for a choice that the workload's own optimizer or step would not follow."""
    if spec.mode != "train":
        return
    if workload.optimizer is not None and (spec.optimizer != "sgd" or spec.optimizer_args):
        raise UsageError(
            f"{spec.model} makes its own optimizer, which --optimizer and --optimizer-arg cannot change",
            hint="leave them out, or pass what it should be as --model-arg",
        )
    if workload.train_step is None:
        return
    for given, flag in ((spec.accumulate != 1, "--accumulate"), (amp_dtype(spec.precision), "--precision amp-*")):
        if given:
            raise UsageError(
                f"{spec.model} has its own train_step, which does not know of {flag}",
                hint="do it in train_step, and leave the flag out",
            )


def make_own_optimizer(spec: TrialSpec, workload: Workload, model: nn.Module) -> torch.optim.Optimizer:
    """What the workload's ``optimizer(parameters)`` makes; it gets those that are trained.

    Raises ``UsageError`` when it is no ``torch.optim.Optimizer``.
    """
    assert workload.optimizer is not None
    made: Any = workload.optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
    if not isinstance(made, torch.optim.Optimizer):
        raise UsageError(
            f"{spec.model}: optimizer(parameters) returned a {type(made).__name__}, not a torch.optim.Optimizer",
            hint="return one, such as torch.optim.AdamW(parameters)",
        )
    return made


def own_step(
    spec: TrialSpec,
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    device: Device,
    meter: Meter,
) -> Callable[[int, Batch], torch.Tensor | None]:
    """A step that moves the batch and leaves everything else to ``workload.train_step``, whose loss it returns."""
    assert workload.train_step is not None
    train_step = workload.train_step
    alive: dict[str, Any] = {}  # until the next step, as in the loop of sweeper's own

    def run(step: int, batch: Batch) -> torch.Tensor | None:
        with meter.phase("inputs", step):
            alive["batch"] = device.place_batch(batch)
            if meter.kinds is not None:
                meter.kinds.saw_inputs(alive["batch"])
        with meter.phase("train_step", step):
            alive["loss"] = loss = train_step(model, alive["batch"], optimizer)
        if loss is not None and (not isinstance(loss, torch.Tensor) or loss.numel() != 1):
            raise UsageError(
                f"{spec.model}: train_step returned a {type(loss).__name__} that is no loss",
                hint="return the loss, a tensor of one element, or None",
            )
        return loss

    return run

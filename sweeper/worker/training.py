"""The step loop: the same few lines on every device, each part between two readings of the device's peak.

One training step is, in this order: the batch moves to the device, forward, loss, backward, optimizer step, zero_grad.
As in an ordinary loop, the outputs, the loss and the batch stay referenced until the next step overwrites them, and
one autocast context covers forward and loss.  With accumulation all but the last two come once for each of the step's
batches, whose gradients add up.  An inference step is the batch and the forward, without gradients.  A step of the
user's own takes the place of all after the batch (``own_step``).
"""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import nn

from sweeper.trial import TrialSpec
from sweeper.worker.altering import altered
from sweeper.worker.attention_choice import choosing
from sweeper.worker.compiling import compile_model
from sweeper.worker.devices import Device
from sweeper.worker.meter import KindSizes, Meter, ModuleTrail
from sweeper.worker.optimizers import make_optimizer
from sweeper.worker.own_step import check_own, make_own_optimizer, own_step
from sweeper.worker.precision import batch_in, flags_of, model_in
from sweeper.worker.workload import Batch, Workload

__all__ = ["train"]


def train(spec: TrialSpec, workload: Workload, device: Device, meter: Meter) -> None:
    """Run ``spec.steps`` steps of ``workload`` on ``device``, measured by ``meter``."""
    training = spec.mode == "train"
    check_own(spec, workload)
    with device.build_context():
        workload, meter.facts = altered(workload, spec)
    with meter.phase("setup", 0):
        model = device.place(model_in(workload.model, spec.precision))
        model.train(training)
        optimizer = _optimizer(spec, workload, model, device) if training else None
        if spec.compile:
            compile_model(model)
        if not device.simulated:
            meter.kinds = KindSizes(model, optimizer)
            # Hooks of every module would be compiled with it, and its forward runs no module by itself.
            meter.trail = None if spec.compile else ModuleTrail(model)
    if not training:
        run_step = _inference_step(spec, workload, model, device, meter)
    elif workload.train_step is not None:
        run_step = own_step(spec, workload, model, optimizer, device, meter)
    else:
        run_step = _training_step(spec, workload, model, optimizer, device, meter)
    with meter.phase("inputs", 0), device.build_context():
        batch = batch_in(workload.make_batch(spec.batch_size), spec.precision)
    with flags_of(spec.precision), choosing(spec.attention), meter.trail.followed() if meter.trail else nullcontext():
        _run_steps(spec, run_step, batch, device, meter)


def _optimizer(spec: TrialSpec, workload: Workload, model: nn.Module, device: Device) -> torch.optim.Optimizer | None:
    if workload.optimizer is not None:
        optimizer: torch.optim.Optimizer | None = make_own_optimizer(spec, workload, model)
    else:
        optimizer = make_optimizer(spec, model.parameters(), device)
    if optimizer is not None:
        device.place_optimizer(optimizer)
    return optimizer


def _run_steps(
    spec: TrialSpec,
    run_step: Callable[[int, Batch], torch.Tensor | None],
    batch: Batch,
    device: Device,
    meter: Meter,
) -> None:
    with ExitStack() as watching:
        for step in range(spec.steps):
            if step == 1:  # the first loads kernels
                watching.enter_context(meter.watching_the_card())
            began = device.seconds()
            loss = run_step(step, batch)
            ended = device.seconds()
            seconds = ended - began if began is not None and ended is not None else None
            value = device.loss_value(loss) if loss is not None else None
            meter.end_step(seconds=seconds, loss=None if value is None else value * spec.accumulate)


def _training_step(
    spec: TrialSpec,
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    device: Device,
    meter: Meter,
) -> Callable[[int, Batch], torch.Tensor | None]:
    scaler = device.grad_scaler(enabled=spec.precision == "amp-fp16")
    # Kept between steps as the local variables of an ordinary loop are.
    alive: dict[str, Any] = {}

    def accumulate(step: int, batch: Batch) -> torch.Tensor:
        with meter.phase("inputs", step):
            alive["batch"] = device.place_batch(batch)
            inputs, targets = alive["batch"]
            if meter.kinds is not None:
                meter.kinds.saw_inputs(alive["batch"])
        with device.autocast(spec.precision):
            with meter.phase("forward", step):
                alive["outputs"] = workload.forward(model, inputs)
            with meter.phase("loss", step):
                loss = workload.loss(alive["outputs"], targets)
                loss = alive["loss"] = loss / spec.accumulate if spec.accumulate > 1 else loss
        with meter.phase("backward", step):
            scaler.scale(loss).backward()
        return loss

    def run(step: int, batch: Batch) -> torch.Tensor:
        for _ in range(spec.accumulate):
            loss = accumulate(step, batch)
        with meter.phase("step", step):
            if optimizer is not None:
                scaler.step(optimizer)
                scaler.update()
        with meter.phase("zero_grad", step):
            model.zero_grad(set_to_none=True)
        return loss

    return run


def _inference_step(
    spec: TrialSpec, workload: Workload, model: nn.Module, device: Device, meter: Meter
) -> Callable[[int, Batch], torch.Tensor | None]:
    alive: dict[str, Any] = {}

    def run(step: int, batch: Batch) -> None:
        with meter.phase("inputs", step):
            alive["inputs"] = device.place_batch(batch[0])
            if meter.kinds is not None:
                meter.kinds.saw_inputs(alive["inputs"])
        with meter.phase("forward", step), torch.no_grad(), device.autocast(spec.precision):
            alive["outputs"] = workload.forward(model, alive["inputs"])

    return run

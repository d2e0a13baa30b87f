"""One row's training step, as its source wrote it, on a simulated card without end: the trace at a batch.

``sweeper.worker.training`` is the step that sweeper measures; published measurements drop gradients elsewhere, keep
them, run backward inside autocast or step without ``foreach``.  The device and its tracing are the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from scoring.models import build
from scoring.rows import Job, Protocol, Unsupported
from sweeper.trace import Trace
from sweeper.worker.devices import map_tensors
from sweeper.worker.devices.simulated import SimulatedDevice
from sweeper.worker.models import Workload

__all__ = ["take_trace"]

_OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
}


def take_trace(job: Job, batch: int) -> Trace:
    """The trace of ``job`` at ``batch``.  Raises ``Unsupported``, or whatever the model raises on meta tensors."""
    device = SimulatedDevice(job.card, record=True)
    with (
        device.session(),
        torch.backends.cudnn.flags(enabled=True, benchmark=job.protocol.cudnn_benchmark, allow_tf32=True),
    ):
        with device.build_context():
            workload = build(job)
            made = workload.make_batch(batch)
        _train(job.protocol, workload, made, device)
    return device.trace(batch)


def _train(protocol: Protocol, workload: Workload, made: Any, device: SimulatedDevice) -> None:
    with device.phase("setup", 0):
        model = device.place(_prepared(workload.model, protocol)).train()
    with device.phase("step", 0):  # Adagrad makes its state here
        optimizer = _optimizer(model, protocol)
    scaler = device.grad_scaler(enabled=protocol.scales_gradients)
    loop = _Loop(protocol, workload, model, optimizer, scaler, device)
    with device.build_context():
        made = map_tensors(made, lambda tensor: _prepared_input(tensor, protocol))
    for step in range(protocol.steps):
        loop.run(step, made)


class _Loop:
    """What stays referenced from one step to the next is what a loop's local variables hold."""

    def __init__(
        self,
        protocol: Protocol,
        workload: Workload,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: Any,
        device: SimulatedDevice,
    ) -> None:
        self._protocol, self._workload, self._device = protocol, workload, device
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self._held: dict[str, Any] = {}

    def run(self, step: int, made: Any) -> None:
        protocol, device, held = self._protocol, self._device, self._held
        with device.phase("inputs", step):
            held["batch"] = device.place_batch(made)
        self._drop_gradients("before-forward", step)
        with device.autocast(protocol.precision):
            with device.phase("forward", step):
                held["outputs"] = self._workload.forward(self._model, held["batch"][0])
            with device.phase("loss", step):
                held["loss"] = self._workload.loss(held["outputs"], held["batch"][1])
            if protocol.backward_in_autocast:
                self._backward(step)
        if not protocol.backward_in_autocast:
            self._backward(step)
        with device.phase("step", step):
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._drop_gradients("after-step", step)
        if protocol.takes_maximum and isinstance(held["outputs"], torch.Tensor):
            with device.phase("loss", step):
                held["maximum"] = torch.max(held["outputs"], 1)

    def _backward(self, step: int) -> None:
        self._drop_gradients("before-backward", step)
        with self._device.phase("backward", step):
            self._scaler.scale(self._held["loss"]).backward()

    def _drop_gradients(self, now: str, step: int) -> None:
        if self._protocol.zero_grad == now:
            with self._device.phase("zero_grad", step):
                self._optimizer.zero_grad(set_to_none=not self._protocol.keeps_gradients)


def _optimizer(model: nn.Module, protocol: Protocol) -> torch.optim.Optimizer:
    if protocol.optimizer not in _OPTIMIZERS:
        raise Unsupported(f"optimizer {protocol.optimizer!r}")
    arguments = {"lr": 1e-3, **protocol.optimizer_args}
    return _OPTIMIZERS[protocol.optimizer]([p for p in model.parameters() if p.requires_grad], **arguments)


def _prepared(model: nn.Module, protocol: Protocol) -> nn.Module:
    if protocol.precision == "bf16":
        model = model.to(torch.bfloat16)
    return model.to(memory_format=torch.channels_last) if protocol.channels_last else model


def _prepared_input(tensor: torch.Tensor, protocol: Protocol) -> torch.Tensor:
    if protocol.precision == "bf16" and tensor.is_floating_point():
        tensor = tensor.to(torch.bfloat16)
    if protocol.channels_last and tensor.dim() == 4:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor

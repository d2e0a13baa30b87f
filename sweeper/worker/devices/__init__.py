"""Where a trial runs.  One class a kind of device, all with the same verbs; ``open_device`` finds it by name.

A device measures and executes; it decides nothing.  The order of calls in one trial::

    device = open_device(name, limit)   limits set, nothing built yet
    with device.session():              everything below runs inside
        model = device.place(model)     parameters and buffers take memory
        device.place_optimizer(made)    and so does state that is there from the start
        with device.phase("inputs", 0): batch = device.place_batch(batch)
        with device.phase("forward", 0), device.autocast(precision): ...
        device.usage(); device.reset_peaks()

``tests/contracts`` holds every device to the same laws.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar

import torch
from torch import nn

from sweeper.cards import Card
from sweeper.trial import Breakdown, CardMemory, DeviceReport, Fragmentation, Phase, Precision
from sweeper.worker.activity import Reading

__all__ = [
    "Device",
    "DeviceMissing",
    "FailureDetail",
    "Usage",
    "amp_dtype",
    "map_tensors",
    "open_device",
    "torchvision_version",
]


class DeviceMissing(Exception):
    """The device asked for is not on this machine; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes now, and the most since ``reset_peaks``."""

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDetail:
    """What the device knows about an error beyond its text; None is not known."""

    requested_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    operator: str | None = None
    module: str | None = None


class Device(ABC):
    """One place to run a trial.  ``capacity_bytes`` is what the trial can have, under the limit asked for."""

    simulated: ClassVar[bool] = False
    torch_device: torch.device  # where tensors live: cuda:0, cpu, meta
    capacity_bytes: int

    @abstractmethod
    def report(self) -> DeviceReport:
        """What the device is, for the journal's header."""

    def session(self) -> AbstractContextManager[None]:
        """Everything a trial does on the device happens inside."""
        return nullcontext()

    def build_context(self) -> AbstractContextManager[Any]:
        """Models and batches are made inside; on a simulated device they take no host memory."""
        return nullcontext()

    def place(self, model: nn.Module) -> nn.Module:
        return model.to(self.torch_device)

    def place_batch(self, batch: Any) -> Any:
        """Return ``batch`` (tensors in tuples, lists and dicts) on the device."""
        return map_tensors(batch, lambda tensor: tensor.to(self.torch_device))

    def place_optimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027 - most have nothing to do
        """Take note of the state that ``optimizer`` made with itself, as Adagrad does; it is over placed parameters."""

    @abstractmethod
    def autocast(self, precision: Precision) -> AbstractContextManager[Any]:
        """The forward and the loss run inside; does nothing unless ``precision`` is one of the ``amp-`` kind."""

    @abstractmethod
    def grad_scaler(self, *, enabled: bool) -> Any:
        """An object with ``scale(loss)``, ``step(optimizer)`` and ``update()``, as ``torch.amp.GradScaler``."""

    @contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        """Marks what runs inside; a simulated device labels allocations with it."""
        yield

    @abstractmethod
    def usage(self) -> Usage: ...

    @abstractmethod
    def reset_peaks(self) -> None: ...

    @abstractmethod
    def seconds(self) -> float | None:
        """A clock read after all queued work is done; None where nothing is computed."""

    def loss_value(self, loss: torch.Tensor) -> float | None:
        return float(loss.detach().item())

    def card_memory(self) -> CardMemory | None:
        """The driver's view of the card now, where there is a driver."""
        return None

    def activity(self) -> Reading | None:
        """How busy the card is now; None where there is no driver that could tell."""
        return None

    def allocator_retries(self) -> int | None:
        return None

    def fragmentation(self) -> Fragmentation | None:
        """The caching allocator's blocks now, where there is one; it takes longer than a step may."""
        return None

    def host_peak_bytes(self) -> int | None:
        """The most this process has held of the machine's memory, where the device is something else."""
        return None

    def breakdowns(self) -> tuple[Breakdown, Breakdown] | None:
        """(at the peak, the most each kind held) where the device sees every allocation; None elsewhere."""
        return None

    def notes(self) -> tuple[str, ...]:
        """What whoever reads the trial's outcome must know of how the device came by it; sentences."""
        return ()

    @abstractmethod
    def failure_detail(self, error: BaseException) -> FailureDetail:
        """What the device knows about ``error``."""


def map_tensors(batch: Any, change: Any) -> Any:
    """Return ``batch`` with ``change`` applied to every tensor in its tuples, lists and dicts."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: map_tensors(item, change) for key, item in batch.items()}
    if isinstance(batch, tuple | list):
        items = [map_tensors(item, change) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)  # a named tuple takes fields
    return batch


def amp_dtype(precision: Precision) -> torch.dtype | None:
    """The 16-bit type of an autocast precision; None for the others."""
    return {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}.get(precision)


def torchvision_version() -> str:
    """As its distribution says it; importing torchvision for it would take a second."""
    return metadata.version("torchvision")


def open_device(
    name: str, memory_limit_bytes: int | None = None, card: Card | None = None, alloc_conf: str | None = None
) -> Device:
    """Return the device of that name, its limit set; ``card`` is what to simulate where the name does not say it all.

    ``alloc_conf`` is what PyTorch's CUDA allocator is told, where there is one.  Raises ``DeviceMissing`` when it is
    not on this machine, and ``UnknownName`` for a card that is in no catalogue.
    """
    kind, _, rest = name.partition(":")
    if kind == "sim":
        from sweeper.worker.devices.simulated import SimulatedDevice

        return SimulatedDevice(card=card or rest, memory_limit_bytes=memory_limit_bytes, alloc_conf=alloc_conf)
    if kind == "cuda":
        from sweeper.worker.devices.cuda import CudaDevice

        return CudaDevice(index=int(rest or 0), memory_limit_bytes=memory_limit_bytes, alloc_conf=alloc_conf)
    if kind == "cpu":
        from sweeper.worker.devices.cpu import CpuDevice

        return CpuDevice(memory_limit_bytes=memory_limit_bytes)
    raise DeviceMissing(f"no device is called {name!r}")

"""A GPU that is not there: the same training step on meta tensors, against a simulated caching allocator.

The card gives its total memory, its context and its compute capability; ``tracing`` runs the step and tells of every
allocation; ``sweeper.allocator`` decides, and refuses when the card would.  No time passes and no values exist, so
``seconds`` and ``loss_value`` are None.  What was measured of a calibrated card goes in and out by
``sweeper.calibration``.
"""

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from sweeper import calibration
from sweeper.allocator import AllocatorConf, CachingAllocator
from sweeper.allocator_conf import words_in_force
from sweeper.cards import Card
from sweeper.cards import card as find_card
from sweeper.trace import Trace
from sweeper.trial import Breakdown, DeviceReport, Fragmentation, Phase, Precision
from sweeper.worker.devices import Device, FailureDetail, Usage, amp_dtype, map_tensors, torchvision_version
from sweeper.worker.optimizers import state_tensors
from sweeper.worker.tracing import (
    Ledger,
    SimulatedGradScaler,
    SimulatedOutOfMemory,
    Tracer,
    recurrent_weights,
    stepping_as_on_cuda,
)
from sweeper.worker.tracing.autocast import casting
from sweeper.worker.tracing.kernels import CudaKernels
from sweeper.worker.tracing.modules import ModulePaths
from sweeper.worker.tracing.selection import selecting
from sweeper.worker.tracing.values import MOST_INPUT_BYTES, Literals, Values

__all__ = ["SimulatedDevice"]


class SimulatedDevice(Device):
    """One card, of the catalogue where it is only named.

    With ``record`` its capacity is unlimited, and ``trace`` is what it was asked.

    Raises ``UnknownName`` when the catalogue has no such card.  The allocator is configured, as the real one, by
    ``PYTORCH_CUDA_ALLOC_CONF``, unless ``alloc_conf`` says how.  Without ``cudnn_workspaces`` convolutions take none,
    as on the stand-in runtime.

    With ``reductions`` sums over very many elements, and the gradients of embeddings of many tokens, take their
    scratch, as on the card.  It is left out otherwise because it follows no line over the batch, and a prediction is a
    line: in convnext_tiny at batch 64 on an A100 it is 0.3 % of the peak allocated and 1.4 % of the peak reserved.
    """

    simulated: ClassVar[bool] = True

    def __init__(
        self,
        card: str | Card,
        memory_limit_bytes: int | None = None,
        *,
        alloc_conf: str | None = None,
        record: bool = False,
        cudnn_workspaces: bool = True,
        reductions: bool = False,
    ) -> None:
        self._card = find_card(card) if isinstance(card, str) else card
        self._name = card if isinstance(card, str) else card.name
        self.torch_device = torch.device("meta")
        self.capacity_bytes = self._card.capacity_bytes
        limit_bytes = None
        if memory_limit_bytes is not None:
            self.capacity_bytes = min(self.capacity_bytes, memory_limit_bytes)
            limit_bytes = calibration.allocator_bytes(self._card, memory_limit_bytes)
        self._record, self._limit_bytes = record, limit_bytes
        self._cudnn_workspaces, self._reductions = cudnn_workspaces, reductions
        self._conf = words_in_force(alloc_conf)
        major, minor = self._card.compute_capability.split(".")
        self._compute_capability = int(major), int(minor)
        self.start_over(with_values=False)

    def start_over(self, *, with_values: bool) -> None:
        """Forget what ran, for a step to be run from its beginning; ``with_values`` small tensors have some."""
        unlimited = self._record
        self._allocator = CachingAllocator(
            capacity_bytes=None if unlimited else calibration.allocator_bytes(self._card, self._card.capacity_bytes),
            memory_fraction_limit_bytes=None if unlimited else self._limit_bytes,
            total_bytes=self._card.total_bytes,
            conf=AllocatorConf.parse(self._conf),
        )
        self._values = Values() if with_values else None
        self._ledger = Ledger(self._allocator)
        self._modules = ModulePaths()
        kernels = CudaKernels(
            self._compute_capability,
            multiprocessors=self._card.multiprocessors if self._reductions else None,
            cudnn_workspaces=self._cudnn_workspaces,
        )
        self._tracer = Tracer(self._ledger, self._modules, kernels, self._values)

    @property
    def has_values(self) -> bool:
        return self._values is not None

    def report(self) -> DeviceReport:
        return DeviceReport(
            device=f"sim:{self._name}",
            label=self._card.label,
            simulated=True,
            total_bytes=self._card.total_bytes,
            capacity_bytes=self.capacity_bytes,
            compute_capability=self._card.compute_capability,
            multiprocessors=self._card.multiprocessors,
            allocator_conf=self._conf or None,
            torch=torch.__version__,
            torchvision=torchvision_version(),
            notes=tuple(filter(None, [calibration.sentence(self._card)])),
        )

    @contextmanager
    def session(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._modules.followed())
            stack.enter_context(stepping_as_on_cuda(self._ledger))
            stack.enter_context(selecting(self._compute_capability, has_cudnn=self._card.vendor != "AMD"))
            stack.enter_context(casting())
            stack.enter_context(self._tracer)
            if self._values is not None:
                stack.enter_context(Literals(self._values, self._tracer.announce_literal))
            yield

    @contextmanager
    def build_context(self) -> Iterator[None]:
        """Meta tensors, not yet on the card.

        A constructor that needs values raises inside; build such a model on the CPU, outside, and ``place`` it.
        """
        with self._tracer.paused(), torch.device("meta"):
            yield

    def place(self, model: nn.Module) -> nn.Module:
        """Count every parameter and buffer, in the order in which ``nn.Module.to`` would move them."""
        with self._tracer.paused():
            _to_meta(model)
        self._modules.name(model)
        for path, module in _in_order_of_apply(model, ""):
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._tracer.announce(parameter, "to", path, "weights")
            for buffer in module._buffers.values():
                if buffer is not None:
                    self._tracer.announce(buffer, "to", path, "buffers")
            if isinstance(module, nn.RNNBase):
                self._flatten(module, path)
        return model

    def place_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for tensor in state_tensors(optimizer):
            self._tracer.announce(tensor, type(optimizer).__name__, "", "optimizer")

    def _flatten(self, module: nn.RNNBase, path: str) -> None:
        """Now, as in ``nn.Module.to``, and whenever the model itself asks for it, as some do in every forward."""

        def announce(space: torch.Tensor) -> None:
            self._tracer.announce(space, "_cudnn_rnn_flatten_weight", path, "weights")

        kept = weakref.ref(module)  # or the model would hold itself, and its weights outlive it

        def flatten_parameters() -> None:
            if (alive := kept()) is not None:
                with self._tracer.paused():
                    recurrent_weights.flatten(alive, announce)

        module._init_flat_weights()  # still names the tensors from before the move
        flatten_parameters()
        module.flatten_parameters = flatten_parameters  # type: ignore[method-assign]

    def place_batch(self, batch: Any) -> Any:
        return map_tensors(batch, self._placed_input)

    def autocast(self, precision: Precision) -> AbstractContextManager[Any]:
        dtype = amp_dtype(precision)
        return torch.autocast("cuda", dtype=dtype) if dtype else nullcontext()

    def grad_scaler(self, *, enabled: bool) -> SimulatedGradScaler:
        return SimulatedGradScaler(enabled=enabled)

    @contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        if phase == "inputs":
            self._modules.forget_graph()
        self._tracer.phase = phase
        self._ledger.mark(phase, step)
        yield

    def usage(self) -> Usage:
        allocator = self._allocator
        return Usage(
            allocated_bytes=allocator.allocated_bytes,
            reserved_bytes=self._reserved(allocator.reserved_bytes, allocator.allocated_bytes),
            peak_allocated_bytes=allocator.peak_allocated_bytes,
            peak_reserved_bytes=self._reserved(allocator.peak_reserved_bytes, allocator.peak_allocated_bytes),
        )

    def reset_peaks(self) -> None:
        self._allocator.reset_peaks()

    def seconds(self) -> float | None:
        return None

    def loss_value(self, loss: torch.Tensor) -> float | None:
        return None

    def allocator_retries(self) -> int | None:
        return self._allocator.retries

    def fragmentation(self) -> Fragmentation:
        """As simulated: what a calibration adds to the reserved peak lies in no block."""
        return Fragmentation(
            allocated_bytes=self._allocator.allocated_bytes,
            reserved_bytes=self._allocator.reserved_bytes,
            largest_free_bytes=self._allocator.largest_free_block_bytes,
        )

    def breakdowns(self) -> tuple[Breakdown, Breakdown]:
        return self._ledger.breakdowns()

    def notes(self) -> tuple[str, ...]:
        return self._values.notes() if self._values is not None else ()

    def failure_detail(self, error: BaseException) -> FailureDetail:
        if not isinstance(error, SimulatedOutOfMemory):
            return FailureDetail()
        return FailureDetail(
            requested_bytes=error.requested_bytes,
            free_bytes=error.free_bytes,
            allocated_bytes=error.allocated_bytes,
            reserved_bytes=self._reserved(error.reserved_bytes, error.allocated_bytes),
            operator=error.label.operator,
            module=error.label.module,
        )

    def trace(self, batch_size: int) -> Trace:
        """Return everything that was asked of the card so far, as the trace of a run at ``batch_size``."""
        return self._ledger.trace(batch_size)

    def _reserved(self, simulated_bytes: int, allocated_bytes: int) -> int:
        return calibration.reserved_bytes(self._card, simulated_bytes, at_least=allocated_bytes)

    def _placed_input(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._tracer.paused():
            placed = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad
            )
        self._tracer.announce(placed, "to", "", "inputs")
        if self._values is not None and placed.untyped_storage().nbytes() <= MOST_INPUT_BYTES:
            known = self._values.of(tensor)
            if known is not None:
                self._values.keep(placed, known)
        return placed


def _in_order_of_apply(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Children first, then the module: the order of ``nn.Module._apply``, torch/nn/modules/module.py."""
    for name, child in module.named_children():
        yield from _in_order_of_apply(child, f"{path}.{name}" if path else name)
    yield path, module


def _to_meta(model: nn.Module) -> None:
    """Move ``model`` in place.  Unlike ``model.to("meta")`` it keeps a shared parameter shared."""
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None or tensor.is_meta:
                    continue
                if id(tensor) not in moved:
                    bare = tensor.detach().to("meta")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    moved[id(tensor)] = nn.Parameter(bare, tensor.requires_grad) if is_parameter else bare
                tensors[name] = moved[id(tensor)]  # type: ignore[assignment]

"""What one trial measures of itself: the peaks of each phase, the kinds of what is held, where it is in the model."""

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from sweeper.trial import (
    KINDS,
    PHASES,
    Breakdown,
    CardActivity,
    CardMemory,
    Fragmentation,
    Kind,
    NotFinite,
    Phase,
    PhasePeak,
    StepRecord,
)
from sweeper.worker.activity import Sampler, summary
from sweeper.worker.devices import Device, map_tensors
from sweeper.worker.optimizers import state_tensors

__all__ = ["KindSizes", "Meter", "ModuleTrail"]


@dataclass
class Meter:
    """What one trial has measured so far; it is whole at any moment, also when the next line raises."""

    device: Device
    # The step in which the allocator's blocks are looked at.  That takes time, so the step is not for timing; and it
    # is the second where there are more, the first with the optimizer's state in its place.
    look_in: int = 1
    phase_now: Phase = "setup"
    step_now: int = 0
    phases: dict[Phase, tuple[int, int]] = field(default_factory=dict)  # the most allocated and reserved
    steps: list[StepRecord] = field(default_factory=list)
    card_before: CardMemory | None = None
    card_peak: CardMemory | None = None  # the reading with the largest process
    context_bytes: int | None = None
    fragmentation: Fragmentation | None = None
    activity: CardActivity | None = None
    kinds: "KindSizes | None" = None  # on real devices; a simulated one sees every allocation
    trail: "ModuleTrail | None" = None
    at_peak: Breakdown | None = None
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    facts: tuple[str, ...] = ()  # what was done to the model for the trial's choices
    _step_peak: tuple[int, int] = (0, 0)

    @contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        """Time inside belongs to ``phase``; its peak is read when it ends, however it ends."""
        self.phase_now, self.step_now = phase, step
        self.device.reset_peaks()
        try:
            with self.device.phase(phase, step):
                yield
        finally:
            self.read_peak()
        if step == self.look_in and phase in ("forward", "loss"):
            self._look_at_blocks()

    @contextmanager
    def watching_the_card(self) -> Iterator[None]:
        """``activity`` is what the driver says of the card inside, however that ends."""
        sampler = Sampler(self.device.activity)
        try:
            with sampler:
                yield
        finally:
            self.activity = summary(sampler.readings)

    def _look_at_blocks(self) -> None:
        found = self.device.fragmentation()
        if found is None:
            return
        if self.fragmentation is None or found.allocated_bytes >= self.fragmentation.allocated_bytes:
            self.fragmentation = found

    def read_peak(self) -> None:
        usage = self.device.usage()
        allocated, reserved = usage.peak_allocated_bytes, usage.peak_reserved_bytes
        before = self.phases.get(self.phase_now, (0, 0))
        self.phases[self.phase_now] = (max(before[0], allocated), max(before[1], reserved))
        self._step_peak = (max(self._step_peak[0], allocated), max(self._step_peak[1], reserved))
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
        if self.kinds is not None:
            self.kinds.saw(self.phase_now, usage.allocated_bytes)
            if allocated > self.peak_allocated_bytes:
                self.at_peak = self.kinds.breakdown(self.phase_now, allocated)
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, allocated)

    def end_step(self, *, seconds: float | None, loss: float | None) -> None:
        """``loss`` may be any number, NaN and the infinities too."""
        allocated, reserved = self._step_peak
        not_finite = _not_finite(loss)
        self.steps.append(
            StepRecord(
                seconds=seconds,
                loss=None if not_finite else loss,
                not_finite=not_finite,
                peak_allocated_bytes=allocated,
                peak_reserved_bytes=reserved,
            )
        )
        self._step_peak = (0, 0)
        self.read_card()

    def read_card(self) -> None:
        """The driver keeps no peak of a process, so it is asked after every step."""
        memory = self.device.card_memory()
        if memory is None or memory.process_bytes is None:
            return
        if self.card_peak is None or memory.process_bytes > (self.card_peak.process_bytes or 0):
            self.card_peak = memory
            self.context_bytes = max(0, memory.process_bytes - self.device.usage().reserved_bytes)

    def phase_peaks(self) -> tuple[PhasePeak, ...]:
        return tuple(
            PhasePeak(phase=p, peak_allocated_bytes=self.phases[p][0], peak_reserved_bytes=self.phases[p][1])
            for p in PHASES
            if p in self.phases
        )

    def breakdowns(self) -> tuple[Breakdown, Breakdown] | None:
        """(at the peak, the most each kind held), as far as a real device can tell."""
        if self.kinds is None or self.at_peak is None:
            return None
        return self.at_peak, self.kinds.holdings(self.at_peak.workspace)

    @property
    def module_now(self) -> str | None:
        """The module whose forward runs, or ran when the error came; None outside forward."""
        return self.trail.innermost if self.trail and self.phase_now in ("forward", "train_step") else None

    def failure_notes(self) -> tuple[str, ...]:
        """What else is known of a failure in backward, where no module's forward is running."""
        if self.phase_now != "backward" or self.kinds is None or self.kinds.last_gradient is None:
            return ()
        return (f"backward had come as far as the gradient of {self.kinds.last_gradient}",)

    def step_seconds(self) -> float | None:
        """The median step: without the first, which loads kernels and makes the optimizer's state, and without the one
        in which the allocator was looked at, where others are left.
        """
        times = {n: step.seconds for n, step in enumerate(self.steps) if step.seconds is not None}
        looked_in = self.look_in if self.fragmentation is not None else 0
        for left_out in ({0, looked_in}, {0}, set[int]()):
            if kept := [seconds for n, seconds in times.items() if n not in left_out]:
                return statistics.median(kept)
        return None


class ModuleTrail:
    """Which module's forward is running, for telling where an error came from on a real device."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._running: list[str] = []

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Count modules in and out while inside.  One that raises is never counted out, and so stays the innermost."""
        entering = register_module_forward_pre_hook(self._enter)
        leaving = register_module_forward_hook(self._leave)
        try:
            yield
        finally:
            entering.remove()
            leaving.remove()

    @property
    def innermost(self) -> str | None:
        """The dotted path of the module that is running, or was when the error came."""
        return self._running[-1] if self._running else None

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if name := self._names.get(id(module)):
            self._running.append(name)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._names.get(id(module)):
            self._running.pop()


class KindSizes:
    """Sizes of what can be counted exactly on a real device; the rest of a peak is told apart by when it came.

    Weights, buffers, gradients, optimizer state and inputs are tensors in hand.  What is allocated at the end of the
    loss and is none of these are activations.  What a peak holds beyond is workspace: it was gone before the phase
    ended.  A gradient counts from the moment autograd has finished it (a hook on each parameter).  Of the peak in a
    step of the user's own only weights, buffers, state and inputs are told apart; all else counts as activations.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._model, self._optimizer = model, optimizer
        self._weights, self._buffers = _bytes(model.parameters()), _bytes(model.buffers())
        self._of_gradients: dict[str, int] = {}  # of this step, by parameter: one that accumulates counts once
        self._inputs = self._activations = 0
        self._optimizer_bytes = self._state_bytes()  # some make it when they are made
        self.most: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self.most["weights"], self.most["buffers"] = self._weights, self._buffers
        self.most["optimizer"] = self._optimizer_bytes
        self.last_gradient: str | None = None
        self._input_places: set[int] = set()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._count(name))

    @property
    def _gradients(self) -> int:
        return sum(self._of_gradients.values())

    def _count(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            self._of_gradients[name] = _bytes([parameter.grad])
            self.last_gradient = name

        return hook

    def _state_bytes(self) -> int:
        """Of what the optimizer holds where the weights are; step counters that live on the CPU are not its memory."""
        if self._optimizer is None:
            return 0
        places = {parameter.device for parameter in self._model.parameters()}
        return _bytes(t for t in state_tensors(self._optimizer) if t.device in places and t.dim())

    def saw_inputs(self, batch: Any) -> None:
        tensors: list[torch.Tensor] = []
        map_tensors(batch, tensors.append)
        # Where the batch is copied to the device, the one of the step before is still there when the next arrives.
        places = {tensor.data_ptr() for tensor in tensors}
        before = self._inputs if places != self._input_places else 0
        self._inputs, self._input_places = _bytes(tensors), places
        self.most["inputs"] = max(self.most["inputs"], before + self._inputs)

    def saw(self, phase: Phase, allocated_bytes: int) -> None:
        if phase in ("step", "train_step"):
            self._optimizer_bytes = self._state_bytes()
        elif phase in ("forward", "loss"):
            known = self._weights + self._buffers + self._optimizer_bytes + self._inputs + self._gradients
            self._activations = max(0, allocated_bytes - known)
        elif phase == "zero_grad":
            self._of_gradients.clear()
        now: dict[Kind, int] = {
            "gradients": self._gradients,
            "optimizer": self._optimizer_bytes,
            "activations": self._activations,
        }
        self.most.update({kind: max(self.most[kind], size) for kind, size in now.items()})
        if phase == "train_step":  # which of them it has dropped, only the parameters tell
            held = {name for name, parameter in self._model.named_parameters() if parameter.grad is not None}
            self._of_gradients = {name: size for name, size in self._of_gradients.items() if name in held}

    def breakdown(self, phase: Phase, peak_bytes: int) -> Breakdown:
        """``peak_bytes`` of ``phase`` by kind; never more in sum, whatever the counters say."""
        left = peak_bytes
        sizes = {}
        activations = 0 if phase in ("step", "zero_grad", "setup", "inputs") else self._activations
        gradients = self._gradients
        if phase == "train_step":
            # Whether its peak was in forward, in backward or in the optimizer is not known; it was not at the end.
            known = self._weights + self._buffers + self._optimizer_bytes + self._inputs
            activations, gradients = max(0, peak_bytes - known), 0
        for kind, size in (
            ("weights", self._weights),
            ("buffers", self._buffers),
            ("optimizer", self._optimizer_bytes),
            ("inputs", self._inputs),
            # The peak of backward is near its beginning as a rule, when the activations are all there still; at the
            # optimizer's they are gone.
            ("activations", activations),
            ("gradients", gradients),
        ):
            sizes[kind] = min(size, left)
            left -= sizes[kind]
        return Breakdown(**sizes, workspace=left)

    def holdings(self, workspace_bytes: int) -> Breakdown:
        most: dict[str, int] = {kind: size for kind, size in self.most.items() if kind != "workspace"}
        return Breakdown(**most, workspace=workspace_bytes)


def _not_finite(loss: float | None) -> NotFinite | None:
    if loss is None or math.isfinite(loss):
        return None
    return "nan" if math.isnan(loss) else "inf" if loss > 0 else "-inf"


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)

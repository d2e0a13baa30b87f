"""The optimizers a job can be trained with, each made with the arguments that its constructor takes.

All are PyTorch's own but ``adamw-8bit``, which is torchao's.  What they hold, in bytes for each parameter of fp32 (and
half of it for weights of 16 bits): nothing for ``sgd``; 4 for ``sgd-momentum``, ``adagrad`` and ``rmsprop``; 8 for
``adam`` and ``adamw``; for ``adafactor`` 4 for each row and each column of a matrix, and 4 for each parameter of what
is none (Shazeer and Stern, 2018, arXiv 1804.04235); for ``adamw-8bit`` 2, and two scales of 4 for every 256 parameters,
in tensors of 4096 elements and more, and as ``adamw`` in smaller ones (Dettmers et al., 2021, arXiv 2110.02861).

``adamw-8bit`` compiles its arithmetic, one kernel or two for each shape of parameter.  On ``cuda`` that is what runs.
On ``cpu`` the same arithmetic runs as it is written, operator by operator: state is the same, what it takes while it
runs is more.  On a simulated card nothing is compiled, and what the kernels take is
``tracing.eight_bit``'s to say.

What this does not know: whether an argument's value is sensible.  Constructors check most of them, and what they
raise is what is refused.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sweeper.errors import UsageError
from sweeper.trial import Optimizer, Scalar, TrialSpec
from sweeper.worker.compiling import check_compiler
from sweeper.worker.devices import Device, map_tensors
from sweeper.worker.tracing import releases
from sweeper.worker.tracing.eight_bit import uncompiled

__all__ = ["LEARNING_RATE", "import_optimizer", "make_optimizer", "state_tensors"]

LEARNING_RATE = 1e-3

# Of no use in a step that is neither captured in a graph nor differentiated.
_NOT_TAKEN = frozenset({"self", "params", "capturable", "differentiable"})


@dataclass(frozen=True, slots=True)
class _Choice:
    """A constructor, and what is passed to it unless ``--optimizer-arg`` says otherwise."""

    find: Callable[[], Any]
    name: str
    defaults: Mapping[str, Scalar] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        return [name for name in inspect.signature(self.find()).parameters if name not in _NOT_TAKEN]


def _of_torch(name: str, **defaults: Scalar) -> _Choice:
    return _Choice(lambda: getattr(torch.optim, name), f"torch.optim.{name}", defaults)


def _eight_bit() -> Any:
    try:
        return importlib.import_module("torchao.optim").AdamW8bit
    except ImportError:
        raise UsageError("--optimizer adamw-8bit needs torchao", hint="pip install 'sweeper[fp8]'") from None


_CHOICES: Mapping[Optimizer, _Choice] = {
    "sgd": _of_torch("SGD"),
    "sgd-momentum": _of_torch("SGD", momentum=0.9),
    "adam": _of_torch("Adam"),
    "adamw": _of_torch("AdamW"),
    "adagrad": _of_torch("Adagrad"),
    "rmsprop": _of_torch("RMSprop"),
    "adafactor": _of_torch("Adafactor"),
    "adamw-8bit": _Choice(_eight_bit, "torchao.optim.AdamW8bit"),
}


def import_optimizer(spec: TrialSpec) -> None:
    """Import what the optimizer comes from, before anything is measured: on ``cpu`` a module's pages would count.

    Raises ``UsageError`` when it is not installed.
    """
    if spec.optimizer == "adamw-8bit" and spec.mode == "train":
        _eight_bit()
        importlib.import_module("torch._dynamo")  # which its step imports


def make_optimizer(spec: TrialSpec, parameters: Iterable[nn.Parameter], device: Device) -> torch.optim.Optimizer | None:
    """Return the optimizer of ``spec`` over those of ``parameters`` that are trained; None where none is.

    Raises ``UsageError`` for an argument that it does not take, one whose value it refuses, and a fused step that the
    device has no kernel for.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    choice = _CHOICES[spec.optimizer]
    given = dict(spec.optimizer_args)
    unknown = [name for name in given if name not in choice.arguments()]
    if unknown:
        raise UsageError(
            f"--optimizer {spec.optimizer} ({choice.name}) takes no argument {', '.join(unknown)}",
            hint=f"it takes {', '.join(choice.arguments())}",
        )
    if given.get("fused"):
        _check_fused(spec.optimizer, device)
    if not trained:
        return None
    kind = choice.find()
    if spec.optimizer == "adamw-8bit":
        kind = _eight_bit_on(device, kind)
    try:
        made: torch.optim.Optimizer = kind(trained, **{"lr": LEARNING_RATE, **choice.defaults, **given})
    except (TypeError, ValueError, RuntimeError) as problem:
        if isinstance(problem, torch.OutOfMemoryError):  # Adagrad makes its state here
            raise
        said = ", ".join(f"{name}={value}" for name, value in given.items()) or "no argument"
        first_line = str(problem).partition("\n")[0]
        raise UsageError(
            f"--optimizer {spec.optimizer} with {said}: {first_line}", hint="change the argument"
        ) from None
    return made


def _eight_bit_on(device: Device, kind: Any) -> Any:
    if device.torch_device.type == "cuda":
        check_compiler("--optimizer adamw-8bit")
        return kind
    return uncompiled(kind, arithmetic=not device.simulated)


# The operator of each fused step, by optimizer.
_FUSED = {
    "sgd": "_fused_sgd_",
    "sgd-momentum": "_fused_sgd_",
    "adam": "_fused_adam_",
    "adamw": "_fused_adamw_",
    "adagrad": "_fused_adagrad_",
}


def _check_fused(optimizer: Optimizer, device: Device) -> None:
    """Raises ``UsageError`` where this PyTorch has no such kernel for ``device``.

    On a simulated card it is PyTorch's CUDA build that counts, which is not always the one that is installed.
    """
    kernels = "CPU" if device.torch_device.type == "cpu" else "CUDA"
    if device.simulated:
        there = optimizer != "adagrad" or releases.ADAGRAD_IS_FUSED
    else:
        there = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_FUSED[optimizer]}", kernels)
    if not there:
        raise UsageError(
            f"torch {torch.__version__} has no fused {optimizer} for {kernels}", hint="leave fused=true out"
        )


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The tensors that ``optimizer`` holds between steps, on whatever device; of a wrapper those that it is made of."""
    found: list[torch.Tensor] = []
    for state in optimizer.state.values():
        map_tensors(state, found.append)
    for tensor in found:
        yield from _inner(tensor)


def _inner(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _inner(getattr(tensor, name))

"""Sees every operator below autograd and tells the ledger of each new storage, and of each storage's end."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from sweeper.trial import Kind, Phase
from sweeper.worker.tracing.card import Kernel
from sweeper.worker.tracing.deciding import Decider
from sweeper.worker.tracing.kernels import CudaKernels
from sweeper.worker.tracing.ledger import Ledger
from sweeper.worker.tracing.modules import ACCUMULATE_GRAD, ModulePaths
from sweeper.worker.tracing.values import Values

__all__ = ["Tracer"]

# What an operator's result holds, by the phase it runs in.  Gradients are relabelled when autograd stores them.
_KIND_IN: dict[Phase, Kind] = {
    "setup": "activations",
    "inputs": "inputs",
    "forward": "activations",
    "loss": "activations",
    "backward": "activations",
    "step": "optimizer",
    "zero_grad": "optimizer",
    "train_step": "activations",
}


# How constructors initialise weights, in place; without values there is nothing to do, and the meta kernels are Python.
_FILLS = frozenset(
    {
        torch.ops.aten.uniform_.default,
        torch.ops.aten.normal_.default,
        torch.ops.aten.erfinv_.default,
        torch.ops.aten.clamp_.default,
        torch.ops.aten.fill_.Scalar,
        torch.ops.aten.zero_.default,
    }
)


class _Held(weakref.ref[torch.UntypedStorage]):
    """A storage that the ledger counts, under its number there; ``key`` is its address in C++."""

    __slots__ = ("key", "number")
    key: int
    number: int


@dataclass(frozen=True, slots=True)
class _Operator:
    name: str
    allocates: bool  # a result that is neither an argument nor a view of one
    composite: bool  # made of other operators, which come here; only a wrapper's own code sends such a one
    kernel: Kernel | None


class Tracer(TorchDispatchMode):
    """Entered for a whole trial.  ``phase`` and ``step`` are set from outside and label what happens.

    With ``values`` small tensors have some, and what depends on values is decided by them.
    """

    def __init__(
        self, ledger: Ledger, modules: ModulePaths, kernels: CudaKernels, values: Values | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase = "setup"
        self._ledger = ledger
        self._modules = modules
        self._kernels = kernels
        self._operators: dict[OpOverload, _Operator] = {}
        self._live: dict[int, _Held] = {}
        self._scratch: list[int] = []
        self._paused = False
        self._values = values
        self._decider = Decider(values, self._run_by_values) if values is not None else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is made inside is not on the card: a model or a batch before it is placed."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def announce(self, tensor: torch.Tensor, operator: str, module: str, kind: Kind) -> None:
        """Count ``tensor``'s storage from now on, unless it is counted already or empty."""
        self._take(tensor, operator, module, kind)

    def scratch(self, size: int, operator: str) -> Callable[[], None]:
        """Take ``size`` bytes that no tensor stands for; call what is returned to give them back."""
        if size <= 0:
            return _nothing
        number = self.keep(size, operator)
        self._scratch.append(number)
        return lambda: self._give_back(number)

    def keep(self, size: int, operator: str) -> int:
        """Take ``size`` bytes that no tensor stands for and nobody gives back; returns their number."""
        return self._ledger.allocate(size, operator, self._module(), self.phase, "workspace")

    def empty_cache(self) -> None:
        """Have the allocator give back what is wholly free."""
        self._ledger.empty_cache()

    def announce_result(self, result: Any, func: OpOverload) -> None:
        """Count ``result`` now, before what its kernel takes next."""
        self._announce_results(result, self._operators[func].name)

    def announce_literal(self, tensor: torch.Tensor) -> None:
        """Count a tensor that was made of numbers written in Python, which no operator shows."""
        if not self._paused and self.phase != "setup":
            self._take(tensor, "tensor")

    def stores_gradient(self) -> bool:
        """Is autograd, just now, keeping a gradient as some parameter's ``.grad``?"""
        node = torch._C._current_autograd_node()
        return node is not None and node._sequence_nr() == ACCUMULATE_GRAD

    def number_only_scales(self) -> bool:
        """Adafactor reads the norms of parameters and of their updates, to scale by."""
        return self._ledger.optimizing is torch.optim.Adafactor

    def mark_gradient(self, gradient: torch.Tensor) -> None:
        """Say that ``gradient``, counted under another kind, is kept as a parameter's ``.grad``."""
        held = self._live.get(gradient.untyped_storage()._cdata)
        if held is not None:
            self._ledger.relabel(held.number, "gradients")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(one, torch.Tensor) and is_wrapper(one) for one in types):
            # It says itself, in Python, what it does with the tensors inside, and each of those operators comes here.
            return NotImplemented
        if self._paused or self.phase == "setup":  # what is on the card then, ``announce`` says
            if func in _FILLS and args[0].is_meta:
                return args[0]
            return func(*args, **kwargs)
        if self._decider is not None:
            return self._run_by_values(func, args, kwargs)
        return self._run(func, args, kwargs)

    def _run_by_values(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._decider is not None
        assert self._values is not None
        operator = self._operator(func)
        args = self._decider.without_masks(func, args)
        decided = None
        if self._decider.asks(func):
            with self._unwinding():
                decided = self._decider.answer(self, func, args, kwargs)
        if decided is None and operator.kernel is None:
            decided = self._values.results(func, args, kwargs)
        if decided is not None:
            self._announce_results(decided[0], operator.name)
            return decided[0]
        result = self._run(func, args, kwargs)
        self._values.follow(func, args, kwargs, result)
        return result

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = self._operator(func)
        if operator.composite:
            with self:
                return func.decompose(*args, **kwargs)
        if operator.kernel is None:
            result = func(*args, **kwargs)
        else:
            with self._unwinding():
                result = operator.kernel(self, func, args, kwargs)
        if operator.allocates:
            self._announce_results(result, operator.name)
        return result

    @contextmanager
    def _unwinding(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # As C++ does when it unwinds; a step that catches the error goes on with what it really holds.
            for number in tuple(self._scratch):
                self._give_back(number)
            raise

    def _give_back(self, number: int) -> None:
        self._scratch.remove(number)
        self._ledger.free(number)

    def _operator(self, func: OpOverload) -> _Operator:
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = self._learn(func)
        return operator

    def _learn(self, func: OpOverload) -> _Operator:
        returns = func._schema.returns
        kernel = self._kernels.kernel_of(func)
        return _Operator(
            name=func._schema.name.removeprefix("aten::").removeprefix("torchvision::"),
            allocates=any(value.alias_info is None for value in returns),
            composite=kernel is None and func._can_decompose(),
            kernel=kernel,
        )

    def _announce_results(self, result: Any, operator: str) -> None:
        if isinstance(result, torch.Tensor):
            self._take(result, operator)
        elif isinstance(result, tuple | list):
            for item in result:
                self._announce_results(item, operator)

    def _take(self, tensor: torch.Tensor, operator: str, module: str | None = None, kind: Kind | None = None) -> None:
        if not tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        size = storage.nbytes()
        if size == 0:
            return
        phase = self.phase
        if module is None:
            module = self._module()
        if kind is None:
            kind = self._kind_in(phase)
        number = self._ledger.allocate(size, operator, module, phase, kind)
        held = self._live[key] = _Held(storage, self._gone)
        held.key, held.number = key, number

    def _kind_in(self, phase: Phase) -> Kind:
        if phase in ("backward", "train_step") and self.stores_gradient():
            return "gradients"
        return "optimizer" if phase == "train_step" and self._ledger.optimizing is not None else _KIND_IN[phase]

    def _gone(self, held: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(held, _Held)
        del self._live[held.key]
        self._ledger.free(held.number)

    def _module(self) -> str:
        if torch._C._current_graph_task_id() == -1:
            return self._modules.in_forward()
        return self._modules.in_backward(torch._C._current_autograd_node())


def is_wrapper(kind: type) -> bool:
    """Does a tensor of this class hold nothing itself, but other tensors (``__tensor_flatten__``)?"""
    return hasattr(kind, "__tensor_flatten__")


def _nothing() -> None:
    return None

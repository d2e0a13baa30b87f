"""Values beside the trace: what small tensors hold, for models that decide by values what comes next.

Meta tensors have shapes and no values.  Detection asks for values all the time: which anchors match a box, how many of
them are foreground, which class a box is of.  Most of these follow from what is known without arithmetic on the model's
outputs: anchors, positions and masks that factories make, and the targets of the batch.

Theory of operation.  A meta storage whose bytes are known has a storage on the CPU beside it, of the same length.  Any
view of the one is the same view of the other, so views and operators that write in place need no care.  An operator
all of whose operands are known runs once more, on the CPU, outside the ledger, and what it returns is known; with an
unknown operand its results are unknown, and so is what it writes to.  Parameters and images are never known, so
neither is what a network computes.  ``deciding`` holds what happens when a value is asked for, known or not.

Bounds.  A result of more than ``MOST_BYTES`` is taken as unknown, an input of more than ``MOST_INPUT_BYTES`` too.
Random numbers are unknown, but for permutations, which are drawn.

What this does not know: values of parameters and buffers, what is written through NumPy, and an operator that the CPU
does not have for a type.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from sweeper.units import MIB

__all__ = ["MOST_BYTES", "MOST_INPUT_BYTES", "Literals", "Values", "assume", "tensors_in"]

aten = torch.ops.aten

MOST_BYTES = 32 * MIB
MOST_INPUT_BYTES = 1 * MIB

# Results that only the shape of the first operand decides.
_OF_A_SHAPE = frozenset(
    {
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
    }
)
_OVERWRITE = frozenset({aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default, aten.copy_.default})
_NOTHING_YET = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.empty_permuted.default,
        aten.empty_like.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)
_SHAPED = _OF_A_SHAPE | _NOTHING_YET
_DRAWN = frozenset({aten.randperm.default})

# The indices of an order that values decide: where they are unknown, things are taken to be in order already.
_ORDERS = frozenset({aten.topk.default, aten.sort.default, aten.sort.stable})


class _Known(weakref.ref[torch.UntypedStorage]):
    """A meta storage whose bytes are ``values``; ``key`` is its address in C++."""

    __slots__ = ("key", "values")
    key: int
    values: torch.UntypedStorage


class Values:
    """What is known.  ``assumed`` are the sentences of what was assumed where it was not, each once."""

    def __init__(self) -> None:
        self.assumed: dict[str, None] = {}
        self._known: dict[int, _Known] = {}

    def assume(self, tensor: torch.Tensor, values: torch.Tensor, sentence: str) -> None:
        """``tensor``, where it is not known, holds ``values``: ``sentence`` says so."""
        if self.of(tensor) is None:
            self.keep(tensor, values)
            self.assumed.setdefault(sentence)

    def notes(self) -> tuple[str, ...]:
        """What was assumed, as one sentence; none where nothing was."""
        if not self.assumed:
            return ()
        return (f"assumed, for the most it can take: {'; '.join(self.assumed)}",)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """``tensor`` on the CPU, sharing what is kept: writing to it writes what is known.  None where unknown."""
        if not tensor.is_meta:
            return tensor
        if not tensor.numel():  # there is nothing to know
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        known = self._known.get(tensor.untyped_storage()._cdata)
        return None if known is None else _same_view(tensor, known.values)

    def keep(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """``tensor``, the whole of its meta storage, holds ``values``, of its shape, from now on."""
        storage = tensor.untyped_storage()
        if not 0 < storage.nbytes() <= MOST_BYTES or tensor.shape != values.shape:
            self._forget(tensor)
            return
        copy = values.untyped_storage()
        if not _only_view(values) or values.stride() != tensor.stride() or copy.nbytes() != storage.nbytes():
            copy = torch.UntypedStorage(storage.nbytes(), device="cpu")
            _same_view(tensor, copy).copy_(values)
        key = storage._cdata
        known = self._known[key] = _Known(storage, self._gone)
        known.key, known.values = key, copy

    def follow(self, func: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        """``func`` has returned ``result`` on meta: know it, if it can be known, and what was written to."""
        results = [tensor for tensor in tensors_in(result) if tensor.is_meta]
        facts = _facts(func)
        written = facts.written(args, kwargs)
        if not results and not written:
            return
        if func in _OVERWRITE and _is_whole(args[0]) and args[0].is_meta:
            self._overwrite(func, args, kwargs)
            return
        if written:
            if not self._are_known(written) or not self._again(func, args, kwargs):
                for tensor in written:
                    self._forget(tensor)
            return
        if facts.views or func in _NOTHING_YET:
            return  # a view knows what its base knows
        if func in _ORDERS and self.of(args[0]) is None:
            self._assume_order(func, args, kwargs, result)
            return
        computed = None
        if all(_bytes(tensor) <= MOST_BYTES for tensor in results):
            computed = self._again(func, args, kwargs)
        found = list(tensors_in(computed[0])) if computed else []
        for place, tensor in enumerate(results):
            if len(found) == len(results):
                self.keep(tensor, found[place])
            else:
                self._forget(tensor)

    def results(self, func: OpOverload, args: Any, kwargs: Any) -> tuple[Any] | None:
        """The meta results of ``func``, known, in a tuple of one; None where ``follow`` is to look at them.

        Their layout is that of the CPU, which chooses as CUDA does where it has no kernel of its own
        (``TensorIterator``); it saves the meta kernel, which often is Python.
        """
        facts = _facts(func)
        if facts.views or facts.writes or facts.makes or facts.drawn or not facts.returns or func in _SHAPED:
            return None  # of what is made the meta kernel tells first how large it is
        operands = list(tensors_in((args, kwargs)))
        if not self._are_known(operands) or not _on_meta(operands, kwargs) or _may_be_large(operands):
            return None
        computed = self._again(func, args, kwargs)
        return None if computed is None else (self._placed(computed[0]),)

    def _placed(self, result: Any) -> Any:
        if isinstance(result, tuple | list):
            return type(result)([self._placed(item) for item in result])
        if not isinstance(result, torch.Tensor):
            return result
        placed = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="meta")
        self.keep(placed, result)
        return placed

    def compute(self, func: OpOverload, args: Any, kwargs: Any) -> tuple[Any] | None:
        """What ``func`` returns on the CPU, in a tuple of one; None where an operand is unknown."""
        return self._again(func, args, kwargs)

    def _again(self, func: OpOverload, args: Any, kwargs: Any) -> tuple[Any] | None:
        facts = _facts(func)
        if facts.drawn:
            return None
        operands = list(tensors_in((args, kwargs)))
        if func in _OF_A_SHAPE:
            shaped = torch.empty((), dtype=args[0].dtype, device="cpu").expand(args[0].shape)
            args, operands = (shaped, *args[1:]), []
        elif not self._are_known(operands) or not (operands or facts.makes):
            return None
        on_host = {name: self._on_host(value) for name, value in kwargs.items()}
        if kwargs.get("device") is not None or facts.makes:
            on_host["device"] = torch.device("cpu")
        try:
            return (func(*self._on_host(args), **on_host),)
        except (RuntimeError, NotImplementedError, IndexError):
            return None  # a type that the CPU has no kernel for

    def _are_known(self, tensors: Sequence[torch.Tensor]) -> bool:
        known = self._known
        return all(
            not tensor.is_meta or not tensor.numel() or tensor.untyped_storage()._cdata in known for tensor in tensors
        )

    def _on_host(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.of(value)
        if isinstance(value, tuple | list):
            return type(value)([self._on_host(item) for item in value])
        return value

    def _overwrite(self, func: OpOverload, args: Any, kwargs: Any) -> None:
        target = args[0]
        written = [self.of(tensor) for tensor in tensors_in(args[1:])]
        if any(tensor is None for tensor in written) or _bytes(target) > MOST_BYTES:
            self._forget(target)
            return
        host = torch.empty(target.shape, dtype=target.dtype, device="cpu")
        self.keep(target, func(host, *self._on_host(args[1:])))

    def _assume_order(self, func: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        indices = result[1]
        given = {"dim": -1, **kwargs}
        names = [argument.name for argument in func._schema.arguments]
        given.update(zip(names, args, strict=False))
        shape = [1] * max(1, indices.dim())
        self._forget(result[0])
        if _bytes(indices) > MOST_BYTES or not indices.dim():
            self._forget(indices)
            return
        shape[given["dim"]] = indices.shape[given["dim"]]
        self.keep(indices, torch.arange(shape[given["dim"]], device="cpu").view(shape).expand(indices.shape))

    def _forget(self, tensor: torch.Tensor) -> None:
        self._known.pop(tensor.untyped_storage()._cdata, None)

    def _gone(self, known: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(known, _Known)
        if self._known.get(known.key) is known:
            del self._known[known.key]


class Literals(TorchFunctionMode):
    """Numbers written in Python, which reach no operator that a meta tensor would show: ``torch.tensor`` and its kin.

    While inside, ``assume`` of this module tells these values.
    """

    def __init__(self, values: Values, announce: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._values, self._announce = values, announce

    def __enter__(self) -> "Literals":
        _CURRENT.append(self._values)
        return super().__enter__()  # type: ignore[no-untyped-call,no-any-return]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _CURRENT.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _LITERALS and result.is_meta:
            data = args[_LITERALS[func]] if len(args) > _LITERALS[func] else kwargs.get("data", kwargs.get("obj"))
            if not isinstance(data, torch.Tensor) and data is not None:
                self._announce(result)
                if not any(tensor.is_meta for tensor in tensors_in(data)):
                    self._values.keep(result, torch.tensor(data, dtype=result.dtype, device="cpu"))
        return result


_CURRENT: list[Values] = []


def assume(tensor: torch.Tensor, values: torch.Tensor, sentence: str) -> None:
    """Say what a model knows of its own outputs: ``tensor`` holds ``values`` where it would be unknown in a trace.

    Does nothing anywhere else.  ``sentence`` says it to whoever reads the outcome.
    """
    if _CURRENT and tensor.is_meta:
        _CURRENT[-1].assume(tensor, values, sentence)


_LITERALS = {torch.tensor: 0, torch.as_tensor: 0, torch.asarray: 0, torch.Tensor.new_tensor: 1}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in ``value``'s tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))


def _same_view(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    bare = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return bare.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


@dataclass(frozen=True, slots=True)
class _Facts:
    """What an operator's schema says of it."""

    returns: bool
    views: bool  # a result shares memory with an operand
    makes: bool  # tensors out of numbers
    drawn: bool  # at random
    writes: tuple[tuple[int, str], ...]  # the places and names of operands that it writes to

    def written(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The meta operands that are written to."""
        operands = (args[place] if place < len(args) else kwargs.get(name) for place, name in self.writes)
        return [tensor for operand in operands for tensor in tensors_in(operand) if tensor.is_meta]


@cache
def _facts(func: OpOverload) -> _Facts:
    arguments = func._schema.arguments
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments)
    return _Facts(
        returns=bool(func._schema.returns),
        views=any(value.alias_info is not None for value in func._schema.returns),
        makes=not takes_tensors and any(argument.name == "device" for argument in arguments),
        drawn=torch.Tag.nondeterministic_seeded in func.tags and func not in _DRAWN,
        writes=tuple(
            (place, argument.name)
            for place, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
    )


def _on_meta(operands: Sequence[torch.Tensor], kwargs: Any) -> bool:
    """Are the results of an operator on these on meta?"""
    device = kwargs.get("device")
    return torch.device(device).type == "meta" if device is not None else any(each.is_meta for each in operands)


def _may_be_large(operands: Sequence[torch.Tensor]) -> bool:
    """May operands that are broadcast to each other make more than ``MOST_BYTES``?"""
    elements = max(tensor.numel() for tensor in operands)
    if len(operands) == 2:
        with suppress(RuntimeError):  # they are not
            elements = torch.broadcast_shapes(*(tensor.shape for tensor in operands)).numel()
    return bool(elements * max(tensor.element_size() for tensor in operands) > MOST_BYTES)


def _only_view(tensor: torch.Tensor) -> bool:
    """Does nobody but ``tensor``, a local of the caller's, hold its storage?"""
    users = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return bool(tensor.storage_offset() == 0) and users <= _HELD_BY_ONE


# As in ``kernels``: what the count says of a storage that one tensor owns differs between releases.
_HELD_BY_ONE = torch._C._storage_Use_Count(torch.empty(1, device="cpu").untyped_storage()._cdata)


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()

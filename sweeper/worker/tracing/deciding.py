"""Where a value decides what comes next: the true answer where the value is known, a stated assumption where not.

The assumptions are the most that can happen, so that what follows takes the most memory it can: a condition holds
wherever it is asked, every box survives suppression, all elements differ.  Each is said once, with the operator.  There
is no such bound for a number that a program reads (``item`` of anything but a bool, ``tolist``, NumPy), nor for the
lengths of a repetition: those stay the errors that they are on meta tensors.

An index that is a mask becomes the positions where it holds first, as in CUDA's kernels (``expandTensors``,
aten/src/ATen/native/IndexingUtils.h).  File names as in ``kernels``; torchvision's under torchvision/csrc/ops.

Not known: what ``nonzero`` and the sorts take as scratch beside their results (cub's, a page and more), and the scratch
of ``unique``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing.card import Card
from sweeper.worker.tracing.values import Values, tensors_in

__all__ = ["Decider"]

aten = torch.ops.aten

_INDEXED = frozenset({aten.index.Tensor, aten.index_put.default, aten.index_put_.default})
_MASKS = (torch.bool, torch.uint8)

_HOLDS = "a condition on values that are not known holds everywhere"
_SURVIVES = "non-maximum suppression keeps every box"
_DIFFERS = "values that are not known are all different"

# torchvision's mask of one box against 64 others: threadsPerBlock, cuda/nms_kernel.cu
_BOXES_A_WORD = 64


class Decider:
    """Answers for operators whose results depend on values, by ``values``; ``run`` runs one more on the card."""

    def __init__(self, values: Values, run: Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._values, self._run = values, run
        self._asking: dict[OpOverload, bool] = {}

    def asks(self, func: OpOverload) -> bool:
        """Can a value decide the result of ``func``?"""
        known = self._asking.get(func)
        if known is None:
            tagged = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
            named = func is aten._to_copy.default or func._schema.name == "torchvision::nms"
            known = self._asking[func] = (tagged or named) and func not in _INDEXED
        return known

    def answer(self, card: Card, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """The result of ``func``, which ``asks``, in a tuple of one; None where nobody can say."""
        if func is aten._to_copy.default:
            return self._copy_to_host(args, kwargs)
        name = func._schema.name
        if not any(tensor.is_meta for tensor in tensors_in((args, kwargs))):
            return None
        if name == "torchvision::nms":
            _suppression(card, args[0])
        known = self._values.compute(func, args, kwargs)
        if known is None:
            assume = _ASSUMED.get(name)
            known = assume(self, *args, **kwargs) if assume else None
        return None if known is None else (self._on_card(known[0], is_nonzero=name == "aten::nonzero"),)

    def without_masks(self, func: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """``args`` of an operator on indices, with each mask among these turned into positions."""
        if func not in _INDEXED or not any(_is_mask(index) for index in args[1]) or _fills(args):
            return args
        positions: list[torch.Tensor | None] = []
        for index in args[1]:
            if _is_mask(index):
                found = self._run(aten.nonzero.default, (index,), {})
                positions.extend(aten.select.int(found, 1, axis) for axis in range(index.dim()))
            else:
                positions.append(index)
        return (args[0], positions, *args[2:])

    def _copy_to_host(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        to = kwargs.get("device")
        if to is None or torch.device(to).type != "cpu" or not args[0].is_meta:
            return None
        known = self._values.of(args[0])
        return None if known is None else (known.to(kwargs.get("dtype") or known.dtype, copy=True),)

    def _on_card(self, result: Any, *, is_nonzero: bool) -> Any:
        """On meta, and known.  The positions of ``nonzero`` lie axis by axis: cuda/Nonzero.cu."""
        if isinstance(result, tuple | list):
            return type(result)([self._on_card(item, is_nonzero=False) for item in result])
        if not isinstance(result, torch.Tensor) or result.is_meta:
            return result
        shape = result.t().shape if is_nonzero else result.shape
        placed = torch.empty(shape, dtype=result.dtype, device="meta")
        self._values.keep(placed, result.t() if is_nonzero else result)
        return placed.t() if is_nonzero else placed

    def _assume(self, sentence: str) -> None:
        self._values.assumed.setdefault(sentence)

    def _bool(self, tensor: torch.Tensor) -> tuple[Any] | None:
        if tensor.dtype != torch.bool:
            return None
        self._assume(_HOLDS)
        return (True,)

    def _equal(self, first: torch.Tensor, second: torch.Tensor) -> tuple[Any]:
        self._assume(_HOLDS)
        return (first.shape == second.shape,)

    def _everywhere(self, tensor: torch.Tensor) -> tuple[Any]:
        self._assume(_HOLDS)
        return (torch.ones((), dtype=torch.bool, device="cpu").expand(tensor.shape).nonzero(),)

    def _selected(self, tensor: torch.Tensor, mask: torch.Tensor) -> tuple[Any]:
        self._assume(_HOLDS)
        count = torch.broadcast_shapes(tensor.shape, mask.shape).numel()
        return (torch.empty(count, dtype=tensor.dtype, device="meta"),)

    def _every_box(self, boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> tuple[Any]:
        self._assume(_SURVIVES)
        return (torch.arange(boxes.shape[0], device="cpu"),)

    def _all_different(
        self, tensor: torch.Tensor, sorted: bool = True, inverse: bool = False, counts: bool = False
    ) -> tuple[Any]:
        self._assume(_DIFFERS)
        whole = torch.empty(tensor.numel(), dtype=tensor.dtype, device="meta")
        inverses = torch.empty(tensor.shape if inverse else 0, dtype=torch.int64, device="meta")
        counted = torch.empty(tensor.numel() if counts else 0, dtype=torch.int64, device="meta")
        return ((whole, inverses, counted),)


_ASSUMED: dict[str, Callable[..., tuple[Any] | None]] = {
    "aten::_local_scalar_dense": Decider._bool,
    "aten::equal": Decider._equal,
    "aten::nonzero": Decider._everywhere,
    "aten::masked_select": Decider._selected,
    "aten::_unique2": Decider._all_different,
    "torchvision::nms": Decider._every_box,
}


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in _MASKS


def _fills(args: tuple[Any, ...]) -> bool:
    """Is a number written where one mask holds?  No positions then: ``canDispatchToMaskedFill``, the same file."""
    if len(args) < 3 or args[2].is_meta or args[2].numel() != 1:
        return False
    given = [index for index in args[1] if index is not None]
    return len(given) == 1 and _is_mask(given[0])


def _suppression(card: Card, boxes: torch.Tensor) -> None:
    """Sorted scores, their order and the sorted boxes, then a bit for each pair: ``nms_kernel``, cuda/nms_kernel.cu."""
    count = boxes.shape[0]
    order = [count * boxes.element_size(), count * 8]
    sizes = [*order, boxes.numel() * boxes.element_size(), count * -(-count // _BOXES_A_WORD) * 8]
    taken = [card.scratch(size, "nms") for size in sizes]
    for give_back in reversed(taken):
        give_back()

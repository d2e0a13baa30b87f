"""Operators whose results are shaped like an operand, made here because their meta kernels are Python and slow.

What they allocate is one block in the operand's layout, on CUDA as on meta (``TensorIterator`` keeps the strides of
dense operands that agree); where operands differ the meta kernel decides.
"""

from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing.card import Card
from sweeper.worker.tracing.convolution import copy_into

__all__ = ["backward", "binary", "dropout", "dropout_backward", "in_place", "like", "roll", "unary"]


def like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.empty_like``, whose meta kernel is Python, for the usual case of a dense tensor."""
    dtype = dtype or tensor.dtype
    if tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=dtype, device="meta")
    if _is_channels_last(tensor):
        return torch.empty(tensor.shape, dtype=dtype, device="meta", memory_format=torch.channels_last)
    return torch.empty_like(tensor, dtype=dtype)


def backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """One result in the layout of the two operands, when these agree; the meta kernel is Python and slow."""
    gradient, saved = args[0], args[1]
    alike = (
        gradient.is_meta
        and saved.is_meta
        and gradient.shape == saved.shape
        and gradient.dtype == saved.dtype
        and gradient.stride() == saved.stride()
    )
    # Two whose meta kernel is put together from others, which take the layout of what was saved.
    decomposed = func in (torch.ops.aten.hardtanh_backward.default, torch.ops.aten.hardswish_backward.default)
    if alike or (decomposed and _first_decides(gradient, saved)):
        return like(gradient)
    return func(*args, **kwargs)


def unary(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """One result in the layout of the only operand; the other arguments are numbers."""
    floating = args[0].is_meta and args[0].is_floating_point()
    numbers = all(argument is None or isinstance(argument, int | float) for argument in (*args[1:], *kwargs.values()))
    return like(args[0]) if floating and numbers else func(*args, **kwargs)


def binary(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """One result in the layout of the first operand, where that decides: dense, and as large as the result."""
    return like(args[0]) if _first_decides(args[0], args[1]) else func(*args, **kwargs)


def _first_decides(first: torch.Tensor, second: torch.Tensor | float) -> bool:
    """As far as no axis of the first is of one row: ``reorder_dimensions``, aten/src/ATen/TensorIterator.cpp."""
    if not first.is_meta or not first.is_floating_point():
        return False
    if not first.is_contiguous() and not _is_channels_last(first):
        return False
    if not isinstance(second, torch.Tensor):
        return not isinstance(second, complex)
    if not second.is_meta or second.dtype != first.dtype or second.dim() > first.dim():
        return False
    if second.shape == first.shape:
        return second.stride() == first.stride() or min(first.shape, default=0) > 1
    fits = all(size in (1, whole) for size, whole in zip(second.shape[::-1], first.shape[::-1], strict=False))
    return fits and min(first.shape) > 1


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def in_place(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Changes the values of its first operand, and nothing else."""
    return args[0] if args[0].is_meta else func(*args, **kwargs)


def dropout(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The mask first: ``dropout_cuda``, cuda/Dropout.cu."""
    source = args[0]
    if not source.is_meta:
        return func(*args, **kwargs)
    mask = like(source, torch.bool)
    card.announce_result(mask, func)
    return like(source), mask


def dropout_backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """As a pointwise operator; the mask's type does not count."""
    gradient, mask = args[0], args[1]
    alike = gradient.is_meta and mask.is_meta and gradient.stride() == mask.stride()
    return like(gradient) if alike else func(*args, **kwargs)


def roll(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """One axis after the other, each into a new tensor: ``roll_common``, native/TensorTransformations.h."""
    source, shifts = args[0], args[1]
    if not source.is_meta:
        return func(*args, **kwargs)
    give_back = copy_into(card, source, torch.contiguous_format, func)
    for _ in shifts[1:]:
        passing = card.scratch(source.numel() * source.element_size(), "roll")
        give_back()
        give_back = passing
    result = torch.empty(source.shape, dtype=source.dtype, device="meta")
    card.announce_result(result, func)
    give_back()
    return result

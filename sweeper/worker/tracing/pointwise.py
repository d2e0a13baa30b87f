"""Operators whose results are shaped like an operand, made here because their meta kernels are Python and slow.

What they allocate is one block in the operand's layout, on CUDA as on meta (``TensorIterator`` keeps the strides of
dense operands that agree); where operands differ the meta kernel decides.
"""

from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing.card import Card
from sweeper.worker.tracing.convolution import copy_into

__all__ = ["backward", "dropout", "dropout_backward", "in_place", "like", "roll", "unary"]


def like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.empty_like``, whose meta kernel is Python, for the usual case of a dense tensor."""
    dtype = dtype or tensor.dtype
    if tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")
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
    return like(gradient) if alike else func(*args, **kwargs)


def unary(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """One result in the layout of the only operand."""
    floating = args[0].is_meta and args[0].is_floating_point()
    return like(args[0]) if floating else func(*args, **kwargs)


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

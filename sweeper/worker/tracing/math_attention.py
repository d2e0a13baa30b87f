"""Attention without a fused kernel: products, a softmax and a mask, each a tensor of its own.

``_scaled_dot_product_attention_math`` and ``_safe_softmax``, aten/src/ATen/native/transformers/attention.cpp (read in
2.14, held against the binaries' histories of allocations).  Run as it stands, that C++ would see the dispatch mode and
add its mask out of place, so it is written again here, line for line where a line allocates.

16-bit inputs are computed in fp32 unless ``torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp`` says otherwise.

Not known: the scratch of ``all`` over rows of keys so long, for so few queries, that several blocks share one.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing.attention import added_mask
from sweeper.worker.tracing.card import Card

__all__ = ["attend", "safe_softmax"]

aten = torch.ops.aten

Dropout = Callable[[torch.Tensor, float, bool], torch.Tensor]


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    *,
    enable_gqa: bool,
    dropout: Dropout,
) -> torch.Tensor:
    """The attention of ``query`` to ``key`` over ``value``; ``dropout`` is what CUDA runs for ``aten::dropout``."""
    if mask is not None:
        mask = added_mask(mask, query.dtype)
    # Two functions because C++ has two: what the inner one made is gone before the outer one drops the weights.
    return _attend(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, dropout)[0]


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    dropout: Dropout,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = query.dtype
    wide_query, wide_key, wide_value = _widened(query), _widened(key), _widened(value)
    factor = math.sqrt(query.shape[-1] ** -0.5 if scale is None else abs(scale))
    scaled = wide_query * (-factor if scale is not None and scale < 0 else factor)
    if is_causal:
        if mask is not None:
            raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
        mask = torch.ones((query.shape[-2], key.shape[-2]), dtype=torch.bool, device="meta").tril()
        mask = added_mask(mask, scaled.dtype)
    every_key, every_value = _for_every_head(scaled, wide_key, wide_value, enable_gqa)
    weights = torch.matmul(scaled, every_key.transpose(-2, -1) * factor)
    if mask is not None:
        weights.add_(mask)
    weights = aten._safe_softmax.default(weights, -1)
    if dropout_p > 0:
        weights = dropout(weights, dropout_p, True)
    # The last argument of make_tuple first, as GCC evaluates them.
    returned = weights.to(dtype)
    return torch.matmul(weights, every_value).to(dtype), returned


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    reduced = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.float() if reduced and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed() else tensor


def _for_every_head(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``pre_process_group_query_attention_input``: shared heads are written out, once for each that shares them."""
    if not enable_gqa or query.shape[-3] == key.shape[-3] == value.shape[-3]:
        return key, value
    heads = query.shape[-3]
    return key.repeat_interleave(heads // key.shape[-3], -3), value.repeat_interleave(heads // value.shape[-3], -3)


def safe_softmax(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The softmax, whose rows that are all masked are then filled: which elements are masked, which rows, a zero."""
    source = args[0]
    if not source.is_meta:
        return func(*args, **kwargs)
    dtype = (args[2] if len(args) > 2 else kwargs.get("dtype")) or source.dtype
    result = torch.empty(source.shape, dtype=dtype, device="meta")
    card.announce_result(result, func)
    rows = source.numel() // max(1, source.shape[args[1]])
    taken = [card.scratch(size, "_safe_softmax") for size in (source.numel(), rows, dtype.itemsize)]
    for give_back in reversed(taken):
        give_back()
    return result

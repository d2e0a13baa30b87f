"""cuDNN's fused attention: where PyTorch prefers it, what it refuses, and what it allocates.

From 2.10 on ``priority_order`` (transformers/cuda/sdp_utils.cpp) puts it before flash attention on compute capability
9.0, 10.0 and 10.3, if cuDNN is newer than 9.15.0; 2.6 and 2.9 never come to it by themselves.  The checks below are
those of ``can_use_cudnn_attention`` there.  ``_cudnn_attention_forward`` and ``_cudnn_attention_backward``
(transformers/cuda/attention.cu, attention_backward.cu) make the tensors, ``run_cudnn_SDP_*`` (cudnn/MHA.cpp) takes the
workspace.  Read in 2.14 and held against its binary.

The backward's workspace has two parts.  cuDNN's frontend, which is compiled into PyTorch, asks for the rows' sums of
dO * O and for an accumulator of dQ, both fp32 and unpadded: ``CompositeSDPABackwardNode``
(cudnn_frontend/node/scaled_dot_product_flash_attention.h, 1.2x).  Not known: what the engine that cuDNN chooses asks
for on top, in either direction; it is taken to be nothing.
"""

import math
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing import releases
from sweeper.worker.tracing.attention import heads_agree
from sweeper.worker.tracing.card import Card

__all__ = ["attend", "backward", "comes_first", "forward"]

aten = torch.ops.aten

_PREFERRED_ON = ((9, 0), (10, 0), (10, 3))
_LARGEST_GRID = 65535
_FP32_BYTES = 4


def comes_first(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    dropout_p: float,
    enable_gqa: bool = False,
    compute_capability: tuple[int, int],
) -> bool:
    """Does the card prefer cuDNN's attention, and can it run on these?"""
    return (
        compute_capability in _PREFERRED_ON
        and releases.cudnn_attention_comes_first()
        and torch.backends.cuda.cudnn_sdp_enabled()
        and _accepts_types(query, key, value, mask)
        and _accepts_shapes(query, key, value, dropout_p)
        and heads_agree(query, key, value, enable_gqa=enable_gqa)
        and _has_backward(query, key, value)
    )


def _accepts_types(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """``check_dtypes_low_precision``, ``check_attn_mask_shape``, ``check_last_dim_stride_equals_1_dense``."""
    if query.dtype not in (torch.float16, torch.bfloat16) or not query.dtype == key.dtype == value.dtype:
        return False
    if any(tensor.stride(-1) != 1 and tensor.shape[-1] != 1 for tensor in (query, key, value)):
        return False
    if mask is None:
        return True
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    return (
        not mask.requires_grad
        and (mask.stride(-1) == 1 or mask.shape[-1] == 1)
        and mask.shape[-2] in (1, queries)
        and mask.shape[-1] in (1, keys)
        and (mask.dim() == 2 or (mask.dim() == 4 and mask.shape[0] in (1, batch) and mask.shape[1] in (1, heads)))
    )


def _accepts_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float) -> bool:
    """``check_cudnn_tensor_shapes``, ``check_cudnn_dropout``."""
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    return (
        0 < batch <= _LARGEST_GRID
        and 0 < heads <= _LARGEST_GRID
        and queries > 0
        and keys > 1
        and max(width, value.shape[3]) <= 256
        and width % 8 == value.shape[3] % 8 == 0
        and math.floor(16 * dropout_p) == 16 * dropout_p
        and not (dropout_p > 0 and queries == 1)
    )


def _has_backward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """``check_cudnn_d256_bprop_head_dim``: above 128 the backward knows two pairs of widths."""
    widths = query.shape[3], value.shape[3]
    return not _learns(query, key, value) or max(widths) <= 128 or widths in ((192, 128), (256, 256))


def _learns(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """The logsumexp is kept only for a backward: ``scaled_dot_product_attention``, transformers/attention.cpp."""
    learns = _learns(query, key, value)
    return aten._scaled_dot_product_cudnn_attention.default(  # type: ignore[no-any-return]
        query, key, value, mask, learns, dropout_p, is_causal, False, scale=scale
    )[0]


def forward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Seed and offset first, on the card with dropout and without; then the result, in the query's layout."""
    query, key, value, _, learns = args[:5]
    if not query.is_meta:
        return func(*args, **kwargs)
    seed, offset = (torch.empty((), dtype=torch.int64, device="meta") for _ in range(2))
    result = _like_query(query, value.shape[3])
    rows = query.shape[:3]
    logsumexp = torch.empty(rows, dtype=torch.float32, device="meta") if learns else None
    card.announce_result((seed, offset, result, logsumexp), func)
    return result, logsumexp, None, None, query.shape[2], key.shape[2], seed, offset, None


def _like_query(query: torch.Tensor, width: int) -> torch.Tensor:
    """Of the query's shape but for the heads' width, its axes in the same order: ``alloc_with_matching_layout``."""
    if query.shape[3] == width:
        return torch.empty_like(query)
    shape = (*query.shape[:3], width)
    axes = sorted(range(4), key=lambda axis: query.stride(axis), reverse=True)
    whole = torch.empty([shape[axis] for axis in axes], dtype=query.dtype, device="meta")
    return whole.permute([axes.index(axis) for axis in range(4)])


def backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The gradients, a copy of the incoming one if its last axis is not in steps of one, the workspace."""
    gradient, query, key, value = args[:4]
    if not query.is_meta:
        return func(*args, **kwargs)
    results = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    card.announce_result(results, func)
    stepped = gradient.stride(-1) != 1
    copy = card.scratch(stepped * gradient.numel() * gradient.element_size(), "cudnn_attention_gradient")
    batch, heads, queries, width = query.shape
    rows = batch * heads * queries
    card.scratch(rows * (1 + width) * _FP32_BYTES, "cudnn_attention_workspace")()
    copy()
    return results

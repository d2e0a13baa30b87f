"""Composite operators that choose other kernels on CUDA than on meta: dropout, attention, softmax, linear.

These are Python kernels on the key ``AutocastIPU``, which nothing in PyTorch uses: above autograd, where the composite
C++ would choose, and below the casts of ``autocast``, because the choice depends on the dtype after them.  The key is
open only inside ``selecting``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import torch
from torch._C import DispatchKey

from sweeper.worker.tracing import cudnn_attention, math_attention, recurrent_selection, releases
from sweeper.worker.tracing.attention import added_mask, aligned, heads_agree
from sweeper.worker.tracing.autocast import dispatch_key_open

__all__ = ["AttentionKernel", "attention_kernel", "selecting"]

aten = torch.ops.aten

_KEY: DispatchKey = DispatchKey.AutocastIPU  # type: ignore[attr-defined]
_KEY_SET = torch._C.DispatchKeySet(_KEY)
_LIBRARIES: list[Any] = []  # a registration ends with its library

_compute_capability = (8, 0)
_has_cudnn = True


@contextmanager
def selecting(compute_capability: tuple[int, int], *, has_cudnn: bool = True) -> Iterator[None]:
    """Choose kernels as on a card of ``compute_capability`` while inside; AMD's, which shares numbers, has no cuDNN."""
    global _compute_capability, _has_cudnn
    _register()
    recurrent_selection.forget_dropout_state()
    before = _compute_capability, _has_cudnn
    _compute_capability, _has_cudnn = compute_capability, has_cudnn
    try:
        with dispatch_key_open(_KEY):
            yield
    finally:
        _compute_capability, _has_cudnn = before


@cache
def _register() -> None:
    through = torch.library.Library("_", "IMPL", _KEY.name)
    through.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL", _KEY.name)
    library.impl("dropout", _dropout)
    library.impl("scaled_dot_product_attention", _attention)
    library.impl("linear", _linear)
    library.impl("softmax.int", _softmax)
    library.impl("log_softmax.int", _log_softmax)
    for name, kernel in recurrent_selection.composites(_outside, lambda: _compute_capability):
        library.impl(name, kernel)
    _LIBRARIES.extend((through, library))


def _outside(operator: Any, *args: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
        return operator(*args)


def _dropout(source: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """The fused kernel, which saves a mask of one byte an element.

    ``is_fused_kernel_acceptable``, aten/src/ATen/native/Dropout.cpp.
    """
    if source.is_meta and train and 0 < p < 1 and source.numel() > 0:
        return aten.native_dropout.default(source, p, train)[0]  # type: ignore[no-any-return]
    with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
        return aten.dropout.default(source, p, train)  # type: ignore[no-any-return]


def _linear(source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Of an input that cannot be flattened: the product, then the bias added in place.

    ``linear``, aten/src/ATen/native/Linear.cpp, which adds out of place when it sees a dispatch mode
    (``isTensorSubclassLike``).
    """
    with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
        if bias is None or not source.is_meta or source.dim() == 2 or (source.dim() > 2 and source.is_contiguous()):
            return aten.linear.default(source, weight, bias)  # type: ignore[no-any-return]
        return torch.matmul(source, weight.t()).add_(bias)


def _softmax(source: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _softmax_of(aten.softmax.int, aten._softmax.default, source, dim, dtype)


def _log_softmax(source: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _softmax_of(aten.log_softmax.int, aten._log_softmax.default, source, dim, dtype)


def _softmax_of(composite: Any, kernel: Any, source: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    """From half to float the kernel casts as it reads; from bfloat16 the cast is a tensor of its own.

    ``softmax`` and ``log_softmax``, aten/src/ATen/native/SoftMax.cpp.
    """
    if source.is_meta and source.dtype == torch.float16 and dtype == torch.float32:
        return kernel(source, dim, True)  # type: ignore[no-any-return]
    with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
        return composite(source, dim, dtype)  # type: ignore[no-any-return]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The fused kernel that the card would choose: ``scaled_dot_product_attention``, transformers/attention.cpp."""
    if not query.is_meta:
        with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
            return aten.scaled_dot_product_attention.default(  # type: ignore[no-any-return]
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    kernel = attention_kernel(
        query,
        key,
        value,
        attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        compute_capability=_compute_capability,
        has_cudnn=_has_cudnn,
    )
    if kernel == "cudnn":
        added = None if attn_mask is None else added_mask(attn_mask, query.dtype)
        return cudnn_attention.attend(query, key, value, added, dropout_p, is_causal, scale)
    if kernel == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if kernel == "efficient":
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
        return math_attention.attend(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa=enable_gqa, dropout=_dropout
        )


AttentionKernel = Literal["cudnn", "flash", "efficient", "math"]


def attention_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool = False,
    compute_capability: tuple[int, int],
    has_cudnn: bool = True,
) -> AttentionKernel:
    """The first that can run, in the order of ``select_sdp_backend``, transformers/cuda/sdp_utils.cpp.

    Fused kernels take tensors of four axes.  Those that ``torch.nn.attention.sdpa_kernel`` forbids are left out; where
    none is left this raises as PyTorch does.  That 2.14 lets one head serve all queries without ``enable_gqa`` is not
    known here.
    """
    inputs = (query, key, value)
    if any(tensor.dim() != 4 for tensor in inputs):
        return _math_if_allowed()
    if has_cudnn and cudnn_attention.comes_first(
        *inputs, mask, dropout_p=dropout_p, enable_gqa=enable_gqa, compute_capability=compute_capability
    ):
        return "cudnn"
    if mask is None and flash_can_run(
        *inputs,
        dropout_p=dropout_p,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        compute_capability=compute_capability,
    ):
        return "flash"
    if efficient_can_run(*inputs, enable_gqa=enable_gqa, compute_capability=compute_capability):
        return "efficient"
    return _math_if_allowed()


def _math_if_allowed() -> AttentionKernel:
    if not torch.backends.cuda.math_sdp_enabled():
        raise RuntimeError("No available kernel. Aborting execution.")
    return "math"


def flash_can_run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool = False,
    compute_capability: tuple[int, int],
) -> bool:
    """``can_use_flash_attention``, cuda/sdp_utils.cpp: 16-bit, sm80 and later, heads of at most 256.

    A causal mask must be square: ``check_flash_causal_non_square_seqlens``.  With ``enable_gqa`` several heads of the
    query may share one of the key and value: ``check_batch_size_and_num_heads_dense``.
    """
    width = query.shape[-1]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    # check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120
    small_shared_memory = compute_capability in ((8, 6), (8, 9), (12, 0), (12, 1))
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.dtype == key.dtype == value.dtype
        and compute_capability >= (8, 0)
        and width == key.shape[-1] == value.shape[-1]
        and width <= 256
        and not (learns and small_shared_memory and (192 < width <= 224 or (width > 224 and dropout_p > 0)))
        and not (is_causal and query.shape[2] != key.shape[2])
        and heads_agree(query, key, value, enable_gqa=enable_gqa)
        and _plain(query, key, value)
    )


def efficient_can_run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    enable_gqa: bool = False,
    compute_capability: tuple[int, int],
) -> bool:
    """``can_use_mem_efficient_attention``, cuda/sdp_utils.cpp: fp32 and fp16, bfloat16 from sm80; heads aligned.

    ``check_head_dim_size_mem_efficient``: heads of a multiple of 16 bytes (on tensor cores; 4 bytes for fp32 before
    sm80).
    """
    modern = compute_capability >= (8, 0)
    dtypes = (torch.float32, torch.float16) + ((torch.bfloat16,) if modern else ())
    if query.dtype == torch.float32:
        aligned = 4 if modern else 1
    else:
        aligned = 8 if compute_capability >= (7, 5) else 4 if compute_capability >= (7, 0) else 1
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dtype in dtypes
        and query.dtype == key.dtype == value.dtype
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % aligned == 0
        and value.shape[-1] % aligned == 0
        and heads_agree(query, key, value, enable_gqa=enable_gqa and releases.EFFICIENT_SHARES_HEADS)
        and _plain(query, key, value)
    )


def _plain(*tensors: torch.Tensor) -> bool:
    """Not empty, the last axis in steps of one element."""
    return all(tensor.numel() > 0 and tensor.stride(-1) == 1 for tensor in tensors)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Heads are padded to a multiple of 8; ``pad_last_dim`` and ``post_process_flash_output``, attention.cpp."""
    width = query.shape[-1]
    scale = width**-0.5 if scale is None else scale
    if missing := -width % 8:
        query, key, value = (torch.nn.functional.pad(tensor, (0, missing)) for tensor in (query, key, value))
    result: torch.Tensor = aten._scaled_dot_product_flash_attention.default(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return result[..., :width] if missing else result


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """The logsumexp is kept only for a backward: attention.cpp."""
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    if mask is not None:
        mask = aligned(added_mask(mask, query.dtype)).expand(*query.shape[:3], key.shape[2])
    return aten._scaled_dot_product_efficient_attention.default(  # type: ignore[no-any-return]
        query, key, value, mask, learns, dropout_p, is_causal, scale=scale
    )[0]

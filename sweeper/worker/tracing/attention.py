"""What the fused attention kernels allocate beside their results: seeds, accumulators, the backward's workspaces.

``_flash_attention_*`` and ``_efficient_attention_*`` are in aten/src/ATen/native/transformers/cuda/attention.cu and
attention_backward.cu; the sizes come from flash_attn/flash_api.cpp and mem_eff_attention/kernel_backward.h beside
them (PyTorch 2.14), and agree with what PyTorch's own host code asks of the allocator.

Not known: which of its compiled tiles the memory-efficient backward takes where shared memory is short (before sm80,
sm86, sm89); the tiles of ``_tile`` are those of sm80.  Flash attention's split over the keys, taken when the batch is
too small to fill the card, is left out: its accumulators are not what a largest batch runs out of.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing import releases
from sweeper.worker.tracing.card import Card
from sweeper.worker.tracing.convolution import copy_into

__all__ = ["added_mask", "aligned", "efficient", "efficient_backward", "flash", "flash_backward", "heads_agree"]

_FP32_BYTES = 4


def added_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask of booleans as one to be added, from two scalars: ``convert_boolean_attn_mask_``, attention.cpp."""
    if mask.dtype != torch.bool:
        return mask
    allowed, forbidden = (torch.scalar_tensor(value, dtype=dtype, device="meta") for value in (0.0, float("-inf")))
    return torch.where(mask, allowed, forbidden)


def heads_agree(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, enable_gqa: bool) -> bool:
    """One batch and as many heads, or heads that share: ``check_batch_size_and_num_heads_dense``, sdp_utils_cpp.h."""
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
        return False
    heads, shared = query.shape[1], key.shape[1]
    return heads == shared or (enable_gqa and shared > 0 and heads % shared == 0)


def aligned(mask: torch.Tensor) -> torch.Tensor:
    """Rows in steps of eight elements, as the memory-efficient kernel wants them: ``pad_bias<8>``, attention.cpp."""
    keys = mask.shape[-1]
    if all(stride % 8 == 0 for stride in mask.stride()[:-1]):
        return mask
    return torch.nn.functional.pad(mask, (0, 8 - keys % 8))[..., :keys]


def efficient(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Seed and offset come first, on the CPU when there is dropout; 16-bit heads above 128 accumulate in fp32."""
    result, logsumexp, seed, offset = func(*args, **kwargs)
    dropout = _argument(func, args, kwargs, "dropout_p") > 0
    if dropout or releases.EFFICIENT_SEEDS_ON_CPU:
        seed, offset = (torch.empty((), dtype=torch.int64, device="cpu") for _ in range(2))
    for tensor in (seed, offset, result, logsumexp):
        card.announce_result(tensor, func)
    if result.dtype != torch.float32 and result.shape[-1] > 128:
        card.scratch(result.numel() * _FP32_BYTES, "efficient_attention_accumulator")()
    return result, logsumexp, seed, offset


def efficient_backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """A copy of the incoming gradient if it is in another layout, gradients, ``delta``, workspace.

    Where heads share keys and values, the gradients of those are made for every head and then added up.

    ``delta`` is the rowsum of dO * O; in fp32 the product is a tensor of its own.
    """
    gradient, query, key = args[0], args[1], args[2]
    give_back = copy_into(card, gradient.transpose(1, 2), torch.contiguous_format, func)
    results = func(*args, **kwargs)
    card.announce_result(results, func)
    batch, heads, queries, _ = query.shape
    rows_bytes = batch * heads * queries * _FP32_BYTES
    expanded = _every_heads_gradients(card, query, key)
    if query.dtype == torch.float32:
        product = card.scratch(gradient.numel() * _FP32_BYTES, "efficient_attention_delta")
        delta = card.scratch(rows_bytes, "efficient_attention_delta")
        if heads > 1 and queries > 1:
            rowsum, delta = delta, card.scratch(rows_bytes, "efficient_attention_delta")
            rowsum()
        product()
    else:
        delta = card.scratch(rows_bytes, "efficient_attention_delta")
    size = batch * heads * _workspace_bytes(queries, key.shape[2], query.shape[3], query.dtype)
    workspace = card.scratch(size, "efficient_attention_workspace")
    for done in (workspace, delta, *expanded, give_back):
        done()
    return results


def flash(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """With dropout the state of the random numbers is made twice: ``mha_fwd``, flash_attn/flash_api.cpp."""
    results = func(*args, **kwargs)
    for tensor in results[:2]:
        card.announce_result(tensor, func)
    if releases.FLASH_SEEDS_ON_CPU:
        return *results[:6], *(torch.empty((), dtype=torch.int64, device="cpu") for _ in range(2)), results[8]
    if _argument(func, args, kwargs, "dropout_p") > 0:
        seed = results[6]
        first = card.scratch(seed.numel() * seed.element_size(), "flash_attention_seed")
        card.announce_result(results[7], func)
        card.announce_result(seed, func)
        first()
    return results


def flash_backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Copies, gradients, the rows' sums and dQ's accumulator in fp32, padded: ``mha_bwd``, flash_attn/flash_api.cpp.

    Where heads share keys and values, the gradients of those are made for every head and then added up.
    """
    gradient, query, key, result = args[0], args[1], args[2], args[4]
    copies = [copy_into(card, tensor.transpose(1, 2), torch.contiguous_format, func) for tensor in (gradient, result)]
    results = func(*args, **kwargs)
    card.announce_result(results, func)
    batch, heads, queries, width = query.shape
    rows = batch * heads * _align(queries, 128)
    sums = card.scratch(rows * _FP32_BYTES, "flash_attention_softmax_d")
    padded = _align(width, 32 if width <= 128 else 64)
    accumulator = card.scratch(rows * padded * _FP32_BYTES, "flash_attention_dq_accumulator")
    expanded = _every_heads_gradients(card, query, key)
    for give_back in (*expanded, accumulator, sums):
        give_back()
    for give_back in reversed(copies):
        give_back()
    return results


def _every_heads_gradients(card: Card, query: torch.Tensor, key: torch.Tensor) -> list[Callable[[], None]]:
    heads = query.shape[1]
    if heads == key.shape[1]:
        return []
    size = key.numel() // key.shape[1] * heads * key.element_size()
    return [card.scratch(size, "attention_shared_heads") for _ in range(2)]


def _workspace_bytes(queries: int, keys: int, width: int, dtype: torch.dtype) -> int:
    """Bytes for one head: ``workspace_strideBH``, mem_eff_attention/kernel_backward.h."""
    rows, columns = _tile(width, dtype)
    tiles = -(-queries // rows) * -(-width // columns)
    size = tiles * (16 + rows * columns * _FP32_BYTES)  # GradQTempStorage: a lock, a counter, the tile
    if dtype != torch.float32 and width > 128:
        size += 2 * _align(keys, 64) * _align(width, rows) * _FP32_BYTES  # dK and dV accumulate in fp32
    return _align(size, 16)


def _tile(width: int, dtype: torch.dtype) -> tuple[int, int]:
    """(rows of queries, columns of dQ) of one tile, by head width: the cutlassB kernels for sm80."""
    if width <= 64:
        return 64, 64
    if dtype != torch.float32 and 96 < width <= 128:
        return 128, 128
    return 128, 64


def _align(size: int, to: int) -> int:
    return -(-size // to) * to


def _argument(func: OpOverload, args: Any, kwargs: Any, name: str) -> Any:
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[place] if place < len(args) else kwargs.get(name, argument.default_value)
    raise KeyError(name)

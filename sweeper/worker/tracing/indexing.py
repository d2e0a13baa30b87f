"""Lookups and their gradients: copies of indices, and what CUDA sorts to add gradients without atomics.

The gradient of a lookup adds rows that may be the same row, so CUDA sorts the indices first and adds runs of equal
ones.  How many runs there are only the card knows; buffers are made for the most there can be, and that follows from
shapes.

Sources, under aten/src/ATen/native/cuda: Embedding.cu, EmbeddingBackwardKernel.cu, Indexing.cu, and cub's
``DispatchRadixSort`` under aten/src/ATen/cuda/cub.cuh.  The sizes of cub's temporary storage were seen in the
binaries of 2.6, 2.9 and 2.14 for compute capabilities 7.5 to 9.0; those of its scans are a page and hardly matter.

Not known: lookups by several index tensors with gradients (their sort is as here, what is computed before it is not
counted), and cub's scans of more than some ten thousand indices, which take some KiB more.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing import releases
from sweeper.worker.tracing.card import Card

__all__ = ["embedding", "embedding_backward", "index_put", "scalar_tensor", "where"]

_INDEX_BYTES = 8

# ``embedding_dense_backward_cuda``: fewer indices are added without a sort.
_UNSORTED_INDICES = 3072
# ``NROWS_PER_THREAD``, EmbeddingBackwardKernel.cu
_ROWS_A_THREAD = 10

# cub's radix sort of 64-bit pairs: sorted in one tile up to the first, in tiles of the second above.
_ONE_TILE, _TILE = 2304, 3840
_BITS_A_PASS, _BINS = 8, 256


def embedding(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Indices that cannot be flattened in place are copied first: ``embedding_symint``, Embedding.cpp."""
    indices = args[1]
    give_back = _taken(card, [] if not indices.is_meta or _flattens(indices) else [_bytes(indices)], "embedding")
    result = func(*args, **kwargs)
    card.announce_result(result, func)
    give_back()
    return result


def embedding_backward(card: Card, func: OpOverload, args: Any, kwargs: Any, *, sorts: bool = True) -> Any:
    """Indices and gradient are made contiguous, many indices sorted: ``embedding_dense_backward_cuda``.

    What the sort takes is no straight line in the number of indices; without ``sorts`` it is left out.
    """
    gradient, indices, rows = args[:3]
    if not gradient.is_meta:
        return func(*args, **kwargs)
    name = "embedding_dense_backward"
    copies = [_bytes(tensor) for tensor in (indices, gradient) if not tensor.is_contiguous()]
    give_back_copies = _taken(card, copies, name)
    count = indices.numel()
    if count <= _UNSORTED_INDICES or not sorts:
        result = func(*args, **kwargs)
        card.announce_result(result, func)
    else:
        give_back_sorted = _sort(card, count, _bits(rows) if releases.EMBEDDING_SORTS_ITS_BITS else 64, name)
        result = func(*args, **kwargs)
        card.announce_result(result, func)
        _add_runs(card, count, min(count, rows), gradient.shape[-1], name)
        give_back_sorted()
    give_back_copies()
    return result


def index_put(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The gradient of a lookup is added into zeros in place, after a sort: ``index_put_with_sort_kernel``.

    Autograd's ``index_backward`` (torch/csrc/autograd/FunctionsManual.cpp) does it out of place under a dispatch mode.
    """
    source, indices, values = args[:3]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or not accumulate or not source.is_meta:
        return func(*args, **kwargs)
    found = [index for index in indices if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in found))
    count = shape.numel()
    name = "index_put"
    wrapped = card.scratch(count * _INDEX_BYTES, name)
    give_back_linear = card.scratch(count * _INDEX_BYTES, name)
    wrapped()
    give_back_values = card.scratch(0 if values.is_contiguous() else _bytes(values), name)
    rows = torch.Size(size for size, index in zip(source.shape, indices, strict=False) if index is not None).numel()
    give_back_sorted = _sort(card, count, _bits(rows), name)
    give_back_sorted()
    give_back_values()
    give_back_linear()
    return source


def where(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Numbers beside tensors are moved to the card first: ``where_self_out``, TensorCompare.cpp."""
    numbers = [_bytes(tensor) for tensor in args[1:] if not tensor.is_meta] if args[0].is_meta else []
    give_back = _taken(card, numbers, "where")
    result = func(*args, **kwargs)
    card.announce_result(result, func)
    give_back()
    return result


def scalar_tensor(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """A number that is written into a tensor by index stays on the host: ``THPVariable_setitem``,
    torch/csrc/autograd/python_variable_indexing.cpp, which makes it on the card for any device but CUDA.  One that is
    chosen by ``where`` goes to the card there."""
    return func(*args, **{**kwargs, "device": "cpu"})


def _sort(card: Card, count: int, bits: int, name: str) -> Callable[[], None]:
    """Sorted indices and where each was stay, until what is returned is called; the rest is gone by then."""
    give_back = _taken(card, [count * _INDEX_BYTES] * 2, name)
    give_back_range = card.scratch(count * _INDEX_BYTES, name)
    card.scratch(sort_bytes(count, bits), name)()
    give_back_range()
    return give_back


def sort_bytes(count: int, bits: int) -> int:
    """cub's temporary storage to sort ``count`` pairs of 64 bits by the lowest ``bits`` of their keys.

    A pass sorts 8 bits.  Each has its bins, each tile looks back over bins, and two passes need both ends of a buffer.
    """
    if count <= _ONE_TILE:
        return 1
    passes = -(-bits // _BITS_A_PASS)
    buffers = 2 * -(-count * _INDEX_BYTES // 256) * 256 if passes > 1 else 0
    return buffers + -(-count // _TILE) * _BINS * 4 + passes * _BINS * 8 + 511


def _add_runs(card: Card, count: int, most_runs: int, width: int, name: str) -> None:
    """Runs of equal indices are cut into parts of 10 rows and summed in fp32: ``embedding_backward_cuda_kernel``."""
    parts = count // _ROWS_A_THREAD + most_runs
    give_back_runs = _taken(card, [count * _INDEX_BYTES, _INDEX_BYTES], name)
    give_back_ones = card.scratch(count * _INDEX_BYTES, name)
    card.scratch(releases.CUB_UNIQUE_BYTES, name)()
    give_back_ones()
    give_back_parts = _taken(card, [most_runs * _INDEX_BYTES] * 2, name)
    card.scratch(releases.CUB_SCAN_BYTES, name)()
    give_back_sums = _taken(card, [_INDEX_BYTES, parts * _INDEX_BYTES, parts * width * 4], name)
    for give_back in (give_back_sums, give_back_parts, give_back_runs):
        give_back()


def _taken(card: Card, sizes: Sequence[int], name: str) -> Callable[[], None]:
    """Take each of ``sizes``; call what is returned to give them back, last first."""
    taken = [card.scratch(size, name) for size in sizes]

    def give_back() -> None:
        for one in reversed(taken):
            one()

    return give_back


def _bits(values: int) -> int:
    """How many bits tell ``values`` values apart: ``get_num_bits``, aten/src/ATen/cuda/cub.cuh."""
    return max((values - 1).bit_length(), 1)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flattens(tensor: torch.Tensor) -> bool:
    """Is ``tensor.reshape(-1)`` a view?"""
    try:
        tensor.view(-1)
    except RuntimeError:
        return False
    return True

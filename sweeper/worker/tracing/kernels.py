"""What CUDA's kernels do with memory that meta kernels do not: one small function a rule, each with its source.

A kernel here stands between the dispatcher and the meta kernel: it gets the card, the operator and its arguments, and
returns the operator's results.  It may announce results in the order in which CUDA allocates them, take scratch, and
make results itself where the meta kernel is slow or chooses another layout.
Convolutions, attention, lookups and pointwise operators have modules of their own.
File names are PyTorch's, under aten/src/ATen/native unless they start with torch or aten; read in 2.14.

Not known: what operators that are not named
here take as scratch.  An operator without a rule is taken to allocate its results in their order and nothing else.
"""

import math
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.units import MIB
from sweeper.worker.tracing import (
    attention,
    convolution,
    cudnn,
    cudnn_attention,
    indexing,
    math_attention,
    pointwise,
    recurrent,
    recurrent_cells,
    reductions,
    releases,
)
from sweeper.worker.tracing.card import Card, Kernel

__all__ = ["CudaKernels", "cublas_workspace_bytes"]

aten = torch.ops.aten


def cublas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """Bytes of cuBLAS's workspace: 32 MiB on sm90, in later releases also above, ``:4096:2:16:8`` (in KiB) elsewhere.

    ``getChosenWorkspaceSize``, aten/src/ATen/cuda/CublasHandlePool.cpp, without CUBLAS_WORKSPACE_CONFIG set; PyTorch's
    binaries of 2.6, 2.9 and 2.14 ask for these.
    """
    large = compute_capability == (9, 0) or (compute_capability > (9, 0) and releases.BLACKWELL_HAS_HOPPERS_WORKSPACE)
    return 32 * MIB if large else (4096 * 2 + 16 * 8) * 1024


class CudaKernels:
    """The rules for one trial on a card of ``compute_capability``.

    Without ``multiprocessors``, their number, reductions take no scratch, nor do the sorted gradients of embeddings.
    Without ``cudnn_workspaces`` cuDNN's plans take no workspace: what is left is what PyTorch itself allocates.
    """

    def __init__(
        self, compute_capability: tuple[int, int], *, multiprocessors: int | None = None, cudnn_workspaces: bool = True
    ) -> None:
        self._processors = reductions.Processors.of(multiprocessors, compute_capability) if multiprocessors else None
        self._plans = cudnn.Plans(compute_capability, workspaces=cudnn_workspaces)
        self._cublas_bytes = cublas_workspace_bytes(compute_capability)
        self._cublas_handles: set[bool] = set()  # False: the forward's thread; True: autograd's
        self._cublaslt_handles: set[bool] = set()

    def kernel_of(self, func: OpOverload) -> Kernel | None:
        """Return the rule for ``func``, or None where meta and CUDA allocate alike."""
        if func.overloadpacket in _MATRIX_PRODUCTS:
            return self._matrix_product
        if func is aten.convolution_backward.default:
            return partial(convolution.backward, plans=self._plans, processors=self._processors)
        if func is aten.convolution.default:
            return partial(convolution.forward, plans=self._plans)
        if func is aten.native_layer_norm_backward.default:
            return partial(_native_layer_norm_backward, self._processors)
        if func is aten.embedding_dense_backward.default:
            return partial(indexing.embedding_backward, sorts=self._processors is not None)
        if func is aten.mse_loss.default:
            return partial(_mse_loss, self._processors)
        if func in (aten.max.default, aten.min.default):
            return partial(_extreme, self._processors)
        if func in reductions.OPERATORS and self._processors is not None:
            return partial(reductions.reduce, self._processors)
        if func._schema.name.startswith("aten::_foreach_") and not func._schema.returns:
            return _foreach_in_place
        if func._schema.name.startswith("aten::_fused_") and not func._schema.returns:
            return _fused_step
        return _KERNELS.get(func)

    def _matrix_product(self, card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """The first product in a thread makes a cuBLAS handle, whose workspace is taken after the result and kept.

        ``getCurrentCUDABlasHandle``, aten/src/ATen/cuda/CublasHandlePool.cpp: one a (thread, stream).  On CUDA autograd
        has a thread of its own for each card.  A product that adds a bias goes through cuBLASLt, which had a workspace
        of its own in older releases.
        """
        result = _addmm(args) if func is aten.addmm.default else None
        if result is None:
            result = func(*args, **kwargs)
        if not result.is_meta:
            return result
        thread = torch._C._current_graph_task_id() != -1
        lt = releases.CUBLASLT_HAS_A_WORKSPACE and _goes_through_cublaslt(func, args, kwargs)
        if thread not in self._cublas_handles or lt:
            card.announce_result(result, func)
        passing = lt and not releases.CUBLASLT_KEEPS_ITS_WORKSPACE
        give_back = card.scratch(_CUBLASLT_BYTES, "cublaslt_workspace") if passing else None
        if thread not in self._cublas_handles:
            self._cublas_handles.add(thread)
            card.keep(self._cublas_bytes, "cublas_workspace")
        if give_back is not None:
            give_back()
        elif lt and thread not in self._cublaslt_handles:
            self._cublaslt_handles.add(thread)
            card.keep(_CUBLASLT_BYTES, "cublaslt_workspace")
        return result


# Linear algebra that goes through a cuBLAS handle: LinearAlgebra.cpp, cuda/Blas.cpp.
_MATRIX_PRODUCTS = {
    aten.mm,
    aten.addmm,
    aten.bmm,
    aten.baddbmm,
    aten.addbmm,
    aten.mv,
    aten.addmv,
    aten.dot,
    aten.vdot,
    aten._addmm_activation,
    aten._scaled_mm,
}


# ``_getWorkspaceSize``, aten/src/ATen/cuda/CUDABlas.cpp of 2.6, without CUBLASLT_WORKSPACE_SIZE set.
_CUBLASLT_BYTES = 1 * MIB


def _goes_through_cublaslt(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """A bias of one row, unscaled, on a matrix of more than one row and column: ``addmm_out_cuda_impl``, cuda/Blas.cpp.

    Read in 2.6 and held against the binaries of 2.6 and 2.9, built for CUDA 12.4 and 12.8.  Products of 8-bit floats
    always do: ``scaled_gemm``, aten/src/ATen/cuda/CUDABlas.cpp.
    """
    if func.overloadpacket is aten._scaled_mm:
        return True
    if func.overloadpacket not in (aten.addmm, aten._addmm_activation) or kwargs.get("beta", 1) != 1:
        return False
    bias: torch.Tensor = args[0]
    right: torch.Tensor = args[2]
    return (
        bias.dim() == 1
        and bias.shape[0] == right.shape[1]
        and bias.is_contiguous()
        and bias.is_floating_point()
        and min(right.shape) > 1
    )


def _softmax_backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Gradient and output are multiplied into a tensor of their own, after the result: ``softmax_backward_cuda_out``,
    cuda/SoftMax.cu.  That of ``log_softmax`` is not."""
    result = func(*args, **kwargs)
    gradient, output = args[:2]
    card.announce_result(result, func)
    card.scratch(output.numel() * torch.promote_types(gradient.dtype, output.dtype).itemsize, "softmax_backward")()
    return result


def _fused_step(card: Card, func: OpOverload, args: Any, kwargs: Any) -> None:
    """A fused optimizer writes its state and parameters in place: cuda/FusedAdamKernel.cu, FusedSgdKernel.cu."""


def _addmm(args: Any) -> torch.Tensor | None:
    """The result of a plain ``addmm``, whose meta kernel is Python; None where the meta kernel has something to say."""
    bias, left, right = args[:3]
    if not left.is_meta or left.shape[-1] != right.shape[0] or not left.dtype == right.dtype == bias.dtype:
        return None
    shape = (left.shape[0], right.shape[1])
    if bias.shape != (shape[1],) and bias.shape != shape:
        return None
    return torch.empty(shape, dtype=left.dtype, device="meta")


def _foreach_in_place(card: Card, func: OpOverload, args: Any, kwargs: Any) -> None:
    """Changes values and nothing else, on every device; without values there is nothing to do."""
    if not args[0] or not args[0][0].is_meta:
        func(*args, **kwargs)


def _number(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """A number read from a tensor takes nothing; where it only scales, one will do."""
    return 1.0 if args[0].is_meta and card.number_only_scales() else func(*args, **kwargs)


def _mse_loss(processors: reductions.Processors | None, card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The loss, with room for every element though it is one; then every element, which are reduced into it.

    ``mse_loss``, Loss.cpp: its result is sized for the elements before it is sized for one, and keeps the room.  Seen
    in the allocator's history of 2.14.
    """
    source, target = args[:2]
    reduction = args[2] if len(args) > 2 else kwargs.get("reduction", 1)
    if reduction == 0 or not source.is_meta:
        return func(*args, **kwargs)
    shape = torch.broadcast_shapes(source.shape, target.shape)
    room = torch.empty(shape, dtype=torch.promote_types(source.dtype, target.dtype), device="meta")
    card.announce_result(room, func)
    give_back = card.scratch(room.numel() * room.element_size(), "mse_loss")
    if processors is not None:
        reductions.share(processors, card, room, range(room.dim()))
    give_back()
    return room.resize_(())


def _extreme(processors: reductions.Processors | None, card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The result, then a contiguous copy of an operand that is not: ``max`` and ``min``, ReduceAllOps.cpp."""
    source: torch.Tensor = args[0]
    result = func(*args, **kwargs)
    if not source.is_meta:
        return result
    card.announce_result(result, func)
    give_back = convolution.copy_into(card, source, torch.contiguous_format, func)
    if processors is not None:
        flat = torch.empty(source.numel(), dtype=source.dtype, device="meta")
        reductions.share(processors, card, flat, [0])
    give_back()
    return result


def _sum_of_gradients(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Where gradients meet the engine adds in place, if it holds the last reference to the first one.

    ``accumulate`` and ``can_accumulate_inplace``, torch/csrc/autograd/input_buffer.cpp.  A dispatch mode makes every
    tensor "subclass-like" there, so under one the engine adds out of place, through ``add.Tensor``.
    """
    first, second = args[:2]
    if torch._C._current_graph_task_id() == -1 or kwargs or len(args) != 2 or torch.is_grad_enabled():
        return pointwise.binary(card, func, args, kwargs)
    if (
        isinstance(second, torch.Tensor)
        and first.is_meta
        and second.is_meta
        and first.shape == second.shape
        and first.dtype == second.dtype
        and first._use_count() <= _HELD_ONCE
        and torch._C._storage_Use_Count(first.untyped_storage()._cdata) <= _LAST_REFERENCE
        and first.numel() == first.untyped_storage().nbytes() // first.element_size()
    ):
        return first
    return pointwise.binary(card, func, args, kwargs)


# What ``_storage_Use_Count`` says of a storage that one tensor owns: 2 in 2.14, where Python's object, once it was
# made, counts too, and 1 in 2.6 and 2.9, where the tensor keeps that object alive.
_ALONE = torch.empty(1, device="meta")
_LAST_REFERENCE = torch._C._storage_Use_Count(_ALONE.untyped_storage()._cdata)

# What ``_use_count`` says in a dispatch mode of a tensor that one input buffer of the engine holds (2.6, 2.9, 2.14); a
# node's one gradient for two of its inputs is held by both their buffers.
_HELD_ONCE = 4


def _detach(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """In an AccumulateGrad node ``detach`` is how autograd keeps a gradient without a copy.

    ``accumulateGrad``, torch/csrc/autograd/functions/accumulate_grad.h.
    """
    if torch._C._current_graph_task_id() != -1 and card.stores_gradient():
        card.mark_gradient(args[0])
    return func(*args, **kwargs)


def _batch_norm(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Result, mean and inverse deviation, the latter two in fp32 and empty in evaluation.

    ``cudnn_batch_norm``, cudnn/BatchNorm.cpp, and ``batch_norm_cuda``, cuda/Normalization.cu, allocate the same, but
    for cuDNN's reserve, which is empty for the layouts and modes that PyTorch asks for without fusion.
    """
    source, training = args[0], args[5]
    if not source.is_meta:
        return func(*args, **kwargs)
    statistics = source.shape[1] if training else 0
    wide = torch.float64 if source.dtype == torch.float64 else torch.float32
    return (
        pointwise.like(source),
        torch.empty(statistics, dtype=wide, device="meta"),
        torch.empty(statistics, dtype=wide, device="meta"),
    )


def _batch_norm_backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Gradients of input, weight and bias.  Sources as for the forward.

    cuDNN, which runs in training but not for bfloat16, makes all three whoever wants them, after a copy of a gradient
    that is in another layout than the input.
    """
    gradient, source, weight, training, wanted = args[0], args[1], args[2], args[7], args[9]
    if not source.is_meta:
        return func(*args, **kwargs)
    by_cudnn = training and weight is not None and source.dtype != torch.bfloat16
    give_back = convolution.copy_into(card, gradient, convolution.suggested(source), func) if by_cudnn else None
    made = [
        pointwise.like(like) if (by_cudnn or asked) and like is not None else None
        for asked, like in zip(wanted, (source, weight, weight), strict=True)
    ]
    if give_back is not None:
        card.announce_result(made, func)
        give_back()
    return tuple(result if asked else None for asked, result in zip(wanted, made, strict=True))


def _native_layer_norm(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """An input in another layout is copied first; mean and inverse deviation are fp32 for 16-bit types.

    ``layer_norm_cuda``, cuda/layer_norm_kernel.cu.
    """
    source, normalized = args[0], args[1]
    if not source.is_meta:
        return func(*args, **kwargs)
    give_back = convolution.copy_into(card, source, torch.contiguous_format, func)
    rows = [*source.shape[: source.dim() - len(normalized)], *[1] * len(normalized)]
    wide = torch.float64 if source.dtype == torch.float64 else torch.float32
    results = (
        torch.empty(source.shape, dtype=source.dtype, device="meta"),
        torch.empty(rows, dtype=wide, device="meta"),
        torch.empty(rows, dtype=wide, device="meta"),
    )
    card.announce_result(results, func)
    give_back()
    return results


def _native_layer_norm_backward(
    processors: reductions.Processors | None, card: Card, func: OpOverload, args: Any, kwargs: Any
) -> Any:
    """The input's copy before the results, the gradient's after: ``layer_norm_backward_cuda``, the same file.

    Many short rows are summed in two steps: ``LaunchGammaBetaBackwardCUDAKernel``.
    """
    gradient, source, normalized = args[:3]
    weight, bias, wanted = args[5:8]
    if not source.is_meta:
        return func(*args, **kwargs)
    give_back = convolution.copy_into(card, source, torch.contiguous_format, func)
    results = [
        torch.empty(like.shape, dtype=like.dtype, device="meta") if asked and like is not None else None
        for asked, like in zip(wanted, (source, weight, bias), strict=True)
    ]
    width = math.prod(normalized)
    rows = source.numel() // max(1, width)
    blocks = reductions.blocks_of_rows(processors, rows, width)
    if not blocks:
        card.announce_result(results, func)
        convolution.copy_into(card, gradient, torch.contiguous_format, func)()
    else:
        assert processors is not None
        card.announce_result(results[0], func)
        sums = [result for result in results[1:] if result is not None]
        sizes = [result.numel() * result.element_size() for result in sums]
        first = [card.scratch(size, "native_layer_norm_backward") for size in sizes]
        copy = convolution.copy_into(card, gradient, torch.contiguous_format, func)
        parts = [card.scratch(size * blocks, "layer_norm_parts") for size in sizes]
        for result, replaced in zip(sums, first, strict=True):
            card.announce_result(result, func)
            part = torch.empty((blocks, width), dtype=result.dtype, device="meta")
            reductions.share(processors, card, part, [0])
            replaced()
        for done in (*parts, copy):
            done()
    give_back()
    return tuple(results)


_KERNELS: dict[OpOverload, Kernel] = {
    aten.threshold_backward.default: pointwise.backward,
    aten.hardtanh_backward.default: pointwise.backward,
    aten.hardswish_backward.default: pointwise.backward,
    aten.silu_backward.default: pointwise.backward,
    aten.gelu_backward.default: pointwise.backward,
    aten.sigmoid_backward.default: pointwise.backward,
    aten.tanh_backward.default: pointwise.backward,
    aten.silu_.default: pointwise.in_place,
    aten.hardswish_.default: pointwise.in_place,
    aten.hardtanh_.default: pointwise.in_place,
    aten.roll.default: pointwise.roll,
    aten.gelu.default: pointwise.unary,
    aten.silu.default: pointwise.unary,
    aten.hardswish.default: pointwise.unary,
    aten.hardtanh.default: pointwise.unary,
    aten.relu.default: pointwise.unary,
    aten.sigmoid.default: pointwise.unary,
    aten.tanh.default: pointwise.unary,
    aten.clamp.default: pointwise.unary,
    aten.clamp_min.default: pointwise.unary,
    aten.pow.Tensor_Scalar: pointwise.unary,
    aten.rsqrt.default: pointwise.unary,
    aten.neg.default: pointwise.unary,
    aten.div.Scalar: pointwise.unary,
    aten.mul.Scalar: pointwise.unary,
    aten.mul.Tensor: pointwise.binary,
    aten.sub.Tensor: pointwise.binary,
    aten.div.Tensor: pointwise.binary,
    aten.add.Tensor: _sum_of_gradients,
    aten.detach.default: _detach,
    aten._local_scalar_dense.default: _number,
    aten.native_dropout.default: pointwise.dropout,
    aten.native_dropout_backward.default: pointwise.dropout_backward,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._safe_softmax.default: math_attention.safe_softmax,
    aten.scalar_tensor.default: indexing.scalar_tensor,
    aten.where.self: indexing.where,
    aten.embedding.default: indexing.embedding,
    aten.index_put.default: indexing.index_put,
    aten.native_layer_norm.default: _native_layer_norm,
    aten._scaled_dot_product_efficient_attention.default: attention.efficient,
    aten._scaled_dot_product_efficient_attention_backward.default: attention.efficient_backward,
    aten._scaled_dot_product_flash_attention.default: attention.flash,
    aten._scaled_dot_product_flash_attention_backward.default: attention.flash_backward,
    aten._scaled_dot_product_cudnn_attention.default: cudnn_attention.forward,
    aten._scaled_dot_product_cudnn_attention_backward.default: cudnn_attention.backward,
    aten._cudnn_rnn.default: recurrent.forward,
    aten._cudnn_rnn_backward.default: recurrent.backward,
    aten._cudnn_init_dropout_state.default: recurrent.init_dropout_state,
    aten._pack_padded_sequence.default: recurrent.pack,
    aten._thnn_fused_lstm_cell.default: recurrent_cells.lstm_kernel,
    aten._thnn_fused_lstm_cell_backward_impl.default: recurrent_cells.lstm_kernel_backward,
    aten._thnn_fused_gru_cell.default: recurrent_cells.gru_kernel,
    aten._thnn_fused_gru_cell_backward.default: recurrent_cells.gru_kernel_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}

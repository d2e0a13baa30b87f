"""What cuDNN's and PyTorch's own convolutions allocate: results, copies into the one layout they work in, workspaces.

Sources, under aten/src/ATen/native of PyTorch 2.14: Convolution.cpp, ConvUtils.h, cudnn/ConvShared.cpp and
cuda/DepthwiseConv2d.cu.
The meta kernel of ``convolution`` chooses the contiguous layout always, and imports sympy to do so; these functions
take its place.

Workspaces and searches are ``cudnn.Plans``; what is known and not known of them stands there.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing import cudnn, reductions
from sweeper.worker.tracing.card import Card

__all__ = ["backward", "copy_into", "forward", "suggested"]

Run = Callable[[Card, cudnn.Direction, cudnn.Convolution], None]

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def forward(card: Card, func: OpOverload, args: Any, kwargs: Any, plans: cudnn.Plans) -> Any:
    """The input is copied into cuDNN's layout before the result is made, the weight after."""
    source, weight = args[0], args[1]
    if not source.is_meta:
        return func(*args, **kwargs)
    shape = _checked_shape(func, args, kwargs)
    layout = _layout(source, weight)
    give_back_source = copy_into(card, source, layout, func)
    result = torch.empty(shape, dtype=source.dtype, device="meta", memory_format=layout)
    card.announce_result(result, func)
    give_back_weight = copy_into(card, weight, layout, func)
    if not _is_depthwise(source, weight, layout, args[3:9]):
        plans.run(card, "forward", cudnn.Convolution(source, weight, result, layout, tuple(args[3:9])))
    give_back_weight()
    give_back_source()
    return result


def _checked_shape(func: OpOverload, args: Any, kwargs: Any) -> list[int]:
    """The result's shape.  Raises what the real convolution does: ``check_shape_forward``, Convolution.cpp."""
    source, weight, bias = args[:3]
    if source.dtype != weight.dtype or (bias is not None and bias.dtype != source.dtype):
        types = f"Input type ({source.dtype}) and weight type ({weight.dtype})"
        raise RuntimeError(f"{types} should be the same, and the bias's")
    if source.dim() == weight.dim():
        transposed, groups = args[6], args[8]
        shape = _shape(source.shape, weight.shape, *args[3:9])
        channels = weight.shape[0] if transposed else weight.shape[1] * groups
        if source.shape[1] == channels and min(shape[2:]) > 0:
            return shape
    func(*args, **kwargs)  # the meta kernel has the words
    raise RuntimeError(f"no convolution of {list(source.shape)} with a weight of {list(weight.shape)}")


def backward(
    card: Card,
    func: OpOverload,
    args: Any,
    kwargs: Any,
    plans: cudnn.Plans,
    processors: reductions.Processors | None = None,
) -> Any:
    """Gradients of input, weight and bias, in this order, each only if asked for.

    Without ``processors`` no scratch for the bias's sum, which is of the gradient as it came.

    ``convolution_backward`` and ``cudnn_convolution_backward``.  A gradient in another layout is copied once and for
    all; one that is a slice of a larger tensor, each time that it is read.
    """
    gradient, source, weight = args[:3]
    wanted = args[10]
    if not source.is_meta:
        return func(*args, **kwargs)
    layout = _layout(source, weight)
    give_back_source = copy_into(card, source, layout, func) if wanted[1] else _nothing
    give_back_gradient = _nothing
    if suggested(gradient) != layout:
        give_back_gradient = card.scratch(gradient.numel() * gradient.element_size(), _name(func))
        gradient = torch.empty(gradient.shape, dtype=gradient.dtype, device="meta", memory_format=layout)
    depthwise = _is_depthwise(source, weight, layout, args[4:10])
    asked = cudnn.Convolution(source, weight, gradient, layout, tuple(args[4:10]))
    run = _no_plan if depthwise else plans.run
    results: list[torch.Tensor | None] = [None, None, None]
    parts = (_input_gradient, _weight_gradient)
    # conv_depthwise2d_backward_cuda makes the weight's gradient first.
    order = (1, 0) if depthwise else (0, 1)
    for place in order:
        if wanted[place]:
            results[place] = parts[place](card, func, asked, run)
    give_back_gradient()
    give_back_source()
    if wanted[2]:
        results[2] = torch.empty(gradient.shape[1], dtype=gradient.dtype, device="meta")
        card.announce_result(results[2], func)
        if processors is not None:
            reductions.share(processors, card, args[0], [0, *range(2, gradient.dim())])
    return tuple(results)


def _input_gradient(card: Card, func: OpOverload, asked: cudnn.Convolution, run: Run) -> torch.Tensor:
    """``cudnn_convolution_backward_input``: the result, then copies of what is not in the layout."""
    source, layout = asked.source, asked.layout
    result = torch.empty(source.shape, dtype=source.dtype, device="meta", memory_format=layout)
    card.announce_result(result, func)
    copies = [copy_into(card, tensor, layout, func) for tensor in (asked.result, asked.weight)]
    run(card, "input", asked)
    for give_back in reversed(copies):
        give_back()
    return result


def _weight_gradient(card: Card, func: OpOverload, asked: cudnn.Convolution, run: Run) -> torch.Tensor:
    """``cudnn_convolution_backward_weight``: the copy first, then the result."""
    weight, layout = asked.weight, asked.layout
    give_back = copy_into(card, asked.result, layout, func)
    result = torch.empty(weight.shape, dtype=weight.dtype, device="meta", memory_format=layout)
    card.announce_result(result, func)
    run(card, "weight", asked)
    give_back()
    return result


def copy_into(card: Card, tensor: torch.Tensor, layout: torch.memory_format, func: OpOverload) -> Callable[[], None]:
    """``tensor.contiguous(layout)`` for the length of an operator: call what is returned to give the copy back."""
    if not tensor.is_meta or tensor.is_contiguous(memory_format=layout):
        return _nothing
    return card.scratch(tensor.numel() * tensor.element_size(), _name(func))


def _layout(source: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Channels last if the input or the weight is: ``cudnn_conv_suggest_memory_format``, ConvUtils.h."""
    for tensor in (source, weight):
        if (layout := suggested(tensor)) != torch.contiguous_format:
            return layout
    return torch.contiguous_format


def suggested(tensor: torch.Tensor) -> torch.memory_format:
    """``suggest_memory_format``, c10/core/MemoryFormat.h: does the order of the strides say channels last?"""
    layout = _CHANNELS_LAST.get(tensor.dim())
    if layout is None:
        return torch.contiguous_format
    least = 0
    sizes, strides = tensor.shape, tensor.stride()
    if strides[1] == 0:
        return torch.contiguous_format
    for axis in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if sizes[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return torch.contiguous_format
        least = strides[axis] * max(sizes[axis], 1)
    return layout


def _is_depthwise(source: torch.Tensor, weight: torch.Tensor, layout: torch.memory_format, geometry: Any) -> bool:
    """Does PyTorch's own depthwise kernel run?  ``is_depthwise`` and ``use_cudnn_depthwise``, Convolution.cpp."""
    stride, _, dilation, transposed, _, groups = geometry
    channels = source.shape[1]
    if transposed or groups == 1 or groups != channels or weight.shape[0] % channels or source.dim() not in (4, 5):
        return False
    return layout == torch.contiguous_format and not _cudnn_depthwise(source, weight, stride, dilation)


def _cudnn_depthwise(source: torch.Tensor, weight: torch.Tensor, stride: Any, dilation: Any) -> bool:
    """In half precision cuDNN runs where it was found faster: ``check_cudnn_depthwise_workload_with_filter``."""
    if source.dtype != torch.float16 or source.dim() != 4 or any(step > 1 for step in dilation):
        return False
    batch, channels, height, width = source.shape
    step, size = stride[-1], weight.shape[3]
    if channels < 32 or (stride[0] != step and height != 1):
        return False
    if height == 1 and step == 1:
        return True
    if weight.shape[2] != size or size not in (1, 3, 5) or width < 7:
        return False
    if step == 1:
        return True
    if step != 2:
        return False
    if size == 1:
        return (batch == 1 and width <= 28) or (1 < batch <= 16 and channels >= 128 and width <= 7)
    return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)


def _shape(
    source: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> list[int]:
    """The shape of the result: ``conv_output_size`` and ``conv_input_size``, ConvUtils.h."""
    shape = [source[0], weight[1] * groups if transposed else weight[0]]
    for axis in range(len(source) - 2):
        step, pad, spread, more = (each[axis if len(each) > 1 else 0] for each in (stride, padding, dilation, extra))
        reach = spread * (weight[axis + 2] - 1)
        size = source[axis + 2]
        shape.append(
            (size - 1) * step - 2 * pad + reach + more + 1 if transposed else (size + 2 * pad - reach - 1) // step + 1
        )
    return shape


def _name(func: OpOverload) -> str:
    return func._schema.name.removeprefix("aten::")


def _nothing() -> None:
    return None


def _no_plan(card: Card, direction: cudnn.Direction, asked: cudnn.Convolution) -> None:
    """PyTorch's own kernels ask cuDNN for none."""

"""The scratch of reductions over so many elements that several blocks of threads share one output.

``gpu_reduce_kernel`` (aten/src/ATen/native/cuda/Reduce.cuh, PyTorch 2.14) splits the elements of an output over the
lanes of a block, over its warps, and, when 256 or more are left for each thread, over blocks.  Blocks meet in a buffer
from the caching allocator, with a counter beside it, both gone when the kernel is launched.  How many blocks there are
depends on how many the card runs at once.  The gradient of a bias is such a sum over rows, so buffers of tens of MiB
come and go in every backward.

``_Plan`` is ``ReduceConfig``, ``_plan`` is ``setReduceConfig``, and ``_axes`` what ``TensorIterator`` makes of a
tensor: reduced axes first, each kind from the fastest on, neighbours joined where one continues the other.

Not known: reductions other than ``OPERATORS``; tensors of more than 2**31 elements, which are reduced in
parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing import releases
from sweeper.worker.tracing.card import Card

__all__ = ["OPERATORS", "Processors", "blocks_of_rows", "reduce", "share"]

aten = torch.ops.aten

_MOST_THREADS = 512  # mnt_wrapper
_WARP = 32
_LEAST_VALUES, _MOST_VALUES = 16, 256  # of a thread, before and after it is shared between blocks
_COUNTER_BYTES = 4
_FP32_BYTES = 4

# Threads that a multiprocessor holds at once: cudaDevAttrMaxThreadsPerMultiProcessor, which the CUDA C++ Programming
# Guide lists by compute capability; 2048 where not named.
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}


@dataclass(frozen=True, slots=True)
class Processors:
    """The multiprocessors of a card, and the threads that each holds."""

    count: int
    threads: int

    @classmethod
    def of(cls, count: int, compute_capability: tuple[int, int]) -> "Processors":
        return cls(count, _THREADS.get(compute_capability, 2048))


@dataclass(slots=True)
class _Axes:
    """Sizes and strides, in elements, of the reduced axes and of those that are kept, each from the fastest on."""

    reduced: list[tuple[int, int]]
    kept: list[tuple[int, int]]


def _axes(tensor: torch.Tensor, over: Sequence[int]) -> _Axes:
    axes = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    reduced = sorted((axes[i] for i in range(tensor.dim()) if i in over), key=lambda axis: axis[1])
    # The result is contiguous, and its order counts before the operand's.
    kept = [axes[i] for i in reversed(range(tensor.dim())) if i not in over]
    return _Axes(_joined(reduced), _joined(kept))


def _joined(axes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """``TensorIteratorBase::coalesce_dimensions``."""
    joined: list[tuple[int, int]] = []
    for size, stride in axes:
        if size == 1:
            continue
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return joined


@dataclass(slots=True)
class _Plan:
    """How a reduction is spread over threads and blocks."""

    outputs: int
    inputs: int  # of one output
    width: int = 1  # of a block
    height: int = 1
    outputs_per_load: int = 1
    step_input: int = 1
    step_output: int = 1
    across_lanes: bool = False
    blocks_per_output: int = 1

    @property
    def grid(self) -> int:
        return _divided(self.outputs // self.outputs_per_load, self.step_output)

    @property
    def values(self) -> int:
        """Elements for each thread."""
        return _divided(self.inputs, self.step_input)

    def buffer_bytes(self, element_bytes: int) -> int:
        size = element_bytes * self.outputs * self.blocks_per_output
        return size if self.across_lanes else size * self.width * self.outputs_per_load


def _plan(axes: _Axes, offset: int, processors: Processors) -> _Plan:
    """Without the loads along a reduced axis: they narrow only blocks that have too little to do to be shared."""
    plan = _Plan(outputs=_product(axes.kept), inputs=_product(axes.reduced))
    plan.across_lanes = not axes.kept or (bool(axes.reduced) and axes.reduced[0][1] < axes.kept[0][1])
    if plan.across_lanes:
        first, second = plan.inputs, plan.outputs
    else:
        first, second = plan.outputs, plan.inputs
        if axes.kept[0][1] == 1:
            plan.outputs_per_load = _output_load(axes, offset)
            first //= plan.outputs_per_load
    _set_block(plan, first, second)
    if plan.across_lanes:
        plan.step_input *= plan.width
    else:
        plan.step_output *= plan.width
    if plan.values >= min(16 * plan.height, _MOST_VALUES):
        plan.step_input *= plan.height
        _share_between_blocks(plan, processors)
    else:
        plan.step_output *= plan.height
    return plan


def _set_block(plan: _Plan, first: int, second: int) -> None:
    """``set_block_dimension``: powers of two, a warp wide unless few outputs leave room for more."""
    most = _MOST_THREADS // plan.outputs_per_load
    widest, highest = (_last_power_of_two(size) if size < most else most for size in (first, second))
    plan.height = min(highest, most // min(widest, _WARP))
    plan.width = min(widest, most // plan.height)


def _share_between_blocks(plan: _Plan, processors: Processors) -> None:
    wanted = processors.count * (processors.threads // (plan.width * plan.height))
    if plan.values >= _MOST_VALUES and plan.grid <= wanted:
        fill = min(_divided(wanted, plan.grid), _divided(plan.values, _LEAST_VALUES))
        plan.blocks_per_output = max(fill, _divided(plan.values, _MOST_VALUES))


def _output_load(axes: _Axes, offset: int) -> int:
    """``get_output_vec_size``: up to four neighbouring outputs, if everything else is in steps of as many."""
    load = 4
    for number in (offset, axes.kept[0][0], *(stride for _, stride in (*axes.reduced, *axes.kept[1:]))):
        while number % load:
            load //= 2
    return load


# What a thread carries for one output (``arg_t``), by operator: in kernels whose sums are of a wider type, None.
# A variance is a ``WelfordData`` of mean, square, count and count again (SharedReduceOps.h).
_CARRIED_BYTES: dict[OpOverload, int | None] = {
    aten.sum.default: None,
    aten.sum.dim_IntList: None,
    aten.mean.default: None,
    aten.mean.dim: None,
    aten.linalg_vector_norm.default: None,
    aten.var.correction: 16,
    aten.std.correction: 16,
    aten.any.default: 1,
    aten.all.default: 1,
}
OPERATORS = frozenset(_CARRIED_BYTES)


def reduce(processors: Processors, card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The result; the operand in the result's type where its own cannot be summed; buffer; counters.

    ``make_reduction``, native/ReduceOpsUtils.h: sixteen-bit floats are widened as they are read.
    """
    source: torch.Tensor = args[0]
    result = func(*args, **kwargs)
    if not source.is_meta or source.numel() == 0:
        return result
    card.announce_result(result, func)
    give_back = _nothing
    sums = func in (aten.sum.default, aten.sum.dim_IntList)
    if sums and source.dtype != result.dtype and not source.is_floating_point():
        give_back = card.scratch(source.numel() * result.element_size(), "sum")
    carried = _CARRIED_BYTES[func] or max(_FP32_BYTES, result.element_size())
    share(processors, card, source, _reduced_axes(func, args, kwargs), carried)
    give_back()
    return result


def share(
    processors: Processors, card: Card, source: torch.Tensor, over: Sequence[int], carried_bytes: int = _FP32_BYTES
) -> None:
    """What blocks that share the reduction of ``source`` over the axes ``over`` take, if any do, and give back."""
    plan = _plan(_axes(source, over), int(source.storage_offset()), processors)
    if plan.blocks_per_output > 1:
        buffer = card.scratch(plan.buffer_bytes(carried_bytes), "reduction_buffer")
        card.scratch(_COUNTER_BYTES * plan.grid, "reduction_counters")()
        buffer()


def _reduced_axes(func: OpOverload, args: Any, kwargs: Any) -> Sequence[int]:
    """All axes where the operator names none."""
    dimensions = args[0].dim()
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dim":
            named = args[place] if place < len(args) else kwargs.get("dim")
            if named:
                return [axis % dimensions for axis in named]
    return range(dimensions)


def _nothing() -> None:
    return None


def blocks_of_rows(processors: Processors | None, rows: int, width: int) -> int:
    """Into how many sums layer norm's backward gathers ``rows`` before the last one; 0 where it sums in one step.

    ``LaunchGammaBetaBackwardCUDAKernel``, cuda/layer_norm_kernel.cu: 32 rows to a block, and not
    more blocks than half of 65,536.
    """
    few_columns = processors is not None and width // _WARP < processors.count // 2
    if not releases.LAYER_NORM_SUMS_IN_TWO_STEPS or rows <= 64 * 1024 or not few_columns:
        return 0
    return min(32 * 1024 // _divided(width, _WARP), _divided(rows, 32))


def _product(axes: Sequence[tuple[int, int]]) -> int:
    count = 1
    for size, _ in axes:
        count *= size
    return count


def _divided(number: int, by: int) -> int:
    return -(-number // by)


def _last_power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)

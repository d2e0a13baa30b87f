"""Recurrent cells by PyTorch's own fused kernels: where cuDNN is not asked, and in ``nn.LSTMCell`` and ``nn.GRUCell``.

On CUDA a cell is two products and one kernel for everything pointwise, which keeps what its backward needs in one
tensor; on meta tensors torch would take a dozen operators.  ``LSTMCell``, ``GRUCell`` and the layers around them
follow aten/src/ATen/native/RNN.cpp, the rules cuda/RNN.cu beside it; read in 2.14, held against 2.6 and 2.9 too.

Not here: packed sequences that cuDNN does not take, which run step by step as on meta.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.worker.tracing.card import Card

__all__ = [
    "gru_cell",
    "gru_kernel",
    "gru_kernel_backward",
    "layers",
    "lstm_cell",
    "lstm_kernel",
    "lstm_kernel_backward",
]

aten = torch.ops.aten

Weights = Sequence[torch.Tensor | None]  # of the input, recurrent, their biases, and of the projection
State = tuple[torch.Tensor, ...]  # hidden, and the cell's in an LSTM
Cell = Callable[[torch.Tensor, State, Weights], State]


def lstm_cell(source: torch.Tensor, state: State, weights: Weights) -> State:
    """The next hidden and cell state."""
    hidden, cell = state
    gates = torch.matmul(source, _turned(weights[0])), torch.matmul(hidden, _turned(weights[1]))
    hidden, cell, _ = aten._thnn_fused_lstm_cell.default(*gates, cell, *weights[2:4])
    if len(weights) > 4 and weights[4] is not None:
        hidden = torch.matmul(hidden, weights[4].t())
    return hidden, cell


def gru_cell(source: torch.Tensor, state: State, weights: Weights) -> State:
    """The next hidden state."""
    gates = torch.matmul(source, _turned(weights[0])), torch.matmul(state[0], _turned(weights[1]))
    hidden, _ = aten._thnn_fused_gru_cell.default(*gates, state[0], *weights[2:4])
    return (hidden,)


def _turned(weight: torch.Tensor | None) -> torch.Tensor:
    assert weight is not None
    return weight.t()


def layers(
    cell: Cell,
    source: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[Weights],
    *,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs in the order of time, and the last states: ``_rnn_impl`` of full layers, one way or both."""
    directions = 2 if bidirectional else 1
    first = list(zip(*(state.unbind(0) for state in states), strict=True))
    last: list[State] = []
    for layer in range(0, len(weights), directions):
        here = slice(layer, layer + directions)
        source, reached = _both_ways(cell, source, first[here], weights[here])
        last.extend(reached)
        if dropout > 0 and train and layer + directions < len(weights):
            source = torch.dropout(source, dropout, True)
    # The cell's before the hidden state: two arguments of one call, which GCC evaluates from the right.
    return source, [torch.stack(state, 0) for state in reversed(list(zip(*last, strict=True)))][::-1]


def _both_ways(
    cell: Cell, source: torch.Tensor, states: Sequence[State], weights: Sequence[Weights]
) -> tuple[torch.Tensor, list[State]]:
    steps = source.unbind(0)
    ways = [_one_way(cell, steps, *way) for way in zip(states, weights, (False, True), strict=False)]
    reached = [state for _, state in ways]
    return (torch.cat([output for output, _ in ways], -1) if len(ways) > 1 else ways[0][0]), reached


def _one_way(
    cell: Cell, steps: Sequence[torch.Tensor], state: State, weights: Weights, backwards: bool
) -> tuple[torch.Tensor, State]:
    outputs = []
    for step in reversed(steps) if backwards else steps:
        state = cell(step, state, weights)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs, 0), state


def lstm_kernel(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The gates for the backward, then hidden and cell state: ``_thnn_fused_lstm_cell_cuda``."""
    gates, cell = args[1], args[2]
    if not gates.is_meta:
        return func(*args, **kwargs)
    kept = torch.empty_like(gates, memory_format=torch.contiguous_format)
    results = [torch.empty_like(cell, memory_format=torch.contiguous_format) for _ in range(2)]
    card.announce_result([kept, *results], func)
    return *results, kept


def lstm_kernel_backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Gradients of the gates and of the cell state; the biases' is the sum over the batch."""
    cell, kept, biased = args[2], args[4], args[5]
    if not kept.is_meta:
        return func(*args, **kwargs)
    gates = torch.empty_like(kept, memory_format=torch.contiguous_format)
    of_cell = torch.empty_like(cell, memory_format=torch.contiguous_format)
    return gates, of_cell, torch.empty(kept.shape[1], dtype=kept.dtype, device="meta") if biased else None


def gru_kernel(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Five of the hidden state's size in one for the backward, then the state: ``_thnn_fused_gru_cell_cuda``."""
    hidden = args[2]
    if not hidden.is_meta:
        return func(*args, **kwargs)
    kept = torch.empty((hidden.shape[0], 5 * hidden.shape[1]), dtype=hidden.dtype, device="meta")
    result = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    card.announce_result([kept, result], func)
    return result, kept


def gru_kernel_backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Gradients of both products, of the hidden state, and of either bias."""
    gradient, kept, biased = args
    if not gradient.is_meta:
        return func(*args, **kwargs)
    batch, width = gradient.shape
    of_gates = [torch.empty((batch, 3 * width), dtype=kept.dtype, device="meta") for _ in range(2)]
    of_hidden = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    of_biases = [torch.empty(3 * width, dtype=kept.dtype, device="meta") if biased else None for _ in range(2)]
    return *of_gates, of_hidden, *of_biases

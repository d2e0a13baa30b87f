"""The composite recurrent operators, which on CUDA become one operator of cuDNN's, and its casts under autocast.

``selection`` registers the kernels of ``composites`` where the C++ makes the choice (``ONE_HIDDEN_RNN``,
aten/src/ATen/native/RNN.cpp, and ``_cudnn_impl``, native/cudnn/RNN.cpp); ``autocast`` registers ``cast_and_flatten``.

Not known: that a new seed (``torch.manual_seed`` between two steps) makes cuDNN's dropout state anew; here it is made
once, in the first forward that needs it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sweeper.worker.tracing import recurrent_cells, recurrent_weights, releases

__all__ = ["cast_and_flatten", "composites", "forget_dropout_state"]

aten = torch.ops.aten

_COMPOSITES = {"rnn_relu": "RNN_RELU", "rnn_tanh": "RNN_TANH", "lstm": "LSTM", "gru": "GRU"}

_dropout_state: torch.Tensor | None = None

Outside = Callable[..., Any]  # calls an operator past the key on which these kernels are registered


def forget_dropout_state() -> None:
    """Let the next forward make one, as in a new process."""
    global _dropout_state
    _dropout_state = None


def composites(outside: Outside, capability: Callable[[], tuple[int, int]]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """(operator, kernel) for networks over whole sequences (``input``), over packed ones (``data``), and for cells.

    ``capability`` answers the card's compute capability.
    """
    for name, mode in _COMPOSITES.items():
        packet = getattr(aten, name)
        yield f"{name}.input", _over_sequences(packet.input, recurrent_weights.MODES[mode], outside, capability)
        yield f"{name}.data", _over_packed(packet.data, recurrent_weights.MODES[mode], outside, capability)
    yield "lstm_cell", _one_cell(aten.lstm_cell.default, recurrent_cells.lstm_cell, outside)
    yield "gru_cell", _one_cell(aten.gru_cell.default, recurrent_cells.gru_cell, outside)


def _one_cell(composite: Any, cell: recurrent_cells.Cell, outside: Outside) -> Callable[..., Any]:
    def kernel(source: torch.Tensor, states: Any, *weights: Any) -> Any:
        if not source.is_meta:
            return outside(composite, source, states, *weights)
        state = tuple(states) if isinstance(states, list | tuple) else (states,)
        four = (*weights, *[None] * (4 - len(weights)))
        return cell(source, state, four) if len(state) > 1 else cell(source, state, four)[0]

    return kernel


_CELLS: dict[int, recurrent_cells.Cell] = {
    recurrent_weights.MODES["LSTM"]: recurrent_cells.lstm_cell,
    recurrent_weights.MODES["GRU"]: recurrent_cells.gru_cell,
}


def _over_sequences(
    composite: Any, mode: int, outside: Outside, capability: Callable[[], tuple[int, int]]
) -> Callable[..., Any]:
    def kernel(source: torch.Tensor, states: Any, weights: Any, biased: bool, *options: Any) -> Any:
        *options_before, batch_first = options
        if _goes_to_cudnn(source, capability()):
            return _run(mode, source, states, weights, biased, *options_before, batch_first=batch_first, batch_sizes=[])
        if source.is_meta and mode in _CELLS:
            return _step_by_step(_CELLS[mode], source, states, weights, biased, *options)
        return outside(composite, source, states, weights, biased, *options)

    return kernel


def _step_by_step(
    cell: recurrent_cells.Cell,
    source: torch.Tensor,
    states: Any,
    weights: Sequence[torch.Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """``lstm`` and ``gru``, native/RNN.cpp, on a card without cuDNN for the type."""
    first = states if isinstance(states, list | tuple) else (states,)
    each = len(weights) // (layers * (2 if bidirectional else 1))
    grouped: list[recurrent_cells.Weights] = []
    for begin in range(0, len(weights), each):
        group = list(weights[begin : begin + each])
        grouped.append(group if biased else [*group[:2], None, None, *group[2:]])
    output, last = recurrent_cells.layers(
        cell,
        source.transpose(0, 1) if batch_first else source,
        first,
        grouped,
        dropout=dropout,
        train=train,
        bidirectional=bidirectional,
    )
    return output.transpose(0, 1) if batch_first else output, *last


def _over_packed(
    composite: Any, mode: int, outside: Outside, capability: Callable[[], tuple[int, int]]
) -> Callable[..., Any]:
    def kernel(
        source: torch.Tensor, batch_sizes: torch.Tensor, states: Any, weights: Any, biased: bool, *options: Any
    ) -> Any:
        if not _goes_to_cudnn(source, capability()):
            return outside(composite, source, batch_sizes, states, weights, biased, *options)
        sizes = batch_sizes.tolist()
        return _run(mode, source, states, weights, biased, *options, batch_first=False, batch_sizes=sizes)

    return kernel


def _goes_to_cudnn(source: torch.Tensor, capability: tuple[int, int]) -> bool:
    """``cudnn_is_acceptable``, native/TensorProperties.cpp, of a tensor on the card; bfloat16 from sm80 on."""
    types = [torch.float16, torch.float32, torch.float64]
    if releases.CUDNN_RUNS_BFLOAT16_NETWORKS and capability >= (8, 0):
        types.append(torch.bfloat16)
    return source.is_meta and source.numel() > 0 and source.dtype in types and torch.backends.cudnn.enabled


def _run(
    mode: int,
    source: torch.Tensor,
    states: Any,
    weights: Sequence[torch.Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    batch_first: bool,
    batch_sizes: list[int],
) -> Any:
    """``_cudnn_impl``: the weight space if the parameters are views of one, the dropout's state, the network."""
    hidden, cell = states if isinstance(states, list | tuple) else (states, None)
    width = cell.shape[2] if cell is not None else hidden.shape[2]
    projection = hidden.shape[2] if hidden.shape[2] != width else 0
    network = recurrent_weights.Network(
        mode=mode,
        input=source.shape[-1],
        hidden=width,
        projection=projection,
        layers=layers,
        directions=2 if bidirectional else 1,
    )
    each = len(weights) // (layers * network.directions)
    space = recurrent_weights.flattened(weights, network, each)
    state = _state_of_dropout() if train and dropout > 0 else _dropout_state
    output, last, last_cell, *_ = aten._cudnn_rnn.default(
        source, weights, each, space, hidden, cell, mode, width, projection, layers, batch_first, dropout, train,
        bidirectional, batch_sizes, state,
    )  # fmt: skip
    return (output, last) if cell is None else (output, last, last_cell)


def _state_of_dropout() -> torch.Tensor:
    """``get_dropout_state``: a seed is drawn on the card, and the state kept for the rest of the process."""
    global _dropout_state
    if _dropout_state is None:
        torch.empty((), dtype=torch.int64, device="meta")
        _dropout_state = aten._cudnn_init_dropout_state.default(0.5, True, 0, dtype=torch.uint8, device="meta")
    return _dropout_state


def cast_and_flatten(cast: Callable[[Any], Any], eligible: Callable[[torch.Tensor], bool], args: Any) -> Any:
    """``_cudnn_rnn`` under autocast, to half whatever autocast's type is; ``cast`` makes half of what it is given.

    The weights are copied into a weight space of their own, which autograd sees; then the cell state, the hidden state
    and the input are cast, in the order in which GCC evaluates arguments.
    """
    source, weights, each, space, hidden, cell, mode, width, projection, layers, *rest = args
    sample = weights[0] if space is None else space
    if eligible(sample) and sample.dtype != torch.float16:
        network = recurrent_weights.Network(
            mode=mode,
            input=source.shape[-1],
            hidden=width,
            projection=projection,
            layers=layers,
            directions=2 if rest[3] else 1,
        )
        space = torch.zeros(network.weight_elements(), dtype=torch.float16, device="meta")
        places = recurrent_weights.places_of(network, each)
        weights = [_copied(weight, space, *place) for weight, place in zip(weights, places, strict=True)]
    cell = cast(cell)
    hidden = cast(hidden)
    source = cast(source)
    return aten._cudnn_rnn.default(source, weights, each, space, hidden, cell, mode, width, projection, layers, *rest)


def _copied(weight: torch.Tensor, space: torch.Tensor, offset: int, elements: int) -> torch.Tensor:
    part = recurrent_weights.part_of(space.untyped_storage(), space.dtype, offset, (elements, 1))
    return part.copy_(weight.view_as(part))

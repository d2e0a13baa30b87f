"""Recurrent networks as cuDNN runs them: one operator a network, its weights in one buffer.

On CUDA ``lstm``, ``gru`` and ``rnn_*`` become ``_cudnn_rnn``, which computes all layers and time steps in one call; on
meta tensors torch would compute them step by step.  Sources, PyTorch 2.14: ``_cudnn_impl``, ``_cudnn_rnn`` and
``_cudnn_rnn_backward``, aten/src/ATen/native/cudnn/RNN.cpp; ``flatten_parameters``, torch/nn/modules/rnn.py;
``_cudnn_rnn_cast_reflatten``, aten/src/ATen/cudnn/AutocastRNN.cpp.

Known exactly: where the weights lie (``recurrent_weights``), and that their gradients are views of one buffer too.

Estimated: what ``cudnnGetRNNTempSpaceSizes`` answers, which cuDNN does not publish.  ``reserve_bytes`` takes what the
backward needs of each layer, direction and time step, counted as in MIOpen's open library for the same interface
(``workspaceScale``, src/rnn.cpp: an LSTM keeps four gates, the cell and the hidden state; a GRU three gates and the
hidden state; a plain network the hidden state), and one byte of dropout mask between layers.  ``workspace_bytes`` takes
the gates of one layer for all time steps, which cuDNN computes in one product (Appleyard et al., arXiv:1604.01946).
Persistent kernels may need less.  Dropout's random states are "slightly over 2MB" (RNN.cpp); 2 MiB here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from sweeper.units import MIB
from sweeper.worker.tracing.card import Card
from sweeper.worker.tracing.convolution import copy_into
from sweeper.worker.tracing.recurrent_weights import Network, part_of, places_of

__all__ = ["backward", "forward", "init_dropout_state", "pack"]

_DROPOUT_STATE_BYTES = 2 * MIB


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments that ``_cudnn_rnn`` and its backward share."""

    network: Network
    batch_first: bool
    dropout: bool
    train: bool
    batch_sizes: list[int]
    source: torch.Tensor  # in the order of time, unless packed

    @property
    def tokens(self) -> int:
        return self.source.shape[0] if self.batch_sizes else self.source.shape[0] * self.source.shape[1]

    @property
    def output_shape(self) -> list[int]:
        return [*self.source.shape[:-1], self.network.output * self.network.directions]

    def workspace(self, card: Card) -> Callable[[], None]:
        return card.scratch(self.network.workspace_bytes(self.tokens, self.source.element_size()), "cudnn_workspace")


def _call(source: torch.Tensor, options: Sequence[Any]) -> _Call:
    """``options``: mode, sizes, layers, batch_first, dropout, train, bidirectional, batch_sizes, as in the schema."""
    mode, hidden, projection, layers, batch_first, dropout, train, bidirectional, batch_sizes = options
    directions = 2 if bidirectional else 1
    network = Network(
        mode=mode, input=source.shape[-1], hidden=hidden, projection=projection, layers=layers, directions=directions
    )
    turned = batch_first and not batch_sizes
    if turned:
        source = source.transpose(0, 1)
    return _Call(network, turned, train and dropout > 0, train, list(batch_sizes), source)


def forward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """A copy of the input if it is not in the order of time, results, weights if not in one buffer, temporary space."""
    source, weights, _, space, hidden, cell = args[:6]
    if not source.is_meta:
        return func(*args, **kwargs)
    if hidden.dtype != source.dtype or any(weight.dtype != source.dtype for weight in weights):
        types = f"{source.dtype}, {hidden.dtype} and {weights[0].dtype}"
        raise RuntimeError(f"input, hidden state and weights of a recurrent network must be of one type, not {types}")
    call = _call(source, args[6:15])
    give_back = copy_into(card, call.source, torch.contiguous_format, func)
    output = torch.empty(call.output_shape, dtype=source.dtype, device="meta")
    last = torch.empty(hidden.shape, dtype=hidden.dtype, device="meta")
    last_cell = torch.empty(cell.shape if cell is not None else 0, dtype=hidden.dtype, device="meta")
    card.announce_result((output, last, last_cell), func)
    if space is None:
        space = torch.empty(call.network.weight_elements(), dtype=source.dtype, device="meta")
        card.announce_result(space, func)
    workspace = call.workspace(card)
    size = call.network.reserve_bytes(call.tokens, source.element_size(), dropout=call.dropout) if call.train else 0
    reserve = torch.empty(size, dtype=torch.uint8, device="meta")
    card.announce_result(reserve, func)
    workspace()
    give_back()
    return output.transpose(0, 1) if call.batch_first else output, last, last_cell, reserve, space


def backward(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Gradients that were not given are zeros, made first; the input's gradients; then those of the weights."""
    source, weights, per_layer, space, hidden, cell, output = args[:7]
    given = args[7:10]
    if not source.is_meta:
        return func(*args, **kwargs)
    if all(gradient is None for gradient in given):
        return None, None, None, [None] * len(weights)
    call = _call(source, args[10:19])
    likes = (output, hidden, cell)
    zeros = [
        card.scratch(like.numel() * like.element_size(), "cudnn_rnn_gradient")
        for gradient, like in zip(given, likes, strict=True)
        if gradient is None and like is not None
    ]
    gradients = _input_gradients(card, func, call, given, hidden, cell)
    of_weights = (
        _weight_gradients(card, func, call, weights, per_layer, space) if args[21][3] else [None] * len(weights)
    )
    for give_back in zeros:
        give_back()
    return *gradients, of_weights


def _input_gradients(
    card: Card,
    func: OpOverload,
    call: _Call,
    given: Sequence[torch.Tensor | None],
    hidden: torch.Tensor,
    cell: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """``_cudnn_rnn_backward_input``: made whether or not they are asked for, because the reserve changes with them."""
    of_output, of_hidden, of_cell = given
    copies = [copy_into(card, call.source, torch.contiguous_format, func)]
    if of_output is not None:
        turned = of_output.transpose(0, 1) if call.batch_first else of_output
        copies.append(copy_into(card, turned, torch.contiguous_format, func))
    elif call.batch_first:  # zeros in the output's layout, turned
        copies.append(card.scratch(_bytes(call.output_shape, call.source), "cudnn_rnn_gradient"))
    result = torch.empty(call.source.shape, dtype=call.source.dtype, device="meta")
    card.announce_result(result, func)
    copies.extend(
        copy_into(card, each, torch.contiguous_format, func) for each in (of_hidden, of_cell) if each is not None
    )
    of_first = torch.empty_like(hidden)
    of_first_cell = torch.empty_like(cell) if cell is not None else None
    card.announce_result((of_first, of_first_cell), func)
    call.workspace(card)()
    for give_back in copies:
        give_back()
    return result.transpose(0, 1) if call.batch_first else result, of_first, of_first_cell


def _weight_gradients(
    card: Card, func: OpOverload, call: _Call, weights: Sequence[torch.Tensor], per_layer: int, space: torch.Tensor
) -> list[torch.Tensor]:
    """``_cudnn_rnn_backward_weight``: views of one buffer, or copies where the space has biases and the model none."""
    give_back = copy_into(card, call.source, torch.contiguous_format, func)
    whole = torch.empty_like(space)
    if per_layer > 3:
        card.announce_result(whole, func)
        call.workspace(card)()
        give_back()
        places = places_of(call.network, per_layer)
        return [
            part_of(whole.untyped_storage(), whole.dtype, offset, weight.shape)
            for weight, (offset, _) in zip(weights, places, strict=True)
        ]
    passing = card.scratch(whole.numel() * whole.element_size(), "cudnn_rnn_gradient")
    workspace = call.workspace(card)
    results = [torch.empty(weight.shape, dtype=weight.dtype, device="meta") for weight in weights]
    card.announce_result(results, func)
    workspace()
    passing()
    give_back()
    return results


def pack(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Steps of as many sequences, each contiguous, put together: ``_pack_padded_sequence``, PackedSequence.cpp."""
    source, lengths, batch_first = args
    results = func(*args, **kwargs)
    if not source.is_meta:
        return results
    in_time = source.transpose(0, 1) if batch_first else source
    copies, begin = [], 0
    for end in sorted(set(lengths.tolist())):
        running = int((lengths >= end).sum())
        copies.append(copy_into(card, in_time[begin:end, :running], torch.contiguous_format, func))
        begin = end
    card.announce_result(results, func)
    for give_back in copies:
        give_back()
    return results


def init_dropout_state(card: Card, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The states of the random numbers: ``_cudnn_init_dropout_state`` with ``cudnnDropoutGetStatesSize``."""
    return torch.empty(_DROPOUT_STATE_BYTES, dtype=torch.uint8, device="meta")


def _bytes(shape: Sequence[int], like: torch.Tensor) -> int:
    size = like.element_size()
    for axis in shape:
        size *= axis
    return size

"""The weights of a recurrent network as cuDNN wants them: one buffer, of which the parameters are views.

The weight space holds the matrices of every pseudo-layer (a layer in one direction) and then, whether or not the model
has any, two biases a gate, because PyTorch asks for CUDNN_RNN_DOUBLE_BIAS.  PyTorch relies on this order, so it is
known exactly: ``get_parameters``, aten/src/ATen/native/cudnn/RNN.cpp.  When a model is placed on the card its
parameters become views of one such buffer (``flatten_parameters``, torch/nn/modules/rnn.py).

``Network`` also answers for the sizes that are cuDNN's own, which are estimates; ``recurrent`` says what they rest on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["MODES", "Network", "flatten", "flattened", "part_of", "places_of"]

_LSTM, _GRU = 2, 3  # cudnnRNNMode_t, cudnn_adv.h; 0 and 1 are the plain networks
MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": _LSTM, "GRU": _GRU}
_MASK_BYTES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What cuDNN is told of a network.  ``projection`` is 0 where hidden states are not projected."""

    mode: int
    input: int
    hidden: int
    projection: int
    layers: int
    directions: int

    @property
    def gates(self) -> int:
        return {_LSTM: 4, _GRU: 3}.get(self.mode, 1)

    @property
    def output(self) -> int:
        """The width of one direction's output."""
        return self.projection or self.hidden

    def shapes(self, pseudo_layer: int) -> list[tuple[int, int]]:
        """Rows and columns of the matrices of ``pseudo_layer``: of the input, recurrent, and of the projection."""
        columns = self.input if pseudo_layer < self.directions else self.output * self.directions
        rows = self.gates * self.hidden
        projection = [(self.projection, self.hidden)] if self.projection else []
        return [(rows, columns), (rows, self.output), *projection]

    def places(self) -> list[list[tuple[int, int]]]:
        """(offset, elements) in the weight space, by pseudo-layer in PyTorch's order: matrices, biases, projection."""
        layers, offset = [], 0
        for layer in range(self.layers * self.directions):
            matrices = []
            for rows, columns in self.shapes(layer):
                matrices.append((offset, rows * columns))
                offset += rows * columns
            layers.append(matrices)
        rows = self.gates * self.hidden
        for matrices in layers:
            matrices[2:2] = [(offset, rows), (offset + rows, rows)]
            offset += 2 * rows
        return layers

    def weight_elements(self) -> int:
        """The length of the weight space: ``cudnnGetRNNWeightSpaceSize``."""
        last = self.places()[-1][3]
        return sum(last)

    def workspace_bytes(self, tokens: int, element_bytes: int) -> int:
        """An estimate, for ``tokens`` time steps in all sequences together."""
        return self.directions * tokens * self.gates * self.hidden * element_bytes

    def reserve_bytes(self, tokens: int, element_bytes: int, *, dropout: bool) -> int:
        """An estimate of what a training forward leaves for the backward."""
        states = {_LSTM: 6, _GRU: 4}.get(self.mode, 1)
        masks = (self.layers - 1) * _MASK_BYTES if dropout else 0
        return self.directions * tokens * self.hidden * (self.layers * states * element_bytes + masks)


def places_of(network: Network, weights_per_layer: int) -> Iterator[tuple[int, int]]:
    """(offset, elements) of each parameter, in the order of ``_flat_weights``, which leaves out absent biases."""
    biased = weights_per_layer > 3
    for places in network.places():
        yield from places if biased else (*places[:2], *places[4:])


def flattened(parameters: Sequence[torch.Tensor], network: Network, weights_per_layer: int) -> torch.Tensor | None:
    """The weight space that ``parameters`` are views of, or None: ``try_get_weight_buf``."""
    first = parameters[0]
    storage = first.untyped_storage()
    length = network.weight_elements()
    if storage.nbytes() < length * first.element_size():
        return None
    for parameter, (offset, _) in zip(parameters, places_of(network, weights_per_layer), strict=True):
        if parameter.untyped_storage()._cdata != storage._cdata or parameter.storage_offset() != offset:
            return None
    return part_of(storage, first.dtype, 0, (length,))


def part_of(storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: Sequence[int]) -> torch.Tensor:
    """A contiguous tensor in ``storage`` that is no view of another, as the parts that PyTorch cuts out are not."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    empty = torch.empty(0, dtype=dtype, device="meta")
    return empty.set_(storage, offset, tuple(shape), tuple(strides))


def flatten(module: nn.RNNBase, announce: Callable[[torch.Tensor], None]) -> None:
    """Make the parameters of ``module`` views of a new buffer, as ``flatten_parameters`` does on the card.

    ``announce`` is told of the buffer before the parameters leave where they were, which may be such a buffer already.
     Parameters in bfloat16 stay there:
    ``torch.backends.cudnn.is_acceptable`` does not know the type.
    """
    parameters: list[torch.Tensor] = [weight for weight in module._flat_weights if weight is not None]
    types = {parameter.dtype for parameter in parameters}
    if types not in ({torch.float16}, {torch.float32}, {torch.float64}) or not torch.backends.cudnn.enabled:
        return
    places = {(parameter.untyped_storage()._cdata, parameter.storage_offset()) for parameter in parameters}
    if len(places) != len(parameters):
        return
    network = Network(
        mode=MODES[module.mode],
        input=module.input_size,
        hidden=module.hidden_size,
        projection=module.proj_size,
        layers=module.num_layers,
        directions=2 if module.bidirectional else 1,
    )
    space = torch.empty(network.weight_elements(), dtype=parameters[0].dtype, device="meta")
    announce(space)
    each = len(parameters) // (network.layers * network.directions)
    with torch.no_grad():
        for parameter, (offset, _) in zip(parameters, places_of(network, each), strict=True):
            parameter.set_(space.untyped_storage(), offset, parameter.shape, parameter.stride())

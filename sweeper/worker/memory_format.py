"""``--channels-last``: images, and the weights that are convolved with them, with the channels as the fastest axis.

``torch.channels_last`` for tensors of four axes, ``torch.channels_last_3d`` for five: what a person gets by
``model.to(memory_format=...)`` and the same of the inputs.  Targets stay as they are.  A format is a matter of strides,
so it means the same on meta tensors.
"""

import dataclasses
from typing import Any

import torch

from sweeper.errors import UsageError
from sweeper.worker.devices import map_tensors
from sweeper.worker.models import Batch, Workload

__all__ = ["channels_last"]

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def channels_last(workload: Workload, name: str) -> Workload:
    """Return ``workload`` in the format, its model changed in place.

    Making a batch raises ``UsageError`` where the model, called ``name``, takes no image and no video.
    """
    for tensor in (*workload.model.parameters(), *workload.model.buffers()):
        tensor.data = _formatted(tensor.data)

    def make_batch(size: int) -> Batch:
        inputs, targets = workload.make_batch(size)
        dimensions: list[int] = []
        map_tensors(inputs, lambda tensor: dimensions.append(tensor.dim()))
        if not set(dimensions) & set(_FORMATS):
            raise UsageError(
                f"--channels-last is about batches of images, and {name} takes none", hint="leave --channels-last out"
            )
        formatted: Any = map_tensors(inputs, _formatted)
        return formatted, targets

    return dataclasses.replace(workload, make_batch=make_batch)


def _formatted(tensor: torch.Tensor) -> torch.Tensor:
    memory_format = _FORMATS.get(tensor.dim())
    return tensor if memory_format is None else tensor.contiguous(memory_format=memory_format)

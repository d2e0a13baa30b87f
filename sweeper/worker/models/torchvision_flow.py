"""torchvision's optical flow models: two images to the movement of each pixel, refined step by step.

Trained as in references/optical_flow: a loss of every refinement, the later the heavier (``sequence_loss`` in its
utils.py, gamma 0.8), 12 refinements, crops of 368 x 496 pixels as for FlyingChairs.  ``--image-size`` makes squares.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sweeper.errors import UsageError
from sweeper.worker.models import Batch, Workload, require_counts
from sweeper.worker.models.torchvision import construct

__all__ = ["build", "sequence_loss"]

_CROP = (368, 496)
_GAMMA = 0.8
_MOST_PIXELS = 400.0  # a pixel that moves farther does not count
_MULTIPLE = 8  # the encoder halves three times: RAFT.forward
_SMALLEST = 128  # four levels of correlations, at an eighth of the image


def build(name: str, model_args: Mapping[str, Any], image_size: int | None) -> Workload:
    """Return the model ``name`` with pairs of random images; raises ``UsageError`` for sizes that it does not take."""
    height, width = _CROP if image_size is None else (image_size, image_size)
    require_counts(image_size=height)
    if height % _MULTIPLE or height < _SMALLEST:
        near = max(_SMALLEST, round(height / _MULTIPLE) * _MULTIPLE)
        raise UsageError(
            f"{name} needs an image size of {_SMALLEST} or more that {_MULTIPLE} divides, not {height}",
            hint=f"the nearest is {near}",
        )

    def make_batch(batch: int) -> Batch:
        images = torch.rand(batch, 3, height, width), torch.rand(batch, 3, height, width)
        return images, (torch.randn(batch, 2, height, width), torch.ones(batch, height, width, dtype=torch.bool))

    sizes = {"image_size": _CROP[0], "image_step": _MULTIPLE, "image_least": _SMALLEST}
    return Workload(model=construct(name, model_args, {}), make_batch=make_batch, loss=sequence_loss, sizes=sizes)


def sequence_loss(outputs: list[Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    """The mean distance of each refinement from the true flow where that is valid, weighted and added up."""
    flow, valid = targets
    counts = valid & (torch.sum(flow**2, dim=1).sqrt() < _MOST_PIXELS)
    predicted = torch.stack(outputs)
    distances = ((predicted - flow).abs() * counts[:, None]).mean(dim=(1, 2, 3, 4))
    weights = _GAMMA ** torch.arange(len(predicted) - 1, -1, -1, device=flow.device)
    return (distances * weights).sum()

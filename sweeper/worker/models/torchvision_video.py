"""torchvision's video classification models: clips of (3, frames, height, width), cross entropy.

A clip is as long as the default weights were evaluated on, where these say; ``--model-arg frames=N`` is another length.
The MViTs have a position for each place and time, so their network is built for the clip.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torchvision import models

from sweeper.errors import UsageError
from sweeper.worker.models import Batch, Workload, require_counts
from sweeper.worker.models.torchvision import classification_loss, construct, native_size

__all__ = ["build", "native_frames"]

_CLASSES = 400  # Kinetics-400's

# Frames of a clip: ``--clip-len`` of references/video_classification for the ResNets; the recipes of the weights
# (``_meta`` in torchvision/models/video) for S3D and Swin; MViT's temporal_size.
_FRAMES = {"s3d": 128, "swin3d": 32}
_FRAMES_OTHERWISE = 16

# MViT halves a frame twice and its stages three times more, and takes every second image.
_MVIT_MULTIPLE, _MVIT_FRAMES = 32, 2


def native_frames(name: str) -> int:
    """Frames in a clip that the default weights were evaluated on."""
    return next((frames for prefix, frames in _FRAMES.items() if name.startswith(prefix)), _FRAMES_OTHERWISE)


def build(name: str, model_args: Mapping[str, Any], image_size: int | None) -> Workload:
    """Return the model ``name`` with random clips of square images of ``image_size`` pixels a side.

    Raises ``UsageError`` for arguments that its builder does not take and for clips that it cannot train on.
    """
    arguments = dict(model_args)
    frames = arguments.pop("frames", native_frames(name))
    classes = arguments.get("num_classes", _CLASSES)
    size = native_size(name) if image_size is None else image_size
    require_counts(frames=frames, num_classes=classes, image_size=size)
    shape: dict[str, Any] = {}
    if name.startswith("mvit"):
        _check_mvit(name, frames, size)
        shape = {"temporal_size": frames, "spatial_size": (size, size)}
    least = int(models.get_model_weights(name).DEFAULT.meta.get("min_temporal_size", 1))
    if frames < least and not shape:
        raise UsageError(f"{name} takes clips of at least {least} frames, not {frames}", hint=f"frames={least}")

    def make_batch(batch: int) -> Batch:
        return torch.randn(batch, 3, frames, size, size), torch.randint(classes, (batch,))

    sizes = {"image_size": native_size(name), "image_step": _MVIT_MULTIPLE if shape else 1}
    model = construct(name, arguments, shape)
    return Workload(model=model, make_batch=make_batch, loss=classification_loss, sizes=sizes)


def _check_mvit(name: str, frames: int, size: int) -> None:
    for what, given, multiple in (("an image size", size, _MVIT_MULTIPLE), ("a number of frames", frames, _MVIT_FRAMES)):
        if given % multiple:
            near = max(multiple, round(given / multiple) * multiple)
            raise UsageError(f"{name} needs {what} that {multiple} divides, not {given}", hint=f"the nearest is {near}")

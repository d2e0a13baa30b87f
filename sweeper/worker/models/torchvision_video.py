"""torchvision's video classification models: clips of (3, frames, height, width), cross entropy.

A clip is as long as the default weights were evaluated on, where these say; ``--model-arg frames=N`` is another length.
The MViTs have a position for each place and time, and their builders fix both.
"""

from collections.abc import Mapping
from typing import Any

import torch

from sweeper.errors import UsageError
from sweeper.worker.models import Batch, Workload, require_counts
from sweeper.worker.models.torchvision import classification_loss, construct, native_size

__all__ = ["build", "native_frames"]

_CLASSES = 400  # Kinetics-400's

# Frames of a clip: ``--clip-len`` of references/video_classification for the ResNets; the recipes of the weights
# (``_meta`` in torchvision/models/video) for S3D and Swin; MViT's temporal_size.
_FRAMES = {"s3d": 128, "swin3d": 32}
_FRAMES_OTHERWISE = 16

# The smallest clips, in frames and pixels.  S3D's are those of its weights' meta; the ResNets halve an image four
# times, and batch norm needs two values of one sample.
_SMALLEST = {"s3d": (14, 224), "swin3d": (1, 1)}
_SMALLEST_OTHERWISE = (1, 17)


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
    fixed = name.startswith("mvit")
    if fixed and (frames, size) != (native_frames(name), native_size(name)):
        raise UsageError(
            f"{name} takes clips of {native_frames(name)} frames of {native_size(name)} pixels, and no others",
            hint="leave --image-size and frames out",
        )
    _check_smallest(name, frames, size)

    def make_batch(batch: int) -> Batch:
        return torch.randn(batch, 3, frames, size, size), torch.randint(classes, (batch,))

    sizes = {"inputs": f"3 x {frames} x {size} x {size}", "image_size": native_size(name), "image_step": 1}
    sizes["image_least"] = native_size(name) if fixed else _smallest(name)[1]
    model = construct(name, arguments, {})
    return Workload(model=model, make_batch=make_batch, loss=classification_loss, sizes=sizes)


def _smallest(name: str) -> tuple[int, int]:
    """Frames and pixels of the smallest clip that trains."""
    return next((least for prefix, least in _SMALLEST.items() if name.startswith(prefix)), _SMALLEST_OTHERWISE)


def _check_smallest(name: str, frames: int, size: int) -> None:
    least_frames, least_size = _smallest(name)
    if frames < least_frames or size < least_size:
        raise UsageError(
            f"{name} cannot train on {frames} frames of {size} pixels",
            hint=f"it takes {least_frames} of {least_size} up",
        )

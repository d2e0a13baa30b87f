"""torchvision's segmentation models, trained as its references train them.

Images and masks are of the size that the default weights were evaluated on.  The loss is cross entropy over all pixels,
0.5 times that of the auxiliary head added, which the references' recipes have (``--aux-loss``):
references/segmentation/train.py, ``criterion``.  The whole backbone is trained, as there.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision import models

from sweeper.errors import UsageError
from sweeper.worker.models import Batch, Workload, require_counts
from sweeper.worker.models.torchvision import construct

__all__ = ["build", "native_size", "segmentation_loss"]

_AUXILIARY_WEIGHT = 0.5
_NO_OBJECT = 255  # pixels of no class, in Pascal VOC's masks
_CLASSES = 21  # Pascal VOC's, as of the default weights

# Five halvings, and batch norm over what is left of one image: below this a batch of one cannot train.
_SMALLEST = 33


def native_size(name: str) -> int:
    """Pixels of the shorter side of the images that the default weights were evaluated on."""
    return int(models.get_model_weights(name).DEFAULT.transforms().resize_size[0])


def build(name: str, model_args: Mapping[str, Any], image_size: int | None) -> Workload:
    """Return the model ``name`` with square images of ``image_size`` pixels and a class for each of their pixels.

    Raises ``UsageError`` for arguments that its builder does not take and for sizes that it cannot train on.
    """
    classes = model_args.get("num_classes", _CLASSES)
    size = native_size(name) if image_size is None else image_size
    require_counts(num_classes=classes, image_size=size)
    has_auxiliary = not name.startswith("lraspp")
    if model_args.get("aux_loss") and not has_auxiliary:
        raise UsageError(f"{name} has no auxiliary head", hint="leave aux_loss out")
    model = construct(name, {"aux_loss": True, **model_args} if has_auxiliary else model_args, {})

    def make_batch(batch: int) -> Batch:
        return torch.randn(batch, 3, size, size), torch.randint(classes, (batch, size, size))

    sizes = {"image_size": native_size(name), "image_step": 1, "image_least": _SMALLEST}
    return Workload(model=model, make_batch=make_batch, loss=segmentation_loss, sizes=sizes)


def segmentation_loss(outputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """Cross entropy of each pixel; with that of the auxiliary head, weighted, where there is one."""
    loss = F.cross_entropy(outputs["out"], targets, ignore_index=_NO_OBJECT)
    if "aux" in outputs:
        loss = loss + _AUXILIARY_WEIGHT * F.cross_entropy(outputs["aux"], targets, ignore_index=_NO_OBJECT)
    return loss

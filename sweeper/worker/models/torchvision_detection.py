"""torchvision's detection models, trained as its references train them: a list of images, and the boxes in each.

Weights are random, but the network is that of fine-tuning from pretrained weights, which is what nearly everybody does
and takes much less memory: the first stages of the backbone are frozen (the builders' defaults, or
``trainable_backbone_layers``), and its batch norms are ``FrozenBatchNorm2d`` where the builders make them so.  Without
weights the builders themselves train everything.

Every image is square, of the side to which the model's own transform brings the shorter side (``min_size``), and has
``objects`` boxes (8; COCO's training images have 7.3 on average: Lin et al. 2014, 860,001 in 118,287).  Real images are
longer on one side, up to ``max_size``: for these give a larger ``--image-size``.

On meta tensors a detector's own outputs are not known.  Two things that follow from how it samples them are said here:
as many proposals are foreground as the sampler can take, and every detected box is the whole image, whose mask then is
pasted whole.  Both are the most there can be.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import FrozenBatchNorm2d

from sweeper.errors import UsageError
from sweeper.trial import TrialSpec
from sweeper.worker.models import Batch, Workload, require_counts
from sweeper.worker.models.torchvision import construct
from sweeper.worker.tracing.values import assume

__all__ = ["build", "sum_of_losses"]

_OBJECTS = 8
_CLASSES, _PERSONS = 91, 2  # COCO's categories, and those of its keypoints; 0 is the background
_KEYPOINTS = 17
_FIXED = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320}
_SMALLEST = 32  # the coarsest level of the pyramid is one pixel then

# Stages of the backbone that are trained from pretrained weights, and how many there are:
# ``_validate_trainable_layers`` in each builder of torchvision/models/detection.  SSDlite trains them all.
_TRAINED = {"ssd300_vgg16": (4, 5), "fasterrcnn_mobilenet": (3, 6), "": (3, 5)}
_RESNET_STAGES = ("layer4", "layer3", "layer2", "layer1", "conv1")


def build(spec: TrialSpec, model_args: Mapping[str, Any], image_size: int | None) -> Workload:
    """Return the detector that ``spec`` names; the loss is the sum of its own.

    Raises ``UsageError`` for arguments that its builder does not take, for a size that cannot be chosen, and for
    weights of 16 bits, which its targets and its suppression of boxes are not made for.
    """
    name, arguments = spec.model, dict(model_args)
    if spec.precision in ("bf16", "fp16", "fp8"):
        raise UsageError(
            f"{name} does not train in {spec.precision}: its boxes and their losses are fp32",
            hint="take --precision amp-fp16 or amp-bf16",
        )
    objects = arguments.pop("objects", _OBJECTS)
    trained = arguments.pop("trainable_backbone_layers", None)
    classes = arguments.get("num_classes", _PERSONS if name.startswith("keypoint") else _CLASSES)
    require_counts(objects=objects, num_classes=classes)
    if classes < 2:
        raise UsageError(f"{name} needs a class besides the background", hint="give num_classes=2 or more")
    model = construct(name, arguments, _shape(name, image_size))
    _check_arguments(name, model, arguments)
    _freeze(name, model, trained)
    if isinstance(heads := getattr(model, "roi_heads", None), RoIHeads):
        heads.__class__ = _KnownRoIHeads
    side = _FIXED.get(name) or int(model.transform.min_size[-1])  # type: ignore[union-attr,index]
    targets = _Targets(objects, classes, side, masks=name.startswith("mask"), keypoints=name.startswith("keypoint"))

    def make_batch(batch: int) -> Batch:
        images = [torch.rand(3, side, side) for _ in range(batch)]
        return (images, [targets.make() for _ in range(batch)]) if spec.mode == "train" else (images,), None

    sizes = {"inputs": f"3 x {side} x {side} with {objects} objects", "image_size": side, "image_step": 1}
    sizes["image_least"] = side if name in _FIXED else _SMALLEST
    return Workload(model=model, make_batch=make_batch, loss=sum_of_losses, sizes=sizes)


def sum_of_losses(outputs: Mapping[str, Tensor], targets: None) -> Tensor:
    """What the references call backward on: ``train_one_epoch``, references/detection/engine.py."""
    return sum(outputs.values())  # type: ignore[return-value]


class _Targets:
    """The boxes of one image and what belongs to them, with values on the CPU wherever the batch is made."""

    def __init__(self, objects: int, classes: int, side: int, *, masks: bool, keypoints: bool) -> None:
        self._objects, self._classes, self._side = objects, classes, side
        self._masks, self._keypoints = masks, keypoints

    def make(self) -> dict[str, Tensor]:
        """Boxes of a tenth to a half of the image a side, at least a pixel."""
        objects, side = self._objects, self._side
        extent = (torch.rand(objects, 2, device="cpu") * 0.4 + 0.1) * side
        corner = torch.rand(objects, 2, device="cpu") * (side - extent)
        boxes = torch.cat([corner, corner + extent], dim=1)
        made = {"boxes": boxes, "labels": torch.randint(1, self._classes, (objects,), device="cpu")}
        if self._masks:
            made["masks"] = self._filled(boxes)
        if self._keypoints:
            places = corner[:, None] + torch.rand(objects, _KEYPOINTS, 2, device="cpu") * extent[:, None]
            made["keypoints"] = torch.cat([places, torch.ones(objects, _KEYPOINTS, 1, device="cpu")], dim=2)
        return made

    def _filled(self, boxes: Tensor) -> Tensor:
        """A mask a box, on the default device: on meta it takes no memory, and nothing asks for its values."""
        masks = torch.zeros(self._objects, self._side, self._side, dtype=torch.uint8)
        for mask, box in zip(masks, boxes.round().int().tolist(), strict=True):
            mask[box[1] : box[3] + 1, box[0] : box[2] + 1] = 1
        return masks


class _KnownRoIHeads(RoIHeads):  # type: ignore[misc]
    """torchvision's heads, which say in a trace what may be taken of their own outputs."""

    def assign_targets_to_proposals(self, *args: Any) -> tuple[list[Tensor], list[Tensor]]:
        matched, labels = super().assign_targets_to_proposals(*args)
        for of_image in labels:
            foreground = torch.arange(len(of_image), device="cpu") < len(of_image) // 2
            assume(of_image, foreground.to(of_image.dtype), "half of all proposals are foreground")
        return matched, labels

    def postprocess_detections(self, *args: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        boxes, scores, labels = super().postprocess_detections(*args)
        for of_image, (height, width) in zip(boxes, args[3], strict=True):
            whole = torch.tensor([0, 0, width, height], dtype=of_image.dtype, device="cpu").expand(of_image.shape)
            assume(of_image, whole, "every detected box is the whole image")
        return boxes, scores, labels


def _shape(name: str, image_size: int | None) -> dict[str, Any]:
    if image_size is None:
        return {}
    if name in _FIXED:
        if image_size != _FIXED[name]:
            raise UsageError(f"{name} brings every image to {_FIXED[name]} pixels", hint="leave --image-size out")
        return {}
    require_counts(image_size=image_size)
    if image_size < _SMALLEST:
        raise UsageError(
            f"{name} needs images of {_SMALLEST} pixels or more, not {image_size}", hint="give a larger one"
        )
    return {"min_size": image_size, "max_size": image_size}


def _check_arguments(name: str, model: nn.Module, arguments: Mapping[str, Any]) -> None:
    """The constructors of the R-CNNs take any keyword and look at those they know."""
    parameters = [
        parameter
        for kind in type(model).__mro__
        if kind.__module__.startswith("torchvision.models.detection")
        for parameter in inspect.signature(kind).parameters.values()
    ]
    unknown = set(arguments) - {parameter.name for parameter in parameters}
    if unknown:
        takes = sorted({each.name for each in parameters if isinstance(each.default, int | float)} | {"num_classes"})
        raise UsageError(
            f"{name} takes no argument {', '.join(map(repr, sorted(unknown)))}",
            hint=f"it takes objects, trainable_backbone_layers, {', '.join(takes)}",
        )


def _freeze(name: str, model: nn.Module, trained: int | None) -> None:
    """Make of the whole network the one that its builder makes from pretrained weights."""
    if name.startswith("ssdlite"):
        if trained is not None:
            raise UsageError(f"{name} trains its whole backbone", hint="leave trainable_backbone_layers out")
        return
    usual, most = next(stages for prefix, stages in _TRAINED.items() if name.startswith(prefix))
    count = usual if trained is None else trained
    if not isinstance(count, int) or not 1 <= count <= most:
        raise UsageError(f"trainable_backbone_layers must be 1 to {most}, not {count!r}", hint=f"{usual} is usual")
    backbone: Any = model.backbone
    if name.startswith("ssd"):
        _freeze_before(backbone.features, _vgg_stages(backbone.features)[most - count])
        return
    if name.startswith("fasterrcnn_mobilenet"):
        blocks = list(backbone.body.values())
        stages = [0, *(n for n, block in enumerate(blocks) if getattr(block, "_is_cn", False)), len(blocks) - 1]
        _freeze_before(blocks, stages[most - count])
    else:
        kept = (*_RESNET_STAGES[:count], *(["bn1"] if count == most else []))
        for path, parameter in backbone.body.named_parameters():
            parameter.requires_grad_(path.startswith(kept))
    if not name.endswith("_v2"):
        _freeze_norms(backbone.body)


def _vgg_stages(features: nn.Sequential) -> list[int]:
    return [0, *(place for place, layer in enumerate(features) if isinstance(layer, nn.MaxPool2d)), len(features)]


def _freeze_before(blocks: Any, end: int) -> None:
    for block in list(blocks)[:end]:
        block.requires_grad_(False)


def _freeze_norms(module: nn.Module) -> None:
    for path, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, path, FrozenBatchNorm2d(child.num_features))
        else:
            _freeze_norms(child)

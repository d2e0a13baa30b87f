"""torchvision's detectors: the batches and networks of its references, and steps whose shapes values decide."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision import models
from torchvision.models.detection.backbone_utils import _mobilenet_extractor, _resnet_fpn_extractor
from torchvision.models.detection.ssd import _vgg_extractor
from torchvision.ops import FrozenBatchNorm2d

from sweeper.errors import UsageError
from sweeper.model_names import DETECTION
from sweeper.trial import Fit, TrialSpec
from sweeper.worker import trial
from sweeper.worker.devices.simulated import SimulatedDevice
from sweeper.worker.meter import Meter
from sweeper.worker.models.torchvision_detection import sum_of_losses
from sweeper.worker.training import train
from sweeper.worker.workload import Workload, load

FIXED = ("ssd300_vgg16", "ssdlite320_mobilenet_v3_large")
SMALL = 96


def spec(model: str, **changes: Any) -> TrialSpec:
    size = None if model in FIXED else SMALL
    usual: dict[str, Any] = {"batch_size": 2, "device": "sim:rtx4060", "steps": 1, "image_size": size}
    return TrialSpec(model=model, **{**usual, **changes})


def load_on_meta(model: str, **changes: Any) -> Workload:
    with torch.device("meta"):
        return load(spec(model, **changes))


@pytest.mark.parametrize("model", DETECTION)
def test_every_detector_simulates_a_step(model: str) -> None:
    precision = ("fp32", "amp-fp16")[DETECTION.index(model) % 2]
    fit = trial.run(spec(model, precision=precision))
    assert isinstance(fit, Fit), fit
    assert fit.holdings is not None
    assert fit.holdings.gradients > 0


@pytest.mark.parametrize("model", ["fasterrcnn_mobilenet_v3_large_320_fpn", "fcos_resnet50_fpn"])
def test_a_detector_simulates_inference(model: str) -> None:
    fit = trial.run(spec(model, precision="amp-fp16", mode="inference", batch_size=1))
    assert isinstance(fit, Fit), fit
    (note,) = fit.notes
    assert "non-maximum suppression keeps every box" in note


def test_a_detector_trains_on_the_cpu() -> None:
    fit = trial.run(spec("fasterrcnn_mobilenet_v3_large_320_fpn", device="cpu", steps=2))
    assert isinstance(fit, Fit), fit
    assert all(step.loss is not None for step in fit.steps)
    assert fit.notes == ()


def shapes_seen(model: str, module: str, **changes: Any) -> list[torch.Size]:
    """Of the first operand of ``module`` in one simulated step."""
    asked = spec(model, **changes)
    device = SimulatedDevice("rtx4060", record=True)
    device.start_over(with_values=True)
    seen: list[torch.Size] = []
    with device.session():
        with device.build_context():
            workload = load(asked)
        inner: nn.Module = workload.model.get_submodule(module)
        inner.register_forward_pre_hook(lambda _, operands: seen.append(operands[0].shape))
        train(asked, workload, device, Meter(device))
    return seen


@pytest.mark.parametrize("batch", [1, 3])
def test_the_heads_see_as_many_boxes_as_their_sampler_takes(batch: int) -> None:
    """512 of each image, a quarter of them foreground: ``box_batch_size_per_image`` and ``box_positive_fraction``."""
    (boxes,) = shapes_seen("maskrcnn_resnet50_fpn", "roi_heads.box_head", batch_size=batch)
    (masks,) = shapes_seen("maskrcnn_resnet50_fpn", "roi_heads.mask_head", batch_size=batch)
    assert boxes == (512 * batch, 256, 7, 7)
    assert masks == (128 * batch, 256, 14, 14)


def test_what_is_detected_is_the_most_that_is_kept() -> None:
    arguments = {"num_classes": 3}  # each class has boxes suppressed by itself
    (masks,) = shapes_seen(
        "maskrcnn_resnet50_fpn", "roi_heads.mask_head", mode="inference", batch_size=1, model_args=arguments
    )
    assert masks == (100, 256, 14, 14)  # box_detections_per_img


def trainable(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize(
    ("model", "norm"), [("fasterrcnn_resnet50_fpn", FrozenBatchNorm2d), ("retinanet_resnet50_fpn_v2", nn.BatchNorm2d)]
)
def test_the_network_is_that_of_pretrained_weights(model: str, norm: Any, count: int) -> None:
    with torch.device("meta"):
        true = _resnet_fpn_extractor(models.resnet50(norm_layer=norm), count)
    ours: Any = load_on_meta(model, model_args={"trainable_backbone_layers": count}).model
    assert trainable(ours.backbone.body) == trainable(true.body)
    assert [type(m) for m in ours.backbone.body.modules()] == [type(m) for m in true.body.modules()]


@pytest.mark.parametrize("count", [1, 3, 6])
def test_so_it_is_for_mobilenet(count: int) -> None:
    with torch.device("meta"):
        true = _mobilenet_extractor(models.mobilenet_v3_large(norm_layer=FrozenBatchNorm2d), True, count)
    ours: Any = load_on_meta("fasterrcnn_mobilenet_v3_large_fpn", model_args={"trainable_backbone_layers": count}).model
    assert trainable(ours.backbone.body) == trainable(true.body)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in ours.backbone.body.modules())


@pytest.mark.parametrize("count", [1, 4, 5])
def test_so_it_is_for_vgg(count: int) -> None:
    with torch.device("cpu"):
        true = _vgg_extractor(models.vgg16(init_weights=False), False, count)
    ours: Any = load_on_meta("ssd300_vgg16", model_args={"trainable_backbone_layers": count}).model
    assert trainable(ours.backbone) == trainable(true)


def test_three_stages_are_trained_unless_asked() -> None:
    usual, asked = (
        load_on_meta("fasterrcnn_resnet50_fpn", model_args=arguments).model
        for arguments in ({}, {"trainable_backbone_layers": 3})
    )
    assert trainable(usual) == trainable(asked)


@settings(max_examples=6, deadline=None)
@given(objects=st.integers(1, 12), seed=st.integers(0, 99), side=st.sampled_from([32, 47, 96]))
def test_targets_are_as_the_library_wants_them(objects: int, seed: int, side: int) -> None:
    asked = spec("maskrcnn_resnet50_fpn", model_args={"objects": objects}, seed=seed, image_size=side)
    with torch.device("meta"):
        (images, targets), nothing = load(asked).make_batch(3)
    assert nothing is None
    assert [image.shape for image in images] == [(3, side, side)] * 3
    assert all(image.is_meta for image in images)
    for target in targets:
        boxes, labels = target["boxes"], target["labels"]
        assert boxes.shape == (objects, 4)
        assert bool((boxes >= 0).all() & (boxes <= side).all())
        assert bool((boxes[:, 2:] - boxes[:, :2] >= 1).all())
        assert bool((labels >= 1).all() & (labels < 91).all())
        assert target["masks"].shape == (objects, side, side)


def test_masks_lie_in_their_boxes_and_keypoints_too() -> None:
    (_, targets), _ = load(spec("maskrcnn_resnet50_fpn", device="cpu")).make_batch(1)
    for mask, box in zip(targets[0]["masks"], targets[0]["boxes"], strict=True):
        rows, columns = torch.where(mask > 0)
        assert len(rows) > 0
        assert columns.min() >= box[0].floor()
        assert rows.max() <= box[3].ceil()
    (_, targets), _ = load(spec("keypointrcnn_resnet50_fpn", device="cpu")).make_batch(1)
    for points, box in zip(targets[0]["keypoints"], targets[0]["boxes"], strict=True):
        assert points.shape == (17, 3)
        assert bool((points[:, :2] >= box[:2]).all() & (points[:, :2] <= box[2:]).all())


def test_the_loss_is_the_sum_of_the_models_own() -> None:
    losses = {"a": torch.tensor(1.5), "b": torch.tensor(2.0)}
    assert sum_of_losses(losses, None).item() == 3.5


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("fasterrcnn_resnet50_fpn", {"precision": "bf16"}, "does not train in bf16"),
        ("fcos_resnet50_fpn", {"precision": "fp16"}, "does not train in fp16"),
        ("fcos_resnet50_fpn", {"image_size": 31}, "images of 32 pixels or more"),
        ("ssd300_vgg16", {"image_size": 299}, "brings every image to 300 pixels"),
        (
            "ssdlite320_mobilenet_v3_large",
            {"model_args": {"trainable_backbone_layers": 3}},
            "trains its whole backbone",
        ),
        ("maskrcnn_resnet50_fpn", {"model_args": {"objects": 0}}, "objects must be a whole number"),
        ("maskrcnn_resnet50_fpn", {"model_args": {"num_classes": 1}}, "a class besides the background"),
        ("fasterrcnn_resnet50_fpn", {"model_args": {"trainable_backbone_layers": 6}}, "must be 1 to 5, not 6"),
        ("ssd300_vgg16", {"model_args": {"trainable_backbone_layers": 0}}, "must be 1 to 5, not 0"),
        ("fasterrcnn_resnet50_fpn", {"model_args": {"colour": 1}}, "takes no argument 'colour'"),
        ("fasterrcnn_resnet50_fpn", {"model_args": {"weights_backbone": 1}}, "takes no argument 'weights_backbone'"),
    ],
)
def test_what_a_detector_cannot_do_is_refused(model: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_on_meta(model, **changes)
    assert caught.value.hint

"""torchvision's segmentation, video and optical flow models: batches, losses and sizes as in its references."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from sweeper.errors import UsageError
from sweeper.model_names import OPTICAL_FLOW, SEGMENTATION, VIDEO
from sweeper.trial import Fit, TrialSpec
from sweeper.worker import trial
from sweeper.worker.models.torchvision_flow import sequence_loss
from sweeper.worker.models.torchvision_segmentation import segmentation_loss
from sweeper.worker.workload import load


def spec(model: str, **changes: Any) -> TrialSpec:
    usual: dict[str, Any] = {"batch_size": 2, "device": "sim:h100", "steps": 1}
    return TrialSpec(model=model, **{**usual, **changes})


_ALL = (*SEGMENTATION, *VIDEO, *OPTICAL_FLOW)


# Each of the larger kinds has models that differ in depth alone, so every second one takes the other precision.
@pytest.mark.parametrize(("number", "model"), list(enumerate(_ALL)), ids=_ALL)
def test_every_one_of_them_simulates_a_step(number: int, model: str) -> None:
    fit = trial.run(spec(model, precision=("fp32", "amp-fp16")[number % 2]))
    assert isinstance(fit, Fit), fit
    assert fit.breakdown is not None
    assert fit.breakdown.activations > 0


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("lraspp_mobilenet_v3_large", {"image_size": 33}),
        ("fcn_resnet50", {"image_size": 33, "batch_size": 1}),
        ("r3d_18", {"image_size": 17, "model_args": {"frames": 1}, "batch_size": 1}),
    ],
)
def test_the_smallest_of_a_kind_trains_on_the_cpu(model: str, changes: dict[str, Any]) -> None:
    fit = trial.run(spec(model, **changes, device="cpu"))
    assert isinstance(fit, Fit), fit
    assert all(step.loss is not None for step in fit.steps)


@pytest.mark.parametrize(
    ("model", "changes", "inputs"),
    [
        ("fcn_resnet50", {}, (2, 3, 520, 520)),
        ("fcn_resnet50", {"image_size": 64}, (2, 3, 64, 64)),
        ("r3d_18", {}, (2, 3, 16, 112, 112)),
        ("s3d", {}, (2, 3, 128, 224, 224)),
        ("swin3d_t", {"model_args": {"frames": 8}, "image_size": 96}, (2, 3, 8, 96, 96)),
        ("mvit_v1_b", {}, (2, 3, 16, 224, 224)),
    ],
)
def test_a_batch_has_the_shape_of_the_references(model: str, changes: dict[str, Any], inputs: Any) -> None:
    with torch.device("meta"):
        images, targets = load(spec(model, **changes)).make_batch(2)
    assert images.shape == inputs
    assert targets.shape == ((2, *inputs[-2:]) if model in SEGMENTATION else (2,))


def test_the_auxiliary_head_counts_half() -> None:
    out, aux = torch.randn(2, 5, 4, 4), torch.randn(2, 5, 4, 4)
    targets = torch.randint(5, (2, 4, 4))
    whole = F.cross_entropy(out, targets) + 0.5 * F.cross_entropy(aux, targets)
    assert torch.allclose(segmentation_loss({"out": out, "aux": aux}, targets), whole)
    assert torch.equal(segmentation_loss({"out": out}, targets), F.cross_entropy(out, targets))


@pytest.mark.parametrize(("given", "has"), [({}, True), ({"aux_loss": False}, False)])
def test_there_is_an_auxiliary_head_unless_it_is_refused(given: dict[str, bool], has: bool) -> None:
    with torch.device("meta"):
        model: Any = load(spec("fcn_resnet50", model_args=given)).model
    assert (model.aux_classifier is not None) == has


def test_later_refinements_of_a_flow_weigh_more_and_far_pixels_do_not_count() -> None:
    flow, valid = torch.zeros(1, 2, 4, 4), torch.ones(1, 4, 4, dtype=torch.bool)
    predicted = [torch.full((1, 2, 4, 4), value) for value in (1.0, 2.0, 3.0)]
    assert math.isclose(sequence_loss(predicted, (flow, valid)).item(), 0.64 + 0.8 * 2 + 3, rel_tol=1e-5)
    assert sequence_loss(predicted, (flow, ~valid)).item() == 0
    assert sequence_loss(predicted, (flow + 500, valid)).item() == 0


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("raft_small", {"image_size": 129}, "8 divides, not 129"),
        ("raft_large", {"image_size": 120}, "128 or more"),
        ("s3d", {"model_args": {"frames": 13}}, "cannot train on 13 frames"),
        ("s3d", {"image_size": 223}, "frames of 223 pixels"),
        ("r3d_18", {"image_size": 16}, "frames of 16 pixels"),
        ("mvit_v2_s", {"image_size": 256}, "clips of 16 frames of 224 pixels, and no others"),
        ("mvit_v1_b", {"model_args": {"frames": 32}}, "and no others"),
        ("r3d_18", {"model_args": {"frames": 0}}, "frames must be a whole number"),
        ("fcn_resnet50", {"model_args": {"num_classes": 0}}, "num_classes must be a whole number"),
        ("lraspp_mobilenet_v3_large", {"model_args": {"aux_loss": True}}, "no auxiliary head"),
    ],
)
def test_what_they_cannot_do_is_refused(model: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught, torch.device("meta"):
        load(spec(model, **changes))
    assert caught.value.hint

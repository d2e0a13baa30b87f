"""torchvision's classification models by their registry names, at the input size they were made for.

The input size is the crop of the default weights' own transforms (``Weights.DEFAULT.transforms()``); nothing is
downloaded.  Weights are random: memory does not depend on their values.

Run as ``python -m sweeper.worker.models.torchvision`` it prints the lists that ``sweeper.model_names`` keeps.
"""

import inspect
import textwrap
import typing
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models
from torchvision.models.googlenet import GoogLeNetOutputs
from torchvision.models.inception import InceptionOutputs

from sweeper.errors import UsageError
from sweeper.worker.models import Batch, Workload, require_counts
from sweeper.worker.models.meta import parameters_on_meta

__all__ = ["build", "classification_loss", "construct", "installed", "names", "native_size"]

# How much each auxiliary classifier adds to the loss while training.
# GoogLeNet: Szegedy et al. 2014, "Going Deeper with Convolutions", section 5, "weighted by 0.3".
# Inception v3: 0.4, as in PyTorch's fine-tuning tutorial (loss1 + 0.4*loss2) and in TF-Slim's inception_v3.
_AUXILIARY_WEIGHT = {GoogLeNetOutputs: 0.3, InceptionOutputs: 0.4}

# The smallest image that trains, in pixels, where the weights' meta["min_size"] says something else.  The windows of
# swin are padded, so only the 4-pixel patch counts; EfficientNetV2 is convolution and a mean.  Both run on meta
# tensors down to these sizes (torchvision 0.29).
_SMALLEST = {"swin": 4, "efficientnet_v2": 1}
# inception.InceptionAux pools (5, stride 3) and then convolves 5 x 5: it needs a 17 x 17 map, 299 pixels.
_SMALLEST_INCEPTION_WITH_AUX = 299
# maxvit halves the image five times and cuts each map into 7 x 7 windows.
_MAXVIT_MULTIPLE = 224

# What the builders take that is no choice here: weights are random, and the size is --image-size.
_NOT_ARGUMENTS = {"weights", "weights_backbone", "progress", "input_size"}


def names(kind: ModuleType = models) -> tuple[str, ...]:
    """The models of one kind in the installed torchvision, a module such as ``models.detection``: classification."""
    return tuple(models.list_models(module=kind))


def installed() -> frozenset[str]:
    """Every model of the installed torchvision, of all kinds."""
    return frozenset(models.list_models())


def native_size(name: str) -> int:
    """Pixels a side of the images that the default weights were evaluated on."""
    return int(models.get_model_weights(name).DEFAULT.transforms().crop_size[0])


def build(name: str, model_args: Mapping[str, Any], image_size: int | None) -> Workload:
    """Return the classification model ``name`` with random images of ``image_size`` pixels a side.

    Raises ``UsageError`` for arguments that its constructor does not take and for sizes that the architecture cannot.
    """
    num_classes = model_args.get("num_classes", 1000)
    require_counts(num_classes=num_classes)
    size = native_size(name) if image_size is None else image_size
    _check_image_size(name, size, auxiliary=bool(model_args.get("aux_logits", True)))
    shape: dict[str, Any] = {}
    if name.startswith("vit_"):
        shape = {"image_size": size}
    elif name.startswith("maxvit"):
        shape = {"input_size": (size, size)}

    def make_batch(batch: int) -> Batch:
        return torch.randn(batch, 3, size, size), torch.randint(num_classes, (batch,))

    return Workload(
        model=construct(name, model_args, shape),
        make_batch=make_batch,
        loss=classification_loss,
        sizes={
            "image_size": native_size(name),
            "image_step": _multiple(name),
            "image_least": max(_multiple(name), _smallest(name, bool(model_args.get("aux_logits", True)))),
        },
    )


def classification_loss(outputs: Any, targets: Tensor) -> Tensor:
    """Cross entropy; with that of the auxiliary classifiers, weighted, where the model returns them."""
    if isinstance(outputs, Tensor):
        return F.cross_entropy(outputs, targets)
    logits, *auxiliaries = outputs
    loss = F.cross_entropy(logits, targets)
    for auxiliary in auxiliaries:
        if auxiliary is not None:
            loss = loss + _AUXILIARY_WEIGHT[type(outputs)] * F.cross_entropy(auxiliary, targets)
    return loss


def _check_image_size(name: str, size: int, *, auxiliary: bool) -> None:
    require_counts(image_size=size)
    multiple = _multiple(name)
    if size % multiple:
        near = max(multiple, round(size / multiple) * multiple)
        raise UsageError(
            f"{name} needs an image size that {multiple} divides, not {size}", hint=f"the nearest is {near}"
        )
    smallest = _smallest(name, auxiliary)
    if size < smallest:
        hint = f"its own size is {native_size(name)}"
        if name == "inception_v3" and auxiliary:
            hint = "without its auxiliary classifier it takes 75 and more: --model-arg aux_logits=false"
        raise UsageError(f"{name} cannot train on images of {size} pixels; the smallest is {smallest}", hint=hint)


def _multiple(name: str) -> int:
    """What the sides of the images must be multiples of."""
    if name.startswith("vit_"):
        return int(name.rpartition("_")[2])  # vit_b_16 has patches of 16 pixels
    return _MAXVIT_MULTIPLE if name.startswith("maxvit") else 1


def _smallest(name: str, auxiliary: bool) -> int:
    if name.startswith(("vit_", "maxvit")):
        return 1  # any multiple, which is checked before
    if name == "inception_v3" and auxiliary:
        return _SMALLEST_INCEPTION_WITH_AUX
    for prefix, size in _SMALLEST.items():
        if name.startswith(prefix):
            return size
    return int(models.get_model_weights(name).DEFAULT.meta["min_size"][0])


def construct(name: str, arguments: Mapping[str, Any], shape: Mapping[str, Any]) -> nn.Module:
    """Return the model ``name`` with random weights; ``shape`` are arguments that no user gave.

    Raises ``UsageError`` naming those of ``arguments`` that its builder does not take.
    """
    refused = _NOT_ARGUMENTS & set(arguments)
    if not refused:
        try:
            return _call_builder(name, {**arguments, **shape})
        except (TypeError, ValueError):
            # The builders pass **kwargs on to a constructor they do not name: what they take is known by trying.
            refused = {argument for argument in arguments if not _takes(name, argument)}
            if not refused:
                raise
    listed = ", ".join(repr(argument) for argument in sorted(refused))
    accepted = [argument for argument in _scalar_parameters(name) if _takes(name, argument)]
    raise UsageError(f"{name} takes no argument {listed}", hint=f"it takes {', '.join(accepted)}")


def _call_builder(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    # Left open, init_weights of these two warns that its default will change; True draws truncated normals for seconds.
    quick: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        quick["weights_backbone"] = None
    return models.get_model(name, weights=None, **{**quick, **arguments})  # type: ignore[no-any-return]


def _takes(name: str, argument: str) -> bool:
    """Whether the builder of ``name`` lets ``argument`` be chosen, found by giving it a value that is nothing."""
    try:
        with parameters_on_meta():
            _call_builder(name, {argument: object()})
    except TypeError as problem:
        return not any(text in str(problem) for text in ("unexpected keyword", "multiple values"))
    except ValueError as problem:
        return not str(problem).startswith("The parameter")  # torchvision.models._utils._ovewrite_named_param
    except Exception:  # the value was looked at, so the name is known
        return True
    return True


def _scalar_parameters(name: str) -> list[str]:
    """The constructor's parameters that a ``--model-arg`` can say."""
    with parameters_on_meta():
        constructor = type(_call_builder(name, {})).__init__
    hints = typing.get_type_hints(constructor)
    return [
        parameter
        for parameter, described in inspect.signature(constructor).parameters.items()
        if hints.get(parameter) in (int, float, bool, str, int | None, float | None, bool | None, str | None)
        or isinstance(described.default, int | float | str)
    ]


if __name__ == "__main__":
    print(f"# torchvision {torchvision.__version__}")
    for kind in (models, models.detection, models.segmentation, models.video, models.optical_flow, models.quantization):
        row = ", ".join(f'"{name}"' for name in names(kind))
        print(f"# {kind.__name__}")
        print(textwrap.fill(f"{row},", 120, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))

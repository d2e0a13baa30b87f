"""timm: image models by their names there, at the input size of their default configuration, with random weights.

The images are as large as the pretrained weights were made for (``default_cfg["input_size"]``).  Where an architecture
is built for one size (``fixed_input_size``), another is given to its constructor as ``img_size``; any other takes
what it is given.  Heads that some weights come without (features alone) get the 1000 classes of ImageNet.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sweeper.errors import UnknownName, UsageError
from sweeper.worker.models import Batch, Workload, require_counts
from sweeper.worker.models.meta import parameters_on_meta

__all__ = ["build", "names"]

_CLASSES = 1000
# What create_model takes that is no choice here.
_NOT_ARGUMENTS = frozenset({"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"})


def names() -> tuple[str, ...]:
    """The models of the installed timm, without the tags of their weights."""
    import timm

    return tuple(timm.list_models())


def build(name: str, model_args: Mapping[str, Any], image_size: int | None) -> Workload:
    """Return the model ``name`` with random images of ``image_size`` pixels a side, and cross entropy.

    ``model_args`` go to ``timm.create_model``.  Raises ``UsageError`` for a name, an argument or a size it does not
    take.
    """
    import timm

    if not timm.is_model(name):
        raise UnknownName("model of timm", name, names(), listing="`sweep models timm:` lists them all")
    defaults = timm.get_pretrained_cfg(name)
    channels, height, width = defaults.input_size if defaults else (3, 224, 224)
    own = max(height, width)
    is_fixed = bool(defaults and defaults.fixed_input_size)
    arguments = _with_classes(model_args, defaults.num_classes if defaults else _CLASSES)
    require_counts(num_classes=arguments["num_classes"])
    if image_size is not None:
        require_counts(image_size=image_size)
        height = width = image_size
    shape = {"img_size": image_size} if is_fixed and image_size is not None and image_size != own else {}
    model = _construct(name, arguments, shape)
    step = _step(model, own) if is_fixed else 1
    if height % step:
        near = max(step, round(height / step) * step)
        raise UsageError(f"timm:{name} needs an image size that {step} divides, not {height}", hint=f"try {near}")
    classes = arguments["num_classes"]
    in_channels = arguments.get("in_chans", channels)

    def make_batch(batch: int) -> Batch:
        return torch.randn(batch, in_channels, height, width), torch.randint(classes, (batch,))

    least = max(defaults.min_input_size[1:]) if defaults and defaults.min_input_size else None
    return Workload(
        model=model,
        make_batch=make_batch,
        loss=classification_loss,
        checkpoint=_checkpoint(model),
        sizes={"image_size": own, "image_step": step, "image_least": least or (step if step > 1 else None)},
    )


def classification_loss(outputs: Any, targets: Tensor) -> Tensor:
    """Cross entropy; of every head, added up, where a model in training returns more than one (distillation)."""
    heads = outputs if isinstance(outputs, tuple | list) else (outputs,)
    losses = [F.cross_entropy(logits, targets) for logits in heads]
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def _with_classes(model_args: Mapping[str, Any], own: int) -> dict[str, Any]:
    return {"num_classes": own or _CLASSES, **model_args}


def _construct(name: str, arguments: Mapping[str, Any], shape: Mapping[str, Any]) -> nn.Module:
    import timm

    refused = sorted(_NOT_ARGUMENTS & set(arguments))
    if refused:
        raise UsageError(
            f"timm:{name} takes no {refused[0]} here", hint="weights are random, and nothing is downloaded"
        )
    try:
        return timm.create_model(name, pretrained=False, **arguments, **shape)  # type: ignore[no-any-return]
    except (TypeError, AssertionError, ValueError) as problem:
        unknown = _unexpected(problem)
        if unknown == "img_size":
            raise UsageError(f"timm:{name} takes images of its own size only", hint="leave --image-size out") from None
        if unknown in arguments:
            known = _parameters(name, arguments["num_classes"])
            raise UnknownName(
                f"argument of timm:{name}", unknown, known, listing=f"it takes {', '.join(known)}"
            ) from None
        if shape and not arguments.keys() - {"num_classes"}:
            raise UsageError(
                f"timm:{name} cannot be built for images of {shape['img_size']} pixels: {problem}",
                hint="leave --image-size out, or give a multiple of 32",
            ) from None
        raise


def _unexpected(problem: Exception) -> str:
    """The name in Python's own "got an unexpected keyword argument 'x'"; nothing where it says something else."""
    _, found, name = str(problem).partition("unexpected keyword argument ")
    return name.split("'")[1] if found and isinstance(problem, TypeError) else ""


def _parameters(name: str, num_classes: int) -> list[str]:
    """What the model's constructor takes and a ``--model-arg`` can say."""
    import timm

    with parameters_on_meta():
        constructor = type(timm.create_model(name, pretrained=False, num_classes=num_classes))
    parameters = inspect.signature(constructor).parameters
    return [key for key, parameter in parameters.items() if isinstance(parameter.default, int | float | str)]


def _step(model: nn.Module, own: int) -> int:
    """What the sides must be multiples of: the coarsest grid that the architecture cuts an image into.

    One that does not divide the model's ``own`` size either is rounded by its convolutions (LeViT's 64 of 224 pixels).
    """
    levels = getattr(model, "feature_info", None)
    levels = getattr(levels, "info", levels)
    reductions = [level["reduction"] for level in levels or () if isinstance(level, dict) and "reduction" in level]
    coarsest = int(max(reductions, default=1))
    return coarsest if own % coarsest == 0 else 1


def _checkpoint(model: Any) -> Callable[[], str] | None:
    """The library's own switch; None for a model that has none, or whose switch says that it does nothing."""
    switch = getattr(model, "set_grad_checkpointing", None)
    if switch is None:
        return None
    try:
        switch(True)
        switch(False)
    except AssertionError:  # timm's own way: assert not enable, 'gradient checkpointing not supported'
        return None

    def enable() -> str:
        switch(True)
        return f"timm's own blocks of {type(model).__name__}"

    return enable

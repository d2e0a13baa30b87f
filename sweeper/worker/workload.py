"""From a trial's spec to what it trains: finds the model by its name, builds it, and makes its batches repeatable.

Built on the default device.  Under ``torch.device("meta")`` the weights take no host memory, whatever the
constructor computes (see ``models.meta``), and neither do batches.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sweeper.errors import UsageError
from sweeper.model_names import (
    DETECTION,
    OPTICAL_FLOW,
    SEGMENTATION,
    VIDEO,
    check_model,
    is_factory,
    library_of,
    require_library,
)
from sweeper.trial import TrialSpec
from sweeper.worker.models import (
    Batch,
    Workload,
    call_model,
    factory,
    mean_of_outputs,
    teaching,
    timm,
    torchvision,
    torchvision_detection,
    torchvision_flow,
    torchvision_segmentation,
    torchvision_video,
    transformers,
)
from sweeper.worker.models.meta import build_on_meta

__all__ = ["Batch", "Workload", "call_model", "load", "mean_of_outputs"]


def load(spec: TrialSpec) -> Workload:
    """Return the workload that ``spec`` names, its weights and batches decided by ``spec.seed``.

    Every batch of one size is the same batch.  Raises ``UsageError`` (``UnknownName`` for a bare name) when the model
    is not there, does not take the arguments or returns no batch; whatever a user's own code raises comes through.
    """
    torch.manual_seed(spec.seed)
    workload = build_on_meta(lambda: _build(spec)) if _on_meta() else _build(spec)
    return dataclasses.replace(workload, make_batch=_repeatable(workload.make_batch, spec))


def _build(spec: TrialSpec) -> Workload:
    model_args, image_size = _arguments(spec)
    if (found := library_of(spec.model)) is not None:
        return _build_of_library(spec, *found)
    if is_factory(spec.model):
        return factory.build(spec.model, _with_seq_len(model_args, spec), image_size)
    if spec.model in teaching.FACTORIES:
        return teaching.build(spec.model, _with_seq_len(model_args, spec), image_size)
    _refuse_seq_len(spec)
    if spec.model in torchvision.names():
        return torchvision.build(spec.model, model_args, image_size)
    if spec.model in torchvision.installed():
        if spec.model in DETECTION:
            return torchvision_detection.build(spec, model_args, image_size)
        for listed, builds in _TORCHVISION.items():
            if spec.model in listed:
                return builds(spec.model, model_args, image_size)
    check_model(spec.model)
    raise UsageError(f"the installed torchvision has no {spec.model}", hint="upgrade torchvision, or choose another")


_TORCHVISION: Mapping[tuple[str, ...], Callable[[str, Mapping[str, Any], int | None], Workload]] = {
    SEGMENTATION: torchvision_segmentation.build,
    VIDEO: torchvision_video.build,
    OPTICAL_FLOW: torchvision_flow.build,
}


def _build_of_library(spec: TrialSpec, prefix: str, name: str) -> Workload:
    require_library(prefix)
    model_args, image_size = _arguments(spec)
    if prefix == "timm":
        _refuse_seq_len(spec)
        return timm.build(name, model_args, image_size)
    return transformers.build(
        name,
        model_args,
        config_file=spec.config,
        seq_len=spec.seq_len,
        image_size=image_size,
        training=spec.mode == "train",
    )


def _refuse_seq_len(spec: TrialSpec) -> None:
    if spec.seq_len is not None:
        raise UsageError(f"{spec.model} takes no tokens, so --seq-len {spec.seq_len} says nothing", hint="leave it out")


def _arguments(spec: TrialSpec) -> tuple[dict[str, Any], int | None]:
    """``--image-size`` and ``--model-arg image_size`` are the same wish."""
    model_args = dict(spec.model_args)
    image_size = model_args.pop("image_size", spec.image_size)
    if spec.image_size is not None and image_size != spec.image_size:
        raise _given_twice("image size", spec.image_size, image_size)
    return model_args, image_size  # type: ignore[return-value]


def _with_seq_len(model_args: dict[str, Any], spec: TrialSpec) -> dict[str, Any]:
    """``--seq-len`` is the argument ``seq_len`` of a function that makes a model."""
    if spec.seq_len is None:
        return model_args
    if model_args.get("seq_len", spec.seq_len) != spec.seq_len:
        raise _given_twice("sequence length", spec.seq_len, model_args["seq_len"])
    return {**model_args, "seq_len": spec.seq_len}


def _given_twice(what: str, one: object, other: object) -> UsageError:
    return UsageError(f"the {what} is given twice, as {one} and as {other}", hint="leave one of them out")


def _repeatable(make_batch: Callable[[int], Batch], spec: TrialSpec) -> Callable[[int], Batch]:
    def seeded(batch: int) -> Batch:
        # The CPU's generator alone: this must not wake a GPU, and the step's own random numbers go on as they were.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(spec.seed)
            return make_batch(batch)

    def make(batch: int) -> Batch:
        made = _with_values(seeded, batch) if _on_meta() else seeded(batch)
        if not isinstance(made, tuple) or len(made) != 2:
            raise UsageError(
                f"{spec.model}: make_batch returned a {type(made).__name__}, not a pair",
                hint="return (inputs, targets); targets may be None",
            )
        return made

    return make


def _with_values(make_batch: Callable[[int], Batch], batch: int) -> Batch:
    """Return the batch on meta; on the CPU where making it needs values, as a ``.tolist()`` for lengths does."""
    try:
        return make_batch(batch)
    except (UsageError, torch.OutOfMemoryError):
        raise
    except Exception:
        pass  # as in models.meta: a fault of the user's own comes again below
    with torch.device("cpu"):
        return make_batch(batch)


def _on_meta() -> bool:
    # Not get_default_device(), which does not see ``with torch.device`` in 2.6.
    return torch.empty(0).is_meta

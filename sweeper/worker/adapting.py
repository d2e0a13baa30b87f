"""Which parameters are trained: all but those that ``--freeze`` names, or the adapters of ``--lora`` and little else.

LoRA is peft's.  Of a transformers model it adapts the layers that peft's own table names for that architecture; of any
other, every linear layer but the last, and of a convolutional network (most of its weights are in convolutions) every
ungrouped convolution too.  The last layer of such a model is trained whole, as for a new task: the adapters of a
classifier alone would leave its random head as it is.  A language model's head stays frozen, as peft leaves it.

Rank is the only choice: alpha, which scales values, is peft's own, and there is no dropout on the adapters, which would
save a mask of their input.  Adapters have the type of the weights they stand beside.

Left out: layers whose weights the model reads instead of calling them (``nn.MultiheadAttention``'s projections, those
of torchvision's Swin); an adapter there would never run.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from sweeper.errors import UsageError

__all__ = ["add_adapters", "freeze"]

_READERS = ("MultiheadAttention", "ShiftedWindowAttention", "ShiftedWindowAttentionV2", "ShiftedWindowAttention3d")
_CLASSIFIERS = ("classifier", "score")  # peft.PeftModelForSequenceClassification trains these beside its adapters
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def freeze(model: nn.Module, patterns: Sequence[str], name: str) -> str:
    """Freeze the parameters that any of ``patterns`` matches, or that lie below what it matches; says how many.

    Raises ``UsageError`` when a pattern matches nothing, or when nothing is left to train in ``model``, called
    ``name``.
    """
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        matched = [path for path in parameters if fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}.*")]
        if not matched:
            there = ", ".join(dict.fromkeys(path.partition(".")[0] for path in parameters))
            raise UsageError(f"--freeze {pattern} matches no parameter of {name}", hint=f"there are {there}")
        for path in matched:
            parameters[path].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise UsageError(
            f"--freeze {' '.join(patterns)} leaves nothing of {name} to train",
            hint="leave something out, or take --mode inference",
        )
    return f"frozen: {', '.join(patterns)}; {_share(model)}"


def add_adapters(model: nn.Module, rank: int, name: str) -> str:
    """Put adapters of ``rank`` beside layers of ``model``, called ``name``, and freeze the rest; says what was done.

    Raises ``UsageError`` where peft is not installed, or ``model`` has no layer to adapt.
    """
    try:
        import peft
    except ImportError:
        raise UsageError("--lora needs peft, which is not installed", hint="pip install 'sweeper[lora]'") from None
    layers = _of_peft(model) or dict(_adaptable(model))
    if not layers:
        raise UsageError(f"{name} has no layers for --lora to adapt", hint="leave it out, or take --freeze")
    config = peft.LoraConfig(
        r=rank,
        target_modules="|".join(map(re.escape, layers)),
        # transformers' Conv1D holds its weight the other way around.
        fan_in_fan_out=any(type(layer).__name__ == "Conv1D" for layer in layers.values()),
    )
    peft.inject_adapter_in_model(config, model)
    trained = ""
    if (head := _trained_head(model)) is not None:
        model.get_submodule(head).requires_grad_(True)
        trained = f" and {head}"
    kinds = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in layers))
    return f"LoRA: rank {rank} on {len(layers)} layers ({_shortened(kinds)}){trained}; {_share(model)}"


def _of_peft(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that peft's table names for the architecture; none where it does not know it."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as table

    kinds = (getattr(getattr(module, "config", None), "model_type", None) for module in model.modules())
    known: Any = next((table[kind] for kind in kinds if isinstance(kind, str) and kind in table), ())
    return {path: layer for path, layer in model.named_modules() if path.rpartition(".")[2] in known}


def _adaptable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    read = tuple(f"{path}." for path, module in model.named_modules() if type(module).__name__ in _READERS)
    convolutions = _weights(model, _CONVOLUTIONS) > _weights(model, (nn.Linear,))
    last = _last_layer(model)
    for path, layer in model.named_modules():
        if path in ("", last) or path.startswith(read):
            continue
        if isinstance(layer, nn.Linear) or (convolutions and isinstance(layer, _CONVOLUTIONS) and layer.groups == 1):
            yield path, layer


def _trained_head(model: nn.Module) -> str | None:
    """The layer that is trained whole; of a transformers model, what it calls its classifier, if it has one."""
    if any(hasattr(getattr(module, "config", None), "model_type") for module in model.modules()):
        return next((path for path, _ in model.named_modules() if path.rpartition(".")[2] in _CLASSIFIERS), None)
    return _last_layer(model)


def _last_layer(model: nn.Module) -> str | None:
    """In the model's order, the last with weights of its own that a batch is multiplied with."""
    found = [path for path, layer in model.named_modules() if path and isinstance(layer, (nn.Linear, *_CONVOLUTIONS))]
    return found[-1] if found else None


def _weights(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> int:
    layers = (layer for layer in model.modules() if isinstance(layer, kinds))
    return sum(layer.get_parameter("weight").numel() for layer in layers)


def _share(model: nn.Module) -> str:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained, all_of_them = sum(size for size, learns in sizes if learns), sum(size for size, _ in sizes)
    return f"{trained:,} of {all_of_them:,} parameters are trained"


def _shortened(names: str, length: int = 60) -> str:
    return names if len(names) <= length else f"{names[:length].rpartition(',')[0]}, ..."

"""The names a model can have, told apart without importing torch.

A name is one of four things: a torchvision model (``resnet18``), one of sweeper's teaching models
(``small-cnn``), a model of a library (``timm:resnet50d``, ``hf:gpt2``), or the user's own factory, as
``path/to/file.py:factory`` or ``package.module:factory``.  A module of the user's that is called ``timm`` or ``hf`` is
given by its path.

The torchvision names are a copy of its registry, so that a typing error is answered at once.  They are those of
torchvision 0.29; an older torchvision may lack one, which the worker then says.  A test holds the copy equal to the
installed registry, and ``python -m sweeper.worker.models.torchvision`` prints a new one.
"""

import ast
import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path

from sweeper.architectures import architecture
from sweeper.errors import UnknownName, UsageError

__all__ = [
    "LIBRARIES",
    "check_config",
    "check_model",
    "config_file",
    "is_factory",
    "known_models",
    "library_of",
    "modules_of",
    "require_library",
    "split_factory",
    "takes_images",
]

LISTING = "`sweep models` lists them all"

# The library behind a prefix, which is also the extra that installs it: pip install 'sweeper[hf]'.
LIBRARIES: Mapping[str, str] = {"timm": "timm", "hf": "transformers"}

TEACHING = ("small-cnn", "mlp", "tiny-transformer")
_TEACHING_IMAGES = frozenset({"small-cnn"})

# torchvision.models.list_models(module=torchvision.models)
CLASSIFICATION = (
    "alexnet", "convnext_base", "convnext_large", "convnext_small", "convnext_tiny", "densenet121", "densenet161",
    "densenet169", "densenet201", "efficientnet_b0", "efficientnet_b1", "efficientnet_b2", "efficientnet_b3",
    "efficientnet_b4", "efficientnet_b5", "efficientnet_b6", "efficientnet_b7", "efficientnet_v2_l",
    "efficientnet_v2_m", "efficientnet_v2_s", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mnasnet0_75",
    "mnasnet1_0", "mnasnet1_3", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "regnet_x_16gf",
    "regnet_x_1_6gf", "regnet_x_32gf", "regnet_x_3_2gf", "regnet_x_400mf", "regnet_x_800mf", "regnet_x_8gf",
    "regnet_y_128gf", "regnet_y_16gf", "regnet_y_1_6gf", "regnet_y_32gf", "regnet_y_3_2gf", "regnet_y_400mf",
    "regnet_y_800mf", "regnet_y_8gf", "resnet101", "resnet152", "resnet18", "resnet34", "resnet50",
    "resnext101_32x8d", "resnext101_64x4d", "resnext50_32x4d", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "squeezenet1_0", "squeezenet1_1", "swin_b", "swin_s", "swin_t",
    "swin_v2_b", "swin_v2_s", "swin_v2_t", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19",
    "vgg19_bn", "vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16", "vit_l_32", "wide_resnet101_2", "wide_resnet50_2",
)  # fmt: skip

# torchvision.models.list_models(module=torchvision.models.detection), and so on
DETECTION = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_resnet50_fpn",
    "fasterrcnn_resnet50_fpn_v2", "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2", "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
SEGMENTATION = (
    "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet101", "deeplabv3_resnet50", "fcn_resnet101", "fcn_resnet50",
    "lraspp_mobilenet_v3_large",
)  # fmt: skip
VIDEO = (
    "mc3_18", "mvit_v1_b", "mvit_v2_s", "r2plus1d_18", "r3d_18", "s3d", "swin3d_b", "swin3d_s", "swin3d_t",
)  # fmt: skip
OPTICAL_FLOW = ("raft_large", "raft_small")

# Inference on a CPU in 8-bit integers: there is no training step, and no CUDA kernel to run or to simulate.
QUANTIZED = (
    "quantized_googlenet", "quantized_inception_v3", "quantized_mobilenet_v2", "quantized_mobilenet_v3_large",
    "quantized_resnet18", "quantized_resnet50", "quantized_resnext101_32x8d", "quantized_resnext101_64x4d",
    "quantized_shufflenet_v2_x0_5", "quantized_shufflenet_v2_x1_0", "quantized_shufflenet_v2_x1_5",
    "quantized_shufflenet_v2_x2_0",
)  # fmt: skip


def known_models() -> tuple[str, ...]:
    """Every model that has a name of its own, sweeper's first."""
    return TEACHING + CLASSIFICATION + DETECTION + SEGMENTATION + VIDEO + OPTICAL_FLOW


def library_of(name: str) -> tuple[str, str] | None:
    """Return (prefix, the name in its library) for a model of ``LIBRARIES``; None for any other name."""
    prefix, colon, rest = name.partition(":")
    return (prefix, rest) if colon and prefix in LIBRARIES else None


def check_model(name: str) -> None:
    """Return when ``name`` can be a model, as far as can be told without importing it.

    Raises ``UnknownName`` for a bare name in no list, ``UsageError`` for a factory that is malformed or whose file
    is not there, for torchvision's quantized models, and where a library is not installed.
    """
    if (found := library_of(name)) is not None:
        prefix, rest = found
        if not re.fullmatch(r"/?[\w.-]+(/[\w.-]+)*", rest):
            example = "timm:vit_base_patch16_224" if prefix == "timm" else "hf:gpt2"
            raise UsageError(f"{name!r} names no model of {LIBRARIES[prefix]}", hint=f"write it as {example}")
        require_library(prefix)
    elif is_factory(name):
        split_factory(name)
    elif name in QUANTIZED:
        raise UsageError(
            f"{name} is for inference on a CPU in 8-bit integers, and has no step to train or to run on a GPU",
            hint=f"take the model it is made from: {name.removeprefix('quantized_')}",
        )
    elif name not in known_models():
        raise UnknownName("model", name, known_models(), listing=LISTING)


def require_library(prefix: str) -> None:
    """Raises ``UsageError`` where the library behind ``prefix`` is not installed; it is not imported."""
    library = LIBRARIES[prefix]
    if importlib.util.find_spec(library) is None:
        raise UsageError(f"{prefix}: needs {library}, which is not installed", hint=f"pip install 'sweeper[{prefix}]'")


def check_config(model: str, config: str | None) -> None:
    """Raises ``UsageError`` where ``config`` is no file, or ``model`` is of no library that builds from one."""
    if config is None:
        return
    if not model.startswith("hf:"):
        raise UsageError(
            f"--config is a configuration of transformers, and {model} is built without one",
            hint="give a name for it as --model hf:NAME, or leave --config out",
        )
    if not Path(config).is_file():
        raise UsageError(f"there is no file {config}", hint=f"the path is taken from {Path.cwd()}")


def modules_of(model: str, config: str | None) -> tuple[str, ...]:
    """The modules that building ``model`` imports, and that take long enough to be imported before a trial.

    For transformers the one that defines the architecture is among them, as far as its type is known here.
    """
    if (found := library_of(model)) is None:
        return ()
    prefix, name = found
    library = LIBRARIES[prefix]
    if prefix != "hf":
        return (library,)
    known, file = architecture(name), config_file(model, config)
    model_type = _type_in(file) if file is not None else known.model_type if known is not None else None
    if model_type is None:
        return (library,)
    # transformers.models.auto.configuration_auto.model_type_to_module_name, but for its few exceptions
    module = model_type.replace("-", "_")
    return library, f"transformers.models.{module}.modeling_{module}"


def config_file(model: str, config: str | None) -> Path | None:
    """The file that configures ``model`` here: ``config``, or the one in the folder that ``hf:FOLDER`` names."""
    if config is not None:
        return Path(config)
    found = library_of(model)
    if found is None or found[0] != "hf" or architecture(found[1]) is not None:
        return None
    file = Path(found[1]) / "config.json"
    return file if file.is_file() else None


def _type_in(path: Path) -> str | None:
    """The type that a configuration says; None where it cannot be read, which the worker will say."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) and found.replace("-", "_").isidentifier() else None


def takes_images(name: str) -> bool:
    """Whether the samples of ``name`` are images, as far as the name tells; it does not of a user's own model."""
    if (found := library_of(name)) is not None:
        prefix, rest = found
        known = architecture(rest)
        return prefix == "timm" or (known is not None and known.class_name.endswith("ForImageClassification"))
    return name in _TEACHING_IMAGES or name in CLASSIFICATION + DETECTION + SEGMENTATION


def is_factory(name: str) -> bool:
    """Whether ``name`` points at code of the user's, well or badly written."""
    return library_of(name) is None and any(mark in name for mark in ":/\\.")


def split_factory(name: str) -> tuple[Path | str, str]:
    """Return (file or module name, factory), the file as a ``Path`` that exists.  Raises ``UsageError``."""
    place, colon, factory = name.rpartition(":")
    if not colon:
        place, factory = name, ""
    in_file = place.endswith(".py") or any(mark in place for mark in "/\\")
    if in_file and not Path(place).is_file():
        raise UsageError(f"there is no file {place}", hint=f"the path is taken from {Path.cwd()}")
    if not in_file and not _is_dotted(place):
        raise UsageError(
            f"{name!r} is no model", hint="write a name, path/to/file.py:factory or package.module:factory"
        )
    if not _is_dotted(factory):
        what = "a file" if in_file else "a module"
        raise UsageError(f"{name!r} names {what}, not what to call in it", hint=_what_to_call(place, in_file))
    return (Path(place) if in_file else place), factory


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _what_to_call(place: str, in_file: bool) -> str:
    found = _public_definitions(Path(place)) if in_file else []
    if found:
        return "write " + " or ".join(f"{place}:{name}" for name in found[:4])
    return f"write {place}:factory, where factory is a function or class that makes the model"


def _public_definitions(path: Path) -> list[str]:
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]

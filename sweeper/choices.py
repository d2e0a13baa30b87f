"""The choices of a training job, from the words a person gives to a ``TrialSpec``; and what cannot go together.

Each rule is one line of ``_RULES``: where it is broken nothing runs, and the sentence says what to write instead.
``check_choices`` knows what the words alone tell, and asks again once ``auto`` is a device; what only a model or a GPU
can tell, the worker refuses in the same way.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from sweeper import cards, model_names
from sweeper.allocator_conf import AllocatorConf
from sweeper.checks import check_steps, one_of
from sweeper.errors import UsageError
from sweeper.trial import ATTENTIONS, MODES, OPTIMIZERS, PRECISIONS, Scalar, TrialSpec

__all__ = ["Choices", "check_choices", "check_on_card", "job"]


class Choices(TypedDict, total=False):
    """What ``sweep``, ``predict`` and their like take beside the model; each as in ``TrialSpec``, whose defaults hold.

    ``precision``, ``optimizer``, ``mode`` and ``attention`` are words of the lists there.  ``lora`` is the rank.
    """

    batch_size: int
    model_args: Mapping[str, Scalar] | None
    config: str | None
    image_size: int | None
    seq_len: int | None
    precision: str
    optimizer: str
    optimizer_args: Mapping[str, Scalar] | None
    mode: str
    accumulate: int
    checkpointing: bool
    freeze: Sequence[str]
    lora: int | None
    channels_last: bool
    compile: bool
    attention: str
    alloc_conf: str | None
    steps: int
    seed: int


def job(model: str, choices: Choices) -> TrialSpec:
    """What is trained, checked word by word; on which device is for the caller to say.

    Raises ``UsageError`` for a word that is none, a number out of range, and choices that cannot go together.
    """
    given: dict[str, Any] = dict(choices)
    spec = TrialSpec(
        model=model,
        batch_size=given.pop("batch_size", 1),
        device="auto",
        model_args=dict(given.pop("model_args", None) or {}),
        precision=one_of("precision", given.pop("precision", "fp32"), PRECISIONS),
        optimizer=one_of("optimizer", given.pop("optimizer", "sgd"), OPTIMIZERS),
        optimizer_args=dict(given.pop("optimizer_args", None) or {}),
        mode=one_of("mode", given.pop("mode", "train"), MODES),
        attention=one_of("attention", given.pop("attention", "auto"), ATTENTIONS),
        freeze=tuple(given.pop("freeze", ())),
        lora_rank=given.pop("lora", None),
        **given,
    )
    check_steps(spec.steps)
    model_names.check_model(spec.model)
    model_names.check_config(spec.model, spec.config)
    check_choices(spec)
    return spec


@dataclass(frozen=True, slots=True)
class _Rule:
    """``broken`` says whether a spec breaks it; the texts are formatted with the spec."""

    broken: Callable[[TrialSpec], bool]
    message: str
    hint: str


def _on(*kinds: str) -> Callable[[TrialSpec], bool]:
    return lambda spec: spec.device.partition(":")[0] in kinds


def _trains_only(choice: Callable[[TrialSpec], bool], flag: str, what: str) -> _Rule:
    return _Rule(
        lambda spec: spec.mode == "inference" and choice(spec),
        f"{flag} is about training, and inference has no {what}",
        f"leave {flag} out, or take --mode train",
    )


def _at_least_one(name: str, flag: str) -> _Rule:
    def broken(spec: TrialSpec) -> bool:
        number: int | None = getattr(spec, name)
        return number is not None and number < 1

    return _Rule(broken, f"{flag} {{{name}}} is too small", "give 1 or more")


_RULES: tuple[_Rule, ...] = (
    _at_least_one("batch_size", "--batch-size"),
    _at_least_one("image_size", "--image-size"),
    _at_least_one("seq_len", "--seq-len"),
    _at_least_one("accumulate", "--accumulate"),
    _at_least_one("lora_rank", "--lora"),
    _trains_only(lambda s: s.optimizer != "sgd", "--optimizer", "optimizer"),
    _trains_only(lambda s: bool(s.optimizer_args), "--optimizer-arg", "optimizer"),
    _trains_only(lambda s: s.accumulate != 1, "--accumulate", "gradients"),
    _trains_only(lambda s: s.checkpointing, "--checkpointing", "activations to drop"),
    _trains_only(lambda s: bool(s.freeze), "--freeze", "gradients"),
    _Rule(
        lambda s: s.lora_rank is not None and bool(s.freeze),
        "--lora freezes all but its adapters, so --freeze has nothing left to say",
        "leave one of them out",
    ),
    _Rule(
        lambda s: s.compile and _on("cpu", "sim")(s),
        "--compile works on cuda: what the compiler would fuse on {device} is not known here",
        "leave it out, or take --device cuda",
    ),
    _Rule(
        lambda s: s.precision == "tf32" and _on("cpu")(s),
        "--precision tf32 is a mode of NVIDIA's tensor cores, which {device} has not",
        "take fp32 or bf16",
    ),
    _Rule(
        lambda s: s.precision == "fp8" and _on("cpu")(s),
        "--precision fp8 is a mode of NVIDIA's tensor cores; {device} could only imitate it",
        "take bf16, or --device sim:rtx4060",
    ),
    _Rule(
        lambda s: s.alloc_conf is not None and _on("cpu")(s),
        "--alloc-conf sets PyTorch's CUDA allocator, which {device} does not use",
        "leave it out, or take --device cuda or sim:CARD",
    ),
    _Rule(
        lambda s: s.attention == "efficient" and _on("cpu")(s),
        "--attention efficient is a CUDA kernel, which {device} has not",
        "take flash or math",
    ),
    _Rule(
        lambda s: s.attention == "flash" and s.precision in ("fp32", "tf32") and _on("cuda", "sim")(s),
        "--attention flash takes 16-bit tensors, and --precision {precision} has none",
        "take --precision amp-bf16, or --attention efficient",
    ),
)


def check_choices(spec: TrialSpec) -> None:
    """Raise ``UsageError`` where ``spec`` asks for what cannot be, as far as the words tell."""
    for rule in _RULES:
        if rule.broken(spec):
            said = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
            raise UsageError(rule.message.format(**said), hint=rule.hint)
    if spec.alloc_conf is not None:
        AllocatorConf.parse(spec.alloc_conf)
    kind, _, name = spec.device.partition(":")
    if kind == "sim" and name:
        card = spec.card or cards.card(name)
        check_on_card(spec, card.compute_capability, card.label)


# The least compute capability, of NVIDIA's cards.  TF32: CUDA C++ Programming Guide, "Compute Capability 8.x".  FP8:
# the same, 8.9.  Flash attention: check_flash_attention_hardware_support, aten/src/ATen/native/transformers/cuda/
# sdp_utils.cpp, torch 2.14.
_LEAST_FOR_PRECISION = {"tf32": (8, 0), "fp8": (8, 9)}
_LEAST_FOR_FLASH = (8, 0)


def check_on_card(spec: TrialSpec, compute_capability: str, label: str) -> None:
    """Raise ``UsageError`` where a GPU of ``compute_capability`` cannot do what ``spec`` asks for."""
    have = tuple(int(part) for part in compute_capability.split("."))
    for asked, flag, least in (
        (spec.precision, "--precision", _LEAST_FOR_PRECISION.get(spec.precision)),
        (spec.attention, "--attention", _LEAST_FOR_FLASH if spec.attention == "flash" else None),
    ):
        if least is not None and have < least:
            raise UsageError(
                f"{flag} {asked} needs compute capability {least[0]}.{least[1]}, and {label} has {compute_capability}",
                hint="take another, or a newer card",
            )

"""What is trained, and how, from a spec: the flags that ask for it again, and what a heading calls it.

Each field of ``TrialSpec`` is a row of ``_ROWS``, so none can be forgotten: a field without a row is an error the
first time anything is shown.  A row's functions are asked only where the field is not at its default.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeper.axes import without_size
from sweeper.trial import Scalar, TrialSpec
from sweeper.units import GIB, MIB

__all__ = ["described", "exact_size", "flags"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """How a field is asked for, and the words it adds to a heading; either may be nothing."""

    flags: Callable[[Any], Sequence[str]]
    words: Callable[[Any], Sequence[str]] = lambda value: ()


def _valued(flag: str, words: str | None = None) -> _Row:
    """``words`` are formatted with the value."""
    return _Row(lambda value: (flag, str(value)), lambda value: () if words is None else (words.format(value),))


def _switch(flag: str, words: str) -> _Row:
    return _Row(lambda value: (flag,), lambda value: (words,))


def _pairs(flag: str) -> _Row:
    def pairs(arguments: Mapping[str, Scalar]) -> list[str]:
        return [f"{name}={value}" for name, value in arguments.items()]

    return _Row(lambda value: [word for pair in pairs(value) for word in (flag, pair)], pairs)


def _repeated(flag: str, words: str) -> _Row:
    return _Row(
        lambda value: [word for item in value for word in (flag, item)], lambda value: (words.format(", ".join(value)),)
    )


def exact_size(size: int) -> str:
    """``size``, bytes, as ``--memory-limit`` reads it back, to the byte."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


_ALWAYS = ("model", "mode", "precision", "optimizer")  # in a heading also at their defaults

# In the order of a heading.  The device and its limit are said at its end, elsewhere.
_ROWS: Mapping[str, _Row] = {
    "model": _valued("--model", "{}"),
    "device": _valued("--device"),
    "model_args": _pairs("--model-arg"),
    "config": _valued("--config", "config {}"),
    "mode": _valued("--mode", "{}"),
    "precision": _valued("--precision", "{}"),
    "optimizer": _valued("--optimizer", "{}"),
    "optimizer_args": _pairs("--optimizer-arg"),
    "batch_size": _valued("--batch-size", "batch {}"),
    "image_size": _valued("--image-size", "{} pixels"),
    "seq_len": _valued("--seq-len", "{} tokens"),
    "accumulate": _valued("--accumulate", "{} batches a step"),
    "checkpointing": _switch("--checkpointing", "checkpointing"),
    "freeze": _repeated("--freeze", "without {}"),
    "lora_rank": _valued("--lora", "LoRA {}"),
    "channels_last": _switch("--channels-last", "channels last"),
    "compile": _switch("--compile", "compiled"),
    "attention": _valued("--attention", "{} attention"),
    "alloc_conf": _valued("--alloc-conf", "{}"),
    "steps": _valued("--steps"),
    "memory_limit_bytes": _Row(lambda size: ("--memory-limit", exact_size(size))),
    "seed": _valued("--seed"),
    "card": _Row(lambda card: ()),  # the device names it, and --no-calibration whether it was calibrated
}


def flags(spec: TrialSpec, axis: str = "batch") -> list[str]:
    """The words of a command line that ask for ``spec``, all but its size along ``axis``."""
    changed = _changed(spec, axis, always=("model", "device", *(() if axis == "batch" else ("batch_size",))))
    return [word for name, value in changed.items() for word in _ROWS[name].flags(value)]


def described(spec: TrialSpec, axis: str = "batch") -> list[str]:
    """What is trained, and how, in the parts of a heading; the size along ``axis`` is not one of them."""
    always = _ALWAYS if spec.mode == "train" else _ALWAYS[:-1]  # inference has no optimizer
    if axis != "batch":
        always = (*always, "batch_size")
    changed = _changed(spec, axis, always=always)
    return [word for name, value in changed.items() for word in _ROWS[name].words(value)]


def _changed(spec: TrialSpec, axis: str, *, always: Sequence[str]) -> dict[str, Any]:
    """The fields that are not at their defaults, and those of ``always``, in the order of the rows."""
    values = without_size(spec, axis)
    if missing := values.keys() - _ROWS.keys():
        raise KeyError(f"no row says how to ask for {', '.join(sorted(missing))}")
    defaults = {field.name: _default(field) for field in dataclasses.fields(spec)}
    return {
        name: values[name] for name in _ROWS if name in values and (name in always or values[name] != defaults[name])
    }


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()

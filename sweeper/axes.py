"""What a sweep can vary: the batch, the length of the sequences, the side of the images, or an argument of the model.

A size along an axis is a whole number; everything else of the trial stays as it is.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from sweeper.errors import UnknownName
from sweeper.trial import TrialSpec

__all__ = ["AXES", "Words", "at_size", "check_axis", "model_argument", "size_of", "without_size", "words"]

AXES = ("batch", "seq-len", "image-size", "model.ARG")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How a size along an axis is spoken of: "batch 64 fits", "longest sequence that fits: 3,712 tokens"."""

    size: str  # before the number
    largest: str  # what the answer is: "largest batch"
    letter: str  # in a trial's folder
    noun: str  # what a size counts, in the singular: "token"
    label: str  # of a plot's axis, with its unit
    unit: str = ""  # after a number that stands alone
    heading: str  # of a table's column, in one or two lines


_WORDS = {
    "batch": Words(
        size="batch",
        largest="largest batch",
        letter="b",
        noun="sample",
        label="batch size",
        heading="batch",
    ),
    "seq-len": Words(
        size="sequence length",
        largest="longest sequence",
        letter="s",
        noun="token",
        label="sequence length (tokens)",
        unit="tokens",
        heading="sequence\nlength",
    ),
    "image-size": Words(
        size="image size",
        largest="largest image",
        letter="i",
        noun="pixel of side",
        label="image size (pixels a side)",
        unit="pixels a side",
        heading="image\nsize",
    ),
}


def words(axis: str) -> Words:
    """The words for ``axis``."""
    name = model_argument(axis)
    if name is None:
        return _WORDS[axis]
    return Words(
        size=name,
        largest=f"largest {name}",
        letter="m",
        noun=f"unit of {name}",
        label=name,
        heading=name,
    )


def model_argument(axis: str) -> str | None:
    """The name of the model's argument that ``axis`` varies; None for the other axes."""
    kind, _, name = axis.partition(".")
    return name if kind == "model" and name else None


def check_axis(axis: str) -> None:
    """Raises ``UnknownName`` when there is no such axis."""
    name = model_argument(axis)
    if axis not in _WORDS and (name is None or not name.isidentifier()):
        raise UnknownName("axis", axis, (*_WORDS, "model.depth"), listing=f"known: {', '.join(AXES)}")


# The field of a TrialSpec that holds the size.
_FIELDS = {"batch": "batch_size", "seq-len": "seq_len", "image-size": "image_size"}


def at_size(spec: TrialSpec, axis: str, size: int | None) -> TrialSpec:
    """Return ``spec`` at another size along ``axis``; None is the model's own, which a batch has not."""
    name = model_argument(axis)
    if name is None:
        changed: dict[str, Any] = {_FIELDS[axis]: size}
    else:
        others = {key: value for key, value in spec.model_args.items() if key != name}
        changed = {"model_args": others if size is None else {**others, name: size}}
    return dataclasses.replace(spec, **changed)


def size_of(spec: TrialSpec, axis: str) -> int | None:
    """The size of ``spec`` along ``axis``; None where it is the model's own."""
    name = model_argument(axis)
    value = getattr(spec, _FIELDS[axis]) if name is None else spec.model_args.get(name)
    return value if isinstance(value, int) else None


def without_size(spec: TrialSpec, axis: str) -> dict[str, Any]:
    """The fields of ``spec`` by name, but for what ``axis`` varies."""
    found = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    if (name := model_argument(axis)) is not None:
        found["model_args"] = {key: value for key, value in spec.model_args.items() if key != name}
    else:
        del found[_FIELDS[axis]]
    return found

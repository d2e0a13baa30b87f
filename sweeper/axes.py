"""What a sweep can vary: the batch, the length of the sequences, the side of the images, or an argument of the model.

A size along an axis is a whole number; everything else of the trial stays as it is.
"""

import dataclasses
from dataclasses import dataclass

from sweeper.errors import UnknownName
from sweeper.trial import TrialSpec

__all__ = ["AXES", "Words", "at_size", "check_axis", "model_argument", "size_of", "words"]

AXES = ("batch", "seq-len", "image-size", "model.ARG")


@dataclass(frozen=True, slots=True)
class Words:
    """How a size along an axis is spoken of: "batch 64 fits", "the largest batch that fits"."""

    size: str  # before the number
    largest: str  # what the answer is, in the singular
    letter: str  # in a trial's folder


_WORDS = {
    "batch": Words("batch", "largest batch", "b"),
    "seq-len": Words("sequence length", "longest sequence", "s"),
    "image-size": Words("image size", "largest image", "i"),
}


def words(axis: str) -> Words:
    """The words for ``axis``."""
    name = model_argument(axis)
    return _WORDS[axis] if name is None else Words(name, f"largest {name}", "m")


def model_argument(axis: str) -> str | None:
    """The name of the model's argument that ``axis`` varies; None for the other axes."""
    kind, _, name = axis.partition(".")
    return name if kind == "model" and name else None


def check_axis(axis: str) -> None:
    """Raises ``UnknownName`` when there is no such axis."""
    name = model_argument(axis)
    if axis not in _WORDS and (name is None or not name.isidentifier()):
        raise UnknownName("axis", axis, (*_WORDS, "model.depth"), listing=f"known: {', '.join(AXES)}")


def at_size(spec: TrialSpec, axis: str, size: int) -> TrialSpec:
    """Return ``spec`` at another size along ``axis``."""
    match axis:
        case "batch":
            return dataclasses.replace(spec, batch_size=size)
        case "seq-len":
            return dataclasses.replace(spec, seq_len=size)
        case "image-size":
            return dataclasses.replace(spec, image_size=size)
    name = model_argument(axis)
    assert name is not None
    return dataclasses.replace(spec, model_args={**spec.model_args, name: size})


def size_of(spec: TrialSpec, axis: str) -> int | None:
    """The size of ``spec`` along ``axis``; None where it is the model's own."""
    match axis:
        case "batch":
            return spec.batch_size
        case "seq-len":
            return spec.seq_len
        case "image-size":
            return spec.image_size
    value = spec.model_args.get(model_argument(axis) or "")
    return value if isinstance(value, int) else None

"""A memory law in a sentence: the sum it is, how it grows along an axis, and how far to believe it."""

from sweeper import axes
from sweeper.curve import MemoryLaw
from sweeper.units import format_bytes

__all__ = ["growth", "sentence"]

# A law that misses a point by more than this is none.
_POOR_FIT = 0.05
_ENOUGH_FOR_GROWTH = 3  # sizes on a line before it is called straight: any two are


def sentence(law: MemoryLaw, axis: str, *, noun: str, peak: str) -> str:
    """``peak allocated = 464.00 MiB + 22.00 MiB per image (R2 1.0000, ...)``; ``noun`` is what the size counts.

    Along another axis than the batch it says how the peak grows as well.
    """
    curve = _sum(law, noun)
    if law.floor_bytes is not None:
        curve += f", and at least {format_bytes(law.floor_bytes)}"
    trust = f"R2 {law.r_squared:.4f}, within {100 * law.worst_relative_error:.1f} % of every measured point"
    grows = growth(law, axis)
    if law.worst_relative_error > _POOR_FIT:
        grows = None
        trust += f", so it is no {'law' if law.per_square_bytes else 'straight line'}: go by the table"
    return f"{peak} = {curve} ({trust})" if grows is None else f"{peak} {grows}: {curve} ({trust})"


def growth(law: MemoryLaw, axis: str) -> str | None:
    """How the peak grows along another axis than the batch; None along that, and where too little is measured.

    ``curve.fit_law`` decides: in a line, unless that misses the peaks and a square does not.
    """
    if axis == "batch" or law.points_used < _ENOUGH_FOR_GROWTH:
        return None
    name = axes.words(axis).size
    return f"grows {'with the square of' if law.per_square_bytes else 'in a straight line with'} the {name}"


def _sum(law: MemoryLaw, noun: str) -> str:
    """The negative terms come last: ``22.00 MiB per image - 12.00 MiB``."""
    terms = [
        (law.fixed_bytes, ""),
        (round(law.per_sample_bytes), f" per {noun}"),
        (round(law.per_square_bytes), f" per {noun} squared"),
    ]
    shown = [(size, after) for size, after in terms if size or after == f" per {noun}"]
    shown.sort(key=lambda term: term[0] < 0)
    text = ""
    for size, after in shown:
        text += (" - " if size < 0 else " + " if text else "") + format_bytes(abs(size)) + after
    return text.strip()

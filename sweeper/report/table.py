"""Columns of text laid out in a given width; the least important columns give way when it is too small."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Column", "Layout", "lay_out"]

_GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``importance`` 0 never gives way.  ``heading`` has one or two lines."""

    heading: str
    cells: tuple[str, ...]
    importance: int = 0
    left: bool = False

    @property
    def width(self) -> int:
        return max(len(line) for line in (*self.heading.splitlines(), *self.cells))


@dataclass(frozen=True, slots=True)
class Layout:
    """Lines without trailing blanks; ``dropped`` names the columns that found no room."""

    headings: tuple[str, ...]
    rows: tuple[str, ...]
    dropped: tuple[str, ...] = ()


def lay_out(columns: Sequence[Column], *, width: int) -> Layout:
    """Return ``columns`` side by side in at most ``width`` characters, if the columns of importance 0 allow it."""
    kept = list(columns)
    dropped = []
    while _total(kept) > width and any(column.importance for column in kept):
        least = max(kept, key=lambda column: column.importance)
        kept.remove(least)
        dropped.append(" ".join(least.heading.split()))
    depth = max(len(column.heading.splitlines()) for column in kept)
    heads = [[""] * (depth - len(lines)) + lines for lines in (column.heading.splitlines() for column in kept)]
    return Layout(
        headings=tuple(_line(kept, [head[i] for head in heads]) for i in range(depth)),
        rows=tuple(_line(kept, list(cells)) for cells in zip(*(column.cells for column in kept), strict=True)),
        dropped=tuple(dropped),
    )


def _total(columns: Sequence[Column]) -> int:
    return sum(len(_GAP) + column.width for column in columns)


def _line(columns: Sequence[Column], cells: Sequence[str]) -> str:
    padded = (
        cell.ljust(column.width) if column.left else cell.rjust(column.width)
        for column, cell in zip(columns, cells, strict=True)
    )
    return (_GAP + _GAP.join(padded)).rstrip()

"""How sentences are set on a terminal: in a width, under a label, in colour or not."""

import textwrap

from sweeper.report.words import printable

__all__ = ["LABEL_WIDTH", "Ink", "capital", "fill", "labelled", "percent"]

# Select Graphic Rendition codes (ECMA-48, 8.3.117).
_INK = {"bold": "1", "dim": "2", "bad": "31", "good": "1;32", "warning": "33", "plain": ""}
LABEL_WIDTH = 14


class Ink:
    """Colours whole lines, or leaves everything as it is."""

    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, text: str, tone: str) -> str:
        code = _INK[tone]
        if not self._color or not code:
            return text
        return "\n".join(f"\x1b[{code}m{line}\x1b[0m" if line else line for line in text.split("\n"))


def labelled(label: str, text: str, width: int, ink: Ink, tone: str) -> str:
    indent = " " * (LABEL_WIDTH + 4)
    first, *rest = fill(printable(text), width, indent).split("\n")
    return "\n".join([f"  {ink(label.ljust(LABEL_WIDTH), tone if tone != 'plain' else 'dim')}  {first.strip()}", *rest])


def fill(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(
        text,
        width=max(width, len(indent) + 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def percent(size: int, capacity: int) -> str:
    """Never rounded up to the 100.0 that would read as full."""
    return f"{min(100 * size / capacity, 99.9) if size < capacity else 100 * size / capacity:.1f}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]

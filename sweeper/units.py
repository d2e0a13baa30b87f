"""Bytes: read from what a person types, and written for a person to read.

Everywhere else bytes are integers.  Powers of two are written KiB, MiB, GiB; powers of ten KB, MB, GB; the two are
never mixed, and a bare number is bytes.
"""

import re

from sweeper.errors import UsageError

__all__ = ["GIB", "KIB", "MIB", "format_bytes", "format_mib", "parse_bytes"]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_UNITS = {
    "": 1, "B": 1,
    "K": KIB, "M": MIB, "G": GIB, "T": 1 << 40,
    "KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def parse_bytes(text: str) -> int:
    """Return the bytes that ``text`` names: ``8GiB``, ``16GB``, ``512 MiB``, ``1073741824``.

    A single letter means the power of two (``8G`` is 8 GiB), as in ``docker run --memory`` and the JVM.  Raises
    ``UsageError`` when it is no positive size.
    """
    match = _SIZE.match(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise UsageError(f"{text!r} is not a size", hint="write it as 8GiB, 16GB or 512MiB")
    return int(float(match[1]) * unit)


def format_bytes(size: int) -> str:
    """Return ``size`` bytes in the power-of-two unit a person would choose: ``7.75 GiB``, ``512 B``."""
    magnitude = abs(size)
    if magnitude < KIB:
        return f"{size} B"
    for unit, name in ((KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB")):
        # 1023.995 MiB would print as 1024.00 MiB, so the next unit takes over there.
        if magnitude < unit * 1023.995:
            return f"{size / unit:.2f} {name}"
    return f"{size / (1 << 40):.2f} TiB"


def format_mib(size: int) -> str:
    """Return ``size`` bytes in whole MiB, for tables in which every row has the same unit: ``6,268``."""
    return f"{size / MIB:,.0f}"

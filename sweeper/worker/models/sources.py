"""Which files of the user's own a process has imported: what a trace of their model depends on."""

import sys
import sysconfig
from pathlib import Path

__all__ = ["own_sources"]

_PACKAGE = Path(__file__).resolve().parents[2]


def own_sources() -> tuple[str, ...]:
    """The paths of all Python files imported so far that are neither installed, nor Python's, nor sweeper's.

    A package that is installed in place, for editing, counts as the user's.
    """
    paths = sysconfig.get_paths()
    others = {Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_PACKAGE}
    others |= {Path(entry).resolve() for entry in sys.path if entry.endswith("-packages")}
    files = {Path(file).resolve() for module in tuple(sys.modules.values()) if (file := _file_of(module)) is not None}
    return tuple(sorted(str(file) for file in files if not others & set(file.parents)))


def _file_of(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else None

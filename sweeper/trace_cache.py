"""Traces kept between commands: one file a trace, in the user's cache, under everything that the trace depends on.

The question, all of which is in the file's name (as a digest) and in the file: the trial but its device and limit, the
batch size, what the card's kernels are chosen by, the versions of torch and torchvision and of the library that the
model is of, a digest of its configuration file, the text of the code that traces (``sweeper/worker``, so that no
changed rule is ever answered by an old trace), the schema of traces; and for code of the user's own, its full path, the
current folder, Python's version and the list of what is installed.

What cannot be in the question, because only the worker knows it: which files of the user's own the model was made from.
They are kept beside the trace with a digest of each, and the trace counts only while all of them are as they were.

A file that is damaged, or of another schema, counts as not there, and is replaced.  Nothing removes a file whose
question is not asked any more: a trace takes some 10 to 100 KB, and the folder may be deleted at any time.  What this
does not know: what a user's code reads besides Python files (a configuration, an environment variable), and that a
configuration on the hub has changed.
"""

import gzip
import hashlib
import json
import os
import platform
import sys
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from sweeper.libraries import distributions_of
from sweeper.model_names import config_file, is_factory, split_factory
from sweeper.trace import SCHEMA as TRACE_SCHEMA
from sweeper.trace import Trace
from sweeper.trial import TrialSpec

__all__ = ["TraceCache", "default_folder", "question", "versions"]

# 1  first version
SCHEMA = 1

_NOT_OF_A_TRACE = frozenset({"device", "memory_limit_bytes", "card", "alloc_conf"})


class TraceCache:
    """The traces in ``folder``, which is made when the first is kept.  Nothing here raises for what is on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, asked: Mapping[str, Any]) -> Trace | None:
        """The trace that answers ``asked``, a ``question``; None when there is none that still counts."""
        try:
            kept = json.loads(gzip.decompress(self._path(asked).read_bytes()))
            if kept["schema"] != SCHEMA or kept["question"] != json.loads(_text(asked)):
                return None
            if any(_digest(Path(path)) != digest for path, digest in kept["sources"].items()):
                return None
            return Trace.from_json(kept["trace"])
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
            return None

    def put(self, asked: Mapping[str, Any], trace: Trace, sources: Iterable[str]) -> None:
        """Keep ``trace``, whole or not at all; a cache that cannot be written stays as it is."""
        with suppress(OSError):
            kept = {
                "schema": SCHEMA,
                "question": asked,
                "sources": {path: _digest(Path(path)) for path in sources},
                "trace": trace.to_json(),
            }
            self._folder.mkdir(parents=True, exist_ok=True)
            whole = self._path(asked)
            partial = whole.with_suffix(f".{os.getpid()}.partial")
            partial.write_bytes(gzip.compress(json.dumps(kept).encode(), compresslevel=3))
            partial.replace(whole)

    def _path(self, asked: Mapping[str, Any]) -> Path:
        return self._folder / f"{hashlib.sha256(_text(asked).encode()).hexdigest()[:32]}.json.gz"


def default_folder() -> Path:
    """Where this user's traces are kept."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("sweeper", appauthor=False)) / "traces"


def question(spec: TrialSpec, kernels: str) -> dict[str, Any]:
    """Everything that the trace of ``spec`` at its batch size depends on, as what JSON can say.

    ``kernels`` is ``Card.kernels``.
    """
    asked: dict[str, Any] = {
        "spec": {f.name: getattr(spec, f.name) for f in fields(spec) if f.name not in _NOT_OF_A_TRACE},
        "kernels": kernels,
        "versions": {**versions(), **{name: _version(name) for name in distributions_of(spec)}},
        "tracer": _tracer_digest(),
        "trace_schema": TRACE_SCHEMA,
    }
    asked["spec"].pop("config")
    if (file := config_file(spec.model, spec.config)) is not None:  # by what it says, wherever it lies
        asked["config"] = _digest_of(file)
    if is_factory(spec.model):
        place, factory = split_factory(spec.model)
        asked["spec"]["model"] = f"{place.resolve() if isinstance(place, Path) else place}:{factory}"
        asked |= {"folder": str(Path.cwd()), "python": platform.python_version(), "installed": _installed_digest()}
    return asked


def versions() -> dict[str, str | None]:
    """The versions of torch and torchvision, which is known without importing them; None where they are missing."""
    return {name: _version(name) for name in ("torch", "torchvision")}


def _version(distribution: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return None


@cache
def _tracer_digest() -> str:
    """Of the source of everything that takes part in a trace."""
    package = Path(__file__).parent
    content = hashlib.sha256()
    named = [package / "model_names.py", package / "architectures.py", package / "data" / "transformers.json"]
    for path in [*named, *sorted((package / "worker").rglob("*.py"))]:
        content.update(f"{path.relative_to(package)}\0".encode())
        content.update(path.read_bytes())
    return content.hexdigest()


def _installed_digest() -> str:
    """Of the names and versions of all installed distributions: a user's model may be made of any of them."""
    found = {path.name for entry in sys.path if Path(entry).is_dir() for path in Path(entry).glob("*.dist-info")}
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def _digest_of(path: Path) -> str | None:
    """The same, or None of a file that cannot be read, which the worker will say."""
    with suppress(OSError):
        return _digest(path)
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _text(asked: Mapping[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True)

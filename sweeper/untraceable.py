"""Why a step could not be traced, read from how the worker broke: the operator, the user's line, and the way out.

Meta tensors have shapes and no values, so a model that looks at a value on the host, or makes a tensor as large as its
values say, cannot run on them.  PyTorch says so in several ways (``torch/_meta_registrations.py``, the dispatcher's
fallback for ``Meta``, ``Tensor.numpy``; the texts are those of 2.14), all of which name meta.  The line is that of the
innermost frame in the user's own file; where there is none, in a library other than torch.

What this does not know: an error of the user's own that has the word "meta" in it reads as one of these.
"""

import re
from dataclasses import dataclass

from sweeper.errors import Untraceable
from sweeper.trial import Broken, TrialSpec

__all__ = ["Line", "blamed_line", "lacks_values", "missing_operator", "untraceable"]

_META = re.compile(r"\bmeta\b|register_meta", re.IGNORECASE)
_OPERATOR = re.compile(r"(aten::\w+)|(torch\.\w+)\(\)|(Tensor\.\w+)\(\)|cannot (repeat_interleave) a meta")
_TO_HOST = re.compile(r"Cannot copy out of meta tensor|to numpy")
_FRAME = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)\n(?P<code> {4}.*)?', re.MULTILINE
)
# As the worker's traceback names what is installed: from where it is imported.
_NOT_TO_BLAME = ("torch/", "sweeper/", "<")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a traceback; ``code`` is empty where the source was not there."""

    file: str
    number: int
    function: str
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number} in {self.function}{f': {self.code}' if self.code else ''}"


def untraceable(spec: TrialSpec, broken: Broken) -> Untraceable:
    """The error to raise for a trace of ``spec`` that ended as ``broken``."""
    line = blamed_line(broken.traceback)
    at = f", at {line}" if line else ""
    if lacks_values(broken):
        operator = missing_operator(broken.reason)
        return Untraceable(
            f"{spec.model} cannot be predicted: {operator} needs values, and a step without a GPU has none{at}",
            hint=f"run it instead: sweep --model {spec.model} --device cuda, or --device cpu; or take that line out",
        )
    if broken.failure == "model_error":
        return Untraceable(
            f"{spec.model} broke at batch {spec.batch_size}: {broken.reason}{at}",
            hint="mend the model: the error is its own; sweep --device cpu shows the whole traceback",
        )
    return Untraceable(
        f"the step of {spec.model} could not be traced: {broken.reason}", hint="try again; if it stays, report it"
    )


def lacks_values(broken: Broken) -> bool:
    """Did a step break because meta tensors have no values?"""
    return broken.failure == "model_error" and missing_operator(broken.reason) is not None


def missing_operator(reason: str) -> str | None:
    """The operator that meta tensors cannot run, as far as PyTorch's text names it; None for another error."""
    if not _META.search(reason):
        return None
    if _TO_HOST.search(reason):
        return "a copy to the host"
    match = _OPERATOR.search(reason)
    return next(name for name in match.groups() if name) if match else "an operator"


def blamed_line(traceback: str) -> Line | None:
    """The innermost line of the user's own file (its path is whole), else of a library other than torch."""
    frames = [
        Line(frame["file"], int(frame["line"]), frame["function"], (frame["code"] or "").strip())
        for frame in _FRAME.finditer(traceback)
    ]
    others = [frame for frame in frames if not frame.file.startswith(_NOT_TO_BLAME)]
    own = [frame for frame in others if frame.file.startswith("/")]
    return next(reversed(own or others), None)

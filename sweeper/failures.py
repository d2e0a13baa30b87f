"""When is a failure out of memory?  From evidence to class, and the rule for a failure that is only suspected.

A size that runs out of memory is an answer; any other failure says nothing about the size.  Told apart wrongly, the
boundary is wrong, so the order in which evidence is believed matters:

1. the exception's **type**: ``torch.OutOfMemoryError`` is raised by allocators, ``MemoryError`` means the host.  A type
   is a statement, whoever raises it; words can be there by accident;
2. the **error code** of a ``torch.AcceleratorError`` (a ``cudaError_t``, or the ``hipError_t`` of the same number);
3. a **token in the text**, but only where an allocator, a driver or a library speaks.  Text alone is unsafe: a
   program's own ``raise RuntimeError("... out of memory ...")`` is a bug or an opinion, not a refusal.  So each
   error carries its ``origin``: ``native`` when the deepest frame stopped in a call into compiled code, ``library``
   when a Python ``raise`` of torch or Triton was met, ``user`` for any other Python ``raise``.  ``evidence_of``
   reads that off the bytecode: a frame that raised stands on ``RAISE_VARARGS``, one that called stands on a call;
4. **free memory**, for what libraries say when they are short of memory and when they are broken alike.  Such an
   error is ``oom_suspect``: the trial is run once more and ``confirm_suspect`` reads the pair.

Every row that matches is collected.  The kind of evidence decides, in the order above, after the few rows that refine
what a type or a code says; within a kind the class that comes first in ``_PRECEDENCE`` wins, so the order of rows means
nothing.  ``FALLBACK_ROWS`` speak when no row does; what nobody claims is ``model_error``.

An exception that others were raised from is a chain.  Any link that is a refusal of the device makes the whole one:
`raise RuntimeError("step failed") from error` changes the wording, not what happened, and so does an error met while
the refusal was being handled.  Where torch passes on a traceback as text (data loader workers, ``DataParallel``
replicas, ``torch.multiprocessing.spawn``) the innermost error is read out of the text.

Not known here: the cause of an asynchronous fault that is reported late; out of memory that a program caught and
swallowed; pinned host memory when the failing line does not say so (CUDA words it as it words device memory).
The standard library only: both sides of the wall read this.
"""

import dataclasses
import linecache
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from opcode import opname
from types import TracebackType
from typing import Literal

from sweeper.failure_texts import (
    BY_CODE,
    BY_TYPE,
    CODE_FALLBACK,
    FALLBACK_ROWS,
    TEXT_ROWS,
    ParsedSizes,
    Row,
    parse_sizes,
    plain,
)
from sweeper.trial import Broken, FailureClass, Fit, Outcome, OutOfMemory

__all__ = [
    "LIBRARIES",
    "Death",
    "Evidence",
    "Origin",
    "ParsedSizes",
    "Verdict",
    "classify",
    "classify_death",
    "confirm_suspect",
    "doubt",
    "evidence_of",
    "is_out_of_memory",
    "parse_sizes",
]

Origin = Literal["native", "library", "user", "unknown"]

# Packages whose Python ``raise`` passes on what a device said.
LIBRARIES = frozenset({"torch", "torchvision", "triton", "functorch", "torchao", "sweeper"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One exception, as ``evidence_of`` sees it.

    ``type_names`` is the type's resolution order, most derived first, qualified (``torch.OutOfMemoryError``).
    ``line`` is the source line the deepest frame was at.  ``device`` is the kind: ``cuda``, ``cpu``, ``sim``.
    """

    type_names: tuple[str, ...]
    text: str
    origin: Origin = "unknown"
    error_code: int | None = None
    line: str = ""
    device: str = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a failure was; ``reason`` is one line for a person."""

    failure: FailureClass
    reason: str
    sizes: ParsedSizes | None = None


# The first of these that some row says is the class.  An impossible request is no shortage, a fault explains a
# library's vague error, and a suspicion is what remains.
_PRECEDENCE: tuple[FailureClass, ...] = (
    "kernel_limit", "oom_device", "oom_host", "numeric", "timeout", "infra", "cuda_fault", "oom_suspect",
)  # fmt: skip


Rows = Sequence[Row]


def classify(chain: Evidence | Iterable[Evidence], *, rows: Rows = TEXT_ROWS) -> Verdict:
    """Return what an exception was, from itself or from its whole chain, outermost first (``evidence_of``).

    A refusal of the device anywhere in the chain is the verdict; else the outermost link that is no ``model_error``.
    ``rows`` are the texts believed; a test passes its own.
    """
    links = (chain,) if isinstance(chain, Evidence) else tuple(chain)
    verdicts = [_classify_one(link, rows) for link in links]
    for wanted in ("oom_device", None):
        for verdict in verdicts:
            if verdict.failure == wanted or (wanted is None and verdict.failure != "model_error"):
                return verdict
    return verdicts[0]


def _classify_one(evidence: Evidence, rows: Rows) -> Verdict:
    evidence = _unwrapped(dataclasses.replace(evidence, text=plain(evidence.text)))
    claims = [*_claims_of_type(evidence), *_claims_of_text(evidence, rows)]
    claims = claims or _claims_of_text(evidence, FALLBACK_ROWS)
    first_line = " ".join(next((line for line in evidence.text.splitlines() if line.strip()), "").split())[:300]
    if not claims:
        kind = evidence.type_names[0].rpartition(".")[2]
        return Verdict(failure="model_error", reason=f"{kind}: {first_line}" if first_line else kind)
    _, failure, reason = min(claims)
    if failure == "oom_device" and evidence.device == "cpu":
        failure = "oom_host"  # there is no other memory
    sizes = parse_sizes(evidence.text) if failure in ("oom_device", "oom_suspect", "oom_host", "kernel_limit") else None
    return Verdict(failure=failure, reason=f"{reason}: {first_line}" if first_line else reason, sizes=sizes)


# (a rank, the smallest wins; the class; the reason).  The rank is made of values, so no order of rows is in it.
_Claim = tuple[tuple[int, int, int], FailureClass, str]
_REFINES, _TYPE, _CODE, _TEXT, _REST = range(5)


def _claim(kind: int, failure: FailureClass, reason: str, *, length: int = 0) -> _Claim:
    return (kind, _PRECEDENCE.index(failure), -length), failure, reason


def _claims_of_type(evidence: Evidence) -> Iterator[_Claim]:
    known = next((BY_TYPE[name] for name in evidence.type_names if name in BY_TYPE), None)
    if known is not None and not (known[0] == "infra" and evidence.origin == "user"):
        yield _claim(_TYPE, *known)
    if evidence.error_code is not None and "torch.AcceleratorError" in evidence.type_names:
        if evidence.error_code in BY_CODE:
            failure, _, reason = BY_CODE[evidence.error_code]
            yield _claim(_CODE, failure, reason)
        else:
            yield _claim(_REST, *CODE_FALLBACK)


def _claims_of_text(evidence: Evidence, rows: Rows) -> list[_Claim]:
    if evidence.origin == "user":
        return []
    return [
        _claim(_REFINES if row.refines else _TEXT, row.failure, row.reason, length=len(match[0]))
        for row in rows
        if (not row.native_only or evidence.origin == "native")
        and (not row.line or re.search(row.line, evidence.line))
        and (match := row.search(evidence.text))
    ]


# -- what the worker passes ----------------------------------------------------------------------------------------


def evidence_of(error: BaseException, *, device: str = "cuda") -> tuple[Evidence, ...]:
    """Return ``error`` and what it was raised from, outermost first; hand the whole to ``classify``.

    Follows ``__cause__``, else ``__context__``, even where ``from None`` hides it: that hides a traceback, not a fact.
    """
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and all(link is not seen for seen in links):
        links.append(link)
        link = link.__cause__ if link.__cause__ is not None else link.__context__
    return tuple(_evidence_of_one(link, device) for link in links)


def _evidence_of_one(error: BaseException, device: str) -> Evidence:
    names = tuple(f"{t.__module__}.{t.__qualname__}".removeprefix("builtins.") for t in type(error).__mro__)
    code = getattr(error, "error_code", None)
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return Evidence(
        type_names=names,
        text=str(error),
        origin=_origin(tb),
        error_code=code if isinstance(code, int) else None,
        line=linecache.getline(tb.tb_frame.f_code.co_filename, tb.tb_lineno).strip() if tb else "",
        device=device,
    )


def _origin(deepest: TracebackType | None) -> Origin:
    if deepest is None:
        return "unknown"
    frame = deepest.tb_frame
    if deepest.tb_lasti < 0 or opname[frame.f_code.co_code[deepest.tb_lasti]] not in ("RAISE_VARARGS", "RERAISE"):
        return "native"
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return "library" if package in LIBRARIES else "user"


# A traceback passed on as text: frames, each with its source line where there is one, then the error.
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "[^"]*", line \d+, in .*(?:\n {4,}(?P<line>\S.*))?', re.MULTILINE)
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?\Z", re.MULTILINE | re.DOTALL)


def _unwrapped(evidence: Evidence) -> Evidence:
    """Return what ``torch._utils.ExceptionWrapper`` and ``mp.spawn`` passed on as text, as evidence of its own.

    Its words are believed when the last source line is there and is no ``raise``.
    """
    if evidence.origin == "user" or _TRACEBACK not in evidence.text:
        return evidence
    inner = evidence.text.rpartition(_TRACEBACK)[2]
    frames = list(_FRAME.finditer(inner))
    line = (frames[-1]["line"] or "") if frames else ""
    error = _ERROR.search(inner, frames[-1].end()) if frames else None
    native = bool(line) and error is not None and not line.startswith(("raise", "assert"))
    return dataclasses.replace(
        evidence,
        type_names=(error["type"], *evidence.type_names) if error else evidence.type_names,
        text=(error["text"] or "").strip() if error else evidence.text,
        origin="native" if native else "user",
        line=line,
    )


# -- how a process died --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a worker process ended that left no result.

    ``exit_code`` is as in ``subprocess``: negative is a signal; None when it was ended or lost.  ``timed_out_s`` is
    the limit it ran past.  ``host_memory``: it was ended because host memory ran short.  ``host_died``: the process
    that forks trials went away.  ``oom_kills`` is how many processes of the cgroup the kernel killed meanwhile.
    """

    exit_code: int | None
    timed_out_s: float | None = None
    host_memory: bool = False
    host_died: bool = False
    oom_kills: int = 0
    has_result: bool = False


# What a process does to itself; any other signal comes from outside.
_CRASHES = frozenset(
    int(getattr(signal, name))
    for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
)
_SIGKILL = 9


def classify_death(death: Death) -> tuple[FailureClass, str]:
    """Return the class of a death, and what happened in one line.  It is never out of memory of a device."""
    number = _signal_of(death.exit_code)
    killed_for_memory = death.oom_kills > 0 and (number == _SIGKILL or death.host_died)
    rows: tuple[tuple[bool, FailureClass, str], ...] = (
        (death.host_memory, "oom_host", "ended because the machine was running out of host memory"),
        (death.timed_out_s is not None, "timeout", f"ran past its time limit of {death.timed_out_s or 0:g} s"),
        (killed_for_memory, "oom_host", "killed by the kernel, which was out of host memory"),
        (death.host_died, "infra", "the worker host went away"),
        (number in _CRASHES, "cuda_fault", f"crashed by {_signal_name(number)}"),
        (number == _SIGKILL, "infra", "killed by SIGKILL from outside; the kernel counts no kill for memory"),
        (number is not None, "infra", f"ended from outside by {_signal_name(number)}"),
        (death.exit_code is None, "infra", "the worker process was lost"),
        (death.exit_code == 0, "infra", "the worker exited with code 0 and left no result"),
        (
            True,
            "infra",
            f"the worker exited with code {death.exit_code}" + " and left no result" * (not death.has_result),
        ),
    )
    return next((failure, reason) for holds, failure, reason in rows if holds)


def _signal_of(exit_code: int | None) -> int | None:
    """The signal in an exit code: -9 as ``subprocess`` says it, 137 as a shell or a container does."""
    if exit_code is None or 0 <= exit_code <= 128:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if number < signal.NSIG else None


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


# -- suspicion and doubt -------------------------------------------------------------------------------------------

# Little is less than this share of the capacity, or than this many bytes on a small card.  A library that fails
# without memory asks the driver, past torch's allocator, for a handle, a workspace (cuBLAS: 8 to 32 MiB) and its
# kernels; or every plan's workspace was refused, which on a large card takes hundreds of MiB.
LITTLE_SHARE = 0.05
LITTLE_BYTES = 64 << 20


def confirm_suspect(first: OutOfMemory, second: Outcome) -> Outcome:
    """Return what a suspected out of memory was, now that the trial was run again.

    It counts as out of memory when the repeat fails too and little memory was free both times.  Free memory that is
    not known is not little: the boundary never moves on a guess.
    """
    match second:
        case Fit():
            return dataclasses.replace(second, notes=(*second.notes, f"failed once before: {first.message}"))
        case OutOfMemory(failure="oom_suspect") if _is_little(first) and _is_little(second):
            note = "suspected, and confirmed by a repeat with little memory free"
            return dataclasses.replace(second, failure="oom_device", notes=(*second.notes, note))
        case OutOfMemory(failure="oom_suspect"):
            free = [_free_bytes(outcome) for outcome in (first, second)]
            most = None if None in free else max(size for size in free if size is not None)
            seen = "how much memory was free is not known" if most is None else f"with {most >> 20} MiB free"
            return Broken(
                failure="cuda_fault",
                reason=f"failed twice, {seen}, so it is not taken for memory: {second.message}",
                phase=second.phase,
                traceback=second.traceback,
            )
        case _:
            return second


def _free_bytes(outcome: OutOfMemory) -> int | None:
    """What torch could still get: what the driver had left, or what the limit did."""
    known = [outcome.free_bytes] if outcome.free_bytes is not None else []
    if outcome.capacity_bytes is not None and outcome.reserved_bytes is not None:
        known.append(max(0, outcome.capacity_bytes - outcome.reserved_bytes))
    return min(known, default=None)


def _is_little(outcome: OutOfMemory) -> bool:
    free = _free_bytes(outcome)
    return free is not None and free < max(LITTLE_SHARE * (outcome.capacity_bytes or 0), LITTLE_BYTES)


def is_out_of_memory(failure: FailureClass, *, device: str) -> bool:
    """Can this class move the boundary?  Host memory is the answer on ``cpu`` alone."""
    return failure in ("oom_device", "oom_suspect") or (failure == "oom_host" and device.partition(":")[0] == "cpu")


def doubt(fit: Fit) -> Verdict | None:
    """Return why a trial that ran to its end proves nothing: the driver spilled into host memory.

    A driver that spills (Windows, WSL) lets a process hold more than the card has.  A spill that shows in step times
    alone is not seen here.  A loss that is no number is no doubt: the trial's memory is as it would be with another.
    """
    total = fit.card_before.total_bytes if fit.card_before else None
    held = max(fit.peak_reserved_bytes, fit.process_bytes or 0)
    if total is not None and held > total:
        reason = f"{held >> 20} MiB were held on a card of {total >> 20} MiB: the driver spills into host memory"
        return Verdict(failure="spilled", reason=reason)
    return None

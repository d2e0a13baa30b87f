"""The run in words: each function says one thing of a record in a sentence, or None where there is nothing to say.

Text, HTML and the figures' titles all speak from here, so they cannot disagree.  Every sentence that states something
of a simulated device ends in "(simulated)".  Nothing here is coloured, wrapped or escaped.

What this does not know: why memory was in pieces.  "Fragmentation" is said when the bytes left over would have
been enough and were refused all the same; which tensors lie in between, only a trace tells.
"""

from dataclasses import dataclass
from typing import Literal

from sweeper import axes
from sweeper import calibration as calibrations
from sweeper.prediction import PredictedFailure
from sweeper.record import Record
from sweeper.report import costs, laws, measured
from sweeper.report.commands import advice, after_breaking, takes_images
from sweeper.report.rule_of_thumb import rule_of_thumb
from sweeper.trial import Broken, Fit, OutOfMemory
from sweeper.units import format_bytes

__all__ = [
    "Statement",
    "answer",
    "axis",
    "device_label",
    "headline",
    "law",
    "on_simulated",
    "printable",
    "proof",
    "statements",
    "times_run",
    "unit_of",
    "where",
]

Tone = Literal["plain", "good", "bad", "warning"]


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence under a label of one or two words."""

    label: str
    text: str
    tone: Tone = "plain"


def statements(record: Record) -> list[Statement]:
    """Everything there is to say below the answer, in the order a person wants it."""
    found = [
        Statement("ran out", ran_out(record) or "", "bad"),
        Statement("why", shortage(record) or ""),
        Statement("do next", after_breaking(record.broken, record.axis) if record.broken else ""),
        *(Statement("would help", text) for text in advice(record)),
        Statement("axis", axis(record) or ""),
        Statement("memory", law(record) or ""),
        Statement("state", said(record, text) if (text := rule_of_thumb(record)) else ""),
        Statement("recommended", recommended(record) or ""),
        Statement("accumulate", effective_batch(record) or ""),
        Statement("not tried", not_tried(record) or ""),
        *(Statement(label, said(record, text)) for label, text in measured.sentences(record)),
        Statement("cost", costs.sentence(record) or ""),
        Statement("context", context(record) or ""),
        Statement("calibration", calibration(record) or ""),
        Statement("prediction", prediction(record) or ""),
        *(Statement("model", said(record, text)) for text in record.facts),
        *(Statement("warning", said(record, text), "warning") for text in record.warnings),
    ]
    return [statement for statement in found if statement.text]


# -- the answer -------------------------------------------------------------------------------------------------


def headline(record: Record) -> str:
    """The answer in a few words, for a title: ``327 fits, 328 does not``."""
    best, failing = record.max_size, record.first_failure
    if record.broken is not None:
        return f"stopped ({record.broken.failure.replace('_', ' ')})"
    if _is_open(record):
        return f"unfinished after {_count(len(record.trials), 'trial')}"
    if best is None:
        return f"{failing:,} does not fit" if failing is not None else "no answer"
    if failing is not None:
        return f"{best:,} fits, {failing:,} does not"
    return f"{best:,} fits" if record.header.settings.sizes else f"{best:,} fits (the cap)"


def answer(record: Record) -> Statement:
    """The answer in one sentence."""
    settings, best, failing = record.header.settings, record.max_size, record.first_failure
    name, unit = axes.words(record.axis), unit_of(record)
    if record.broken is not None:
        known = "after the boundary was proven" if record.proven else "and the boundary is not known"
        text = f"the sweep stopped, {known}: {printable(record.broken.reason)}"
        return Statement("stopped", said(record, text), "bad")
    if _is_open(record):
        sofar = f"; so far {best}{unit} fits" if best is not None else ""
        text = f"unfinished: {_count(len(record.trials), 'trial')} done{sofar}"
        return Statement("unfinished", said(record, text), "warning")
    if best is None:
        smallest = "the smallest listed" if settings.sizes else "the smallest allowed"
        where = "" if failing == 1 and not settings.sizes else f", {smallest},"
        text = f"nothing fits: {name.size} {failing}{where} ran out of memory{_place(record)}"
        return Statement("answer", said(record, text), "bad")
    if settings.sizes:
        text = f"largest listed batch that fits: {best}"
    elif failing is None:
        most = "--max-batch" if record.axis == "batch" else "--max"
        text = f"{best}{unit} fits (the cap); raise {most} to find the limit"
    else:
        text = f"{name.largest} that fits: {best}{unit}"
    return Statement("answer", said(record, text), "good")


def times_run(record: Record, size: int) -> int:
    """How often ``size`` ended as the curve says it did."""
    kind = {"fit": Fit, "oom": OutOfMemory, "broken": Broken}
    word = next(point.outcome for point in record.curve if point.size == size)
    return sum(1 for trial, outcome in record.verdicts if trial.size == size and isinstance(outcome, kind[word]))


def proof(record: Record) -> str | None:
    """What was run on each side of the answer."""
    parts = []
    step = record.header.settings.step
    if (best := record.max_size) is not None:
        parts.append(f"{best} ran and fitted {_times(times_run(record, best))}")
    if (failing := record.first_failure) is not None and best is not None:
        parts.append(f"{failing} ran out of memory{'' if (n := times_run(record, failing)) == 1 else f' {_times(n)}'}")
        if failing > best + step and record.broken is None:
            least, most = best + step, failing - step
            parts.append(f"{least} untested" if least == most else f"{least} to {most} untested")
    return said(record, "; ".join(parts)) if parts else None


def not_tried(record: Record) -> str | None:
    """The listed sizes that were not run."""
    tried = {trial.size for trial in record.trials}
    left = [str(size) for size in record.header.settings.sizes if size not in tried]
    if not left:
        return None
    why = f": {record.first_failure} ran out of memory, and larger sizes would too" if record.first_failure else ""
    return f"{', '.join(left)}{why}"


# -- what memory did --------------------------------------------------------------------------------------------


def law(record: Record) -> str | None:
    """The line or curve through the measured peaks, and how far to believe it."""
    found, peak = record.law, f"peak {allocated_word(record)}"
    if found is None:
        return None
    noun = axes.words(record.axis).noun
    if record.axis == "batch" and takes_images(record.header.spec):
        noun = "image"
    return said(record, laws.sentence(found, record.axis, noun=noun, peak=peak))


def axis(record: Record) -> str | None:
    """Which sizes there were to choose from, where they are not all batches; and what was held."""
    settings, spec, name = record.header.settings, record.header.spec, axes.words(record.axis)
    parts = [] if settings.step == 1 else [f"{name.size} in multiples of {settings.step} (--step)"]
    if record.axis != "batch":
        parts.append(f"at batch {spec.batch_size}")
    if (argument := settings.positions_argument) is not None:
        parts.append(f"the model built with {argument}={spec.model_args[argument]} in every trial")
    return ", ".join(parts) or None


def ran_out(record: Record) -> str | None:
    """Where the smallest failing batch ran out, and what it asked for."""
    if record.failure is None:
        return None
    size, failure = record.failure
    step = "step" if record.header.spec.mode == "inference" else "training step"
    said_more = "".join(f"; {printable(note)}" for note in failure.notes)
    name = axes.words(record.axis).size
    return said(record, f"{name} {size}{where(failure)}, {step} {failure.step + 1}: {_asked(failure)}{said_more}")


def shortage(record: Record) -> str | None:
    """Whether the bytes were not there at all, or there but in pieces; None where the sizes are not known.

    The caching allocator gives every wholly free segment back before it fails (torch 2.14,
    c10/cuda/CUDACachingAllocator.cpp, ``malloc``), so what is reserved and not allocated at that moment lies inside
    segments that are partly used.
    """
    if record.failure is None or record.header.spec.device == "cpu":
        return None
    failure = record.failure[1]
    asked, allocated = failure.requested_bytes, failure.allocated_bytes
    capacity = failure.capacity_bytes or record.capacity_bytes
    if asked is None or allocated is None or not capacity:
        return None
    if allocated + asked > capacity:
        short = format_bytes(allocated + asked - capacity)
        text = f"true shortage: allocated and asked for are {short} more than the {format_bytes(capacity)} there is"
        return said(record, text)
    text = f"fragmentation: {format_bytes(capacity - allocated)} was not allocated, but no free piece was large enough"
    if record.header.spec.device.startswith("cuda"):
        text += "; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may help"
    return said(record, text)


def recommended(record: Record) -> str | None:
    """The batch to train with, or the size along another axis, and why that one."""
    settings, size, name = record.header.settings, record.recommended_size, axes.words(record.axis).size
    if record.broken is not None or record.next_trial() is not None:
        return None
    margin = f"{100 * settings.margin:g} % of the capacity"
    if size is None:
        if record.max_size is None or settings.sizes:
            return None
        multiple = f" and is a multiple of {settings.round_to}" if settings.round_to else ""
        return said(record, f"none: no {name} that was run does without {margin}{multiple} (--margin)")
    if not settings.margin:
        why = "fits (--margin 0)"
    elif any(trial.size == size and trial.withheld_bytes for trial in record.trials):
        why = f"ran with {margin} withheld (--margin)"
    else:
        why = f"never took the last {margin} (--margin)"
    if settings.round_to:
        why += f", a multiple of {settings.round_to} (--round-to)"
    return said(record, f"{name} {size}: {why}")


def effective_batch(record: Record) -> str | None:
    """How the effective batch is made of micro-batches that fit, and what of that was run."""
    found = record.split
    if found is None:
        return None
    if found.accumulate == 1:
        return said(record, f"none: an effective batch of {found.target_batch} fits as it is")
    made = f"{found.micro_batch} x {found.accumulate}"
    if found.last != found.micro_batch:
        made = f"{found.micro_batch} x {found.accumulate - 1} + {found.last}"
    run = "ran" if found.was_run else f"was not run itself, {record.max_batch} was"
    text = (
        f"an effective batch of {found.target_batch} is {made}: --batches {found.micro_batch} "
        f"--accumulate {found.accumulate} ({found.micro_batch} {run}; "
        "trials kept the gradients of one micro-batch while the next ran)"
    )
    return said(record, text)


def context(record: Record) -> str | None:
    """The memory that the driver counts and PyTorch's allocator does not."""
    sizes = [trial.outcome.context_bytes for trial in record.trials if isinstance(trial.outcome, Fit | OutOfMemory)]
    known = [size for size in sizes if size is not None]
    if not known:
        return None
    text = f"{format_bytes(max(known))} outside PyTorch's allocator: this is why nvidia-smi shows more"
    return said(record, text)


def calibration(record: Record) -> str | None:
    """What was measured of the card before, and is used here: in its simulation, or in the prediction beside it."""
    card = record.card or record.header.spec.card
    text = calibrations.sentence(card) if card is not None else None
    return said(record, text) if text else None


def prediction(record: Record) -> str | None:
    """How far off the predictions were: of every batch and the boundary on a GPU, elsewhere of the boundary alone.

    A simulated device is the prediction, so there only a difference is worth a word, and there should be none.
    """
    if record.axis != "batch":
        if not record.header.settings.predict or on_simulated(record):
            return None
        return "none: only along the batch is a sweep predicted; --device sim:CARD simulates this one"
    if (errors := record.prediction_errors) is not None:
        text = (
            f"predicted against measured: median {100 * errors.median:.1f} %, "
            f"worst {100 * abs(errors.worst):.1f} % (batch {errors.worst_size})"
        )
        if record.prediction_error is not None and record.prediction is not None:
            text += f", boundary predicted {record.prediction.max_batch}, measured {record.max_batch}"
        return said(record, text)
    error, guess = record.prediction_error, record.prediction
    if error is None or guess is None or guess.max_batch is None or record.max_batch is None:
        return None
    if on_simulated(record) and error == 0:
        return None
    off = abs(guess.max_batch - record.max_batch)
    if off == 0:
        return said(record, f"{guess.max_batch}, exactly what was found")
    direction = "many" if error > 0 else "few"
    return said(record, f"{guess.max_batch}, {off} too {direction} ({100 * error:+.1f} %)")


# -- words for parts --------------------------------------------------------------------------------------------


def unit_of(record: Record) -> str:
    """What follows the answer: `` tokens``; nothing for a batch."""
    unit = axes.words(record.axis).unit
    return f" {unit}" if unit else ""


def on_simulated(record: Record) -> bool:
    if record.device is not None:
        return record.device.simulated
    return record.header.spec.device.startswith("sim:")


def said(record: Record, sentence: str) -> str:
    """``sentence``, marked where it is of a device that is not there."""
    return f"{sentence} (simulated)" if on_simulated(record) else sentence


def device_label(record: Record) -> str:
    """The device's own name, marked when it is simulated."""
    name = printable(record.device.label if record.device else record.header.spec.device)
    return name if "simulated" in name.lower() else said(record, name)


def allocated_word(record: Record) -> str:
    """What grows steadily with the size; on the CPU the one peak there is."""
    return "resident" if record.header.spec.device == "cpu" else "allocated"


def peak_word(record: Record) -> str:
    """On the CPU there is no caching allocator: the peak is of the resident set."""
    return "peak resident" if record.header.spec.device == "cpu" else "peak reserved"


def printable(text: str) -> str:
    r"""``text`` with what a terminal or a drawing would act on (escapes, bidi marks, newlines) written as ``\x1b``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _is_open(record: Record) -> bool:
    """Whether the answer can still change; a sweep may have its boundary and look for the recommended batch."""
    return not record.proven and record.next_trial() is not None


def _free_bytes(failure: OutOfMemory) -> int | None:
    """What could still be taken: under a limit that is less than what the card has left."""
    left = None
    if failure.capacity_bytes is not None and failure.reserved_bytes is not None:
        left = max(0, failure.capacity_bytes - failure.reserved_bytes)
    return min((size for size in (failure.free_bytes, left) if size is not None), default=None)


def _asked(failure: OutOfMemory) -> str:
    sizes = (
        ("asked for", failure.requested_bytes),
        ("free", _free_bytes(failure)),
        ("allocated", failure.allocated_bytes),
        ("reserved", failure.reserved_bytes),
    )
    said_sizes = [f"{name} {format_bytes(size)}" for name, size in sizes if size is not None]
    return ", ".join(said_sizes) if said_sizes else printable(failure.message)


def where(failure: OutOfMemory | PredictedFailure) -> str:
    """`` in forward of layer1.0 (aten.convolution)``, as far as it is known."""
    phase = "the optimizer step" if failure.phase == "step" else failure.phase
    module = f" of {printable(failure.module)}" if failure.module else ""
    operator = f" ({printable(failure.operator)})" if failure.operator else ""
    return f" in {phase}{module}{operator}"


def _place(record: Record) -> str:
    return where(record.failure[1]) if record.failure else ""


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

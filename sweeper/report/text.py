"""What a terminal shows: a line a trial while the sweep runs, and the summary at its end.

Plain ASCII of our own, so it can be piped and pasted anywhere; names given by the user are shown as they are, but
for characters that a terminal acts on.  Colour is added last, by whole line, and never carries a meaning of its own.
"""

from collections.abc import Sequence
from pathlib import Path

from sweeper import axes
from sweeper.prediction import Prediction
from sweeper.record import CurvePoint, Record, TrialRecord
from sweeper.report import costs, measured, words
from sweeper.report.commands import last_broken_folder, next_commands
from sweeper.report.job import described
from sweeper.report.table import Column, Layout, lay_out
from sweeper.report.terminal import LABEL_WIDTH, Ink, capital, fill, labelled, percent
from sweeper.trial import Broken, DeviceReport, Fit, OutOfMemory
from sweeper.units import format_bytes, format_mib

__all__ = ["columns", "device_line", "summary", "trial_line"]

_TRACEBACK_LINES = 8


def device_line(device: DeviceReport, prediction: Prediction | None) -> str:
    """One line for what the trials will run on, and the first guess where there is one."""
    marked = device.simulated and "simulated" not in device.label.lower()
    parts = [f"{words.printable(device.label)}{' (simulated)' if marked else ''}"]
    parts.append(f"{format_bytes(device.capacity_bytes)} of {format_bytes(device.total_bytes)} to use")
    if device.compute_capability:
        parts.append(f"compute capability {device.compute_capability}")
    if device.torch:
        parts.append(f"torch {device.torch}")
    if prediction is not None:
        guess = prediction.max_batch
        parts.append(f"predicted: {guess} fits" if guess is not None else "predicted: nothing fits")
    return words.printable("; ".join([", ".join(parts), *device.notes]))


def trial_line(record: Record, trial: TrialRecord) -> str:
    """One line for a trial that has ended; ``record`` may or may not hold it already."""
    match trial.outcome:
        case Fit() as fit:
            peak, capacity = fit.peak_reserved_bytes, fit.capacity_bytes
            share = f" ({percent(peak, capacity)} %)" if capacity else ""
            verdict, detail = (
                "fits",
                f"{words.peak_word(record)} {format_mib(peak)} of {format_mib(capacity)} MiB{share}",
            )
        case OutOfMemory() as failure:
            verdict = "suspected out of memory" if failure.failure == "oom_suspect" else "out of memory"
            asked = f", asked for {format_bytes(failure.requested_bytes)}" if failure.requested_bytes else ""
            detail = f"{words.where(failure).strip()}{asked}"
        case Broken() as broken:
            verdict, detail = "broke", f"{broken.failure.replace('_', ' ')}: {words.printable(broken.reason)}"
    why = f"{trial.purpose}, {format_bytes(trial.withheld_bytes)} withheld" if trial.withheld_bytes else trial.purpose
    size = f"{axes.words(record.axis).size} {trial.size:<6}"
    line = f"{trial.number:>4}  {size} {verdict:<14} {detail}  [{why}, {trial.seconds:.1f} s]"
    return words.said(record, line)


def summary(record: Record, *, folder: Path, color: bool, width: int = 100) -> str:
    """The whole answer for a terminal of ``width`` columns.  Without ``color``, no escapes."""
    ink = Ink(color)
    blocks = [_heading(record, width)]
    if record.curve:
        blocks.append(_table(record, ink, width))
    blocks.append(_answer(record, ink, width))
    if body := [labelled(s.label, s.text, width, ink, s.tone) for s in words.statements(record)]:
        blocks.append("\n".join(body))
    blocks.append(_next_steps(record, folder, ink))
    return "\n\n".join(blocks)


def columns(record: Record) -> list[Column]:
    """The table of the curve: one row a size, the columns that have anything in them."""
    curve, capacity, on_cpu = record.curve, record.capacity_bytes, record.header.spec.device == "cpu"
    outcome = "outcome\n(simulated)" if words.on_simulated(record) else "outcome"
    reserved = "peak MiB\nresident" if on_cpu else "peak MiB\nreserved"
    found = [
        Column(heading=axes.words(record.axis).heading, cells=tuple(str(p.size) for p in curve)),
        Column(heading=outcome, cells=tuple(_outcome(record, p) for p in curve), left=True),
        Column(heading=reserved, cells=tuple(_peak(p, p.peak_reserved_bytes) for p in curve)),
        Column(heading="of capacity\n%", cells=tuple(_share(p, capacity) for p in curve), importance=1),
    ]
    if not on_cpu:
        cells = tuple(_peak(p, p.peak_allocated_bytes) for p in curve)
        found.insert(2, Column(heading="peak MiB\nallocated", cells=cells, importance=3))
    if any(p.predicted is not None for p in curve):
        found += _predicted_columns(curve)
    if any(p.process_bytes is not None for p in curve):
        cells = tuple("-" if p.process_bytes is None else _peak(p, p.process_bytes) for p in curve)
        found.append(Column(heading="process\nMiB", cells=cells, importance=4))
    if any(p.step_seconds is not None for p in curve):
        cells = tuple("-" if p.step_seconds is None else f"{1000 * p.step_seconds:,.1f}" for p in curve)
        found.append(Column(heading="step\nms", cells=cells, importance=5))
    if any(p.samples_per_second is not None for p in curve):
        cells = tuple("-" if p.samples_per_second is None else f"{p.samples_per_second:,.1f}" for p in curve)
        found.append(Column(heading="samples/s", cells=cells, importance=2))
    return [*found, *measured.columns(curve), *costs.columns(record)]


def _predicted_columns(curve: Sequence[CurvePoint]) -> list[Column]:
    """What was predicted beside what was measured; of a batch that ran out, what it would have taken."""
    predicted = tuple("-" if p.predicted is None else format_mib(p.predicted.peak_reserved_bytes) for p in curve)
    errors = tuple("-" if p.prediction_error is None else f"{100 * p.prediction_error:+.1f}" for p in curve)
    errors = tuple("0.0" if error in ("+0.0", "-0.0") else error for error in errors)
    return [
        Column(heading="predicted\nMiB", cells=predicted, importance=1),
        Column(heading="error\n%", cells=errors, importance=1),
    ]


def _heading(record: Record, width: int) -> str:
    job = words.printable(", ".join(described(record.header.spec, record.axis)))
    capacity = f", capacity {format_bytes(record.capacity_bytes)}" if record.capacity_bytes else ""
    return fill(f"{job}, on {words.device_label(record)}{capacity}", width)


def _table(record: Record, ink: Ink, width: int) -> str:
    layout: Layout = lay_out(columns(record), width=width)
    lines = [ink(line, "dim") for line in layout.headings]
    for point, row in zip(record.curve, layout.rows, strict=True):
        lines.append(ink(row, {"fit": "plain", "oom": "bad", "broken": "warning"}[point.outcome]))
    if any(point.outcome == "oom" for point in record.curve):
        lines.append(ink("  > at least this much before it ran out", "dim"))
    if layout.dropped:
        lines.append(ink(fill(f"no room here for: {', '.join(layout.dropped)} (see curve.csv)", width, "  "), "dim"))
    return "\n".join(lines)


def _answer(record: Record, ink: Ink, width: int) -> str:
    found = words.answer(record)
    lines = [ink(fill(capital(found.text), width), found.tone)]
    if proven := words.proof(record):
        lines.append(fill(proven, width, "  "))
    if record.broken is not None:
        tail = (record.broken.traceback or record.broken.log_tail).rstrip().splitlines()[-_TRACEBACK_LINES:]
        lines += [f"  | {words.printable(line)}" for line in tail]
    return "\n".join(lines)


def _next_steps(record: Record, folder: Path, ink: Ink) -> str:
    """Not wrapped: a path or a command broken over two lines cannot be copied."""
    rows = [("folder", str(folder))]
    if record.broken is not None and (trial := last_broken_folder(record)):
        rows.append(("its log", str(folder / trial / "stderr")))
    rows += next_commands(record, folder)
    return "\n".join(f"  {ink(label.ljust(LABEL_WIDTH), 'dim')}  {words.printable(text)}" for label, text in rows)


def _outcome(record: Record, point: CurvePoint) -> str:
    word = {"fit": "fits", "oom": "OUT OF MEMORY", "broken": "broke"}[point.outcome]
    times = words.times_run(record, point.size)
    return word if times == 1 else f"{word} x{times}"


def _peak(point: CurvePoint, size: int) -> str:
    """An out of memory's peak is how far it came: it wanted more."""
    match point.outcome:
        case "fit":
            return format_mib(size)
        case "oom" if size:
            return f">{format_mib(size)}"
        case _:
            return "-"


def _share(point: CurvePoint, capacity: int) -> str:
    return percent(point.peak_reserved_bytes, capacity) if point.outcome == "fit" and capacity else "-"

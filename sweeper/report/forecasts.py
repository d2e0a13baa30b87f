"""A forecast in words and tables for a terminal.  Every row and every sentence of it says that it is predicted."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sweeper import __version__, calibration
from sweeper.boundary import Frontier
from sweeper.predicting import Forecast
from sweeper.prediction import PredictedPoint
from sweeper.report import words
from sweeper.report.commands import sweep_command
from sweeper.report.job import described
from sweeper.report.table import Column, lay_out
from sweeper.report.terminal import LABEL_WIDTH, Ink, capital, fill, labelled, percent
from sweeper.report.words import Statement
from sweeper.trial import KINDS
from sweeper.units import format_bytes, format_mib

__all__ = ["card", "comparison", "job", "summary"]


def summary(found: Forecast, *, color: bool, width: int = 100, drawn: Sequence[Path] = ()) -> str:
    """The whole answer for one card; ``drawn`` are the files of its timeline, the snapshot last."""
    ink = Ink(color)
    statements = [
        _asked(found),
        _runs_out(found),
        _breakdown(found),
        *_both_numbers(found),
        *_what_is_known(found),
        _drawn(drawn),
    ]
    answer = _answer(found)
    return "\n\n".join(
        [
            fill(f"{job(found)}, on {card(found)}, capacity {format_bytes(found.capacity_bytes)} (predicted)", width),
            _curve(found, ink, width),
            ink(fill(capital(answer.text), width), answer.tone),
            "\n".join(labelled(s.label, s.text, width, ink, s.tone) for s in statements if s.text),
            f"  {ink('run it'.ljust(LABEL_WIDTH), 'dim')}  {words.printable(_command(found))}",
        ]
    )


def comparison(found: Sequence[Forecast], *, color: bool, width: int = 100) -> str:
    """One table of all cards: the largest batch, its peak, and what it leaves of the card at its least."""
    ink, asked = Ink(color), found[0].asked
    columns = [
        Column(heading="card", cells=tuple(one.card.name for one in found), left=True),
        Column(heading="capacity\nMiB", cells=tuple(format_mib(one.capacity_bytes) for one in found)),
        Column(heading="largest\nbatch", cells=tuple(_largest_cell(one) for one in found), left=True),
        Column(heading="peak MiB\nreserved", cells=tuple(_peak_cell(one) for one in found)),
        Column(heading="headroom\nMiB", cells=tuple(_headroom_cell(one) for one in found)),
    ]
    if asked is not None:
        cells = tuple("fits" if one.fits else "does not fit" for one in found)
        columns.insert(2, Column(heading=f"batch\n{asked.size}", cells=cells, left=True))
    layout = lay_out(columns, width=width)
    rows = [ink(row, "plain" if one.fits else "bad") for one, row in zip(found, layout.rows, strict=True)]
    whose = f"batch {asked.size}" if asked else "the largest batch"
    closing = (
        f"{len(found)} cards, predicted. Headroom is the capacity less the least that {whose} runs in, predicted. "
        f"{capital(_measured_errors(found[0]))}"
    )
    heading = fill(f"{job(found[0])} (predicted)", width)
    return "\n\n".join([heading, "\n".join([*(ink(h, "dim") for h in layout.headings), *rows]), fill(closing, width)])


# -- the parts of a summary -------------------------------------------------------------------------------------


def job(found: Forecast | Frontier) -> str:
    """What is trained, and how: ``resnet50, train, amp-bf16, sgd``."""
    return words.printable(", ".join(described(found.spec)))


def card(found: Forecast) -> str:
    """The device's own name, with the budget where there is one."""
    label = words.printable(found.card.label)
    limit = found.spec.memory_limit_bytes
    return label if limit is None or limit >= found.card.total_bytes else f"{label}, a budget of {format_bytes(limit)}"


def _curve(found: Forecast, ink: Ink, width: int) -> str:
    points = found.prediction.points
    verdicts = tuple("fits (predicted)" if p.size in found.fitting else "OUT OF MEMORY (predicted)" for p in points)
    columns = [
        Column(heading="batch", cells=tuple(str(p.size) for p in points)),
        Column(heading="outcome", cells=verdicts, left=True),
        Column(heading="peak MiB\nallocated", cells=tuple(format_mib(p.peak_allocated_bytes) for p in points)),
        Column(heading="uncapped\nreserved", cells=tuple(format_mib(p.peak_reserved_bytes) for p in points)),
        Column(
            heading="of capacity\n%",
            cells=tuple(percent(p.peak_reserved_bytes, found.capacity_bytes) for p in points),
            importance=1,
        ),
    ]
    layout = lay_out(columns, width=width)
    lines = [ink(line, "dim") for line in layout.headings]
    for point, row in zip(points, layout.rows, strict=True):
        lines.append(ink(row, "plain" if point.size in found.fitting else "bad"))
    return "\n".join(lines)


def _answer(found: Forecast) -> Statement:
    best, failing = found.max_batch, found.first_failure
    if best is None:
        return Statement("answer", f"nothing fits: batch {found.floor} runs out of memory (predicted)", "bad")
    if failing is None:
        text = f"{best} fits (the cap); raise --max-batch to find the limit (predicted)"
    else:
        text = f"largest batch that fits: {best}; {failing} does not (predicted)"
    return Statement("answer", text, "good")


def _asked(found: Forecast) -> Statement:
    asked = found.asked
    if asked is None:
        return Statement("", "")
    least, spare = format_bytes(asked.least_capacity_bytes), found.capacity_bytes - asked.least_capacity_bytes
    if asked.fits:
        text = f"fits: it runs in {least}, which leaves {format_bytes(spare)} of the capacity (predicted)"
        return Statement(f"batch {asked.size}", text, "good")
    failure = asked.failure
    place = words.where(failure) if failure is not None else ""
    text = f"does not fit: it runs out{place}, and needs {least}, {format_bytes(-spare)} more (predicted)"
    return Statement(f"batch {asked.size}", text, "bad")


def _runs_out(found: Forecast) -> Statement:
    failure = found.prediction.failure
    if failure is None:
        return Statement("", "")
    text = (
        f"batch {failure.size}{words.where(failure)}, step {failure.step + 1}: would ask for "
        f"{format_bytes(failure.requested_bytes)} with {format_bytes(failure.free_bytes)} free"
    )
    if failure.requested_bytes <= failure.free_bytes:
        text += ", which is less than the segment it needs"
    return Statement("runs out", f"{text} (predicted)", "bad")


def _breakdown(found: Forecast) -> Statement:
    if found.max_batch is None:
        return Statement("", "")
    point: PredictedPoint = found.prediction.point(found.max_batch)
    parts = [f"{kind} {format_bytes(size)}" for kind in KINDS if (size := getattr(point.breakdown, kind))]
    when = "the optimizer step" if point.peak_phase == "step" else point.peak_phase
    text = f"batch {point.size} at its allocated peak, in {when}: {', '.join(parts)} (predicted)"
    return Statement("memory", text)


def _both_numbers(found: Forecast) -> list[Statement]:
    if found.uncapped_peak_bytes is None or found.least_capacity_bytes is None:
        return []
    spare = found.capacity_bytes - found.least_capacity_bytes
    uncapped = (
        f"{format_bytes(found.uncapped_peak_bytes)}, memory never short: what batch {found.max_batch} would reserve on "
        "a card without end, where nvidia-smi shows that and the context (predicted)"
    )
    least = (
        f"{format_bytes(found.least_capacity_bytes)}, cache given back: batch {found.max_batch} runs in that and not "
        f"in 2 MiB less, which leaves {format_bytes(spare)} here (predicted)"
    )
    return [Statement("uncapped peak", uncapped), Statement("least capacity", least)]


def _what_is_known(found: Forecast) -> list[Statement]:
    on = found.card
    context = (
        f"{format_bytes(on.context_bytes)} of the card is not the allocator's ({on.context_source}); "
        f"its total is {on.total_source} (predicted)"
    )
    return [
        Statement("context", context if on.context_bytes else ""),
        Statement("calibration", f"{known} (predicted)" if (known := calibration.sentence(on)) else ""),
        Statement("error", " ".join(filter(None, [_measured_errors(found), _band(found)]))),
        *(Statement("note", f"{words.printable(note)} (predicted)", "warning") for note in found.notes),
    ]


def _drawn(files: Sequence[Path]) -> Statement:
    if not files:
        return Statement("", "")
    *pictures, snapshot = map(str, files)
    text = f"{' and '.join(pictures)}; {snapshot} is a snapshot: drop it on pytorch.org/memory_viz (predicted)"
    return Statement("timeline", text)


def _measured_errors(found: Forecast) -> str:
    """How far predictions were from what was measured elsewhere, and when that was found out."""
    if found.accuracy is None:
        return f"no measured error of what is predicted is known to sweeper {__version__}."
    peaks = found.accuracy.peaks
    return (
        f"of {peaks.rows} published measurements half were predicted within {_share(peaks.median)} and nine tenths "
        f"within {_share(peaks.percentile_90)} ({found.accuracy.date})."
    )


def _band(found: Forecast) -> str:
    """What the larger of those errors, either way, makes of this prediction."""
    band = found.band
    if band is None:
        return ""
    least, most = format_bytes(band.least_peak_bytes), format_bytes(band.most_peak_bytes)
    low, high = ("none" if size is None else str(size) for size in (band.least_batch, band.most_batch))
    if band.most_batch == found.cap:
        high += " (the cap)"
    text = f"Within {_share(band.share)} the uncapped peak is {least} to {most}, and the largest batch {low} to {high}"
    asked = found.asked
    if asked is not None and (band.least_batch or 0) < asked.size <= (band.most_batch or 0):
        text += f"; batch {asked.size} is too close to call"
    return f"{text} (predicted)."


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def _command(found: Forecast) -> str:
    """The sweep that would find out on a GPU; a budget stays its limit."""
    on_gpu = dataclasses.replace(found.spec, device="cuda")
    return sweep_command(on_gpu, *(["--max-batch", str(found.cap)] if found.first_failure is None else []))


# -- the cells of a comparison ----------------------------------------------------------------------------------


def _largest_cell(one: Forecast) -> str:
    if one.max_batch is None:
        return "none, predicted"
    return f"{one.max_batch}, predicted" if one.first_failure is not None else f"{one.max_batch}, predicted (the cap)"


def _peak_cell(one: Forecast) -> str:
    peak = one.prediction.peak_bytes_at_max
    return "-" if peak is None else format_mib(peak)


def _headroom_cell(one: Forecast) -> str:
    return "-" if one.headroom_bytes is None else format_mib(one.headroom_bytes)

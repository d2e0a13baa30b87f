"""A comparison for a terminal and for programs: one row a combination, one sentence a choice.

The object of ``to_json`` (schema 1; bytes are integers, times seconds, what was not measured null)::

    schema, axis       1; what was varied within each sweep
    vary               the words of each varied field
    common_size        the size at which the combinations are compared; null when none is shared
    finished           nothing is left to run
    seconds            of all trials together
    combinations       one entry each, in the order asked: {"choices", "label", "folder", "simulated", "device_label",
                       "max_batch", "first_failure", "proven", "capacity_bytes", "per_sample_bytes", "fixed_bytes" (the
                       memory law's), "common": {"peak_allocated_bytes", "peak_reserved_bytes", "step_seconds",
                       "samples_per_second", "breakdown"} or null, "samples_per_second" (the best of all sizes),
                       "loss_finite", "broken", "finished", "trials", "seconds"}
    effects            of each value against its field's first: {"field", "word", "against", "largest", "peak",
                       "per_sample", "speed"}, each of the last four {"mean", "least", "greatest", "pairs"} or null
    folder             the comparison's

Keys may be added under the same schema number; none is taken away.  The table of ``table_csv`` has the same by row.
"""

import csv
import io
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sweeper import axes
from sweeper.comparison import Compared, Effect, Entry, Ratio, Sort
from sweeper.record import CurvePoint
from sweeper.report import words
from sweeper.report.commands import takes_images
from sweeper.report.table import Column, lay_out
from sweeper.report.terminal import LABEL_WIDTH, Ink, capital, fill, labelled
from sweeper.trial import KINDS
from sweeper.units import MIB, format_mib
from sweeper.wire import to_jsonable

__all__ = ["SCHEMA", "effect_sentence", "result_words", "sample_noun", "subject", "summary", "table_csv", "to_json"]

# 1  first version
SCHEMA = 1
_COMMON_KEYS = ("peak_allocated_bytes", "peak_reserved_bytes", "step_seconds", "samples_per_second")


# -- a terminal -------------------------------------------------------------------------------------------------


def summary(compared: Compared, *, folder: Path, sort: Sort, color: bool, width: int = 100) -> str:
    """The whole comparison for a terminal of ``width`` columns, the best by ``sort`` first."""
    ink = Ink(color)
    blocks = [fill(f"{subject(compared)}, {len(compared.entries)} combinations", width)]
    blocks.append(_table(compared, compared.by(sort), ink, width))
    blocks.append(fill(capital(_proof(compared)), width))
    said = [(effect.field, text) for effect in compared.effects if (text := effect_sentence(compared, effect))]
    if said:
        blocks.append("\n".join(labelled(field, text, width, ink, "plain") for field, text in said))
    if warned := list(_warnings(compared)):
        blocks.append("\n".join(labelled("warning", text, width, ink, "warning") for text in warned))
    blocks.append(_next_steps(compared, folder, ink))
    return "\n\n".join(blocks)


def subject(compared: Compared) -> str:
    """What all combinations have in common: ``resnet50, on NVIDIA L4 (simulated)``."""
    record = compared.entries[0].record
    models = list(dict.fromkeys(e.record.header.spec.model for e in compared.entries))
    devices = list(dict.fromkeys(words.device_label(e.record) for e in compared.entries))
    model = words.printable(models[0]) if len(models) == 1 else f"{len(models)} models"
    spec = record.header.spec
    fixed = [
        str(getattr(spec, field))
        for field in ("mode", "precision", "optimizer")
        if field not in compared.vary and (field != "optimizer" or spec.mode == "train")
    ]
    device = devices[0] if len(devices) == 1 else f"{len(devices)} devices"
    return ", ".join([model, *fixed, f"on {device}"])


def result_words(entry: Entry) -> str:
    """The answer in a table's cell: ``327``, ``512 (cap)``, ``none fits``, ``broke``."""
    record = entry.record
    if record.broken is not None:
        return "broke"
    if _is_open(entry):
        return f"{len(record.trials)} trials so far" if record.trials else "not run yet"
    if entry.largest is None:
        return "none fits"
    if record.header.settings.sizes:
        return f"{entry.largest:,} (listed)"
    return f"{entry.largest:,}" if entry.boundary is not None else f"{entry.largest:,} (cap)"


def _is_open(entry: Entry) -> bool:
    """Whether the answer can still change."""
    return not entry.record.proven and entry.record.next_trial() is not None


def effect_sentence(compared: Compared, effect: Effect) -> str | None:
    """``checkpointing on, against off: largest batch x 2.10 (2.04 to 2.16), ...``; None where nothing is known."""
    noun, axis = sample_noun(compared), axes.words(compared.axis)
    at = f"{axis.size} {compared.common_size}"
    numbers = (
        (axis.largest, effect.largest),
        (f"peak at {at}", effect.peak),
        (f"memory per {noun}", effect.per_sample),
        ("samples/s", effect.speed),
    )
    said = [f"{name} {_times(ratio)}" for name, ratio in numbers if ratio is not None]
    if not said:
        return None
    sentence = f"{effect.word}, against {effect.against}: {', '.join(said)}"
    return words.said(compared.entries[0].record, sentence)


def sample_noun(compared: Compared) -> str:
    """What memory grows with."""
    if compared.axis != "batch":
        return f"unit of {axes.words(compared.axis).size}"
    return "image" if all(takes_images(e.record.header.spec) for e in compared.entries) else "sample"


def _times(ratio: Ratio) -> str:
    mean, least, greatest = (f"{number:.2f}" for number in (ratio.mean, ratio.least, ratio.greatest))
    return f"x {mean}" if least == greatest else f"x {mean} ({least} to {greatest})"


def _table(compared: Compared, entries: tuple[Entry, ...], ink: Ink, width: int) -> str:
    layout = lay_out(list(_columns(compared, entries)), width=width)
    lines = [ink(line, "dim") for line in layout.headings]
    for entry, row in zip(entries, layout.rows, strict=True):
        lines.append(ink(row, "warning" if entry.record.broken else "plain"))
    if layout.dropped:
        lines.append(ink(fill(f"no room here for: {', '.join(layout.dropped)} (see compare.csv)", width, "  "), "dim"))
    return "\n".join(lines)


def _columns(compared: Compared, entries: tuple[Entry, ...]) -> Iterator[Column]:
    for field in compared.vary:
        yield Column(heading=field, cells=tuple(words.printable(e.choices[field]) for e in entries), left=True)
    axis = axes.words(compared.axis)
    yield Column(heading="\n".join(axis.largest.rsplit(" ", 1)), cells=tuple(map(result_words, entries)))
    at, noun = f"at {compared.common_size}", sample_noun(compared)
    points = [entry.at(compared.common_size) for entry in entries]
    if any(points):
        peaks = tuple("-" if p is None else format_mib(p.peak_reserved_bytes) for p in points)
        yield Column(heading=f"peak MiB\n{at}", cells=peaks)
    per_sample = [None if (n := e.per_sample_bytes) is None else n / MIB for e in entries]
    yield _numbers(f"MiB per\n{noun}", per_sample, "{:,.2f}", 1)
    fixed = [None if e.fixed_bytes is None else e.fixed_bytes / MIB for e in entries]
    yield _numbers("fixed\nMiB", fixed, "{:,.0f}", 2)
    if any(p is not None and p.step_seconds is not None for p in points):
        steps = [None if p is None or p.step_seconds is None else 1000 * p.step_seconds for p in points]
        yield _numbers(f"step ms\n{at}", steps, "{:,.1f}", 3)
    if any(e.samples_per_second is not None for e in entries):
        yield _numbers("best\nsamples/s", [e.samples_per_second for e in entries], "{:,.1f}", 1)
    if any(e.loss_finite is not None for e in entries):
        finite = {None: "-", True: "yes", False: "NO"}
        yield Column(heading="loss\nfinite", cells=tuple(finite[e.loss_finite] for e in entries), importance=4)


def _numbers(heading: str, numbers: list[float | None], form: str, importance: int) -> Column:
    cells = tuple("-" if number is None else form.format(number) for number in numbers)
    return Column(heading=heading, cells=cells, importance=importance)


def _proof(compared: Compared) -> str:
    proven = sum(1 for e in compared.entries if e.boundary is not None)
    capped = sum(1 for e in compared.entries if result_words(e).endswith("(cap)"))
    parts = [f"{proven} of {len(compared.entries)} boundaries proven, each by a trial on both sides"]
    if capped:
        parts.append(f"{capped} fit the cap: raise --max-batch to find their limit")
    if unfinished := sum(1 for e in compared.entries if e.record.broken is None and _is_open(e)):
        parts.append(f"{unfinished} unfinished")
    if compared.common_size is not None:
        where = f"{axes.words(compared.axis).size} {compared.common_size}"
        parts.append(f"compared at {where}, the largest that all with an answer ran")
    return words.said(compared.entries[0].record, "; ".join(parts))


def _warnings(compared: Compared) -> Iterator[str]:
    for entry in compared.entries:
        if entry.record.broken is not None:
            yield f"{entry.label} broke: {words.printable(entry.record.broken.reason)}"
        elif entry.loss_finite is False:
            yield f"{entry.label}: a loss was not finite"
        for text in entry.record.warnings:
            yield words.said(entry.record, f"{entry.label}: {text}")


def _next_steps(compared: Compared, folder: Path, ink: Ink) -> str:
    """Not wrapped: a path or a command broken over two lines cannot be copied."""
    rows = [("folder", str(folder))]
    if any(e.record.broken is None and e.record.next_trial() is not None for e in compared.entries):
        rows.append(("go on", shlex.join(["sweep", "compare", "--resume", str(folder)])))
    best = compared.by("largest")[0]
    rows.append(("one of them", shlex.join(["sweep", "report", str(folder / best.folder)])))
    rows.append(("show it again", shlex.join(["sweep", "report", str(folder)])))
    return "\n".join(f"  {ink(label.ljust(LABEL_WIDTH), 'dim')}  {words.printable(text)}" for label, text in rows)


# -- programs ---------------------------------------------------------------------------------------------------


def to_json(compared: Compared, folder: Path) -> dict[str, Any]:
    """Return the object above, ready for ``json.dumps(..., allow_nan=False)``."""
    body = {
        "schema": SCHEMA,
        "axis": compared.axis,
        "vary": compared.vary,
        "common_size": compared.common_size,
        "finished": compared.finished,
        "seconds": sum(entry.record.seconds for entry in compared.entries),
        "combinations": [_combination(compared, entry) for entry in compared.entries],
        "effects": compared.effects,
        "folder": str(folder),
    }
    return to_jsonable(body)  # type: ignore[no-any-return]


def _combination(compared: Compared, entry: Entry) -> dict[str, Any]:
    record, point = entry.record, entry.at(compared.common_size)
    return {
        "choices": entry.choices,
        "label": entry.label,
        "folder": entry.folder,
        "simulated": words.on_simulated(record),
        "device_label": record.device.label if record.device else None,
        "max_batch": entry.largest,
        "first_failure": record.first_failure,
        "proven": record.proven,
        "capacity_bytes": record.capacity_bytes,
        "per_sample_bytes": entry.per_sample_bytes,
        "fixed_bytes": entry.fixed_bytes,
        "common": point and {**{key: getattr(point, key) for key in _COMMON_KEYS}, "breakdown": point.breakdown},
        "samples_per_second": entry.samples_per_second,
        "loss_finite": entry.loss_finite,
        "broken": record.broken and {"failure": record.broken.failure, "reason": record.broken.reason},
        "finished": record.broken is None and record.next_trial() is None,
        "trials": record.counts,
        "seconds": record.seconds,
    }


def table_csv(compared: Compared) -> str:
    """Return the table as CSV (RFC 4180), a row a combination in the order asked; bytes are integers."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    own: tuple[tuple[str, Callable[[Entry], Any]], ...] = (
        ("max_batch", lambda e: e.largest),
        ("first_failure", lambda e: e.record.first_failure),
        ("proven", lambda e: str(e.record.proven).lower()),
        ("simulated", lambda e: str(words.on_simulated(e.record)).lower()),
        ("capacity_bytes", lambda e: e.record.capacity_bytes),
        ("per_sample_bytes", lambda e: e.per_sample_bytes),
        ("fixed_bytes", lambda e: e.fixed_bytes),
        ("best_samples_per_second", lambda e: e.samples_per_second),
        ("loss_finite", lambda e: "" if e.loss_finite is None else str(e.loss_finite).lower()),
        ("folder", lambda e: e.folder),
    )
    shares = [f"common_{kind}_bytes" for kind in KINDS]
    common = [f"common_{key}" for key in _COMMON_KEYS]
    writer.writerow([*compared.vary, *(name for name, _ in own), "common_size", *common, *shares])
    for entry in compared.entries:
        point: CurvePoint | None = entry.at(compared.common_size)
        kinds = [getattr(point.breakdown if point else None, kind, None) for kind in KINDS]
        at = [getattr(point, key, None) for key in _COMMON_KEYS]
        size = compared.common_size if point else None
        writer.writerow([*entry.choices.values(), *(read(entry) for _, read in own), size, *at, *kinds])
    return text.getvalue()

"""A calibration in words and tables for a terminal: what was measured of a card, and what of that is kept."""

from collections.abc import Sequence
from pathlib import Path

from sweeper import calibration as kept
from sweeper.calibration import Calibration
from sweeper.report import words
from sweeper.report.table import Column, lay_out
from sweeper.report.terminal import capital, fill, percent
from sweeper.units import format_bytes, format_mib

__all__ = ["job_name", "listing", "summary"]


def job_name(model: str, precision: str, batch_size: int) -> str:
    """``resnet18, amp-fp16, batch 8``."""
    return f"{model}, {precision}, batch {batch_size}"


def summary(found: Calibration, file: Path, *, width: int = 100) -> str:
    """Everything that was measured, as tables, and in a sentence what is used from now on."""
    versions = [f"compute capability {found.compute_capability}", f"torch {found.torch}"]
    versions += [f"{name} {version}" for name, version in (("CUDA", found.cuda), ("driver", found.driver)) if version]
    lines = [f"  {label:<24}  {size:>12}  {what}".rstrip() for label, size, what in _sizes(found)]
    said = kept.sentence(kept.apply(found, None)) or ""
    return "\n\n".join(
        [
            fill(words.printable(f"{found.label}, {', '.join(versions)}"), width),
            "\n".join(lines),
            _jobs(found, width),
            fill(
                f"{capital(said)}. Used from now on by sim:{found.name} and sweep predict --card {found.name}.", width
            ),
            f"  kept in  {words.printable(str(file))}",
        ]
    )


def listing(found: Sequence[Calibration], *, width: int = 100) -> str:
    """One row a card."""
    if not found:
        return "no card is calibrated here; `sweep calibrate` measures the GPU at hand"
    offsets = tuple(_signed(one.reserved_offset_bytes) for one in found)
    columns = [
        Column(heading="card", cells=tuple(one.name for one in found), left=True),
        Column(heading="name", cells=tuple(words.printable(one.label) for one in found), left=True, importance=2),
        Column(heading="total\nMiB", cells=tuple(format_mib(one.total_bytes) for one in found)),
        Column(heading="outside\nMiB", cells=tuple(format_mib(one.outside_bytes) for one in found)),
        Column(heading="offset\nMiB", cells=offsets),
        Column(heading="date", cells=tuple(one.date for one in found), left=True),
        Column(heading="torch", cells=tuple(one.torch for one in found), left=True, importance=1),
        Column(heading="driver", cells=tuple(one.driver or "-" for one in found), left=True, importance=3),
    ]
    layout = lay_out(columns, width=width)
    return "\n".join([*layout.headings, *layout.rows])


def _sizes(found: Calibration) -> list[tuple[str, str, str]]:
    others = "not known" if found.others_bytes is None else format_bytes(found.others_bytes)
    beside = (
        "of this, what other processes hold is counted: the driver does not tell"
        if found.others_bytes is None
        else "other processes' and the driver's own, counted nowhere"
    )
    workspace = max((job.cublas_workspace_bytes for job in found.jobs), default=0)
    return [
        ("total", format_bytes(found.total_bytes), "as the driver reports it"),
        ("context", format_bytes(found.context_bytes), "before the first tensor"),
        ("outside the allocator", format_bytes(found.outside_bytes), "after training: context, kernels, libraries"),
        ("others", others, beside),
        ("cuBLAS workspace", format_bytes(workspace), "in the allocator, after training"),
        ("offset", format_bytes(found.reserved_offset_bytes), "reserved beyond what is simulated, in every job"),
    ]


def _jobs(found: Calibration, width: int) -> str:
    jobs = found.jobs
    columns = [
        Column(heading="job", cells=tuple(job_name(j.model, j.precision, j.batch_size) for j in jobs), left=True),
        Column(heading="measured\nMiB", cells=tuple(format_mib(j.measured_reserved_bytes) for j in jobs)),
        Column(heading="simulated\nMiB", cells=tuple(format_mib(j.simulated_reserved_bytes) for j in jobs)),
        Column(heading="difference\nMiB", cells=tuple(_signed(j.difference_bytes) for j in jobs)),
        Column(
            heading="of simulated\n%",
            cells=tuple(percent(j.measured_reserved_bytes, j.simulated_reserved_bytes) for j in jobs),
        ),
        Column(heading="outside\nMiB", cells=tuple(format_mib(j.outside_bytes) for j in jobs)),
    ]
    layout = lay_out(columns, width=width)
    return "\n".join([*layout.headings, *layout.rows])


def _signed(size: int) -> str:
    return "0" if size == 0 else f"{'+' if size > 0 else '-'}{format_mib(abs(size))}"

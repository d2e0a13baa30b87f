"""What can be told of a question before anything runs: each check raises ``UsageError`` with what to write instead."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeper import axes, cards
from sweeper.errors import UnknownName, UsageError
from sweeper.host_memory import total_bytes
from sweeper.trial import TrialSpec
from sweeper.units import format_bytes, parse_bytes

__all__ = [
    "bytes_of",
    "check_device",
    "check_lengths",
    "check_limit",
    "check_numbers",
    "check_sizes",
    "check_steps",
    "one_of",
    "sizes_of",
]

DEVICES = ("auto", "cuda", "cuda:1", "cpu", "sim:CARD")


def check_limit(limit_bytes: int | None, label: str, total_bytes: int) -> None:
    """Raises ``UsageError`` when the limit is more than the device has; a total of 0 is not known."""
    if limit_bytes is not None and total_bytes and limit_bytes > total_bytes:
        raise UsageError(
            f"the limit of {format_bytes(limit_bytes)} is more than {label} has ({format_bytes(total_bytes)})",
            hint="leave --memory-limit out, or give less",
        )


def check_device(spec: TrialSpec) -> None:
    """Whether ``spec.device`` can be one, as far as can be told without asking a worker."""
    kind, _, rest = spec.device.partition(":")
    listing = f"known: {', '.join(DEVICES)}; `sweep cards` lists the cards"
    limit = spec.memory_limit_bytes
    match kind, rest:
        case (("auto" | "cpu" | "cuda"), ""):
            pass
        case "cuda", index if index.isdigit():
            pass
        case "sim", name if name:
            card = spec.card or cards.card(name)
            check_limit(limit, card.label, card.total_bytes)
        case "sim", _:
            raise UsageError("sim: names no card", hint="write --device sim:rtx4060; `sweep cards` lists them")
        case _:
            raise UnknownName("device", spec.device, ("auto", "cuda", "cpu", "sim:rtx4060"), listing=listing)
    if kind == "cpu":
        check_limit(limit, "this machine", total_bytes() or 0)


def check_sizes(*, min_batch: int, max_batch: int, batches: Sequence[int]) -> None:
    if min_batch < 1 or max_batch < 1 or any(size < 1 for size in batches):
        raise UsageError("a batch has at least one sample", hint="give sizes of 1 or more")
    if min_batch > max_batch:
        raise UsageError(
            f"--min-batch {min_batch} is above --max-batch {max_batch}", hint="give a range that is not empty"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes a sweep looks among: ``listed``, or from ``floor`` to ``cap`` in steps of ``step``."""

    floor: int
    cap: int
    step: int = 1
    listed: tuple[int, ...] = ()


def sizes_of(
    axis: str,
    *,
    min_batch: int,
    max_batch: int,
    batches: Sequence[int],
    min_size: int | None,
    max_size: int | None,
    step: int | None,
) -> Sizes:
    """The sizes along ``axis``.  Raises ``UsageError`` where they are none, or said in the words of another axis."""
    axes.check_axis(axis)
    if axis == "batch":
        least, most = min_batch if min_size is None else min_size, max_batch if max_size is None else max_size
        check_sizes(min_batch=least, max_batch=most, batches=batches)
        listed = tuple(sorted(set(batches)))
        return Sizes(floor=least, cap=max(listed) if listed else most, step=step or 1, listed=listed)
    if batches:
        raise UsageError(
            f"--batches lists batches, and the axis is {axis}", hint="give --min and --max, or leave --axis out"
        )
    if max_size is None:
        raise UsageError(f"how far along {axis}?", hint=f"sweep ... --axis {axis} --max 4096")
    step = step or 1
    floor = step if min_size is None else min_size
    if floor < 1 or max_size < floor or step < 1:
        raise UsageError(
            f"no sizes from {floor} to {max_size} in steps of {step}",
            hint="give a --min, a --max and a --step of 1 and more",
        )
    return Sizes(floor=floor, cap=max_size, step=step)


def check_not_given(spec: TrialSpec, axis: str) -> None:
    """Raises ``UsageError`` where ``spec`` fixes the size that is to be varied."""
    size = axes.size_of(spec, axis)
    if axis == "batch":
        if size != 1:
            raise UsageError(
                f"--batch-size {size} fixes the batch, which is what is looked for",
                hint="leave it out, or vary something else with --axis",
            )
    elif size is not None:
        raise UsageError(f"{axis} is fixed at {size}, and is the axis too", hint="give --min and --max instead")


def check_lengths(
    spec: TrialSpec, *, shortest: int | None, longest: int | None, step: int | None, measured: int
) -> None:
    """Whether these are lengths, and ``spec`` leaves them to be varied."""
    fixed = spec.seq_len or spec.model_args.get("seq_len")
    if fixed is not None:
        raise UsageError(
            f"the length is fixed at {fixed}, and is what is varied",
            hint="give --min-seq-len and --max-seq-len instead",
        )
    for name, value in (("--min-seq-len", shortest), ("--max-seq-len", longest), ("--step", step)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is no number of tokens", hint="give 1 or more")
    if shortest is not None and longest is not None and shortest > longest:
        raise UsageError(
            f"--min-seq-len {shortest} is above --max-seq-len {longest}", hint="give a range that is not empty"
        )
    if measured < 0:
        raise UsageError(f"--measure {measured} is no number of points", hint="give 1 or more, or leave it out")


def check_steps(steps: int) -> None:
    if steps < 2:
        raise UsageError(
            f"{steps} step is too few: the optimizer makes its state in the first, so the second needs more",
            hint="give --steps 2 or more; 3 is the default",
        )


def check_numbers(*, confirm: int | None, points: int, margin: float, round_to: int | None, timeout_s: float) -> None:
    for name, value, least in (
        ("--confirm", confirm, 1),
        ("--points", points, 1),
        ("--round-to", round_to, 1),
        ("--timeout", timeout_s, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{name} {value} is too small", hint=f"give {least} or more")
    if not 0 <= margin < 1:
        raise UsageError(f"--margin {margin} is no share of the capacity", hint="give a number from 0 to 0.9")


def one_of(kind: str, name: str, known: Sequence[Any]) -> Any:
    if name not in known:
        raise UnknownName(kind, name, known, listing=f"known: {', '.join(known)}")
    return name


def bytes_of(size: int | str | None) -> int | None:
    if isinstance(size, str):
        return parse_bytes(size)
    if size is not None and size < 1:
        raise UsageError(f"{size} bytes is no limit", hint="write it as 8GiB")
    return size

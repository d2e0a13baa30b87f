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
    "Sizes",
    "bytes_of",
    "check_device",
    "check_lengths",
    "check_limit",
    "check_numbers",
    "check_not_given",
    "check_range",
    "check_sizes",
    "check_steps",
    "on_grid",
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
    """The sizes a sweep looks among: ``listed``, or the multiples of ``step`` from ``floor`` to ``cap``.

    ``floor`` and ``step`` are None where they are for the model to say (see ``sizing``); never along the batch.
    """

    floor: int | None
    cap: int
    step: int | None = 1
    listed: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """The smallest size, as far as the words tell."""
        return self.listed[0] if self.listed else self.floor or self.step or 1


_BATCHES = (1, 512)  # what --min-batch and --max-batch are when they are not given


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
        return _batches(min_batch, max_batch, batches, min_size, max_size, step)
    if batches:
        raise UsageError(
            f"--batches lists batches, and the axis is {axis}", hint="give --min and --max, or leave --axis out"
        )
    if (min_batch, max_batch) != _BATCHES:
        raise UsageError(
            f"--min-batch and --max-batch bound the batch, and the axis is {axis}", hint="give --min and --max"
        )
    if max_size is None:
        raise UsageError(f"how far along {axis}?", hint=f"sweep ... --axis {axis} --max 4096")
    if min(n for n in (min_size, max_size, step, 1) if n is not None) < 1:
        raise UsageError("a size is 1 or more", hint="give a --min, a --max and a --step of 1 or more")
    if step is None:
        check_range(min_size or 1, max_size)
        return Sizes(floor=min_size, cap=max_size, step=None)
    return Sizes(floor=None if min_size is None else on_grid(min_size, max_size, step), cap=max_size, step=step)


def _batches(
    min_batch: int,
    max_batch: int,
    batches: Sequence[int],
    min_size: int | None,
    max_size: int | None,
    step: int | None,
) -> Sizes:
    for name, given, number in (
        ("min", min_size is not None, min_batch != _BATCHES[0]),
        ("max", max_size is not None, max_batch != _BATCHES[1]),
    ):
        if given and number:
            raise UsageError(f"--{name} and --{name}-batch say the same", hint="leave one of them out")
    least, most = min_batch if min_size is None else min_size, max_batch if max_size is None else max_size
    check_sizes(min_batch=least, max_batch=most, batches=batches)
    if batches:
        if step is not None:
            raise UsageError("--batches lists the sizes, so --step says nothing", hint="leave one of them out")
        listed = tuple(sorted(set(batches)))
        return Sizes(floor=least, cap=max(listed), listed=listed)
    if step is not None and step < 1:
        raise UsageError(f"--step {step} is too small", hint="give 1 or more")
    return Sizes(floor=on_grid(least, most, step or 1), cap=most, step=step or 1)


def on_grid(least: int, most: int, step: int) -> int:
    """The smallest multiple of ``step`` from ``least`` on.  Raises ``UsageError`` where it is more than ``most``."""
    floor = -(-least // step) * step
    if least > most:
        raise UsageError(f"the smallest size is {least}, above the largest, {most}", hint="give a larger --max")
    if floor > most:
        raise UsageError(
            f"there is no multiple of {step} from {least} to {most}", hint="give a larger --max, or a smaller --step"
        )
    return floor


def check_range(least: int, most: int) -> None:
    """Raises ``UsageError`` where there is no size from ``least`` to ``most``."""
    if least > most:
        raise UsageError(f"--min {least} is above --max {most}", hint="give a range that is not empty")


def check_not_given(spec: TrialSpec, axis: str) -> None:
    """Raises ``UsageError`` where ``spec`` fixes the size that is to be varied."""
    if axis == "batch":
        if spec.batch_size != 1:
            raise UsageError(
                f"--batch-size {spec.batch_size} fixes the batch, which is what is looked for",
                hint="leave it out, or vary something else with --axis",
            )
        return
    name = axes.model_argument(axis)
    fixed = axes.size_of(spec, axis) if name is None else spec.model_args.get(name)
    if fixed is not None:
        raise UsageError(f"{axis} is fixed at {fixed}, and is the axis too", hint="give --min and --max instead")


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

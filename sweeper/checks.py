"""What can be told of a question before anything runs: each check raises ``UsageError`` with what to write instead."""

from collections.abc import Sequence
from typing import Any

from sweeper import cards
from sweeper.errors import UnknownName, UsageError
from sweeper.host_memory import total_bytes
from sweeper.trial import TrialSpec
from sweeper.units import format_bytes, parse_bytes

__all__ = ["bytes_of", "check_device", "check_limit", "check_numbers", "check_sizes", "check_steps", "one_of"]

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

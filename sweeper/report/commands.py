"""The commands a person would type next, and the flags that would help: words only, nothing is run.

A command is built from the spec, not from the words it was first typed with, so it stands for the resolved device
and holds nothing of the first search.
"""

import dataclasses
import shlex
from pathlib import Path

from sweeper import axes, model_names
from sweeper.record import Record
from sweeper.report import job
from sweeper.trial import Broken, OutOfMemory, TrialSpec
from sweeper.units import MIB, format_bytes

__all__ = ["advice", "after_breaking", "last_broken_folder", "next_commands", "sweep_command", "takes_images"]

# Other processes' memory on the card below this is a desktop's; freeing it would not change an answer.
_WORTH_FREEING_BYTES = 256 * MIB

# By FailureClass, for those that end a sweep.
_AFTER_BREAKING = {
    "oom_host": "the machine's own memory ran out, not the device's: free some, or lower {most}",
    "kernel_limit": "a kernel cannot take a {size} of this size, whatever the memory: lower {most}",
    "cuda_fault": "look at the card and its driver (nvidia-smi, dmesg), then run again",
    "model_error": "mend the model: the traceback is its own",
    "numeric": "look at the model's numbers: memory has no part in it",
    "timeout": "give a longer --timeout, or lower {most}",
    "spilled": "the driver moved memory to the host instead of failing: turn that off, or give a --memory-limit",
    "infra": "read its log, then run again",
}

# A larger card is worth naming when it has at least this much more.
_LARGER = 1.5


def takes_images(spec: TrialSpec) -> bool:
    """Whether the samples are images, as far as the name of the model tells."""
    return spec.image_size is not None or model_names.takes_images(spec.model)


def sweep_command(spec: TrialSpec, *flags: str, axis: str = "batch") -> str:
    """Return the shell command that asks for ``spec`` (all but its size along ``axis``), then ``flags``."""
    along = () if axis == "batch" else ("--axis", axis)
    return shlex.join(["sweep", *job.flags(spec, axis), *along, *flags])


def next_commands(record: Record, folder: Path) -> list[tuple[str, str]]:
    """Return (purpose, command) pairs: how to go on, to prove the answer again, to show it again."""
    settings = record.header.settings
    show_again = ("show it again", shlex.join(["sweep", "report", str(folder)]))
    if record.broken is not None:
        return [("try it alone", _just(record, record.trials[-1].size)), show_again]
    if record.next_trial() is not None:
        return [("go on", shlex.join(["sweep", "--resume", str(folder)])), show_again]
    found: list[tuple[str, str]] = []
    best, failing = record.max_size, record.first_failure
    if settings.sizes:
        if best is not None and failing is not None and failing > best + 1:
            found.append(("find the limit", _ask(record, *_bounds(record, best, failing))))
    elif best is not None and failing is None:
        found.append(("find the limit", _farther(record)))
    found.append(("prove it again", _just(record, *(size for size in (best, failing) if size is not None))))
    return [*found, show_again]


def _ask(record: Record, *flags: str, spec: TrialSpec | None = None) -> str:
    settings = record.header.settings
    uncalibrated = () if settings.calibration else ("--no-calibration",)
    return sweep_command(spec or record.header.spec, *flags, *uncalibrated, axis=settings.axis)


def _bounds(record: Record, least: int | None, most: int) -> tuple[str, ...]:
    """The flags of a range of sizes; the step too where it is not what is meant without a word."""
    settings, suffix = record.header.settings, "-batch" if record.axis == "batch" else ""
    smallest = () if least is None else (f"--min{suffix}", str(least))
    step = ("--step", str(settings.step)) if suffix == "" or settings.step != 1 else ()
    return (*smallest, f"--max{suffix}", str(most), *step)


def _just(record: Record, *sizes: int) -> str:
    """The command for these sizes alone: a list of batches; along another axis a range that begins and ends there."""
    if record.axis == "batch":
        return _ask(record, "--batches", ",".join(map(str, sizes)))
    return _ask(record, *_bounds(record, sizes[0], sizes[-1]))


def _farther(record: Record) -> str:
    """The command for twice the range; the positions that were made for the first are made anew."""
    spec, settings = record.header.spec, record.header.settings
    if (argument := settings.positions_argument) is not None:
        kept = {name: value for name, value in spec.model_args.items() if name != argument}
        spec = dataclasses.replace(spec, model_args=kept)
    return _ask(record, *_bounds(record, None, 2 * settings.cap), spec=spec)


def advice(record: Record) -> tuple[str, ...]:
    """What would help when nothing fits, the most likely help first; empty where something fits."""
    if record.failure is None or record.max_size is not None:
        return ()
    _, failure = record.failure
    spec = record.header.spec
    found = [*_free_the_card(failure), *_smaller_state(spec, failure)]
    by_batch = failure.phase not in ("setup", "step", "zero_grad")  # then activations are there
    if by_batch and spec.precision == "fp32" and spec.device != "cpu":
        found.append(f"--precision {_amp(record)}: 16-bit activations, about half their bytes")
    if by_batch and record.axis != "batch" and spec.batch_size > 1:
        found.append(f"a --batch-size below {spec.batch_size}: activations grow with it")
    if by_batch and record.axis != "image-size" and takes_images(spec):
        below = f" below {spec.image_size}" if spec.image_size else ""
        found.append(f"a smaller --image-size{below}: activations grow with its square")
    if spec.memory_limit_bytes is not None:
        found.append(f"a larger --memory-limit than {format_bytes(spec.memory_limit_bytes)}")
    elif spec.device == "cpu":
        found.append("a larger --memory-limit: the default is at most half of what is free")
    elif larger := _larger_card(record):
        found.append(f"a larger card: --device sim:{larger} shows what it would take")
    return tuple(found)


def after_breaking(broken: Broken, axis: str) -> str:
    """What to do about a trial that broke, by its class."""
    most = "--max-batch" if axis == "batch" else "--max"
    return _AFTER_BREAKING.get(broken.failure, "read its log").format(size=axes.words(axis).size, most=most)


def last_broken_folder(record: Record) -> str | None:
    """The folder, relative to the run's, of the trial that broke last; its log is there."""
    return next((t.folder for t in reversed(record.trials) if isinstance(t.outcome, Broken)), None)


def _free_the_card(failure: OutOfMemory) -> list[str]:
    memory = failure.card_before
    if memory is None or memory.others_bytes is None or memory.others_bytes < _WORTH_FREEING_BYTES:
        return []
    return [f"end what else is on the card: other processes hold {format_bytes(memory.others_bytes)}"]


def _smaller_state(spec: TrialSpec, failure: OutOfMemory) -> list[str]:
    """Help against weights and optimizer state, where those are what ran out."""
    found = []
    if failure.phase == "setup" and spec.precision != "bf16":
        found.append("--precision bf16: weights of 2 bytes; amp keeps them at 4")
    if spec.mode == "train" and spec.optimizer != "sgd":
        found.append(f"--optimizer sgd: no state; {spec.optimizer} keeps twice the weights' bytes")
    return found


def _amp(record: Record) -> str:
    """bf16 autocast needs compute capability 8.0 to be fast (CUDA C++ Programming Guide, arithmetic instructions)."""
    capability = record.device.compute_capability if record.device else None
    older = capability is not None and int(capability.split(".")[0]) < 8
    return "amp-fp16" if older else "amp-bf16"


def _larger_card(record: Record) -> str | None:
    """The catalogue's smallest card with clearly more memory than this one."""
    from sweeper.cards import cards

    have = record.device.total_bytes if record.device else record.capacity_bytes
    larger = [(card.total_bytes, name) for name, card in cards().items() if card.total_bytes >= _LARGER * have]
    return min(larger)[1] if have and larger else None

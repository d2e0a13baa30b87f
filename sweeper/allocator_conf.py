"""The words of ``PYTORCH_CUDA_ALLOC_CONF``, as a value: those that decide where a block goes or whether there is one.

The words and their limits are those of ``c10/core/AllocatorConfig.h`` and ``c10/cuda/CUDAAllocatorConfig.h`` of PyTorch
2.14, tried one by one on its binary.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sweeper.errors import UsageError
from sweeper.units import MIB

__all__ = ["DEFAULT_CONF", "VARIABLES", "AllocatorConf", "words_in_force"]

# The first is that of 2.9 and later, which still read the second where the first is not set.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def words_in_force(asked: str | None = None) -> str:
    """What the allocator is told: ``asked``, of ``--alloc-conf``, and what the environment says only without it."""
    if asked is not None:
        return asked
    return next((words for name in VARIABLES if (words := os.environ.get(name))), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConf:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` can say that changes where a block goes or whether there is one."""

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None  # blocks of this size and more are not split
    max_non_split_rounding_bytes: int | None = None  # how much too large such a block may be; None: large_segment_bytes
    large_segment_bytes: int = 20 * MIB  # segment of requests below 10 MiB, and page of expandable large pools
    roundup_power2_divisions: tuple[int, ...] = ()  # 16 divisions, for sizes from 1 MiB, 2 MiB, ... 32 GiB on; or none
    garbage_collection_threshold: float = 0.0
    per_process_memory_fraction: float = 1.0  # of the device's total memory; 1 is no limit, and collects no garbage

    @classmethod
    def parse(cls, text: str) -> "AllocatorConf":
        """Return what the words of ``PYTORCH_CUDA_ALLOC_CONF`` mean; ``""`` is the default.

        Words without effect on device memory are checked and then left out: ``pinned_*`` (host memory),
        ``release_lock_on_cudamalloc``, ``graph_capture_record_stream_reuse`` (CUDA graphs), ``backend:native``.
        Raises ``UsageError`` for an unknown word, a value that PyTorch would refuse, and what is not simulated:
        ``backend:cudaMallocAsync`` and ``throw_on_cudamalloc_oom:True``.
        """
        values: dict[str, Any] = {}
        for word, value in _words("".join(text.split())):
            if word in _SETTINGS:
                field, read = _SETTINGS[word]
                values[field] = read(word, value)
            elif word in _WITHOUT_EFFECT:
                _WITHOUT_EFFECT[word](word, value)
            else:
                known = ", ".join(sorted(_SETTINGS))
                raise UsageError(f"{word!r} is no allocator setting", hint=f"the settings that count are {known}")
        conf = cls(**values)
        for field in ("max_split_size_bytes", "max_non_split_rounding_bytes"):
            size = getattr(conf, field)
            if size is not None and size < conf.large_segment_bytes:
                least = conf.large_segment_bytes // MIB
                raise UsageError(
                    f"{field.replace('_bytes', '_mb')} is too small", hint=f"PyTorch takes {least} and more"
                )
        return conf


DEFAULT_CONF = AllocatorConf()


def _words(text: str) -> Iterator[tuple[str, str]]:
    """Yield (word, value) of ``word:value,word:[...]``; a comma inside brackets belongs to the value."""
    while text:
        word, colon, rest = text.partition(":")
        end = rest.find("]") + 1 if rest.startswith("[") else rest.find(",")
        end = len(rest) if end < 0 else end
        value, text = rest[:end], rest[end:]
        if not (word and colon and value) or (text and not text.startswith(",")):
            raise UsageError(
                f"{word!r}: not word:value", hint="write it as expandable_segments:True,max_split_size_mb:128"
            )
        yield word, value
        text = text[1:]


def _refused(word: str, value: str, expected: str) -> UsageError:
    return UsageError(f"{word}:{value} is not understood", hint=f"{word} takes {expected}")


def _boolean(word: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _refused(word, value, "True or False")
    return value == "True"


def _whole(word: str, value: str, *, least: int = 0) -> int:
    if not (value.isascii() and value.isdigit()) or int(value) < least:
        raise _refused(word, value, f"a whole number of {least} or more")
    return int(value)


def _mebibytes(word: str, value: str) -> int:
    return _whole(word, value, least=1) * MIB


def _large_segment(word: str, value: str) -> int:
    return _whole(word, value, least=11) * MIB  # "large_segment_size_mb must be > 10 MB"


def _fraction(word: str, value: str, *, ends: bool = True) -> float:
    try:
        fraction = float(value)
    except ValueError:
        raise _refused(word, value, "a number between 0 and 1") from None
    if not (0 <= fraction <= 1 if ends else 0 < fraction < 1):
        raise _refused(word, value, "a number between 0 and 1" + ("" if ends else ", neither of them"))
    return fraction


def _threshold(word: str, value: str) -> float:
    return _fraction(word, value, ends=False)


def _power_of_two(word: str, value: str, *, zero: bool = False) -> int:
    number = _whole(word, value, least=0 if zero else 1)
    if number & (number - 1):
        raise _refused(word, value, "powers of two, as 4 or [256:1,512:2,>:4]")
    return number


def _divisions(word: str, value: str) -> tuple[int, ...]:
    """``4`` for every size, or ``[256:1,512:2,>:4]``: divisions, by the MiB from which they hold."""
    if not value.startswith("["):
        return (_power_of_two(word, value),) * 16
    divisions = [0] * 16
    last = 0
    for place, item in enumerate(value[1:-1].split(",")):
        start, _, count = item.partition(":")
        number = _power_of_two(word, count, zero=True)
        if start == ">":
            divisions[last + 1 :] = [number] * (15 - last)
            continue
        last = min(_power_of_two(word, start).bit_length() - 1, 15)
        if place == 0:
            divisions[:last] = [number] * last
        divisions[last] = number
    return tuple(divisions)


def _native(word: str, value: str) -> None:
    if value == "cudaMallocAsync":
        raise UsageError("backend:cudaMallocAsync is not simulated", hint="leave it out: the native allocator is")
    if value != "native":
        raise _refused(word, value, "native")


def _not_simulated(word: str, value: str) -> None:
    if _boolean(word, value):
        raise UsageError(f"{word}:True is not simulated", hint="leave it out, or set it to False")


_SETTINGS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "expandable_segments": ("expandable_segments", _boolean),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "large_segment_size_mb": ("large_segment_bytes", _large_segment),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "max_split_size_mb": ("max_split_size_bytes", _mebibytes),
    "per_process_memory_fraction": ("per_process_memory_fraction", _fraction),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
}
_WITHOUT_EFFECT: dict[str, Callable[[str, str], object]] = {
    "backend": _native,
    "graph_capture_record_stream_reuse": _boolean,
    "pinned_free_catch_all": _boolean,
    "pinned_max_cached_size_mb": _whole,
    "pinned_max_round_threshold_mb": _whole,
    "pinned_num_register_threads": _power_of_two,
    "pinned_reserve_segment_size_mb": _whole,
    "pinned_use_background_threads": _boolean,
    "pinned_use_cuda_host_register": _boolean,
    "pinned_use_hip_host_register": _boolean,
    "release_lock_on_cudamalloc": _boolean,
    "release_lock_on_hipmalloc": _boolean,
    "throw_on_cudamalloc_oom": _not_simulated,
}

"""The catalogue of cards that can be simulated: what the driver reports of each, and where that was seen.

A card's total is what CUDA reports (``torch.cuda.get_device_properties(0).total_memory``), which is less than the
figure on the box, and less than what nvidia-smi prints.  It moves by up to 2 % with the driver, and by 6 % with ECC on
GDDR memory; ``total_source`` says which report stands here.  A process loses ``context_bytes`` of it before the first
tensor: the CUDA context and the kernels it loads.

What was measured on one card stands in for this when it is kept (``sweeper.calibration``): ``calibrated`` then says so.

Not known here: what a display, another process or a virtual machine's profile takes; how a context grows with the
kernels a model uses.  Bandwidth is the datasheet's.  AMD's capability is what a ROCm build of torch reports.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from sweeper.errors import UnknownName, UsageError
from sweeper.units import GIB, MIB, format_bytes, parse_bytes

__all__ = ["LISTING", "Calibrated", "Card", "card", "cards", "find", "name_for"]

LISTING = "`sweep cards` lists them; a size such as 24GiB is a card too"


# A driver's report of one card's total moves by so much: 2 % with its version, 6 % with ECC.
_SAME_CARD = 0.07


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """When and with what a card's total and context were measured.

    ``reserved_offset_bytes`` is what it reserved beyond what is simulated, in every job that was tried: negative where
    it took less.  ``loaded_bytes`` of the context came after the first tensor, with the kernels.
    """

    date: str  # ISO 8601
    torch: str
    driver: str | None = None
    reserved_offset_bytes: int = 0
    loaded_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU.  ``compute_capability`` is ``major.minor``; bandwidth is bytes a second, None where not looked up.

    ``multiprocessors`` is None for AMD's, whose reductions are planned otherwise.  ``calibrated`` is None where the
    numbers are the catalogue's.
    """

    name: str
    label: str  # as the driver prints it
    total_bytes: int
    total_source: str
    compute_capability: str
    architecture: str
    multiprocessors: int | None = None
    context_bytes: int
    context_source: str
    memory_bandwidth_bytes_per_s: int | None
    vendor: str
    calibrated: Calibrated | None = None

    @property
    def capacity_bytes(self) -> int:
        """What PyTorch's allocator can have."""
        return self.total_bytes - self.context_bytes

    @property
    def kernels(self) -> str:
        """What PyTorch chooses its kernels by; cards that agree in it share their traces.

        The compute capability, and AMD's name: MI250X reports H100's 9.0, and has no cuDNN.
        """
        return f"{self.vendor} {self.compute_capability}" if self.vendor == "AMD" else self.compute_capability


def _gib(size: float) -> int:
    return round(size * GIB)


# Where a total was seen.
_BYTES = "bytes as CUDA reports them"
_MEASURED = "as the driver reports it to torch, in published measurements"
_LOG = "torch's total_memory in published Ultralytics logs, MiB, Linux"
_LOG_WINDOWS = "torch's total_memory in published Ultralytics logs, MiB, Windows; Linux reports up to 3 % less"
_MESSAGE = "total capacity in published out-of-memory messages of torch, to 0.01 GiB"
_DATASHEET = "the datasheet's, no driver's report seen; drivers report up to 5 % less"
_SMI = "nvidia-smi's total, MiB; CUDA reports up to 2 % less"

# Contexts.  Measured, with lazy loading of kernels (CUDA 11.7 and later), after a first training step.
_CONTEXTS: dict[str, tuple[int, str]] = {
    "T4": (_gib(0.13), "measured, T4"),
    "GA102": (_gib(0.32), "measured, RTX 3090 and 4090: 0.29 to 0.35 GiB"),
    "GA100": (_gib(0.50), "measured, A100 80 GB"),
    "as T4": (_gib(0.13), "estimated: as T4, whose architecture it has"),
    "small": (_gib(0.20), "estimated: fewer multiprocessors than the RTX 3090 (0.29 GiB), more kernels than T4 (0.13)"),
    "as GA102": (_gib(0.32), "estimated: as the RTX 3090 and 4090"),
    "as GA100": (_gib(0.50), "estimated: as A100 80 GB"),
    "AMD": (_gib(0.50), "estimated: as A100 80 GB; no measurement under ROCm is known"),
}

# name, label, total, where seen, capability, architecture, context, GB/s
_Row = tuple[str, str, int, str, str, str, str, int | None]
_NVIDIA: tuple[_Row, ...] = (
    ("gtx1080ti", "NVIDIA GeForce GTX 1080 Ti", 11172 * MIB, _LOG, "6.1", "Pascal", "as T4", 484),
    ("p100-16gb", "Tesla P100-PCIE-16GB", 16280 * MIB, _MEASURED, "6.0", "Pascal", "small", 732),
    ("v100-16gb", "Tesla V100-SXM2-16GB", _gib(15.78), _MEASURED, "7.0", "Volta", "as GA102", 900),
    ("v100-32gb", "Tesla V100-SXM2-32GB", 32494 * MIB, _LOG, "7.0", "Volta", "as GA102", 900),
    ("gtx1650", "NVIDIA GeForce GTX 1650", 3904 * MIB, _LOG, "7.5", "Turing", "as T4", 128),
    ("rtx2060", "NVIDIA GeForce RTX 2060", 5918 * MIB, _LOG, "7.5", "Turing", "as T4", 336),
    ("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", 10825 * MIB, _LOG, "7.5", "Turing", "small", 616),
    ("titan-rtx", "NVIDIA TITAN RTX", 24212 * MIB, _LOG, "7.5", "Turing", "small", 672),
    ("t4", "Tesla T4", _gib(14.56), _MEASURED + ": 14.56 to 14.76 GiB", "7.5", "Turing", "T4", 320),
    ("a100-40gb", "NVIDIA A100-SXM4-40GB", 42_474_471_424, _BYTES, "8.0", "Ampere", "as GA100", 1555),
    ("a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", 42_297_786_368, _BYTES, "8.0", "Ampere", "as GA100", 1555),
    ("a100-80gb", "NVIDIA A100-SXM4-80GB", _gib(79.35), _MEASURED + ": 79.35 to 79.44 GiB",
     "8.0", "Ampere", "GA100", 2039),
    ("a30", "NVIDIA A30", 24164 * MIB, _LOG, "8.0", "Ampere", "as GA100", 933),
    ("a10", "NVIDIA A10", 23_609_475_072, _BYTES, "8.6", "Ampere", "as GA102", 600),
    ("a40", "NVIDIA A40", 46068 * MIB, _SMI, "8.6", "Ampere", "as GA102", 696),
    ("rtxa4000", "NVIDIA RTX A4000", 16117 * MIB, _LOG, "8.6", "Ampere", "small", 448),
    ("rtxa5000", "NVIDIA RTX A5000", 24248 * MIB, _LOG, "8.6", "Ampere", "as GA102", 768),
    ("rtxa6000", "NVIDIA RTX A6000", 49140 * MIB, _SMI, "8.6", "Ampere", "as GA102", 768),
    ("rtx3050-laptop", "NVIDIA GeForce RTX 3050 Laptop GPU", 3762 * MIB, _LOG, "8.6", "Ampere", "small", None),
    ("rtx3060", "NVIDIA GeForce RTX 3060", 12_622_168_064, _BYTES, "8.6", "Ampere", "small", 360),
    ("rtx3060ti", "NVIDIA GeForce RTX 3060 Ti", 7833 * MIB, _LOG, "8.6", "Ampere", "small", 448),
    ("rtx3070", "NVIDIA GeForce RTX 3070", 7753 * MIB, _LOG, "8.6", "Ampere", "small", 448),
    ("rtx3070ti", "NVIDIA GeForce RTX 3070 Ti", 8192 * MIB, _LOG_WINDOWS, "8.6", "Ampere", "small", 608),
    ("rtx3080-10gb", "NVIDIA GeForce RTX 3080", 10002 * MIB, _LOG, "8.6", "Ampere", "as GA102", 760),
    ("rtx3080-12gb", "NVIDIA GeForce RTX 3080", 12117 * MIB, _LOG, "8.6", "Ampere", "as GA102", 912),
    ("rtx3080ti", "NVIDIA GeForce RTX 3080 Ti", 11910 * MIB, _LOG, "8.6", "Ampere", "as GA102", 912),
    ("rtx3090", "NVIDIA GeForce RTX 3090", _gib(23.69), _MEASURED + ": 23.69 to 23.70 GiB; newer drivers 23.56",
     "8.6", "Ampere", "GA102", 936),
    ("l4", "NVIDIA L4", 22563 * MIB, _LOG, "8.9", "Ada Lovelace", "small", 300),
    ("l40s", "NVIDIA L40S", 45495 * MIB, _LOG, "8.9", "Ada Lovelace", "as GA102", 864),
    ("rtx6000ada", "NVIDIA RTX 6000 Ada Generation", 48497 * MIB, _LOG, "8.9", "Ada Lovelace", "as GA102", 960),
    ("rtx4060", "NVIDIA GeForce RTX 4060", 8_318_222_336, _BYTES, "8.9", "Ada Lovelace", "small", 272),
    ("rtx4060-laptop", "NVIDIA GeForce RTX 4060 Laptop GPU", 7915 * MIB, _LOG, "8.9", "Ada Lovelace", "small", None),
    ("rtx4060ti-8gb", "NVIDIA GeForce RTX 4060 Ti", 7806 * MIB, _LOG, "8.9", "Ada Lovelace", "small", 288),
    ("rtx4060ti-16gb", "NVIDIA GeForce RTX 4060 Ti", 16 * GIB, _DATASHEET, "8.9", "Ada Lovelace", "small", 288),
    ("rtx4070", "NVIDIA GeForce RTX 4070", 11994 * MIB, _LOG, "8.9", "Ada Lovelace", "small", 504),
    ("rtx4070ti", "NVIDIA GeForce RTX 4070 Ti", 12007 * MIB, _LOG, "8.9", "Ada Lovelace", "small", 504),
    ("rtx4080", "NVIDIA GeForce RTX 4080", 16376 * MIB, _LOG_WINDOWS, "8.9", "Ada Lovelace", "as GA102", 717),
    ("rtx4080super", "NVIDIA GeForce RTX 4080 SUPER", 15944 * MIB, _LOG, "8.9", "Ada Lovelace", "as GA102", 736),
    ("rtx4090", "NVIDIA GeForce RTX 4090", 24081 * MIB, _LOG + ": 24081 to 24217",
     "8.9", "Ada Lovelace", "GA102", 1008),
    ("h100", "NVIDIA H100 80GB HBM3", _gib(79.10), _MESSAGE, "9.0", "Hopper", "as GA100", 3350),
    ("h100-nvl", "NVIDIA H100 NVL", _gib(93.02), _MEASURED, "9.0", "Hopper", "as GA100", 3938),
    ("h200", "NVIDIA H200", 143156 * MIB, _LOG, "9.0", "Hopper", "as GA100", 4800),
    ("b200", "NVIDIA B200", _gib(178.35), _MESSAGE, "10.0", "Blackwell", "as GA100", 8000),
    ("rtx5060ti-8gb", "NVIDIA GeForce RTX 5060 Ti", 8151 * MIB, _LOG_WINDOWS, "12.0", "Blackwell", "small", 448),
    ("rtx5060ti-16gb", "NVIDIA GeForce RTX 5060 Ti", 15848 * MIB, _LOG, "12.0", "Blackwell", "small", 448),
    ("rtx5070", "NVIDIA GeForce RTX 5070", 12227 * MIB, _SMI, "12.0", "Blackwell", "small", 672),
    ("rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", 16303 * MIB, _LOG_WINDOWS, "12.0", "Blackwell", "as GA102", 896),
    ("rtx5080", "NVIDIA GeForce RTX 5080", 15840 * MIB, _LOG, "12.0", "Blackwell", "as GA102", 960),
    ("rtx5090", "NVIDIA GeForce RTX 5090", 32102 * MIB, _LOG, "12.0", "Blackwell", "as GA102", 1792),
    ("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887 * MIB, _SMI,
     "12.0", "Blackwell", "as GA102", 1792),
)  # fmt: skip
_AMD: tuple[_Row, ...] = (
    ("rx7900xtx", "AMD Radeon RX 7900 XTX", _gib(23.98), _MESSAGE, "11.0", "RDNA 3", "AMD", 960),
    ("mi250x", "AMD Instinct MI250X", _gib(63.98), _MESSAGE + "; one of its two dies",
     "9.0", "CDNA 2", "AMD", 1638),
    ("mi300x", "AMD Instinct MI300X", _gib(191.98), _MESSAGE, "9.4", "CDNA 3", "AMD", 5300),
)  # fmt: skip

# Multiprocessors that CUDA sees: NVIDIA's data sheets and the white papers of Pascal (GP100), Volta (GV100), Turing
# (TU102), Ampere (GA100, GA102), Ada (AD102), Hopper (GH100) and Blackwell (GB202), or their CUDA cores divided by
# those of one (64 on 6.0 to 8.0, 128 on 6.1 and from 8.6 on).
_MULTIPROCESSORS = {
    "gtx1080ti": 28, "p100-16gb": 56, "v100-16gb": 80, "v100-32gb": 80, "gtx1650": 14, "rtx2060": 30, "rtx2080ti": 68,
    "titan-rtx": 72, "t4": 40, "a100-40gb": 108, "a100-pcie-40gb": 108, "a100-80gb": 108, "a30": 56, "a10": 72,
    "a40": 84, "rtxa4000": 48, "rtxa5000": 64, "rtxa6000": 84, "rtx3050-laptop": 16, "rtx3060": 28, "rtx3060ti": 38,
    "rtx3070": 46, "rtx3070ti": 48, "rtx3080-10gb": 68, "rtx3080-12gb": 70, "rtx3080ti": 80, "rtx3090": 82, "l4": 58,
    "l40s": 142, "rtx6000ada": 142, "rtx4060": 24, "rtx4060-laptop": 24, "rtx4060ti-8gb": 34, "rtx4060ti-16gb": 34,
    "rtx4070": 46, "rtx4070ti": 60, "rtx4080": 76, "rtx4080super": 80, "rtx4090": 128, "h100": 132, "h100-nvl": 132,
    "h200": 132, "b200": 148, "rtx5060ti-8gb": 36, "rtx5060ti-16gb": 36, "rtx5070": 48, "rtx5070ti": 70, "rtx5080": 84,
    "rtx5090": 170, "rtxpro6000": 188,
}  # fmt: skip


def _card(row: _Row, vendor: str) -> Card:
    name, label, total, seen, capability, architecture, context, gigabytes_per_s = row
    context_bytes, context_source = _CONTEXTS[context]
    return Card(
        name=name,
        label=label,
        total_bytes=total,
        total_source=seen,
        compute_capability=capability,
        architecture=architecture,
        multiprocessors=_MULTIPROCESSORS[name] if vendor == "NVIDIA" else None,
        context_bytes=context_bytes,
        context_source=context_source,
        memory_bandwidth_bytes_per_s=gigabytes_per_s * 10**9 if gigabytes_per_s is not None else None,
        vendor=vendor,
    )


@cache
def cards() -> Mapping[str, Card]:
    """Return every card by its name."""
    found = [_card(row, "NVIDIA") for row in _NVIDIA] + [_card(row, "AMD") for row in _AMD]
    return MappingProxyType({card.name: card for card in found})


def card(name: str) -> Card:
    """Return the card that ``name`` means: a name, a label or part of one, in any case and spacing, or a size.

    ``RTX 4060``, ``4060`` and ``NVIDIA GeForce RTX 4060`` are all ``rtx4060``.  ``24GiB`` is a card of that total
    (a unit is needed: ``4060`` is a name) with the capability of Ada Lovelace, as many multiprocessors as the Ada card
    of the nearest total, and the context of the RTX 3090, or an eighth of the total on a small one.  Raises
    ``UsageError`` when several are meant (``a100``), and ``UnknownName`` with the close names when none is.
    """
    known = cards()
    if name in known:
        return known[name]
    meant = _aliases().get(_key(name), ())
    if len(meant) == 1:
        return known[meant[0]]
    if meant:
        raise UsageError(f"{name!r} can be {' or '.join(meant)}", hint="write the one that is meant")
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*([kmgt]i?b?|b)\s*", name, re.IGNORECASE):
        return _of_size(name)
    raise UnknownName("card", name, known, listing=LISTING)


def find(label: str, total_bytes: int) -> Card | None:
    """The card of the catalogue that the driver calls ``label``, with about that total; None where it has none.

    ROCm adds words to the label, or names two cards in it (``AMD Instinct MI250X / MI250``).
    """
    named = [c for c in cards().values() if c.label == label or (c.vendor == "AMD" and c.label in label)]
    nearest = min(named, key=lambda card: abs(card.total_bytes - total_bytes), default=None)
    if nearest is None or abs(nearest.total_bytes - total_bytes) > _SAME_CARD * nearest.total_bytes:
        return None
    return nearest


def name_for(label: str, total_bytes: int) -> str:
    """The catalogue's name of such a card; one made of its label and size where the catalogue has none."""
    known = find(label, total_bytes)
    if known is not None:
        return known.name
    return f"{re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-') or 'card'}-{max(1, round(total_bytes / GIB))}gb"


def _of_size(text: str) -> Card:
    total = parse_bytes(text)
    context, _ = _CONTEXTS["GA102"]
    return Card(
        name="".join(text.split()),
        label=f"a card of {format_bytes(total)}",
        total_bytes=total,
        total_source="as asked",
        compute_capability="8.9",
        architecture="Ada Lovelace (assumed)",
        multiprocessors=min(
            (entry for entry in cards().values() if entry.architecture == "Ada Lovelace"),
            key=lambda entry: abs(entry.total_bytes - total),
        ).multiprocessors,
        context_bytes=min(context, total // 8),
        context_source="estimated: as the RTX 3090 and 4090, at most an eighth of the card",
        memory_bandwidth_bytes_per_s=None,
        vendor="none",
    )


_FAMILIES = re.compile(r"nvidia|geforce|tesla|amd|instinct|radeon|generation|laptopgpu(?=$)")
_PREFIX = re.compile(r"^(?:rtx|gtx|rx)")
_MEMORY = re.compile(r"-?\d+gb$")


def _key(text: str) -> str:
    """``text`` as it is compared: letters and digits, without the words that tell no two cards apart."""
    bare = re.sub(r"[^a-z0-9]", "", text.lower())
    return _FAMILIES.sub(lambda word: "laptop" if word[0] == "laptopgpu" else "", bare)


@cache
def _aliases() -> Mapping[str, tuple[str, ...]]:
    """Names by key.  An exact name or label is never ambiguous with a shortened one."""
    exact: dict[str, set[str]] = defaultdict(set)
    short: dict[str, set[str]] = defaultdict(set)
    for name, entry in cards().items():
        for key in (_key(name), _key(entry.label)):
            exact[key].add(name)
        for key in (_key(name), _key(_MEMORY.sub("", name))):
            short[key].add(name)
            short[_PREFIX.sub("", key)].add(name)
    return {key: tuple(sorted(names)) for key, names in {**short, **exact}.items() if key}

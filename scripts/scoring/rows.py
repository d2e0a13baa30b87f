"""Published measurements as values: peaks.csv, caps.csv and brackets.csv, each row with the protocol it was run by.

A protocol is what decides memory besides the model: precision, layout, optimizer, when gradients are dropped, whether
backward runs inside autocast.  What a row does not say is its source's custom, and that is written here once a source.
A row that asks for what cannot be run here raises ``Unsupported`` with the reason, which becomes a line of the report.
"""

import csv
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sweeper.cards import Card, card
from sweeper.errors import SweepError
from sweeper.trial import Precision

__all__ = ["Bracket", "Cap", "Job", "Peak", "Protocol", "Row", "Unsupported", "read_folder"]

ZeroGrad = Literal["before-forward", "before-backward", "after-step"]
OTHERS = ("xmem", "dnnmem", "schedtune", "llmem", "naive")


class Unsupported(Exception):
    """A row that cannot be run as its source ran it; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One training step as its source wrote it."""

    precision: Precision = "fp32"
    channels_last: bool = False
    optimizer: str = "sgd"
    optimizer_args: Mapping[str, float | bool] = field(default_factory=dict)
    zero_grad: ZeroGrad = "before-forward"
    keeps_gradients: bool = False  # zero_grad(set_to_none=False), the default before torch 2.0
    scales_gradients: bool = False  # a GradScaler
    backward_in_autocast: bool = False
    takes_maximum: bool = False  # torch.max(outputs) at the end, its results kept
    fused_attention: bool = True
    cudnn_benchmark: bool = False
    steps: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained, but for the batch."""

    library: str
    model: str
    model_args: Mapping[str, float | bool | str]
    image_size: int | None  # None: the model's own
    sequence: int | None
    card: str  # of the catalogue
    protocol: Protocol

    @property
    def key(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``group`` is the set it is scored in; ``problem`` says why it cannot be run, and then ``job`` is None."""

    id: str
    group: str
    job: Job | None
    digest: str
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak(Row):
    """``measured_bytes`` of one job, with what other estimators said of it; ``with_context`` if the context counts."""

    batch: int
    measured_bytes: int
    with_context: bool
    others: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap(Row):
    """Under a memory fraction of ``fails_bytes`` the job ran out of memory, under ``fits_bytes`` it did not."""

    batch: int
    fails_bytes: int
    fits_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket(Row):
    """On a whole card ``batch_fits`` ran and ``batch_fails`` did not."""

    batch_fits: int
    batch_fails: int
    capacity_bytes: int


def read_folder(folder: Path) -> Iterator[Peak | Cap | Bracket]:
    """Every row of the three files, as far as they are in ``folder``.

    Raises ``FileNotFoundError`` when none is, and ``ValueError`` naming file and line where a number is none.
    """
    readers: Mapping[str, Callable[[Mapping[str, str]], Peak | Cap | Bracket]] = {
        "peaks.csv": _peak,
        "caps.csv": _cap,
        "brackets.csv": _bracket,
    }
    found = [name for name in readers if (folder / name).exists()]
    if not found:
        raise FileNotFoundError(f"{folder} holds none of {', '.join(readers)}")
    for name in found:
        with (folder / name).open(newline="") as file:
            for line, cells in enumerate(csv.DictReader(file), start=2):
                try:
                    yield readers[name](cells)
                except (KeyError, ValueError) as problem:
                    raise ValueError(f"{name}, line {line}: {problem!r}") from None


def _common(cells: Mapping[str, str], group: str) -> dict[str, Any]:
    digest = hashlib.sha256(json.dumps(dict(cells), sort_keys=True).encode()).hexdigest()[:16]
    try:
        job, problem = _job(cells), None
    except Unsupported as reason:
        job, problem = None, str(reason)
    return {"id": cells["id"], "group": group, "job": job, "digest": digest, "problem": problem}


def _peak(cells: Mapping[str, str]) -> Peak:
    source = cells["id"].rpartition("-")[0]
    group = f"{source} text" if cells["library"] == "transformers" else source
    said = {name: cells.get(f"{name}_bytes") or "" for name in OTHERS}
    return Peak(
        **_common(cells, group),
        batch=int(cells["batch"]),
        measured_bytes=int(cells["peak_bytes"]),
        with_context="context included" in cells["measured"],
        others={name: int(value) for name, value in said.items() if value},
    )


def _cap(cells: Mapping[str, str]) -> Cap:
    return Cap(
        **_common(cells, "caps"),
        batch=int(cells["batch"]),
        fails_bytes=int(cells["cap_fails_bytes"]),
        fits_bytes=int(cells["cap_fits_bytes"]),
    )


def _bracket(cells: Mapping[str, str]) -> Bracket:
    twin = " of torchvision twins" if cells.get("torchvision_twin") else ""
    return Bracket(
        **_common(cells, f"brackets {cells['layout']}{twin}"),
        batch_fits=int(cells["batch_fits"]),
        batch_fails=int(cells["batch_fails"]),
        capacity_bytes=int(cells["capacity_bytes"]),
    )


def _job(cells: Mapping[str, str]) -> Job:
    size = cells.get("image_size") or ""
    return Job(
        library=cells["library"],
        model=cells["model"],
        model_args={name: _value(text) for name, text in _pairs(cells.get("model_args") or "")},
        image_size=int(size) if size.isdigit() else None,
        sequence=int(cells["seq_len"]) if cells.get("seq_len") else None,
        card=_card(cells["card"]).name,
        protocol=_protocol(cells),
    )


def _protocol(cells: Mapping[str, str]) -> Protocol:
    """What the row says; for the rest the custom of its source, told by the columns that the source has."""
    words = (_before_note(cells["optimizer"]) + " " + (cells.get("optimizer_args") or "").replace(",", " ")).split()
    if not words:
        raise Unsupported("no optimizer is named")
    optimizer, arguments = words[0], {name: _value(text) for name, text in _pairs(" ".join(words[1:]))}
    if optimizer == "sgd-momentum":
        optimizer, arguments = "sgd", {"momentum": 0.9, **arguments}
    common: dict[str, Any] = {
        "precision": _precision(cells["precision"]),
        "channels_last": cells.get("layout") == "nhwc",
        "optimizer": optimizer,
        "optimizer_args": arguments,
    }
    if "batch_fits" in cells:  # timm's benchmark.py of 2022
        arguments.setdefault("foreach", False)  # torch 1.x stepped through the parameters one by one
        return Protocol(
            **common, keeps_gradients=True, backward_in_autocast=True, fused_attention=False, cudnn_benchmark=True
        )
    zero_grad, keeps = _zero_grad(cells.get("zero_grad") or "none-before-forward")
    steps = cells.get("steps") or "4"
    return Protocol(
        **common,
        zero_grad=zero_grad,
        keeps_gradients=keeps,
        # torch's own recipe for fp16; the published rows in fp32 have none
        scales_gradients=common["precision"] == "amp-fp16",
        takes_maximum=cells["id"].startswith(("xmem", "cap")),
        cudnn_benchmark=cells["id"].startswith("gmn-timm"),  # timm's train.py sets it
        steps=int(steps) if steps.isdigit() else 3,
    )


def _zero_grad(text: str) -> tuple[ZeroGrad, bool]:
    """(when gradients are dropped, whether they are zeroed and stay).

    "After backward" is taken to be after the optimizer's step: before it nothing would be learnt.
    """
    how, _, when = text.partition("-")
    place = {
        "before-forward": "before-forward",
        "before-backward": "before-backward",
        "after-backward": "after-step",
        "after-step": "after-step",
    }.get(when)
    if how not in ("none", "zero", "kept") or place is None:
        raise Unsupported(f"zero_grad is {text!r}")
    return place, how != "none"  # type: ignore[return-value]


def _precision(text: str) -> Precision:
    known: Mapping[str, Precision] = {
        "fp32": "fp32",
        "fp32-tf32conv": "fp32",
        "amp-fp16": "amp-fp16",
        "amp-bf16": "amp-bf16",
        "bf16": "bf16",
    }
    bare = _before_note(text)
    if bare not in known:
        raise Unsupported(f"precision is {text!r}")
    return known[bare]


def _card(name: str) -> Card:
    """The catalogue's card; sources write its size behind the name, which the catalogue has only where it must."""
    for attempt in (name, name.rpartition(" ")[0]):
        try:
            return card(attempt)
        except SweepError:
            continue
    raise Unsupported(f"no card {name!r} in the catalogue")


def _before_note(text: str) -> str:
    """``text`` without a remark in brackets."""
    return text.partition("(")[0].strip()


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """``a=1 b`` or ``a=1,b`` as ("a", "1"), ("b", "True")."""
    for word in text.replace(",", " ").split():
        name, _, value = word.partition("=")
        yield name, value or "True"


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

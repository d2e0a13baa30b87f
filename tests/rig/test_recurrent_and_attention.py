"""Recurrent networks and attention by cuDNN, on meta tensors against the stand-in runtime, event by event.

Beside the loop of ``test_against_simulation``: networks whose weights are one buffer, cast to half or not, packed or
not; and attention where cuDNN's comes first.  What PyTorch would choose is asked of PyTorch itself, for many shapes.
The temporary space of recurrent networks is an estimate on both sides; everything else here is PyTorch's own doing.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sweeper.trial import Mode, Precision
from sweeper.worker.devices import Device, map_tensors
from sweeper.worker.devices.simulated import SimulatedDevice
from sweeper.worker.tracing.selection import AttentionKernel, attention_kernel
from tests.rig.build import Rig
from tests.rig.histories import answer, assert_same_events, in_children, recorded_training, recordings_of

pytestmark = pytest.mark.rig

_CARDS = {75: "t4", 80: "a100-40gb", 89: "rtx4060", 90: "h100"}
_WIDTH, _CLASSES, _TIME, _BATCH = 48, 24, 10, 4


class Tagger(nn.Module):
    """A recurrent network over vectors, a class for each time step; ``anew`` flattens its weights in every forward."""

    def __init__(self, network: Callable[..., nn.RNNBase], packed: bool, anew: bool, options: dict[str, Any]) -> None:
        super().__init__()
        self.network = network(_WIDTH, 32, **options)
        self.packed, self.anew = packed, anew
        directions = 2 if self.network.bidirectional else 1
        self.head = nn.Linear(directions * (self.network.proj_size or 32), _CLASSES)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        if self.anew:
            self.network.flatten_parameters()
        batch_first = self.network.batch_first
        if batch_first:
            vectors = vectors.transpose(0, 1).contiguous()
        if self.packed:
            lengths = torch.tensor([10, 8, 8, 3], device="cpu")
            packed = nn.utils.rnn.pack_padded_sequence(vectors, lengths, batch_first=batch_first)
            hidden = self.network(packed)[0].data
        else:
            hidden = self.network(vectors)[0].flatten(0, 1)
        return self.head(hidden)  # type: ignore[no-any-return]


class Cells(nn.Module):
    """A cell stepped by hand."""

    def __init__(self, cell: Callable[..., nn.RNNCellBase], biased: bool = True) -> None:
        super().__init__()
        self.cell = cell(_WIDTH, 32, bias=biased)
        self.head = nn.Linear(32, _CLASSES)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        state, outputs = None, []
        for vector in vectors:
            state = self.cell(vector, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return self.head(torch.cat(outputs))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Self-attention, its queries, keys and values one product; ``mask`` is none, causal, added or allowed."""

    def __init__(self, mask: str, dropout: float) -> None:
        super().__init__()
        self.inputs, self.outputs, self.head = nn.Linear(_WIDTH, 192), nn.Linear(64, 64), nn.Linear(64, _CLASSES)
        self.mask, self.dropout = mask, dropout

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        vectors = vectors.transpose(0, 1).contiguous()
        batch, time, _ = vectors.shape
        query, key, value = self.inputs(vectors).view(batch, time, 3, 4, 16).permute(2, 0, 3, 1, 4)
        added = None
        if self.mask in ("added", "allowed"):
            added = query.new_zeros(batch, 1, time, time, dtype=torch.bool if self.mask == "allowed" else query.dtype)
        mixed = F.scaled_dot_product_attention(
            query, key, value, added, self.dropout if self.training else 0.0, self.mask == "causal"
        )
        return self.head(self.outputs(mixed.transpose(1, 2).reshape(batch, time, 64))).flatten(0, 1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Job:
    """``capability`` is ten times the card's."""

    name: str
    make: Callable[[], nn.Module] = field(compare=False)
    precision: Precision = "fp32"
    mode: Mode = "train"
    capability: int = 89

    def __str__(self) -> str:
        return f"{self.name}-{self.precision}-{self.mode}-{self.capability}"


def tagger(
    network: Callable[..., nn.RNNBase], *, packed: bool = False, anew: bool = False, **options: Any
) -> Callable[[], nn.Module]:
    return lambda: Tagger(network, packed, anew, options)


def attention(mask: str = "none", dropout: float = 0.0) -> Callable[[], nn.Module]:
    return lambda: Attention(mask, dropout)


_DEEP: dict[str, Any] = {"num_layers": 2, "dropout": 0.3, "bidirectional": True, "batch_first": True}
_GATED: tuple[Callable[..., nn.RNNBase], ...] = (nn.LSTM, nn.GRU)
JOBS = [
    *(Job(network.__name__, tagger(network)) for network in (nn.RNN, nn.LSTM, nn.GRU)),
    Job("relu", tagger(nn.RNN, nonlinearity="relu", num_layers=3)),
    *(Job(f"deep-{network.__name__}", tagger(network, **_DEEP)) for network in (nn.LSTM, nn.GRU)),
    Job("unbiased", tagger(nn.GRU, bias=False, bidirectional=True)),
    Job("projected", tagger(nn.LSTM, proj_size=16, num_layers=2)),
    Job("projected-unbiased", tagger(nn.LSTM, proj_size=16, bias=False)),
    *(Job("flattened-anew", tagger(nn.LSTM, anew=True), precision) for precision in ("fp32", "amp-fp16", "bf16")),
    Job("packed", tagger(nn.LSTM, packed=True)),
    Job("packed-deep", tagger(nn.GRU, packed=True, **_DEEP)),
    Job("inference", tagger(nn.LSTM), mode="inference"),
    Job("inference-deep", tagger(nn.LSTM, **_DEEP), "amp-fp16", "inference"),
    *(Job("cast", tagger(nn.LSTM), precision) for precision in ("amp-fp16", "amp-bf16", "bf16")),
    *(Job(f"stepped-{network.__name__}", tagger(network, **_DEEP), "bf16", capability=75) for network in _GATED),
    Job("stepped-projected", tagger(nn.LSTM, proj_size=16, bias=False), "bf16", "inference", 75),
    Job("lstm-cell", lambda: Cells(nn.LSTMCell)),
    Job("lstm-cell-unbiased", lambda: Cells(nn.LSTMCell, False), "amp-bf16"),
    Job("gru-cell", lambda: Cells(nn.GRUCell)),
    Job("gru-cell-unbiased", lambda: Cells(nn.GRUCell, False), "bf16"),
    Job("cast-deep", tagger(nn.LSTM, **_DEEP), "amp-fp16"),
    Job("cast-unbiased", tagger(nn.GRU, bias=False), "amp-bf16"),
    Job("cast-projected", tagger(nn.LSTM, proj_size=16), "amp-fp16"),
    Job("cast-packed", tagger(nn.RNN, packed=True), "amp-fp16", capability=75),
    *(Job("attention", attention(), precision, capability=90) for precision in ("fp32", "amp-bf16", "bf16")),
    Job("attention", attention(), "amp-fp16", "inference", capability=90),
    *(Job(f"attention-{mask}", attention(mask), "bf16", capability=90) for mask in ("causal", "added", "allowed")),
    *(Job(f"attention-{mask}", attention(mask), "amp-fp16", capability=75) for mask in ("added", "allowed")),
    *(Job(f"attention-{p}", attention(dropout=p), "amp-bf16", capability=90) for p in (0.1, 0.125)),
]


@dataclass(frozen=True)
class Call:
    """A call of ``scaled_dot_product_attention``: shapes of query, key and value, and of the mask."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    learns: bool
    dropout: float
    mask: tuple[int, ...] | Literal["causal"] | None = None
    mask_dtype: torch.dtype | None = None
    mask_learns: bool = False

    def tensors(self, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        def make(shape: tuple[int, ...]) -> torch.Tensor:
            return torch.empty(shape, dtype=self.dtype, device=device, requires_grad=self.learns)

        query, key, value = map(make, self.shapes)
        if self.mask is None or self.mask == "causal":
            return query, key, value, None
        dtype = self.mask_dtype or self.dtype
        mask = torch.empty(self.mask, dtype=dtype, device=device, requires_grad=self.mask_learns)
        return query, key, value, mask


def calls() -> Iterator[Call]:
    """Heads, lengths, types, dropout and masks on either side of what the kernels' checks ask for."""
    for dtype, learns, dropout in product(
        (torch.float16, torch.bfloat16, torch.float32), (False, True), (0.0, 0.1, 0.125)
    ):
        for width in (20, 40, 64, 128, 192, 200, 224, 256, 264):
            for queries, keys in ((16, 16), (1, 16), (16, 1), (16, 24)):
                query, key = (2, 4, queries, width), (2, 4, keys, width)
                for value in (key, (2, 4, keys, 128)):
                    shapes = (query, key, value)
                    yield Call(shapes, dtype, learns, dropout)
                    yield Call(shapes, dtype, learns, dropout, "causal")
        square = ((2, 4, 16, 64),) * 3
        for mask in ((16, 16), (2, 1, 16, 16), (1, 4, 1, 16), (4, 16, 16)):
            yield Call(square, dtype, learns, dropout, mask)
            yield Call(square, dtype, learns, dropout, mask, mask_dtype=torch.bool)
            yield Call(square, dtype, learns, dropout, mask, mask_learns=True)


def choices() -> list[int]:
    """The kernel that PyTorch chooses for each of ``calls``, by the number of its ``SDPBackend``."""
    found = []
    for call in calls():
        query, key, value, mask = call.tensors("cuda")
        found.append(torch._fused_sdp_choice(query, key, value, mask, call.dropout, call.mask == "causal"))
    return found


def train(job: Job, device: Device) -> None:
    """Two steps of Adam on ``device``.

    No gradient scaler: it looks at values to see whether to step, and the stand-in has none to show.
    """
    learns = job.mode == "train"
    cast = torch.bfloat16 if job.precision == "bf16" else torch.float32
    with device.session():
        built = job.make().to(cast).train(learns)
        with device.phase("setup", 0):
            model = device.place(built)
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(2):
            with device.phase("inputs", step):
                with device.build_context():
                    made = torch.zeros(_TIME, _BATCH, _WIDTH, dtype=cast), torch.zeros(40, dtype=torch.long)
                vectors, targets = device.place_batch(map_tensors(made, lambda tensor: tensor))
            with device.autocast(job.precision), torch.set_grad_enabled(learns):
                with device.phase("forward", step):
                    outputs = model(vectors)
                if learns:
                    with device.phase("loss", step):
                        loss = F.cross_entropy(outputs, targets[: len(outputs)])
            if learns:
                with device.phase("backward", step):
                    loss.backward()
                with device.phase("step", step):
                    optimizer.step()
                with device.phase("zero_grad", step):
                    optimizer.zero_grad(set_to_none=True)


def quietly_train(job: Job, device: Device) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        train(job, device)


def main() -> None:
    """A recording of each job and choice: ``python -m tests.rig.test_recurrent_and_attention FOLDER``."""
    recordings: list[tuple[str, dict[str, str], Callable[[], Any]]] = [
        *(
            (str(job), {"RIG_CC": str(job.capability)}, partial(recorded_training, partial(quietly_train, job)))
            for job in JOBS
        ),
        *((f"choices-{capability}", {"RIG_CC": str(capability)}, choices) for capability in _CARDS),
    ]
    in_children(Path(sys.argv[1]), recordings)


@pytest.fixture(scope="module")
def recorded(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one history a job, from the stand-in runtime."""
    return recordings_of("tests.rig.test_recurrent_and_attention", rig, tmp_path_factory.mktemp("histories"))


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_the_simulation_allocates_what_cuda_allocates_in_the_same_order(job: Job, recorded: Path) -> None:
    truth = answer(recorded, str(job))
    device = SimulatedDevice(_CARDS[job.capability], record=True, cudnn_workspaces=False)
    train(job, device)
    assert_same_events(device, truth, _BATCH)


@pytest.mark.parametrize("capability", _CARDS)
def test_the_kernel_for_attention_is_the_one_that_pytorch_chooses(capability: int, recorded: Path) -> None:
    names: list[AttentionKernel] = ["math", "flash", "efficient", "cudnn"]  # SDPBackend, ATen/SDPBackend.h
    said, real = [], [names[number] for number in answer(recorded, f"choices-{capability}")]
    for call in calls():
        query, key, value, mask = call.tensors("meta")
        said.append(
            attention_kernel(
                query,
                key,
                value,
                mask,
                dropout_p=call.dropout,
                is_causal=call.mask == "causal",
                compute_capability=(capability // 10, capability % 10),
            )
        )
    wrong = [pair for pair in zip(calls(), said, real, strict=True) if pair[1] != pair[2]]
    assert not wrong, (len(wrong), wrong[:3])


if __name__ == "__main__":
    main()

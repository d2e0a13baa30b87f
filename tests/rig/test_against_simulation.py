"""The step on meta tensors against the same step on ``cuda``: the same allocations and frees, in the same order.

The stand-in runtime runs PyTorch's own CUDA operators, autograd and allocator, so its history is the truth for all
that PyTorch allocates by itself.  Only the order of frees that follow one another directly is left open: autocast's
cache is a hash table, and the frees of one moment do not change where anything goes.

Differences that are known, and why their cases are not here: ``nn.MultiheadAttention`` and
``nn.TransformerEncoderLayer`` in evaluation without gradients take a fused "fast path" on CUDA (equal peaks in
ViT-B/16, 0.3 % apart in a tiny transformer); sums over very many rows take a scratch buffer that depends on the number
of multiprocessors.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from sweeper.trial import Mode, Optimizer, Precision
from sweeper.worker.devices import Device, map_tensors
from sweeper.worker.devices.simulated import SimulatedDevice
from tests.rig.build import Rig

pytestmark = pytest.mark.rig

_ROOT = Path(__file__).parents[2]
_CARDS = {75: "t4", 80: "a100-40gb", 89: "rtx4060", 90: "h100", 120: "rtx5060ti-8gb"}
_OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True)
class Job:
    """One way to train; ``capability`` is ten times the card's."""

    model: str
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"
    mode: Mode = "train"
    capability: int = 89

    def __str__(self) -> str:
        return "-".join(map(str, asdict(self).values()))


JOBS = [
    Job("resnet18"),
    Job("resnet18", "fp32", "adam", capability=90),
    Job("resnet18", "amp-fp16", "sgd", capability=75),
    Job("resnet18", "amp-bf16", "adamw"),
    Job("resnet18", "bf16"),
    Job("resnet18", mode="inference"),
    Job("resnet18", "amp-fp16", mode="inference"),
    Job("resnet18", mode="inference", capability=120),
    Job("channels_last", "amp-fp16"),
    Job("resnet50", "amp-fp16", "adamw"),
    Job("mobilenet_v2", "amp-fp16", "adam"),
    Job("mobilenet_v3_small"),
    Job("efficientnet_b0"),
    Job("shufflenet_v2_x1_0", "amp-fp16"),
    Job("densenet121"),
    Job("squeezenet1_1"),
    Job("regnet_y_400mf", "amp-bf16"),
    *(Job("encoder", precision, "adamw", capability=89) for precision in ("fp32", "amp-fp16", "amp-bf16", "bf16")),
    Job("encoder", "amp-fp16", "adam", capability=75),
    Job("encoder", "amp-bf16", "adam", capability=90),
    *(Job("decoder", precision, "adamw", capability=80) for precision in ("fp32", "amp-fp16", "amp-bf16", "bf16")),
    Job("decoder", "fp32", mode="inference"),
]


class Encoder(nn.Module):
    """PyTorch's own encoder layers over tokens, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(512, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, 512)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden).flatten(0, 1)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Causal attention as language models write it, the head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(512, 64)
        self.norm, self.norm_again = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.head = nn.Linear(64, 512, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens)
        batch, length, width = hidden.shape
        query, key, value = self.qkv(self.norm(hidden)).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden = hidden + F.dropout(mixed, 0.1, self.training)
        hidden = hidden + self.down(F.gelu(self.up(self.norm_again(hidden))))
        return self.head(hidden).flatten(0, 1)  # type: ignore[no-any-return]


def build(name: str) -> nn.Module:
    if name in ("encoder", "decoder"):
        return Encoder() if name == "encoder" else Decoder()
    if name == "channels_last":
        return torchvision.models.resnet18().to(memory_format=torch.channels_last)  # type: ignore[no-any-return]
    return torchvision.models.get_model(name)  # type: ignore[no-any-return]


def make_batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name in ("encoder", "decoder"):
        return torch.zeros(4, 32, dtype=torch.long), torch.zeros(128, dtype=torch.long)
    images = torch.zeros(4, 3, 96, 96)
    if name == "channels_last":
        images = images.to(memory_format=torch.channels_last)
    return images, torch.zeros(4, dtype=torch.long)


def train(job: Job, device: Device) -> None:
    """Three steps of an ordinary training loop on ``device``."""
    learns = job.mode == "train"
    cast = torch.bfloat16 if job.precision == "bf16" else torch.float32
    with device.session():
        built = build(job.model).to(cast).train(learns)  # on the CPU: some constructors need values
        with device.phase("setup", 0):
            model = device.place(built)
        optimizer = _OPTIMIZERS[job.optimizer](model.parameters(), lr=1e-3)
        scaler = device.grad_scaler(enabled=job.precision == "amp-fp16" and learns)
        for step in range(3):
            with device.phase("inputs", step):
                with device.build_context():
                    made = map_tensors(make_batch(job.model), lambda t: t.to(cast) if t.is_floating_point() else t)
                images, targets = device.place_batch(made)
            with device.autocast(job.precision), torch.set_grad_enabled(learns):
                with device.phase("forward", step):
                    outputs = model(images)
                if learns:
                    with device.phase("loss", step):
                        loss = F.cross_entropy(outputs, targets)
            if learns:
                with device.phase("backward", step):
                    scaler.scale(loss).backward()
                with device.phase("step", step):
                    scaler.step(optimizer)
                    scaler.update()
                with device.phase("zero_grad", step):
                    optimizer.zero_grad(set_to_none=True)


def record_on_cuda(job: Job, answer: Path) -> None:
    """The history of PyTorch's own allocator, as events and sizes.  Runs in a process of its own."""
    from sweeper.worker.devices.cuda import CudaDevice

    device = CudaDevice(index=0, memory_limit_bytes=None)
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
    train(job, device)
    numbers: dict[int, int] = {}
    events: list[int] = []
    sizes: list[int] = []
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        if entry["action"] == "alloc":
            numbers[entry["addr"]] = len(sizes)
            events.append(len(sizes))
            sizes.append(entry["size"])
        elif entry["action"] == "free_completed":
            events.append(~numbers.pop(entry["addr"]))
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    answer.write_text(json.dumps({"events": events, "sizes": sizes, "peaks": peaks}))


def main() -> None:
    """Import torch once, then a forked child for each job: ``python -m tests.rig.test_against_simulation FOLDER``."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    for job in JOBS:
        child = os.fork()
        if child == 0:
            os.environ["RIG_CC"] = str(job.capability)
            try:
                record_on_cuda(job, folder / f"{job}.json")
            except Exception:
                (folder / f"{job}.error").write_text(traceback.format_exc())
            os._exit(0)
        os.waitpid(child, 0)


@pytest.fixture(scope="module")
def recorded(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one history a job, from the stand-in runtime."""
    folder = tmp_path_factory.mktemp("histories")
    environment = {**os.environ, **rig.environment(80 << 30)}
    command = [sys.executable, "-m", "tests.rig.test_against_simulation", str(folder)]
    done = subprocess.run(command, env=environment, cwd=_ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def ordered(events: list[int], sizes: list[int]) -> Iterator[tuple[int, int]]:
    """(event, bytes), frees that follow one another directly sorted."""
    run: list[int] = []
    for event in [*events, None]:
        if event is not None and event < 0:
            run.append(event)
            continue
        yield from ((freed, sizes[~freed]) for freed in sorted(run))
        run = []
        if event is not None:
            yield event, sizes[event]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_the_simulation_allocates_what_cuda_allocates_in_the_same_order(job: Job, recorded: Path) -> None:
    failure = recorded / f"{job}.error"
    assert not failure.exists(), failure.read_text()
    truth: dict[str, Any] = json.loads((recorded / f"{job}.json").read_text())
    device = SimulatedDevice(_CARDS[job.capability], record=True, cudnn_workspaces=False)
    train(job, device)
    trace = device.trace(4)
    said = list(ordered(list(trace.events), list(trace.sizes)))
    real = list(ordered(truth["events"], truth["sizes"]))
    for index, (ours, theirs) in enumerate(zip(said, real, strict=False)):
        event = ours[0]
        assert ours == theirs, (index, trace.label(event if event >= 0 else ~event))
    assert len(said) == len(real)
    usage = device.usage()
    assert [usage.peak_allocated_bytes, usage.peak_reserved_bytes] == truth["peaks"]


if __name__ == "__main__":
    main()

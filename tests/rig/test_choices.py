"""The choices of a training job on the stand-in runtime and on meta tensors: the same events, in the same order.

Here the worker's own loop trains, from a spec, on either side: what is held against CUDA is what a trial runs.
"""

import importlib.util
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.cards import card
from sweeper.trial import TrialSpec
from sweeper.worker.devices import Device
from sweeper.worker.devices.simulated import SimulatedDevice
from sweeper.worker.meter import Meter
from sweeper.worker.models import Workload
from sweeper.worker.training import train
from sweeper.worker.workload import load
from tests.rig.build import Rig
from tests.rig.histories import answer, assert_same_events, in_children, recorded_training, recordings_of

pytestmark = pytest.mark.rig

_CARD, _CAPABILITY, _BATCH = "rtx4060", 89, 4
_HERE = "tests.rig.test_choices"


class Attention(nn.Module):
    """Two layers of self-attention over tokens; ``mask`` is none, causal, added or allowed."""

    def __init__(self, mask: str, dropout: float, shared: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 64)
        self.layers = nn.ModuleList(Layer(mask, dropout, shared) for _ in range(2))
        self.head = nn.Linear(64, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden).flatten(0, 1)  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, mask: str, dropout: float, shared: int) -> None:
        super().__init__()
        self.mask, self.dropout, self.shared = mask, dropout, shared
        self.norm = nn.LayerNorm(64)
        self.query, self.key_value, self.out = nn.Linear(64, 64), nn.Linear(64, 128 // shared), nn.Linear(64, 64)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, time, _ = hidden.shape
        normed = self.norm(hidden)
        query = self.query(normed).view(batch, time, 4, 16).transpose(1, 2)
        key, value = self.key_value(normed).view(batch, time, 2, 4 // self.shared, 16).permute(2, 0, 3, 1, 4)
        mask = None
        if self.mask in ("added", "allowed"):
            mask = query.new_zeros(batch, 1, time, time, dtype=None if self.mask == "added" else bool)
        mixed = F.scaled_dot_product_attention(
            query, key, value, mask, self.dropout, self.mask == "causal", enable_gqa=self.shared > 1
        )
        return hidden + self.out(mixed.transpose(1, 2).reshape(batch, time, 64))  # type: ignore[no-any-return]


def attention(mask: str = "none", dropout: float = 0.0, shared: int = 1, seq_len: int = 24) -> Workload:
    """A workload of the network above, for specs that name it."""
    import torch

    def make_batch(size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(size, seq_len, dtype=torch.long), torch.zeros(size * seq_len, dtype=torch.long)

    return Workload(model=Attention(mask, dropout, shared), make_batch=make_batch, loss=F.cross_entropy)


def a_job(model: str = "resnet18", **choices: Any) -> TrialSpec:
    return TrialSpec(model=model, batch_size=_BATCH, device="cuda", **choices)


def _attending(precision: str, **arguments: Any) -> TrialSpec:
    spec = a_job(f"{_HERE}:attention", attention="math", model_args=arguments)
    return replace(spec, precision=precision, optimizer="adamw")  # type: ignore[arg-type]


_SMALL: dict[str, Any] = {"image_size": 64}
JOBS: dict[str, TrialSpec] = {
    "checkpointed": a_job(checkpointing=True, optimizer="adamw", **_SMALL),
    "checkpointed-amp": a_job("mobilenet_v2", checkpointing=True, precision="amp-fp16", **_SMALL),
    "checkpointed-chain": a_job("small-cnn", checkpointing=True),
    "checkpointed-transformer": a_job("tiny-transformer", checkpointing=True, precision="amp-bf16", optimizer="adamw"),
    "frozen": a_job(freeze=("conv1", "bn1", "layer[12]"), optimizer="adam", **_SMALL),
    "frozen-checkpointed": a_job(freeze=("layer1",), checkpointing=True, **_SMALL),
    "accumulated": a_job(accumulate=3, optimizer="adam", **_SMALL),
    "accumulated-amp": a_job("tiny-transformer", accumulate=2, precision="amp-fp16", optimizer="adamw"),
    "channels-last": a_job(channels_last=True, **_SMALL),
    "channels-last-amp": a_job("mobilenet_v2", channels_last=True, precision="amp-fp16", **_SMALL),
    "lora": a_job("tiny-transformer", lora_rank=4, optimizer="adamw"),
    "lora-amp": a_job("tiny-transformer", lora_rank=4, optimizer="adamw", precision="amp-bf16", checkpointing=True),
    "lora-convolutions": a_job(lora_rank=4, channels_last=True, **_SMALL),
    "lora-inference": a_job("tiny-transformer", lora_rank=4, mode="inference"),
    "flash": a_job("tiny-transformer", attention="flash", precision="amp-bf16"),
    "efficient": a_job("tiny-transformer", attention="efficient", precision="amp-bf16"),
    "math-transformer": a_job("tiny-transformer", attention="math", checkpointing=True),
    "math-inference": a_job("tiny-transformer", attention="math", mode="inference", precision="amp-fp16"),
    **{
        f"math-{mask}-{precision}": _attending(precision, mask=mask)
        for mask in ("none", "causal", "added", "allowed")
        for precision in ("fp32", "amp-fp16", "amp-bf16", "bf16")
    },
    "math-dropout": _attending("fp32", dropout=0.1),
    "math-dropout-bf16": _attending("bf16", dropout=0.1, mask="causal"),
    "math-shared": _attending("fp32", shared=2),
    "math-shared-amp": _attending("amp-bf16", shared=4, mask="allowed"),
}


def work(spec: TrialSpec, device: Device) -> None:
    with device.session():
        with device.build_context():
            workload = load(spec)
        train(spec, workload, device, Meter(device))


def missing(spec: TrialSpec) -> str | None:
    return "peft is not installed" if spec.lora_rank and importlib.util.find_spec("peft") is None else None


def main() -> None:
    """A recording of each job: ``python -m tests.rig.test_choices FOLDER``."""
    environment = {"RIG_CC": str(_CAPABILITY), "RIG_MULTIPROCESSORS": str(card(_CARD).multiprocessors)}
    in_children(
        Path(sys.argv[1]),
        (
            (name, environment, partial(recorded_training, partial(work, spec)))
            for name, spec in JOBS.items()
            if not missing(spec)
        ),
    )


@pytest.fixture(scope="module")
def recorded(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one history a job, from the stand-in runtime."""
    return recordings_of(_HERE, rig, tmp_path_factory.mktemp("histories"))


@pytest.mark.parametrize("name", JOBS)
def test_the_simulation_allocates_what_cuda_allocates_in_the_same_order(name: str, recorded: Path) -> None:
    spec = JOBS[name]
    if reason := missing(spec):
        pytest.skip(reason)
    device = SimulatedDevice(_CARD, record=True, cudnn_workspaces=False, reductions=True)
    work(replace(spec, device=f"sim:{_CARD}"), device)
    assert_same_events(device, answer(recorded, name), _BATCH, to_the_end=False)


if __name__ == "__main__":
    main()

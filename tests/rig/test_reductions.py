"""The scratch of reductions, on meta tensors against the stand-in runtime: every allocation and free, in order.

Shapes are drawn once from a fixed seed, on either side of where threads, warps and blocks begin to share; cards differ
in multiprocessors and in the threads of each.
"""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from sweeper.cards import card
from sweeper.worker.devices.simulated import SimulatedDevice
from tests.rig.build import Rig
from tests.rig.histories import answer, events_of, in_children, ordered, recordings_of

pytestmark = pytest.mark.rig

_CARDS = ("t4", "a100-40gb", "rtx4060")
_LONGEST = 50_000_000  # elements; nothing is computed, but the stand-in's memory is the machine's

aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    """An operator on a tensor of ``shape`` whose axes are then ordered as ``order``, from ``skip`` on in the last."""

    name: str
    work: Callable[..., Any]
    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None
    skip: int = 0
    dtype: torch.dtype = torch.float32

    def operand(self, device: str) -> torch.Tensor:
        whole = torch.empty(*self.shape[:-1], self.shape[-1] + self.skip, dtype=self.dtype, device=device)
        part = whole[..., self.skip :]
        return part.permute(self.order) if self.order else part


def layer_norm(tensor: torch.Tensor) -> Any:
    rows, width = tensor.shape
    mean, deviation = (torch.empty(rows, 1, device=tensor.device) for _ in range(2))
    weight = torch.empty(width, device=tensor.device, dtype=tensor.dtype)
    wanted = [True, True, True]
    return aten.native_layer_norm_backward(tensor, tensor, [width], mean, deviation, weight, weight, wanted)


def convolution(tensor: torch.Tensor) -> Any:
    weight = torch.empty(tensor.shape[1], 3, 1, 1, device=tensor.device, dtype=tensor.dtype)
    source = torch.empty(tensor.shape[0], 3, *tensor.shape[2:], device=tensor.device, dtype=tensor.dtype)
    one, none = [1, 1], [0, 0]
    sizes = [tensor.shape[1]]
    return aten.convolution_backward(tensor, source, weight, sizes, one, none, one, False, none, 1, [False, True, True])


def cases() -> Iterator[Case]:
    draw = random.Random(5)
    lengths = (1, 2, 3, 7, 16, 24, 64, 96, 100, 128, 384, 768, 1000, 3136, 12544, 50000)
    for number in range(500):
        axes = draw.choice((1, 2, 2, 3, 4))
        shape = tuple(draw.choice(lengths) for _ in range(axes))
        order = tuple(draw.sample(range(axes), axes))
        over = [axis for axis in range(axes) if draw.random() < 0.6] or [draw.randrange(axes)]
        dtype = draw.choice((torch.float32, torch.float16, torch.bfloat16))
        reduce = draw.choice((torch.sum, torch.sum, torch.mean))
        skip = draw.choice((0, 0, 0, 1, 2))
        if torch.Size(shape).numel() <= _LONGEST:
            yield Case(f"{number}", lambda t, over=over, reduce=reduce: reduce(t, over), shape, order, skip, dtype)
    rows = (12544, 768)
    yield Case("everything", torch.sum, rows)
    yield Case("mean of everything", torch.mean, rows)
    yield Case("norm", torch.linalg.vector_norm, rows)
    yield Case("variance", lambda t: torch.var(t, 0), rows)
    yield Case("deviation", lambda t: torch.std(t), rows)
    yield Case("any", torch.any, rows, dtype=torch.bool)
    yield Case("all", torch.all, rows, dtype=torch.bool)
    yield Case("count", torch.sum, rows, dtype=torch.bool)
    yield Case("whole numbers", torch.sum, (100_000,), dtype=torch.int32)
    for many in ((65_536, 96), (65_600, 96), (70_001, 512), (131_072, 224), (70_000, 768)):
        yield Case(f"layer norm {many}", layer_norm, many)
    yield Case("layer norm in halves", layer_norm, (70_000, 96), dtype=torch.float16)
    yield Case("bias", convolution, (64, 96, 56, 56))
    yield Case("bias, channels last", convolution, (64, 28, 28, 96), (0, 3, 1, 2))


def record() -> list[tuple[list[int], list[int]]]:
    """For each case the allocator's history, as events and sizes."""
    torch.cuda.init()
    histories = []
    for case in cases():
        operand = case.operand("cuda")
        torch.cuda.memory._record_memory_history(max_entries=10_000, context=None)
        case.work(operand)
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        histories.append(events_of(entries))
    return histories


def main() -> None:
    """A recording of each card: ``python -m tests.rig.test_reductions FOLDER``."""
    in_children(
        Path(sys.argv[1]),
        (
            (
                name,
                {
                    "RIG_CC": card(name).compute_capability.replace(".", ""),
                    "RIG_MULTIPROCESSORS": str(card(name).multiprocessors),
                },
                record,
            )
            for name in _CARDS
        ),
    )


@pytest.fixture(scope="module")
def recorded(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recordings_of("tests.rig.test_reductions", rig, tmp_path_factory.mktemp("reductions"))


def simulated(case: Case, name: str) -> tuple[list[int], list[int]]:
    device = SimulatedDevice(name, record=True, cudnn_workspaces=False, reductions=True)
    with device.session(), device.phase("forward", 0):
        with device.build_context():
            operand = case.operand("meta")
        case.work(operand)
    trace = device.trace(1)
    return list(trace.events), list(trace.sizes)


@pytest.mark.parametrize("name", _CARDS)
def test_reductions_take_what_they_take_on_the_card(name: str, recorded: Path) -> None:
    real = answer(recorded, name)
    shared = 0
    for case, (events, sizes) in zip(cases(), real, strict=True):
        assert list(ordered(*simulated(case, name))) == list(ordered(events, sizes)), case
        shared += len(sizes) > 1
    assert shared > 60  # or the shapes have lost their point


if __name__ == "__main__":
    main()

"""The simulated device: what a trial on it says, and that a prediction from its traces says the same."""

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sweeper.allocator import CachingAllocator
from sweeper.cards import card
from sweeper.errors import UnknownName
from sweeper.prediction import predict
from sweeper.trace import AffineTrace, Trace, replay
from sweeper.trial import Precision
from sweeper.units import MIB
from sweeper.worker.devices.simulated import SimulatedDevice
from sweeper.worker.tracing import SimulatedOutOfMemory, releases

CARD = "rtx4060"


class Network(nn.Module):
    """A convolution, a residual block, attention, and a head that shares no shape with the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.attention = nn.TransformerEncoderLayer(32, 4, 128, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = F.max_pool2d(self.stem(images), 2)
        hidden = hidden + self.block(hidden)
        return self.head(self.attention(hidden.flatten(2).transpose(1, 2)).mean(1))  # type: ignore[no-any-return]


def train(
    device: SimulatedDevice, batch: int, *, precision: Precision = "fp32", adam: bool = True, steps: int = 3
) -> None:
    """A training loop as users write it, in the device's phases."""
    with device.session():
        with device.build_context():
            built = Network()
        model = device.place(built)
        optimizer: torch.optim.Optimizer
        optimizer = torch.optim.Adam(model.parameters()) if adam else torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = device.grad_scaler(enabled=precision == "amp-fp16")
        for step in range(steps):
            with device.phase("inputs", step):
                with device.build_context():
                    made = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
                images, targets = device.place_batch(made)
            with device.autocast(precision):
                with device.phase("forward", step):
                    outputs = model(images)
                with device.phase("loss", step):
                    loss = F.cross_entropy(outputs, targets)
            with device.phase("backward", step):
                scaler.scale(loss).backward()
            with device.phase("step", step):
                scaler.step(optimizer)
                scaler.update()
            with device.phase("zero_grad", step):
                optimizer.zero_grad(set_to_none=True)


def traced(batch: int, **how: Any) -> Trace:
    device = SimulatedDevice(CARD, record=True)
    train(device, batch, **how)
    return device.trace(batch)


def test_the_report_is_the_catalogues() -> None:
    said, catalogued = SimulatedDevice(CARD).report(), card(CARD)
    assert said.simulated
    assert (said.device, said.label) == (f"sim:{CARD}", catalogued.label)
    assert (said.total_bytes, said.compute_capability) == (catalogued.total_bytes, catalogued.compute_capability)
    assert said.capacity_bytes == catalogued.total_bytes - catalogued.context_bytes


def test_a_limit_lowers_the_capacity_and_never_raises_it() -> None:
    whole = SimulatedDevice(CARD).capacity_bytes
    assert SimulatedDevice(CARD, 100 * MIB).capacity_bytes == 100 * MIB
    assert SimulatedDevice(CARD, 10 * whole).capacity_bytes == whole


def test_an_unknown_card_is_an_error_with_the_close_names() -> None:
    with pytest.raises(UnknownName):
        SimulatedDevice("rtx4061")


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16"])
def test_what_is_measured_hangs_together(precision: Precision) -> None:
    device = SimulatedDevice(CARD)
    train(device, 8, precision=precision)
    usage, (at_peak, holdings) = device.usage(), device.breakdowns()
    assert at_peak.total_bytes == usage.peak_allocated_bytes <= usage.peak_reserved_bytes <= device.capacity_bytes
    parameters = sum(512 * -(-p.numel() * 4 // 512) for p in Network().parameters())
    assert holdings.weights == at_peak.weights == parameters
    assert holdings.gradients == parameters
    # Two states a parameter.  The square roots that foreach makes of them are gone when the step ends: workspace.
    assert 2 * parameters <= holdings.optimizer <= 2 * parameters + 4096
    assert holdings.workspace >= parameters
    assert holdings.buffers >= 5 * 2 * 128
    assert holdings.inputs >= 8 * 3 * 32 * 32 * 4
    assert device.seconds() is None
    assert device.loss_value(torch.empty((), device="meta")) is None
    assert device.allocator_retries() == 0


def test_everything_is_given_back_when_the_trial_is_over() -> None:
    device = SimulatedDevice(CARD)
    train(device, 4)
    gc.collect()
    workspaces = 2 * 8519680
    if releases.CUBLASLT_HAS_A_WORKSPACE and releases.CUBLASLT_KEEPS_ITS_WORKSPACE:  # as 2.9 does
        workspaces += MIB
    assert device.usage().allocated_bytes == workspaces


def test_the_peak_of_a_phase_is_read_between_resets() -> None:
    device = SimulatedDevice(CARD)
    with device.session():
        device.place(nn.Linear(1000, 1000, bias=False))
        with device.phase("inputs", 0):
            held = device.place_batch(torch.zeros(10, 1000))
        peak = device.usage().peak_allocated_bytes
        del held
        assert device.usage().peak_allocated_bytes == peak
        device.reset_peaks()
        assert device.usage().peak_allocated_bytes == device.usage().allocated_bytes < peak


def test_building_costs_nothing_and_placing_counts_in_the_order_of_module_to() -> None:
    device = SimulatedDevice(CARD, record=True)
    with device.session():
        with device.build_context():
            model = nn.Sequential(nn.Sequential(nn.Linear(10, 20)), nn.BatchNorm1d(20))
        assert device.usage().peak_allocated_bytes == 0
        device.place(model)
    trace = device.trace(1)
    moved: list[int] = []
    expected = nn.Sequential(nn.Sequential(nn.Linear(10, 20)), nn.BatchNorm1d(20))
    expected._apply(lambda tensor: (moved.append(tensor.numel() * tensor.element_size()), tensor)[1])  # type: ignore[func-returns-value]
    assert list(trace.sizes) == moved
    assert [trace.label(n).kind for n in range(len(moved))] == ["weights"] * 4 + ["buffers"] * 3
    assert [trace.label(n).module for n in (0, 2)] == ["0.0", "1"]


def test_a_model_built_on_the_cpu_is_placed_with_its_shared_parameters_still_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(100, 64)
            self.head = nn.Linear(64, 100, bias=False)
            self.head.weight = self.embedding.weight

    device = SimulatedDevice(CARD, record=True)
    with device.session():
        model = device.place(Tied())
    assert isinstance(model, Tied)
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.is_meta
    assert isinstance(model.head.weight, nn.Parameter)
    assert device.trace(1).sizes == (100 * 64 * 4,)


def test_a_batch_is_placed_anew_each_time_whatever_holds_its_tensors() -> None:
    device = SimulatedDevice(CARD)
    with device.session(), device.phase("inputs", 0):
        with device.build_context():
            batch = {"ids": torch.zeros(1000, dtype=torch.long), "more": (torch.zeros(1000), "name")}
        placed = [device.place_batch(batch) for _ in range(2)]
        assert device.usage().allocated_bytes == 2 * (8192 + 4096)
    assert placed[0]["more"][1] == "name"
    assert placed[0]["ids"].is_meta
    assert placed[0]["ids"].dtype == torch.long


def test_out_of_memory_says_what_and_where() -> None:
    device = SimulatedDevice(CARD, 100 * MIB)
    with pytest.raises(SimulatedOutOfMemory) as caught:
        train(device, 1024)
    detail = device.failure_detail(caught.value)
    assert detail.operator
    assert detail.module in dict(Network().named_modules())
    assert detail.requested_bytes is not None
    assert detail.free_bytes is not None
    assert detail.reserved_bytes is not None
    assert detail.free_bytes + detail.reserved_bytes <= card(CARD).total_bytes
    assert device.usage().peak_reserved_bytes <= 100 * MIB
    assert device.failure_detail(ValueError("another")).operator is None


@pytest.mark.parametrize("how", [{"precision": "fp32"}, {"precision": "amp-fp16", "adam": False}])
def test_a_replay_of_the_trace_says_what_the_trial_said(how: dict[str, Any]) -> None:
    device = SimulatedDevice(CARD)
    train(device, 16, **how)
    said = replay(traced(16, **how), CachingAllocator())
    assert said.peak_allocated_bytes == device.usage().peak_allocated_bytes
    assert said.peak_reserved_bytes == device.usage().peak_reserved_bytes
    assert (said.breakdown, said.holdings) == device.breakdowns()


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16"])
def test_traces_are_affine_in_the_batch_and_predict_the_boundary_of_trials(precision: Precision) -> None:
    small, larger, third = (traced(batch, precision=precision) for batch in (8, 16, 37))
    law = AffineTrace.join(small, larger, third)
    for limit in (60 * MIB, 150 * MIB):
        prediction = predict(law, capacity_bytes=limit, cap=4096)
        assert prediction.max_batch is not None
        device = SimulatedDevice(CARD, limit)
        train(device, prediction.max_batch, precision=precision)
        assert prediction.failure is not None
        refused = SimulatedDevice(CARD, limit)
        with pytest.raises(SimulatedOutOfMemory) as caught:
            train(refused, prediction.max_batch + 1, precision=precision)
        where = caught.value.label
        assert (where.operator, where.module, where.phase) == (
            prediction.failure.operator,
            prediction.failure.module,
            prediction.failure.phase,
        )


def test_a_trace_survives_json_whole() -> None:
    trace = traced(4)
    assert Trace.from_json(trace.to_json()) == trace


def test_reading_a_value_on_the_host_is_an_error_and_not_out_of_memory() -> None:
    device = SimulatedDevice(CARD)
    with device.session(), device.phase("forward", 0):
        placed = device.place_batch(torch.zeros(3))
        with pytest.raises(RuntimeError) as caught:
            placed.sum().item()
    assert not isinstance(caught.value, torch.OutOfMemoryError)


def test_the_allocator_is_configured_as_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    device = SimulatedDevice(CARD)
    assert device.report().allocator_conf == "expandable_segments:True"
    train(device, 8)
    plain = replay(traced(8), CachingAllocator())
    assert device.usage().peak_allocated_bytes <= plain.peak_allocated_bytes
    assert device.usage().peak_reserved_bytes % (2 * MIB) == 0

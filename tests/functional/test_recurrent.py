"""Recurrent networks and cuDNN's attention on meta tensors: laws that need no stand-in runtime to compare with."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sweeper.trace import AffineTrace, Trace
from sweeper.trial import Precision
from sweeper.worker.devices.simulated import SimulatedDevice
from sweeper.worker.tracing import releases
from sweeper.worker.tracing.recurrent_weights import MODES, Network, flattened, places_of
from sweeper.worker.tracing.reductions import Processors, blocks_of_rows

_KINDS: tuple[Any, ...] = (nn.RNN, nn.LSTM, nn.GRU)


def network_of(module: nn.RNNBase) -> Network:
    return Network(
        mode=MODES[module.mode],
        input=module.input_size,
        hidden=module.hidden_size,
        projection=module.proj_size,
        layers=module.num_layers,
        directions=2 if module.bidirectional else 1,
    )


@st.composite
def modules(draw: st.DrawFn) -> nn.RNNBase:
    kind, size = draw(st.sampled_from(_KINDS)), st.integers(1, 9)
    hidden = draw(st.integers(2, 9))
    projection = draw(st.integers(0, hidden - 1)) if kind is nn.LSTM else 0
    options = {"num_layers": draw(st.integers(1, 3)), "bias": draw(st.booleans()), "bidirectional": draw(st.booleans())}
    if projection:
        options["proj_size"] = projection
    with torch.device("meta"):
        return kind(draw(size), hidden, **options)  # type: ignore[no-any-return]


@settings(max_examples=60, deadline=None)
@given(modules())
def test_the_parts_of_the_weight_space_meet_and_fit_the_parameters(module: nn.RNNBase) -> None:
    network = network_of(module)
    parts = sorted(part for layer in network.places() for part in layer)
    ends = [offset + elements for offset, elements in parts]
    assert [offset for offset, _ in parts] == [0, *ends[:-1]]
    assert ends[-1] == network.weight_elements()
    per_layer = len(list(module.parameters())) // (network.layers * network.directions)
    sizes = [elements for _, elements in places_of(network, per_layer)]
    assert sizes == [parameter.numel() for parameter in module.parameters()]


@settings(max_examples=30, deadline=None)
@given(modules())
def test_a_placed_network_is_one_buffer_with_room_for_two_biases(module: nn.RNNBase) -> None:
    network = network_of(module)
    shapes = {name: (parameter.shape, parameter.requires_grad) for name, parameter in module.named_parameters()}
    device = SimulatedDevice("rtx4060", record=True)
    with device.session(), device.phase("setup", 0):
        device.place(module)
    assert {name: (p.shape, p.requires_grad) for name, p in module.named_parameters()} == shapes
    storages = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    assert len(storages) == 1
    rounded = -(-4 * network.weight_elements() // 512) * 512
    assert device.usage().allocated_bytes == rounded
    per_layer = len(shapes) // (network.layers * network.directions)
    assert flattened(list(module.parameters()), network, per_layer) is not None


def trained(batch: int, precision: Precision = "fp32", **options: Any) -> tuple[Trace, nn.LSTM, torch.Tensor]:
    """Two steps over sequences of seven; the trace, the network and its last output."""
    device = SimulatedDevice("rtx4060", record=True)
    with device.session():
        with device.phase("setup", 0):
            network = nn.LSTM(16, 8, **options)
            device.place(network)
        optimizer = torch.optim.Adam(network.parameters())
        for step in range(2):
            with device.phase("inputs", step), device.build_context():
                made = torch.zeros(7, batch, 16)
            source = device.place_batch(made)
            with device.autocast(precision), device.phase("forward", step):
                output = network(source)[0]
            with device.phase("backward", step):
                output.float().sum().backward()
            with device.phase("step", step):
                optimizer.step()
                gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
                storages = {gradient.untyped_storage()._cdata for gradient in gradients}
                assert len(storages) == (1 if precision == "fp32" else len(list(network.parameters())))
                optimizer.zero_grad()
    return device.trace(batch), network, output


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_a_recurrent_step_is_affine_in_the_batch(precision: Precision) -> None:
    options = {"num_layers": 2, "dropout": 0.5, "bidirectional": True}
    law = AffineTrace.join(*(trained(batch, precision, **options)[0] for batch in (4, 8, 61)))
    assert sum(1 for label in law.labels_of if law.labels[label].operator == "_cudnn_init_dropout_state") == 1


@pytest.mark.parametrize("precision", ["amp-fp16", "amp-bf16"])
def test_under_autocast_cudnn_computes_in_half_whatever_the_type(precision: Precision) -> None:
    assert trained(4, precision)[2].dtype == torch.float16


def test_a_type_that_differs_from_the_weights_is_refused() -> None:
    device = SimulatedDevice("rtx4060", record=True)
    with device.session(), device.phase("setup", 0):
        network = device.place(nn.GRU(16, 8))
    with device.session(), device.phase("forward", 0), pytest.raises((RuntimeError, ValueError), match="type"):
        network(torch.empty(7, 4, 16, dtype=torch.float16, device="meta"))


@pytest.mark.parametrize("biased", [True, False])
def test_a_cell_keeps_its_gates_in_one_tensor(biased: bool) -> None:
    device = SimulatedDevice("rtx4060", record=True)
    with device.session():
        with device.phase("setup", 0):
            cell = device.place(nn.LSTMCell(16, 8, bias=biased))
        with device.phase("forward", 0):
            cell(torch.empty(4, 16, device="meta"))
    trace = device.trace(4)
    made = [trace.sizes[n] for n in range(len(trace.sizes)) if trace.label(n).operator == "_thnn_fused_lstm_cell"]
    assert made == [4 * 32 * 4, 4 * 8 * 4, 4 * 8 * 4]


@pytest.mark.parametrize("card", ["h100", "rtx4090", "mi250x"])  # the last is 9.0 too, by ROCm's numbers
def test_cudnns_attention_runs_where_it_is_preferred_and_keeps_its_workspace_for_the_backward(card: str) -> None:
    device = SimulatedDevice(card, record=True)
    batch, heads, length, width = 2, 3, 40, 64
    with device.session():
        query = torch.empty(batch, heads, length, width, dtype=torch.bfloat16, device="meta", requires_grad=True)
        with device.phase("forward", 0):
            result = F.scaled_dot_product_attention(query, query, query)
        with device.phase("backward", 0):
            result.sum().backward()
    trace = device.trace(batch)
    sizes = [trace.sizes[n] for n in range(len(trace.sizes)) if trace.label(n).operator == "cudnn_attention_workspace"]
    preferred = card == "h100" and releases.cudnn_attention_comes_first()
    rows = batch * heads * length
    assert sizes == [rows * 4 + rows * width * 4] * preferred


@settings(max_examples=200, deadline=None)
@given(rows=st.integers(1, 1 << 22), width=st.integers(1, 4096), count=st.integers(1, 200))
def test_many_rows_are_gathered_by_no_more_blocks_than_a_grid_holds(rows: int, width: int, count: int) -> None:
    blocks = blocks_of_rows(Processors(count, 2048), rows, width)
    assert blocks == 0 or (rows > 64 * 1024 and blocks * -(-width // 32) <= 32 * 1024 and 32 * (blocks - 1) < rows)
    assert blocks_of_rows(None, rows, width) == 0

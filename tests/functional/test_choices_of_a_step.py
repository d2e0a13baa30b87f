"""Precisions, optimizers, allocator words, steps of one's own: what each does to what is held, and what is refused."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._triton import has_triton

from sweeper.allocator_conf import VARIABLES, words_in_force
from sweeper.errors import UsageError
from sweeper.runner import ForkRunner, Runner
from sweeper.trial import (
    OPTIMIZERS,
    Describe,
    DeviceReport,
    Fit,
    Optimizer,
    Precision,
    Refused,
    Response,
    TrialSpec,
)
from sweeper.units import MIB
from sweeper.worker.compiling import check_compiler
from sweeper.worker.devices.cpu import CpuDevice
from sweeper.worker.devices.simulated import SimulatedDevice
from sweeper.worker.optimizers import make_optimizer, state_tensors
from sweeper.worker.precision import flags_of, model_in
from tests.workers.own_loops import PARAMETERS, WIDTH

LOOPS = Path(__file__).parents[1] / "workers" / "own_loops.py"
MATRICES, BIASES = 4 * WIDTH * WIDTH, 4 * WIDTH

# Bytes of state in fp32: in full, or by rows and columns, or in 8 bits with a scale for 256 and a table of 256 each.
STATE: dict[Optimizer, int] = {
    "sgd": 0,
    "sgd-momentum": 4 * PARAMETERS,
    "adam": 8 * PARAMETERS,
    "adamw": 8 * PARAMETERS,
    "adagrad": 4 * PARAMETERS,
    "rmsprop": 4 * PARAMETERS,
    "adafactor": 4 * (4 * (WIDTH + WIDTH) + BIASES),
    "adamw-8bit": 2 * (MATRICES + 4 * MATRICES // 256 + 4 * 4 * 256 + 4 * BIASES),
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with closing(ForkRunner(timeout_s=120, log=tmp_path_factory.mktemp("host") / "log")) as runner:
        runner.start()
        yield runner


@pytest.fixture
def run(runner: Runner, tmp_path: Path) -> Any:
    def run(factory: str = "plain", device: str = "sim:rtx4060", **choices: Any) -> Response:
        spec = TrialSpec(**{"model": f"{LOOPS}:{factory}", "batch_size": 8, "device": device, "steps": 2, **choices})
        return runner.run(spec, tmp_path / "trial")

    return run


def fit(response: Response) -> Fit:
    assert isinstance(response, Fit), response
    return response


def needs_torchao(*choices: str) -> None:
    if "adamw-8bit" in choices or "fp8" in choices:
        pytest.importorskip("torchao")


@pytest.mark.parametrize("device", ["sim:rtx4060", "cpu"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_holds_what_its_paper_says(optimizer: Optimizer, device: str, run: Any) -> None:
    needs_torchao(optimizer)
    found = fit(run(device=device, optimizer=optimizer))
    assert found.holdings is not None
    tensors = 4 * 2 * (7 if optimizer == "adamw-8bit" else 2)  # each rounded up to 512 bytes by the allocator
    assert STATE[optimizer] <= found.holdings.optimizer < STATE[optimizer] + 512 * tensors
    assert found.holdings.weights == 4 * PARAMETERS
    assert found.holdings.gradients == 4 * PARAMETERS


@pytest.mark.parametrize("device", ["sim:rtx4060", "cpu"])
@pytest.mark.parametrize(("precision", "bytes_each"), [("fp16", 2), ("bf16", 2), ("amp-bf16", 4), ("amp-fp16", 4)])
def test_a_precision_decides_what_weights_gradients_and_state_are_held_in(
    precision: Precision, bytes_each: int, device: str, run: Any
) -> None:
    held = fit(run(device=device, precision=precision, optimizer="adamw")).holdings
    assert held is not None
    assert (held.weights, held.gradients, held.optimizer) == tuple(bytes_each * n * PARAMETERS for n in (1, 1, 2))


def test_tf32_sets_its_flags_while_it_lasts_and_changes_no_size(run: Any) -> None:
    assert fit(run(precision="tf32")).peak_allocated_bytes == fit(run()).peak_allocated_bytes
    for precision in ("fp32", "tf32"):
        with flags_of(precision):
            assert torch.backends.cuda.matmul.allow_tf32 == (precision == "tf32")
    assert torch.get_float32_matmul_precision() == "highest"


def test_fp8_casts_in_the_layers_that_it_can_and_holds_no_less(run: Any) -> None:
    needs_torchao("fp8")
    layers = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 10), nn.MultiheadAttention(32, 2))
    converted = model_in(layers, "fp8")
    assert [type(module).__name__ for module in converted.children()] == [
        "Float8Linear",
        "Linear",
        "MultiheadAttention",
    ]
    assert type(layers[2].out_proj).__name__ == "NonDynamicallyQuantizableLinear"
    eight, full = fit(run(precision="fp8")), fit(run())
    assert eight.holdings is not None
    assert full.holdings is not None
    assert eight.holdings.weights == full.holdings.weights
    assert eight.peak_allocated_bytes > full.peak_allocated_bytes
    with pytest.raises(UsageError, match="has none"):
        model_in(nn.Linear(8, 8), "fp8")


@pytest.mark.parametrize(
    ("optimizer", "arguments", "says"),
    [
        ("sgd", {"betas": 1}, "torch.optim.SGD) takes no argument betas"),
        ("adafactor", {"fused": True}, "torch.optim.Adafactor) takes no argument fused"),
        ("rmsprop", {"fused": True}, "torch.optim.RMSprop) takes no argument fused"),
        ("adam", {"capturable": True}, "takes no argument capturable"),
        ("sgd-momentum", {"momentum": -1.0}, "Invalid momentum value: -1.0"),
        ("adamw", {"fused": True, "foreach": True}, "cannot be `True` together"),
        ("adam", {"lr": "high"}, "lr=high"),
    ],
)
def test_an_argument_that_an_optimizer_cannot_take_is_refused(
    optimizer: Optimizer, arguments: dict[str, Any], says: str, run: Any
) -> None:
    refused = run(optimizer=optimizer, optimizer_args=arguments)
    assert isinstance(refused, Refused)
    assert says in refused.message
    assert refused.hint


def test_arguments_reach_the_constructor() -> None:
    spec = TrialSpec(
        model="x", batch_size=1, device="cpu", optimizer="sgd-momentum", optimizer_args={"lr": 0.5, "nesterov": True}
    )
    made = make_optimizer(spec, nn.Linear(4, 4).parameters(), CpuDevice(memory_limit_bytes=MIB))
    assert made is not None
    assert [made.defaults[name] for name in ("lr", "momentum", "nesterov")] == [0.5, 0.9, True]
    frozen = nn.Linear(4, 4).requires_grad_(False)
    assert make_optimizer(spec, frozen.parameters(), CpuDevice(memory_limit_bytes=MIB)) is None


@pytest.mark.parametrize(("fused", "foreach"), [(True, False), (False, True), (False, False)])
def test_a_fused_step_takes_less_than_foreach(fused: bool, foreach: bool, run: Any) -> None:
    chosen = fit(run(optimizer="adam", optimizer_args={"fused": fused, "foreach": foreach}, batch_size=1))
    by_default = fit(run(optimizer="adam", batch_size=1))
    if foreach:
        assert chosen.peak_allocated_bytes == by_default.peak_allocated_bytes
    else:
        assert chosen.peak_allocated_bytes < by_default.peak_allocated_bytes


def test_state_that_a_constructor_makes_is_counted_on_a_simulated_card() -> None:
    device = SimulatedDevice("rtx4060")
    with device.session():
        with device.build_context():
            built = nn.Linear(1024, 1024)
        model = device.place(built)
        made = torch.optim.Adagrad(model.parameters())
        before = device.usage().allocated_bytes
        device.place_optimizer(made)
        assert device.usage().allocated_bytes - before == sum(t.nbytes for t in state_tensors(made) if t.is_meta)


def test_words_for_the_allocator_come_before_the_environments(
    runner: Runner, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "max_split_size_mb:64")
    assert words_in_force() == "max_split_size_mb:64"
    assert words_in_force("") == ""
    report = runner.run(Describe(device="sim:t4", alloc_conf="expandable_segments:True"), tmp_path / "report")
    assert isinstance(report, DeviceReport)
    assert report.allocator_conf == "expandable_segments:True"
    by_default = fit(run(alloc_conf="", batch_size=1200))
    rounded = fit(run(alloc_conf="roundup_power2_divisions:2", batch_size=1200))  # 1200 KiB to 1536
    assert rounded.peak_allocated_bytes > by_default.peak_allocated_bytes


@pytest.mark.skipif(has_triton(), reason="Triton is here, and knows this GPU")
def test_without_triton_nothing_is_compiled() -> None:
    with pytest.raises(UsageError, match="--compile needs Triton"):
        check_compiler("--compile")


@pytest.mark.parametrize("device", ["sim:rtx4060", "cpu"])
@pytest.mark.parametrize("factory", ["optimizer_only", "step_only", "whole"])
def test_a_step_or_an_optimizer_of_ones_own_runs_in_place_of_sweepers(factory: str, device: str, run: Any) -> None:
    found = fit(run(factory, device=device))
    own_optimizer, own_step = factory != "step_only", factory != "optimizer_only"
    assert found.holdings is not None
    assert found.breakdown is not None
    assert found.holdings.optimizer == (8 * PARAMETERS if own_optimizer else 0)
    assert found.holdings.gradients == 4 * PARAMETERS
    assert found.breakdown.total_bytes == found.peak_allocated_bytes
    phases = [phase.phase for phase in found.phases]
    assert phases == (
        ["setup", "inputs", "train_step"]
        if own_step
        else ["setup", "inputs", "forward", "loss", "backward", "step", "zero_grad"]
    )
    if device == "cpu":
        losses = [step.loss for step in found.steps]
        assert all(loss is not None for loss in losses)
        assert losses[0] != losses[1]  # it learns


def test_a_step_of_ones_own_takes_what_the_same_step_of_sweepers_takes(run: Any) -> None:
    own, sweepers = fit(run("whole")), fit(run("plain", optimizer="adam"))
    outputs_bytes = 8 * 4 * WIDTH  # which this step does not keep until the next
    assert own.peak_allocated_bytes == sweepers.peak_allocated_bytes - outputs_bytes


@pytest.mark.parametrize(
    ("factory", "choices", "says"),
    [
        ("whole", {"optimizer": "adamw"}, "makes its own optimizer"),
        ("optimizer_only", {"optimizer_args": {"lr": 0.1}}, "makes its own optimizer"),
        ("whole", {"accumulate": 2}, "does not know of --accumulate"),
        ("step_only", {"precision": "amp-bf16"}, "does not know of --precision amp-*"),
        ("no_optimizer", {}, "returned a list, not a torch.optim.Optimizer"),
        ("no_loss", {}, "train_step returned a str that is no loss"),
        ("not_callable", {}, "optimizer is a str, not a function"),
    ],
)
def test_what_a_step_of_ones_own_would_ignore_is_refused(
    factory: str, choices: dict[str, Any], says: str, run: Any
) -> None:
    refused = run(factory, **choices)
    assert isinstance(refused, Refused), refused
    assert says in refused.message

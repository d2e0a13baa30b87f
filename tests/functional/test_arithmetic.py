"""The breakdown agrees with arithmetic: weights, gradients and Adam's state are the parameters' bytes, of any model.

On ``cpu`` to the byte.  On a simulated card what the step *asks* for is to the byte too.  What it *holds* is each
tensor rounded up to 512 bytes, and for a tensor above 1 MiB up to another 1 MiB: a block of the allocator's large pool
is not split where no more than that would be left over (``should_split``, CUDACachingAllocator.cpp, torch 2.14).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from sweeper.runner import ForkRunner
from sweeper.trace import Trace
from sweeper.trial import Fit, Kind, TrialSpec
from sweeper.units import MIB
from sweeper.worker import trial
from sweeper.worker.workload import load

BLOCK = 512
TEACHING = ("small-cnn", "mlp", "tiny-transformer")
# With the smallest image, or near it, for speed: parameters do not depend on it but in vit_b_16, which is built for it.
TORCHVISION = {
    "resnet18": 32, "resnet50": 32, "resnext50_32x4d": 32, "mobilenet_v2": 32, "mobilenet_v3_small": 32,
    "efficientnet_b0": 32, "squeezenet1_1": 32, "shufflenet_v2_x0_5": 32, "mnasnet0_5": 32, "regnet_x_400mf": 32,
    "convnext_tiny": 32, "alexnet": 64, "vgg11": 32, "vit_b_16": 32, "swin_t": 32, "googlenet": 32, "resnet34": 32,
}  # fmt: skip
MODELS = (*TEACHING, *TORCHVISION)
HELD = ("small-cnn", "mlp", "tiny-transformer", "resnet18", "convnext_tiny", "alexnet", "vgg11")
ON_CPU = ("small-cnn", "mlp", "tiny-transformer", "resnet18", "mobilenet_v3_small", "squeezenet1_1")


def spec(model: str, device: str) -> TrialSpec:
    size = TORCHVISION.get(model)
    return TrialSpec(model=model, batch_size=2, device=device, optimizer="adam", image_size=size, steps=2)


def parameter_bytes(model: str) -> list[int]:
    with torch.device("meta"):
        built = load(spec(model, "cpu")).model
    return [p.numel() * p.element_size() for p in built.parameters()]


def asked_for(trace: Trace, kind: Kind) -> Counter[int]:
    sizes = zip(trace.sizes, trace.labels_of, strict=True)
    return Counter(size for size, label in sizes if trace.labels[label].kind == kind)


def test_there_are_twenty_models() -> None:
    assert len(set(MODELS)) == 20


@pytest.mark.parametrize("model", MODELS)
def test_what_is_asked_for_is_the_parameters_bytes(model: str) -> None:
    trace = trial.trace(spec(model, "sim:rtx3090"), 2)
    assert isinstance(trace, Trace)
    parameters = Counter(parameter_bytes(model))
    assert asked_for(trace, "weights") == parameters
    # Made anew in each of the two steps, once for each parameter.
    assert asked_for(trace, "gradients") == Counter({size: 2 * n for size, n in parameters.items()})
    # Two tensors a parameter, 8 bytes in fp32; the steps are counted on the CPU.
    assert asked_for(trace, "optimizer") == Counter({size: 2 * n for size, n in parameters.items()})


@pytest.mark.parametrize("model", HELD)
def test_what_a_simulated_card_holds_is_that_in_blocks(model: str) -> None:
    fit = trial.run(spec(model, "sim:rtx3090"))
    assert isinstance(fit, Fit)
    assert fit.holdings is not None
    sizes = parameter_bytes(model)
    blocks = sum(-(-size // BLOCK) * BLOCK for size in sizes)
    slack = MIB * sum(size > MIB for size in sizes)
    assert blocks <= fit.holdings.weights <= blocks + slack
    assert blocks <= fit.holdings.gradients <= blocks + slack
    assert 2 * blocks <= fit.holdings.optimizer <= 2 * (blocks + slack)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkRunner]:
    with closing(ForkRunner(timeout_s=120, log=tmp_path_factory.mktemp("host") / "log")) as runner:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")
            runner.start()
        yield runner


@pytest.mark.parametrize("model", ON_CPU)
def test_what_the_cpu_holds_is_that_to_the_byte(model: str, runner: ForkRunner, tmp_path: Path) -> None:
    fit = runner.run(spec(model, "cpu"), tmp_path / "trial")
    assert isinstance(fit, Fit), fit
    assert fit.holdings is not None
    weights = sum(parameter_bytes(model))
    assert (fit.holdings.weights, fit.holdings.gradients, fit.holdings.optimizer) == (weights, weights, 2 * weights)

"""Every model can be found, built and stepped; what cannot is refused in words.

Models of real size are built and run on the meta device, where nothing is computed; real training is on small ones.
"""

import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torchvision import models
from torchvision.models.googlenet import GoogLeNetOutputs
from torchvision.models.inception import InceptionOutputs

from sweeper.errors import UnknownName, UsageError
from sweeper.model_names import (
    CLASSIFICATION,
    DETECTION,
    OPTICAL_FLOW,
    QUANTIZED,
    SEGMENTATION,
    TEACHING,
    VIDEO,
    check_model,
    known_models,
)
from sweeper.trial import TrialSpec
from sweeper.worker.models import mean_of_outputs, require_counts, teaching, torchvision
from sweeper.worker.workload import Workload, load

EXAMPLE = Path(__file__).parents[2] / "docs/examples/my_model.py"

HOST = pytest.param(nullcontext(), id="cpu")
META = pytest.param(torch.device("meta"), id="meta")


def spec(model: str, *, image_size: int | None = None, seed: int = 0, **model_args: Any) -> TrialSpec:
    return TrialSpec(model=model, batch_size=2, device="cpu", model_args=model_args, image_size=image_size, seed=seed)


def load_on_meta(model: str, **kwargs: Any) -> Workload:
    with torch.device("meta"):
        return load(spec(model, **kwargs))


def run_forward(workload: Workload, batch: int = 2) -> tuple[Any, torch.Tensor]:
    inputs, targets = workload.make_batch(batch)
    outputs = workload.forward(workload.model, inputs)
    return outputs, workload.loss(outputs, targets)


class QuickBatchNorm(TorchFunctionMode):
    """Batch norm keeps a shape, but on meta its decomposition takes two thirds of the time of 80 models."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0].clone() if func is F.batch_norm else func(*args, **(kwargs or {}))


def run_on_meta(workload: Workload) -> tuple[Any, torch.Tensor]:
    with torch.device("meta"):
        inputs, targets = workload.make_batch(2)
    with QuickBatchNorm():
        outputs = workload.forward(workload.model, inputs)
        return outputs, workload.loss(outputs, targets)


def train(workload: Workload, *, batch: int = 2, steps: int = 1) -> list[float]:
    """Return the loss of each step of plain SGD, having checked that every parameter got a gradient."""
    workload.model.train()
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        _, loss = run_forward(workload, batch)
        loss.backward()
        assert [name for name, p in workload.model.named_parameters() if p.grad is None] == []
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The models here are too small to share out: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """User code puts folders on the path and modules in the table; neither outlives the test."""
    monkeypatch.setattr(sys, "path", sys.path.copy())


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import torch\nfrom torch import nn\n" + text)
        return path

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


# --- names ---------------------------------------------------------------------------------------------------------


def test_the_names_kept_for_the_driver_are_those_the_worker_finds() -> None:
    assert sorted(CLASSIFICATION) == sorted(torchvision.names())
    assert sorted(DETECTION) == sorted(torchvision.names(models.detection))
    assert sorted(SEGMENTATION) == sorted(torchvision.names(models.segmentation))
    assert sorted(VIDEO) == sorted(torchvision.names(models.video))
    assert sorted(OPTICAL_FLOW) == sorted(torchvision.names(models.optical_flow))
    assert sorted(QUANTIZED) == sorted(torchvision.names(models.quantization))
    assert sorted(TEACHING) == sorted(teaching.FACTORIES)
    assert len(set(known_models())) == len(known_models()) >= 83


def test_names_are_checked_without_torch() -> None:
    code = "import sys, sweeper.model_names as m; m.check_model('resnet18'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_known_name_passes_the_check() -> None:
    for name in known_models():
        check_model(name)


@pytest.mark.parametrize("name", ["resnet81", "ResNet-18", "resnet", "Resnet18", "vit_b16", "small_cnn", "mpl"])
@pytest.mark.parametrize("refuse", [check_model, lambda name: load(spec(name))])
def test_an_unknown_name_gets_close_ones_and_the_way_to_list_them(name: str, refuse: Any) -> None:
    with pytest.raises(UnknownName) as caught:
        refuse(name)
    assert repr(name) in caught.value.message
    assert re.match(r"did you mean [\w-]+.*\? `sweep models` lists them all", caught.value.hint)


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_models_are_refused_for_what_they_are(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is for inference on a CPU") as caught:
        load(spec(name))
    assert caught.value.hint.rpartition(" ")[2] in CLASSIFICATION


# --- torchvision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_every_classification_model_runs_at_its_own_size_without_memory(name: str) -> None:
    workload = load_on_meta(name)
    with torch.device("meta"):
        inputs, targets = workload.make_batch(2)
    outputs, loss = run_on_meta(workload)
    size = torchvision.native_size(name)
    assert inputs.shape == (2, 3, size, size)
    assert targets.shape == (2,)
    assert all(t.is_meta for t in (*workload.model.parameters(), *workload.model.buffers(), inputs, targets, loss))
    for logits in outputs if isinstance(outputs, tuple) else (outputs,):
        assert logits.shape == (2, 1000)
    assert loss.shape == ()


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet50", 224), ("inception_v3", 299), ("efficientnet_b0", 224), ("efficientnet_b4", 380),
        ("efficientnet_b7", 600), ("efficientnet_v2_s", 384), ("swin_v2_t", 256), ("swin_t", 224), ("maxvit_t", 224),
        ("vit_b_16", 224), ("vit_h_14", 518), ("regnet_y_128gf", 384),
    ],
)  # fmt: skip
def test_the_native_size_is_the_published_one(name: str, size: int) -> None:
    assert torchvision.native_size(name) == size


@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        ("resnet18", 1), ("alexnet", 63), ("vgg11", 32), ("densenet121", 29), ("squeezenet1_0", 21),
        ("squeezenet1_1", 17), ("googlenet", 15), ("convnext_tiny", 32), ("efficientnet_v2_s", 1), ("swin_t", 4),
        ("swin_v2_t", 4), ("vit_b_16", 16), ("vit_b_32", 32), ("inception_v3", 299), ("maxvit_t", 224),
    ],
)  # fmt: skip
def test_the_smallest_image_runs_and_one_pixel_less_is_refused(name: str, smallest: int) -> None:
    workload = load_on_meta(name, image_size=smallest)
    assert workload.make_batch(2)[0].shape == (2, 3, smallest, smallest)
    run_on_meta(workload)
    with pytest.raises(UsageError, match="image"):
        load(spec(name, image_size=smallest - 1))


@pytest.mark.parametrize(
    ("name", "size", "nearest"), [("vit_b_16", 225, 224), ("vit_h_14", 64, 70), ("maxvit_t", 256, 224)]
)
def test_a_size_that_does_not_divide_is_refused_with_the_nearest(name: str, size: int, nearest: int) -> None:
    with pytest.raises(UsageError, match=f"not {size}") as caught:
        load(spec(name, image_size=size))
    assert caught.value.hint == f"the nearest is {nearest}"
    assert load_on_meta(name, image_size=nearest).make_batch(1)[0].shape[-1] == nearest


def test_inception_without_its_auxiliary_classifier_takes_small_images() -> None:
    outputs, _ = run_on_meta(load_on_meta("inception_v3", image_size=75, aux_logits=False))
    assert isinstance(outputs, torch.Tensor)


@pytest.mark.parametrize(
    ("outputs", "weight"), [(GoogLeNetOutputs, 0.3), (InceptionOutputs, 0.4)], ids=["googlenet", "inception"]
)
def test_auxiliary_classifiers_are_weighted_as_in_their_papers(outputs: Any, weight: float) -> None:
    targets = torch.tensor([0, 2])
    logits = [torch.randn(2, 3) for _ in outputs._fields]
    entropies = [F.cross_entropy(one, targets) for one in logits]
    loss = torchvision.classification_loss(outputs(*logits), targets)
    torch.testing.assert_close(loss, entropies[0] + weight * sum(entropies[1:]))
    without = outputs(logits[0], *[None] * (len(logits) - 1))
    torch.testing.assert_close(torchvision.classification_loss(without, targets), entropies[0])


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "regnet_y_400mf", "googlenet"]
)
def test_a_real_step_gives_every_parameter_a_gradient(name: str) -> None:
    workload = load(spec(name, image_size=32, num_classes=10))
    (loss,) = train(workload)
    assert loss == pytest.approx(2.3 * (1.6 if name == "googlenet" else 1), rel=0.6)  # log(10), and 0.3 twice


@pytest.mark.parametrize(
    ("name", "argument", "accepted"),
    [
        ("resnet18", "foo", "num_classes, zero_init_residual, groups, width_per_group"),
        ("resnext50_32x4d", "groups", "num_classes, zero_init_residual"),
        ("densenet121", "growth_rate", "bn_size, drop_rate, num_classes, memory_efficient"),
        ("efficientnet_b0", "foo", "dropout, stochastic_depth_prob, num_classes"),
        ("googlenet", "foo", "num_classes, aux_logits, transform_input, init_weights, dropout, dropout_aux"),
        ("vgg11", "weights", "num_classes, init_weights, dropout"),
    ],
)
def test_an_argument_the_builder_does_not_take_gets_those_it_takes(name: str, argument: str, accepted: str) -> None:
    with pytest.raises(UsageError, match=f"{name} takes no argument '{argument}'") as caught:
        load_on_meta(name, **{argument: 3})
    assert caught.value.hint == f"it takes {accepted}"


def test_an_argument_reaches_the_constructor() -> None:
    outputs, _ = run_on_meta(load_on_meta("resnet18", num_classes=7, width_per_group=64))
    assert outputs.shape == (2, 7)


@pytest.mark.parametrize("num_classes", [0, -1, 2.5, True, "ten"])
def test_classes_are_counted(num_classes: Any) -> None:
    with pytest.raises(UsageError, match="num_classes must be a whole number"):
        load(spec("resnet18", num_classes=num_classes))


def test_an_image_size_given_twice_must_be_the_same() -> None:
    assert load_on_meta("resnet18", image_size=64).make_batch(1)[0].shape[-1] == 64
    both = TrialSpec(model="resnet18", batch_size=1, device="cpu", image_size=64, model_args={"image_size": 32})
    with pytest.raises(UsageError, match="given twice"):
        load(both)


# --- the teaching models -------------------------------------------------------------------------------------------

SMALL: dict[str, dict[str, int]] = {
    "small-cnn": {"depth": 3, "width": 8, "image_size": 16},
    "mlp": {"depth": 2, "width": 32, "features": 20},
    "tiny-transformer": {"depth": 2, "width": 16, "heads": 2, "seq_len": 8, "vocab": 11},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_teaching_model_learns(name: str) -> None:
    losses = train(load(spec(name, **SMALL[name])), batch=8, steps=10)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", SMALL)
def test_a_teaching_model_at_its_defaults_is_the_same_on_meta(name: str) -> None:
    real, meta = load(spec(name)), load_on_meta(name)
    assert [p.shape for p in real.model.parameters()] == [p.shape for p in meta.model.parameters()]
    outputs, loss = run_on_meta(meta)
    assert loss.is_meta
    assert outputs.shape == run_forward(real)[0].shape


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("bad", [0, -3, 1.5, True, "many"])
def test_a_teaching_model_refuses_what_is_no_count(name: str, bad: Any) -> None:
    for argument in SMALL[name]:
        with pytest.raises(UsageError, match=f"{argument} must be a whole number of at least 1, not {bad!r}"):
            load(spec(name, **{argument: bad}))


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("small-cnn", {"dept": 3}, "small-cnn takes no argument 'dept'"),
        ("small-cnn", {"image_size": 3}, "cannot see images of 3 pixels"),
        ("mlp", {"image_size": 32}, "mlp takes no argument 'image_size'"),
        ("tiny-transformer", {"heads": 3}, "heads=3 does not divide width=128"),
    ],
)
def test_a_teaching_model_says_what_it_cannot_do(name: str, arguments: dict[str, int], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        load(spec(name, **arguments))


@settings(max_examples=25, deadline=None)
@given(depth=st.integers(1, 9), width=st.integers(1, 4), image_size=st.integers(4, 40))
def test_small_cnn_trains_on_a_batch_of_one_at_every_size(depth: int, width: int, image_size: int) -> None:
    workload = load(spec("small-cnn", image_size=image_size, depth=depth, width=width))
    assert workload.make_batch(1)[0].shape == (1, 3, image_size, image_size)
    assert sum(isinstance(layer, nn.Conv2d) for layer in workload.model.modules()) == depth
    train(workload, batch=1)


def test_the_transformer_sees_no_later_token_and_is_asked_for_the_next() -> None:
    workload = load(spec("tiny-transformer", **SMALL["tiny-transformer"]))
    tokens, targets = workload.make_batch(3)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = workload.model(tokens), workload.model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


# --- seeds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "small-cnn", f"{EXAMPLE}:denoising"])
def test_a_seed_decides_weights_and_batches_and_nothing_else(name: str) -> None:
    one, same, other = (load(spec(name, seed=seed)) for seed in (1, 1, 2))
    weights = [torch.cat([p.flatten() for p in w.model.parameters()]) for w in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    state = torch.get_rng_state()
    batches = [w.make_batch(2)[0] for w in (one, one, same, other)]
    assert torch.equal(batches[0], batches[1])
    assert torch.equal(batches[0], batches[2])
    assert not torch.equal(batches[0], batches[3])
    assert torch.equal(state, torch.get_rng_state())


# --- the meta device -----------------------------------------------------------------------------------------------


def test_the_largest_model_takes_no_host_memory_on_meta() -> None:
    clear_refs = Path("/proc/self/clear_refs")
    try:
        clear_refs.write_text("5")  # proc(5): sets the peak resident size to the present one
    except OSError as problem:
        pytest.skip(f"the peak of this process cannot be reset: {problem}")
    before = peak_resident_bytes()
    workload = load_on_meta("regnet_y_128gf")
    weights = sum(p.numel() * p.element_size() for p in workload.model.parameters())
    assert weights > 2 << 30
    assert peak_resident_bytes() - before < 100 << 20


def peak_resident_bytes() -> int:
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) * 1024


NEEDS_VALUES = """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
    def forward(self, x):
        return self.layer(x)
    def example_inputs(self, batch):
        return torch.randn(batch, 3)

class ReadsATensor(Base):
    def __init__(self):
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]

class ReadsABuffer(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(3))
        self.last = int(self.table[-1])

class ReadsAParameter(Base):
    def __init__(self):
        super().__init__()
        self.first = self.layer.weight[0, 0].item()

class SetsAParameter(Base):
    def __init__(self):
        super().__init__()
        self.layer.weight.data = torch.eye(3)

class TiesAfterwards(Base):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(3, 3)
        self.other.weight = self.layer.weight

class TiesBefore(Base):
    def __init__(self):
        super().__init__()
        shared = nn.Parameter(torch.randn(3, 3))
        self.other = nn.Linear(3, 3)
        self.layer.weight = shared
        self.other.weight = shared

class ReadsItsBatch(Base):
    def example_inputs(self, batch):
        lengths = torch.randint(1, 4, (batch,)).tolist()
        return torch.stack([torch.full((3,), float(length)) for length in lengths])

class Freezes(Base):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
"""
CONSTRUCTORS = re.findall(r"class (\w+)\(Base\)", NEEDS_VALUES)


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_constructor_that_needs_values_builds_the_same_model_on_meta(write: Any, name: str) -> None:
    path = write("needs.py", NEEDS_VALUES)
    real, meta = load(spec(f"{path}:{name}")), load_on_meta(f"{path}:{name}")
    shapes = [
        [(key, p.shape, p.requires_grad) for key, p in w.model.named_parameters()]  # shared ones once
        for w in (real, meta)
    ]
    assert shapes[0] == shapes[1]
    assert all(t.is_meta for t in (*meta.model.parameters(), *meta.model.buffers()))
    inputs, _ = meta.make_batch(4)  # outside the meta device: on the CPU
    assert inputs.shape == real.make_batch(4)[0].shape
    with torch.device("meta"):
        assert meta.make_batch(4)[0].shape == inputs.shape
    assert not nn.Linear(1, 1).weight.is_meta


# --- the user's own ------------------------------------------------------------------------------------------------

FORMS = """
from types import SimpleNamespace
import sibling

class Net(nn.Module):
    def __init__(self, hidden=4, image_size=3):
        super().__init__()
        self.layer = nn.Linear(image_size, hidden)
        self.kept = hidden
    def forward(self, x, scale=1.0):
        return self.layer(x) * scale
    def example_inputs(self, batch):
        return torch.randn(batch, self.layer.in_features)

class Positions(Net):
    def example_inputs(self, batch):
        return torch.randn(batch, 3), torch.tensor(2.0)

class Keywords(Net):
    def example_inputs(self, batch):
        return {"x": torch.randn(batch, 3), "scale": torch.tensor(2.0)}

def function(hidden=4):
    return Net(hidden)

def anything(**given):
    return Net(**given)

def shaped(hidden=4):
    def make_batch(batch):
        return torch.randn(batch, 3), torch.randn(batch, hidden)
    return SimpleNamespace(model=Net(hidden), make_batch=make_batch, loss=sibling.loss)

def with_forward(hidden=4):
    workload = shaped(hidden)
    workload.forward = lambda model, inputs: model(inputs, scale=0.0)
    return workload

class Holder:
    @staticmethod
    def nested(hidden=4):
        return Net(hidden)
"""
FACTORIES = ["Net", "Positions", "Keywords", "function", "anything", "shaped", "with_forward", "Holder.nested"]


def write_forms(write: Any, place: str) -> None:
    write(place, FORMS)
    write("sibling.py", "loss = nn.functional.mse_loss\n")


@pytest.mark.parametrize("device", [HOST, META])
@pytest.mark.parametrize("place", ["models/mine.py:", "package.mine:"])
@pytest.mark.parametrize("factory", FACTORIES)
def test_a_factory_of_any_form_is_loaded(
    write: Any, place: str, factory: str, device: AbstractContextManager[Any]
) -> None:
    folder = place.partition("/")[0] if "/" in place else "package"
    write(f"{folder}/mine.py", FORMS)
    write("models/sibling.py" if folder == "models" else "sibling.py", "loss = nn.functional.mse_loss\n")
    check_model(place + factory)
    with device:
        workload = load(spec(place + factory, hidden=5))
        outputs, loss = run_forward(workload)
    assert outputs.shape == (2, 5)
    assert outputs.device == loss.device == workload.model.get_parameter("layer.weight").device
    assert loss.shape == ()


def test_a_module_takes_the_mean_of_its_outputs_for_a_loss_and_a_workload_its_own(write: Any) -> None:
    write_forms(write, "mine.py")
    outputs, loss = run_forward(load(spec("mine.py:Net")))
    assert loss == outputs.mean()
    workload = load(spec("mine.py:shaped"))
    inputs, targets = workload.make_batch(2)
    assert run_forward(workload)[1] == F.mse_loss(workload.model(inputs), targets)
    assert run_forward(load(spec("mine.py:with_forward")))[0].count_nonzero() == 0


def test_the_image_size_is_an_argument_of_the_factory_or_an_error(write: Any) -> None:
    write_forms(write, "mine.py")
    assert load(spec("mine.py:Net", image_size=6)).make_batch(2)[0].shape == (2, 6)
    with pytest.raises(UsageError, match="takes no argument 'image_size'"):
        load(spec("mine.py:function", image_size=6))


ERRORS = """
text = "not a factory"
model = nn.Linear(1, 1)
def needs(width): return None
def nothing(): return None
def plain(): return nn.Linear(1, 1)
def half():
    from types import SimpleNamespace
    return SimpleNamespace(model=nn.Linear(1, 1), make_batch=lambda batch: None)
def pair(): return nn.Linear(1, 1), nn.Linear(1, 1)
def no_batch():
    workload = half()
    workload.loss = None
    workload.loss = lambda outputs, targets: outputs.mean()
    return workload
"""


@pytest.mark.parametrize(
    ("name", "problem", "hint"),
    [
        ("absent.py:make", "there is no file absent.py", "the path is taken from"),
        ("absent.py", "there is no file absent.py", "the path is taken from"),
        ("mine.py", "names a file, not what to call in it", "write mine.py:needs or mine.py:nothing"),
        ("mine.py:", "names a file, not what to call in it", "write mine.py:needs"),
        ("some.module", "names a module, not what to call in it", "write some.module:factory"),
        ("a b:c", "is no model", "path/to/file.py:factory or package.module:factory"),
        (":", "is no model", "package.module:factory"),
        ("mine.py:absent", "there is no absent in", "it defines needs, nothing, plain"),
        ("absent_module:make", "there is no module absent_module", "run from the folder that holds it"),
        ("torch.absent:make", "there is no module torch.absent", "run from the folder that holds it"),
        ("mine.py:text", "is a str, not a function or class", "def make"),
        ("mine.py:model", "is a Linear, not a function or class", "def make"),
        ("mine.py:needs", "missing a required argument: 'width'", "it takes width"),
        ("mine.py:nothing", "returned None, which is no model", "return an nn.Module with a method example_inputs"),
        ("mine.py:plain", "returned a Linear without example_inputs", "return an nn.Module with a method"),
        ("mine.py:half", "returned a SimpleNamespace without loss", "model, make_batch(batch) and loss"),
        ("mine.py:pair", "returned a tuple, which is no model", "model, make_batch(batch) and loss"),
    ],
)
@pytest.mark.parametrize("device", [HOST, META])
def test_what_is_no_factory_is_told_what_to_write(
    write: Any, device: AbstractContextManager[Any], name: str, problem: str, hint: str
) -> None:
    write("mine.py", ERRORS)
    with device, pytest.raises(UsageError) as caught:
        load(spec(name))
    assert problem in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("device", [HOST, META])
def test_a_batch_that_is_no_pair_is_told_what_to_return(write: Any, device: AbstractContextManager[Any]) -> None:
    write("mine.py", ERRORS)
    with device, pytest.raises(UsageError, match="make_batch returned a NoneType, not a pair"):
        load(spec("mine.py:no_batch")).make_batch(2)


RAISES = """
from types import SimpleNamespace

def inner():
    raise LookupError("my dataset is gone")

def factory():
    inner()

class InConstructor(nn.Module):
    def __init__(self):
        inner()

def in_batch():
    return SimpleNamespace(model=nn.Linear(1, 1), make_batch=lambda batch: inner(), loss=None.__class__)

def wrong_call():
    nn.Linear(1, 1, biass=True)
"""


@pytest.mark.parametrize("device", [HOST, META])
@pytest.mark.parametrize("factory", ["factory", "InConstructor", "in_batch"])
def test_what_a_users_code_raises_keeps_its_own_traceback(
    write: Any, device: AbstractContextManager[Any], factory: str
) -> None:
    path = write("raises.py", RAISES)
    with device, pytest.raises(LookupError, match="my dataset is gone") as caught:
        load(spec(f"{path}:{factory}")).make_batch(2)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.name, last.line) == (str(path), "inner", 'raise LookupError("my dataset is gone")')
    assert caught.value.__context__ is None


def test_a_type_error_inside_a_factory_is_the_users_and_not_about_its_arguments(write: Any) -> None:
    path = write("raises.py", RAISES)
    with pytest.raises(TypeError, match="biass"):
        load(spec(f"{path}:wrong_call"))


def test_an_import_that_fails_inside_a_users_file_keeps_its_traceback(write: Any) -> None:
    write("outer.py", "import not_installed_anywhere\n")
    write("broken.py", "def factory(:\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load(spec("outer.py:factory"))
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load(spec("outer:factory"))
    with pytest.raises(SyntaxError):
        load(spec("broken.py:factory"))
    with pytest.raises(UsageError, match="names a file"):
        check_model("broken.py")


def test_a_file_named_like_a_module_does_not_take_its_place(write: Any) -> None:
    path = write("random.py", "def factory(): return None\n")
    import random

    with pytest.raises(UsageError, match="returned None"):
        load(spec(f"{path}:factory"))
    assert sys.modules["random"] is random


# --- the common parts ----------------------------------------------------------------------------------------------


def test_the_default_loss_sends_a_gradient_to_every_floating_output() -> None:
    leaves = [torch.randn(2, 3, requires_grad=True) for _ in range(3)]
    outputs = {"a": leaves[0], "b": [leaves[1], (leaves[2], torch.tensor([1, 2]))], "c": None}
    loss = mean_of_outputs(outputs, None)
    torch.testing.assert_close(loss, torch.stack([leaf.mean() for leaf in leaves]).sum())
    loss.backward()
    assert all(leaf.grad is not None and bool((leaf.grad == 1 / 6).all()) for leaf in leaves)


@pytest.mark.parametrize("outputs", [None, torch.tensor([1]), {"ids": [torch.tensor([1])]}, SimpleNamespace()])
def test_outputs_without_a_floating_tensor_have_no_default_loss(outputs: Any) -> None:
    with pytest.raises(UsageError, match="no floating-point tensor"):
        mean_of_outputs(outputs, None)


@given(st.integers(min_value=1))
def test_a_count_is_any_whole_number_from_one(value: int) -> None:
    require_counts(anything=value)


# --- the documented example ----------------------------------------------------------------------------------------


def test_the_commands_in_the_example_name_what_is_there() -> None:
    commands = re.findall(r"--model (\S+)((?: --model-arg \S+)*)", EXAMPLE.read_text())
    assert [model.rpartition(":")[2] for model, _ in commands] == ["Classifier", "denoising"]
    for model, arguments in commands:
        given = {key: int(value) for key, value in re.findall(r"--model-arg (\w+)=(\d+)", arguments)}
        name = str(EXAMPLE.parents[2] / model)
        check_model(name)
        losses = train(load(spec(name, **given)), batch=4, steps=3)
        assert losses[-1] < losses[0]
        assert run_on_meta(load_on_meta(name, **given))[1].is_meta

"""The step on meta tensors does what the CUDA step does: casts, kernels, lifetimes, labels."""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from sweeper.allocator import CachingAllocator
from sweeper.trace import WORKSPACE_OPERATOR, Trace, replay
from sweeper.units import MIB
from sweeper.worker.tracing import Ledger, SimulatedGradScaler, SimulatedOutOfMemory, Tracer, stepping_as_on_cuda
from sweeper.worker.tracing.autocast import BANNED, FP32, FP32_OUTPUT, LOWER_PRECISION, PROMOTE, casting
from sweeper.worker.tracing.kernels import CudaKernels, cublas_workspace_bytes
from sweeper.worker.tracing.modules import ModulePaths
from sweeper.worker.tracing.selection import selecting

ADA = (8, 9)


class Traced:
    """A tracer on an allocator, entered as a device does; everything counts from the beginning."""

    def __init__(self, *, capacity_bytes: int | None = None, capability: tuple[int, int] = ADA) -> None:
        self.allocator = CachingAllocator(capacity_bytes=capacity_bytes)
        self.ledger = Ledger(self.allocator)
        self.modules = ModulePaths()
        self.tracer = Tracer(self.ledger, self.modules, CudaKernels(capability))
        self.tracer.phase = "forward"
        self.capability = capability

    def run(self, work: Callable[[], Any]) -> Any:
        with self.modules.followed(), stepping_as_on_cuda(), selecting(self.capability), self.tracer:
            return work()

    def backward(self, loss: torch.Tensor) -> None:
        self.tracer.phase = "backward"
        self.run(loss.backward)

    @property
    def trace(self) -> Trace:
        return self.ledger.trace(1)

    def made_by(self, operator: str) -> list[int]:
        """Bytes of each allocation by ``operator``, in order."""
        trace = self.trace
        return [trace.sizes[n] for n in range(len(trace.sizes)) if trace.label(n).operator == operator]


def meta(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


# ---- autocast


def test_every_operator_that_autocast_treats_on_cuda_is_in_exactly_one_list() -> None:
    ours = [*LOWER_PRECISION, *FP32, *FP32_OUTPUT, *PROMOTE, *BANNED, "_cudnn_rnn"]  # the last has a rule of its own
    assert len(ours) == len(set(ours))
    registered = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }
    # Overloads by named dimensions are gone from 2.14; they were a prototype.
    named = {name for name in registered if "imname" in name or ".names" in name}
    assert registered - set(ours) == named
    if torch.torch_version.TorchVersion(torch.__version__) >= "2.14":  # the release that the lists are of
        assert set(ours) <= registered


def torchs_lists() -> Any:
    """``AutocastTestLists`` on meta, from the file itself: importing its module asks for packages that tests need."""
    file = Path(torch.__file__).parent / "testing" / "_internal" / "autocast_test_lists.py"
    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AutocastTestLists"]
    names: dict[str, Any] = {"torch": torch, "TEST_WITH_ROCM": False}
    exec(compile(tree, str(file), "exec"), names)
    return names["AutocastTestLists"](torch.device("meta"))


def autocast_cases() -> Iterator[tuple[str, Any, tuple[Any, ...], torch.dtype]]:
    """(name, function, arguments, dtype of the result) from torch's own lists, on meta."""
    lists = torchs_lists()
    groups: tuple[tuple[Any, Any, torch.dtype], ...]
    groups = (
        (torch, lists.torch_fp16, torch.float16),
        (torch, lists.torch_fp32, torch.float32),
        (torch, lists.torch_need_autocast_promote, torch.float32),
        (torch._C._nn, lists.nn_fp16, torch.float16),
        (torch._C._nn, lists.nn_fp32, torch.float32),
        (torch, lists.linalg_fp16, torch.float16),
        (torch.Tensor, lists.methods_fp16, torch.float16),
        (torch.Tensor, lists.methods_fp32, torch.float32),
    )
    for home, cases, dtype in groups:
        for case in cases:
            name, arguments = case[0], case[1:]
            if len(arguments) > 1 and isinstance(arguments[-1], bool):  # "only with cuDNN"
                continue
            yield name, home, arguments, dtype


@contextmanager
def autocast(lower: torch.dtype) -> Iterator[None]:
    with casting(), torch.autocast("cuda", dtype=lower):
        yield


# Operators without a meta kernel at all, with or without autocast; ``_convolution`` before 2.14.
WITHOUT_META = {"_convolution", "hinge_embedding_loss", "pdist", "_thnn_fused_lstm_cell"}


@pytest.mark.filterwarnings("ignore::UserWarning")  # the lists have deprecated operators too
def test_autocast_gives_the_dtypes_that_torchs_own_lists_say() -> None:
    tried = 0
    with autocast(torch.float16):
        for name, home, arguments, dtype in autocast_cases():
            if name == "einsum":
                arguments = ("ij,jk->ik", *arguments[1])  # torch's own has an equation for other shapes
                arguments = (arguments,)
            positional = arguments[0] if isinstance(arguments[0], tuple) else arguments
            named = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], dict) else {}
            function = getattr(torch.linalg, name.removeprefix("linalg_")) if name.startswith("linalg") else None
            try:
                result = (function or getattr(home, name))(*positional, **named)
            except NotImplementedError:
                assert name in WITHOUT_META
                continue
            first = result if isinstance(result, torch.Tensor) else result[0]
            assert first.dtype == dtype, name
            tried += 1
    assert tried > 80


def test_a_weight_is_cast_once_in_a_context_and_again_in_the_next() -> None:
    traced, weight, source = Traced(), meta(8, 4, grad=True), meta(2, 4)

    def twice() -> None:
        with autocast(torch.float16):
            F.linear(F.linear(source, weight), weight.t().contiguous())
            F.linear(source, weight)

    traced.run(twice)
    weight_cast = 8 * 4 * 2
    assert traced.made_by("_to_copy").count(weight_cast) == 2  # the leaf once; its transpose, no leaf, on its own
    traced.run(twice)
    assert traced.made_by("_to_copy").count(weight_cast) == 4


def test_autocast_can_be_switched_off_inside() -> None:
    weight, source = meta(8, 4, grad=True), meta(2, 4)
    with autocast(torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", enabled=False):
            assert F.linear(source, weight).dtype == torch.float32
        assert F.linear(source, weight).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cuda")
    assert F.linear(source, weight).dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_runs_again_is_cast_as_the_first_time(reentrant: bool) -> None:
    traced, weight, source = Traced(), meta(8, 4, grad=True), meta(2, 4, grad=True)
    seen: list[torch.dtype] = []

    def block(source: torch.Tensor) -> torch.Tensor:
        result = F.linear(source, weight)
        seen.append(result.dtype)
        return result * result  # saves the result, so the second run comes this far

    def step() -> torch.Tensor:
        with autocast(torch.bfloat16):
            return checkpoint(block, source, use_reentrant=reentrant)

    loss = traced.run(step)
    with casting():
        traced.backward(loss.sum())
    assert seen == [torch.bfloat16, torch.bfloat16]


def test_autocast_leaves_the_cpu_and_doubles_alone() -> None:
    with autocast(torch.float16):
        assert F.linear(torch.ones(2, 4), torch.ones(3, 4)).dtype == torch.float32
        double = meta(3, 4, dtype=torch.float64)
        assert F.linear(meta(2, 4, dtype=torch.float64), double).dtype == torch.float64


def test_the_banned_loss_is_refused() -> None:
    with autocast(torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(meta(3), meta(3))


def test_half_softmax_goes_to_fp32_without_a_cast_and_bfloat16_with_one() -> None:
    for dtype, casts in ((torch.float16, 0), (torch.bfloat16, 1)):
        traced, source = Traced(), meta(4, 8, dtype=dtype)

        def work(source: torch.Tensor = source, dtype: torch.dtype = dtype) -> torch.Tensor:
            with autocast(dtype):
                return torch.log_softmax(source, -1)

        assert traced.run(work).dtype == torch.float32
        assert len(traced.made_by("_to_copy")) == casts


# ---- what CUDA chooses


def test_dropout_saves_a_mask_of_one_byte_an_element_made_first() -> None:
    traced, source = Traced(), meta(16, 64, grad=True)
    held = traced.run(lambda: F.dropout(source, 0.5))
    assert held.grad_fn.name() == "NativeDropoutBackward0"
    assert traced.made_by("native_dropout") == [16 * 64, 16 * 64 * 4]


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_or_everything_is_not_fused(p: float) -> None:
    traced, source = Traced(), meta(16, 64)
    traced.run(lambda: F.dropout(source, p))
    assert traced.made_by("native_dropout") == []


@pytest.mark.parametrize(
    ("dtype", "capability", "width", "operator"),
    [
        (torch.float16, (8, 0), 64, "_scaled_dot_product_flash_attention"),
        (torch.bfloat16, (8, 9), 64, "_scaled_dot_product_flash_attention"),
        (torch.float16, (8, 9), 224, "_scaled_dot_product_efficient_attention"),  # gradients of wide heads on sm89
        (torch.float16, (8, 9), 256, "_scaled_dot_product_flash_attention"),
        (torch.float16, (7, 5), 64, "_scaled_dot_product_efficient_attention"),
        (torch.float32, (8, 9), 64, "_scaled_dot_product_efficient_attention"),
        (torch.float32, (8, 9), 63, "softmax"),
        (torch.bfloat16, (7, 5), 64, "softmax"),
        (torch.float64, (8, 0), 64, "softmax"),
    ],
)
def test_attention_takes_the_kernel_of_the_card_and_the_type(
    dtype: torch.dtype, capability: tuple[int, int], width: int, operator: str
) -> None:
    traced = Traced(capability=capability)
    query = meta(2, 3, 32, width, dtype=dtype, grad=True)
    result = traced.run(lambda: F.scaled_dot_product_attention(query, query, query))
    assert result.shape == query.shape
    assert any(operator in label.operator for label in traced.trace.labels)


def test_a_mask_excludes_flash_attention() -> None:
    traced, query = Traced(), meta(2, 3, 32, 64, dtype=torch.float16, grad=True)
    mask = meta(32, 32, dtype=torch.bool)
    traced.run(lambda: F.scaled_dot_product_attention(query, query, query, attn_mask=mask))
    assert traced.made_by("_scaled_dot_product_efficient_attention")
    assert not traced.made_by("_scaled_dot_product_flash_attention")


def test_nothing_is_chosen_outside_a_session() -> None:
    Traced().run(lambda: None)
    assert F.dropout(meta(4, grad=True), 0.5).grad_fn.name() != "NativeDropoutBackward0"  # type: ignore[union-attr]
    key = torch._C.DispatchKey.AutocastIPU  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        Traced().run(lambda: 1 // 0)
    assert not torch._C._dispatch_tls_is_dispatch_key_included(key)


# ---- lifetimes


def test_a_storage_is_freed_when_the_last_tensor_on_it_goes() -> None:
    traced = Traced()
    first = traced.run(lambda: torch.zeros(1000, device="meta"))
    view = first[3:7]
    assert traced.allocator.allocated_bytes == 4096
    del first
    assert traced.allocator.allocated_bytes == 4096
    del view
    assert traced.allocator.allocated_bytes == 0
    assert traced.trace.events == (0, ~0)


def test_views_and_in_place_operators_allocate_nothing() -> None:
    traced, source = Traced(), meta(4, 6)
    traced.run(lambda: source.t().reshape(4, 6)[1:].unsqueeze(0).add_(1).mul_(2).detach())
    assert traced.made_by("clone") == [4 * 6 * 4]  # the reshape of a transpose copies; nothing else does
    assert len(traced.trace.sizes) == 1


def test_gradients_that_meet_are_added_in_place_unless_another_holds_them() -> None:
    traced, weight = Traced(), meta(1000, grad=True)
    hidden = traced.run(lambda: weight * 2)
    loss = traced.run(lambda: (hidden.sin() + hidden.cos() + hidden.exp()).sum())
    traced.backward(loss)
    assert traced.made_by("add")[2:] == []  # the two sums of the forward are all there is

    shared = Traced()
    hidden = shared.run(lambda: weight * 2)
    loss = shared.run(lambda: (hidden + hidden.sin()).sum())  # the sum hands one gradient to both branches
    shared.backward(loss)
    assert len(shared.made_by("add")) == 2


def test_a_sum_in_a_backward_written_by_hand_is_a_sum() -> None:
    traced, weight = Traced(), meta(1000, grad=True)

    def step() -> None:
        loss = (weight * 2).sum()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
        assert (gradient + gradient) is not gradient

    traced.run(step)
    assert traced.made_by("add") == [4000]


@pytest.mark.parametrize("capability", [(6, 1), (7, 5), (8, 0), (8, 9), (9, 0), (12, 0)])
def test_cublas_takes_a_workspace_in_each_thread_at_the_first_product(capability: tuple[int, int]) -> None:
    traced, weight = Traced(capability=capability), meta(8, 8, grad=True)
    loss = traced.run(lambda: (weight @ weight @ weight).sum())
    assert traced.made_by("cublas_workspace") == [cublas_workspace_bytes(capability)]
    traced.backward(loss)
    assert traced.made_by("cublas_workspace") == [cublas_workspace_bytes(capability)] * 2
    if capability <= (9, 0):  # above it depends on the release, and tests/rig holds it
        assert cublas_workspace_bytes(capability) == (33554432 if capability[0] == 9 else 8519680)


def test_foreach_optimizers_make_adams_transients_a_parameter() -> None:
    model = nn.Linear(100, 100, bias=False, device="meta")
    model.weight.grad = torch.empty_like(model.weight)
    optimizer = torch.optim.Adam(model.parameters())
    traced = Traced()
    traced.tracer.phase = "step"
    for step in (1, 2):
        traced.run(optimizer.step)
        assert optimizer.param_groups[0]["foreach"] is True
        assert traced.allocator.peak_allocated_bytes == 3 * 40448, step  # two states and one transient
    assert traced.allocator.allocated_bytes == 2 * 40448


def test_an_optimizer_that_was_told_otherwise_is_left_alone() -> None:
    weight = nn.Parameter(meta(10))
    weight.grad = meta(10)
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
    Traced().run(optimizer.step)
    assert optimizer.param_groups[0]["foreach"] is False


def test_the_gradient_scaler_steps_and_keeps_two_scalars() -> None:
    weight = nn.Parameter(meta(1000))
    traced, scaler, optimizer = Traced(), SimulatedGradScaler(enabled=True), torch.optim.SGD([weight], lr=0.1)
    scaled = traced.run(lambda: scaler.scale((weight * 2).sum()))
    traced.backward(scaled)
    stepped: list[int] = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    traced.run(lambda: scaler.step(optimizer))
    traced.run(scaler.update)
    assert stepped == [1]
    weight.grad = None
    del scaled
    assert traced.allocator.allocated_bytes == 2 * 512


# ---- labels


def test_backward_is_labelled_with_the_module_whose_forward_made_the_node() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.GELU()), nn.Linear(16, 2)).to("meta")
    traced = Traced()
    traced.modules.name(model)
    loss = traced.run(lambda: model(meta(3, 4)).sum())
    traced.backward(loss)
    found = {
        (label.phase, label.operator): set[str]()
        for label in traced.trace.labels
        if label.operator in ("addmm", "mm", "gelu", "gelu_backward")
    }
    for label in traced.trace.labels:
        if (label.phase, label.operator) in found:
            found[label.phase, label.operator].add(label.module)
    assert found == {
        ("forward", "addmm"): {"0", "1.0", "2"},
        ("forward", "gelu"): {"1.1"},
        ("backward", "mm"): {"0", "1.0", "2"},
        ("backward", "gelu_backward"): {"1.1"},
    }


def test_what_autograd_stores_is_a_gradient() -> None:
    model = nn.Linear(40, 80, device="meta")
    traced = Traced()
    loss = traced.run(lambda: model(meta(3, 40)).sum())
    traced.backward(loss)
    trace = traced.trace
    gradients = [trace.sizes[n] for n in range(len(trace.sizes)) if trace.label(n).kind == "gradients"]
    assert sorted(gradients) == [80 * 4, 40 * 80 * 4]
    at_peak, holdings = traced.ledger.breakdowns()
    assert at_peak.total_bytes == traced.allocator.peak_allocated_bytes
    assert holdings.gradients == 512 + 12800


# ---- out of memory


def test_out_of_memory_says_where_and_leaves_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).to("meta")
    traced, source = Traced(capacity_bytes=80 * MIB), meta(10_000, 1024)
    traced.modules.name(model)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as caught:
        traced.run(lambda: model(source))
    error = caught.value
    assert isinstance(error, SimulatedOutOfMemory)
    assert (error.label.operator, error.label.module, error.label.phase) == ("addmm", "1", "forward")
    assert error.requested_bytes == 10_000 * 1024 * 4
    del caught, error
    assert traced.run(lambda: model(source[:10])).shape == (10, 1024)


def test_scratch_is_given_back_when_an_operator_runs_out_midway() -> None:
    """A copy into cuDNN's layout is held while the result is refused."""
    traced, weight = Traced(capacity_bytes=64 * MIB), meta(4, 8, 1, 1)
    source = traced.run(lambda: torch.zeros(2, 1024, 512, 8, device="meta")).permute(0, 3, 1, 2)[:, :, ::2]
    before = traced.allocator.allocated_bytes
    with pytest.raises(SimulatedOutOfMemory):
        traced.run(lambda: F.conv2d(source.expand(2, 8, 512, 512), weight))
    assert traced.allocator.allocated_bytes == before


# ---- shapes made here instead of by the meta kernels

CONVOLUTIONS = st.fixed_dictionaries(
    {
        "stride": st.integers(1, 3),
        "padding": st.integers(0, 3),
        "dilation": st.integers(1, 2),
        "groups": st.sampled_from([1, 2, 4]),
    }
)


@settings(deadline=None, max_examples=60)
@given(CONVOLUTIONS, st.integers(1, 3), st.booleans(), st.integers(7, 12), st.integers(1, 3), st.integers(1, 3))
def test_convolutions_have_the_shapes_that_the_cpu_gives(
    options: dict[str, int], dims: int, transposed: bool, size: int, kernel: int, batch: int
) -> None:
    make = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    layer = make(4, 8, kernel, **options)
    source = torch.zeros(batch, 4, *[size + axis for axis in range(dims)], requires_grad=True)
    expected = layer(source)
    expected.sum().backward()

    on_meta, meta_source = layer.to("meta"), source.detach().to("meta").requires_grad_()
    for parameter in on_meta.parameters():
        parameter.grad = None
    traced = Traced()
    result = traced.run(lambda: on_meta(meta_source))
    assert result.shape == expected.shape
    traced.backward(result.sum())
    assert meta_source.grad is not None
    assert meta_source.grad.shape == source.shape
    assert all(p.grad is not None and p.grad.shape == p.shape for p in on_meta.parameters())


@pytest.mark.parametrize(
    ("source", "weight"), [((2, 3, 8, 8), (4, 5, 3, 3)), ((2, 3, 2, 2), (4, 3, 3, 3)), ((2, 3, 8), (4, 3, 3))]
)
def test_a_convolution_that_cannot_be_is_an_error(source: tuple[int, ...], weight: tuple[int, ...]) -> None:
    convolve = F.conv1d if len(source) == 3 and len(weight) == 3 and source[1] != weight[1] else F.conv2d
    with pytest.raises(RuntimeError):
        convolve(torch.zeros(source), torch.zeros(weight))
    with pytest.raises(RuntimeError):
        Traced().run(lambda: convolve(meta(*source), meta(*weight)))


def test_a_convolution_of_mixed_types_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="should be the same"):
        Traced().run(lambda: F.conv2d(meta(2, 3, 8, 8), meta(4, 3, 3, 3, dtype=torch.float16)))


def test_channels_last_stays_channels_last_through_convolution_and_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).to("meta")
    source = meta(2, 3, 16, 16).to(memory_format=torch.channels_last)
    result = Traced().run(lambda: model(source))
    assert result.is_contiguous(memory_format=torch.channels_last)


# ---- shapes and layouts that are made here because the meta kernels are slow

DTYPES = st.sampled_from([torch.float32, torch.float16, torch.int64])


@st.composite
def operands(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor | float]:
    """A tensor of any layout, and one that broadcasts with it, or a number."""
    shape = draw(st.lists(st.integers(1, 3), min_size=0, max_size=4))

    def laid_out(shape: list[int]) -> torch.Tensor:
        axes = draw(st.permutations(range(len(shape))))
        whole = meta(*[shape[axis] for axis in axes], dtype=draw(DTYPES))
        tensor = whole.permute([axes.index(axis) for axis in range(len(shape))])
        wider = [draw(st.sampled_from([size, 3])) if size == 1 else size for size in tensor.shape]
        return tensor.expand(wider) if draw(st.booleans()) else tensor

    first = laid_out(shape)
    if draw(st.booleans()):
        return first, draw(st.sampled_from([2, 0.5, True]))
    start = draw(st.integers(0, len(shape)))
    other = [draw(st.sampled_from([1, size])) for size in first.shape[start:]]
    return first, laid_out(other)


@settings(deadline=None)
@given(operands(), st.sampled_from(["add", "sub", "mul", "div"]))
def test_arithmetic_has_the_dtype_and_layout_of_the_meta_kernel(
    pair: tuple[torch.Tensor, torch.Tensor | float], name: str
) -> None:
    function = getattr(torch, name)
    try:
        expected = function(*pair)
    except RuntimeError:
        return  # shapes that do not broadcast
    result = Traced().run(lambda: function(*pair))
    assert layout(result) == layout(expected)


@settings(deadline=None)
@given(operands(), st.sampled_from(["relu", "sigmoid", "tanh", "rsqrt", "neg", "square"]))
def test_functions_have_the_dtype_and_layout_of_the_meta_kernel(
    pair: tuple[torch.Tensor, torch.Tensor | float], name: str
) -> None:
    function, source = getattr(torch, name), pair[0]
    expected, result = function(source), Traced().run(lambda: function(source))
    assert layout(result) == layout(expected)


def layout(tensor: torch.Tensor) -> tuple[object, ...]:
    """Type, shape and strides; the stride of an axis of one row says nothing."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return tensor.dtype, tensor.shape, strides


# ---- cuDNN's workspaces


def convolved(
    capability: tuple[int, int], *, dtype: torch.dtype, kernel: int, channels_last: bool = False
) -> list[int]:
    """The workspaces of one convolution's backward, 8 to 16 channels on 10 x 10 pixels."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    traced = Traced(capability=capability)
    source = meta(4, 8, 10, 10, dtype=dtype).contiguous(memory_format=layout).requires_grad_()
    weight = meta(16, 8, kernel, kernel, dtype=dtype, grad=True)
    result = traced.run(lambda: F.conv2d(source, weight, padding=kernel // 2))
    traced.backward(result.sum())
    return traced.made_by(WORKSPACE_OPERATOR)


@pytest.mark.parametrize(
    ("capability", "dtype", "taken"),
    [
        ((8, 0), torch.float32, True),
        ((8, 6), torch.float32, False),
        ((8, 9), torch.float32, False),
        ((9, 0), torch.float32, True),
        ((7, 5), torch.float32, False),
        ((7, 5), torch.float16, True),
        ((6, 1), torch.float16, False),
        ((8, 6), torch.bfloat16, True),
        ((7, 5), torch.bfloat16, False),
    ],
)
def test_either_gradient_transposes_where_tensor_cores_win(
    capability: tuple[int, int], dtype: torch.dtype, taken: bool
) -> None:
    copies = (4 * 8 * 100 + 4 * 16 * 100 + 16 * 8 * 9) * dtype.itemsize
    assert convolved(capability, dtype=dtype, kernel=3) == [copies, copies] * taken


def test_one_pixel_and_channels_last_transpose_nothing() -> None:
    assert convolved((8, 0), dtype=torch.float32, kernel=1) == []
    assert convolved((8, 0), dtype=torch.float32, kernel=3, channels_last=True) == []


def test_a_search_gives_the_cache_back_once_for_each_convolution_that_is_new() -> None:
    traced = Traced()
    weight, other = (meta(8, 8, size, size, grad=True) for size in (3, 5))
    depthwise = meta(8, 1, 3, 3, grad=True)
    source = meta(4, 8, 16, 16, grad=True)

    def searches(weight: torch.Tensor, groups: int = 1) -> int:
        before = len(traced.trace.empties)
        result = traced.run(lambda: F.conv2d(source, weight, groups=groups))
        traced.backward(result.sum())
        return len(traced.trace.empties) - before

    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        assert [searches(weight), searches(weight), searches(other), searches(depthwise, 8)] == [3, 0, 3, 0]
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        assert searches(meta(8, 8, 7, 7, grad=True)) == 0


def test_a_refused_workspace_is_passed_over_in_the_step_and_in_its_replay() -> None:
    def step(traced: Traced) -> None:
        source, weight = meta(8, 64, 64, 64, grad=True), meta(64, 64, 3, 3, grad=True)
        result = traced.run(lambda: F.conv2d(source, weight, padding=1))
        traced.backward(result.sum())

    free = Traced(capability=(8, 0))
    step(free)
    refusing = 0
    # From what the tensors alone need to what the workspaces take on top.
    for capacity in range(MIB, free.allocator.peak_reserved_bytes + 2 * MIB, MIB):
        replayed = replay(free.trace, CachingAllocator(capacity_bytes=capacity))
        tight = Traced(capability=(8, 0), capacity_bytes=capacity)
        if replayed.fits:
            step(tight)
            refusing += len(tight.made_by(WORKSPACE_OPERATOR)) < 2
            assert tight.allocator.peak_reserved_bytes == replayed.peak_reserved_bytes, capacity
            continue
        with pytest.raises(SimulatedOutOfMemory) as refused:
            step(tight)
        assert replayed.failure is not None
        assert refused.value.label.operator == replayed.failure.label.operator != WORKSPACE_OPERATOR
    assert refusing > 0

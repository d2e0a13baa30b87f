"""The casts of ``torch.autocast("cuda")`` on meta tensors, on which torch's own autocast does not act.

torch's autocast is a set of kernels on a dispatch key above autograd (aten/src/ATen/autocast_mode.cpp); an operator
that composite C++ code calls passes it as one that Python calls does.  These are the same kernels in Python, on the key
``AutocastPrivateUse1``, which nothing in PyTorch uses.  The key is in the thread's set only inside ``casting``, so
the registrations are inert everywhere else.

Whether they cast, and to what, is torch's own state of autocast for ``cuda``, so it may be switched on and off by
whoever does so on a GPU: the loop, a model that runs a part in fp32, activation checkpointing that runs a block a
second time in backward.  Four functions of torch say, while inside, what they would say on a GPU: that there is one,
that it knows bfloat16, that what is on meta is on it, and that this cache is cleared with torch's.

The lists below are those of aten/src/ATen/autocast_mode.h, 2.14; names that a build does not know are left out at
registration.  Casts of weights are cached until the outermost context ends, as there: an fp32 leaf that wants a
gradient and is no view is cast once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.utils.checkpoint
from torch._C import DispatchKey

from sweeper.worker.tracing import recurrent_selection

__all__ = ["BANNED", "FP32", "FP32_OUTPUT", "LOWER_PRECISION", "PROMOTE", "casting", "dispatch_key_open"]

LOWER_PRECISION = (
    "_convolution", "_convolution.deprecated", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "cudnn_convolution",
    "cudnn_convolution_transpose", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv",
    "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip

FP32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "group_norm", "rms_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div",
    "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa", "linalg_matrix_sqrth",
)  # fmt: skip

# Called with dtype=float32 instead of a cast of what goes in, so the cast can be fused into the kernel.
FP32_OUTPUT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList", "norm.Scalar",
    "norm.ScalarOpt_dim",
)  # fmt: skip

PROMOTE = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip

# torchvision's operators on boxes compute in fp32 and return their input's type: torchvision/csrc/ops/autocast.
_OF_TORCHVISION = ("nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")

BANNED = ("binary_cross_entropy",)

# ``norm`` has its dtype in other overloads: AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE.
_WITH_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

_KEY: DispatchKey = DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
_KEY_SET = torch._C.DispatchKeySet(_KEY)
_LIBRARIES: list[Any] = []  # a registration ends with its library


class _Casts:
    """The casts into the lower precision that torch is set to, with the cache of weights in it."""

    def __init__(self) -> None:
        self._weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def lower(self) -> torch.dtype:
        return torch.get_autocast_dtype("cuda")

    def clear(self) -> None:
        self._weights.clear()

    def call(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], to: torch.dtype) -> Any:
        return op(*self._all(args, to), **{name: self._each(value, to) for name, value in kwargs.items()})

    def to_half(self, value: Any) -> Any:
        return self._each(value, torch.float16)

    def to_widest(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """``promote_type``: fp32 if any is fp32, else as they are."""
        found = {tensor.dtype for tensor in _tensors((args, tuple(kwargs.values()))) if eligible(tensor)}
        to = torch.float32 if torch.float32 in found or len(found) > 1 else self.lower
        return self._all(args, to), {name: self._each(value, to) for name, value in kwargs.items()}

    def _each(self, value: Any, to: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._cast(value, to) if eligible(value) and value.dtype != to else value
        if isinstance(value, tuple | list):
            return type(value)([self._each(item, to) for item in value])
        return value

    def _all(self, args: tuple[Any, ...], to: torch.dtype) -> tuple[Any, ...]:
        """Last first: the C++ casts inside an argument list, which GCC evaluates from the right."""
        return tuple(reversed([self._each(item, to) for item in reversed(args)]))

    def _cast(self, tensor: torch.Tensor, to: torch.dtype) -> torch.Tensor:
        cachable = (
            torch.is_autocast_cache_enabled()
            and to == self.lower
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
        )
        if not cachable:
            return tensor.to(to)
        known = self._weights.get(id(tensor))
        if known is None:
            known = self._weights[id(tensor)] = (tensor, tensor.to(to))
        return known[1]


_casts = _Casts()


def eligible(tensor: torch.Tensor) -> bool:
    """Does autocast act on ``tensor``?  ``is_eligible``, aten/src/ATen/autocast_mode.h: on the card, not double."""
    return tensor.is_meta and tensor.is_floating_point() and tensor.dtype != torch.float64


@contextmanager
def casting() -> Iterator[None]:
    """While inside, ``torch.autocast("cuda")`` acts on meta tensors."""
    _register()
    infer: Callable[..., str] = torch.utils.checkpoint._infer_device_type
    clear: Callable[[], None] = torch.clear_autocast_cache
    with (
        _replaced(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        _replaced(torch.cuda, "is_bf16_supported", _supports_bfloat16),
        _replaced(torch.utils.checkpoint, "_infer_device_type", lambda *args: infer(*args).replace("meta", "cuda")),
        _replaced(torch, "clear_autocast_cache", _both(clear, _casts.clear)),
        dispatch_key_open(_KEY),
    ):
        try:
            yield
        finally:
            _casts.clear()


def _supports_bfloat16(including_emulation: bool = True) -> bool:
    """Cards before sm80 emulate it, and torch counts that."""
    return True


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


@contextmanager
def _replaced(module: Any, name: str, function: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def dispatch_key_open(key: DispatchKey) -> Iterator[None]:
    """Let calls of this thread pass through the kernels on ``key``; autocast keys are excluded by default."""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    included = torch._C._dispatch_tls_is_dispatch_key_included(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    torch._C._dispatch_tls_set_dispatch_key_included(key, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(key, included)
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, excluded)


@cache
def _register() -> None:
    through = torch.library.Library("_", "IMPL", _KEY.name)
    through.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL", _KEY.name)
    known = set(torch._C._dispatch_get_all_op_names())
    for names, make in (
        (LOWER_PRECISION, _lower_kernel),
        (FP32, _fp32_kernel),
        (FP32_OUTPUT, _fp32_output_kernel),
        (PROMOTE, _promote_kernel),
        (BANNED, _banned_kernel),
    ):
        for name in names:
            qualified = f"aten::{name}"
            if qualified in known and torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "AutocastCUDA"):
                library.impl(name, _kernel(name, make))
    library.impl("_cudnn_rnn", _kernel("_cudnn_rnn", _network_kernel))
    _LIBRARIES.extend((through, library))
    found = [name for name in _OF_TORCHVISION if f"torchvision::{name}" in known]
    if found:  # torchvision is imported
        library = torch.library.Library("torchvision", "IMPL", _KEY.name)
        for name in found:
            library.impl(name, _box_kernel(getattr(torch.ops.torchvision, name).default))
        _LIBRARIES.append(library)


Rule = Callable[[_Casts, tuple[Any, ...], dict[str, Any]], Any]


def _kernel(name: str, make: Callable[[str], Rule]) -> Callable[..., Any]:
    op, rule = _overload(name), make(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
            if not torch.is_autocast_enabled("cuda"):
                return op(*args, **kwargs)
            return rule(_casts, args, kwargs)

    return kernel


def _lower_kernel(name: str) -> Rule:
    op = _overload(name)
    return lambda casts, args, kwargs: casts.call(op, args, kwargs, casts.lower)


def _network_kernel(name: str) -> Rule:
    def rule(casts: _Casts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return recurrent_selection.cast_and_flatten(casts.to_half, eligible, args)

    return rule


def _fp32_kernel(name: str) -> Rule:
    op = _overload(name)
    return lambda casts, args, kwargs: casts.call(op, args, kwargs, torch.float32)


def _fp32_output_kernel(name: str) -> Rule:
    plain, wide = _overload(name), _overload(_WITH_DTYPE.get(name, name))
    place = [argument.name for argument in wide._schema.arguments].index("dtype")

    def rule(casts: _Casts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = kwargs.get("dtype") is not None or (len(args) > place and args[place] is not None)
        if given or not eligible(args[0]):
            return plain(*args, **kwargs)
        return wide(*args[:place], **{**kwargs, "dtype": torch.float32})

    return rule


def _box_kernel(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
            if not torch.is_autocast_enabled("cuda"):
                return op(*args)
            result, dtype = _casts.call(op, args, {}, torch.float32), args[0].dtype
            if isinstance(result, tuple):
                return tuple(each.to(dtype) for each in result)
            return result if op is torch.ops.torchvision.nms.default else result.to(dtype)

    return kernel


def _promote_kernel(name: str) -> Rule:
    op = _overload(name)

    def rule(casts: _Casts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = casts.to_widest(args, kwargs)
        return op(*args, **kwargs)

    return rule


def _banned_kernel(name: str) -> Rule:
    def rule(casts: _Casts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise RuntimeError(
            f"{name} is unsafe to autocast: its gradient overflows in fp16.  Use binary_cross_entropy_with_logits."
        )

    return rule


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)

"""The number types of a step: what the model and its batch are held in, and the flags of PyTorch's that it runs under.

``fp32``
    Nothing is changed.  PyTorch's own defaults then let convolutions round to TF32 and matrix products not.
``tf32``
    Both may round: ``torch.set_float32_matmul_precision("high")`` and ``torch.backends.cudnn.allow_tf32``, the two
    switches that every release from 2.6 to 2.14 has.  No tensor changes its size by it.
``amp-fp16``, ``amp-bf16``
    Weights stay fp32; autocast is the device's own (``Device.autocast``), as is the gradient scaler.
``fp16``, ``bf16``
    Everything that is floating-point is of that type: weights, buffers, inputs, targets, and with them gradients, state
    of the optimizer, and the loss, which is in whatever the model gives.
``fp8``
    torchao's ``convert_to_float8_training``, not compiled: each linear layer that can be (``_fits_fp8``) casts its
    input, its weight and its gradient to 8 bits before each product, scaled by their largest value.  Weights,
    gradients and what is kept for backward stay fp32, so it saves no memory; that is what is to be seen.

On a simulated card the same code runs on meta tensors.  torchao's casts are ordinary operators of PyTorch's, and its
tensors of 8 bits are wrappers of plain ones, so each is seen as it is on CUDA.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sweeper.errors import UsageError
from sweeper.trial import Precision
from sweeper.worker.devices import map_tensors
from sweeper.worker.models import Batch

__all__ = ["batch_in", "flags_of", "model_in"]

_HELD_IN = {"fp16": torch.float16, "bf16": torch.bfloat16}

# torch._scaled_mm takes matrices whose sides are multiples of 16: aten/src/ATen/native/cuda/ScaledBlas.cpp, torch 2.14.
_FP8_MULTIPLE = 16


def model_in(model: nn.Module, precision: Precision) -> nn.Module:
    """Return ``model``, in whole or in part of the type that ``precision`` asks for; it is changed in place.

    Raises ``UsageError`` where fp8 has nothing to compute in, or nothing to do it with.
    """
    if precision == "fp8":
        return _with_fp8_products(model)
    dtype = _HELD_IN.get(precision)
    return model if dtype is None else model.to(dtype)


def batch_in(batch: Batch, precision: Precision) -> Batch:
    """Return ``batch`` with every floating-point tensor in the type of the weights."""
    dtype = _HELD_IN.get(precision)
    if dtype is None:
        return batch
    cast = map_tensors(batch, lambda t: t.to(dtype) if t.is_floating_point() else t)
    return (cast[0], cast[1])


@contextmanager
def flags_of(precision: Precision) -> Iterator[None]:
    """The flags that ``precision`` stands for hold inside; afterwards they are as before."""
    if precision != "tf32":
        yield
        return
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def _with_fp8_products(model: nn.Module) -> nn.Module:
    try:
        float8: Any = importlib.import_module("torchao.float8")
    except ImportError:
        raise UsageError("--precision fp8 needs torchao", hint="pip install 'sweeper[fp8]'") from None
    if not any(_fits_fp8(module) for module in model.modules()):
        raise UsageError(
            "--precision fp8 is for linear layers, and this model has none that could be",
            hint=f"both sides must be multiples of {_FP8_MULTIPLE}; take --precision amp-bf16",
        )
    # The gradient of a weight is a product over all rows of the batch, whose number is then padded to a multiple of 16.
    config = float8.Float8LinearConfig(pad_inner_dim=True)
    converted: nn.Module = float8.convert_to_float8_training(
        model, module_filter_fn=lambda module, _name: _fits_fp8(module), config=config
    )
    return converted


def _fits_fp8(module: nn.Module) -> bool:
    """Is it a linear layer that calls its own forward, with sides that the tensor cores take?

    ``nn.MultiheadAttention`` reads its projection's weight (a subclass) without calling it.
    """
    return type(module) is nn.Linear and module.in_features % _FP8_MULTIPLE == module.out_features % _FP8_MULTIPLE == 0

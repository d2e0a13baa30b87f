"""The jobs of the differential test: what is trained, and how, the same on ``cuda`` and on meta tensors.

The library's models are built from small configurations of their own classes, so nothing is downloaded and the whole
test stays short; what they call is what their large ones call.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.checkpoint import checkpoint

from sweeper.trial import Mode, Precision
from sweeper.worker.devices import Device
from sweeper.worker.precision import batch_in, flags_of, model_in
from sweeper.worker.tracing import releases
from sweeper.worker.tracing.eight_bit import uncompiled

__all__ = ["JOBS", "OTHER_PATH", "Job", "missing_library", "train"]


def _eight_bit(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    """Its state as torchao makes it; its arithmetic is a program of Triton's, and none runs on the stand-in."""
    kind = importlib.import_module("torchao.optim").AdamW8bit
    return uncompiled(kind, arithmetic=False)(parameters, **options)


_OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
    "adamw-8bit": _eight_bit,
}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4},
    "decay": {"weight_decay": 1e-2},
    "amsgrad": {"amsgrad": True},
    "centered": {"centered": True, "momentum": 0.9},
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


@dataclass(frozen=True)
class Job:
    """One way to train; ``capability`` is ten times the card's, ``option`` one of the optimizer's."""

    model: str
    precision: Precision = "fp32"
    optimizer: str = "sgd"
    option: str = ""
    mode: Mode = "train"
    capability: int = 89
    benchmark: bool = False  # torch.backends.cudnn.benchmark

    def __str__(self) -> str:
        return "-".join(
            str(getattr(self, one.name)) if one.name != "benchmark" else "benchmark"
            for one in fields(self)
            if getattr(self, one.name) != one.default
        )


# Heads that share keys have a fused kernel in fp32 since 2.14 or a little before.
_SHARING_IN_FP32 = Job("llama", "fp32", "adamw")

JOBS = [
    Job("resnet18"),
    Job("resnet18", "fp32", "adam", capability=90),
    Job("resnet18", "amp-fp16", capability=75),
    Job("resnet18", "amp-bf16", "adamw"),
    Job("resnet18", "bf16"),
    Job("resnet18", mode="inference"),
    Job("resnet18", "amp-fp16", mode="inference"),
    Job("resnet18", mode="inference", capability=120),
    Job("resnet18", benchmark=True),
    *(Job("resnet18", option=option) for option in ("momentum", "nesterov", "loop", "fused")),
    *(Job("resnet18", optimizer="adam", option=option) for option in ("decay", "amsgrad", "loop", "fused")),
    Job("resnet18", "amp-fp16", "adam", "fused"),
    *(Job("resnet18", optimizer="adamw", option=option) for option in ("loop", "fused")),
    *(Job("resnet18", optimizer="adagrad", option=option) for option in ("", "loop", "decay")),
    *(Job("resnet18", optimizer="rmsprop", option=option) for option in ("", "centered", "loop")),
    *([Job("resnet18", optimizer="adagrad", option="fused")] if releases.ADAGRAD_IS_FUSED else []),
    *(Job("resnet18", optimizer="adafactor", option=option) for option in ("", "foreach", "decay")),
    Job("vit", "bf16", "adafactor"),
    Job("resnet18", optimizer="adamw-8bit"),
    Job("vit", "bf16", "adamw-8bit"),
    *(Job("resnet18", precision) for precision in ("tf32", "fp16")),
    *(Job("encoder", "fp8", "adamw", capability=capability) for capability in (89, 90)),
    Job("channels_last", "amp-fp16"),
    Job("channels_last", "amp-fp16", benchmark=True),
    Job("checkpointed", "fp32", "adamw"),
    Job("checkpointed", "amp-bf16", "adamw"),
    Job("resnet50", "amp-fp16", "adamw"),
    Job("mobilenet_v2", "amp-fp16", "adam"),
    Job("mobilenet_v3_small"),
    Job("efficientnet_b0"),
    Job("shufflenet_v2_x1_0", "amp-fp16"),
    Job("densenet121"),
    Job("squeezenet1_1"),
    Job("regnet_y_400mf", "amp-bf16"),
    *(Job("vit", precision, "adamw") for precision in ("fp32", "amp-fp16", "amp-bf16", "bf16")),
    *(Job("swin", precision, "adamw") for precision in ("fp32", "amp-fp16", "amp-bf16", "bf16")),
    Job("swin", "amp-fp16", capability=75),
    Job("swin", mode="inference"),
    *(Job("encoder", precision, "adamw", capability=89) for precision in ("fp32", "amp-fp16", "amp-bf16", "bf16")),
    Job("encoder", "amp-fp16", "adam", capability=75),
    Job("encoder", "amp-bf16", "adam", capability=90),
    *(Job("decoder", precision, "adamw", capability=80) for precision in ("fp32", "amp-fp16", "amp-bf16", "bf16")),
    Job("decoder", "fp32", mode="inference"),
    *(
        Job(model, precision, "adamw")
        for model in ("gpt2", "gpt2-eager", "bert", "t5")
        for precision in ("fp32", "amp-fp16", "amp-bf16", "bf16")
    ),
    *(Job(model, "amp-fp16", capability=75) for model in ("gpt2", "bert", "t5")),
    *(Job(model, "fp32", "adamw", capability=90) for model in ("gpt2", "bert", "t5")),
    *(Job(model, mode="inference") for model in ("gpt2", "bert", "t5")),
    *(Job(f"{model}-checkpointed", "amp-bf16", "adamw") for model in ("bert", "t5")),
    Job("gpt2-long", "fp32", "adamw"),
    *(Job("llama", precision, "adamw") for precision in ("amp-fp16", "bf16")),
    *([_SHARING_IN_FP32] if releases.EFFICIENT_SHARES_HEADS else []),
    Job("llama", "bf16", "adamw", capability=80),
    Job("llama", "bf16", "adamw", capability=90),
    Job("llama", "amp-bf16", "adamw", "fused"),
]

# In evaluation without gradients ``nn.MultiheadAttention`` takes a fused path on CUDA, chosen in Python by the device's
# name, that is not simulated.  Attention without a fused kernel adds its mask in place on CUDA, with a little scratch.
OTHER_PATH = [
    Job("vit", mode="inference"),
    Job("encoder", mode="inference"),
    *([] if releases.EFFICIENT_SHARES_HEADS else [_SHARING_IN_FP32]),
]

_TOKENS = ("encoder", "decoder", "gpt2", "bert", "t5", "llama")


class Encoder(nn.Module):
    """PyTorch's own encoder layers over tokens, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(512, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, 512)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden).flatten(0, 1)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Causal attention as language models write it, the head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(512, 64)
        self.norm, self.norm_again = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.head = nn.Linear(64, 512, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens)
        batch, length, width = hidden.shape
        query, key, value = self.qkv(self.norm(hidden)).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden = hidden + F.dropout(mixed, 0.1, self.training)
        hidden = hidden + self.down(F.gelu(self.up(self.norm_again(hidden))))
        return self.head(hidden).flatten(0, 1)  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    """A residual network whose stages are run again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torchvision.models.resnet18()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        whole = self.whole
        hidden = whole.maxpool(whole.relu(whole.bn1(whole.conv1(images))))
        for stage in (whole.layer1, whole.layer2, whole.layer3, whole.layer4):
            hidden = checkpoint(stage, hidden, use_reentrant=False)
        return whole.fc(whole.avgpool(hidden).flatten(1))  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """A transformers model with its own loss: tokens in, ``loss`` and ``logits`` out."""

    def __init__(self, name: str) -> None:
        super().__init__()
        name, _, how = name.partition("-")
        library = importlib.import_module("transformers")
        config, model, arguments = _LANGUAGE_MODELS[name]
        attention = {"attn_implementation": "eager"} if how == "eager" else {}
        self.whole = getattr(library, model)(getattr(library, config)(vocab_size=512, **arguments, **attention))
        if how == "checkpointed":
            enable = "activation_checkpointing_enable"  # its name before transformers 5 is the other
            name = enable if hasattr(self.whole, enable) else "gradient_checkpointing_enable"
            getattr(self.whole, name)({"use_reentrant": False})

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.whole(input_ids=tokens, labels=tokens)


# name: configuration class, model class, arguments.
_LANGUAGE_MODELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "bert": (
        "BertConfig", "BertForMaskedLM",
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256},
    ),
    "t5": (
        "T5Config", "T5ForConditionalGeneration",
        {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "llama": (
        "LlamaConfig", "LlamaForCausalLM",
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 256},
    ),
}  # fmt: skip


def missing_library(job: Job) -> str | None:
    """A library that ``job`` needs and that is not installed."""
    needed = {
        "transformers": job.model.partition("-")[0] in _LANGUAGE_MODELS,
        "torchao": job.precision == "fp8" or job.optimizer == "adamw-8bit",
    }
    return next((name for name, asked in needed.items() if asked and importlib.util.find_spec(name) is None), None)


def build(name: str) -> nn.Module:
    match name.partition("-")[0]:
        case "encoder":
            return Encoder()
        case "decoder":
            return Decoder()
        case "checkpointed":
            return Checkpointed()
        case "channels_last":
            return torchvision.models.resnet18().to(memory_format=torch.channels_last)  # type: ignore[no-any-return]
        case "vit":
            return torchvision.models.VisionTransformer(96, 16, 2, 4, 64, 256, dropout=0.1)  # type: ignore[no-any-return]
        case "swin":
            depths, heads, window = [2, 2], [2, 4], [7, 7]
            return torchvision.models.SwinTransformer([4, 4], 32, depths, heads, window, stochastic_depth_prob=0.1)  # type: ignore[no-any-return]
        case language if language in _LANGUAGE_MODELS:
            return LanguageModel(name)
    return torchvision.models.get_model(name)  # type: ignore[no-any-return]


def make_batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name.partition("-")[0] in _TOKENS:
        length = 1024 if name.endswith("-long") else 32  # over 3072 tokens the embedding's gradient is sorted
        return torch.zeros(4, length, dtype=torch.long), torch.zeros(4 * length, dtype=torch.long)
    images = torch.zeros(4, 3, 96, 96)
    if name == "channels_last":
        images = images.to(memory_format=torch.channels_last)
    return images, torch.zeros(4, dtype=torch.long)


def train(job: Job, device: Device) -> None:
    """Three steps of an ordinary training loop on ``device``."""
    learns = job.mode == "train"
    searches = torch.backends.cudnn.flags(enabled=True, benchmark=job.benchmark, allow_tf32=True)
    with device.session(), searches, flags_of(job.precision):
        built = model_in(build(job.model), job.precision).train(learns)  # on the CPU: some constructors need values
        with device.phase("setup", 0):
            model = device.place(built)
            optimizer = _OPTIMIZERS[job.optimizer](model.parameters(), lr=1e-3, **_OPTIONS[job.option])
            device.place_optimizer(optimizer)
        scaler = device.grad_scaler(enabled=job.precision == "amp-fp16" and learns)
        for step in range(3):
            with device.phase("inputs", step):
                with device.build_context():
                    made = batch_in(make_batch(job.model), job.precision)
                images, targets = device.place_batch(made)
            with device.autocast(job.precision), torch.set_grad_enabled(learns):
                with device.phase("forward", step):
                    outputs = model(images)
                if learns:
                    with device.phase("loss", step):
                        loss = F.cross_entropy(outputs, targets) if torch.is_tensor(outputs) else outputs.loss
            if learns:
                with device.phase("backward", step):
                    scaler.scale(loss).backward()
                with device.phase("step", step):
                    scaler.step(optimizer)
                    scaler.update()
                with device.phase("zero_grad", step):
                    optimizer.zero_grad(set_to_none=True)

"""A row's model, batch and loss: torchvision and timm by their registries, transformers by configuration.

No weight and no configuration is downloaded: what is published of a checkpoint is its architecture, and that is in
``_CONFIGURATIONS``, from the config.json beside each.  Fields left out are the configuration class's defaults.
"""

import importlib
import inspect
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scoring.rows import Job, Unsupported
from sweeper.model_names import check_model
from sweeper.worker.models import Batch, Workload, torchvision
from sweeper.worker.models.meta import build_on_meta

__all__ = ["build"]

# T5 had no other attention before transformers 5, which the published rows are older than.
_EAGER = {"attn_implementation": "eager"}

# name: configuration class, model class, fields that differ from the class's defaults.
_CONFIGURATIONS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "openai-community/gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
    "distilbert/distilgpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_layer": 6}),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2Config", "GPT2LMHeadModel",
        {"n_embd": 768, "n_layer": 10, "n_head": 12, "n_inner": 3072, "n_positions": 2048,
         "activation_function": "gelu"},
    ),
    "EleutherAI/gpt-neo-125M": (
        "GPTNeoConfig", "GPTNeoForCausalLM",
        {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]],
         "embed_dropout": 0.0, "attention_dropout": 0.0, "resid_dropout": 0.0},
    ),
    "facebook/opt-125m": ("OPTConfig", "OPTForCausalLM", {}),
    "facebook/opt-350m": (
        "OPTConfig", "OPTForCausalLM",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
         "word_embed_proj_dim": 512, "do_layer_norm_before": False},
    ),
    "EleutherAI/pythia-160m": (
        "GPTNeoXConfig", "GPTNeoXForCausalLM",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
         "vocab_size": 50304},
    ),
    "EleutherAI/pythia-1b": (
        "GPTNeoXConfig", "GPTNeoXForCausalLM",
        {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 8, "intermediate_size": 8192,
         "vocab_size": 50304},
    ),
    "Qwen/Qwen3-0.6B": (
        "Qwen3Config", "Qwen3ForCausalLM",
        {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
         "intermediate_size": 3072, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True},
    ),
    "google-t5/t5-small": ("T5Config", "T5ForConditionalGeneration", {"decoder_start_token_id": 0, **_EAGER}),
    "google-t5/t5-base": (
        "T5Config", "T5ForConditionalGeneration",
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0,
         **_EAGER},
    ),
    "google-bert/bert-base-uncased": ("BertConfig", "BertForMaskedLM", {}),
    "distilbert/distilbert-base-uncased": ("DistilBertConfig", "DistilBertForMaskedLM", {}),
    "FacebookAI/roberta-base": (
        "RobertaConfig", "RobertaForMaskedLM",
        {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
}  # fmt: skip


def build(job: Job) -> Workload:
    """Return the workload of ``job`` with its model on meta.  Raises ``Unsupported`` when it cannot be made here."""
    # Read by timm when it is first imported, and set again here for later models of one process.
    os.environ["TIMM_FUSED_ATTN"] = "1" if job.protocol.fused_attention else "0"
    makers = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}
    if job.library not in makers:
        raise Unsupported(f"library {job.library!r}")
    return makers[job.library](job)


def _torchvision(job: Job) -> Workload:
    if job.model not in torchvision.names():
        check_model(job.model)
    return build_on_meta(lambda: torchvision.build(job.model, dict(job.model_args), job.image_size))


def _timm(job: Job) -> Workload:
    try:
        timm = importlib.import_module("timm")
    except ImportError:
        raise Unsupported("timm is not installed") from None
    timm.layers.set_fused_attn(job.protocol.fused_attention)
    try:
        made = build_on_meta(lambda: _timm_workload(job, timm))
    except RuntimeError as problem:
        if "Unknown model" in str(problem):
            raise Unsupported(f"timm {timm.__version__} has no {job.model}") from None
        raise
    return made


def _timm_workload(job: Job, timm: Any) -> Workload:
    arguments = dict(job.model_args)
    fixed = timm.models.is_model(job.model) and timm.get_pretrained_cfg(job.model, allow_unregistered=True)
    default = fixed.input_size[-1] if fixed else 224
    size = job.image_size or default
    if fixed and fixed.fixed_input_size and size != default:
        arguments["img_size"] = size
    model = timm.create_model(job.model, pretrained=False, **arguments)
    classes = model.num_classes

    def make_batch(batch: int) -> Batch:
        return torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))

    return Workload(model=model, make_batch=make_batch, loss=_first_cross_entropy)


def _first_cross_entropy(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Of a tuple the first, as timm's benchmark.py takes it."""
    return F.cross_entropy(outputs[0] if isinstance(outputs, tuple) else outputs, targets)


def _transformers(job: Job) -> Workload:
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise Unsupported("transformers is not installed") from None
    names = {name.rpartition("/")[2].lower(): name for name in _CONFIGURATIONS}
    name = names.get(job.model.rpartition("/")[2].lower())
    if name is None:
        raise Unsupported(f"the configuration of {job.model} is not known here")
    config_class, model_class, fields = _CONFIGURATIONS[name]
    transformers.logging.set_verbosity_error()
    attention = {} if job.protocol.fused_attention else _EAGER
    config = getattr(transformers, config_class)(**{**fields, **attention})
    length = job.sequence or 128

    def make() -> Workload:
        model: nn.Module = getattr(transformers, model_class)(config)

        def make_batch(batch: int) -> Batch:
            tokens = torch.randint(config.vocab_size, (batch, length))
            # Of padding, already spread over pairs of tokens: of a mask by tokens transformers reads the values first.
            mask = torch.ones(batch, 1, length, length, dtype=torch.bool)
            inputs = {"input_ids": tokens, "attention_mask": mask, "labels": tokens}
            if "position_ids" in inspect.signature(model.forward).parameters:  # else counted from a mask by tokens
                inputs["position_ids"] = torch.arange(length).expand(batch, length)
            return inputs, None

        return Workload(model=model, make_batch=make_batch, loss=lambda outputs, _: outputs.loss)

    return build_on_meta(make)

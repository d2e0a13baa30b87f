"""A language model of a library, built from a configuration.  Loaded by the worker only; the tests never import it."""

from types import SimpleNamespace
from typing import Any

import torch


def gpt2(*, seq_len: int = 64, n_positions: int = 512, n_layer: int = 2, attention: str = "sdpa") -> SimpleNamespace:
    """GPT-2 with two narrow layers, and as many positions whatever the length is."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_positions=n_positions, n_layer=n_layer, n_embd=96, n_head=3, vocab_size=1000)
    config._attn_implementation = attention

    def make_batch(batch: int) -> tuple[dict[str, torch.Tensor], None]:
        tokens = torch.randint(1000, (batch, seq_len))
        return {"input_ids": tokens, "labels": tokens.clone()}, None

    def loss(outputs: Any, targets: None) -> torch.Tensor:
        found: torch.Tensor = outputs.loss
        return found

    return SimpleNamespace(model=GPT2LMHeadModel(config), make_batch=make_batch, loss=loss)

"""Small models to learn on: they train in milliseconds on a CPU, and their memory grows plainly with the batch.

Each is a function whose keywords are what ``--model-arg`` sets.  They differ in what fills the memory: feature maps
in the CNN, weights in the MLP, and the logits over the vocabulary in the transformer.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sweeper.errors import UsageError
from sweeper.worker.models import Batch, Workload, require_counts
from sweeper.worker.models.factory import call

__all__ = ["FACTORIES", "build", "mlp", "small_cnn", "tiny_transformer"]

_DEFAULT_IMAGE_SIZE = 64
_DEFAULT_SEQ_LEN = 128


def build(name: str, model_args: Mapping[str, Any], image_size: int | None) -> Workload:
    """Return the teaching model ``name``.  Raises ``UsageError`` for an argument it does not take."""
    return call(FACTORIES[name], name, model_args, image_size)  # type: ignore[no-any-return]


def small_cnn(
    *, depth: int = 4, width: int = 16, image_size: int = _DEFAULT_IMAGE_SIZE, num_classes: int = 10
) -> Workload:
    """A plain CNN: ``depth`` blocks of convolution, batch norm and ReLU, then the mean over the map and a classifier.

    The first block has ``width`` channels; every second block halves the map and doubles the channels.
    """
    require_counts(depth=depth, width=width, image_size=image_size, num_classes=num_classes)
    if image_size < 4:
        raise UsageError(f"small-cnn cannot see images of {image_size} pixels", hint="the smallest is image_size=4")
    blocks: list[nn.Module] = []
    channels, pixels = 3, image_size
    for index in range(depth):
        # The map stays at 2 x 2 or more: batch norm needs more than one value a channel, also for a batch of 1.
        halve = index % 2 == 1 and pixels >= 4
        out = width if index == 0 else channels * 2 if halve else channels
        blocks += [
            nn.Conv2d(channels, out, kernel_size=3, stride=2 if halve else 1, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        ]
        channels, pixels = out, (pixels + 1) // 2 if halve else pixels
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))

    def make_batch(batch: int) -> Batch:
        return torch.randn(batch, 3, image_size, image_size), torch.randint(num_classes, (batch,))

    sizes = {"image_size": _DEFAULT_IMAGE_SIZE, "image_step": 1, "image_least": 4}
    return Workload(model=model, make_batch=make_batch, loss=F.cross_entropy, sizes=sizes)


def mlp(*, depth: int = 4, width: int = 1024, features: int = 784, num_classes: int = 10) -> Workload:
    """``depth`` hidden layers of ``width`` over flat inputs: nearly all weights, so the batch costs little."""
    require_counts(depth=depth, width=width, features=features, num_classes=num_classes)
    layers: list[nn.Module] = []
    for index in range(depth):
        layers += [nn.Linear(width if index else features, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, num_classes))

    def make_batch(batch: int) -> Batch:
        return torch.randn(batch, features), torch.randint(num_classes, (batch,))

    return Workload(model=model, make_batch=make_batch, loss=F.cross_entropy)


class TransformerBlock(nn.Module):
    """Causal self-attention and a four times wider MLP, each after a layer norm and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class TinyTransformer(nn.Module):
    """A decoder-only language model: tokens in, one row of logits over the vocabulary a token out."""

    def __init__(self, *, depth: int, width: int, heads: int, seq_len: int, vocab: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.zeros(seq_len, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.norm(self.blocks(self.token(tokens) + self.position)))  # type: ignore[no-any-return]


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of (batch, length, vocab) logits against the (batch, length) tokens that come next."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tiny_transformer(
    *, depth: int = 2, width: int = 128, heads: int = 4, seq_len: int = _DEFAULT_SEQ_LEN, vocab: int = 1000
) -> Workload:
    """A small GPT that learns to say the next token.  ``heads`` must divide ``width``."""
    require_counts(depth=depth, width=width, heads=heads, seq_len=seq_len, vocab=vocab)
    if width % heads:
        raise UsageError(
            f"heads={heads} does not divide width={width}", hint="each head gets width / heads of the channels"
        )
    model = TinyTransformer(depth=depth, width=width, heads=heads, seq_len=seq_len, vocab=vocab)

    def make_batch(batch: int) -> Batch:
        tokens = torch.randint(vocab, (batch, seq_len + 1))
        # Copies, not two views of one storage: that is how a data loader's collate hands them over.
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Workload(
        model=model,
        make_batch=make_batch,
        loss=next_token_loss,
        tokens=seq_len,
        # Its positions are made for the length it is given, so any length goes.
        sizes={"inputs": f"{seq_len} tokens", "seq_len": _DEFAULT_SEQ_LEN, "token_step": 1},
    )


FACTORIES: Mapping[str, Callable[..., Workload]] = {
    "small-cnn": small_cnn,
    "mlp": mlp,
    "tiny-transformer": tiny_transformer,
}

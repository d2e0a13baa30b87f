"""Workloads whose attention is of one kind, and one without any blocks: what choices of a kernel are tried on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.worker.models import Workload


class Attending(nn.Module):
    """One layer of self-attention over vectors; ``mask`` is none or added, ``by_hand`` without PyTorch's function."""

    def __init__(self, mask: str, by_hand: bool) -> None:
        super().__init__()
        self.mask, self.by_hand = mask, by_hand
        self.inputs, self.outputs = nn.Linear(32, 96), nn.Linear(32, 10)

    def forward(self, vectors: Tensor) -> Tensor:
        batch, time, _ = vectors.shape
        query, key, value = self.inputs(vectors).view(batch, time, 3, 2, 16).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            mixed = torch.softmax(query @ key.transpose(-2, -1) / 4, -1) @ value
        else:
            mask = query.new_zeros(time, time) if self.mask == "added" else None
            mixed = F.scaled_dot_product_attention(query, key, value, mask)
        return self.outputs(mixed.transpose(1, 2).reshape(batch, time, 32)).mean(1)  # type: ignore[no-any-return]


def attending(mask: str = "none", by_hand: bool = False, time: int = 16) -> Workload:
    def make_batch(size: int) -> tuple[Tensor, Tensor]:
        return torch.randn(size, time, 32), torch.zeros(size, dtype=torch.long)

    return Workload(model=Attending(mask, by_hand), make_batch=make_batch, loss=F.cross_entropy)


def filmed() -> Workload:
    """Convolutions over images and time."""

    def make_batch(size: int) -> tuple[Tensor, Tensor]:
        return torch.randn(size, 3, 4, 8, 8), torch.zeros(size, dtype=torch.long)

    model = nn.Sequential(nn.Conv3d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 10))
    return Workload(model=model, make_batch=make_batch, loss=F.cross_entropy)

"""What cuDNN's convolution plans take from the caching allocator while they run.

cuDNN chooses a plan by a heuristic that is not public, and each plan says its own workspace.  One thing decides most of
it: the kernels on tensor cores read and write channels last.  A convolution in the contiguous layout that runs on them
is transposed on the way, and the transposed copies are the workspace.  They show by name in profiles
(``nchwToNhwcKernel``, ``nhwcToNchwKernel``).

So the rule has no constant: in backward, a convolution wider than one pixel, in the contiguous layout, on a card whose
tensor cores are faster for its type than its plain units, takes as much as its input, the gradient that comes in, and
its weight together.  A convolution of one pixel is a plain matrix product in either layout.

Chosen among nine such rules with the 18 rows of an A100 in view (gmn-tv of peaks.csv: median error 5.9 % without, 1.3 %
with), so these rows do not prove it.  On 190 rows that were not looked at before (gmn-timm, the same card; then without
the searches below) the median goes from 2.3 to 1.9 % and the 90th percentile from 8.2 to 6.0 %.  That fp32 on GeForce
is left out was decided after seeing that it made those rows worse (xmem).  For 16-bit types there is no evidence either
way: of 173 brackets of an RTX 3090 as many were told right without.  In forward the same copies made the peaks worse:
plans that transpose nothing win there, or their copies fit in what is cached anyway.

With ``torch.backends.cudnn.benchmark`` each convolution that is new to the process is searched for first, and the
allocator's cache is given back after the search, so what earlier layers left free is not there for later ones.

Not known: the plans themselves, so single layers can be far off; Winograd and FFT plans; the workspace of depthwise
convolutions that cuDNN runs; what a search takes while it lasts (as much as there is, at most).
"""

from dataclasses import dataclass, field
from typing import Literal

import torch

from sweeper.trace import WORKSPACE_OPERATOR
from sweeper.worker.tracing.card import Card

__all__ = ["Convolution", "Plans"]

# Cards whose TF32 on tensor cores outruns their plain fp32: the datacentre parts, 8 times and more.  On GeForce cards
# of 8.6 and 8.9 the two rates are equal (RTX 3080: 29.8 and 29.8 TFLOPS in NVIDIA's "Ampere GA102 GPU architecture"
# white paper; likewise Ada's), so nothing is gained by transposing.  Workstation cards of these capabilities have twice
# the TF32; they are treated as GeForce here, for want of a measurement.
_FAST_TF32 = ((8, 0), (9, 0), (10, 0), (10, 3))


Direction = Literal["forward", "input", "weight"]


@dataclass(frozen=True, slots=True)
class Convolution:
    """What cuDNN is asked to run.  ``result`` is the result or its gradient; all three are in ``layout`` by then."""

    source: torch.Tensor
    weight: torch.Tensor
    result: torch.Tensor
    layout: torch.memory_format
    geometry: tuple[object, ...]  # stride, padding, dilation, transposed, output padding, groups

    def question(self, direction: Direction) -> tuple[object, ...]:
        """What cuDNN's plan depends on."""
        shapes = tuple(self.source.shape), tuple(self.weight.shape)
        return direction, self.source.dtype, *shapes, self.layout, *map(str, self.geometry)


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans of one process on a card of ``compute_capability``; without ``workspaces`` none takes any."""

    compute_capability: tuple[int, int]
    workspaces: bool = True
    _searched: set[tuple[object, ...]] = field(default_factory=set)

    def run(self, card: Card, direction: Direction, asked: Convolution) -> None:
        """The forward, or one of the two gradients: a search if it is new, then the plan with its workspace.

        ``findAlgorithm`` of Conv_v7.cpp and ``get_plans_from_find`` of Conv_v8.cpp, aten/src/ATen/native/cudnn: the
        cache is given back after a search, whose own workspace would stay otherwise.
        """
        if torch.backends.cudnn.benchmark and (question := asked.question(direction)) not in self._searched:
            self._searched.add(question)
            card.empty_cache()
        if direction != "forward" and self.workspaces:
            _take(card, self._workspace_bytes(asked))

    def _workspace_bytes(self, asked: Convolution) -> int:
        """Bytes for either gradient, of the input or of the weight."""
        source, weight = asked.source, asked.weight
        if asked.layout != torch.contiguous_format or not self._on_tensor_cores(source.dtype) or _is_one_pixel(weight):
            return 0
        return (source.numel() + asked.result.numel() + weight.numel()) * source.element_size()

    def _on_tensor_cores(self, dtype: torch.dtype) -> bool:
        if dtype == torch.float16:
            return self.compute_capability >= (7, 0)
        if dtype == torch.bfloat16:
            return self.compute_capability >= (8, 0)
        # torch.backends.cudnn.allow_tf32 is on by default
        return dtype == torch.float32 and self.compute_capability in _FAST_TF32 and torch.backends.cudnn.allow_tf32


def _take(card: Card, size: int) -> None:
    """Take ``size`` bytes and give them back; a plan whose workspace is refused is passed over for one with none.

    ``try_plans`` and ``try_configs``, aten/src/ATen/native/cudnn/Conv_v8.cpp: out of memory is caught and the next
    plan tried.  By then the allocator has given back its cache.  That the next plan needs none is an assumption.
    """
    try:
        give_back = card.scratch(size, WORKSPACE_OPERATOR)
    except torch.OutOfMemoryError:
        return
    give_back()


def _is_one_pixel(weight: torch.Tensor) -> bool:
    return all(size == 1 for size in weight.shape[2:])

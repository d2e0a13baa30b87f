"""How older releases of PyTorch allocate otherwise than 2.14, where this simulation knows of it.

Each difference was seen in the allocator's history of the release's own binary (2.6.0, 2.9.1, 2.14.1).  What the
releases between do was not run: where no pull request is named, the older way is taken to end with the older of the
two that were.
"""

from functools import cache

import torch
from torch.torch_version import TorchVersion

__all__ = [
    "ADAGRAD_IS_FUSED",
    "BLACKWELL_HAS_HOPPERS_WORKSPACE",
    "CUBLASLT_HAS_A_WORKSPACE",
    "CUBLASLT_KEEPS_ITS_WORKSPACE",
    "CUB_SCAN_BYTES",
    "CUB_UNIQUE_BYTES",
    "CUDNN_RUNS_BFLOAT16_NETWORKS",
    "EFFICIENT_SEEDS_ON_CPU",
    "EFFICIENT_SHARES_HEADS",
    "EMBEDDING_SORTS_ITS_BITS",
    "FLASH_SEEDS_ON_CPU",
    "LAYER_NORM_SUMS_IN_TWO_STEPS",
    "cudnn_attention_comes_first",
]

_RELEASE = TorchVersion(torch.__version__)

# aten/src/ATen/native/native_functions.yaml: _fused_adagrad_ has a kernel for CUDA in 2.9 and 2.14, not in 2.6.
ADAGRAD_IS_FUSED = _RELEASE >= "2.7"

# getChosenWorkspaceSize, aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB on sm90 alone in 2.6 and 2.9.
BLACKWELL_HAS_HOPPERS_WORKSPACE = _RELEASE >= "2.10"

# gemm_and_bias, aten/src/ATen/cuda/CUDABlas.cpp: cuBLASLt's workspace comes and goes with each product in 2.6, is kept
# for each (thread, stream) in 2.9 (PR 156495, of June 2025), and is cuBLAS's own in 2.14
# (TORCH_CUBLASLT_UNIFIED_WORKSPACE, on by default since PR 168175, reviewed in January 2026, too late for 2.10).
CUBLASLT_HAS_A_WORKSPACE = _RELEASE < "2.11"
CUBLASLT_KEEPS_ITS_WORKSPACE = _RELEASE >= "2.9"

# _efficient_attention_forward, transformers/cuda/attention.cu: seed and offset are on the card, where nothing reads
# them, when there is no dropout in 2.14; on the CPU in any case in 2.6 and 2.9.
EFFICIENT_SEEDS_ON_CPU = _RELEASE < "2.10"

# can_use_mem_efficient_attention, transformers/cuda/sdp_utils.cpp: takes enable_gqa in 2.14, not in 2.6 and 2.9.
EFFICIENT_SHARES_HEADS = _RELEASE >= "2.10"

# mha_fwd, flash_attn/flash_api.cpp: seed and offset of dropout are CPU tensors in 2.6.
FLASH_SEEDS_ON_CPU = _RELEASE < "2.7"

# embedding_dense_backward_cuda, cuda/Embedding.cu: sorts by the bits that the table's rows need in 2.14, by all 64 in
# 2.6 and 2.9.
EMBEDDING_SORTS_ITS_BITS = _RELEASE >= "2.10"

# What cub's DeviceSelect::UniqueByKey and DeviceScan take of some thousand indices, by the CUDA they were built with.
CUB_UNIQUE_BYTES = 767 if _RELEASE < "2.7" else 1023 if _RELEASE < "2.10" else 1279
CUB_SCAN_BYTES = 1023 if _RELEASE < "2.10" else 1279

# cudnn_is_acceptable, aten/src/ATen/native/TensorProperties.cpp: half, float and double in 2.6 and 2.9, bfloat16 too in
# 2.14.
CUDNN_RUNS_BFLOAT16_NETWORKS = _RELEASE >= "2.10"


# LaunchGammaBetaBackwardCUDAKernel, aten/src/ATen/native/cuda/layer_norm_kernel.cu: in one step in 2.6.
LAYER_NORM_SUMS_IN_TWO_STEPS = _RELEASE >= "2.7"


@cache
def cudnn_attention_comes_first() -> bool:
    """Is cuDNN's attention preferred to flash attention, on the cards that it was tuned for?

    ``check_prefer_cudnn_attention``, transformers/cuda/sdp_utils.cpp: not in 2.6 and 2.9; in 2.14 if cuDNN is newer
    than 9.15.0 (issue 169849, of December 2025), as in the builds for CUDA 13.  A build without CUDA is taken for one
    of these.  Asking for cuDNN's version makes a process unfit to fork, so this waits until a trial runs.
    """
    if _RELEASE < "2.10":
        return False
    return torch.version.cuda is None or (torch.backends.cudnn.version() or 0) > 91500

"""The functions that torch's libraries import and no source here defines, written as C.

Three things can be true of such a function.  It only keeps notes on the host: then it is left out, and the real library
answers.  It only acts on the device, where nothing runs: then success is the whole truth.  Anything else is not
supported, and says so with the code of its library, so that a test which strays there fails at the call.
"""

import re
from collections.abc import Iterable

__all__ = ["DRIVER_LIBRARY", "DRIVER_SYMBOLS", "RUNTIME_LIBRARIES", "stub_source"]

# What the preloaded library answers for, and what libcuda.so.1 does.
RUNTIME_LIBRARIES = re.compile(r"__cuda[A-Z]|cuda[A-Z]|cublas[A-Z]|cudnn[A-Z]")
DRIVER_LIBRARY = re.compile(r"cu[A-Z](?!ile[A-Z])")  # but not cuFile, a library of its own
# Found by name while running, not imported: all of c10/cuda/driver_api.h in 2.6 to 2.9, of which one missing is fatal.
DRIVER_SYMBOLS = (
    "cuDeviceGetAttribute", "cuGetErrorString", "cuMemAddressFree", "cuMemAddressReserve", "cuMemCreate",
    "cuMemExportToShareableHandle", "cuMemGetAllocationGranularity", "cuMemImportFromShareableHandle", "cuMemMap",
    "cuMemRelease", "cuMemSetAccess", "cuMemUnmap", "cuMemsetD32Async", "cuMulticastAddDevice", "cuMulticastBindMem",
    "cuMulticastCreate", "cuMulticastUnbind", "cuStreamWriteValue32",
)  # fmt: skip

_LEFT_TO_THE_REAL_LIBRARY = re.compile(
    r"cudaGetError(String|Name)"  # a table of texts
    r"|cudnn(Get(Version|CudartVersion|Property|ErrorString|LastErrorString))"
    r"|cudnn(Create|Destroy|Set|Get)\w*Descriptor\w*"
    r"|cudnnSetConvolution(GroupCount|MathType)"
)
_ONLY_ACTS_ON_THE_DEVICE = re.compile(r"cublas\w+|cudnnBatchNormalization\w+")

# cudaErrorNotSupported (driver_types.h) and CUDA_ERROR_NOT_SUPPORTED (cuda.h) are one number.
_NOT_SUPPORTED = {"cudnn": 3000}  # CUDNN_STATUS_NOT_SUPPORTED, cudnn_graph.h of cuDNN 9
_CUDA_NOT_SUPPORTED = 801


def stub_source(imported: Iterable[str], defined: Iterable[str]) -> str:
    """Return C for every name in ``imported`` that is neither in ``defined`` nor left to the real library.

    The functions have no prototypes, so they take any arguments; on the platforms that have CUDA the caller cleans up.
    """
    lines = ["int rig_planned_failure(const char *function);"]
    for name in sorted(set(imported) - set(defined)):
        if not _LEFT_TO_THE_REAL_LIBRARY.fullmatch(name):
            lines.append(f"int {name}() {{ {_body(name)} }}")
    return "\n".join(lines) + "\n"


def _body(name: str) -> str:
    if DRIVER_LIBRARY.match(name):
        return f"return {_CUDA_NOT_SUPPORTED};"
    usual = 0 if _ONLY_ACTS_ON_THE_DEVICE.fullmatch(name) else _NOT_SUPPORTED.get(name[:5], _CUDA_NOT_SUPPORTED)
    return f'int planned = rig_planned_failure("{name}"); return planned ? planned : {usual};'

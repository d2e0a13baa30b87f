"""Compile the stand-in CUDA runtime for one interpreter's torch, and say how to run a process on it.

Everything comes from torch's own wheels: ``cuda.h`` and ``cuda_runtime_api.h`` from Triton's (the only one that brings
the ``crt`` headers they include), ``cudnn.h`` from cuDNN's.  No CUDA toolkit is needed, no NVIDIA header is kept here.
The result is a folder named by a hash of the sources and of torch's version, renamed into place when it is whole.
"""

import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from tests.rig.stubs import DRIVER_LIBRARY, DRIVER_SYMBOLS, RUNTIME_LIBRARIES, stub_source

__all__ = ["CUDA_VERSIONS", "Failure", "Rig", "RigUnavailable", "build", "torch_of"]

CUDA_VERSIONS = ("12", "13")  # of torch's build; run on 12.4 (torch 2.6.0), 12.8 (2.9.1) and 13.0 (2.14.1)

_HERE = Path(__file__).parent
_RUNTIME = ("calls", "card", "memory", "device", "streams", "cublas", "cudnn", "recurrent")
_TORCH_LIBRARIES = ("libtorch_cuda", "libc10_cuda", "libtorch_python", "libtorch_cuda_linalg")
# Read from files: importing torch takes seconds and would tell no more.
_LOOK = """
import importlib.util, json, pathlib, sys
found = importlib.util.find_spec("torch")
root = pathlib.Path(found.origin).parent if found and found.origin else None
names = {}
if root: exec((root / "version.py").read_text(), names)
print(json.dumps([str(root) if root else None, names.get("__version__"), names.get("cuda")]))
"""


class RigUnavailable(Exception):
    """The stand-in cannot be built here; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One function that is to fail with ``code``, the number that the C interface returns.

    It fails after ``after_calls`` calls in a process, and while fewer than ``free_below_bytes`` are free on the card.
    Names are the C symbols: ``cublasCreate_v2`` (1 is NOT_INITIALIZED, 3 ALLOC_FAILED), ``cublasSgemm_v2`` (13 is
    EXECUTION_FAILED), ``cudnnBatchNormalizationForwardTrainingEx`` (4000 is INTERNAL_ERROR, 4004 is
    INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED), ``cudnnBackendExecute`` (the same codes), ``cudaMalloc`` (2 is no memory).
    ``cudaLaunchKernel`` stands for every launch; a fault of the kernel (700 is an illegal address, 710 an assert)
    arrives at the next call that waits, and the context is lost.  A name that cannot fail ends the process at once.
    """

    function: str
    code: int
    after_calls: int = 0
    free_below_bytes: int | None = None

    def __str__(self) -> str:
        below = "" if self.free_below_bytes is None else f"<{self.free_below_bytes}"
        return f"{self.function}={self.code}@{self.after_calls}{below}"


@dataclass(frozen=True, slots=True)
class Rig:
    """A built stand-in: ``folder`` holds the libraries, ``torch`` is the version they were built for."""

    folder: Path
    torch: str

    def environment(
        self,
        total_bytes: int,
        *,
        compute_capability: int = 89,
        context_bytes: int = 0,
        card_file: Path | None = None,
        name: str = "Rig card",
        multiprocessors: int = 24,
        cudnn_workspace_bytes: int | Sequence[int] = 0,
        cublas_handle_bytes: int = 0,
        nvml_hides_processes: bool = False,
        nvml_activity: Sequence[str] = (),
        failures: Sequence[Failure] = (),
    ) -> dict[str, str]:
        """Return the variables that put a process on a card of ``total_bytes``; add them to ``os.environ``.

        Processes that are given the same ``card_file`` share the card, whatever else differs between them; without
        one the card is new.  Each process's context takes ``context_bytes`` on first use, and each cuBLAS handle
        ``cublas_handle_bytes``.  Several numbers in ``cudnn_workspace_bytes`` are several plans, in order of
        preference.  ``nvml_hides_processes`` gives an empty list of processes, as in many containers.
        ``nvml_activity`` are readings of how busy the card is, ``utilization:milliwatts:MHz:celsius`` with ``-`` for
        what is not told, one after the other and the last for good; without them the card tells nothing.
        """
        workspaces = [cudnn_workspace_bytes] if isinstance(cudnn_workspace_bytes, int) else cudnn_workspace_bytes
        libraries = [str(self.folder / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        preloaded = [str(self.folder / "librig.so"), *filter(None, [os.environ.get("LD_PRELOAD")])]
        return {
            "LD_LIBRARY_PATH": ":".join(libraries),
            "LD_PRELOAD": ":".join(preloaded),
            "RIG_CARD": str(card_file if card_file is not None else new_card()),
            "RIG_BYTES": str(total_bytes),
            "RIG_CC": str(compute_capability),
            "RIG_CONTEXT_BYTES": str(context_bytes),
            "RIG_NAME": name,
            "RIG_MULTIPROCESSORS": str(multiprocessors),
            "RIG_CUDNN_WORKSPACE": ",".join(map(str, workspaces)),
            "RIG_CUBLAS_BYTES": str(cublas_handle_bytes),
            "RIG_NVML_HIDES_PROCESSES": str(int(nvml_hides_processes)),
            "RIG_NVML_ACTIVITY": ",".join(nvml_activity),
            "RIG_FAIL": ",".join(map(str, failures)),
        }


def new_card() -> Path:
    """Return the path of a card that nobody else has; its file goes when this process ends."""
    descriptor, path = tempfile.mkstemp(prefix="rig-card-")
    os.close(descriptor)
    atexit.register(Path(path).unlink, missing_ok=True)
    return Path(path)


def torch_of(python: str) -> tuple[Path, str, str]:
    """Return torch's folder, its version and its CUDA version.  Raises ``RigUnavailable`` when there is none."""
    answer = subprocess.run([python, "-c", _LOOK], capture_output=True, text=True, check=True).stdout
    root, version, cuda = json.loads(answer)
    if root is None:
        raise RigUnavailable(f"{python} has no torch")
    if cuda is None:
        raise RigUnavailable(f"torch {version} is not a CUDA build")
    if cuda.partition(".")[0] not in CUDA_VERSIONS:
        raise RigUnavailable(f"torch {version} is built for CUDA {cuda}; the stand-in knows {', '.join(CUDA_VERSIONS)}")
    return Path(root), version, cuda


def build(python: str, out: Path) -> Rig:
    """Return the stand-in for the torch of ``python``, compiled under ``out`` unless it is there already.

    Two processes may call it at once: one compiles, the other waits.  Raises ``RigUnavailable`` with the reason.
    """
    if not sys.platform.startswith("linux"):
        raise RigUnavailable(f"the stand-in is for Linux, this is {sys.platform}")
    for tool in ("g++", "gcc", "nm"):
        if shutil.which(tool) is None:
            raise RigUnavailable(f"{tool} is not on the path")
    torch, version, cuda = torch_of(python)
    includes = _includes(torch.parent)
    out.mkdir(parents=True, exist_ok=True)
    folder = out / f"torch-{version}-{_digest(str(torch))}"
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=out) as partial:
                _compile(Path(partial), torch / "lib", includes, cuda.partition(".")[0])
                Path(partial).joinpath("whole").mkdir()
                for product in ("librig.so", "lib"):
                    Path(partial, product).rename(Path(partial, "whole", product))
                Path(partial, "whole").rename(folder)
    return Rig(folder, version)


def _includes(site: Path) -> list[str]:
    folders = []
    for name, candidates in {
        "crt/host_defines.h": ["triton/backends/nvidia/include"],
        "library_types.h": ["nvidia/cu13/include", "nvidia/cuda_runtime/include", "triton/backends/nvidia/include"],
        "cudnn.h": ["nvidia/cudnn/include"],
    }.items():
        folder = next((site / place for place in candidates if (site / place / name).is_file()), None)
        if folder is None:
            raise RigUnavailable(f"torch's wheels bring no {name} (looked in {', '.join(candidates)})")
        folders.append(f"-I{folder}")
    return folders


def _digest(torch_folder: str) -> str:
    digest = hashlib.sha256(torch_folder.encode())
    for source in sorted([*_HERE.glob("*.cpp"), *_HERE.glob("*.h"), _HERE / "stubs.py", _HERE / "build.py"]):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(work: Path, torch_lib: Path, includes: list[str], cuda_major: str) -> None:
    """Leave ``librig.so`` and ``lib/`` in ``work``."""
    (work / "lib").mkdir()
    compiler = ["g++", "-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter", *includes]
    compiler.append(f"-DRIG_CUDA_MAJOR={cuda_major}")
    for source in (*_RUNTIME, "driver", "nvml"):
        _tool([*compiler, "-c", str(_HERE / f"{source}.cpp"), "-o", f"{source}.o"], work)
    torch = [torch_lib / f"{name}.so" for name in _TORCH_LIBRARIES]
    runtime = [f"{source}.o" for source in _RUNTIME]
    imported = filter(RUNTIME_LIBRARIES.match, _imports(torch, work))
    _stubs("runtime_stubs", imported, defined_in=runtime, work=work)
    _tool(["g++", "-shared", "-Wl,-z,defs", *runtime, "runtime_stubs.o", "-o", "librig.so", "-ldl", "-lpthread"], work)
    imported = filter(DRIVER_LIBRARY.match, _imports([*torch, torch_lib / "libcaffe2_nvrtc.so"], work))
    _stubs("driver_stubs", (*imported, *DRIVER_SYMBOLS), defined_in=["driver.o"], work=work)
    _tool(["g++", "-shared", "driver.o", "driver_stubs.o", "-o", "lib/libcuda.so.1"], work)
    _tool(["g++", "-shared", "nvml.o", "card.o", "-o", "lib/libnvidia-ml.so.1", "-lpthread"], work)


def _stubs(name: str, wanted: Iterable[str], *, defined_in: list[str], work: Path) -> None:
    (work / f"{name}.c").write_text(stub_source(wanted, _symbols(["--defined-only", *defined_in], work)))
    # No warnings: the names are known to the compiler and the prototypes are not.
    _tool(["gcc", "-std=gnu17", "-w", "-fPIC", "-c", f"{name}.c", "-o", f"{name}.o"], work)


def _imports(libraries: list[Path], work: Path) -> list[str]:
    return _symbols(["-D", "--undefined-only", *map(str, libraries)], work)


def _symbols(arguments: list[str], work: Path) -> list[str]:
    """Return the symbols that ``nm`` lists, without their versions."""
    lines = _tool(["nm", *arguments], work).splitlines()
    return [line.split()[-1].partition("@")[0] for line in lines if line and not line.endswith(":")]


def _tool(command: list[str], work: Path) -> str:
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout

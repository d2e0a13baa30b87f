"""The other process on a shared card.  Run as ``python -m tests.rig.hold BYTES``.

Holds memory of the card until stdin closes.  Prints ``ready`` on stdout once it has the memory, and exits 0 when stdin
closes; exits 1 when the card has too little left.  Run it in an environment of ``Rig.environment``.  The process has a
context too, so the card loses ``BYTES``, rounded up to 2 MiB, and the environment's ``context_bytes``.  No torch: it
starts in a moment.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["held"]

_ROOT = Path(__file__).parents[2]


@contextmanager
def held(size: int, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Another process holds ``size`` bytes of the card inside the block; yields it.

    Raises ``MemoryError`` when the card has too little left.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tests.rig.hold", str(size)],
        env={**os.environ, **environment},
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            raise MemoryError(f"the card has no {size} bytes left")
        try:
            yield holder
        finally:
            holder.stdin.close()


def main(size: int) -> int:
    runtime = ctypes.CDLL(None)  # the preloaded library
    error: int = runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size))
    if error:
        print(f"cudaMalloc: error {error}", file=sys.stderr)
        return 1
    print("ready", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

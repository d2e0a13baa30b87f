"""Memory of the machine and of processes, as the kernel tells it (Linux; None or nothing elsewhere).

Sources: proc(5) for meminfo, status, clear_refs and vmstat; the kernel's cgroup-v1/memory and cgroup-v2 documents for
the limits and the count of kills.
"""

from collections.abc import Iterable
from pathlib import Path

__all__ = ["available_bytes", "children_of", "oom_kills", "resident_bytes", "status_bytes", "total_bytes"]

_CGROUP = Path("/sys/fs/cgroup")
# A cgroup without a limit says "max" (v2) or a page-rounded 2^63 (v1).
_NO_LIMIT = 1 << 60


def total_bytes() -> int | None:
    """What this process could ever have: the machine's memory, or its cgroup's limit when that is less."""
    total = _meminfo("MemTotal")
    limit, _ = _cgroup_limit_and_usage()
    return min((n for n in (total, limit) if n is not None), default=None)


def available_bytes() -> int | None:
    """What can be taken now without swapping, and without the cgroup's killer."""
    available = _meminfo("MemAvailable")
    limit, usage = _cgroup_limit_and_usage()
    room = limit - usage if limit is not None and usage is not None else None
    return min((n for n in (available, room) if n is not None), default=None)


def status_bytes(field: str, pid: int | str = "self") -> int | None:
    """A size of /proc/PID/status: ``VmRSS``, ``VmHWM``, ``VmData``; None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def children_of(pid: int) -> list[int]:
    """Every living descendant of ``pid``."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(word) for word in children.read_text().split()]
        except OSError:
            continue
        for child in direct:
            found += [child, *children_of(child)]
    return found


def resident_bytes(pids: Iterable[int]) -> int:
    """What ``pids`` hold together; pages they share are counted for each."""
    return sum(status_bytes("VmRSS", pid) or 0 for pid in pids)


def oom_kills() -> int:
    """How often the kernel killed a process for memory: in this cgroup, or anywhere where that is not told."""
    for path, key in ((_cgroup_file("memory.events"), "oom_kill"), (_cgroup_file("memory.oom_control"), "oom_kill")):
        if path is not None and (count := _keyed(path, key)) is not None:
            return count
    return _keyed(Path("/proc/vmstat"), "oom_kill") or 0


def _meminfo(field: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)


def _cgroup_file(name: str) -> Path | None:
    """The file ``name`` of this process's memory cgroup, v2 or v1; None where there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = _CGROUP if not controllers else _CGROUP / "memory" if "memory" in controllers.split(",") else None
        if root is None:
            continue
        # Inside a container the path may be the host's while the mount shows only this group.
        for folder in (root / path.lstrip("/"), root):
            if (folder / name).is_file():
                return folder / name
    return None


def _cgroup_limit_and_usage() -> tuple[int | None, int | None]:
    for limit_name, usage_name in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, usage = _number(_cgroup_file(limit_name)), _number(_cgroup_file(usage_name))
        if limit is not None and limit < _NO_LIMIT:
            return limit, usage
    return None, None


def _number(path: Path | None) -> int | None:
    try:
        return int(path.read_text()) if path is not None else None
    except (OSError, ValueError):
        return None


def _keyed(path: Path, key: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(words[1]) for line in lines if (words := line.split()) and words[0] == key), None)

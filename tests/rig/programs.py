"""What the tests run on the card: each function is the whole of a process (forked.py) and returns what it saw, as JSON.

Imports of torch stay inside, so that the tests, which name these functions, do not load it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20


def look() -> dict[str, Any]:
    """What torch and NVML say of the card, with a tensor on it."""
    import pynvml
    import torch

    tensor = torch.ones(30 * MIB, dtype=torch.uint8).cuda()
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0)
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
    second = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    first = pynvml.nvmlDeviceGetMemoryInfo(card)
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(card).gpu
    except pynvml.NVMLError_NotSupported:
        busy = None
    return {
        "pid": os.getpid(),
        "torch": {"free": free, "total": total, "name": properties.name, "reserved": torch.cuda.memory_reserved()},
        "capability": list(torch.cuda.get_device_capability()),
        "nvml": {"free": first.free, "total": first.total, "used": first.used},
        "nvml_2": {"free": second.free, "total": second.total, "used": second.used, "reserved": second.reserved},
        "name": pynvml.nvmlDeviceGetName(card),
        "nvml_capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(card)),
        "processes": {str(p.pid): p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(card)},
        "count": pynvml.nvmlDeviceGetCount(),
        "index": pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId("00000000:01:00.0")),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "busy": busy,
        "sum": tensor.cpu().sum().item(),
    }


def allocate(size: int, fraction: float | None = None) -> dict[str, Any]:
    """Ask for ``size`` bytes, and after a failure for what was free; says what torch said."""
    import torch

    torch.cuda.init()
    if fraction is not None:
        torch.cuda.set_per_process_memory_fraction(fraction)
    try:
        held = torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        return {"fits": False, "message": str(error), "free": free, "total": total, "pid": os.getpid()}
    return {"fits": True, "reserved": torch.cuda.memory_reserved(), "allocated": held.numel()}


def fill_up(size: int) -> dict[str, Any]:
    """Hold ``size`` bytes until out of memory, let go, and take as much again."""
    import torch

    counts, messages = [], []
    for _ in range(2):
        held = []
        try:
            while True:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            messages.append(str(error))
        counts.append(len(held))
        del held
        torch.cuda.empty_cache()
    return {"counts": counts, "messages": messages, "reserved": torch.cuda.memory_reserved()}


def die_holding(size: int, leave_child: bool = False) -> None:
    """Take memory and be killed; ``leave_child`` leaves a forked process behind, whose number is in the log."""
    import torch

    held = torch.empty(size, dtype=torch.uint8, device="cuda")
    if leave_child:
        child = os.fork()
        if child == 0:
            signal.pause()
        print(child, flush=True)
    assert held.is_cuda
    os.kill(os.getpid(), signal.SIGKILL)


def fork_after_cuda() -> dict[str, str]:
    """What a child is told that its parent forked with CUDA in use: by torch, and by the runtime below it."""
    import torch

    tensor = torch.ones(4, device="cuda")
    uses: dict[str, Callable[[], object]] = {"torch": torch.cuda.current_stream, "runtime": lambda: tensor + 1}
    said = {}
    for name, use in uses.items():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                use()
                os.write(writer, b"worked")
            except RuntimeError as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            said[name] = answer.read()
        os.waitpid(child, 0)
    return said


def keep_history(events: list[int], sizes: list[int]) -> dict[str, Any]:
    """Allocate and free as a trace's ``events`` say, up to out of memory; returns torch's own snapshot of it."""
    import torch

    torch.cuda.memory._record_memory_history(stacks="python")
    held: dict[int, torch.Tensor] = {}
    with contextlib.suppress(torch.OutOfMemoryError):
        for event in events:
            if event < 0:
                del held[~event]
            else:
                held[event] = torch.empty(sizes[event], dtype=torch.uint8, device="cuda")
    return torch.cuda.memory._snapshot()  # type: ignore[no-any-return]


def train(precision: str, batch: int = 4) -> dict[str, Any]:
    """Two steps of resnet18 under Adam; says which blocks are held when both are done, and by what."""
    import torch
    import torchvision

    model = torchvision.models.resnet18().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    images = torch.zeros(batch, 3, 64, 64).cuda()
    labels = torch.zeros(batch, dtype=torch.long).cuda()
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16, enabled=precision == "fp16"):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    value, device = loss.item(), str(loss.device)
    del loss
    torch._C._cuda_clearCublasWorkspaces()
    states = [t for state in optimizer.state.values() for t in state.values() if t.is_cuda]
    held = [images, labels, *model.parameters(), *model.buffers(), *states]
    names = {t.data_ptr(): t.numel() * t.element_size() for t in held}
    blocks = [
        b for s in torch.cuda.memory._snapshot()["segments"] for b in s["blocks"] if b["state"] == "active_allocated"
    ]
    return {
        "loss_is_a_float": isinstance(value, float),
        "device": device,
        "allocated": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        "states": len(states),
        "tensors": len(names),
        "blocks": [(block["size"], names.get(block["address"])) for block in blocks],
    }


def small_network(hold_bytes: int = 0) -> dict[str, Any]:
    """A step of convolution, batch norm and linear; says what it raised, then whether the card still answers."""
    import torch

    torch.cuda.init()
    held = torch.empty(hold_bytes, dtype=torch.uint8, device="cuda") if hold_bytes else None
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10)]
    raised, message = None, ""
    try:
        model = torch.nn.Sequential(*layers).cuda()
        model(torch.zeros(4, 3, 32, 32).cuda()).sum().backward()
        torch.cuda.synchronize()
    except Exception as error:
        raised, message = type(error).__name__, str(error)
    del held
    try:
        answers = torch.zeros(5 * MIB, device="cuda").sum().item() == 0
    except RuntimeError:
        answers = False
    return {"raised": raised, "message": message, "answers": answers, "peak": torch.cuda.max_memory_allocated()}


def round_trip() -> dict[str, bool]:
    """Whether copies carry values: to the card, within it, back, and zeroed."""
    import torch

    numbers = torch.arange(3_000_000, dtype=torch.int64)
    there = numbers.cuda()
    strided = numbers.view(3000, 1000)
    pinned = numbers.pin_memory()
    again = torch.empty_like(there)
    again.copy_(there)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    time.sleep(0.002)
    end.record()
    return {
        "back": torch.equal(there.cpu(), numbers),
        "within": torch.equal(again.cpu(), numbers),
        "strided": torch.equal(strided.cuda().cpu(), strided),
        "pinned": pinned.is_pinned() and torch.equal(pinned.cuda(non_blocking=True).cpu(), numbers),
        "events": start.elapsed_time(end) >= 2.0,
    }


def record_history() -> list[tuple[str, int]]:
    """The allocator's own record of a tensor that comes and goes."""
    import torch

    torch.cuda.init()
    torch.cuda.memory._record_memory_history()
    torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    (events,) = torch.cuda.memory._snapshot()["device_traces"]
    return [
        (event["action"], event["size"])
        for event in events
        if event["action"] in ("alloc", "segment_alloc", "free_completed")
    ]


def refused(what: str) -> str:
    """The error of something that the stand-in does not have."""
    import torch

    try:
        if what == "graphs":
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.zeros(4, device="cuda")
        else:
            scores, targets = torch.zeros(2, 1, 4, device="cuda"), torch.ones(1, dtype=torch.int32)
            torch._cudnn_ctc_loss(scores, targets, [2], [1], 0, deterministic=True, zero_infinity=False)
    except RuntimeError as error:
        return str(error)
    return "worked"


def visible() -> tuple[bool, int]:
    import torch

    return torch.cuda.is_available(), torch.cuda.device_count()

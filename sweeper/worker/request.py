"""One request answered in this process: read, measure, write whole.  The contract is in ``__main__``."""

import contextlib
import os
import sys
from pathlib import Path

from sweeper.model_names import is_factory
from sweeper.trial import (
    Broken,
    Calibrate,
    Describe,
    DescribeModel,
    Refused,
    Request,
    Response,
    TakeTraces,
    Traced,
    TrialSpec,
    request_from_json,
    response_to_json,
)

__all__ = ["answer"]


def answer(folder: Path) -> None:
    """Answer ``folder/request.json`` in ``folder/result.json``."""
    request = request_from_json((folder / "request.json").read_text())
    # User code is found from the folder the command was typed in, as with ``python -m``.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    response = _respond(request, folder)
    partial = folder / "result.json.partial"
    with partial.open("w") as file:
        file.write(response_to_json(response))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / "result.json")


def _respond(request: Request, folder: Path) -> Response:
    from sweeper.worker import trial

    match request:
        case TrialSpec():
            return trial.run(request)
        case Describe():
            return trial.describe(request)
        case DescribeModel():
            return trial.describe_model(request.spec)
        case Calibrate():
            return trial.calibrate(request.spec)
        case TakeTraces():
            return _take_traces(request, folder)


def _take_traces(request: TakeTraces, folder: Path) -> Traced | Broken | Refused:
    from sweeper.worker import trial
    from sweeper.worker.models.sources import own_sources

    files = []
    for size in request.sizes:
        trace = trial.trace(request.spec, size, request.axis)
        if isinstance(trace, Broken | Refused):
            return trace
        name = f"trace-{size:04d}.json"
        (folder / name).write_text(trace.to_json())
        files.append(name)
    return Traced(files=tuple(files), sources=own_sources() if is_factory(request.spec.model) else ())


def answer_in_fork(folder: Path) -> int:
    """Answer with stdout and stderr in ``folder``; return the exit code.  The caller leaves by ``os._exit``."""
    with (folder / "stdout").open("wb", 0) as out, (folder / "stderr").open("wb", 0) as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
    code = 1
    try:
        answer(folder)
        code = 0
    except SystemExit as leaving:  # user code that calls exit(): no result, so never a clean exit
        code = leaving.code if isinstance(leaving.code, int) and leaving.code else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code

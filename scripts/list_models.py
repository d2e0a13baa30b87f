"""Write sweeper/data/models.json: every model that has a name, its parameters and what one sample is.

    PYTHONPATH=. python scripts/list_models.py              all of it; some ten minutes, nearly all of them timm's
    PYTHONPATH=. python scripts/list_models.py --keep-timm  with timm's rows as they are
    PYTHONPATH=. python scripts/list_models.py --missing    those alone that have no parameters yet

Models are described by the worker's own code on meta tensors: no weights are held.  A model that cannot be described
that way is listed without its parameters, and is named on stderr.
"""

import argparse
import json
import resource
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import torch

from sweeper.architectures import architecture_names
from sweeper.model_names import known_models
from sweeper.trial import ModelReport, TrialSpec
from sweeper.units import GIB
from sweeper.worker.models.timm import names as timm_names
from sweeper.worker.trial import describe_model

TARGET = Path(__file__).resolve().parents[1] / "sweeper" / "data" / "models.json"
Row = list[int | str | None]  # parameters, one sample

# A constructor that reads the values of its parameters would have them all in memory: refused instead.
_MOST_DATA_BYTES = 8 * GIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-timm", action="store_true")
    parser.add_argument("--missing", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_DATA_BYTES, _MOST_DATA_BYTES))
    names = [*known_models(), *(f"hf:{name}" for name in architecture_names()), *(f"timm:{n}" for n in timm_names())]
    kept: dict[str, Row] = {}
    if given.keep_timm or given.missing:
        before = json.loads(TARGET.read_text(encoding="utf-8"))["models"]
        kept = {n: row for n, row in before.items() if (n.startswith("timm:") if given.keep_timm else row[0])}
    described = _described(name for name in names if name not in kept)
    _write({name: kept.get(name) or described[name] for name in names})


def _write(rows: dict[str, Row]) -> None:
    versions = {name: metadata.version(name) for name in ("torchvision", "timm", "transformers")}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    whole = f'{{"versions": {json.dumps(versions)}, "models": {{\n{lines}\n}}}}\n'
    TARGET.write_text(whole, encoding="utf-8")


def _described(names: Iterable[str]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for name in names:
        try:
            report = describe_model(TrialSpec(model=name, batch_size=1, device="sim:rtx4060"))
        except Exception as problem:  # whatever its constructor raises; it is said, and the list goes on
            print(f"{name}: {type(problem).__name__}: {problem}".splitlines()[0], file=sys.stderr)
            rows[name] = [None, None]
            continue
        if isinstance(report, ModelReport):
            rows[name] = [report.parameters, report.inputs]
        else:
            print(f"{name}: {report.message}", file=sys.stderr)
            rows[name] = [None, None]
        print(name, *rows[name], flush=True)
    return rows


if __name__ == "__main__":
    main()

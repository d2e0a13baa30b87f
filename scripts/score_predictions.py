"""How right predictions are: every published measurement of a folder, the same step simulated, and the errors.

    python scripts/score_predictions.py FOLDER                       reads peaks.csv, caps.csv and brackets.csv there
    python scripts/score_predictions.py FOLDER --sets xmem,caps      sets whose names begin so
    python scripts/score_predictions.py FOLDER --resume done.jsonl   goes on where an earlier run stopped
    python scripts/score_predictions.py FOLDER --out results/accuracy  keeps table, JSON and figure there, and of all
                                                                     sets the errors that `sweep predict` tells

Needs neither a GPU nor the network.  timm and transformers models are built from their configurations where those
libraries are installed; other rows are listed as skipped, with the reason.  The table goes to stdout, progress to
stderr.  Seconds are processor time after torch is imported, a row: the tracing of a job is shared by its rows.
A file to resume from knows rows by their cells, not the rules they were answered by: begin a new one for new rules.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from datetime import date
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for entry in (ROOT, ROOT / "scripts"):
    if str(entry) not in sys.path:
        sys.path.insert(0, str(entry))  # the tree may not be installed

from scoring.answer import Answer, answers  # noqa: E402
from scoring.condensing import write_condensed  # noqa: E402
from scoring.rows import Bracket, Cap, Job, Peak, read_folder  # noqa: E402
from scoring.scores import Scored, SetScore, outside_bytes, predicted_bytes, score, table  # noqa: E402

SCHEMA = 1
# A scoring kept there is what the package tells of its errors; one kept elsewhere (other rows, a trial) is not.
KEPT, PACKAGED = ROOT / "results" / "accuracy", ROOT / "sweeper" / "data" / "accuracy.json"
MOST_PROCESSES = 8

Row = Peak | Cap | Bracket


def main() -> None:
    options = _options()
    rows = [row for row in read_folder(options.folder) if _is_wanted(row.group, options.sets)]
    known = _read_done(options.resume, rows)
    scored = [
        *(Scored(row, known[row.id]) for row in rows if row.id in known),
        *_answered([row for row in rows if row.id not in known], options.processes, options.resume),
    ]
    order = {row.id: place for place, row in enumerate(rows)}
    scored.sort(key=lambda item: order[item.row.id])
    scores = score(scored)
    text = table(scores)
    found = as_json(scored, scores)
    print(json.dumps(found, indent=1) if options.json else text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        lines = [f"{found['date']}, {versions}", "", text, "", *wrong_lines(scored, scores)]
        (options.out / "accuracy.txt").write_text("\n".join(lines) + "\n")
        (options.out / "accuracy.json").write_text(json.dumps(found, indent=1) + "\n")
        figure(scored).savefig(options.out / "accuracy.png", dpi=130)
        if options.out.resolve() == KEPT and not options.sets:
            write_condensed(found, PACKAGED)


def as_json(scored: Sequence[Scored], scores: Sequence[SetScore]) -> dict[str, Any]:
    """Everything, rows included; sizes are bytes, errors shares."""
    return {
        "schema": SCHEMA,
        "date": date.today().isoformat(),
        "versions": dict(_versions()),
        "sets": [dataclasses.asdict(one) for one in scores],
        "rows": [_row_json(item) for item in scored],
    }


def wrong_lines(scored: Sequence[Scored], scores: Sequence[SetScore]) -> Iterator[str]:
    """A line for each cap and bracket that is told wrong, with what was predicted, in MiB."""
    wrong = {name for one in scores for name in one.wrong}
    for row, answer in ((item.row, item.answer) for item in scored if item.row.id in wrong):
        name = row.job.model if row.job else ""
        if isinstance(row, Cap):
            between = f"{row.fails_bytes >> 20} to {row.fits_bytes >> 20}"
            yield f"wrong, {row.id} {name}: least capacity {(answer.least_bytes or 0) >> 20}, measured {between} MiB"
        elif isinstance(row, Bracket):
            peaks = " and ".join(str(size >> 20) for size in answer.peaks_bytes)
            said = "does not fit" if not answer.fits else "fits too"
            batch = row.batch_fits if not answer.fits else row.batch_fails
            yield f"wrong, {row.id} {name}: batch {batch} {said}; {row.batch_fits} and {row.batch_fails}: {peaks} MiB"


def figure(scored: Sequence[Scored]) -> Any:
    """Predicted against measured peak, log-log, one mark a source.  Returns a matplotlib Figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for item in scored:
        if isinstance(item.row, Peak) and item.answer.peak_bytes is not None:
            groups[item.row.group].append((item.row.measured_bytes / 2**30, predicted_bytes(item) / 2**30))
    drawing = Figure(figsize=(6.4, 6), layout="constrained")
    axes = drawing.add_subplot()
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
    for place, (name, points) in enumerate(groups.items()):
        measured, predicted = zip(*points, strict=True)
        axes.scatter(
            measured,
            predicted,
            s=22,
            marker="osD^v"[place % 5],
            facecolors="none",
            edgecolors=colours[place % 5],
            label=f"{name} ({len(points)})",
            zorder=3,
        )
    ends = [size for points in groups.values() for point in points for size in point] or [1.0, 2.0]
    line = (min(ends) * 0.9, max(ends) * 1.1)
    axes.plot(line, line, color="0.3", linewidth=0.8)
    axes.fill_between(
        line, [x * 0.9 for x in line], [x * 1.1 for x in line], color="0.9", zorder=0, label="within 10 %"
    )
    axes.set(
        xscale="log", yscale="log", xlim=line, ylim=line, xlabel="measured peak, GiB", ylabel="predicted peak, GiB"
    )
    axes.set_title("Predicted without a GPU against published measurements")
    axes.legend(loc="upper left", frameon=False)
    return drawing


def _answered(rows: Sequence[Row], processes: int, resume: Path | None) -> Iterator[Scored]:
    """Answer all of one job's rows in one process, and write each down as it comes."""
    jobs: dict[str, tuple[Job, list[Row]]] = {}
    for row in rows:
        if row.job is None:
            yield Scored(row, Answer(id=row.id, digest=row.digest, group=row.group, problem=row.problem))
        else:
            jobs.setdefault(row.job.key, (row.job, []))[1].append(row)
    by_id = {row.id: row for row in rows}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin) as pool:
        waiting = [pool.submit(_answers, job, members) for job, members in jobs.values()]
        for count, done in enumerate(as_completed(waiting), start=1):
            found = done.result()
            _write_done(resume, found)
            print(f"\r{count} of {len(waiting)} jobs", end="", file=sys.stderr, flush=True)
            yield from (Scored(by_id[answer.id], answer) for answer in found)
    if waiting:
        print(file=sys.stderr)


def _begin() -> None:
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of models, about weights that are not there
    os.environ["HF_HUB_OFFLINE"] = "1"


def _answers(job: Job, rows: Sequence[Row]) -> list[Answer]:
    return list(answers(job, rows))


def _read_done(path: Path | None, rows: Sequence[Row]) -> dict[str, Answer]:
    """What ``path`` knows of ``rows`` as they are now; a torn last line is dropped."""
    if path is None or not path.exists():
        return {}
    digests = {row.id: row.digest for row in rows}
    done = {}
    for line in path.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            cells = json.loads(line)
            if digests.get(cells["id"]) == cells["digest"]:
                done[cells["id"]] = Answer(**{**cells, "peaks_bytes": tuple(cells["peaks_bytes"])})
    return done


def _write_done(path: Path | None, found: Sequence[Answer]) -> None:
    if path is None:
        return
    torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write("\n" * torn)
        file.writelines(json.dumps(dataclasses.asdict(answer)) + "\n" for answer in found)


def _row_json(item: Scored) -> dict[str, Any]:
    row = {key: value for key, value in dataclasses.asdict(item.row).items() if key not in ("job", "digest", "problem")}
    answer = {
        key: value for key, value in dataclasses.asdict(item.answer).items() if key not in ("id", "digest", "group")
    }
    job = {"model": item.row.job.model, "card": item.row.job.card} if item.row.job else {}
    outside = {"outside_bytes": outside_bytes(item.row)} if isinstance(item.row, Peak) else {}
    return {**row, **job, **answer, **outside}


def _versions() -> Iterator[tuple[str, str]]:
    for name in ("torch", "torchvision", "timm", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _is_wanted(group: str, sets: Sequence[str]) -> bool:
    return not sets or any(group.startswith(name) for name in sets)


def _options() -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with peaks.csv, caps.csv, brackets.csv")
    parser.add_argument("--json", action="store_true", help="everything as JSON instead of the table")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=[], help="names, or how they begin")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, MOST_PROCESSES))
    parser.add_argument("--resume", type=Path, metavar="FILE", help="JSON lines of finished rows, read and added to")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the table, the JSON and the figure there")
    options = parser.parse_args()
    if not 1 <= options.processes <= MOST_PROCESSES:
        parser.error(f"--processes is 1 to {MOST_PROCESSES}")
    return options


if __name__ == "__main__":
    main()

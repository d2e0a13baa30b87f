"""``sweep predict`` for real: it says what trials on the simulated card say, and what it prints says "predicted"."""

import base64
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sweeper
from sweeper.accuracy import accuracy
from sweeper.allocator_conf import DEFAULT_CONF
from sweeper.cards import card
from sweeper.cli import main
from sweeper.errors import Untraceable
from sweeper.journal import Journal
from sweeper.predicting import Forecast, StepTracer, Wanted, forecasts
from sweeper.record import Settings
from sweeper.report import export
from sweeper.report import forecasts as shown
from sweeper.runner import ForkRunner
from sweeper.sweeping import Silent, run_sweep
from sweeper.trace_cache import TraceCache
from sweeper.trial import Fit, OutOfMemory, TrialSpec
from tests.builders import a_finished_record, a_header, a_prediction, a_spec

WORKERS = Path(__file__).parents[1] / "workers"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runner() -> Iterator[ForkRunner]:
    with closing(ForkRunner(timeout_s=120)) as one:
        yield one


def predicted(runner: ForkRunner, folder: Path, spec: TrialSpec, on: str, **wanted: Any) -> Forecast:
    cache = TraceCache(folder.parent / "cache")  # cards of one compute capability share their traces
    tracer = StepTracer(runner, folder / "predicting", cache=cache)
    (found,) = forecasts(spec, (card(on),), Wanted(**{"cap": 4096, **wanted}), tracer, DEFAULT_CONF)
    return found


@pytest.mark.parametrize("model", ["alexnet", "resnet18", "squeezenet1_1"])
@pytest.mark.parametrize("on", ["gtx1650", "t4"])
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_a_sweep_and_a_prediction_give_the_same_boundary(
    runner: ForkRunner, tmp_path: Path, model: str, on: str, precision: str
) -> None:
    spec = a_spec(model=model, device=f"sim:{on}", precision=precision, steps=2)
    header = a_header(spec=spec, settings=Settings(cap=4096, points=1, margin=0))
    with Journal.create(tmp_path / "run", header) as journal:
        record = run_sweep(journal, runner, Silent())
    found = predicted(runner, tmp_path, spec, on)
    assert record.proven
    assert (found.max_batch, found.first_failure) == (record.max_batch, record.first_failure)
    assert found.capacity_bytes == record.capacity_bytes
    # Where it runs out, and the peak of the largest batch, are the trials' too.
    failed, said = record.failure, found.prediction.failure
    if failed is None:
        assert said is None
    else:
        assert said is not None
        assert (said.size, said.operator, said.module, said.phase) == (
            failed[0],
            failed[1].operator,
            failed[1].module,
            failed[1].phase,
        )
    last = next(p for p in record.curve if p.size == record.max_batch)
    assert found.prediction.peak_bytes_at_max == last.peak_reserved_bytes


def test_a_model_that_is_not_affine_is_predicted_as_its_trials_say(runner: ForkRunner, tmp_path: Path) -> None:
    spec = a_spec(model=f"{WORKERS / 'unpredictable.py'}:jumps", steps=2)
    limit = 64 << 20
    found = predicted(runner, tmp_path, spec, "t4", cap=512, budget_bytes=limit)
    assert found.floor == 2
    assert [word for note in found.notes for word in ("not affine", "start at 2") if word in note] == [
        "not affine",
        "start at 2",
    ]
    assert found.max_batch is not None
    for size, kind in ((found.max_batch, Fit), (found.max_batch + 1, OutOfMemory)):
        trial = replace(spec, batch_size=size, device="sim:t4", memory_limit_bytes=limit)
        assert isinstance(runner.run(trial, tmp_path / "trial"), kind)


def test_a_model_that_reads_a_value_is_an_error_with_the_operator_the_line_and_the_way_out(
    runner: ForkRunner, tmp_path: Path
) -> None:
    file = WORKERS / "unpredictable.py"
    line = 1 + next(n for n, text in enumerate(file.read_text().splitlines()) if ".item()" in text)
    with pytest.raises(Untraceable) as caught:
        predicted(runner, tmp_path, a_spec(model=f"{file}:reads_a_value"), "t4")
    assert "Tensor.item needs values" in caught.value.message
    assert f"{file.name}:{line} in forward: if x.sum().item() > 0:" in caught.value.message
    assert "--device cuda, or --device cpu" in caught.value.hint


def test_a_users_files_are_what_their_traces_depend_on(runner: ForkRunner, tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text("WIDTH = 64\n")
    (tmp_path / "mine.py").write_text(
        "from torch import nn, zeros\nimport sizes\n\n\nclass Net(nn.Linear):\n"
        "    def example_inputs(self, batch):\n        return zeros(batch, sizes.WIDTH)\n\n\n"
        "def make():\n    return Net(sizes.WIDTH, 8)\n"
    )
    spec = a_spec(model=f"{tmp_path / 'mine.py'}:make")
    before = predicted(runner, tmp_path, spec, "t4", cap=64)
    assert predicted(runner, tmp_path, spec, "t4", cap=64).prediction == before.prediction
    (tmp_path / "sizes.py").write_text("WIDTH = 6400\n")  # imported by the model's file, not named in the question
    after = predicted(runner, tmp_path, spec, "t4", cap=64)
    assert after.uncapped_peak_bytes is not None
    assert before.uncapped_peak_bytes is not None
    assert after.prediction.points[-1].breakdown.weights > 50 * before.prediction.points[-1].breakdown.weights


# -- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep(sweep: Command, monkeypatch: pytest.MonkeyPatch, kept: Path) -> Command:
    """``sweep predict``, with the traces of ``kept``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    return partial(sweep, "predict")


JOB = ("--model", "small-cnn", "--image-size", "64", "--steps", "2")
ON = ("--card", "2GiB")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's cache that holds the traces of ``JOB``, from asking about it once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr(sys, "argv", ["sweep", "predict", *JOB, *ON, "--quiet"])
        with pytest.raises(SystemExit) as left:
            main()
    assert left.value.code == 0
    assert list(folder.rglob("*.json.gz"))
    return folder


def test_every_row_and_sentence_says_that_it_is_predicted(sweep: Command) -> None:
    code, out, err = sweep(*JOB, *ON, "--batch", "64", "--budget", "1GiB")
    assert (code, err) == (0, "")
    blocks = out.split("\n\n")
    rows = [line for line in blocks[1].splitlines() if line.split()[0].isdigit()]
    assert len(rows) > 3
    assert all("(predicted)" in row for row in rows)
    assert "predicted" in blocks[0]
    assert "(predicted)" in blocks[2]
    for label in ("batch 64", "runs out", "memory", "uncapped peak", "least capacity", "error"):
        assert f"\n  {label} " in f"\n{blocks[3]}"
    assert blocks[3].count("(predicted)") >= 6
    assert "memory never short" in out
    assert "cache given back" in out
    assert "timeline" not in out
    assert "--memory-limit 1GiB" in blocks[-1]


def test_with_kept_traces_no_worker_starts_and_torch_is_not_imported(kept: Path) -> None:
    code = (
        "import sys\n"
        "from sweeper.cli import main\n"
        "def refuse(event, arguments):\n"
        "    assert event not in ('subprocess.Popen', 'os.fork', 'os.exec', 'os.posix_spawn'), event\n"
        "sys.addaudithook(refuse)\n"
        f"sys.argv = {['sweep', 'predict', *JOB, *ON, '--json']!r}\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code == 0\n"
        "assert not {'torch', 'matplotlib', 'numpy'} & set(sys.modules)\n"
    )
    environment = {"XDG_CACHE_HOME": str(kept), "PYTHONPATH": str(WORKERS.parents[1]), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predicted"] is True


def test_the_object_has_every_key_of_a_sweeps(sweep: Command, tmp_path: Path) -> None:
    body = json.loads(sweep(*JOB, *ON, "--batch", "3", "--json")[1])
    sweeps = export.to_json(a_finished_record(prediction=a_prediction()), tmp_path)
    assert sweeps.keys() <= body.keys()
    assert {key for point in body["curve"] for key in point} == sweeps["curve"][0].keys()
    for key in ("failure", "law", "versions", "spec", "prediction", "trials"):
        assert body[key].keys() == sweeps[key].keys(), key
    assert body["trials"] == {"fit": 0, "oom": 0, "broken": 0}
    assert (body["proven"], body["folder"], body["recommended_batch"]) == (False, None, None)
    assert body["asked"]["fits"]
    assert body["headroom_bytes"] == body["capacity_bytes"] - body["asked"]["least_capacity_bytes"]
    outcomes = {point["size"]: point["outcome"] for point in body["curve"]}
    assert outcomes[body["max_batch"]] == "fit"
    assert outcomes[body["first_failure"]] == "oom"


def test_whether_a_batch_fits_is_the_exit_code(sweep: Command) -> None:
    _, out, _ = sweep(*JOB, *ON, "--quiet")
    largest = int(out)
    for batch, code in ((1, 0), (largest, 0), (largest + 1, 1), (10 * largest, 1)):
        left, out, _ = sweep(*JOB, *ON, "--batch", str(batch))
        assert left == code
        assert f"batch {batch}" in out
        assert ("does not fit" in out) == bool(code)
    assert sweep(*JOB, *ON, "--batch", "1", "--budget", "1MiB")[0] == 1
    assert sweep(*JOB, *ON, "--budget", "1MiB")[0] == 1


def test_a_budget_without_a_card_is_all_there_is(sweep: Command) -> None:
    code, out, err = sweep(*JOB, "--budget", "1GiB", "--json")
    body = json.loads(out)
    assert (code, err) == (0, "")  # of the capability of ``ON``, so nothing is traced
    assert body["capacity_bytes"] == 1 << 30
    assert 0 < body["max_batch"] < 4096


def test_the_errors_known_so_far_are_told_with_their_date_and_what_they_make_of_this_one(sweep: Command) -> None:
    known = accuracy()
    body = json.loads(sweep(*JOB, *ON, "--json")[1])
    assert body["accuracy"]["date"] == known.date
    assert body["accuracy"]["peaks"] == {
        "rows": known.peaks.rows,
        "median": known.peaks.median,
        "percentile_90": known.peaks.percentile_90,
        "bias": known.peaks.bias,
    }
    band = body["error_band"]
    assert band["share"] == known.peaks.percentile_90
    assert band["least_peak_bytes"] < body["uncapped_peak_bytes"] < band["most_peak_bytes"]
    assert band["least_batch"] < body["max_batch"] < band["most_batch"]
    _, out, _ = sweep(*JOB, *ON, "--batch", str(body["max_batch"]))
    said = " ".join(out.split())
    for words in (
        f"of {known.peaks.rows} published measurements half were predicted within {100 * known.peaks.median:.1f} %",
        f"({known.date})",
        f"the largest batch {band['least_batch']} to {band['most_batch']}; "
        f"batch {body['max_batch']} is too close to call (predicted)",
    ):
        assert words in said
    assert "too close" not in sweep(*JOB, *ON, "--batch", "1")[1]
    assert "too close" not in sweep(*JOB, *ON, "--batch", str(band["most_batch"] + 1))[1]


# -- the timeline -----------------------------------------------------------------------------------------------


def test_a_timeline_is_a_picture_a_drawing_and_a_snapshot_under_a_name_that_says_of_what(
    sweep: Command, tmp_path: Path
) -> None:
    code, out, err = sweep(*JOB, *ON, "--timeline", "--json")
    body = json.loads(out)
    assert (code, err) == (0, "")
    stem = f"small-cnn-2GiB-b{body['max_batch']}"
    assert body["timeline"] == {"png": f"{stem}.png", "svg": f"{stem}.svg", "snapshot": f"{stem}.pickle"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(body["timeline"].values())
    assert (tmp_path / f"{stem}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    drawn = (tmp_path / f"{stem}.svg").read_text()
    for words in ("forward", "backward", "reserved", "activations", f"batch {body['max_batch']:,} fits", "predicted"):
        assert words in drawn
    snapshot = pickle.loads((tmp_path / f"{stem}.pickle").read_bytes())
    assert "oom" not in {entry["action"] for entry in snapshot["device_traces"][0]}


def test_the_timeline_of_a_batch_that_does_not_fit_shows_what_was_refused(sweep: Command, tmp_path: Path) -> None:
    file = tmp_path / "some" / "where.png"
    code, out, _ = sweep(*JOB, *ON, "--batch", "4000", "--timeline", str(file))
    assert code == 1
    said = "".join(out.split())
    assert all(str(file.with_suffix(end)) in said for end in (".png", ".svg", ".pickle"))
    drawn = file.with_suffix(".svg").read_text()
    assert "refused" in drawn
    assert "batch 4,000 runs out in forward" in drawn
    snapshot = pickle.loads(file.with_suffix(".pickle").read_bytes())
    assert snapshot["device_traces"][0][-1]["action"] == "oom"


def test_where_nothing_fits_the_smallest_batch_is_drawn_and_quiet_stays_quiet(sweep: Command, tmp_path: Path) -> None:
    code, out, err = sweep(*JOB, *ON, "--budget", "3MiB", "--timeline", "--quiet")
    assert (code, out, err) == (1, "0\n", "")
    assert (tmp_path / "small-cnn-2GiB-b1.pickle").exists()


def test_a_timeline_that_cannot_be_written_is_one_line_and_a_hint(sweep: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    code, _, err = sweep(*JOB, *ON, "--timeline", str(tmp_path / "file" / "x.png"))
    assert code == 2
    assert "the timeline cannot be written" in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("batch", [16, 4000], ids=["fits", "runs out"])
def test_pytorchs_own_viewer_reads_the_snapshot_and_sees_the_replay(sweep: Command, tmp_path: Path, batch: int) -> None:
    from torch.cuda import _memory_viz

    sweep(*JOB, *ON, "--batch", str(batch), "--timeline", "it.png")
    with (tmp_path / "it.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    segments, (entries,) = snapshot["segments"], snapshot["device_traces"]
    reserved = sum(segment["total_size"] for segment in segments)
    allocated = sum(segment["allocated_size"] for segment in segments)

    said = _memory_viz.segsum(snapshot)
    assert f"segments: {len(segments)}" in said
    assert f"total_reserved: {_memory_viz.Bytes(reserved)}" in said

    counted = {"active_allocated": 0, "inactive": 0}
    for line in _memory_viz.memory(snapshot, format_flamegraph=str).splitlines():
        stack, _, size = line.rpartition(" ")
        counted[stack.split(";")[1]] += int(size)
    assert counted == {"active_allocated": allocated, "inactive": reserved - allocated}
    assert sum(calc for calc in map(_memory_viz.calc_active, segments)) == allocated
    flames = _memory_viz.segments(snapshot, format_flamegraph=str)
    assert all(f"seg_{segment['address']};" in flames for segment in segments)
    assert "kind:0:weights;step:1:setup;" in flames

    lines = _memory_viz.trace(snapshot).splitlines()
    assert lines[1] == f"{len(entries)} entries"
    actions = [entry["action"] for entry in entries]
    assert sum(line.startswith("del ") for line in lines) == actions.count("free_requested")
    assert sum(" = cudaMalloc(" in line for line in lines) == actions.count("segment_alloc")
    assert sum("raise OutOfMemoryError" in line for line in lines) == actions.count("oom")
    assert (actions[-1] == "oom") == (batch == 4000)

    for page in (
        _memory_viz.trace_plot(snapshot),
        _memory_viz.trace_plot(snapshot, plot_segments=True),
        _memory_viz.segment_plot(snapshot),
    ):
        match = re.search(r'"base64": "([^"]+)"', page)
        assert match is not None
        assert pickle.loads(base64.b64decode(match[1])) == snapshot


def test_all_cards_are_one_table_in_order(runner: ForkRunner, tmp_path: Path) -> None:
    tracer = StepTracer(runner, tmp_path / "trace", cache=TraceCache(tmp_path / "cache"))
    spec = a_spec(model="mlp", steps=2)
    some = [card(name) for name in ("t4", "gtx1650", "rtx2060")]
    found = list(forecasts(spec, some, Wanted(cap=4096, batch=8), tracer, DEFAULT_CONF))
    text = shown.comparison(found, color=False)
    rows = [line.split() for line in text.splitlines() if line.split() and line.split()[0] in {c.name for c in some}]
    assert [row[0] for row in rows] == [one.card.name for one in found]
    assert all("predicted" in " ".join(row) and "fits" in row for row in rows)
    assert "No measured error of what is predicted is known to sweeper" in " ".join(text.split())
    known = [replace(one, accuracy=accuracy()) for one in found]
    assert f"Of {accuracy().peaks.rows} published measurements" in " ".join(
        shown.comparison(known, color=False).split()
    )
    body = export.forecasts_to_json(found)
    assert [one["card"] for one in body["cards"]] == [one.card.name for one in found]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((*ON,), "which model?", "sweep models"),
        (JOB, "which card?", "sweep cards"),
        ((*JOB, "--card", "rtx4061"), "rtx4061", "rtx4060"),
        ((*JOB, "--card", "all", "--quiet"), "--quiet prints one number", "--json"),
        ((*JOB, "--card", "all", "--timeline"), "--timeline draws one card", "name the card"),
        ((*JOB, *ON, "--timeline", "x.svg"), "--timeline writes a PNG", "FILE.png"),
        ((*JOB, *ON, "--json", "--quiet"), "--json and --quiet", "one of them"),
        ((*JOB, *ON, "--batch", "0"), "at least one sample", "1 or more"),
        ((*JOB, *ON, "--max-batch", "0"), "at least one sample", "1 or more"),
        ((*JOB, *ON, "--budget", "80GiB"), "is more than", "less"),
        ((*JOB, *ON, "--budget", "lots"), "'lots' is not a size", "8GiB"),
        ((*JOB, *ON, "--steps", "1"), "too few", "--steps 2"),
        ((*JOB, *ON, "--precision", "fp33"), "no precision is called 'fp33'", "fp32"),
        (("--model", "resnet19", *ON), "no model is called 'resnet19'", "resnet18"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_line_and_a_hint(
    sweep: Command, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    code, _, err = sweep(*arguments)
    assert code == 2
    assert message in err
    assert hint in err
    assert len(err.splitlines()) == 2


def test_a_language_model_of_many_tokens_follows_a_line() -> None:
    # Batch 61 has 7808 tokens, and over 3072 CUDA sorts them.
    found = sweeper.predict("tiny-transformer", card="t4", max_batch=128, cache=False)
    assert found.max_batch == 128
    assert found.notes == ()

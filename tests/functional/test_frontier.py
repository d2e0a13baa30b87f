"""``sweep frontier`` for real: laws over lengths give the worker's own traces, and trials end as was predicted."""

import csv
import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

import sweeper
from sweeper.boundary import MeasuredPoint
from sweeper.cards import card
from sweeper.laws import BatchLaw, LawsBySize, traces_along
from sweeper.model_names import modules_of
from sweeper.polynomial import QuadraticTrace
from sweeper.predicting import StepTracer
from sweeper.runner import ForkRunner
from sweeper.trial import Scalar
from tests.builders import a_spec

GPT2 = f"{Path(__file__).parents[1] / 'workers' / 'language.py'}:gpt2"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runner() -> Iterator[ForkRunner]:
    preload = modules_of("hf:gpt2", None) if find_spec("transformers") else ()
    with closing(ForkRunner(timeout_s=120, preload=preload)) as one:
        yield one


@pytest.mark.parametrize(
    ("model", "arguments", "on", "precision", "step"),
    [
        ("tiny-transformer", {}, "l4", "amp-bf16", 128),  # flash attention
        ("tiny-transformer", {}, "l4", "amp-bf16", 200),  # the same where each length has a law of its own
        ("tiny-transformer", {}, "t4", "fp32", 128),  # efficient attention
        (GPT2, {"n_positions": 1200, "attention": "eager"}, "l4", "amp-fp16", 128),  # scores: the square
    ],
)
def test_a_law_over_lengths_gives_the_worker_s_own_traces(
    runner: ForkRunner,
    tmp_path: Path,
    model: str,
    arguments: dict[str, Scalar],
    on: str,
    precision: str,
    step: int,
) -> None:
    if model == GPT2:
        pytest.importorskip("transformers")
    spec = a_spec(
        model=model, model_args=arguments, device=f"sim:{on}", precision=precision, optimizer="adamw", steps=2
    )
    tracer = StepTracer(runner, tmp_path)
    lengths = range(step, 1200, step)
    laws = LawsBySize(tracer, spec, card(on).kernels, "seq-len", lengths)
    for batch, length in ((1, lengths[1]), (50, lengths[-2])):
        law = laws.at(length)
        assert isinstance(law, BatchLaw)
        (real,) = tracer.traces(
            dataclasses.replace(spec, batch_size=batch), card(on).kernels, (length,), axis="seq-len"
        )
        assert law.at(batch) == real
    assert laws.notes == ()


def test_a_law_over_image_sizes_gives_the_worker_s_own_traces(runner: ForkRunner, tmp_path: Path) -> None:
    spec = a_spec(model="resnet18", device="sim:l4", batch_size=5, steps=2)
    tracer = StepTracer(runner, tmp_path)
    law = traces_along(tracer, spec, "8.9", "image-size", range(64, 513, 32))
    assert isinstance(law, QuadraticTrace)
    assert (law.at(192),) == tracer.traces(spec, "8.9", (192,), axis="image-size")


def test_the_command_answers_with_trials_that_agree(sweep: Command, tmp_path: Path) -> None:
    code, out, err = sweep(
        "frontier", "--model", "tiny-transformer", "--max-seq-len", "1024", "--step", "128", "--device", "sim:gtx1650",
        "--memory-limit", "1GiB", "--no-cache", "--folder", "found", "--measure", "2",
    )  # fmt: skip
    assert code == 0
    assert "4 of 4 trials at 2 lengths, at the boundary and beyond it, ended as predicted" in " ".join(out.split())
    assert len([line for line in err.splitlines() if line.startswith("length")]) == 4
    assert (tmp_path / "found" / "frontier.png").stat().st_size
    assert (tmp_path / "found" / "frontier.svg").stat().st_size
    body = json.loads((tmp_path / "found" / "frontier.json").read_text())
    assert (body["measured"]["agree"], body["capacity_bytes"]) == (4, 1 << 30)
    assert body["best"]["tokens"] == max(point["tokens"] for point in body["points"])
    rows = list(csv.DictReader((tmp_path / "found" / "frontier.csv").read_text().splitlines()))
    assert [int(row["length"]) for row in rows] == list(range(128, 1025, 128))
    batches = [int(row["max_batch"]) for row in rows]
    assert batches[0] == 64 > batches[-1]


def test_on_the_cpu_a_trial_is_run_within_the_limit(tmp_path: Path) -> None:
    told: list[MeasuredPoint] = []
    found, folder = sweeper.frontier(
        model="tiny-transformer", max_batch=8, max_seq_len=64, step=16, device="cpu", memory_limit="1GiB",
        measure_points=1, steps=2, cache=False, folder=tmp_path / "found", on_trial=told.append,
    )  # fmt: skip
    assert folder == tmp_path / "found"
    assert (found.method, found.device.device) == ("live bytes", "cpu")
    assert [(point.length, point.batch, point.fits) for point in told] == [(32, 8, True)]
    assert found.agreeing == 1
    assert found.best is not None
    assert found.best.tokens == 8 * 64


def test_a_model_of_a_library_is_built_with_the_positions_that_the_longest_length_needs(
    sweep: Command, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    small = [word for pair in ("n_layer=1", "n_embd=48", "n_head=3", "vocab_size=1000")
             for word in ("--model-arg", pair)]  # fmt: skip
    code, out, _ = sweep(
        "frontier", "--model", "hf:gpt2", *small, "--max-seq-len", "2048", "--step", "256", "--card", "gtx1650",
        "--memory-limit", "1GiB", "--no-cache", "--measure", "1", "--steps", "2",
    )  # fmt: skip
    said = " ".join(out.split())
    assert code == 0
    assert "built with n_positions=2048 at every length: its own 1024 positions are too few (predicted)" in said
    assert "2 of 2 trials at 1 length, at the boundary and beyond it, ended as predicted (simulated)" in said
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.endswith("-frontier-hf-gpt2-sim-gtx1650")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ((), "which model"),
        (("--model", "tiny-transformer", "--max-seq-len", "64", "--seq-len", "8"), "the length is fixed at 8"),
        (("--model", "tiny-transformer", "--max-seq-len", "64", "--model-arg", "seq_len=8"), "is fixed at 8"),
        (("--model", "tiny-transformer", "--max-seq-len", "64", "--min-seq-len", "65"), "is above"),
        (("--model", "tiny-transformer", "--max-seq-len", "0"), "no number of tokens"),
        (("--model", "tiny-transformer", "--max-seq-len", "64", "--measure", "-1"), "no number of points"),
        (("--model", "tiny-transformer", "--max-seq-len", "64", "--max-batch", "0"), "at least one sample"),
        (("--model", "tiny-transformer", "--max-seq-len", "64", "--card", "l4", "--device", "cpu"), "both say where"),
        (("--model", "tiny-transformer", "--max-seq-len", "64", "--card", "nothing"), "no card"),
        (("--model", "tiny-transformer", "--max-seq-len", "64", "--json", "--quiet"), "different things"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_leaves_nothing_behind(
    sweep: Command, tmp_path: Path, asked: tuple[str, ...], words: str
) -> None:
    code, out, err = sweep("frontier", *asked, *(() if "--card" in asked else ("--device", "sim:l4")))
    assert (code, out) == (2, "")
    assert words in err
    assert not (tmp_path / "results").exists()

"""The flags and words of a job: no field of a trial's spec is without them, and the flags ask for the same again."""

import dataclasses
import shlex
from typing import Any

import pytest

from sweeper import cards
from sweeper.choices import job
from sweeper.cli.run import run as sweep_command_line
from sweeper.report.commands import sweep_command
from sweeper.report.job import described
from sweeper.trial import TrialSpec
from sweeper.units import GIB
from tests.builders import a_spec

# A value of every field that is not its default.  A new field needs one here, and a row in sweeper/report/job.py.
CHANGED: dict[str, Any] = {
    "model": "a dir/my model.py:build",
    "batch_size": 4,
    "device": "cuda:1",
    "model_args": {"depth": 8, "wide": True, "name": "a b"},
    "config": "a config.json",
    "image_size": 96,
    "seq_len": 512,
    "precision": "amp-bf16",
    "optimizer": "adamw",
    "optimizer_args": {"fused": True, "lr": 0.5},
    "mode": "inference",
    "accumulate": 4,
    "checkpointing": True,
    "freeze": ("layer1.*", "conv1"),
    "lora_rank": 8,
    "channels_last": True,
    "compile": True,
    "attention": "math",
    "alloc_conf": "expandable_segments:True",
    "steps": 5,
    "memory_limit_bytes": 3 * GIB // 2,
    "seed": 7,
    "card": cards.card("l4"),
}
# What the parser gives under another name than the field's.
_PARSED = {"lora_rank": "lora", "memory_limit_bytes": "memory_limit"}
_NOT_ASKED_FOR = {"card"}  # it follows from the device
fields = [field.name for field in dataclasses.fields(TrialSpec)]


def parsed(command: str) -> dict[str, Any]:
    program, *words = shlex.split(command)
    assert program == "sweep"
    return sweep_command_line.make_context("sweep", words).params


def test_every_field_is_tried() -> None:
    assert set(CHANGED) == set(fields)


@pytest.mark.parametrize("name", [name for name in fields if name not in _NOT_ASKED_FOR])
def test_a_field_that_is_not_at_its_default_is_asked_for_again(name: str) -> None:
    spec = a_spec(**{name: CHANGED[name]})
    read = parsed(sweep_command(spec, axis="model.other"))[_PARSED.get(name, name)]
    assert read == ("1536MiB" if name == "memory_limit_bytes" else CHANGED[name])


def test_the_command_makes_the_same_spec() -> None:
    names = ("model", "seq_len", "image_size", "accumulate", "checkpointing", "optimizer", "optimizer_args",
             "model_args", "freeze", "attention", "alloc_conf", "channels_last", "precision", "steps", "seed",
             "batch_size")  # fmt: skip
    spec = a_spec(device="auto", **{name: CHANGED[name] for name in names if name != "model"})
    read = parsed(sweep_command(spec, axis="model.other"))
    choices: Any = {name: read[name] for name in names if name != "model"} | {"mode": read["mode"]}
    assert job(read["model"], choices) == spec


def test_a_job_at_its_defaults_is_asked_for_in_few_words() -> None:
    assert sweep_command(a_spec()) == "sweep --model resnet18 --device sim:rtx4060"
    along = sweep_command(a_spec(batch_size=1, seq_len=8), axis="seq-len")
    assert along == "sweep --model resnet18 --device sim:rtx4060 --batch-size 1 --axis seq-len"


@pytest.mark.parametrize("axis", ["batch", "seq-len", "image-size", "model.depth"])
def test_what_is_varied_is_neither_asked_for_nor_described(axis: str) -> None:
    spec = a_spec(batch_size=11, seq_len=12, image_size=13, model_args={"depth": 14})
    sizes = {"batch": "11", "seq-len": "12", "image-size": "13", "model.depth": "14"}
    command, heading = sweep_command(spec, axis=axis), ", ".join(described(spec, axis))
    for other, size in sizes.items():
        # A batch that is no axis is always told.
        assert (size in command) == (size in heading) == (other != axis)


def test_a_heading_names_the_choices() -> None:
    spec = a_spec(
        model="hf:gpt2", precision="amp-bf16", optimizer="adamw", checkpointing=True, lora_rank=8, accumulate=4,
        attention="math", channels_last=True,
    )  # fmt: skip
    assert ", ".join(described(spec)) == (
        "hf:gpt2, train, amp-bf16, adamw, 4 batches a step, checkpointing, LoRA 8, channels last, math attention"
    )
    assert described(a_spec(mode="inference")) == ["resnet18", "inference", "fp32"]

"""What can be varied, how its values are read, and every combination of them."""

import itertools
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.choices import Choices
from sweeper.errors import UnknownName, UsageError
from sweeper.questions import Options, question
from sweeper.trial import TrialSpec
from sweeper.varying import FIELDS, changed, check_unvaried, combinations, read_vary

# A word that each field takes, and what it must become.
WORDS = {
    "model": ("resnet50", "resnet50"),
    "device": ("sim:l4", "sim:l4"),
    "precision": ("amp-bf16", "amp-bf16"),
    "optimizer": ("adamw", "adamw"),
    "mode": ("inference", "inference"),
    "attention": ("math", "math"),
    "checkpointing": ("on", True),
    "channels-last": ("off", False),
    "compile": ("on", True),
    "accumulate": ("4", 4),
    "batch-size": ("2", 2),
    "image-size": ("128", 128),
    "seq-len": ("none", None),
    "lora": ("8", 8),
    "steps": ("5", 5),
    "seed": ("0", 0),
    "freeze": ("layer1.*", ("layer1.*",)),
    "config": ("none", None),
    "alloc-conf": ("expandable_segments:True", "expandable_segments:True"),
    "memory-limit": ("4GiB", 4 << 30),
}
ANOTHER = {**dict.fromkeys(FIELDS, "none"), "checkpointing": "off", "channels-last": "on", "compile": "off"}
ANOTHER |= {
    "precision": "fp32",
    "optimizer": "sgd",
    "mode": "train",
    "attention": "auto",
    "seq-len": "7",
    "config": "f",
}
ANOTHER |= dict.fromkeys(("accumulate", "batch-size", "steps", "seed"), "9")


@pytest.mark.parametrize("field", FIELDS)
def test_a_word_becomes_the_value_that_a_sweep_takes(field: str) -> None:
    word, value = WORDS[field]
    (first, _) = read_vary({field: [word, ANOTHER[field]]})[field]
    assert (first.word, first.value) == (word, value)
    # What Python would give is read as the same.
    assert read_vary({field.replace("-", "_"): [value, ANOTHER[field]]})[field][0].value == value


def test_every_choice_of_a_job_can_be_varied() -> None:
    by_name = {field.replace("-", "_") for field in FIELDS}
    assert set(Choices.__annotations__) - by_name == {"model_args", "optimizer_args"}  # model.ARG and optimizer.ARG
    assert by_name - set(Choices.__annotations__) == {"model", "device", "memory_limit"}
    assert by_name - {"model"} <= set(Options.__annotations__)


@pytest.mark.parametrize("field", FIELDS)
def test_a_varied_field_reaches_the_trial(field: str) -> None:
    if field in ("config", "compile", "batch-size"):  # a file; on cuda; for another axis
        return
    (_, other), (word, _) = read_vary({field: [WORDS[field][0], ANOTHER[field]]})[field], WORDS[field]
    if field in ("model", "device"):
        other = read_vary({field: [word, {"model": "resnet18", "device": "cpu"}[field]]})[field][1]
    specs = []
    for value in (read_vary({field: [word, other.word]})[field][0], other):
        options = changed({"model": "resnet34", "device": "cuda"}, {field: value})
        specs.append(question(options.pop("model"), Options(**options)).spec)  # type: ignore[typeddict-item]
    differing = {f.name for f in fields(TrialSpec) if getattr(specs[0], f.name) != getattr(specs[1], f.name)}
    named = {"lora": "lora_rank", "memory-limit": "memory_limit_bytes"}.get(field, field.replace("-", "_"))
    assert differing == {named}


def test_arguments_of_the_model_and_the_optimizer_join_those_given() -> None:
    options = {"model_args": {"width": 4}}
    (combination, *_) = combinations(read_vary({"model.depth": ["8", "9"], "optimizer.fused": ["true", "false"]}))
    found = changed(options, combination)
    assert found == {"model_args": {"width": 4, "depth": 8}, "optimizer_args": {"fused": True}}
    assert options == {"model_args": {"width": 4}}


@pytest.mark.parametrize(
    ("vary", "says"),
    [
        ({"precison": ["fp32", "bf16"]}, "did you mean precision"),
        ({"precision": ["fp32", "bf61"]}, "bf16"),
        ({"modle.depth": ["1", "2"]}, "model.depth"),
        ({"model.": ["1", "2"]}, "model.depth"),
        ({"checkpointing": ["off", "perhaps"]}, "off,on"),
        ({"accumulate": ["0", "2"]}, "accumulate=1,2,4"),
        ({"accumulate": [True, 2]}, "accumulate=1,2,4"),
        ({"image-size": ["-1", "2"]}, "image-size=1,2,4"),
        ({"seed": ["x", "2"]}, "seed=0,1,2"),
        ({"freeze": [(), "a"]}, "freeze=none"),
        ({"memory-limit": ["lots", "1GiB"]}, "8GiB"),
        ({"model": [3, "resnet18"]}, "model=ONE,ANOTHER"),
        ({"model.depth": [None, 3]}, "numbers, truth values or text"),
        ({"precision": ["fp32"]}, "precision=ONE,ANOTHER"),
        ({"precision": ["fp32", "fp32"]}, "each value once"),
        ({"checkpointing": [True, "on"]}, "each value once"),
        ({"precision": "fp32"}, "[...]"),
        ({"image-size": ["8", "9"], "image_size": ["8", "9"]}, "in one --vary"),
        ({}, "--vary"),
    ],
)
def test_what_cannot_be_varied_is_refused_with_what_to_write(vary: dict[str, list[object]], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_vary(vary)
    assert says in caught.value.hint
    if "did you mean" in says:
        assert isinstance(caught.value, UnknownName)


@pytest.mark.parametrize(
    ("vary", "options"),
    [
        ({"precision": ["fp32", "bf16"]}, {"precision": "fp32"}),
        ({"image-size": ["8", "9"]}, {"image_size": 8}),
        ({"model.depth": ["8", "9"]}, {"model_args": {"depth": 8}}),
    ],
)
def test_what_is_varied_cannot_be_given_too(vary: dict[str, list[object]], options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        check_unvaried(read_vary(vary), options)
    check_unvaried(read_vary(vary), {"optimizer": "sgd", "model_args": {"width": 8}})


@given(st.dictionaries(st.sampled_from(["accumulate", "seed", "image-size"]), st.sets(st.integers(1, 9), min_size=2)))
def test_the_combinations_are_the_product_and_the_first_field_changes_slowest(vary: dict[str, set[int]]) -> None:
    if not vary:
        return
    found = [tuple(value.value for value in one.values()) for one in combinations(read_vary(vary))]
    assert found == list(itertools.product(*vary.values()))

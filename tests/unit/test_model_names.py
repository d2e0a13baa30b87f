"""Names told apart: what a library's is, what is a user's own, and what each needs, without importing any of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.architectures import architecture, architecture_names
from sweeper.choices import job
from sweeper.errors import UsageError
from sweeper.listing import listed, matching
from sweeper.model_names import (
    LIBRARIES,
    TEACHING,
    check_config,
    check_model,
    config_file,
    is_factory,
    known_models,
    library_of,
    modules_of,
    takes_images,
)


@pytest.mark.parametrize(
    ("name", "library", "factory"),
    [
        ("resnet18", None, False),
        ("small-cnn", None, False),
        ("timm:resnet18", ("timm", "resnet18"), False),
        ("timm:vit_base_patch16_224.augreg_in1k", ("timm", "vit_base_patch16_224.augreg_in1k"), False),
        ("hf:gpt2", ("hf", "gpt2"), False),
        ("hf:meta-llama/Llama-2-13b-hf", ("hf", "meta-llama/Llama-2-13b-hf"), False),
        ("hf:./folder", ("hf", "./folder"), False),
        ("timm.py:make", None, True),
        ("./hf.py:make", None, True),
        ("package.hf:make", None, True),
        ("hfx:make", None, True),
        ("models.py", None, True),
    ],
)
def test_a_library_is_told_from_code_of_the_users_own(
    name: str, library: tuple[str, str] | None, factory: bool
) -> None:
    assert (library_of(name), is_factory(name)) == (library, factory)


@given(st.text(alphabet="abhfimt:./\\-_py", max_size=12))
def test_no_name_is_both_a_librarys_and_a_users_own(name: str) -> None:
    assert not (is_factory(name) and library_of(name) is not None)


@pytest.mark.parametrize("name", ["hf:", "timm:", "hf:a b", "hf:a//b", "timm:a:b", "hf:gpt2;rm"])
def test_a_malformed_name_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(UsageError, match="names no model of") as refused:
        check_model(name)
    assert "write it as " + name.partition(":")[0] in refused.value.hint


def test_a_library_that_is_missing_is_named_with_its_extra() -> None:
    # Its own process, in which the two cannot be found.
    code = """
import sys
sys.modules["timm"] = sys.modules["transformers"] = None
from importlib import util
from sweeper.errors import UsageError
from sweeper.model_names import check_model
found = util.find_spec
util.find_spec = lambda name: None if name in ("timm", "transformers") else found(name)
for name in ("timm:resnet18", "hf:gpt2"):
    try:
        check_model(name)
    except UsageError as refused:
        print(refused.message, "|", refused.hint)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [
        "timm: needs timm, which is not installed | pip install 'sweeper[timm]'",
        "hf: needs transformers, which is not installed | pip install 'sweeper[hf]'",
    ]


def test_the_extras_are_those_of_the_libraries() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for extra, library in LIBRARIES.items():
        assert f'\n{extra} = ["{library}' in text


def test_a_run_imports_only_the_library_its_model_is_of(tmp_path: Path) -> None:
    assert [modules_of(name, None) for name in ("resnet18", "mlp", "my_model.py:make")] == [(), (), ()]
    assert modules_of("timm:resnet18", None) == ("timm",)
    assert modules_of("hf:gpt2", None) == ("transformers", "transformers.models.gpt2.modeling_gpt2")
    assert modules_of("hf:google-bert/bert-base-uncased", None)[1] == "transformers.models.bert.modeling_bert"
    assert modules_of("hf:someone/unheard-of", None) == ("transformers",)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    expected = ("transformers", "transformers.models.deberta_v2.modeling_deberta_v2")
    assert modules_of("hf:gpt2", str(tmp_path / "config.json")) == expected
    for text in ("{", "[]", '{"model_type": 3}', '{"model_type": "os; x"}', "{}"):
        (tmp_path / "config.json").write_text(text)
        assert modules_of("hf:mine", str(tmp_path / "config.json")) == ("transformers",)
    assert modules_of("hf:mine", str(tmp_path / "missing.json")) == ("transformers",)


def test_a_folder_with_a_configuration_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    assert config_file("hf:mine", None) is None
    Path("mine/config.json").write_text("{}")
    assert config_file("hf:mine", None) == Path("mine/config.json")
    assert config_file("hf:mine", "other.json") == Path("other.json")
    assert config_file("timm:mine", None) is None


@pytest.mark.parametrize(
    ("model", "images"),
    [
        ("resnet18", True),
        ("small-cnn", True),
        ("mlp", False),
        ("tiny-transformer", False),
        ("timm:resnet18", True),
        ("hf:google/vit-base-patch16-224", True),
        ("hf:gpt2", False),
        ("hf:openai/whisper-tiny", False),
        ("my_model.py:make", False),
    ],
)
def test_an_image_is_called_one_where_the_name_tells(model: str, images: bool) -> None:
    assert takes_images(model) is images


def test_a_configuration_is_refused_where_nothing_is_built_from_one(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    check_config("hf:mine", str(file))
    with pytest.raises(UsageError, match="resnet18 is built without one"):
        job("resnet18", {"config": str(file)})
    with pytest.raises(UsageError, match="there is no file"):
        check_config("hf:mine", str(tmp_path / "none.json"))


def test_every_architecture_has_a_source_and_a_head() -> None:
    names = architecture_names()
    assert len(names) >= 40
    for name in names:
        known = architecture(name)
        assert known is not None
        assert known.source
        assert known.config or name == "openai/clip-vit-base-patch32"
        assert known.class_name.isidentifier()


def test_the_hubs_other_name_is_the_same_architecture() -> None:
    assert architecture("openai-community/gpt2") == architecture("gpt2")
    assert architecture("GPT2") is None


# Exact counts that the models' own cards and papers' checkpoints have; a wrong field of a configuration changes them.
PUBLISHED = {
    "hf:gpt2": 124_439_808,
    "hf:bert-base-uncased": 109_514_298,
    "hf:roberta-base": 124_697_433,
    "hf:t5-small": 60_506_624,
    "hf:facebook/bart-large": 406_291_456,
    "hf:EleutherAI/pythia-1.4b": 1_414_647_808,
    "hf:meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "hf:meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "hf:mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "hf:Qwen/Qwen2-7B": 7_615_616_512,
    "hf:google/gemma-7b": 8_537_680_896,
    "hf:microsoft/phi-2": 2_779_683_840,
    "hf:bigscience/bloom-560m": 559_214_592,
    "hf:openai/whisper-small": 241_734_912,
    "hf:google/vit-base-patch16-224": 86_567_656,
    "resnet50": 25_557_032,
}


def test_the_list_has_every_name_and_the_published_counts() -> None:
    rows = {row.name: row for row in listed()}
    assert set(known_models()) | {f"hf:{name}" for name in architecture_names()} <= set(rows)
    assert {name: rows[name].parameters for name in PUBLISHED} == PUBLISHED
    assert sum(name.startswith("timm:") for name in rows) > 1000


def test_a_pattern_picks_by_part_or_by_the_whole() -> None:
    names = [row.name for row in listed()]
    assert [row.name for row in matching("")] == names
    assert [row.name for row in matching("TINY-TR")] == ["tiny-transformer"]
    assert [row.name for row in matching("hf:*/llama-2-*")] == [n for n in names if "Llama-2-" in n]
    assert [row.name for row in matching("resnet1?")] == ["resnet18"]
    assert matching("no such model") == ()
    assert names[: len(TEACHING)] == list(TEACHING)

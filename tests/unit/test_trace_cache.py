"""Kept traces: one answers exactly the question it was kept for, and only while it is whole and its sources stand."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeper.cards import card
from sweeper.trace import Trace
from sweeper.trace_cache import TraceCache, question
from sweeper.trial import TrialSpec
from tests.builders import a_spec
from tests.unit.test_prediction import a_law

TRACE = a_law().at(4)


@pytest.fixture
def cache(tmp_path: Path) -> TraceCache:
    return TraceCache(tmp_path / "cache" / "traces")


def only_file(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "cache" / "traces").iterdir()
    return found


def test_what_was_kept_is_found_whole(cache: TraceCache) -> None:
    asked = question(a_spec(), "8.9")
    assert cache.get(asked) is None
    cache.put(asked, TRACE, ())
    assert cache.get(asked) == TRACE


CHANGES: dict[str, Any] = {
    "model": "resnet34",
    "batch_size": 2,
    "model_args": {"num_classes": 7},
    "precision": "amp-bf16",
    "optimizer": "adam",
    "mode": "inference",
    "image_size": 64,
    "seq_len": 64,
    "config": "small.json",
    "optimizer_args": {"fused": True},
    "accumulate": 2,
    "checkpointing": True,
    "freeze": ("layer1.*",),
    "lora_rank": 8,
    "channels_last": True,
    "compile": True,
    "attention": "math",
    "steps": 2,
    "seed": 1,
}
SAME = {"device": "sim:t4", "memory_limit_bytes": 1 << 30, "card": card("t4"), "alloc_conf": "expandable_segments:True"}


def test_every_part_of_a_spec_is_told_apart_or_known_not_to_matter() -> None:
    assert {field.name for field in dataclasses.fields(TrialSpec)} == CHANGES.keys() | SAME.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_another_question_is_not_answered(cache: TraceCache, name: str) -> None:
    cache.put(question(a_spec(), "8.9"), TRACE, ())
    assert cache.get(question(a_spec(**{name: CHANGES[name]}), "8.9")) is None
    assert cache.get(question(a_spec(), "9.0")) is None


@pytest.mark.parametrize("key", ["versions", "tracer", "trace_schema"])
def test_another_installation_is_not_answered(cache: TraceCache, key: str) -> None:
    asked = question(a_spec(), "8.9")
    cache.put(asked, TRACE, ())
    assert cache.get({**asked, key: "another"}) is None


@pytest.mark.parametrize("name", SAME)
def test_where_it_runs_does_not_matter(cache: TraceCache, name: str) -> None:
    cache.put(question(a_spec(), "8.9"), TRACE, ())
    assert cache.get(question(a_spec(**{name: SAME[name]}), "8.9")) == TRACE


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_ignored_and_replaced(cache: TraceCache, tmp_path: Path, data: st.DataObject) -> None:
    asked = question(a_spec(), "8.9")
    cache.put(asked, TRACE, ())
    whole = only_file(tmp_path).read_bytes()
    at = data.draw(st.integers(10, len(whole) - 1))  # the first ten bytes are gzip's header: nothing of ours
    torn = data.draw(st.booleans())
    damaged = whole[:at] if torn else whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    only_file(tmp_path).write_bytes(damaged)
    assert cache.get(asked) is None
    cache.put(asked, TRACE, ())
    assert cache.get(asked) == TRACE


@pytest.mark.parametrize("content", [[], {}, {"schema": 2}, {"schema": 1, "question": {}, "sources": [], "trace": 3}])
def test_a_file_of_another_shape_is_ignored(cache: TraceCache, tmp_path: Path, content: object) -> None:
    asked = question(a_spec(), "8.9")
    cache.put(asked, TRACE, ())
    only_file(tmp_path).write_bytes(gzip.compress(json.dumps(content).encode()))
    assert cache.get(asked) is None


def test_a_file_under_anothers_name_is_ignored(cache: TraceCache, tmp_path: Path) -> None:
    mine, other = question(a_spec(), "8.9"), question(a_spec(), "9.0")
    cache.put(mine, TRACE, ())
    kept = only_file(tmp_path)
    cache.put(other, TRACE, ())
    (others,) = set(kept.parent.iterdir()) - {kept}
    kept.replace(others)
    assert cache.get(other) is None


@pytest.mark.parametrize("now", ["x = 2", None])
def test_a_trace_counts_only_while_its_sources_are_as_they_were(
    cache: TraceCache, tmp_path: Path, now: str | None
) -> None:
    source = tmp_path / "model.py"
    source.write_text("x = 1")
    asked = question(a_spec(model=f"{source}:factory"), "8.9")
    cache.put(asked, TRACE, [str(source)])
    assert cache.get(asked) == TRACE
    source.unlink() if now is None else source.write_text(now)
    assert cache.get({**asked}) is None


def test_a_users_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text("")
        monkeypatch.chdir(tmp_path / folder)
        asked.append(question(a_spec(model="model.py:factory"), "8.9"))
    assert asked[0]["spec"] != asked[1]["spec"]
    assert asked[0]["installed"] == asked[1]["installed"]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = TraceCache(tmp_path / "file")
    asked = question(a_spec(), "8.9")
    cache.put(asked, TRACE, ())
    assert cache.get(asked) is None


def test_a_kept_trace_is_of_the_traces_own_format(cache: TraceCache, tmp_path: Path) -> None:
    cache.put(question(a_spec(), "8.9"), TRACE, ())
    assert Trace.from_json(json.loads(gzip.decompress(only_file(tmp_path).read_bytes()))["trace"]) == TRACE

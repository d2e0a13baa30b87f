"""The files of a run, written whole or not at all; and the HTML form for notebooks."""

import base64
import csv
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sweeper.errors import FolderUnusable
from sweeper.record import Record
from sweeper.report import short_form, to_json, write_all
from sweeper.trial import Outcome
from tests.builders import a_broken, a_device, a_finished_record, a_measured_fit, a_record, a_spec, an_oom
from tests.report_cases import CASES

ALWAYS = {"summary.json", "curve.csv", "memory.png", "memory.svg"}
HOSTILE = "<script>alert('x')</script><img src=x onerror=\"y\">&\x1b[31m"


def test_the_files_are_those_of_the_record(tmp_path: Path) -> None:
    record = a_finished_record()
    written = write_all(record, tmp_path / "run")
    assert {path.name for path in written} == ALWAYS | {"breakdown.png"}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(path.name for path in written)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == to_json(record, tmp_path / "run")
    with (tmp_path / "run" / "curve.csv").open(newline="") as text:
        assert [int(row["size"]) for row in csv.DictReader(text)] == [point.size for point in record.curve]
    assert (tmp_path / "run" / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_throughput_is_drawn_where_steps_were_timed(tmp_path: Path) -> None:
    record = a_record((1, a_measured_fit(1)), (8, a_measured_fit(8)), spec=a_spec(device="cuda"))
    assert {path.name for path in write_all(record, tmp_path)} == ALWAYS | {"throughput.png"}


def test_writing_again_replaces(tmp_path: Path) -> None:
    write_all(CASES["unfinished"], tmp_path)
    write_all(a_finished_record(), tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["finished"] is True
    assert not list(tmp_path.glob(".*"))


def test_a_file_where_the_folder_should_be_is_one_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(FolderUnusable) as caught:
        write_all(a_finished_record(), tmp_path / "run")
    assert str(tmp_path / "run") in caught.value.message
    assert caught.value.hint
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("blocked", ["curve.csv", "breakdown.png"])
def test_when_one_file_cannot_be_written_nothing_is_left_half_done(tmp_path: Path, blocked: str) -> None:
    # A folder that is not empty, under the file's name: a rename over it fails, for root as well.
    (tmp_path / blocked / "inside").mkdir(parents=True)
    with pytest.raises(FolderUnusable):
        write_all(a_finished_record(), tmp_path)
    assert not list(tmp_path.glob(".*"))
    for path in tmp_path.iterdir():
        if path.suffix == ".json":
            assert json.loads(path.read_text())["schema"] == 1


def test_importing_the_reports_brings_in_neither_matplotlib_nor_torch() -> None:
    code = "import sweeper.report, sys; sys.exit(bool({'torch', 'matplotlib', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- html -------------------------------------------------------------------------------------------------------


class _Tags(HTMLParser):
    """Collects the tags, the text, and what is still open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _parsed(html: str) -> _Tags:
    tags = _Tags()
    tags.feed(html)
    tags.close()
    assert not tags.open
    return tags


@pytest.mark.parametrize("record", CASES.values(), ids=CASES)
def test_the_html_is_one_closed_element_with_a_row_a_size_and_the_figure(record: Record) -> None:
    tags = _parsed(short_form(record, Path("results/a run")))
    rows = sum(1 for tag, _ in tags.seen if tag == "tr")
    assert rows == (1 + len(record.curve) if record.curve else 0)
    (image,) = (attributes for tag, attributes in tags.seen if tag == "img")
    kind, _, data = (image["src"] or "").partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")
    assert record.device is not None
    assert ("simulated" in tags.text) == record.device.simulated


@pytest.mark.parametrize(
    "outcome", [an_oom(module=HOSTILE, operator=HOSTILE, notes=(HOSTILE,)), a_broken(reason=HOSTILE)]
)
def test_hostile_names_are_text_and_nothing_else(outcome: Outcome) -> None:
    trials = [(1, outcome), (1, outcome)]
    record = a_record(*trials, spec=a_spec(model=HOSTILE), device=a_device(label=HOSTILE))
    tags = _parsed(short_form(record, Path(HOSTILE)))
    assert "script" not in {tag for tag, _ in tags.seen}
    assert sum(1 for tag, _ in tags.seen if tag == "img") == 1
    assert not any(name.startswith("on") for _, attributes in tags.seen for name in attributes)
    assert "<script>alert('x')</script>" in tags.text
    assert "\x1b" not in tags.text

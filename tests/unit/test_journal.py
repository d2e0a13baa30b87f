"""The journal is the truth: it only grows, forgives a torn end, and refuses a torn middle."""

import json
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeper.errors import FolderInUse, FolderUnusable, JournalBroken, SchemaTooNew
from sweeper.journal import SCHEMA, Journal, read_record
from sweeper.record import PredictedTrial, Record, TrialRecord
from tests.builders import a_broken, a_device, a_finished_record, a_fit, a_header, a_prediction, a_trial, an_oom

in_a_fresh_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)


def written(folder: Path, record: Record) -> Path:
    """A journal that holds ``record``."""
    with Journal.create(folder, record.header) as journal:
        assert record.device is not None
        journal.set_device(record.device, record.prediction, record.card)
        for trial in record.trials:
            journal.add(trial)
    return folder / "journal.jsonl"


trials = st.lists(
    st.builds(
        a_trial,
        st.integers(1, 9999),
        st.integers(1, 4096),
        st.one_of(st.builds(a_fit, st.integers(1, 300)), st.builds(an_oom), st.builds(a_broken)),
    ),
    max_size=5,
)


@in_a_fresh_folder
@given(trials=trials)
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, trials: list[TrialRecord]) -> None:
    record = Record(header=a_header(), device=a_device(), prediction=a_prediction(), trials=tuple(trials))
    path = written(tmp_path_factory.mktemp("run") / "run", record)
    assert read_record(path.parent) == record


@in_a_fresh_folder
@given(data=st.data())
def test_a_journal_cut_anywhere_is_the_run_as_far_as_its_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    record = a_finished_record()
    path = written(tmp_path_factory.mktemp("run") / "run", record)
    whole = path.read_bytes()
    cut = data.draw(st.integers(whole.index(b"\n") + 1, len(whole)))
    path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n")
    assert read_record(path.parent).trials == record.trials[: max(0, lines - 2)]
    # And going on from there gives the file that was never cut.
    with Journal.reopen(path.parent) as journal:
        if journal.record.device is None:
            assert record.device is not None
            journal.set_device(record.device, record.prediction, record.card)
        for trial in record.trials[len(journal.record.trials) :]:
            journal.add(trial)
    assert path.read_bytes() == whole


@in_a_fresh_folder
@given(data=st.data())
def test_a_torn_middle_is_an_error_that_names_the_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = written(tmp_path_factory.mktemp("run") / "run", a_finished_record())
    lines = path.read_bytes().splitlines(keepends=True)
    number = data.draw(st.integers(0, len(lines) - 2))
    lines[number] = lines[number][: len(lines[number]) // 2] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalBroken, match=f"line {number + 1} of"):
        read_record(path.parent)


def test_an_unknown_entry_or_field_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    for line in ({"entry": "surprise"}, {"entry": "trial", "number": "one"}):
        path = written(tmp_path / str(line["entry"]), a_finished_record())
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:3], json.dumps(line), *lines[3:]]) + "\n")
        with pytest.raises(JournalBroken, match="line 4 of"):
            read_record(path.parent)


def test_a_newer_journal_is_refused_by_its_number(tmp_path: Path) -> None:
    path = written(tmp_path / "run", a_finished_record())
    path.write_text(path.read_text().replace(f'{{"schema":{SCHEMA}', f'{{"schema":{SCHEMA + 1}', 1))
    with pytest.raises(SchemaTooNew, match=f"schema {SCHEMA + 1}") as refused:
        read_record(path.parent)
    assert "upgrade" in refused.value.hint


@pytest.mark.parametrize("version", range(1, SCHEMA + 1))
def test_the_golden_journal_of_every_version_is_still_read(version: int) -> None:
    """Made by tests/data/journal/make_golden.py when the version was new, and never touched since."""
    record = read_record(Path(__file__).parents[1] / "data" / "journal" / f"schema-{version}")
    assert record.max_batch == 325
    assert record.proven
    assert record.device is not None
    assert record.device.simulated
    has_card = version >= 2
    assert (record.card is not None) == (record.header.spec.card is not None) == has_card
    assert [p.size for p in record.curve if p.predicted is not None] == ([32] if has_card else [])


def test_a_run_of_the_first_schema_goes_on_with_lines_of_this_one(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "data" / "journal" / "schema-1" / "journal.jsonl"
    (tmp_path / "journal.jsonl").write_bytes(golden.read_bytes())
    predicted = PredictedTrial(fits=True, peak_allocated_bytes=1, peak_reserved_bytes=2)
    with Journal.reopen(tmp_path) as journal:
        journal.add(a_trial(99, 8, a_fit(8), predicted=predicted))
        went_on = journal.record
    assert read_record(tmp_path) == went_on
    assert went_on.trials[-1].predicted == predicted


def test_a_folder_takes_one_run(tmp_path: Path) -> None:
    written(tmp_path / "run", a_finished_record())
    with pytest.raises(FolderUnusable, match="already holds a run"), Journal.create(tmp_path / "run", a_header()):
        pass


def test_a_folder_without_a_run_is_said_to_be_none(tmp_path: Path) -> None:
    for look in (read_record, lambda folder: Journal.reopen(folder).__enter__()):
        with pytest.raises(FolderUnusable, match="holds no run"):
            look(tmp_path)


def _hold(folder: Path, pipe: Connection) -> None:
    with Journal.reopen(folder):
        pipe.send("held")
        pipe.recv()


def test_a_second_driver_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    written(tmp_path / "run", a_finished_record())
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    holder = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path / "run", theirs))
    holder.start()
    assert ours.recv() == "held"
    with pytest.raises(FolderInUse, match=f"in use by process {holder.pid}"), Journal.reopen(tmp_path / "run"):
        pass
    # However it ends, the folder is free again.
    holder.kill()
    holder.join()
    with Journal.reopen(tmp_path / "run") as journal:
        assert len(journal.record.trials) == 9


def test_a_file_where_the_folder_should_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(FolderUnusable, match="cannot write in"), Journal.create(tmp_path / "run", a_header()):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_leaves_the_journal_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "run", a_finished_record())
    before = path.read_bytes()
    with Journal.reopen(tmp_path / "run") as journal:
        path.rename(tmp_path / "kept")
        path.symlink_to("/dev/full")
        with pytest.raises(FolderUnusable, match="No space left"):
            journal.add(a_trial(99, 7, a_fit(7)))
        path.unlink()
        (tmp_path / "kept").rename(path)
        assert journal.record == read_record(tmp_path / "run")
    assert path.read_bytes() == before

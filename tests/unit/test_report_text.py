"""What a terminal shows: to the letter the kept texts, never wider than asked, never an escape by accident."""

import dataclasses
import re
import shlex
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper import cards
from sweeper.cli.run import run as sweep_command_line
from sweeper.record import Record, Settings
from sweeper.report import summary, trial_line
from sweeper.report.commands import advice, next_commands, sweep_command
from sweeper.report.table import Column, lay_out
from sweeper.report.text import device_line
from sweeper.report.words import headline, shortage
from sweeper.trial import CardMemory, Outcome
from sweeper.units import GIB, MIB
from tests.builders import (
    BOUNDARY,
    CAPACITY_BYTES,
    a_broken,
    a_device,
    a_finished_record,
    a_fit,
    a_measured_fit,
    a_prediction,
    a_record,
    a_spec,
    a_trial,
    an_oom,
)
from tests.report_cases import CASES, FOLDER, golden_text

RUN = Path("results/a-run")
each_case = pytest.mark.parametrize("record", CASES.values(), ids=CASES)
HOSTILE = "\x1b[31m\x07\x9b\u202ename\r\n"


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_one_that_is_kept(name: str) -> None:
    assert golden_text(CASES[name]) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_every_kept_text_is_of_a_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(CASES)


@each_case
def test_colour_adds_escapes_and_changes_nothing_else(record: Record) -> None:
    plain, colored = (summary(record, folder=RUN, color=color) for color in (False, True))
    assert "\x1b" not in plain
    assert "\x1b" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_the_out_of_memory_row_is_red_and_says_so_without_colour() -> None:
    rows = summary(a_finished_record(), folder=RUN, color=True).splitlines()
    red = [row for row in rows if row.startswith("\x1b[31m")]
    assert len(red) == 1
    assert f"{BOUNDARY + 1}  OUT OF MEMORY" in red[0]


@each_case
@pytest.mark.parametrize("width", [50, 64, 80, 132, 400])
def test_no_line_is_wider_than_asked_but_those_to_copy(record: Record, width: int) -> None:
    for line in summary(record, folder=RUN, color=False, width=width).splitlines():
        to_copy = any(word in line for word in ("sweep --", "sweep report", str(RUN)))
        one_word = len(line.split()) == 1
        assert to_copy or one_word or line.startswith("  | ") or len(line) <= width


@each_case
def test_simulated_is_said_in_every_sentence_or_nowhere(record: Record) -> None:
    text = summary(record, folder=RUN, color=False, width=1000)
    assert record.device is not None
    if not record.device.simulated:
        assert "simulated" not in text
        return
    heading, *blocks = text.split("\n\n")
    assert "(simulated)" in heading
    if record.curve:
        assert "(simulated)" in blocks.pop(0).splitlines()[1]
    *said, _commands = blocks
    unmarked = ("would help", "not tried", "do next", "axis")
    for line in "\n".join(said).splitlines():
        assert line.endswith("(simulated)") or line.strip().startswith(unmarked) or line.startswith("  | ")
    for trial in record.trials:
        assert trial_line(record, trial).endswith("(simulated)")


@each_case
def test_the_text_is_ascii_where_the_names_are(record: Record) -> None:
    assert golden_text(record).isascii()


@pytest.mark.parametrize(
    "outcome",
    [
        an_oom(module=HOSTILE, operator=HOSTILE, requested_bytes=None, message=HOSTILE, notes=(HOSTILE,)),
        a_broken(reason=HOSTILE, traceback=HOSTILE, log_tail=HOSTILE),
        a_fit(1, notes=(HOSTILE,)),
    ],
)
def test_nothing_a_name_holds_reaches_the_terminal_as_a_control(outcome: Outcome) -> None:
    spec = a_spec(model=f"{HOSTILE}.py:f", model_args={"name": HOSTILE})
    record = a_record((1, outcome), (1, outcome), spec=spec, device=a_device(label=HOSTILE))
    shown = [summary(record, folder=Path(HOSTILE), color=False), *(trial_line(record, t) for t in record.trials)]
    for text in shown:
        assert all(line.isprintable() for line in text.split("\n"))
    assert "\\x1b[31m" in shown[0]


def test_the_device_is_one_line_that_says_simulated_and_the_guess() -> None:
    assert device_line(a_device(), a_prediction(319)) == (
        "NVIDIA GeForce RTX 4060 (simulated), 7.50 GiB of 7.75 GiB to use, compute capability 8.9, "
        "torch 2.14.1+cu130, predicted: 319 fits"
    )
    real = device_line(a_device(device="cuda", notes=("a note",)), a_prediction(None))
    assert "simulated" not in real
    assert real.endswith("predicted: nothing fits; a note")
    assert device_line(a_device(label=HOSTILE), None).isprintable()


@given(text=st.text(max_size=40), size=st.integers(1, 10**6))
def test_a_trial_is_one_line_whatever_it_says(text: str, size: int) -> None:
    for outcome in (an_oom(module=text), a_broken(reason=text), a_fit(8)):
        line = trial_line(a_record(), a_trial(1, size, outcome))
        assert len(line.splitlines()) == 1
        assert f"batch {size} " in line


@pytest.mark.parametrize(
    ("axis", "size"),
    [("seq-len", "sequence length 64"), ("image-size", "image size 64"), ("model.depth", "depth 64")],
)
def test_a_size_is_called_by_its_axis_everywhere(axis: str, size: str) -> None:
    settings = Settings(floor=64, cap=64, step=64, axis=axis)
    failed = a_record((64, an_oom()), settings=settings, spec=a_spec(batch_size=4))
    text = summary(failed, folder=RUN, color=False, width=1000)
    assert f"Nothing fits: {size}, the smallest allowed" in text
    assert f"ran out         {size} in forward" in text
    assert size in trial_line(failed, failed.trials[0])
    assert "--batch-size below 4" in text
    assert ("a smaller --image-size" in text) == (axis != "image-size")
    fits = a_record((64, a_fit(64)), settings=settings, spec=a_spec(batch_size=4))
    assert "raise --max to find" in summary(fits, folder=RUN, color=False, width=1000)
    assert f"{size}: never took" in summary(fits, folder=RUN, color=False, width=1000)


def test_what_is_untested_lies_on_the_grid() -> None:
    settings = Settings(floor=8, cap=64, step=8, axis="seq-len", sizes=(24, 32, 40, 64))
    for failing, said in ((32, None), (40, "32 untested"), (64, "32 to 56 untested")):
        record = a_record((24, a_fit(24)), (failing, an_oom()), settings=settings)
        text = summary(record, folder=RUN, color=False)
        assert ("untested" in text) == (said is not None)
        assert said is None or said in text


def test_the_next_command_along_an_axis_asks_for_the_same_sizes() -> None:
    record = CASES["sequence-length"]
    commands = dict(next_commands(record, RUN))
    read = _parse(commands["prove it again"]).params
    assert (read["axis"], read["min_size"], read["max_size"], read["step"]) == ("seq-len", 1152, 1160, 8)
    assert (read["batch_size"], read["model_args"], read["seq_len"]) == (4, {"n_positions": 4096}, None)
    settings = dataclasses.replace(record.header.settings, cap=1152)
    header = dataclasses.replace(record.header, settings=settings)
    capped = dataclasses.replace(record, trials=record.trials[:5], header=header)
    read = _parse(dict(next_commands(capped, RUN))["find the limit"]).params
    # As many positions as the new --max needs, not as the last had.
    assert (read["max_size"], read["step"], read["model_args"]) == (2304, 8, {})


@given(
    capacity=st.integers(1, 100) | st.integers(GIB, 200 * GIB),
    allocated=st.integers(0, 200 * GIB),
    requested=st.integers(1, 100 * GIB),
)
def test_a_shortage_is_true_exactly_when_the_bytes_are_not_there(capacity: int, allocated: int, requested: int) -> None:
    failure = an_oom(capacity_bytes=capacity, allocated_bytes=allocated, requested_bytes=requested)
    said = shortage(a_record((1, failure)))
    assert said is not None
    assert said.startswith("true shortage" if allocated + requested > capacity else "fragmentation")


@pytest.mark.parametrize("unknown", ["allocated_bytes", "requested_bytes"])
def test_no_kind_of_shortage_is_named_when_a_size_is_not_known(unknown: str) -> None:
    assert shortage(a_record((1, an_oom(**{unknown: None})))) is None


def test_the_cpu_has_no_caching_allocator_to_be_in_pieces() -> None:
    assert shortage(a_record((1, an_oom(failure="oom_host")), spec=a_spec(device="cpu"))) is None


# -- commands ---------------------------------------------------------------------------------------------------


def _parse(command: str) -> click.Context:
    """Return ``command`` as the command line itself reads it; an unknown flag or a bad value raises."""
    program, *words = shlex.split(command)
    assert program == "sweep"
    return sweep_command_line.make_context("sweep", words)


@each_case
def test_every_command_shown_is_one_that_the_command_line_takes(record: Record) -> None:
    shown = next_commands(record, Path("results/a run"))
    assert shown[-1] == ("show it again", "sweep report 'results/a run'")
    for purpose, command in shown[:-1]:
        given_flags = _parse(command).params
        if purpose == "go on":
            assert given_flags["resume"] == Path("results/a run")
        else:
            assert given_flags["model"] == record.header.spec.model


def test_a_command_asks_for_the_same_spec() -> None:
    spec = a_spec(
        model="a dir/my model.py:build",
        device="cuda:1",
        model_args={"depth": 8, "wide": True, "name": "a b"},
        precision="amp-fp16",
        optimizer="adamw",
        mode="inference",
        image_size=96,
        steps=5,
        memory_limit_bytes=3 * GIB // 2,
    )
    read = _parse(sweep_command(spec, "--batches", "3,4")).params
    assert read["model_args"] == spec.model_args
    assert read["batches"] == (3, 4)
    assert read["memory_limit"] == "1536MiB"
    for name in ("model", "device", "precision", "optimizer", "mode", "image_size", "steps"):
        assert read[name] == getattr(spec, name)


@pytest.mark.parametrize(
    ("record", "purposes"),
    [
        (CASES["boundary-simulated"], ["prove it again"]),
        (CASES["cap-fits-cpu"], ["find the limit", "prove it again"]),
        (CASES["listed"], ["find the limit", "prove it again"]),
        (CASES["broken"], ["try it alone"]),
        (CASES["unfinished"], ["go on"]),
    ],
)
def test_what_to_do_next_depends_on_how_it_ended(record: Record, purposes: list[str]) -> None:
    assert [purpose for purpose, _ in next_commands(record, RUN)][:-1] == purposes


def test_both_sides_of_the_boundary_are_named_to_prove_it() -> None:
    commands = dict(next_commands(a_finished_record(), RUN))
    assert _parse(commands["prove it again"]).params["batches"] == (BOUNDARY, BOUNDARY + 1)


# -- advice -----------------------------------------------------------------------------------------------------


def _nothing_fits(failure: Outcome | None = None, **spec: object) -> Record:
    return a_record((1, failure or an_oom()), spec=a_spec(**spec))


@each_case
def test_advice_is_given_only_when_nothing_fits(record: Record) -> None:
    assert bool(advice(record)) == (record.first_failure is not None and record.max_size is None)


def test_a_larger_card_is_the_smallest_of_the_catalogue_that_is_clearly_larger() -> None:
    record = _nothing_fits()
    assert record.device is not None
    named = re.findall(r"--device sim:(\S+)", "\n".join(advice(record)))
    assert len(named) == 1
    least = 1.5 * record.device.total_bytes
    enough = [card.total_bytes for card in cards.cards().values() if card.total_bytes >= least]
    assert cards.card(named[0]).total_bytes == min(enough)


@pytest.mark.parametrize(("capability", "precision"), [("7.5", "amp-fp16"), ("8.0", "amp-bf16"), ("12.0", "amp-bf16")])
def test_autocast_is_advised_in_the_type_the_card_is_fast_in(capability: str, precision: str) -> None:
    record = a_record((1, an_oom()), device=a_device(compute_capability=capability))
    assert any(text.startswith(f"--precision {precision}:") for text in advice(record))


@pytest.mark.parametrize("phase", ["setup", "step"])
def test_where_no_activation_is_alive_nothing_is_said_of_activations(phase: str) -> None:
    said = "\n".join(advice(_nothing_fits(an_oom(phase=phase), optimizer="adam")))
    assert "activations" not in said
    assert "--optimizer sgd" in said
    assert ("--precision bf16" in said) == (phase == "setup")


def test_other_processes_on_the_card_come_first() -> None:
    before = CardMemory(total_bytes=8 * GIB, used_bytes=3 * GIB, process_bytes=GIB)
    first, *_ = advice(_nothing_fits(an_oom(card_before=before), device="cuda"))
    assert first == "end what else is on the card: other processes hold 2.00 GiB"


# -- words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("boundary-simulated", "325 fits, 326 does not"),
        ("cap-fits-cpu", "64 fits (the cap)"),
        ("nothing-fits", "1 does not fit"),
        ("broken", "stopped (model error)"),
        ("unfinished", "unfinished after 2 trials"),
        ("sequence-length", "1,152 fits, 1,160 does not"),
    ],
)
def test_a_title_says_the_answer(name: str, title: str) -> None:
    assert headline(CASES[name]) == title


def test_a_boundary_that_is_proven_is_the_answer_while_the_recommended_batch_is_looked_for() -> None:
    ahead = a_record((BOUNDARY, a_fit(BOUNDARY)), (BOUNDARY + 1, an_oom()))
    assert ahead.next_trial() is not None
    assert headline(ahead) == f"{BOUNDARY} fits, {BOUNDARY + 1} does not"
    assert [purpose for purpose, _ in next_commands(ahead, RUN)] == ["go on", "show it again"]
    assert "recommended" not in summary(ahead, folder=RUN, color=False)


def test_a_broken_trial_that_fits_when_retried_is_no_second_proof() -> None:
    record = a_record((8, a_broken()), (8, a_fit(8)), settings=Settings(cap=8, sizes=(8,)))
    shown = summary(record, folder=RUN, color=False)
    assert "8 ran and fitted once" in shown
    assert "fits x2" not in shown


def test_what_was_not_measured_has_no_column() -> None:
    simulated = summary(a_finished_record(), folder=RUN, color=False)
    measured = summary(a_record((1, a_measured_fit(1)), spec=a_spec(device="cuda")), folder=RUN, color=False)
    for heading in ("process", "samples/s"):
        assert heading not in simulated
        assert heading in measured


def test_a_peak_just_below_the_capacity_is_not_shown_as_all_of_it() -> None:
    nearly = a_fit(1, peak_reserved_bytes=CAPACITY_BYTES - MIB // 64)
    assert "(99.9 %)" in trial_line(a_record(), a_trial(1, 1, nearly))


@given(
    widths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    importance=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    width=st.integers(1, 200),
)
def test_columns_give_way_by_importance_and_only_as_far_as_needed(
    widths: list[int], importance: list[int], width: int
) -> None:
    columns = [
        Column(heading=str(i), cells=("x" * w,), importance=rank)
        for i, (w, rank) in enumerate(zip(widths, importance, strict=False))
    ]
    if all(column.importance for column in columns):
        columns.append(Column(heading="k", cells=("k",)))
    layout = lay_out(columns, width=width)
    dropped = [column for column in columns if column.heading in layout.dropped]
    kept = [column for column in columns if column.heading not in layout.dropped]
    least_dropped = min((column.importance for column in dropped), default=4)
    assert least_dropped > 0
    assert all(column.importance <= least_dropped for column in kept)
    fits = max(map(len, (*layout.headings, *layout.rows))) <= width
    assert fits or not any(column.importance for column in kept)
    if dropped:  # with the last one that was dropped it would have been too wide
        last = next(column for column in dropped if column.heading == layout.dropped[-1])
        assert sum(2 + column.width for column in (*kept, last)) > width


def test_under_a_limit_what_is_free_is_what_the_limit_leaves() -> None:
    failed = an_oom(capacity_bytes=GIB, reserved_bytes=GIB - 12 * MIB, free_bytes=6 * GIB)
    record = a_record((1, failed), spec=a_spec(memory_limit_bytes=GIB), device=a_device(capacity_bytes=GIB))
    assert "free 12.00 MiB" in summary(record, folder=RUN, color=False)

"""``--price``, ``--samples`` and ``--epochs`` at the command line: hours and money of timed steps, else a refusal."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]


def test_a_measured_sweep_says_hours_and_money_and_a_report_those_of_another_price(
    sweep: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "run"
    question = ("--model", "mlp", "--device", "cpu", "--batches", "1,4", "--folder", str(folder))
    asked = ("--price", "0.80 EUR/h", "--samples", "60000", "--epochs", "10")
    code, out, _ = sweep(*question, *asked, "--json")
    assert code == 0
    answer = json.loads(out)
    said = {"samples": 60000, "epochs": 10.0, "price_per_hour": 0.8, "currency": "EUR", "list_price": None}
    assert answer["cost"] == said
    for point in answer["curve"]:
        assert point["hours"] == pytest.approx(60000 * 10 / point["samples_per_second"] / 3600)
        assert point["money"] == pytest.approx(0.8 * point["hours"])
    assert json.loads((folder / "summary.json").read_text()) == answer

    # Asked again at twice the price and half the samples: the same money in half the hours; the journal is as it was.
    journal = (folder / "journal.jsonl").read_bytes()
    code, out, _ = sweep("report", str(folder), "--price", "$1.60/h", "--samples", "30000", "--epochs", "10")
    assert code == 0
    assert "10 epochs of 30,000 samples" in out
    rows = list(csv.DictReader(io.StringIO((folder / "curve.csv").read_text())))
    for row, point in zip(rows, answer["curve"], strict=True):
        assert float(row["hours"]) == pytest.approx(point["hours"] / 2)
        assert float(row["money"]) == pytest.approx(point["money"])
    assert json.loads((folder / "summary.json").read_text())["cost"]["currency"] == "USD"
    assert (folder / "journal.jsonl").read_bytes() == journal

    code, _, err = sweep("report", str(folder), "--price", "list", "--samples", "1")
    assert (code, err.splitlines()[0]) == (2, "sweep: list prices are of GPUs, and the device is cpu")


REFUSED = [
    (("--model", "mlp", "--device", "sim:l4", "--price", "1/h", "--samples", "9"), "nothing simulated has a time"),
    (("--model", "mlp", "--device", "sim:l4", "--samples", "9"), "nothing simulated has a time"),
    (("--model", "mlp", "--device", "cpu", "--price", "1/h"), "--price needs to know how much is trained"),
    (("--model", "mlp", "--device", "cpu", "--price", "dear", "--samples", "9"), "'dear' is no price an hour"),
    (("--model", "mlp", "--device", "cpu", "--price", "list", "--samples", "9"), "list prices are of GPUs"),
    (("predict", "--model", "mlp", "--card", "l4", "--price", "1/h"), "--price asks for a time"),
    (("predict", "--model", "mlp", "--card", "l4", "--samples", "9"), "--samples asks for a time"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_has_no_answer_is_refused_before_anything_runs(
    sweep: Command, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = sweep(*arguments)
    assert (code, out) == (2, "")
    assert said in err.splitlines()[0]
    assert len(err.splitlines()) == 2  # what, and what to do
    assert not (tmp_path / "results").exists()

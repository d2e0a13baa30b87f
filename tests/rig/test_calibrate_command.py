"""``sweep calibrate`` on a card that the catalogue lacks, and what is predicted of that card afterwards."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sweeper.units import GIB
from tests.rig.build import Rig

pytestmark = pytest.mark.rig

_ROOT = Path(__file__).parents[2]
CONTEXT = 300 * 10**6
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def sweep(environment: Mapping[str, str], *words: str) -> Any:
    """The JSON that ``sweep WORDS --json`` prints."""
    command = [sys.executable, "-m", "sweeper", *words, "--json"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=_ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_calibrated_card_is_predicted_right_where_there_is_no_gpu(rig: Rig, tmp_path: Path) -> None:
    kept = {"SWEEPER_CALIBRATIONS": str(tmp_path / "kept")}
    card = {**rig.environment(6 * GIB, name="NVIDIA Test 9000", context_bytes=CONTEXT), **kept}
    measured = sweep(card, "calibrate")
    assert (measured["context_bytes"], measured["outside_bytes"]) == (CONTEXT, CONTEXT)
    assert (measured["total_bytes"], measured["reserved_offset_bytes"]) == (6 * GIB, 0)
    assert Path(measured["file"]).parent == tmp_path / "kept"
    # cuDNN's workspaces, which the stand-in has none of, are all that differs.
    differences = {
        (job["model"], job["precision"]): job["measured_reserved_bytes"] - job["simulated_reserved_bytes"]
        for job in measured["jobs"]
    }
    assert differences.pop(("resnet18", "amp-fp16")) <= 0
    assert set(differences.values()) == {0}

    elsewhere = {**NO_GPU, **kept}
    predicted = sweep(elsewhere, "predict", "--model", "resnet18", "--card", measured["name"])
    largest = predicted["max_batch"]
    sizes = ("--model", "resnet18", "--batches", f"{largest},{largest + 1}")
    simulated = sweep(elsewhere, *sizes, "--device", f"sim:{measured['name']}", "--folder", str(tmp_path / "sim"))
    ran = sweep(card, *sizes, "--device", "cuda", "--folder", str(tmp_path / "ran"))
    outcomes = [[point["outcome"] for point in answer["curve"]] for answer in (simulated, ran)]
    assert outcomes == [["fit", "oom"], ["fit", "oom"]]
    text = subprocess.run(
        [sys.executable, "-m", "sweeper", "report", str(tmp_path / "ran")],
        env={**os.environ, **elsewhere}, cwd=_ROOT, capture_output=True, text=True, timeout=100, check=True,
    ).stdout  # fmt: skip
    assert "calibrated on" in text
    assert "286.10 MiB outside the allocator" in text

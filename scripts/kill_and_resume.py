"""Kill a sweep at random moments with SIGKILL, resume it, and hold the outcome against one that was left alone.

    python scripts/kill_and_resume.py --kills 20

For each kill: the same answer, the same trials in the same order, no number missing and none there twice.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SWEEP = [sys.executable, "-m", "sweeper"]
QUESTION = ["--model", "small-cnn", "--device", "sim:rtx4060", "--memory-limit", "1GiB", "--max-batch", "4096"]


def start(arguments: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*SWEEP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def trials_of(folder: Path) -> list[dict[str, Any]]:
    """The journal's trials, without what differs between any two runs: times."""
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    trials = [line for line in lines if line["entry"] == "trial"]
    for trial in trials:
        del trial["started"], trial["seconds"]
    return trials


def kill_once(folder: Path, after_s: float) -> str:
    """Start a sweep in ``folder``, kill its driver after ``after_s``, and bring it to its end; returns its JSON."""
    driver = start([*QUESTION, "--folder", str(folder), "--json"])
    try:
        out, _ = driver.communicate(timeout=after_s)
        return out.decode()
    except subprocess.TimeoutExpired:
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
    if not (folder / "journal.jsonl").is_file() or not (folder / "journal.jsonl").read_bytes().count(b"\n"):
        # Killed before the question was written down: there is nothing to go on with.
        arguments = [*QUESTION, "--folder", str(folder), "--json"]
    else:
        arguments = ["--resume", str(folder), "--json"]
    out, err = start(arguments).communicate()
    if not out:
        raise SystemExit(f"the resumed sweep failed:\n{err.decode()}")
    return out.decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        calm = Path(scratch) / "calm"
        began = time.monotonic()
        answer = json.loads(start([*QUESTION, "--folder", str(calm), "--json"]).communicate()[0])
        whole_s = time.monotonic() - began
        expected = trials_of(calm)
        print(f"left alone: {answer['max_batch']} in {len(expected)} trials, {whole_s:.1f} s")
        for number in range(options.kills):
            # Most of a sweep is the import of torch; half of the kills fall in the last third, where the trials are.
            after_s = draw.uniform(0.65 if number % 2 else 0.0, 1.0) * whole_s
            folder = Path(scratch) / f"killed-{number}"
            found = json.loads(kill_once(folder, after_s))
            trials = trials_of(folder)
            if found["max_batch"] != answer["max_batch"] or trials != expected:
                raise SystemExit(f"kill {number} after {after_s:.2f} s: {found['max_batch']}, {len(trials)} trials")
            print(f"killed after {after_s:5.2f} s: {found['max_batch']}, {len(trials)} trials, the same")
    print(f"{options.kills} of {options.kills} the same")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()

"""The command as a person gives it, run in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.cli import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run ``sweep ARGUMENTS`` in an empty folder; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sweep", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, out, err

    return run

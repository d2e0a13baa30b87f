"""What the documents say exists: every command parses, every link leads somewhere, every model and card is there."""

import re
import shlex
from pathlib import Path

import pytest

from sweeper import cards
from sweeper.cli import cli
from sweeper.model_names import check_model, library_of

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "results" / "README.md"])
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


def commands() -> list[tuple[str, str]]:
    """Every line of a document that is a sweep command, without what is said beside it."""
    found = []
    for document in [*DOCUMENTS, *EXAMPLES]:
        for line in document.read_text().splitlines():
            match = re.match(r"(?: {4,}|\| `[^`]*` \| `)(?:pip install \. && )?(sweep [^`]*?)(?: {3,}.*|`.*)?$", line)
            if match and "..." not in match[1]:
                found.append((str(document.relative_to(ROOT)), match[1]))
    return found


@pytest.mark.parametrize(("document", "command"), commands())
def test_every_command_that_is_shown_parses(document: str, command: str) -> None:
    words = shlex.split(command)[1:]
    if "FOLDER" in words:
        return
    name, rest = (words[0], words[1:]) if words[0] in cli.commands else ("run", words)
    parsed = cli.commands[name].make_context(name, rest)
    if model := parsed.params.get("model"):
        if model != "my_model.py:factory":
            check_model(model if ":" not in model or library_of(model) else str(ROOT / model))
        device = parsed.params.get("device", "")
        assert not device.startswith("sim:") or cards.card(device.removeprefix("sim:"))
        card = parsed.params.get("card")
        assert card in (None, "all") or cards.card(card)


def test_there_are_commands_to_hold() -> None:
    assert len(commands()) > 20
    assert any("pip install . && sweep --model resnet18 --max-batch 512" in d.read_text() for d in DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        assert "://" in target or (document.parent / target).exists(), target


@pytest.mark.parametrize("document", ["README.md", "docs/accuracy.md"])
def test_the_scores_that_are_shown_are_the_ones_that_are_kept(document: str) -> None:
    kept = [line.rstrip() for line in (ROOT / "results" / "accuracy" / "accuracy.txt").read_text().splitlines()]
    shown = re.findall(r"^ {4}((?:xmem|gmn|caps|brackets|wrong)[-, ].*)$", (ROOT / document).read_text(), re.MULTILINE)
    assert len(shown) > 3
    assert set(shown) <= set(kept)

"""The command line: one file a command; each parses, calls and prints.  Errors are caught here and nowhere else."""

import signal
import sys
from types import FrameType

import click
from click_default_group import DefaultGroup

from sweeper import __version__
from sweeper.cli.calibrate import calibrate
from sweeper.cli.cards import cards
from sweeper.cli.compare import compare
from sweeper.cli.diff import diff
from sweeper.cli.frontier import frontier
from sweeper.cli.models import models
from sweeper.cli.predict import predict
from sweeper.cli.report import report
from sweeper.cli.run import run
from sweeper.errors import SweepError, UnknownName

__all__ = ["main"]

_INTERRUPTED = 130


class _Commands(DefaultGroup):  # type: ignore[misc]
    """What is no command is taken for the options of ``run``; a first word that is none of those was meant as one."""

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = arguments[0] if arguments else "-"
        if word not in self.commands and not word.startswith("-"):
            raise UnknownName("command", word, tuple(self.commands), listing="`sweep --help` lists them")
        found: tuple[str | None, click.Command | None, list[str]] = super().resolve_command(context, arguments)
        return found


@click.group(
    cls=_Commands,
    default="run",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="sweep")
def cli() -> None:
    """Find the largest batch that fits on a GPU, prove it, and draw where the memory goes.

    \b
    sweep --model resnet18 --max-batch 512          on the GPU, or a simulated card without one
    sweep --model resnet18 --device sim:a100-40gb   on a card that is not here
    sweep --model small-cnn --device cpu            on the CPU
    sweep predict --model resnet18 --card l4        what would fit there, without running anything
    sweep compare --model resnet18 --vary precision=fp32,amp-bf16     choices side by side
    sweep frontier --model tiny-transformer --max-seq-len 2048        the largest batch at each length

    All options of a sweep: sweep run --help
    """


for command in (run, compare, frontier, predict, calibrate, cards, models, report, diff):
    cli.add_command(command)


def main() -> None:
    """The ``sweep`` command.  Leaves with 0 answered, 1 the answer is no, 2 wrong usage, 3 trials broke, 130 Ctrl-C."""
    # A terminal that closes or a scheduler that ends the job: leave as for Ctrl-C, so that trials are ended.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = cli.main(prog_name="sweep", standalone_mode=False)
    except SweepError as error:
        _say(error.message, error.hint)
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = _INTERRUPTED
    except BrokenPipeError:  # `sweep cards | head`
        sys.stderr.close()
        code = 0
    sys.exit(code or 0)


def _say(message: str, hint: str) -> None:
    click.echo(f"sweep: {message}\n  {hint}", err=True)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

"""The command line: one file per verb, loaded only when that verb is called.

Errors become exit codes here and nowhere else: 0 fine, 1 a finding of severity error or a failed proof,
2 wrong usage, 3 the input cannot be read.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from tiebeam._version import __version__
from tiebeam.errors import BadRequest, ProofFailed, TiebeamError

# verb: one line for the overview; the verb lives in cli/<verb>.py as `command`
VERBS = {
    "inspect": "The pair of a checkpoint: where it is, whether it is tied, what it costs.",
    "doctor": "Every finding, with its cause and its fix; what each loader will do.",
    "tie": "One matrix for both ends: exact where it can be, measured where it cannot.",
    "untie": "Give the head its own tensor, the same numbers.",
    "plan": "The calculator: what tying saves for a vocabulary, a width and a trunk.",
    "models": "Who ties, who doesn't, with sources.",
    "generate": "Text out of a checkpoint, on NumPy.",
    "train": "A small GPT, tied or not, from text to checkpoint.",
    "pack": "The quantised, compressed artifact of a run, and what the rounding cost.",
    "unpack": "A checkpoint back from an artifact.",
    "compare": "Tied against untied on your text, with a report to open.",
    "bigrams": "What a tied, bridged and untied direct path can say, in bits.",
    "lens": "The direct path of a real model: symmetry, rank, neighbours.",
    "studio": "The web studio: the lesson, the calculator, your models and runs.",
}


class _Verbs(click.Group):
    """Imports a verb's module when it is called, so that `--help` stays instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"tiebeam.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the verbs are {', '.join(VERBS)}."
            raise click.UsageError(f"there is no verb '{args[0]}'; {hint}", ctx) from error


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tiebeam")
def tiebeam() -> None:
    """See, price, diagnose and change the two vocabulary matrices of a language model.

    MODEL is a directory, a file, org/name or hf://org/name@rev.
    Every verb that reports takes --json. Try: tiebeam VERB --help
    """


def main(arguments: list[str] | None = None) -> None:
    """The console entry point: run a verb, turn errors into one sentence and an exit code."""
    try:
        code = tiebeam.main(
            arguments, prog_name="tiebeam", standalone_mode=False
        )  # a verb's Exit comes back as its code
        if isinstance(code, int) and code:
            sys.exit(code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except TiebeamError as error:
        click.echo(f"tiebeam: {error}".replace("force=True", "--force"), err=True)
        sys.exit(1 if isinstance(error, ProofFailed) else 2 if isinstance(error, BadRequest) else 3)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; say nothing, as other tools do
        sys.exit(0)

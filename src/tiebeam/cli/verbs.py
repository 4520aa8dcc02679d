"""The verbs, their overview, and how a command ends.

Errors become exit codes here and nowhere else: 0 fine, 1 error-level finding or failed proof, 2 usage, 3 unreadable
input. The library's errors name Python arguments; `to_options` rewrites them: `keep="head"` becomes `--keep head`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

import click

from tiebeam._version import __version__
from tiebeam._visible import visible
from tiebeam.cli.option_names import to_options
from tiebeam.errors import BadRequest, ProofFailed, TiebeamError

# group -> verb -> one line for the overview; a verb is `command` in cli/<verb>.py
GROUPS = {
    "Look": {
        "inspect": "Is it tied? The embedding, the LM head, their parameters.",
        "doctor": "Find what is wrong and fix it; what each loader will do.",
        "plan": "Calculate what tying saves: parameters, bytes, communication.",
        "models": "List known models: which tie and which do not, with sources.",
        "lens": "Analyse the direct path: symmetry, rank, neighbours.",
    },
    "Change": {
        "tie": "Use one matrix as embedding and LM head: exactly, or measured.",
        "untie": "Give the LM head its own tensor with the same numbers.",
        "extend": "Add tokens and rows to embedding, LM head and tokenizer.",
        "trim": "Drop the rows of tokens that your text does not use.",
        "quantize": "Measure what fewer bits cost at both ends; write a GGUF.",
        "merge": "Merge PEFT adapters into their base, tied or untied.",
    },
    "Run": {
        "generate": "Generate text from a checkpoint.",
    },
    "Train": {
        "train": "Train a small GPT, tied or untied, from text to checkpoint.",
        "compare": "Train tied and untied models on your text; write a report.",
        "bigrams": "Fit tied and untied zero-layer models, in bits per token.",
        "pack": "Quantize and compress a run into one small file; measure the loss.",
        "unpack": "Restore a checkpoint from a packed file.",
    },
    "Studio": {
        "studio": "Open the web studio: lesson, calculator, your models and runs.",
    },
}
VERBS = {verb: line for verbs in GROUPS.values() for verb, line in verbs.items()}


class _Verbs(click.Group):
    """Imports a verb's module when it is called, so that `--help` stays instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "help":
            return _help
        if cmd_name not in VERBS:
            return None
        command = import_module(f"tiebeam.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(f"{verb:<8}", line) for verb, line in verbs.items()])  # one width in all groups

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        _check_verb(args[0], ctx)
        return super().resolve_command(ctx, args)


def _check_verb(verb: str, ctx: click.Context) -> None:
    if verb in VERBS or verb == "help":
        return
    import difflib

    near = difflib.get_close_matches(verb, VERBS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"the verbs are {', '.join(VERBS)}."
    raise click.UsageError(f"there is no verb '{verb}'; {hint}", ctx)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
             subcommand_metavar="VERB [ARGS]...")  # fmt: skip
@click.version_option(__version__, prog_name="tiebeam")
@click.pass_obj
def tiebeam(failed: BaseException | None) -> None:
    """Inspect, diagnose, change and train the embedding and LM head of a model.

    MODEL is a directory, a file, org/name or hf://org/name@rev.
    Every verb that reports takes --json. More: tiebeam help VERB
    """
    if failed is not None:
        raise failed


@click.command(name="help", add_help_option=False)
@click.argument("verb", required=False)
@click.pass_context
def _help(ctx: click.Context, verb: str | None) -> None:
    """Show the help of a verb, or of all verbs."""
    parent = ctx.parent
    assert parent is not None
    if verb is None or verb == "help":
        click.echo(parent.get_help())
        return
    _check_verb(verb, parent)
    command = tiebeam.get_command(parent, verb)
    assert command is not None
    click.echo(command.get_help(click.Context(command, info_name=verb, parent=parent)))


def run(arguments: list[str], failed: BaseException | None = None) -> None:
    """Run a verb, turn errors into one sentence and an exit code. `failed` is what it raised already, without click:
    it is raised again here, and the process ends as if the verb ran now."""
    try:
        code = tiebeam.main(arguments, prog_name="tiebeam", standalone_mode=False, obj=failed)
        if isinstance(code, int) and code:  # click returns a verb's exit code
            sys.exit(code)
    except click.ClickException as error:
        error.message = visible(error.message)  # type: ignore[misc]
        error.show()
        sys.exit(2)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except TiebeamError as error:
        _fail(error, arguments)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; exit quietly, as other tools do
        sys.exit(0)
    except OSError as error:
        from tiebeam._fs import unforeseen

        _fail(unforeseen(error), arguments)


def _fail(error: TiebeamError, arguments: list[str]) -> NoReturn:
    """Print the error with option names, and exit with its code."""
    from tiebeam.cli.progress import close_all

    close_all()
    verb = next((argument for argument in arguments if argument in VERBS), "")
    command = tiebeam.get_command(click.Context(tiebeam), verb)
    click.echo(visible(f"tiebeam: {to_options(str(error), command)}"), err=True)  # it may quote the model's text
    sys.exit(1 if isinstance(error, ProofFailed) else 2 if isinstance(error, BadRequest) else 3)

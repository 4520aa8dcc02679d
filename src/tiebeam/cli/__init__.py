"""The command line: one file per verb, imported only when that verb is called.

Errors become exit codes here and nowhere else: 0 fine, 1 error-level finding or failed proof, 2 usage, 3 unreadable
input. The library's errors name Python arguments; `to_options` rewrites them: `keep="head"` becomes `--keep head`.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module

import click

from tiebeam._version import __version__
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
def tiebeam() -> None:
    """Inspect, diagnose, change and train the embedding and LM head of a model.

    MODEL is a directory, a file, org/name or hf://org/name@rev.
    Every verb that reports takes --json. More: tiebeam help VERB
    """


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


_ARGUMENT = re.compile(
    r"""\b(?P<name>[a-z_]+)=(?:(?P<flag>True|False)\b|(?P<quote>["'])(?P<text>[^"']*)(?P=quote)|(?P<number>-?\d[\d._]*\b))"""
)


def to_options(message: str, command: click.Command | None) -> str:
    """Rewrite the Python arguments in a message as options of `command`.

    force=True -> --force, proof=False -> --no-proof, keep="head" -> --keep head, "dim must be ..." -> "--dim must be
    ...". What is not an option of the command stays as it is.
    """
    known = {option for param in (command.params if command else ()) for option in (*param.opts, *param.secondary_opts)}

    def option(found: re.Match[str]) -> str:
        name = found["name"].strip("_").replace("_", "-")
        if found["flag"]:
            written = f"--{name}" if found["flag"] == "True" else f"--no-{name}"
            return written if written in known else found[0]
        value = found["text"] if found["quote"] else found["number"]
        shown = f'"{value}"' if " " in value or not value else value
        return f"--{name} {shown}" if f"--{name}" in known else found[0]

    subject = message.split(" must be ", 1)[0].replace("_", "-")
    if f"--{subject}" in known:
        message = f"--{subject}{message[len(subject) :]}"
    message = _ARGUMENT.sub(option, message)
    for name in known:
        if "-" in name[2:]:  # top_k can only be an argument; a single word may be a plain word
            message = re.sub(rf"\b{name[2:].replace('-', '_')}\b", name, message)
    return message


def main(arguments: list[str] | None = None) -> None:
    """The console entry point: run a verb, turn errors into one sentence and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = tiebeam.main(arguments, prog_name="tiebeam", standalone_mode=False)
        if isinstance(code, int) and code:  # click returns a verb's exit code
            sys.exit(code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except TiebeamError as error:
        from tiebeam.cli.progress import close_all

        close_all()
        verb = next((argument for argument in arguments if argument in VERBS), "")
        command = tiebeam.get_command(click.Context(tiebeam), verb)
        click.echo(f"tiebeam: {to_options(str(error), command)}", err=True)
        sys.exit(1 if isinstance(error, ProofFailed) else 2 if isinstance(error, BadRequest) else 3)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; exit quietly, as other tools do
        sys.exit(0)

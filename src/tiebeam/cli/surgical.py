"""Options, progress and reports that `tie`, `untie`, `extend` and `trim` have in common."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tiebeam.budget import human_bytes
from tiebeam.cli import render
from tiebeam.cli.inspect import title

if TYPE_CHECKING:
    from tiebeam._text import Line
    from tiebeam.surgery import Outcome, Plan

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_DONE = {"extend": "extended", "trim": "trimmed"}

_DTYPE = click.option(
    "--dtype", type=click.Choice(["F32", "F16", "BF16"]), default="F32", show_default=True,
    help="GGUF to safetensors: dequantize the weights to this dtype.",
)  # fmt: skip
_RUNNING = [
    click.option(
        "--engine", type=click.Choice(["auto", "numpy", "transformers"]), default="auto", show_default=True,
        help="What runs the models: auto takes numpy where it knows the family, else transformers (extra [hf]).",
    ),
    click.option("--device", metavar="DEVICE", help="torch device of the transformers engine, such as cuda or mps."),
]  # fmt: skip
_COMMON = [
    click.argument("source", metavar="SRC"),
    click.argument("target", metavar="DST", required=False),
    click.option("--dry-run", is_flag=True, help="Show every change and write nothing."),
    click.option("--force", is_flag=True, help="Replace DST if tiebeam wrote it; anything else there is refused."),
    click.option(
        "--link", is_flag=True,
        help="Hard-link weight files that do not change instead of copying them. SRC and DST then have these files in "
        "common, so never edit one in place.",
    ),
    click.option("--no-proof", is_flag=True, help="Do not run both models to compare their logits."),
    *_RUNNING,
    click.option("--embed", metavar="NAME", help="Name of the embedding tensor, if the architecture is unknown."),
    click.option("--head", metavar="NAME", help="Name of the LM head tensor to read or to write."),
    _DTYPE,
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    click.option("--quiet", is_flag=True, help="No progress on stderr."),
]  # fmt: skip


def common_options(function: Decorated) -> Decorated:
    return _decorated(function, _COMMON)


def common_options_of_one_format(function: Decorated) -> Decorated:
    """Without --dtype: for a verb that does not convert."""
    return _decorated(function, [option for option in _COMMON if option is not _DTYPE])


def running_options(function: Decorated) -> Decorated:
    """--engine and --device."""
    return _decorated(function, _RUNNING)


def _decorated(function: Decorated, options: list[Any]) -> Decorated:
    for option in reversed(options):
        function = option(function)
    return function


def needs_target(target: str | None, dry_run: bool) -> None:
    if target is None and not dry_run:
        raise click.UsageError("name DST, or pass --dry-run")


def print_nothing_to_do(plan: Plan, as_json: bool, dry_run: bool) -> None:
    if as_json:
        render.emit_json({**plan.to_dict(), "dry_run": dry_run, "written": False})
        return
    console, verb = render.console(), _DONE.get(plan.verb.split()[0], f"{plan.verb.split()[0]}d")
    console.print(render.styled((f"● {verb}", render.accent(verb == "tied")), "  ", plan.nothing_to_do))
    console.print("  nothing was written")


def print_plan(
    plan: Plan, as_json: bool, measured: str = "", more: dict[str, Any] | None = None, size: str = ""
) -> None:
    if as_json:
        render.emit_json({**plan.to_dict(), "dry_run": True, **(more or {})})
        return
    console = render.console()
    console.print(render.styled((f"dry run: tiebeam {plan.verb} would change {title(plan.report)}", "bold")))
    for line in _changes(plan.changes):
        console.print(line)
    if measured:
        console.print(render.wrapped(f"effect on loss: {measured}", console.width))
    if size:
        console.print(f"  size: {size}")
    for note in plan.notes:
        console.print(render.wrapped(f"note: {note}", console.width))


def print_outcome(outcome: Outcome, as_json: bool, measured: str = "") -> None:
    if as_json:
        render.emit_json(outcome.to_dict())
        return
    console = render.console()
    state = "untied" if outcome.verb == "untie" else str(outcome.after.tie)
    size = f"{title(outcome.after)} (was {human_bytes(outcome.before.nbytes)})"
    console.print(render.styled((f"● {state}", render.accent(state == "shared")), "  ", (size, "bold")))
    for line in _changes(outcome.changes):
        console.print(line)
    facts = [["verified", _verified(outcome)], ["digest", outcome.digests[1]]]
    if measured:
        facts.append(["measured", measured])
    if outcome.left:
        rest = f" and {len(outcome.left) - 3} more" if len(outcome.left) > 3 else ""
        facts.append(
            ["not copied", f"{', '.join(outcome.left[:3])}{rest}: other copies of the weights, or training state"]
        )
    facts.append(["next", f"tiebeam inspect {shlex.quote(str(outcome.target))}"])
    for note in outcome.notes:
        console.print(render.wrapped(f"note: {note}", console.width))
    for line in render.columns(facts, "<<"):
        console.print(line)


def _verified(outcome: Outcome) -> str:
    words = "every unchanged tensor, byte for byte"
    if outcome.verb.startswith(("extend", "trim")):
        words = "every unchanged tensor and row, byte for byte"
    if outcome.before.format == "gguf" and outcome.after.format != "gguf":
        words = "every tensor is there, dequantized"
    proof = outcome.proof
    on = "tokens of text" if outcome.verb == "trim" else "probe tokens"
    if proof is None:
        return words
    if not proof.ran:
        return f"{words}; logits not compared: {proof.why}"
    if outcome.verb == "merge":
        model = "the base with the adapter" + (" and one matrix" if outcome.measured else "")
        return f"{words}; logits within {proof.largest:.1e} (rounding) of {model} on {proof.tokens} probe tokens"
    if proof.largest == 0:
        return f"{words}; logits equal to the bit on {proof.tokens} {on}"
    return f"{words}; logits within {proof.largest:.1e} on {proof.tokens} {on}"


def _changes(changes: Any) -> Iterator[Line]:
    yield from render.columns([[change.file, change.what] for change in changes], "<<")

"""What `tie` and `untie` share: common options, progress on stderr, and how a plan and its outcome print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tiebeam.budget import human_bytes
from tiebeam.cli import render
from tiebeam.cli.inspect import title, verdict_line
from tiebeam.cli.progress import Progress

if TYPE_CHECKING:
    from rich.text import Text

    from tiebeam.surgery import Outcome, Plan

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_COMMON = [
    click.argument("source", metavar="SRC"),
    click.argument("target", metavar="DST", required=False),
    click.option("--dry-run", is_flag=True, help="Show exactly what would change, and write nothing."),
    click.option("--force", is_flag=True, help="Replace DST if it is a model that exists."),
    click.option(
        "--link", is_flag=True,
        help="Hard-link weight files that do not change instead of copying them: no time and no room, but SRC and DST "
        "then share those files, so never edit one in place.",
    ),
    click.option("--no-proof", is_flag=True, help="Do not run both models to compare their logits."),
    click.option("--embed", metavar="NAME", help="The embedding's tensor, where the architecture is not known."),
    click.option("--head", metavar="NAME", help="The head's tensor: the one to read, or the one to write."),
    click.option(
        "--dtype", type=click.Choice(["F32", "F16", "BF16"]), default="F32", show_default=True,
        help="GGUF to safetensors: the type that weights are dequantised to.",
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else there."),
    click.option("--quiet", is_flag=True, help="No progress on stderr."),
]  # fmt: skip


def common_options(function: Decorated) -> Decorated:
    for option in reversed(_COMMON):
        function = option(function)
    return function


def watching(quiet: bool) -> Progress:
    """Progress on stderr; nothing when quiet."""
    return Progress(quiet)


def print_plan(plan: Plan, as_json: bool, said: str = "", more: dict[str, Any] | None = None) -> None:
    if as_json:
        render.emit_json({**plan.to_dict(), "dry_run": True, **(more or {})})
        return
    console = render.console()
    console.print(render.styled((title(plan.report), "bold")))
    console.print(verdict_line(plan.report))
    console.print(f"  tiebeam {plan.verb} would change:")
    for line in _changes(plan.changes, indent=4):
        console.print(line)
    if said:
        console.print(render.wrapped(said, console.width))
    for note in plan.notes:
        console.print(render.wrapped(note, console.width))


def print_outcome(outcome: Outcome, as_json: bool, said: str = "") -> None:
    if as_json:
        render.emit_json(outcome.to_dict())
        return
    console = render.console()
    console.print(render.styled((f"{title(outcome.after)} (was {human_bytes(outcome.before.nbytes)})", "bold")))
    console.print(verdict_line(outcome.after))
    for line in _changes(outcome.changes):
        console.print(line)
    console.print(f"  verified     {_verified(outcome)}")
    console.print(f"  digest       {outcome.digests[1]}")
    if said:
        console.print(f"  measured     {said}")
    if outcome.left:
        rest = f" and {len(outcome.left) - 3} more" if len(outcome.left) > 3 else ""
        console.print(
            f"  left behind  {', '.join(outcome.left[:3])}{rest}: other copies of the weights, or training state"
        )
    for note in outcome.notes:
        console.print(render.wrapped(note, console.width))


def _verified(outcome: Outcome) -> str:
    words = "every tensor that did not change, byte for byte"
    if outcome.before.format == "gguf" and outcome.after.format != "gguf":
        words = "every tensor is there, dequantised"
    proof = outcome.proof
    if proof is None:
        return words
    if not proof.ran:
        return f"{words}; logits not compared: {proof.why}"
    if proof.largest == 0:
        return f"{words}; logits equal to the bit on {proof.tokens} probe tokens"
    return f"{words}; logits within {proof.largest:.1e} on {proof.tokens} probe tokens"


def _changes(changes: Any, indent: int = 2) -> Iterator[Text]:
    yield from render.columns([[change.file, change.what] for change in changes], "<<", indent=indent)

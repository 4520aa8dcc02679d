"""`tiebeam tie`: one matrix for both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tiebeam.cli.surgical import common_options, print_outcome, print_plan, watching
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.surgery import Case, How


@click.command(short_help="One matrix for both ends: exact where it can be, measured where it cannot.")
@common_options
@click.option(
    "--keep", type=click.Choice(["embed", "head", "mean"]),
    help="Two different matrices: keep one, or their mean, for both ends. Loadable anywhere, usually ruinous; the "
    "damage is measured first, and --yes is needed.",
)  # fmt: skip
@click.option(
    "--text", "texts", multiple=True, metavar="FILE",
    help="Text to measure on, and to calibrate --joint with; UTF-8, as near as possible to what the model will read. "
    "May be given several times.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Write, knowing the damage that was measured.")
def command(
    source: str, target: str | None, dry_run: bool, force: bool, link: bool, no_proof: bool, embed: str | None,
    head: str | None, dtype: str, as_json: bool, quiet: bool, keep: str | None, texts: tuple[str, ...], yes: bool,
) -> None:  # fmt: skip
    """Write DST: the model of SRC with one matrix for both ends, and every config level saying so.

    A twin (the same matrix stored twice) loses its redundant copy, exactly: the logits do not change by a bit. Two
    matrices that differ cannot become one without a loss, so you choose:

    \b
      --joint --text FILES   one shared table and two small maps, fitted to your text
      --keep embed|head|mean one plain matrix; usually ruinous

    \b
    tiebeam tie ./merged ./tied                          a twin, exact
    tiebeam tie ./untied --dry-run --keep mean           what it would cost
    tiebeam tie ./untied ./tied --keep head --text my.txt --yes
    tiebeam tie model.gguf tied.gguf                     GGUF stays GGUF

    DST appears complete or not at all; SRC is never touched.
    """
    from tiebeam.surgery import How, carry_out, open_case, plan_tie

    if target is None and not dry_run:
        raise click.UsageError("name DST, or pass --dry-run")
    case = open_case(source, embed=embed, head=head, target=target, dtype=dtype)
    with watching(quiet or as_json) as watch:
        how = How(force=force, link=link, prove=not no_proof, watch=watch)
        if keep:
            _keep(case, target, keep, texts, how, yes, dry_run, as_json)
            return
        plan = plan_tie(case)
        outcome = None if dry_run or target is None else carry_out(plan, target, how)
    if outcome is None:
        print_plan(plan, as_json)
    else:
        print_outcome(outcome, as_json)


def _keep(
    case: Case, target: str | None, keep: str, texts: tuple[str, ...], how: How, yes: bool, dry_run: bool, as_json: bool
) -> None:
    from dataclasses import replace

    from tiebeam.surgery import carry_out, plan_keep
    from tiebeam.surgery.damage import keep_damage, read_texts

    plan = plan_keep(case, keep)
    how.watch("measuring the damage", 0, 1)
    damage = keep_damage(case, keep, read_texts(texts) if texts else None)
    how.watch("measuring the damage", 1, 1)
    if dry_run or target is None:
        print_plan(plan, as_json, damage.sentence, {"damage": damage.to_dict()})
        return
    if not yes:
        raise BadRequest(
            f"--keep {keep} would change the model: {damage.sentence}; pass --yes to write it all the same"
        )
    if not as_json:
        click.echo(f"{keep} for both ends: {damage.sentence}", err=True)
    outcome = replace(carry_out(plan, target, how), measured=damage.to_dict())
    print_outcome(outcome, as_json, damage.sentence)

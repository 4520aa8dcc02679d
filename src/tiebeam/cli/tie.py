"""`tiebeam tie`: one matrix for both ends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiebeam.budget import human
from tiebeam.cli import render
from tiebeam.cli.surgical import common_options, print_outcome, print_plan, watching
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.surgery import Case, How, Outcome
    from tiebeam.surgery.joint import Joining


@click.command(short_help="One matrix for both ends: exact where it can be, measured where it cannot.")
@common_options
@click.option(
    "--keep", type=click.Choice(["embed", "head", "mean"]),
    help="Two different matrices: keep one, or their mean, for both ends. Loadable anywhere, usually ruinous; the "
    "damage is measured first, and --yes is needed.",
)  # fmt: skip
@click.option(
    "--joint", is_flag=True,
    help="Two different matrices: one shared table of rank R and two small maps, fitted to --text. Read by tiebeam, "
    "and with --expand by every loader.",
)  # fmt: skip
@click.option("--rank", type=click.IntRange(min=1), metavar="R", help="With --joint: the table's width [the model's].")
@click.option(
    "--exact-rows", type=click.IntRange(min=0), default=0, metavar="N",
    help="With --joint: keep the N rows that would be hit worst as they are.",
)  # fmt: skip
@click.option(
    "--heal", type=click.FloatRange(min=0), default=0.0, metavar="MINUTES",
    help="With --joint: train the table and its maps for so long against the model as it was (extra [train]). Stopped, "
    "it goes on where it was when run again.",
)  # fmt: skip
@click.option("--expand", is_flag=True, help="With --joint: write two ordinary matrices again, for any loader.")
@click.option(
    "--text", "texts", multiple=True, metavar="FILE",
    help="Text to measure on, and to calibrate --joint with; UTF-8, as near as possible to what the model will read. "
    "May be given several times.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Write, knowing the damage that was measured.")
def command(
    source: str, target: str | None, dry_run: bool, force: bool, link: bool, no_proof: bool, embed: str | None,
    head: str | None, dtype: str, as_json: bool, quiet: bool, keep: str | None, joint: bool,
    rank: int | None, exact_rows: int, heal: float, expand: bool, texts: tuple[str, ...], yes: bool,
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
    tiebeam tie ./untied --dry-run --joint --text my.txt what each rank keeps, saves and costs
    tiebeam tie ./untied ./tied --joint --text my.txt --rank 2560 --expand
    tiebeam tie model.gguf tied.gguf                     GGUF stays GGUF

    DST appears complete or not at all; SRC is never touched.
    """
    from tiebeam._fs import check_target
    from tiebeam.surgery import How, carry_out, open_case, plan_tie

    if target is None and not dry_run:
        raise click.UsageError("name DST, or pass --dry-run")
    if keep and joint:
        raise click.UsageError("--keep and --joint are two ways; choose one")
    if not joint and (rank or exact_rows or expand or heal):
        raise click.UsageError("--rank, --exact-rows, --heal and --expand go with --joint")
    case = open_case(source, embed=embed, head=head, target=target, dtype=dtype)
    if target is not None and not dry_run:
        check_target(Path(source), Path(target), force)  # before minutes of measuring, not after
    with watching(quiet or as_json) as watch:
        how = How(force=force, link=link, prove=not no_proof, watch=watch)
        if keep:
            _keep(case, target, keep, texts, how, yes, dry_run, as_json)
            return
        if joint:
            _joint(case, target, rank, exact_rows, heal, expand, texts, how, dry_run, as_json)
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
    from tiebeam.surgery.loss_effect import measure_keep, read_texts

    plan = plan_keep(case, keep)
    how.watch("measuring the damage", 0, 1)
    damage = measure_keep(case.checkpoint, case.report.pair, keep, read_texts(texts) if texts else None)
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
    print_outcome(outcome, as_json, f"{damage.sentence}; {_saved(outcome)}")


def _joint(
    case: Case, target: str | None, rank: int | None, exact_rows: int, heal: float, expand: bool,
    texts: tuple[str, ...], how: How, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    from tiebeam.surgery import carry_out
    from tiebeam.surgery.joint import Recipe, join
    from tiebeam.surgery.joint.joint_plan import pair_rows
    from tiebeam.surgery.joint.joint_tie import healing_place
    from tiebeam.surgery.loss_effect import read_texts

    _, _, D = pair_rows(case)
    if not texts:
        raise BadRequest(
            "--joint needs --text: which rows and directions matter is learned from text of the kind that the model "
            "will read; fitted to nothing, the same table costs several nats instead of a few hundredths"
        )
    recipe = Recipe(rank or D, exact_rows=exact_rows)
    joining = join(case, read_texts(texts), recipe, how.watch)
    if not as_json:
        _print_spectrum(joining)
    if dry_run or target is None:
        print_plan(joining.plan(expand), as_json, "", {"spectrum": joining.spectrum()})
        return
    if heal:
        joining, done = joining.healed(heal, Path(target), how.watch)
        if not as_json:
            click.echo(f"healed for {done.minutes:.1f} minutes: KL {done.before.kl:.4f} -> {done.after.kl:.4f}")
    outcome = carry_out(joining.plan(expand), target, how)
    shutil.rmtree(healing_place(Path(target)), ignore_errors=True)
    print_outcome(outcome, as_json, _lost_and_saved(outcome))


def _print_spectrum(joining: Joining) -> None:
    fitted, console = joining.fitted, render.console()
    console.print(
        f"fitted to {joining.calibration.tokens:,} tokens; the two ends in balance at {fitted.recipe.balance:g}; "
        f"the model as it is: {fitted.before.nats:.3f} nats per token on text held out"
    )
    rows = [["rank", "energy kept", "saves", "nats per token"]]
    for line in joining.spectrum():
        measured = line["rank"] == fitted.recipe.rank
        nats = f"{line['nats']:.3f} {'measured' if measured else 'predicted'}"
        rows.append([f"{line['rank']:,}", f"{line['energy']:.4%}", human(line["saved"]), nats])
    for text in render.columns(rows, ">>><"):
        console.print(text)


def _lost_and_saved(outcome: Outcome) -> str:
    if not outcome.measured:
        return ""
    old, new = outcome.measured["before"], outcome.measured["after"]
    return (
        f"{new['nats'] - old['nats']:+.3f} nats per token on held-out text ({old['nats']:.3f} -> {new['nats']:.3f}, KL "
        f"{new['kl']:.4f}, the same next token {new['agreement']:.0%} of the time); {_saved(outcome)}"
    )


def _saved(outcome: Outcome) -> str:
    stored = outcome.before.params.stored
    saved = stored - outcome.after.params.stored
    return f"{human(saved)} parameters saved ({saved / stored:.1%})" if saved > 0 else "no parameters saved"

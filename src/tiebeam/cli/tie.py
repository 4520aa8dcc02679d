"""`tiebeam tie`: one matrix for embedding and LM head."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tiebeam.budget import human
from tiebeam.cli import render
from tiebeam.cli.progress import Progress
from tiebeam.cli.surgical import common_options, needs_target, print_nothing_to_do, print_outcome, print_plan
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.surgery import Outcome, Source, Target
    from tiebeam.surgery.joint import JointFit


@click.command(short_help="Use one matrix as embedding and LM head: exactly, or measured.")
@common_options
@click.option(
    "--keep", type=click.Choice(["embed", "head", "mean"]),
    help="If the two matrices differ: use one of them, or their mean, for both. Any loader reads it, but it usually "
    "ruins the model; the effect on loss is measured first, and --yes is required.",
)  # fmt: skip
@click.option(
    "--joint", is_flag=True,
    help="If the two matrices differ: fit one table of rank R and two small maps to --text. tiebeam and transformers "
    "read it; with --expand every loader does.",
)  # fmt: skip
@click.option("--rank", type=click.IntRange(min=1), metavar="R", help="With --joint: columns of the table [width].")
@click.option(
    "--exact-rows", type=click.IntRange(min=0), metavar="N",
    help="With --joint: store the embeddings of the N most frequent tokens exactly [30% of the rows].",
)  # fmt: skip
@click.option(
    "--distill", "--heal", "distill", type=click.FloatRange(min=0), default=0.0, metavar="MINUTES",
    help="With --joint: distil from the original model for MINUTES (extra [train]). An interrupted run resumes.",
)  # fmt: skip
@click.option(
    "--tokens", type=click.IntRange(min=256), default=16384, show_default=True, metavar="N",
    help="With --joint: run N tokens of --text to calibrate. More are better and take longer.",
)  # fmt: skip
@click.option("--expand", is_flag=True, help="With --joint: write two ordinary matrices, for any loader.")
@click.option(
    "--text", "texts", multiple=True, metavar="FILE",
    help="UTF-8 text to measure on and to fit --joint to, as close as possible to what the model will read. "
    "Repeatable.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="With --keep: write despite the measured loss.")
def command(
    source: str, target: str | None, dry_run: bool, force: bool, link: bool, no_proof: bool, engine: str,
    device: str | None, embed: str | None, head: str | None, dtype: str, as_json: bool, quiet: bool,
    keep: str | None, joint: bool, rank: int | None, exact_rows: int | None, distill: float, tokens: int, expand: bool,
    texts: tuple[str, ...], yes: bool,
) -> None:  # fmt: skip
    """Write DST: the model SRC with one matrix for embedding and LM head, and every config level declaring it tied.

    If SRC stores the same matrix twice, the redundant copy is dropped and the logits stay the same to the bit. Two
    different matrices cannot become one without loss, so you choose:

    \b
      --joint --text FILE    one table and two small maps, fitted to your text
      --keep embed|head|mean one plain matrix; usually ruins the model

    \b
    tiebeam tie ./merged ./tied                           two equal matrices, exact
    tiebeam tie ./untied --dry-run --keep mean            measure the effect on loss
    tiebeam tie ./untied ./tied --keep head --text my.txt --yes
    tiebeam tie ./untied --dry-run --joint --text my.txt  what each rank keeps, saves and costs
    tiebeam tie ./untied ./tied --joint --text my.txt --rank 2560 --expand
    tiebeam tie model.gguf tied.gguf                      GGUF to GGUF

    DST appears complete or not at all. SRC is never changed.
    """
    from tiebeam.surgery import checked_target, execute, open_source, plan_tie
    from tiebeam.surgery.tie import check_tie_arguments

    needs_target(target, dry_run)
    check_tie_arguments(keep, joint, rank, exact_rows, distill, expand)
    opened = open_source(source, embed=embed, head=head, target=target, dtype=dtype)
    plan = None if keep or joint else plan_tie(opened)
    if plan is not None and plan.nothing_to_do:
        print_nothing_to_do(plan, as_json, dry_run)
        return
    where = None if dry_run or target is None else checked_target(opened, target, force)
    with closing(Progress(quiet or as_json)) as progress:
        running: dict[str, Any] = {"engine": engine, "device": device}
        options: dict[str, Any] = {"link": link, "proof": not no_proof, "progress": progress, **running}
        if keep:
            _keep(opened, where, keep, texts, yes, as_json, options)
        elif joint:
            from tiebeam.surgery.joint import fit_joint
            from tiebeam.surgery.loss_effect import read_documents

            documents = read_documents(texts) if texts else None
            fitted = fit_joint(
                opened, documents, rank=rank, exact_rows=exact_rows, tokens=tokens, progress=progress,
                confirm=where is None or bool(distill) or no_proof, **running,
            )  # fmt: skip
            _joint(fitted, where, distill, expand, as_json, options)
        else:
            assert plan is not None
            outcome = execute(plan, where, **options) if where else None
            progress.close()
            print_outcome(outcome, as_json) if outcome else print_plan(plan, as_json)


def _keep(
    source: Source, where: Target | None, keep: str, texts: tuple[str, ...], yes: bool, as_json: bool,
    options: dict[str, Any],
) -> None:  # fmt: skip
    from tiebeam.surgery import execute, plan_keep
    from tiebeam.surgery.loss_effect import measure_keep, read_texts

    plan, progress = plan_keep(source, keep), options["progress"]
    text, running = read_texts(texts) if texts else None, {name: options[name] for name in ("engine", "device")}
    progress("measuring the effect on loss", 0, 1)
    effect = measure_keep(source.checkpoint, source.report.pair, keep, text, **running)
    progress("measuring the effect on loss", 1, 1)
    if where is None:
        progress.close()
        print_plan(plan, as_json, effect.sentence, {"damage": effect.to_dict()})
        return
    if not yes:
        raise BadRequest(f"--keep {keep} changes the model: {effect.sentence}; pass --yes to write it anyway")
    outcome = replace(execute(plan, where, **options), measured=effect.to_dict())
    progress.close()
    print_outcome(outcome, as_json, f"{effect.sentence}; {_saved(outcome)}")


def _joint(
    fitted: JointFit, where: Target | None, distill: float, expand: bool, as_json: bool, options: dict[str, Any]
) -> None:
    progress, measured = options["progress"], []
    if where is None:
        progress.close()
        lines = fitted.spectrum()
        print_plan(fitted.plan(expand), as_json, "", {"spectrum": lines})
    else:
        if distill:
            fitted, done = fitted.distilled(distill, where.path, progress)
            measured = [f"distilled in {done.minutes:.1f} minutes: KL {done.before.kl:.4f} -> {done.after.kl:.4f}"]
        outcome = fitted.write(where, expand=expand, **options)
        progress.close()
        print_outcome(outcome, as_json, "; ".join([*_lost_and_saved(outcome), *measured]))
        lines = outcome.measured["spectrum"] if outcome.measured else fitted.spectrum()
    if not as_json:
        _print_spectrum(fitted, lines)


def _print_spectrum(joint: JointFit, lines: list[dict[str, Any]]) -> None:
    fitted, console, tokens = joint.fitted, render.console(), joint.calibration.tokens
    exact, rows = len(fitted.factors.exact), len(joint.calibration.counts)
    console.print(f"  fitted to {tokens:,} tokens; {exact:,} of {rows:,} embeddings are exact (--exact-rows)")
    console.print(
        f"  original model: {fitted.before.nats:.3f} nats per token on {fitted.before.tokens:,} held-out tokens"
    )
    table = [["rank", "KL", "same next token", "nats per token", "energy kept", "saves", ""]]
    for line in lines:
        about = "" if line["measured"] else "~"
        table.append([
            f"{line['rank']:,}", f"{about}{line['kl']:.4f}", f"{about}{line['agreement']:.1%}",
            f"{about}{line['nats']:.3f}",
            f"{line['energy']:.3%}", human(line["saved"]) if line["saved"] > 0 else "none",
            "measured" if line["measured"] else "predicted",
        ])  # fmt: skip
    for text in render.columns(table, ">>>>>><"):
        console.print(text)


def _lost_and_saved(outcome: Outcome) -> list[str]:
    if not outcome.measured:
        return []
    old, new = outcome.measured["before"], outcome.measured["after"]
    return [
        f"KL {new['kl']:.4f} from the original, same next token {new['agreement']:.1%} of the time",
        f"{new['nats'] - old['nats']:+.3f} ± {new['interval']:.3f} nats per token on {new['tokens']:,} held-out tokens "
        f"({old['nats']:.3f} -> {new['nats']:.3f})",
        _saved(outcome),
    ]


def _saved(outcome: Outcome) -> str:
    stored = outcome.before.params.stored
    saved = stored - outcome.after.params.stored
    return f"{human(saved)} parameters saved ({saved / stored:.1%})" if saved > 0 else "no parameters saved"

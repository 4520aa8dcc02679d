"""`tiebeam compare`: train tied and untied models on the same text and write a report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebeam.budget import human_bytes
from tiebeam.cli import render
from tiebeam.cli.interrupt import Interrupt
from tiebeam.cli.progress import Progress, time_left

if TYPE_CHECKING:
    from tiebeam.compare.train_runs import Run

_SETTINGS = ("arch", "layers", "dim", "heads", "kv_heads", "mlp_dim", "context", "batch_tokens", "threads", "seed")


@click.command(short_help="Train tied and untied on your text, with a report.")
@click.argument("text", nargs=-1, type=click.Path())
@click.option(
    "--out", default="comparison", show_default=True, metavar="DIR", help="Directory for the runs and the report."
)
@click.option("--variants", default="tied,untied", show_default=True, metavar="A,B",
              help="Any of tied, untied, then (untied after 2/3 of the run), bridge (tied, DxD map).")  # fmt: skip
@click.option("--minutes", type=float, metavar="M", help="Training time of each run (default 1, unless --steps).")
@click.option("--steps", type=int, metavar="N", help="Training steps of each run.")
@click.option(
    "--seeds", type=int, default=1, show_default=True, metavar="N", help="Runs per variant; 3 give error bars."
)
@click.option("--match", type=click.Choice(["steps", "time", "params"]),
              help="What is equal between variants (default: time with --minutes, steps with --steps). steps with "
                   "--minutes: the first run has the time, others take its steps. params: resize MLPs.")  # fmt: skip
@click.option("--anchor", default="tied", show_default=True, metavar="VARIANT",
              help="With --match params, the variant whose parameter count the others get.")  # fmt: skip
@click.option("--arch", type=click.Choice(["standard", "golf"]), default="standard", show_default=True)
@click.option("--layers", type=int, default=4, show_default=True, metavar="N")
@click.option("--dim", type=int, default=256, show_default=True, metavar="N", help="Model width.")
@click.option("--heads", type=int, default=8, show_default=True, metavar="N")
@click.option("--kv-heads", type=int, default=4, show_default=True, metavar="N")
@click.option("--mlp-dim", type=int, default=512, show_default=True, metavar="N")
@click.option("--context", type=int, default=256, show_default=True, metavar="N", help="Context length in tokens.")
@click.option(
    "--vocab", type=int, default=2048, show_default=True, metavar="N", help="Vocabulary size of the BPE to train."
)
@click.option("--tokenizer", type=click.Path(), metavar="FILE", help="Use this tokenizer.json or sentencepiece model.")
@click.option("--batch-tokens", type=int, default=2048, show_default=True, metavar="N", help="Tokens per step.")
@click.option("--bigram-steps", type=int, default=250, show_default=True, metavar="N", help="Steps of the bigram fits.")
@click.option("--seed", type=int, default=0, show_default=True, help="First seed.")
@click.option("--threads", type=int, metavar="N", help="CPU threads (default: the idle ones).")
@click.option("--max-bytes", type=int, metavar="N", help="Use at most this much text.")
@click.option("--force", is_flag=True, help="Start over: replace the comparison in --out, and nothing else.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@click.option("--json", "as_json", is_flag=True, help="Print report.json.")
def command(
    text: tuple[str, ...], out: str, variants: str, minutes: float | None, steps: int | None, seeds: int,
    match: str | None, anchor: str, vocab: int, tokenizer: str | None, bigram_steps: int, max_bytes: int | None,
    force: bool, quiet: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Train a small GPT tied and untied on TEXT and compare the held-out loss.

    Writes report.html, report.json and figures/. All runs have the same data and seeds. After Ctrl-C, run the same
    command again: finished runs are kept, the others are resumed. Without TEXT it uses the sources of the Python
    standard library and takes less than five minutes on two cores.

    \b
    tiebeam compare
    tiebeam compare books/ --seeds 3 --variants tied,untied,then,bridge --minutes 5
    tiebeam compare --match params --steps 500
    """
    from tiebeam.compare import Interrupted, compare, parse_variants
    from tiebeam.compare.comparison import base_settings
    from tiebeam.compare.train_runs import check_directory
    from tiebeam.corpus import build_corpus

    chosen = parse_variants(variants)
    length = {"steps": steps, "minutes": minutes if minutes or steps else 1.0}
    softcap = 15.0 if options["arch"] == "golf" else None
    base = base_settings(**{name: options[name] for name in _SETTINGS}, **length, softcap=softcap)
    check_directory(Path(out), force)  # before the corpus is built
    progress = Progress(quiet or as_json)
    corpus = build_corpus(text, vocab=vocab, tokenizer=tokenizer, max_bytes=max_bytes, progress=progress)
    for note in corpus.notes:
        progress.say(note, f"note: {note}")
    try:
        found = compare(
            base, corpus, Path(out), variants=chosen, seeds=seeds, match=match, anchor=anchor, force=force,
            bigram_steps=bigram_steps, command=_command(), progress=progress, interrupted=Interrupt(),
            report=lambda run, record: _show_progress(progress, run, record),
        )  # fmt: skip
    except Interrupted as stop:
        progress.close()
        render.echo(f"interrupted: {stop}; run the same command again to resume", err=True)
        raise click.exceptions.Exit(130) from None
    progress.close()
    if as_json:
        render.emit_json(found.document)
    else:
        _show(found.document, found.page)


def _command() -> str:
    """The command line, for the report."""
    return shlex.join(["tiebeam", *sys.argv[1:]]) if sys.argv[1:2] == ["compare"] else "tiebeam compare"


def _show_progress(progress: Progress, run: Run, record: dict[str, Any]) -> None:
    head = f"{run.name}  step {record['step']:>6,}  {100 * record['done']:3.0f}%  {record['seconds']:5.0f} s"
    if "val_bpb" in record:
        final = record["done"] >= 1
        progress.say(f"{run.name} {record['step']}", f"{head}  held-out {record['val_bpb']:.4f} bits per byte", final)
    else:
        left = time_left(record["done"], record["seconds"])
        speed = f"{record['tokens_per_second']:,.0f} tokens/s"
        progress.say(run.name, f"{head}  loss {record['loss']:.4f}  {speed}  {left}".rstrip())


def _show(document: dict[str, Any], page: Path) -> None:
    """Verdict first, then the table, then the report and the next command."""
    console = render.console()
    first, second = document["verdict"]["sentences"]
    console.print(render.wrapped(first, console.width, 0), style="bold")
    console.print(render.wrapped(second, console.width, 0))
    rows: list[list[Any]] = [["", "bits/byte", "parameters", "on disk", "packed", "steps", "tokens/s"]]
    for v in document["variants"]:
        rows.append(
            [
                render.styled(("● ", v["colour"]), v["title"]),
                f"{v['val_bpb']:.4f}" + (f" ± {v['val_bpb_error']:.4f}" if v["val_bpb_error"] is not None else ""),
                f"{v['params']:,}",
                human_bytes(round(v["disk_bytes"])),
                human_bytes(round(v["packed_bytes"])),
                f"{v['steps']:,.0f}",
                f"{v['tokens_per_second']:,.0f}" if v["tokens_per_second"] else "–",
            ]
        )
    for line in render.columns(rows, "<>>>>>>"):
        console.print(line)
    for v in document["variants"]:
        if v["note"]:
            console.print(render.wrapped(f"{v['title']}: {v['note']}", console.width))
    found = document["bigrams"]
    forms = "   ".join(f"{fit['name']} {fit['bits']:.2f}" for fit in found["forms"].values())
    console.print(f"  direct path without layers, bits per token at width {found['dim']}: {forms}")
    console.print(render.styled("report: ", (str(page), "bold")))
    more_seeds = f"{document['command'].replace(' --force', '')} --seeds 3"  # resumes: finished runs are kept
    following = f"tiebeam studio {shlex.quote(str(page.parent))}" if len(document["seeds"]) > 1 else more_seeds
    console.print(render.styled("next: ", (following, "bold")))

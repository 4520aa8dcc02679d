"""`tiebeam compare`: train tied and untied models on the same text and write a report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tiebeam.budget import human_bytes
from tiebeam.cli import render
from tiebeam.cli.interrupt import Interrupt
from tiebeam.cli.progress import Progress, close_all
from tiebeam.cli.rank_errors import reported_once
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.compare.train_runs import Run
    from tiebeam.corpus import Corpus
    from tiebeam.train import Distribution, Settings

DEFAULT_STEPS = 120  # three widths, tied and untied: about four minutes of training on two free cores
DEFAULT_WIDTHS = (64, 128, 256)
_SETTINGS = ("arch", "layers", "dim", "heads", "kv_heads", "mlp_dim", "context", "batch_tokens", "threads", "seed",
             "device")  # fmt: skip


@click.command(short_help="Train tied and untied on your text, with a report.")
@click.argument("text", nargs=-1, type=click.Path())
@click.option(
    "--out", default="comparison", show_default=True, metavar="DIR", help="Directory for the runs and the report."
)
@click.option("--variants", default="tied,untied", show_default=True, metavar="A,B",
              help="Names from --list.")  # fmt: skip
@click.option("--suite", "suite_name", type=click.Choice(["frontier"]), help="Run this list of variants instead.")
@click.option("--list", "list_variants", is_flag=True, help="List the variants with claim, source and parameters.")
@click.option("--widths", metavar="A,B,C",
              help=f"Widths of the ladder (default {','.join(map(str, DEFAULT_WIDTHS))}, or --dim).")  # fmt: skip
@click.option("--vocabs", metavar="A,B", help="Train the ladder with several vocabulary sizes (default: --vocab).")
@click.option("--steps", type=int, metavar="N",
              help=f"Training steps of every run (default {DEFAULT_STEPS}, unless --minutes).")  # fmt: skip
@click.option("--minutes", type=float, metavar="M",
              help="Training time of all runs together; every run takes the same number of steps in it.")  # fmt: skip
@click.option(
    "--seeds", type=int, default=1, show_default=True, metavar="N", help="Runs per variant and width, paired by seed."
)
@click.option("--match", type=click.Choice(["steps", "time", "params"]),
              help="What the runs are given: the same steps (default), the same time (with --minutes), or the same "
                   "steps and parameters, by resized MLPs.")  # fmt: skip
@click.option("--anchor", default="tied", show_default=True, metavar="VARIANT",
              help="With --match params, the variant whose parameter count the others get.")  # fmt: skip
@click.option("--arch", type=click.Choice(["standard", "golf"]), default="standard", show_default=True)
@click.option("--layers", type=int, default=4, show_default=True, metavar="N")
@click.option("--dim", type=int, default=256, show_default=True, metavar="N",
              help="Width that --heads and --mlp-dim are for; alone, the only width.")  # fmt: skip
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
@click.option("--sweep", is_flag=True,
              help="First sweep the embedding and head learning rates of every variant and width.")  # fmt: skip
@click.option("--for", "for_model", metavar="MODEL|VxDxN",
              help="Place a planned model on the trend: MODEL, or vocabulary x width x other parameters.")  # fmt: skip
@click.option("--check-tokens", type=int, default=32768, show_default=True, metavar="N",
              help="Held-out tokens of every check, the same ones each time.")  # fmt: skip
@click.option("--memory", is_flag=True, help="Also measure the peak memory of each run, in a subprocess.")
@click.option("--seed", type=int, default=0, show_default=True, help="First seed.")
@click.option("--device", default="auto", show_default=True, metavar="NAME", help="cpu, cuda, mps or auto.")
@click.option("--threads", type=int, metavar="N", help="CPU threads (default: the idle ones).")
@click.option("--max-bytes", type=int, metavar="N", help="Use at most this much text.")
@click.option("--force", is_flag=True, help="Start over: replace the comparison in --out, and nothing else.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@click.option("--json", "as_json", is_flag=True, help="Print report.json.")
def command(
    text: tuple[str, ...], out: str, variants: str, widths: str | None, vocabs: str | None, minutes: float | None,
    steps: int | None, seeds: int, match: str | None, anchor: str, vocab: int, tokenizer: str | None,
    bigram_steps: int, max_bytes: int | None, sweep: bool, for_model: str | None, check_tokens: int, memory: bool,
    force: bool, quiet: bool, as_json: bool, suite_name: str | None, list_variants: bool, **options: Any,
) -> None:  # fmt: skip
    """Train a small GPT tied and untied on TEXT at several widths: should this model tie?

    The variants of a width take turns of a few steps, with the same data and the same initial weights. From the same
    runs come three answers, each with a 95% confidence interval: at equal steps, at equal time, at equal size.

    Writes report.html, report.json and figures/. After Ctrl-C, run the same command again: finished runs are kept,
    the others are resumed. More --seeds, --widths or --vocabs add to what is there. Without TEXT it uses the sources
    of the Python standard library and takes about five minutes on two cores.

    \b
    tiebeam compare
    tiebeam compare books/ --seeds 3 --variants tied,untied,then,bridge --minutes 60
    tiebeam compare --widths 128,256,512 --vocabs 1024,4096 --steps 2000
    tiebeam compare --sweep --for 50257x768x85M
    torchrun --nproc-per-node 2 -m tiebeam compare books/ --minutes 60
    """
    if list_variants:
        _list_variants(as_json)
        return
    interrupt = Interrupt()  # before the slow imports: Ctrl-C in the middle of one is lost, or a traceback
    from tiebeam.cli.compare_progress import CompareProgress
    from tiebeam.cli.plan import planned_model
    from tiebeam.compare import Interrupted, compare, parse_variants, suite
    from tiebeam.compare.comparison import base_settings
    from tiebeam.compare.train_runs import check_directory
    from tiebeam.train import Distribution

    distribution = Distribution()
    try:
        with reported_once(distribution):
            distribution = Distribution.from_environment()
        with reported_once(distribution), _interruptible(distribution):
            if distribution.world_size > 1:
                interrupt.launch()
            hidden = quiet or as_json or not distribution.is_main
            progress, display = Progress(hidden), CompareProgress(hidden)
            chosen = suite(suite_name) if suite_name else parse_variants(variants)
            length = {"steps": steps if steps or minutes else DEFAULT_STEPS, "minutes": minutes}
            softcap = 15.0 if options["arch"] == "golf" else None
            shape = {name: options[name] for name in _SETTINGS}
            base = base_settings(**shape, **length, softcap=softcap, validation_tokens=check_tokens)
            planned = planned_model(for_model) if for_model is not None else None
            check_directory(Path(out), force)  # before the corpus is built

            def stage(what: str, done: int, total: int) -> None:
                if interrupt() and distribution.world_size == 1:  # ranks must stop together: between steps only
                    raise Interrupted(f"{what} was not finished")
                display.close()
                progress(what, done, total)

            def planned_runs(runs: Sequence[Run]) -> None:
                progress.clear()
                display.planned(runs)

            corpora = _corpora(text, vocabs, vocab, tokenizer, max_bytes, stage)
            for note in dict.fromkeys(note for corpus in corpora for note in corpus.notes):
                progress.say(note, f"note: {note}")
            with distribution:
                found = compare(
                    base, corpora, Path(out), variants=chosen, widths=_widths(widths, base), seeds=seeds, match=match,
                    anchor=anchor, force=force, bigram_steps=bigram_steps, memory=memory, sweep_rates=sweep,
                    for_plan=planned, command=_command(),
                    progress=stage, report=display.record, planned=planned_runs,
                    interrupted=interrupt, distribution=distribution,
                )  # fmt: skip
    except click.exceptions.Exit as leaving:
        distribution.exit(leaving.exit_code)
        raise
    progress.close()
    if distribution.is_main and as_json:
        render.emit_json(found.document)
    elif distribution.is_main:
        _show(found.document, found.page)
    distribution.exit()


@contextmanager
def _interruptible(distribution: Distribution) -> Iterator[None]:
    """After Ctrl-C: say how to resume, and exit with 130 on every rank."""
    from tiebeam.compare import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:  # KeyboardInterrupt: pressed twice
        close_all()
        if distribution.is_main:
            what = "the last steps were not saved" if isinstance(stop, KeyboardInterrupt) else str(stop)
            render.echo(f"interrupted: {what}; run the same command again to resume", err=True)
        raise click.exceptions.Exit(130) from None


def _show_claims(document: dict[str, Any]) -> None:
    """Claim by claim: the difference at equal steps, and whether the claim holds."""
    console = render.console()
    rows: list[list[Any]] = [["variant", "against", "bits/byte", "95% interval", "parameters", "claim"]]
    for c in document["claims"]:
        interval = f"{c['ci_low']:+.4f} to {c['ci_high']:+.4f}"
        rows.append(
            [c["variant"], c["against"], f"{c['difference']:+.4f}", interval, f"{c['params']:+,}", c["verdict"]]
        )
    for line in render.columns(rows, "<<>>><"):
        console.print(line)


def _list_variants(as_json: bool) -> None:
    from tiebeam.compare.variants import VARIANTS

    if as_json:
        render.emit_json({"variants": [variant.to_dict() for variant in VARIANTS.values()]})
        return
    rows: list[list[Any]] = [["variant", "parameters", "claim", "source"]]
    for v in VARIANTS.values():
        rows.append([v.name, "fewest" if v.name == "tied" else v.adds, v.claim, v.source])
    console = render.console()
    for line in render.columns(rows, "<<<<"):
        console.print(line)
    console.print("  parameters: added to tied (zero-head: to untied); V tokens, D width")
    console.print("next: tiebeam compare --suite frontier --steps 300")


def _command() -> str:
    """The command line, for the report."""
    return shlex.join(["tiebeam", *sys.argv[1:]]) if sys.argv[1:2] == ["compare"] else "tiebeam compare"


def _widths(widths: str | None, base: Settings) -> tuple[int, ...]:
    """--widths, else --dim if it was given, else the default ladder."""
    from tiebeam.compare.model_widths import parse_numbers

    if widths is not None:
        return parse_numbers(widths, "widths")
    given = click.get_current_context().get_parameter_source("dim") is not ParameterSource.DEFAULT
    return (base.dim,) if given else DEFAULT_WIDTHS


def _corpora(
    text: tuple[str, ...], vocabs: str | None, vocab: int, tokenizer: str | None, max_bytes: int | None,
    progress: Callable[[str, int, int], None],
) -> list[Corpus]:  # fmt: skip
    """One corpus per vocabulary size, of the same text."""
    from tiebeam.compare.model_widths import parse_numbers
    from tiebeam.corpus import build_corpus

    sizes = parse_numbers(vocabs, "vocabs") if vocabs is not None else (vocab,)
    if tokenizer is not None and len(sizes) > 1:
        raise BadRequest("--vocabs trains a tokenizer for each size; drop --tokenizer")
    return [
        build_corpus(text, vocab=size, tokenizer=tokenizer, max_bytes=max_bytes, progress=progress) for size in sizes
    ]


def _show(document: dict[str, Any], page: Path) -> None:
    """The three sentences first, then the table of the ladder, then the report and the next command."""
    console = render.console()
    verdict = document["verdict"]
    for sentence in verdict["sentences"]:
        console.print(render.wrapped(sentence, console.width, 0), style="bold")
    for sentence in (document["plan"] or {}).get("sentences", ()):
        console.print(render.wrapped(sentence, console.width, 0))
    for note in (document["sweep"] or {}).get("notes", ()):
        console.print(render.wrapped(f"sweep: {note}", console.width, 0))
    if verdict["note"]:
        console.print(render.wrapped(verdict["note"], console.width, 0))
    for line in render.columns(_table(document), "<<>>>>>>"):
        console.print(line)
    for v in document["variants"]:
        if v["note"]:
            console.print(render.wrapped(f"{v['title']}: {v['note']}", console.width))
    if len(document["claims"]) > 1:
        _show_claims(document)
    console.print(render.styled("report: ", (str(page), "bold")))
    more_seeds = f"{document['command'].replace(' --force', '')} --seeds 3"  # resumes: finished runs are kept
    following = f"tiebeam studio {shlex.quote(str(page.parent))}" if len(document["seeds"]) > 1 else more_seeds
    console.print(render.styled("next: ", (following, "bold")))


def _table(document: dict[str, Any]) -> list[list[Any]]:
    """One row per width, vocabulary and variant; means over seeds."""
    rows: list[list[Any]] = [["", "width", "bits/byte", "parameters", "packed", "steps", "seconds", "tokens/s"]]
    looks = {v["name"]: (v["colour"], v["title"]) for v in document["variants"]}
    cells: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for cell in document["ladder"]["cells"]:
        cells.setdefault((cell["vocab"], cell["width"], cell["variant"]), []).append(cell)
    several = len(document["ladder"]["vocabs"]) > 1
    for (vocab, width, variant), mine in cells.items():
        colour, title = looks[variant]
        mean = {key: sum(cell[key] for cell in mine) / len(mine) for key in
                ("bpb", "packed_bytes", "steps", "seconds", "tokens_per_second")}  # fmt: skip
        rows.append(
            [
                render.styled(("● ", colour), title),
                f"{width}" + (f" V {vocab}" if several else ""),
                f"{mean['bpb']:.4f}",
                f"{mine[0]['params']:,}",
                human_bytes(round(mean["packed_bytes"])),
                f"{mean['steps']:,.0f}",
                f"{mean['seconds']:,.0f}",
                f"{mean['tokens_per_second']:,.0f}",
            ]
        )
    return rows

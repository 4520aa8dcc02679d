"""`tiebeam train`: a small GPT, tied or not, from text to checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tiebeam.budget import human, human_bytes
from tiebeam.cli import render
from tiebeam.cli.interrupt import Interrupt
from tiebeam.cli.progress import Progress
from tiebeam.errors import BadRequest, TiebeamError

if TYPE_CHECKING:
    from tiebeam.train import Distribution, Result, Settings

_MOMENT = 5.0  # seconds that the other processes give the first one to say what they all found


def tie_option(value: str) -> bool | float:
    """yes, no, or the fraction of the run at which the tie ends."""
    if value in ("yes", "true"):
        return True
    if value in ("no", "false"):
        return False
    try:
        fraction = float(value)
    except ValueError:
        raise BadRequest(f"--tie is {value!r}; it is yes, no, or a fraction such as 0.67") from None
    if not 0 < fraction < 1:
        raise BadRequest(f"--tie is {value}; a fraction lies between 0 and 1")
    return fraction


@click.command(short_help="A small GPT, tied or not.")
@click.argument("text", nargs=-1, type=click.Path())
@click.option("--out", default="run", show_default=True, metavar="DIR", help="Where the run directory goes.")
@click.option("--minutes", type=float, metavar="M", help="Train for this long (default 5, unless --steps).")
@click.option("--steps", type=int, metavar="N", help="Train for this many steps; deterministic by --seed.")
@click.option("--arch", type=click.Choice(["standard", "golf"]), default="standard", show_default=True,
              help="standard: Qwen3, opens anywhere. golf: parameter-golf's block.")  # fmt: skip
@click.option(
    "--tie", default="yes", show_default=True, metavar="yes|no|F", help="One table, two, or one until fraction F."
)
@click.option("--layers", type=int, default=4, show_default=True, metavar="N")
@click.option("--dim", type=int, default=256, show_default=True, metavar="N", help="Width.")
@click.option("--heads", type=int, default=8, show_default=True, metavar="N")
@click.option("--kv-heads", type=int, default=4, show_default=True, metavar="N")
@click.option("--mlp-dim", type=int, default=512, show_default=True, metavar="N")
@click.option("--context", type=int, default=256, show_default=True, metavar="N", help="Tokens in a window.")
@click.option("--embed-dim", type=int, metavar="N", help="A narrower, factorised table.")
@click.option("--bridge", is_flag=True, help="One map of width x width before the shared table at the output.")
@click.option("--softcap", type=float, metavar="C", help="Cap the logits at C (golf only; its default is 15).")
@click.option("--vocab", type=int, default=2048, show_default=True, metavar="N", help="Tokens of the BPE to train.")
@click.option("--tokenizer", type=click.Path(), metavar="FILE", help="A tokenizer.json or sentencepiece model instead.")
@click.option("--batch-tokens", type=int, default=2048, show_default=True, metavar="N", help="Tokens a step.")
@click.option("--accumulate", type=int, default=1, show_default=True, metavar="N", help="Micro-batches a step.")
@click.option("--optimizer", type=click.Choice(["muon", "adamw"]), default="muon", show_default=True,
              help="muon: for matrices, Adam for the table and the rest. adamw: one rate, a control.")  # fmt: skip
@click.option("--rate-scale", type=float, default=1.0, show_default=True, metavar="F", help="Multiply every rate.")
@click.option("--warmup-steps", type=int, default=20, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--backend", type=click.Choice(["torch", "mlx"]), default="torch", show_default=True,
              help="mlx: Apple silicon's own (pip install 'tiebeam[mlx]'); the same run and files.")  # fmt: skip
@click.option("--device", default="auto", show_default=True, metavar="D",
              help="cpu, cuda, mps; auto takes the fastest there. bf16 on a GPU, fp32 on a CPU.")  # fmt: skip
@click.option("--threads", type=int, metavar="N", help="CPU threads (default: those that are free).")
@click.option("--shard", is_flag=True, help="Under torchrun: FSDP2, each process a part of every tensor.")
@click.option("--shard-vocab", is_flag=True,
              help="Under torchrun: each process its rows of the table and the head, and the whole trunk.")  # fmt: skip
@click.option("--save-every", type=float, metavar="S", help="Seconds between saved states (default 60).")
@click.option("--compile", "compile_model", is_flag=True, help="torch.compile the model.")
@click.option("--max-bytes", type=int, metavar="N", help="Take at most this much text.")
@click.option("--track", type=click.Choice(["tensorboard", "wandb", "trackio"]), help="Also log there.")
@click.option("--resume", is_flag=True, help="Go on with the run at --out.")
@click.option("--force", is_flag=True, help="Replace the run at --out.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
def command(
    text: tuple[str, ...],
    out: str,
    resume: bool,
    force: bool,
    quiet: bool,
    as_json: bool,
    shard: bool,
    shard_vocab: bool,
    **options: Any,
) -> None:
    """Train a GPT on TEXT: files, directories, .jsonl, parquet, a corpus; without TEXT, on this Python's own library.

    The run directory is an ordinary checkpoint: `inspect`, `generate`, `pack` and transformers open it.
    Ctrl-C saves the state and says how to go on.

    torchrun trains it with several processes, on GPUs if there are any: the same batch, shared out. They go on where
    others stopped, however many those were.

    \b
    tiebeam train --minutes 2
    tiebeam train books/ --tie no --out untied
    tiebeam train --resume --out run --minutes 10
    torchrun --nproc-per-node 2 -m tiebeam train --minutes 2
    torchrun --nproc-per-node 8 -m tiebeam train books/ --shard --batch-tokens 524288
    """
    where = Path(out)
    processes = _processes(_backend(options["backend"], where, resume), shard, shard_vocab)
    try:
        with _one_voice(processes):
            _train(text, where, resume, force, quiet, as_json, options, processes)
    except click.exceptions.Exit as leaving:
        processes.end(leaving.exit_code)
        raise
    processes.end()


def _train(
    text: tuple[str, ...],
    where: Path,
    resume: bool,
    force: bool,
    quiet: bool,
    as_json: bool,
    options: dict[str, Any],
    processes: Distribution | _Alone,
) -> None:
    from tiebeam.corpus import build_corpus
    from tiebeam.train import RunDirectory, Settings
    from tiebeam.train.trackers import tracker

    progress = Progress(quiet or as_json or not processes.is_main)
    if resume:
        saved = RunDirectory.open(where).read_run()
        settings = Settings.from_dict(saved["settings"])
        if options["steps"] or options["minutes"]:
            settings = settings.longer(options["steps"], options["minutes"])
        if options["save_every"]:
            settings = replace(settings, save_every=options["save_every"])
        processes.check(settings)
        train = _trainer(processes)
        corpus = build_corpus([saved["corpus"]["path"]], progress=progress)
    else:
        settings = _settings(options)
        processes.check(settings)
        train = _trainer(processes)
        if where.exists() and any(where.iterdir()) and not force:
            RunDirectory.create(where)  # refuse before the corpus is built
        corpus = build_corpus(
            text,
            vocab=options["vocab"],
            tokenizer=options["tokenizer"],
            max_bytes=options["max_bytes"],
            progress=progress,
        )
    for note in corpus.notes:
        progress.say(note, f"note: {note}")
    stopped = Interrupt(launched=processes.world > 1)
    with processes, tracker(options["track"] if processes.is_main else None, where, settings.to_dict()) as track:

        def report(record: dict[str, Any]) -> None:
            track(record)
            _show(progress, record)

        result = train(settings, corpus, where, resume=resume, force=force, report=report, interrupted=stopped)
    progress.close()
    if not processes.is_main:
        raise click.exceptions.Exit(0 if result.finished else 130)
    if as_json:
        render.emit_json({**result.to_dict(), "corpus": corpus.to_dict()})
    else:
        _tell(result, corpus.to_dict())
    if not result.finished:
        start = "tiebeam train" if processes.world == 1 else processes.start
        click.echo(f"interrupted after {result.steps:,} steps; go on with: {start} --resume --out {where}", err=True)
        raise click.exceptions.Exit(130)


@contextmanager
def _one_voice(processes: Distribution | _Alone) -> Iterator[None]:
    """Several processes mostly find the same thing wrong: it is said once.

    Before they have met, the others wait: when the first one has said it and ended, torchrun ends them.
    """
    try:
        yield
    except TiebeamError as error:
        if not processes.joined:
            time.sleep(0 if processes.is_main else _MOMENT)
        elif not processes.speaks_first():
            raise click.exceptions.Exit(2 if isinstance(error, BadRequest) else 3) from None
        raise


def _settings(options: dict[str, Any]) -> Settings:
    from tiebeam.train import Rates, Settings
    from tiebeam.train.settings import scaled

    names = ("arch", "layers", "dim", "heads", "kv_heads", "mlp_dim", "context", "embed_dim", "bridge", "batch_tokens",
             "accumulate", "steps", "seed", "optimizer", "warmup_steps", "backend", "device", "threads")  # fmt: skip
    chosen = {name: options[name] for name in names}
    softcap = options["softcap"]
    if softcap is None and options["arch"] == "golf":
        softcap = 15.0
    if options["save_every"] is not None:
        chosen["save_every"] = options["save_every"]
    minutes = options["minutes"] if options["minutes"] or options["steps"] else 5.0
    return Settings(
        **chosen,
        softcap=softcap,
        minutes=minutes,
        tie=tie_option(options["tie"]),
        rates=scaled(Rates.of(options["arch"]), options["rate_scale"]),
        compile=options["compile_model"],
    )


class _Alone(AbstractContextManager["_Alone"]):
    """The one process of a run on MLX: what is asked of a Distribution, without torch."""

    rank, world, is_main, joined, start = 0, 1, True, False, "tiebeam train"

    def check(self, settings: Settings) -> None:
        """One process can do whatever the settings allow."""

    def speaks_first(self) -> bool:
        return True

    def end(self, code: int = 0) -> None:
        """Python ends this one as it ends any."""

    def __exit__(self, *_: object) -> None:
        return None


def _backend(asked: str, where: Path, resume: bool) -> str:
    """A run goes on with the backend that it was begun with; only an explicit --backend can disagree."""
    from tiebeam.train import RunDirectory, Settings

    if not resume:
        return asked
    begun = Settings.from_dict(RunDirectory.open(where).read_run()["settings"]).backend
    given = click.get_current_context().get_parameter_source("backend") is not ParameterSource.DEFAULT
    if given and asked != begun:
        raise BadRequest(
            f"the run at {where} was begun on {begun} and its state is {begun}'s; leave out --backend {asked}"
        )
    return begun


def _processes(backend: str, shard: bool, shard_vocab: bool) -> Distribution | _Alone:
    if backend == "torch":
        from tiebeam.train import Distribution

        return Distribution.from_environment(shard=shard, shard_vocab=shard_vocab)
    if shard or shard_vocab or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadRequest("a run on MLX is one process; leave out torchrun and --shard, or train with --backend torch")
    return _Alone()


def _trainer(processes: Distribution | _Alone) -> Callable[..., Result]:
    """The backend's loop; that it is missing should be known before a corpus is built."""
    if isinstance(processes, _Alone):
        from tiebeam.train.backends.mlx import train as train_on_mlx

        return train_on_mlx
    from tiebeam.train import train

    return partial(train, processes=processes)


def _show(progress: Progress, record: dict[str, Any]) -> None:
    head = f"step {record['step']:>6,}  {100 * record['done']:3.0f}%  {record['seconds']:6.0f} s"
    if "val_bpb" in record:
        progress.say(f"val {record['step']}", f"{head}  held-out {record['val_bpb']:.4f} bits per byte", final=True)
    else:
        share = f"  head's share of the gradient {100 * record['head_share']:.0f}%" if "head_share" in record else ""
        progress.say("train", f"{head}  loss {record['loss']:.4f}  {record['tokens_per_second']:,.0f} tokens/s{share}")


def _tell(result: Result, corpus: dict[str, Any]) -> None:
    console = render.console()
    tie = render.styled((("● tied" if result.tied else "○ untied"), render.accent(result.tied)))
    console.print(render.styled((f"{result.path}", "bold"), " · ", tie, f" · {human(result.params)} parameters"))
    rows = [
        ["held-out", f"{result.final.bpb:.4f} bits per byte, {result.final.nats:.4f} nats per token"],
        ["trained", f"{result.steps:,} steps, {result.seconds:,.0f} s, {result.tokens_per_second:,.0f} tokens/s"],
        [
            "text",
            f"{human_bytes(corpus['train']['bytes'])} to learn from, {human_bytes(corpus['val']['bytes'])} held out",
        ],
    ]
    for line in render.columns(rows, "<<"):
        console.print(line)
    if result.finished:
        console.print(f'  next: tiebeam generate {result.path} "import "')

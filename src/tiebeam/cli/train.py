"""`tiebeam train`: train a small GPT, tied or untied."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tiebeam.budget import human, human_bytes
from tiebeam.cli import render
from tiebeam.cli.interrupt import Interrupt
from tiebeam.cli.progress import Progress, time_left
from tiebeam.cli.rank_errors import reported_once
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.train import Distribution, LearningRates, Result, Settings

_ANY_VOCABULARY = 1 << 24


def tie_option(value: str) -> bool | float:
    """Parse --tie: yes, no, or the fraction of the run after which the pair is untied."""
    if value in ("yes", "true"):
        return True
    if value in ("no", "false"):
        return False
    try:
        fraction = float(value)
    except ValueError:
        raise BadRequest(f"--tie {value} is not supported; use yes, no, or a fraction such as 0.67") from None
    if not 0 < fraction < 1:
        raise BadRequest(f"--tie {value} must be yes, no, or a fraction between 0 and 1")
    return fraction


@click.command(short_help="Train a small GPT, tied or untied.")
@click.argument("text", nargs=-1, type=click.Path())
@click.option("--out", default="run", show_default=True, metavar="DIR", help="The run directory to write.")
@click.option("--minutes", type=float, metavar="M", help="Train for this long (default 5, unless --steps).")
@click.option("--steps", type=int, metavar="N", help="Train for this many steps; deterministic by --seed.")
@click.option("--arch", type=click.Choice(["standard", "golf"]), default="standard", show_default=True,
              help="standard: Qwen3, opens anywhere. golf: parameter-golf's block.")  # fmt: skip
@click.option("--tie", default="yes", show_default=True, metavar="yes|no|F",
              help="Tie embedding and head; a fraction F unties after F of the run.")  # fmt: skip
@click.option("--layers", type=int, default=4, show_default=True, metavar="N")
@click.option("--dim", type=int, default=256, show_default=True, metavar="N", help="Model width.")
@click.option("--heads", type=int, default=8, show_default=True, metavar="N")
@click.option("--kv-heads", type=int, default=4, show_default=True, metavar="N")
@click.option("--mlp-dim", type=int, default=512, show_default=True, metavar="N")
@click.option("--context", type=int, default=256, show_default=True, metavar="N", help="Context length in tokens.")
@click.option("--embed-dim", type=int, metavar="N", help="Factorized embedding of this width.")
@click.option("--bridge", is_flag=True, help="A dim x dim matrix before the tied embedding at the output.")
@click.option("--softcap", type=float, metavar="C",
              help="Cap the logits at C (golf: 15). standard then opens in tiebeam only.")  # fmt: skip
@click.option("--input-grad-scale", type=float, default=1.0, show_default=True, metavar="F",
              help="Multiply the lookup's part of a tied embedding's gradient.")  # fmt: skip
@click.option("--zero-head", is_flag=True, help="Start an untied head at zero (golf always does).")
@click.option("--embed-norm", is_flag=True, help="RMSNorm after the embedding; opens in tiebeam only.")
@click.option("--bigram-rows", type=int, default=0, metavar="N",
              help="Add a hashed bigram table of N rows at the input; opens in tiebeam only.")  # fmt: skip
@click.option("--pseudo-inverse", is_flag=True, help="Pseudo-inverse tying: E = Z T^-1, W = Z T, Z orthonormal.")
@click.option("--coupled-adam", is_flag=True, help="One second moment over the vocabulary for embedding and head.")
@click.option("--z-loss", type=float, default=0.0, metavar="F", help="Add F * logsumexp^2 to the loss, e.g. 1e-4.")
@click.option("--vocab", type=int, default=2048, show_default=True, metavar="N", help="Vocabulary of the BPE to train.")
@click.option("--tokenizer", type=click.Path(), metavar="FILE", help="Use this tokenizer.json or sentencepiece model.")
@click.option("--batch-tokens", type=int, default=2048, show_default=True, metavar="N", help="Tokens per step.")
@click.option("--accumulate", type=int, default=1, show_default=True, metavar="N", help="Micro-batches per step.")
@click.option("--optimizer", type=click.Choice(["muon", "adamw"]), default="muon", show_default=True,
              help="muon: Muon for matrices, Adam for the rest. adamw: one learning rate, as a baseline.")  # fmt: skip
@click.option("--lr-scale", "--rate-scale", type=float, default=1.0, show_default=True, metavar="F",
              help="Multiply every peak learning rate.")  # fmt: skip
@click.option("--matrix-lr", type=float, metavar="F", help="Peak learning rate of the matrices (Muon).")
@click.option("--embedding-lr", type=float, metavar="F", help="Peak learning rate of the embedding (Adam).")
@click.option("--head-lr", type=float, metavar="F", help="Peak learning rate of an untied head (Adam).")
@click.option("--warmup-steps", type=int, default=20, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--backend", type=click.Choice(["torch", "mlx"]), default="torch", show_default=True,
              help="mlx: for Apple silicon (pip install 'tiebeam[mlx]'); same run and files.")  # fmt: skip
@click.option("--device", default="auto", show_default=True, metavar="D",
              help="cpu, cuda, mps; auto picks the fastest. bf16 on a GPU, fp32 on a CPU.")  # fmt: skip
@click.option("--threads", type=int, metavar="N", help="CPU threads (default: the free cores).")
@click.option("--shard", is_flag=True, help="Under torchrun: FSDP2, a shard of every tensor per rank.")
@click.option("--shard-vocab", is_flag=True,
              help="Under torchrun: shard embedding and head by rows, replicate the rest.")  # fmt: skip
@click.option("--save-every", type=float, metavar="S", help="Seconds between saved states (default 60).")
@click.option("--compile", "compile_model", is_flag=True, help="torch.compile the model.")
@click.option("--max-bytes", type=int, metavar="N", help="Use at most this much text.")
@click.option("--track", type=click.Choice(["tensorboard", "wandb", "trackio"]), help="Also log to this tracker.")
@click.option("--resume", is_flag=True, help="Resume the run at --out, or write what a kill left out.")
@click.option("--force", is_flag=True, help="Replace the run at --out; anything else there is refused.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
def command(
    text: tuple[str, ...], out: str, resume: bool, force: bool, quiet: bool, as_json: bool, shard: bool,
    shard_vocab: bool, **options: Any,
) -> None:  # fmt: skip
    """Train a GPT on TEXT: files, directories, .jsonl, parquet, or a corpus. Default: Python's standard library.

    The run directory is an ordinary checkpoint: `inspect`, `generate`, `pack` and transformers open it.
    Ctrl-C saves the state and prints the command to resume.

    torchrun trains on several ranks, on GPUs if there are any; the batch per step stays the same. Any number of
    ranks can resume a run.

    \b
    tiebeam train --minutes 2
    tiebeam train books/ --tie no --out untied
    tiebeam train --resume --out run --minutes 10
    torchrun --nproc-per-node 2 -m tiebeam train --minutes 2
    torchrun --nproc-per-node 8 -m tiebeam train books/ --shard --batch-tokens 524288
    """
    from tiebeam.train import Distribution

    if (shard or shard_vocab) and options["backend"] == "mlx":
        raise BadRequest("--shard and --shard-vocab are not supported by the MLX backend; use --backend torch")
    distribution = Distribution()
    try:
        with reported_once(distribution):
            distribution = Distribution.from_environment(shard=shard, shard_vocab=shard_vocab)
        with reported_once(distribution):
            _train(text, Path(out), resume, force, quiet, as_json, options, distribution)
    except click.exceptions.Exit as leaving:
        distribution.exit(leaving.exit_code)
        raise
    distribution.exit()


def _train(
    text: tuple[str, ...], out: Path, resume: bool, force: bool, quiet: bool, as_json: bool, options: dict[str, Any],
    distribution: Distribution,
) -> None:  # fmt: skip
    from tiebeam.corpus import build_corpus
    from tiebeam.train import RunDirectory, train
    from tiebeam.train.backends import check_installed
    from tiebeam.train.trackers import tracker

    progress = Progress(quiet or as_json or not distribution.is_main)
    settings = _resumed_settings(out, options) if resume else _new_settings(options)
    distribution.check(settings)
    check_installed(settings.backend)
    if resume:
        corpus = build_corpus([RunDirectory.open(out).read_run()["corpus"]["path"]], progress=progress)
    else:
        RunDirectory.check(out, force)  # refuse before the corpus is built
        corpus = build_corpus(
            text, vocab=options["vocab"], tokenizer=options["tokenizer"], max_bytes=options["max_bytes"],
            progress=progress,
        )  # fmt: skip
    for note in corpus.notes:
        progress.say(note, f"note: {note}")
    interrupt = Interrupt(launched=distribution.world_size > 1)
    kind = options["track"] if distribution.is_main else None
    with distribution, tracker(kind, out, settings.to_dict()) as track:

        def report(record: dict[str, Any]) -> None:
            track(record)
            _show(progress, record)

        progress.note(_start(settings))
        result = train(
            settings, corpus, out, resume=resume, force=force, report=report, interrupted=interrupt,
            distribution=distribution, note=progress.note,
        )  # fmt: skip
    progress.close()
    if not distribution.is_main:
        raise click.exceptions.Exit(0 if result.finished else 130)
    if as_json:
        render.emit_json({**result.to_dict(), "corpus": corpus.to_dict()})
    else:
        _print_result(result, corpus, settings)
    if not result.finished:
        resume_with = f"{distribution.command} --resume --out {shlex.quote(str(out))}"
        render.echo(f"interrupted after {result.steps:,} steps; resume with: {resume_with}", err=True)
        raise click.exceptions.Exit(130)


def _new_settings(options: dict[str, Any]) -> Settings:
    from tiebeam.train import Settings

    names = ("arch", "layers", "dim", "heads", "kv_heads", "mlp_dim", "context", "embed_dim", "bridge",
             "input_grad_scale", "zero_head", "embed_norm", "bigram_rows", "pseudo_inverse", "coupled_adam", "z_loss",
             "batch_tokens", "accumulate", "steps", "seed", "optimizer", "warmup_steps", "backend",
             "device", "threads")  # fmt: skip
    chosen = {name: options[name] for name in names}
    softcap = options["softcap"]
    if softcap is None and options["arch"] == "golf":
        softcap = 15.0
    if options["save_every"] is not None:
        chosen["save_every"] = options["save_every"]
    no_length = options["minutes"] is None and options["steps"] is None
    tie = tie_option(options["tie"])
    settings = Settings(
        **chosen,
        softcap=softcap,
        minutes=5.0 if no_length else options["minutes"],
        tie=tie,
        rates=_learning_rates(options, tied=tie is not False),
        compile=options["compile_model"],
    )
    settings.model(_ANY_VOCABULARY)  # refuses sizes and options that do not fit together, before the corpus is built
    return settings


def _learning_rates(options: dict[str, Any], tied: bool) -> LearningRates:
    from tiebeam.train import LearningRates

    given = {
        "matrices": ("--matrix-lr", options["matrix_lr"]),
        "table" if tied else "embed": ("--embedding-lr", options["embedding_lr"]),
        "head": ("--head-lr", options["head_lr"]),
    }
    given = {field: (option, value) for field, (option, value) in given.items() if value is not None}
    for option, _ in given.values():
        if options["optimizer"] == "adamw":
            raise BadRequest(f"{option} is not supported by --optimizer adamw; use --lr-scale")
        if option == "--head-lr" and tied:
            raise BadRequest("--head-lr is for an untied head; use --embedding-lr, or --tie no")
    rates = LearningRates.of(options["arch"], options["dim"]).scaled(options["lr_scale"])
    return replace(rates, **{field: value for field, (_, value) in given.items()})


def _resumed_settings(out: Path, options: dict[str, Any]) -> Settings:
    """The settings of the run at `out`, with another length if one is given."""
    from tiebeam.train import RunDirectory, Settings

    settings = Settings.from_dict(RunDirectory.open(out).read_run()["settings"])
    given = click.get_current_context().get_parameter_source("backend") is not ParameterSource.DEFAULT
    if given and options["backend"] != settings.backend:
        raise BadRequest(
            f"the run at {out} was started with --backend {settings.backend}, and its saved state needs that backend; "
            f"drop --backend {options['backend']}"
        )
    if options["steps"] is not None or options["minutes"] is not None:
        settings = settings.longer(options["steps"], options["minutes"])
    return settings if options["save_every"] is None else replace(settings, save_every=options["save_every"])


def _show(progress: Progress, record: dict[str, Any]) -> None:
    head = f"step {record['step']:>6,}  {100 * record['done']:3.0f}%  {record['seconds']:6.0f} s"
    if record.get("full"):
        progress.note(f"full held-out split: {record['val_bpb']:.4f} bits per byte ({record['val_tokens']:,} tokens)")
    elif "val_bpb" in record:
        progress.note(f"{head}  held-out {record['val_bpb']:.4f} bits per byte")
    else:
        share = f"  head {100 * record['head_share']:.0f}% of the embedding gradient" if "head_share" in record else ""
        left = time_left(record["done"], record["seconds"])
        progress.say(
            "train",
            f"{head}  loss {record['loss']:.4f}  {record['tokens_per_second']:,.0f} tokens/s{share}  {left}".rstrip(),
        )


def _print_result(result: Result, corpus: Corpus, settings: Settings) -> None:
    console = render.console()
    tie = render.styled((("● tied" if result.tied else "○ untied"), render.accent(result.tied)))
    console.print(render.styled((f"{result.path}", "bold"), " · ", tie, f" · {human(result.params)} parameters"))
    rows = [
        ["held-out", f"{result.final.bpb:.4f} bits per byte, {result.final.nats:.4f} nats per token"],
        ["learning rates", f"peak {settings.peak_rates}"],
        ["trained", f"{result.steps:,} steps, {result.seconds:,.0f} s, {result.tokens_per_second:,.0f} tokens/s"],
        ["text", f"{human_bytes(corpus.bytes_train)} for training, {human_bytes(corpus.bytes_val)} held out"],
    ]
    for line in render.columns(rows, "<<"):
        console.print(line)
    if result.finished:
        console.print(f"  next: tiebeam generate {shlex.quote(result.path)} {shlex.quote(_prompt(corpus))}")


def _start(settings: Settings) -> str:
    """What begins, for the first second: size of a step, length, peak learning rates."""
    length = f"{settings.steps:,} steps" if settings.steps is not None else f"{settings.minutes:g} min"
    return f"training for {length}, {settings.step_tokens:,} tokens per step; peak learning rates {settings.peak_rates}"


def _prompt(corpus: Corpus) -> str:
    """A few words of the held-out text, as a prompt that fits what the model was trained on: plain words if it can."""
    tokens = [int(token) for token in corpus.val[:512] if token != corpus.boundary]
    words = [word for word in corpus.tokenizer.decode(tokens).split() if word.isprintable()]
    triples = [words[i : i + 3] for i in range(max(1, len(words) - 2))]
    plain = next((triple for triple in triples if all(map(str.isalpha, triple))), triples[0])
    return " ".join(plain)[:40] or "The"

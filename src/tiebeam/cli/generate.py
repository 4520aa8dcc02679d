"""`tiebeam generate`: text from a checkpoint, by either engine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebeam._fs import explaining, staging
from tiebeam._visible import visible
from tiebeam.errors import BadRequest, UnreadableInput

if TYPE_CHECKING:
    from tiebeam.decode import Engine, Token

_DEFAULT_NEW = 64


@click.command(short_help="Generate text from a checkpoint.")
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("-n", "--new", type=int, metavar="N", help=f"New tokens. Default: {_DEFAULT_NEW}, if the context allows.")
@click.option("--temperature", type=float, default=0.0, metavar="T", help="Sampling temperature. Default: 0, greedy.")
@click.option("--top-k", type=int, metavar="K", help="Sample from the K likeliest tokens.")
@click.option("--top-p", type=float, metavar="P", help="Sample from the fewest tokens whose probabilities reach P.")
@click.option("--seed", type=int, metavar="S", help="Make sampling repeatable.")
@click.option("--tokens", metavar="IDS", help="The prompt as token ids, 1,2,3: for a model without a tokenizer.")
@click.option("--top", type=int, metavar="N", help="Print the N likeliest next tokens after the prompt.")
@click.option("--logits", type=click.Path(dir_okay=False), metavar="FILE", help="Save the prompt's logits as .npy.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "numpy", "transformers"]),
    default="auto",
    help="What runs the model. Default: numpy where it knows the family, else transformers (extra [hf]).",
)
@click.option("--device", metavar="DEVICE", help="torch device, such as cuda or mps; runs with transformers.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "float16", "bfloat16"]),
    default="float32",
    help="Type of the weights; numpy rounds to the 16-bit types and computes in float32. Default: float32.",
)
@click.option("--embed", metavar="NAME", help="The embedding's tensor, if it is not under the family's name.")
@click.option("--head", metavar="NAME", help="The LM head's tensor.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
def command(
    model: str,
    prompt: str | None,
    new: int | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    tokens: str | None,
    top: int | None,
    logits: str | None,
    engine: str,
    device: str | None,
    dtype: str,
    embed: str | None,
    head: str | None,
    as_json: bool,
) -> None:
    """Continue PROMPT with MODEL: greedy, or sampled with --temperature.

    The model's own tie decides which matrix is the LM head. A PROMPT of - is read from standard input. With --top or
    --logits, text is generated only if -n asks for it. Control characters in the text are printed as escapes such as
    \\x1b; --json has the text itself.

    \b
    tiebeam generate model.gguf "The capital of France is" -n 24
    tiebeam generate ./checkpoint "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 1
    tiebeam generate ./checkpoint "The capital of France is" --top 10
    tiebeam generate ./checkpoint --tokens 1,2,3 --logits logits.npy
    tiebeam generate ./opt-125m "Hello" --engine transformers --device cuda
    """
    _limit_blas_threads()
    from tiebeam.cli import render
    from tiebeam.decode import Sampling, engine_name, open_engine

    sampling = Sampling(temperature, top_k, top_p, seed)  # checked before a model is opened
    ids = _ids(tokens) if tokens is not None else None
    if (ids is None) == (prompt is None):
        raise BadRequest("give a PROMPT, or its ids with --tokens 1,2,3" + (", not both" if prompt else ""))
    if top is not None and top < 1:
        raise BadRequest(f"--top is {top}; it must be at least 1")
    text = sys.stdin.read() if prompt == "-" else prompt
    if text == "":
        raise BadRequest("the prompt is empty; give some text, or a start token with --tokens")

    start = time.perf_counter()
    if engine == "numpy" and device not in (None, "cpu"):
        raise BadRequest(f"--engine numpy has no --device {device}; use --engine transformers")
    opened = open_engine(model, engine=engine, device=device, embed=embed, head=head, dtype=dtype)
    if text is not None and opened.tokenizer is None:
        raise UnreadableInput(f"{opened.source} has no tokenizer; give the prompt as token ids: --tokens 1,2,3")
    ids = ids if text is None else opened.encode(text)
    assert ids is not None
    if new is None:
        left = max(1, opened.spec.context - len(ids))
        new = min(_DEFAULT_NEW, left) if top is None and logits is None else 0
    stream = opened.generate(ids, new, sampling=sampling)  # checks the request; the model runs when it is read
    seconds = time.perf_counter() - start
    notes = [*opened.notes, *_padding_note(opened)]
    document: dict[str, Any] = {"model": model, "engine": engine_name(opened), "prompt": text}
    document |= {"prompt_tokens": ids, "notes": notes}
    console = None if as_json else render.console()
    if console:
        for note in notes:
            render.echo(f"note: {note}", err=True)
    if logits is not None:
        document["logits"] = _save_logits(opened, ids, Path(logits))
        if console:
            console.print(f"{logits}: float32 {document['logits']['shape']}")
    if top is not None:
        document["top"] = _likeliest(opened, ids, top)
        if console:
            rows = [[f"{t['probability']:.1%}", f"{t['id']}", _shown(t["text"])] for t in document["top"]]
            for line in render.columns(rows, ">><"):
                console.print(line)
    if new:
        shown = None
        if console:
            shown = text if text is not None and opened.speller else ",".join(map(str, ids))
        document |= _run(stream, shown, has_text=opened.speller is not None)
        document["stopped"] = "length" if len(document["tokens"]) == new else "end"
        document["seconds"]["open"] = seconds
        if console:
            click.echo(_summary(document), err=True)
    if as_json:
        render.emit_json(document)


def _limit_blas_threads() -> None:
    """Use one BLAS thread when all cores are busy: two threads that wait for each other's core are far slower.

    BLAS reads the variable once, when NumPy is first imported. A value set by the user is kept.
    """
    chosen = any(name in os.environ for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    if chosen or "numpy" in sys.modules or not hasattr(os, "getloadavg"):
        return
    if os.getloadavg()[0] >= (os.cpu_count() or 1):
        os.environ["OPENBLAS_NUM_THREADS"] = "1"


def _run(stream: Iterator[Token], prompt: str | None, has_text: bool) -> dict[str, Any]:
    """Generate. With `prompt`, print it and each token as it comes."""
    made: list[Token] = []
    began = first = time.perf_counter()
    if prompt is not None:
        show = _printer()
        show(prompt)
    for token in stream:
        if not made:
            first = time.perf_counter()
        made.append(token)
        if prompt is not None:
            show(token.text if has_text else f",{token.id}")
    end = time.perf_counter()
    if prompt is not None:
        show("\n")
    return {
        "tokens": [token.id for token in made],
        "text": "".join(token.text for token in made) if has_text else None,
        "seconds": {"prompt": first - began, "new": end - first},
        "tokens_per_second": (len(made) - 1) / (end - first) if len(made) > 1 else None,
    }


def _printer() -> Callable[[str], None]:
    """A function that prints a text in pieces. Control characters and commands to a CI runner are escaped, also those
    that are complete only with a later piece."""
    line = ""  # what the current line holds so far

    def show(piece: str) -> None:
        nonlocal line
        text = line + piece
        sys.stdout.write(visible(text, keep="\n\t")[len(visible(line, keep="\n\t")) :])
        sys.stdout.flush()
        line = text.rpartition("\n")[2]
        line = line if len(line) < 200 else "." + line[-20:]  # a command is at the start of a line, or short

    return show


def _summary(document: dict[str, Any]) -> str:
    count, rate = len(document["tokens"]), document["tokens_per_second"]
    speed = f", {rate:.0f} per second" if rate else ""
    ended = ", stopped at end of text" if document["stopped"] == "end" else ""
    seconds = document["seconds"]
    return f"{count} tokens{speed}{ended}; opened in {seconds['open']:.1f} s, prompt in {seconds['prompt']:.1f} s"


def _ids(tokens: str) -> list[int]:
    parts = [part.strip() for part in tokens.replace(" ", ",").split(",") if part.strip()]
    wrong = next((part for part in parts if not part.lstrip("-").isdigit()), None)
    if wrong is not None:
        raise BadRequest(f"--tokens takes whole numbers such as 1,2,3; {wrong!r} is not one")
    return [int(part) for part in parts]


def _padding_note(engine: Engine) -> list[str]:
    """A note when the vocabulary is larger than the tokenizer's, which is common (rows of padding)."""
    tokenizer, vocab = engine.speller, engine.vocab
    if tokenizer is None or tokenizer.size >= vocab:
        return []
    return [
        f"the model has {vocab:,} tokens and its tokenizer {tokenizer.size:,}; "
        f"the {vocab - tokenizer.size:,} without text are never generated"
    ]


def _likeliest(engine: Engine, ids: list[int], count: int) -> list[dict[str, Any]]:
    """The likeliest next tokens, best first."""
    import numpy as np

    from tiebeam.decode.numpy.ops import log_softmax

    scores = engine.unembed(engine.hidden(ids)[-1:])[0]  # [V]
    p = np.exp(log_softmax(scores))
    best = np.argsort(-scores, kind="stable")[:count]
    decode = engine.speller.decode if engine.speller else None
    return [
        {
            "id": int(i),
            "text": decode([int(i)]) if decode else None,
            "probability": float(p[i]),
            "logit": float(scores[i]),
        }
        for i in best
    ]


def _shown(text: str | None) -> str:
    """A token's text with spaces and control characters visible."""
    return "" if text is None else repr(text)


def _save_logits(engine: Engine, ids: list[int], path: Path) -> dict[str, Any]:
    """Write the logits block by block, atomically."""
    import numpy as np

    shape = (len(ids), engine.vocab)
    h = engine.hidden(ids)  # [T, D]
    with explaining(path):
        path.parent.stat()  # a missing directory is more likely a typing error than one to make
    with explaining(path), staging(path, force=True, durable=False) as stage:
        with open(stage.path / "logits", "wb") as out:
            np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
            for start in range(0, len(h), 32):
                out.write(np.asarray(engine.unembed(h[start : start + 32]), "<f4").tobytes())
        stage.commit("logits")
    return {"file": str(path), "shape": list(shape)}

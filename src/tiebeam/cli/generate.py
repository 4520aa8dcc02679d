"""`tiebeam generate`: text out of a checkpoint, on NumPy."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebeam._fs import atomic_path
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.decode import Decoder, Token

_DEFAULT_NEW = 64


@click.command(short_help="Text, on NumPy.")
@click.argument("model")
@click.argument("prompt", required=False)
@click.option(
    "-n", "--new", type=int, metavar="N", help=f"How many tokens to make. Default: {_DEFAULT_NEW}, if they fit."
)
@click.option(
    "--temperature", type=float, default=0.0, metavar="T", help="Draw at this temperature. Default: 0, greedy."
)
@click.option("--top-k", type=int, metavar="K", help="Draw from the K likeliest tokens only.")
@click.option("--top-p", type=float, metavar="P", help="Draw from the fewest tokens whose probabilities reach P.")
@click.option("--seed", type=int, metavar="S", help="Make a draw repeatable.")
@click.option("--tokens", metavar="IDS", help="The prompt as token ids, 1,2,3: for a model without a tokenizer.")
@click.option("--top", type=int, metavar="N", help="Print the N likeliest next tokens after the prompt.")
@click.option("--logits", type=click.Path(dir_okay=False), metavar="FILE", help="Save the prompt's logits as .npy.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "float16", "bfloat16"]),
    default="float32",
    help="Hold the weights so; the 16-bit types round them and compute in float32. Default: float32.",
)
@click.option("--embed", metavar="NAME", help="The embedding's tensor, where the architecture's name is not stored.")
@click.option("--head", metavar="NAME", help="The head's tensor.")
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
    dtype: str,
    embed: str | None,
    head: str | None,
    as_json: bool,
) -> None:
    """Continue PROMPT with MODEL, greedily unless told otherwise. No torch is needed.

    The head is whichever matrix the tie says. A PROMPT of - is read from standard input. With --top or --logits,
    text is made only if -n asks for it.

    \b
    tiebeam generate model.gguf "The capital of France is" -n 24
    tiebeam generate ./checkpoint "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 1
    tiebeam generate ./checkpoint "The capital of France is" --top 10
    tiebeam generate ./checkpoint --tokens 1,2,3 --logits logits.npy
    """
    _share_the_machine()
    from tiebeam.cli import render
    from tiebeam.decode import Decoder, Sampling

    sampling = Sampling(temperature, top_k, top_p, seed)  # wrong settings are said before a model is opened
    ids = _ids(tokens) if tokens is not None else None
    if (ids is None) == (prompt is None):
        raise BadRequest("give a PROMPT, or its ids with --tokens 1,2,3" + (", not both" if prompt else ""))
    if top is not None and top < 1:
        raise BadRequest(f"--top {top} would print nothing; ask for at least 1")
    text = sys.stdin.read() if prompt == "-" else prompt

    start = time.perf_counter()
    decoder = Decoder.open(model, embed=embed, head=head, dtype=dtype)
    ids = ids if text is None else decoder.encode(text)
    assert ids is not None
    if new is None:  # nobody asked for a number: what the context leaves is enough
        room = max(1, decoder.spec.context - len(ids))
        new = min(_DEFAULT_NEW, room) if top is None and logits is None else 0
    stream = decoder.generate(ids, new, sampling=sampling)  # checks everything, runs nothing yet
    opened = time.perf_counter() - start
    notes = [*decoder.notes, *_spelling(decoder)]
    document: dict[str, Any] = {"model": model, "prompt": text, "prompt_tokens": ids, "notes": notes}
    console = None if as_json else render.console()
    if console:
        for note in notes:
            click.echo(f"note: {note}", err=True)
    if logits is not None:
        document["logits"] = _save_logits(decoder, ids, Path(logits))
        if console:
            console.print(f"{logits}: float32 {document['logits']['shape']}")
    if top is not None:
        document["top"] = _likeliest(decoder, ids, top)
        if console:
            rows = [[f"{t['probability']:.1%}", f"{t['id']}", _shown(t["text"])] for t in document["top"]]
            for line in render.columns(rows, ">><"):
                console.print(line)
    if new:
        shown = None
        if console:
            shown = text if text is not None and decoder.speller else ",".join(map(str, ids))
        document |= _speak(stream, shown, spelled=decoder.speller is not None)
        document["stopped"] = "length" if len(document["tokens"]) == new else "end"
        document["seconds"]["open"] = opened
        if console:
            click.echo(_summary(document), err=True)
    if as_json:
        render.emit_json(document)


def _share_the_machine() -> None:
    """On a machine that is already full, one BLAS thread: two that wait for each other's core are far slower.

    Said by a variable that BLAS reads once, when NumPy is first imported; whoever has set one knows better.
    """
    said = any(name in os.environ for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    if said or "numpy" in sys.modules or not hasattr(os, "getloadavg"):
        return
    if os.getloadavg()[0] >= (os.cpu_count() or 1):
        os.environ["OPENBLAS_NUM_THREADS"] = "1"


def _speak(stream: Iterator[Token], prompt: str | None, spelled: bool) -> dict[str, Any]:
    """Run the stream; with a prompt to start from, show it and each token as it comes."""
    made: list[Token] = []
    began = first = time.perf_counter()
    if prompt is not None:
        sys.stdout.write(prompt)
        sys.stdout.flush()
    for token in stream:
        if not made:
            first = time.perf_counter()
        made.append(token)
        if prompt is not None:
            sys.stdout.write(token.text if spelled else f",{token.id}")
            sys.stdout.flush()
    end = time.perf_counter()
    if prompt is not None:
        sys.stdout.write("\n")
        sys.stdout.flush()
    return {
        "tokens": [token.id for token in made],
        "text": "".join(token.text for token in made) if spelled else None,
        "seconds": {"prompt": first - began, "new": end - first},
        "tokens_per_second": (len(made) - 1) / (end - first) if len(made) > 1 else None,
    }


def _summary(document: dict[str, Any]) -> str:
    count, rate = len(document["tokens"]), document["tokens_per_second"]
    speed = f", {rate:.0f} per second" if rate else ""
    ended = ", ended by the model" if document["stopped"] == "end" else ""
    seconds = document["seconds"]
    return f"{count} tokens{speed}{ended}; opened in {seconds['open']:.1f} s, prompt in {seconds['prompt']:.1f} s"


def _ids(tokens: str) -> list[int]:
    parts = [part.strip() for part in tokens.replace(" ", ",").split(",") if part.strip()]
    wrong = next((part for part in parts if not part.lstrip("-").isdigit()), None)
    if wrong is not None:
        raise BadRequest(f"--tokens takes whole numbers, 1,2,3; {wrong!r} is not one")
    return [int(part) for part in parts]


def _spelling(decoder: Decoder) -> list[str]:
    """A vocabulary larger than the tokenizer's is common (rows of padding), and worth one sentence."""
    tokenizer, vocab = decoder.speller, decoder.vocab
    if tokenizer is None or tokenizer.size >= vocab:
        return []
    return [
        f"the model has {vocab:,} tokens and its tokenizer {tokenizer.size:,}; "
        f"the {vocab - tokenizer.size:,} without a spelling are never chosen"
    ]


def _likeliest(decoder: Decoder, ids: list[int], count: int) -> list[dict[str, Any]]:
    """The next-token table, likeliest first."""
    import numpy as np

    from tiebeam.decode.numpy.ops import log_softmax

    scores = decoder.unembed(decoder.hidden(ids)[-1:])[0]  # [V]
    p = np.exp(log_softmax(scores))
    best = np.argsort(-scores, kind="stable")[:count]
    spell = decoder.speller.decode if decoder.speller else None
    return [
        {
            "id": int(i),
            "text": spell([int(i)]) if spell else None,
            "probability": float(p[i]),
            "logit": float(scores[i]),
        }
        for i in best
    ]


def _shown(text: str | None) -> str:
    """A token's text with its blanks and controls made visible."""
    return "" if text is None else repr(text)


def _save_logits(decoder: Decoder, ids: list[int], path: Path) -> dict[str, Any]:
    """Write the logits block by block, atomically."""
    import numpy as np

    shape = (len(ids), decoder.vocab)
    h = decoder.hidden(ids)  # [T, D]
    try:
        with atomic_path(path, durable=False) as temporary:
            out = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
            for start in range(0, len(h), 32):
                out[start : start + 32] = decoder.unembed(h[start : start + 32])
            out.flush()
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror or error}") from None
    return {"file": str(path), "shape": list(shape)}

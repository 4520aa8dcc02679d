"""`tiebeam bigrams`: what a tied, bridged and untied direct path can say, in bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tiebeam.cli import render
from tiebeam.cli.progress import Progress

if TYPE_CHECKING:
    from tiebeam.lens.zero_layer import ZeroLayer


@click.command(short_help="What a model with no layers can say.")
@click.argument("text", nargs=-1, type=click.Path())
@click.option("--vocab", type=int, default=1024, show_default=True, metavar="N", help="Tokens of the BPE to train.")
@click.option("--dim", type=int, default=64, show_default=True, metavar="D", help="Width of every form.")
@click.option("--steps", type=int, default=400, show_default=True, metavar="N", help="Full-batch steps of each fit.")
@click.option("--forms", metavar="A,B", help="Some of EE,EDE,EME,EMLPE,EW (default: all).")
@click.option("--top", type=int, metavar="N", help="Keep the N most frequent tokens, fold the rest into one.")
@click.option("--max-bytes", type=int, metavar="N", help="Take at most this much text.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    text: tuple[str, ...], vocab: int, dim: int, steps: int, forms: str | None, top: int | None,
    max_bytes: int | None, seed: int, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Fit the direct path token -> E -> logits to TEXT's own bigrams, in every form that tying leaves open.

    E.Eᵀ is a tied model without layers: symmetric, and unable to score any token below 0 after itself.
    E.diag(±1).Eᵀ is symmetric only, E.M.Eᵀ has one d x d map between, E.W two tables. Each is judged on documents
    that it never saw. Without TEXT, on this Python's own library.

    \b
    tiebeam bigrams
    tiebeam bigrams books/ --vocab 2048 --dim 128
    """
    from tiebeam.corpus import build_corpus
    from tiebeam.lens.bigrams import FORMS
    from tiebeam.lens.zero_layer import study

    progress = Progress(quiet or as_json)
    corpus = build_corpus(text, vocab=vocab, max_bytes=max_bytes, progress=progress)
    chosen = [form.strip().upper() for form in forms.split(",") if form.strip()] if forms else FORMS
    found = study(corpus, dim=dim, steps=steps, forms=chosen, top=top, seed=seed, progress=progress)
    progress.close()
    if as_json:
        render.emit_json({**found.to_dict(), "corpus": corpus.to_dict()})
    else:
        _tell(found)


def _tell(found: ZeroLayer) -> None:
    console = render.console()
    console.print(
        render.styled(
            ("What pairs of tokens can tell", "bold"),
            f" · {found.vocab:,} tokens, width {found.dim}, {found.pairs['train']:,} pairs to learn from, "
            f"{found.pairs['test']:,} held out",
        )
    )
    worst = found.unigram.bits
    scale = max((row.bits for row in found.rows()), default=1.0) or 1.0
    style = {"EE": render.TIED, "EW": render.UNTIED}
    lines = [["", "bits/token", "parameters", ""]]
    for form, row in [("", found.unigram), *found.fits.items(), ("", found.smoothed)]:
        cells = render.bar([(round(1000 * row.bits), render.TRUNK, style.get(form, render.FAINT))], round(1000 * scale))
        lines.append([row.name, f"{row.bits:.3f}", f"{row.params:,}", cells])  # type: ignore[list-item]
    for line in render.columns(lines, "<>><"):
        console.print(line)
    b = found.bounds
    console.print()
    console.print(render.styled((f"The table itself (PMI), and what rank {b.dim} must leave out of it", "bold")))
    shares = [
        ["antisymmetric", f"{b.antisymmetric:.3f}", "of its energy: out of reach of every symmetric path"],
        ["negative", f"{b.negative:.3f}", "of the symmetric half's energy: out of reach of E.Eᵀ at any width"],
        ["residual", f"{b.any:.3f}", "any matrix (E.W, E.M.Eᵀ)"],
        ["", f"{b.symmetric:.3f}", "symmetric (E.diag(±1).Eᵀ)"],
        ["", f"{b.semidefinite:.3f}", "positive semidefinite (E.Eᵀ)"],
    ]
    for line in render.columns(shares, "<><"):
        console.print(line)
    console.print()
    for sentence in found.says:
        console.print(render.wrapped(sentence, console.width))
    if any(row.bits > worst for row in found.fits.values()):
        console.print(
            render.wrapped("A form above the unigram has not converged: give it more --steps.", console.width)
        )

"""`tiebeam bigrams`: what a tied and an untied direct path can represent, in bits per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tiebeam.cli import render
from tiebeam.cli.progress import Progress

if TYPE_CHECKING:
    from tiebeam.lens.zero_layer import ZeroLayer


@click.command(short_help="Fit tied and untied models without layers to bigrams.")
@click.argument("text", nargs=-1, type=click.Path())
@click.option("--vocab", type=int, default=1024, show_default=True, metavar="N", help="Vocabulary of the BPE to train.")
@click.option("--dim", type=int, default=64, show_default=True, metavar="D", help="Width of every form.")
@click.option("--steps", type=int, default=400, show_default=True, metavar="N", help="Full-batch steps per fit.")
@click.option("--forms", metavar="A,B", help="Forms to fit, of EE,EDE,EME,EMLPE,EW. Default: all.")
@click.option("--top", type=int, metavar="N", help="Keep the N most frequent tokens, map the rest to one.")
@click.option("--max-bytes", type=int, metavar="N", help="Use at most N bytes of text.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    text: tuple[str, ...], vocab: int, dim: int, steps: int, forms: str | None, top: int | None,
    max_bytes: int | None, seed: int, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Fit models without layers, token -> E -> logits, to the bigrams of TEXT, in every form that tying allows.

    E.Eᵀ is a tied model: symmetric, and a token never has a negative logit after itself. E.diag(±1).Eᵀ is symmetric,
    E.M.Eᵀ has a d x d map in between, E.W has two tables (untied). All are measured on held-out documents. Without
    TEXT, the Python standard library is the text.

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
        _print(found)


def _print(found: ZeroLayer) -> None:
    from tiebeam.lens.bigrams import NAMES

    console = render.console()
    console.print(
        render.styled(
            ("Bigram study", "bold"),
            f" · vocabulary {found.vocab:,}, width {found.dim}, {found.pairs['train']:,} training pairs, "
            f"{found.pairs['test']:,} held out",
        )
    )
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
    console.print(render.styled((f"PMI of the bigrams, and the error of rank-{b.dim} approximations", "bold")))
    shares = [
        ["antisymmetric", f"{b.antisymmetric:.3f}", "of the energy; a symmetric path cannot represent it"],
        ["negative", f"{b.negative:.3f}", "of the symmetric part's energy; E.Eᵀ cannot represent it at any width"],
        ["residual", f"{b.any:.3f}", "any matrix (E.W, E.M.Eᵀ)"],
        ["", f"{b.symmetric:.3f}", "symmetric (E.diag(±1).Eᵀ)"],
        ["", f"{b.semidefinite:.3f}", "positive semidefinite (E.Eᵀ)"],
    ]
    for line in render.columns(shares, "<><"):
        console.print(line)
    console.print()
    for sentence in found.conclusions:
        console.print(render.wrapped(sentence, console.width))
    if found.unconverged:
        names = ", ".join(NAMES[form] for form in found.unconverged)
        console.print(render.wrapped(f"Not converged (worse than the unigram): {names}. Raise --steps.", console.width))

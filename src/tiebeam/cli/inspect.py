"""`tiebeam inspect`: is a checkpoint tied, where are its matrices, what do they cost? At most half a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tiebeam.cli import render
from tiebeam.cli.inspect_report import show

if TYPE_CHECKING:
    from tiebeam._text import Line
    from tiebeam.inspection import Report


@click.command()
@click.argument("model")
@click.option("--embed", metavar="NAME", help="Name of the embedding tensor, if the architecture is unknown.")
@click.option("--head", metavar="NAME", help="Name of the LM head tensor, if the architecture is unknown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(model: str, embed: str | None, head: str | None, as_json: bool) -> None:
    """Is MODEL tied, where are its embedding and LM head, and what do they cost?

    Reads headers only, and the two matrices if both are stored. MODEL is a directory, a file (safetensors, GGUF,
    PyTorch, npz), org/name or hf://org/name@rev. It may also be an unconsolidated distributed checkpoint: torch DCP
    (.metadata and .distcp files), a DeepSpeed global_step directory, or one file per rank.

    \b
    tiebeam inspect ./my-checkpoint
    tiebeam inspect model.gguf --json
    tiebeam inspect weights.npz --embed dec_emb --head fc_w
    tiebeam inspect checkpoint-500/pytorch_model_fsdp_0

    \b
    States: shared    tied: one matrix is both embedding and LM head
            untied    two different matrices
            twin      two equal copies of one matrix
            torn      declared tied, but two different matrices are stored
            headless  declared untied, but no LM head is stored
            swapped   the one matrix is stored under the LM head's name
            none      no vocabulary matrices found
    """
    show(model, embed, head, as_json=as_json)


def title(report: Report) -> str:
    return report.title


def verdict_line(report: Report) -> Line:
    """● tie, coloured by state, and the three facts."""
    verdict = render.Line(next(report.lines()).pieces[:1])
    return render.styled("  ", verdict, " " * (12 - verdict.cell_len), " ", report.facts)

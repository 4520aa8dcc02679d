"""`tiebeam inspect`: the pair of a checkpoint, on half a screen, verdict first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

import click

from tiebeam.budget import human, human_bytes, percent
from tiebeam.cli import render
from tiebeam.pair import Matrix, Tie

if TYPE_CHECKING:
    from rich.text import Text

    from tiebeam.doctor import Diagnosis
    from tiebeam.inspection import Report

_FORMATS = {
    "gguf": "GGUF",
    "pytorch": "PyTorch",
    "dcp": "PyTorch DCP",
    "deepspeed": "DeepSpeed",
    "ranks": "PyTorch ranks",
}


@click.command(short_help="The pair, the tie, the three facts, the parameters.")
@click.argument("model")
@click.option("--embed", metavar="NAME", help="The embedding's tensor, where the architecture is not known.")
@click.option("--head", metavar="NAME", help="The head's tensor.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(model: str, embed: str | None, head: str | None, as_json: bool) -> None:
    """Is MODEL tied, where does it keep its pair, and what does it cost?

    Only headers are read, and the two matrices where both are stored. MODEL is a directory, a file (safetensors,
    GGUF, PyTorch, npz), org/name or hf://org/name@rev. A directory may also be what several processes saved and nobody
    consolidated: torch's distributed checkpoint (.metadata and .distcp), DeepSpeed's global_step folders, one file a
    process.

    \b
    tiebeam inspect ./my-checkpoint
    tiebeam inspect model.gguf --json
    tiebeam inspect weights.npz --embed dec_emb --head fc_w
    tiebeam inspect checkpoint-500/pytorch_model_fsdp_0

    \b
    The ties: shared    one matrix serves both ends
              untied    two matrices, each its own
              twin      one matrix paid for twice
              torn      declared tied, stored as two different matrices
              headless  declared untied, no head stored
              swapped   the one matrix is stored under the head's name
              none      no vocabulary pair
    """
    from tiebeam.doctor import diagnose

    diagnosis = diagnose(model, embed=embed, head=head)
    if as_json:
        document = diagnosis.to_dict()
        del document["loaders"]  # the doctor's table; `tiebeam doctor --json` has it
        render.emit_json(document)
        return
    console = render.console()
    for line in lines(diagnosis, console.width):
        console.print(line)


def title(report: Report) -> str:
    """model · architecture · format · size"""
    name = PurePath(report.model).name if not report.model.startswith("hf://") else report.model
    parts = [name or report.model, report.architecture or "unknown architecture"]
    parts += [_FORMATS.get(report.format, report.format), human_bytes(report.nbytes)]
    return " · ".join(parts)


def verdict_line(report: Report) -> Text:
    """● tie, in the accent of its kind, with the facts it rests on."""
    tie = report.tie
    style = render.accent(tie in (Tie.SHARED, Tie.TWIN, Tie.SWAPPED))
    if not tie.healthy:
        style = "bold red" if tie in (Tie.TORN, Tie.HEADLESS) else "bold yellow"
    return render.styled("  ", (f"● {tie:<10}", render.FAINT if tie is Tie.NONE else style), " ", _facts(report))


def _facts(report: Report) -> str:
    pair = report.pair
    if report.tie is Tie.NONE:
        return "an encoder: it has no head by design" if pair.encoder else "no vocabulary pair found"
    said = {None: "nothing declared", True: "declared tied", False: "declared untied"}[pair.declared]
    by = f": {pair.declared_by}" if "(" in pair.declared_by else f" ({pair.declared_by})"
    stored = {
        ("embed",): "stored once",
        ("head",): "only the head is stored",
        ("embed", "head"): "two names, one storage" if pair.one_storage else "stored twice",
    }[pair.stored]
    equal = "" if pair.equal is None or pair.one_storage else " · equal" if pair.equal else " · different"
    return f"{said}{by} · {stored}{equal}"


def lines(diagnosis: Diagnosis, width: int) -> Iterator[Text | str]:
    """The whole answer, line by line."""
    report = diagnosis.report
    yield render.styled((title(report), "bold"))
    yield verdict_line(report)
    yield from _matrices(report)
    yield from _counts(report)
    for note in ([report.how] if report.how and not report.pair.one_storage else []) + list(report.notes):
        yield from render.wrapped(f"note: {note}", width).splitlines()
    for finding in diagnosis.findings:
        yield from render.wrapped(f"{finding.code} {finding.severity}: {finding.title}", width).splitlines()
    if diagnosis.findings:
        yield f"  more: tiebeam doctor {report.model}"


def _matrices(report: Report) -> Iterator[Text]:
    pair = report.pair
    if pair.embed is None and pair.head is None:
        return
    rows = []
    for label, matrix in (("embed", pair.embed), ("head", pair.head)):
        if matrix is not None and (label == "embed" or not pair.one_storage):
            rows.append([f"{label:<11}", *_cells(matrix)])
        elif matrix is not None:
            rows.append([f"{label:<11}", f"{matrix.name}: the same bytes"])
        elif not pair.encoder:
            missing = report.tie is Tie.HEADLESS or (label == "embed" and pair.declared is False)
            rows.append([f"{label:<11}", "not stored" if missing else "the same tensor"])
    with_cells = [row for row in rows if len(row) > 2]
    aligned = iter(render.columns(with_cells, "<<><>"))
    for row in rows:
        yield next(aligned) if len(row) > 2 else render.styled(f"  {row[0]}  {row[1]}")


def _cells(matrix: Matrix) -> list[str]:
    shape = " x ".join(f"{n:,}" for n in matrix.shape)
    return [matrix.name, shape, matrix.dtype, human_bytes(matrix.nbytes)]


def _counts(report: Report) -> Iterator[Text]:
    params = report.params
    if report.tie is Tie.NONE:
        yield render.styled(f"  {'total':<11}  {human(params.total):>7}")
        return
    tied = params.total == params.tied_total
    style, whole = render.accent(tied), params.untied_total
    bars = [(params.trunk, render.TRUNK, ""), (params.total - params.trunk, render.TABLE, style)]
    yield render.styled(f"  {'trunk':<11}  {human(params.trunk):>7}  ", render.bar(bars, max(1, params.total)))
    vocabulary = params.total - params.trunk
    if tied:
        paid = f"paid once; untied it would be {human(params.untied_total - params.trunk)}"
    else:
        paid = f"paid twice; tied it would be {human(params.tied_total - params.trunk)}"
    yield render.styled(f"  {'vocabulary':<11}  {human(vocabulary):>7}  {paid}")
    share = percent(params.saved_by_tying / whole) if whole else "0%"
    saved = f"tying {'saves' if tied else 'would save'} {human(params.saved_by_tying)}, {share} of the untied model"
    yield render.styled(f"  {'total':<11}  {human(params.total):>7}  {saved}")

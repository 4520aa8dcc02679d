"""`tiebeam pack`: quantize and compress a run into one file, and measure what that costs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tiebeam.budget import human_bytes, parse_bytes
from tiebeam.cli import render
from tiebeam.errors import BadRequest


def _bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_bytes(value)
    except BadRequest as error:
        raise BadRequest(f"--limit: {error}") from None


@click.command(short_help="Pack a run into one small file.")
@click.argument("run", type=click.Path())
@click.option("--out", metavar="FILE", help="The artifact to write (default: RUN.tbp beside the run).")
@click.option(
    "--limit",
    callback=_bytes,
    default="16MB",
    show_default=True,
    metavar="SIZE",
    help="Exit with 1 if the artifact is larger.",
)
@click.option("--dtype", type=click.Choice(["int8", "int7", "int6", "fp16"]), default="int8", show_default=True,
              help="Precision of the matrices.")  # fmt: skip
@click.option("--embed-dtype", type=click.Choice(["fp16", "int8", "int7", "int6", "int5", "int4", "int3"]),
              default="fp16", show_default=True, help="Precision of the embedding and the head.")  # fmt: skip
@click.option(
    "--embed-bits", type=click.FloatRange(2, 8), metavar="B",
    help="In place of --embed-dtype: B bits per row on average; rows of frequent tokens get more.",
)  # fmt: skip
@click.option(
    "--rounding", type=click.Choice(["compensated", "nearest"]), default="compensated", show_default=True,
    help="How an integer embedding and head are rounded: compensated keeps the logits on the training text.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace FILE if it is an artifact; any other file is refused.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    run: str, out: str | None, limit: int, dtype: str, embed_dtype: str, embed_bits: float | None, rounding: str,
    force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Quantize and compress RUN into one file, and measure the loss before and after on its held-out text.

    \b
    tiebeam pack run --limit 16MB
    tiebeam pack run --dtype int6 --embed-dtype int4
    tiebeam pack run --embed-bits 4.5
    tiebeam unpack run.tbp unpacked
    """
    from tiebeam.train.pack_run import pack_run

    target = Path(out) if out else Path(os.path.normpath(run)).with_suffix(".tbp")
    packed = pack_run(
        run, target, weights=dtype, embed=embed_dtype, bits=embed_bits, rounding=rounding, limit=limit, force=force
    )
    if as_json:
        render.emit_json(packed.to_dict())
    else:
        console = render.console()
        console.print(render.styled((str(target), "bold"), f" · {human_bytes(packed.bytes)} of {human_bytes(limit)}"))
        table = f"{embed_bits:g} bits per row in the" if embed_bits is not None else embed_dtype
        rows = [
            ["before", f"{packed.before.bpb:.4f} bits per byte", f"{packed.params:,} parameters in fp32"],
            ["after", f"{packed.after.bpb:.4f} bits per byte", f"{dtype} matrices, {table} embedding"],
            ["lost", f"{packed.lost:+.4f} bits per byte", ""],
        ]
        if packed.gained is not None and packed.nearest is not None:
            nearest = f"rounded to nearest: {packed.nearest.bpb:.4f}"
            rows.append(["gained", f"{packed.gained:+.4f} bits per byte", f"by error compensation; {nearest}"])
        for line in render.columns(rows, "<<<"):
            console.print(line)
    if not packed.fits:
        render.echo(
            f"tiebeam: {target} has {packed.bytes:,} bytes, above the limit of {limit:,}; try --dtype int6 or "
            "--embed-dtype int8",
            err=True,
        )
        raise click.exceptions.Exit(1)

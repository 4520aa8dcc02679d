"""`tiebeam merge`: write a base with PEFT adapters merged into it."""

from __future__ import annotations

from contextlib import closing

import click

from tiebeam.cli.progress import Progress
from tiebeam.cli.surgical import print_outcome, print_plan


@click.command(short_help="Merge PEFT adapters into their base, tied or untied.")
@click.argument("base", metavar="BASE")
@click.argument("paths", metavar="ADAPTER... DST", nargs=-1, required=True)
@click.option(
    "--weight", type=float, multiple=True, metavar="W",
    help="Scale an adapter's change. Repeatable: one for each ADAPTER, in the same order.",
)  # fmt: skip
@click.option(
    "--pair", type=click.Choice(["embed", "head"]),
    help="If the adapter changes embedding and head of a tied base differently: stay tied, with the matrix of this "
    "end. The cost is measured. Without it the result is untied.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show every change and write nothing; DST may be left out.")
@click.option("--force", is_flag=True, help="Replace DST if it is a model.")
@click.option(
    "--link", is_flag=True,
    help="Hard-link weight files that do not change instead of copying them. BASE and DST then have these files in "
    "common, so never edit one in place.",
)  # fmt: skip
@click.option("--no-proof", is_flag=True, help="Do not run the base with the adapter against the merged model.")
@click.option(
    "--engine", type=click.Choice(["auto", "numpy", "transformers"]), default="auto", show_default=True,
    help="What runs the models: auto takes numpy where it knows the family, else transformers (extra [hf]).",
)  # fmt: skip
@click.option("--device", metavar="DEVICE", help="torch device of the transformers engine, such as cuda or mps.")
@click.option(
    "--dtype", type=click.Choice(["F32", "F16", "BF16"]), default="F32", show_default=True,
    help="GGUF to safetensors: dequantize the weights to this dtype.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def command(
    base: str, paths: tuple[str, ...], weight: tuple[float, ...], pair: str | None, dry_run: bool, force: bool,
    link: bool, no_proof: bool, engine: str, device: str | None, dtype: str, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Write DST: the model BASE with the PEFT adapters ADAPTER... merged into it.

    LoRA on layers, embedding and head (rank and alpha patterns, rsLoRA, DoRA, Conv1D), full copies (modules_to_save)
    and single rows (trainable_token_indices). One tensor at a time is in memory; neither peft nor torch is needed.

    The result computes what BASE with the adapter computes. An adapter that changes one end of a tied BASE therefore
    makes it untied: both matrices are stored and the config says so. --pair keeps it tied.

    \b
    tiebeam merge ./smollm2 ./adapter ./merged
    tiebeam merge ./smollm2 ./adapter --dry-run
    tiebeam merge ./smollm2 ./adapter ./merged --pair head
    tiebeam merge ./base ./style ./facts ./merged --weight 0.7 --weight 0.3
    tiebeam merge model-f16.gguf ./adapter merged.gguf

    DST appears complete or not at all. BASE and ADAPTER are never changed.
    """
    from tiebeam.checkpoint.adapter_files import is_adapter
    from tiebeam.surgery import checked_target, execute, open_source
    from tiebeam.surgery.merge import open_adapters, plan_merge

    names_target = not (dry_run and is_adapter(paths[-1]))
    adapters, target = (paths[:-1], paths[-1]) if names_target else (paths, None)
    if not adapters or (target is not None and is_adapter(target)):
        raise click.UsageError("name BASE, at least one ADAPTER, and DST (or pass --dry-run)")
    with closing(Progress(quiet or as_json)) as progress:
        parts = open_adapters(adapters, weight or None)
        opened = open_source(base, target=target, dtype=dtype)
        where = None if dry_run or target is None else checked_target(opened, target, force)
        progress("reading the adapter", 0, 1)
        plan = plan_merge(opened, parts, pair=pair)
        progress("reading the adapter", 1, 1)
        if where is None:
            progress.close()
            print_plan(plan, as_json)
            return
        outcome = execute(plan, where, link=link, proof=not no_proof, progress=progress, engine=engine, device=device)
    print_outcome(outcome, as_json, str(outcome.measured.get("sentence", "")))

"""`tiebeam untie`: store the LM head as its own tensor."""

from __future__ import annotations

from contextlib import closing

import click

from tiebeam.cli.progress import Progress
from tiebeam.cli.surgical import common_options, needs_target, print_nothing_to_do, print_outcome, print_plan


@click.command(short_help="Give the LM head its own tensor with the same numbers.")
@common_options
def command(
    source: str, target: str | None, dry_run: bool, force: bool, link: bool, no_proof: bool, engine: str,
    device: str | None, embed: str | None, head: str | None, dtype: str, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Write DST: the model SRC with the LM head as its own tensor, and every config level declaring it untied.

    The logits stay the same to the bit. Setting tie_word_embeddings to false in an editor is not enough: a loader then
    finds no head and initialises it at random, without an error.

    Untie to train, quantize or adapt (LoRA) embedding or head alone, or before folding the final norm into the head (as
    GPTQ and rotation-based quantizers do), which in a tied matrix would corrupt the embedding.

    \b
    tiebeam untie ./smollm2 ./smollm2-untied
    tiebeam untie ./smollm2 --dry-run
    tiebeam untie model.gguf ./model-hf --dtype BF16     GGUF to safetensors
    tiebeam untie model.gguf untied.gguf                 GGUF to GGUF

    DST appears complete or not at all. SRC is never changed.
    """
    from tiebeam.surgery import execute, open_source, plan_untie

    needs_target(target, dry_run)
    plan = plan_untie(open_source(source, embed=embed, head=head, target=target, dtype=dtype))
    if plan.nothing_to_do:
        print_nothing_to_do(plan, as_json, dry_run)
    elif dry_run or target is None:
        print_plan(plan, as_json)
    else:
        with closing(Progress(quiet or as_json)) as progress:
            outcome = execute(
                plan,
                target,
                force=force,
                link=link,
                proof=not no_proof,
                progress=progress,
                engine=engine,
                device=device,
            )
        print_outcome(outcome, as_json)

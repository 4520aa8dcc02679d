"""`tiebeam untie`: the head becomes its own tensor."""

from __future__ import annotations

import click

from tiebeam.cli.surgical import common_options, print_outcome, print_plan, watching


@click.command(short_help="Give the head its own tensor, the same numbers.")
@common_options
def command(
    source: str, target: str | None, dry_run: bool, force: bool, link: bool, no_proof: bool, embed: str | None,
    head: str | None, dtype: str, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Write DST: the model of SRC with the head as a tensor of its own, and every config level saying so.

    Exact: the logits do not change by a bit. Flipping tie_word_embeddings in an editor is not this: a loader then
    finds no head and starts a random one.

    Untie before the two ends must part: to train or to quantise the head alone, to add a LoRA to one of them, or to
    fold the final norm into the head (as GPTQ and rotation-based quantisers do), which in a tied matrix would corrupt
    the lookup.

    \b
    tiebeam untie ./smollm2 ./smollm2-untied
    tiebeam untie ./smollm2 --dry-run
    tiebeam untie model.gguf ./model-hf --dtype BF16     GGUF in, safetensors out
    tiebeam untie model.gguf untied.gguf                 GGUF stays GGUF

    DST appears complete or not at all; SRC is never touched.
    """
    from tiebeam.surgery import How, carry_out, open_case, plan_untie

    if target is None and not dry_run:
        raise click.UsageError("name DST, or pass --dry-run")
    plan = plan_untie(open_case(source, embed=embed, head=head, target=target, dtype=dtype))
    if dry_run:
        print_plan(plan, as_json)
        return
    assert target is not None
    with watching(quiet or as_json) as watch:
        outcome = carry_out(plan, target, How(force=force, link=link, prove=not no_proof, watch=watch))
    print_outcome(outcome, as_json)

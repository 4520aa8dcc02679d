"""The lines of Python that train the new rows, and only those, of a tied or untied pair with PEFT."""

from __future__ import annotations

from collections.abc import Sequence

from tiebeam.inspection import Report
from tiebeam.pair import Tie
from tiebeam.surgery.packed_parts import layer_of

_IN_MEMORY = {"embed_out": "lm_head"}  # gpt_neox: stored as the first, called the second by transformers 5


def peft_lines(report: Report, ids: Sequence[int]) -> tuple[str, ...]:
    """For a model that transformers runs as a causal language model; nothing for others.

    Of a tied pair the embedding's rows are named, and PEFT gives them to the head too. `ensure_weight_tying` is for
    other kinds of adapters: here it changes nothing, and PEFT 0.21 warns about it. Of an untied pair both are
    named.
    """
    if report.format == "gguf" or not ids or report.pair.embed is None or report.tie is Tie.NONE:
        return ()
    rows = _ids(ids)
    if report.tied or report.pair.head is None:
        trained = f"trainable_token_indices={rows}"
    else:
        names = [layer_of(matrix.name).rpartition(".")[2] for matrix in (report.pair.embed, report.pair.head)]
        embed, head = (_IN_MEMORY.get(name, name) for name in names)
        trained = f'trainable_token_indices={{"{embed}": {rows}, "{head}": {rows}}}'
    return (
        "from peft import LoraConfig, get_peft_model",
        'config = LoraConfig(target_modules="all-linear",',
        f"                    {trained})",
        "model = get_peft_model(model, config)",
    )


def _ids(ids: Sequence[int]) -> str:
    ordered = sorted(ids)
    if len(ordered) > 8 and ordered[-1] - ordered[0] + 1 == len(ordered):
        return f"list(range({ordered[0]}, {ordered[-1] + 1}))"
    return str(ordered)

"""`trim`: keep the tokens that a text uses, in everything that has the vocabulary as a dimension."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tiebeam._fs import check_replaceable, write_bytes
from tiebeam._fs.targets import Kind
from tiebeam.checkpoint import Checkpoint
from tiebeam.surgery.execute import checked_target, execute
from tiebeam.surgery.plan import Outcome, Progress
from tiebeam.surgery.source import open_source
from tiebeam.surgery.trim.ladder import MEASURED_TOKENS, Ladder
from tiebeam.surgery.trim.plan_trim import Trimming, plan_trim, prepare
from tiebeam.tokenizer.torch_token_map import token_map_bytes

__all__ = ["Ladder", "Trimming", "check_hot_rows", "plan_trim", "prepare", "trim", "write_hot_rows"]


def trim(
    source: str | os.PathLike[str] | Checkpoint,
    target: str | os.PathLike[str],
    *,
    text: Sequence[str | Path],
    keep: int | None = None,
    coverage: float | None = None,
    keep_tokens: Sequence[str] = (),
    pad_to_multiple_of: int | None = None,
    hot_rows: str | os.PathLike[str] | None = None,
    ladder: bool | Sequence[int] = False,
    tokens: int = MEASURED_TOKENS,
    dtype: str = "F32",
    embed: str | None = None,
    head: str | None = None,
    force: bool = False,
    link: bool = False,
    proof: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> Outcome:
    """Write `target`: `source` with the tokens that `text` uses, and without the other rows.

        outcome = tiebeam.trim("./smollm2", "./smollm2-16k", text=["prose.txt"], keep=16384)
        outcome.facts["parameters"], outcome.facts["selection"]["coverage"]

    text                 UTF-8 files, or directories of them; a tenth is held out
    keep                 rows of the result
    coverage             or: keep the fewest rows whose tokens are this share of the text's
    keep_tokens          texts whose tokens stay in any case
    pad_to_multiple_of   the number of rows is a multiple of this; more tokens stay
    hot_rows             also write the kept ids of `source` by frequency, for SGLang's --speculative-token-map
    ladder               True, or numbers of rows: measure what these sizes cost first, in facts["ladder"]
    tokens               how many tokens of held-out text the model runs on for each size
    dtype                of the weights if a GGUF becomes a Hugging Face directory: "F32", "F16" or "BF16"
    embed, head          tensor names, for an architecture that tiebeam does not know
    force, link, proof, durable, progress, engine, device   see `tiebeam.surgery.execute`

    Raises BadRequest if the rows cannot be chosen so, ProofFailed if the written model is not as planned. `source` is
    never changed; `target` appears complete or not at all.
    """
    opened = open_source(source, embed=embed, head=head, target=target, dtype=dtype)
    where = checked_target(opened, target, force)
    if hot_rows is not None:
        check_hot_rows(hot_rows, force)
    trimming = prepare(opened, text, keep_tokens=keep_tokens, progress=progress)
    selection = trimming.select(keep, coverage, pad_to_multiple_of)
    table = None
    if ladder:
        sizes = None if ladder is True else ladder
        table = trimming.ladder([selection], sizes, tokens=tokens, progress=progress, engine=engine, device=device)
    plan = plan_trim(trimming, selection, table)
    outcome = execute(
        plan, where, link=link, proof=proof, durable=durable, progress=progress, engine=engine, device=device
    )
    if hot_rows is not None:
        write_hot_rows(hot_rows, trimming.hot_ids(selection), durable)
    return outcome


_TOKEN_MAP = Kind("a token map", lambda path: path.is_file() and path.open("rb").read(2) == b"PK")


def check_hot_rows(path: str | os.PathLike[str], force: bool = False) -> None:
    """Refuse a path that exists, unless with `force` it is a file of that kind."""
    check_replaceable(Path(path), force, _TOKEN_MAP)


def write_hot_rows(path: str | os.PathLike[str], ids: Sequence[int], durable: bool = True) -> None:
    """Write ids as SGLang's --speculative-token-map reads them."""
    write_bytes(Path(path), token_map_bytes(ids), durable)

"""Plan new rows and new tokens, or the repair of untrained rows, as an edit that the executor streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput
from tiebeam.inspection import Report
from tiebeam.inspection.row_health import UNTRAINED, classify_rows
from tiebeam.pair import Tie
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.extend.extend_proof import new_row_effect, tokenizer_problem
from tiebeam.surgery.extend.initial_rows import Init, NewRow, initial_rows, read_init, rows_to_fill, trained_rows
from tiebeam.surgery.extend.peft_lines import peft_lines
from tiebeam.surgery.extend.requested_tokens import CHAT, check_tokens
from tiebeam.surgery.output_shards import is_directory
from tiebeam.surgery.plan import Plan
from tiebeam.surgery.source import Source
from tiebeam.surgery.tables_to_change import tables_to_change
from tiebeam.surgery.vocabulary_rows import VocabularyTable, plan_rows
from tiebeam.tokenizer import Tokenizer, open_tokenizer
from tiebeam.tokenizer.add_tokens import (
    NewToken,
    add_to_files,
    add_to_gguf,
    free_ids,
    with_changes,
    without_tokens,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_ROWS = 1 << 26


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked for, after the checks: tokens with their ids, and the rows of the result."""

    tokens: tuple[NewToken, ...]
    size: int
    notes: tuple[str, ...]


def plan_extend(
    source: Source,
    *,
    tokens: Sequence[str] = (),
    special: bool = False,
    chat: str | None = None,
    rows: int | None = None,
    pad_to_multiple_of: int | None = None,
    init: str = "mean",
    engine: str = "auto",
    device: str | None = None,
) -> Plan:
    """Plan to add tokens and rows. The logits of the old ids stay equal to the bit. Arguments as in `extend`."""
    import numpy as np

    how = read_init(init)
    texts = check_tokens(tokens)
    tables, once = tables_to_change(source)
    old = source.report.vocabulary.rows or 0
    tokenizer = _tokenizer(source)
    request = _request(source, texts, special, chat, rows, pad_to_multiple_of, tokenizer)
    nothing = _nothing_to_do(source, request, old)
    if nothing:
        return Plan("extend", source, Edit(), lambda report: None, nothing_to_do=nothing)
    added, documents, metadata = request.tokens, _documents(source, request), _metadata(source, request)
    changed = _changed_tokenizer(source, added, documents, metadata)
    new_ids = np.array(sorted({t.id for t in added if t.id < old} | set(range(old, request.size))), np.int64)
    order = np.concatenate([np.arange(old), np.zeros(request.size - old, np.int64)])
    order[new_ids] = -1 - np.arange(len(new_ids))
    named = {**_texts_without_rows(source, old), **{token.id: token.text for token in added}}
    fill = rows_to_fill(how, [named.get(i) for i in new_ids.tolist()], _splitter(source, tokenizer, named, added, how))
    edit = plan_rows(source, order, _values(source, tables, fill), tables)
    edit = edit | once | Edit(documents=documents, gguf=metadata, documented=dict.fromkeys(documents, _listed(added)))
    kept = np.setdiff1d(np.arange(old), new_ids)
    told = [i for i in new_ids.tolist() if i in named]
    lines = peft_lines(source.report, told)
    return Plan(
        "extend",
        source,
        edit,
        partial(_problem, source, request, tokenizer if changed else None),
        notes=request.notes,
        measure=partial(new_row_effect, kept=kept, new=new_ids, engine=engine, device=device) if len(new_ids) else None,
        kept=(kept, kept),
        facts={
            "tokens": [{**token.to_dict(), "row": "padding" if token.id < old else "new"} for token in added],
            "rows": {"before": old, "after": request.size},
            "init": str(how),
            "peft": list(lines),
        },
    )


def plan_repair(source: Source, *, init: str = "mean", engine: str = "auto", device: str | None = None) -> Plan:
    """Plan to fill the rows that hold nothing learned (zero, NaN, equal, never moved), and to change nothing else."""
    import numpy as np

    how = read_init(init)
    tables, once = tables_to_change(source)
    vocabulary = source.report.vocabulary
    count, texts = vocabulary.rows or 0, vocabulary.tokens
    tokenizer = _tokenizer(source)
    edit = Edit()
    repaired: set[int] = set()
    for table in (table for table in tables if table.role != "bias"):
        broken = _broken_rows(source, table)
        if len(broken) > table.rows // 2:
            raise BadRequest(
                f"{len(broken):,} of {table.rows:,} rows of {table.name} hold nothing learned; there is too little to "
                "repair them from"
            )
        if texts is not None and not source.is_gguf:  # a row of padding is only repaired if it breaks the others
            broken = {i: kind for i, kind in broken.items() if texts.text(i) is not None or kind in ("nan", "inf")}
        if not broken:
            continue
        named = [texts.text(i) if texts is not None else str(i) for i in broken]
        fill = rows_to_fill(how, named, tokenizer)
        order = np.arange(table.rows)
        order[list(broken)] = -1 - np.arange(len(broken))
        edit = edit | plan_rows(source, order, _values(source, [table], fill), [table])
        repaired |= broken.keys()
    edit = edit | once if edit else edit
    rows = sorted(repaired)
    kept = np.setdiff1d(np.arange(count), rows)
    return Plan(
        "extend --repair",
        source,
        edit,
        partial(_problem, source, _Request((), count, ()), None),
        nothing_to_do="" if edit else f"{source.report.model} has no untrained rows to repair",
        measure=partial(new_row_effect, kept=kept, new=np.array(rows), engine=engine, device=device) if rows else None,
        kept=(kept, kept),
        facts={"repaired": rows, "init": str(how), "peft": list(peft_lines(source.report, rows))},
    )


def _broken_rows(source: Source, table: VocabularyTable) -> dict[int, str]:
    """row: why it needs a repair, in the order of the rows."""
    _, kinds = classify_rows(source.checkpoint, table.stored, source.report.vocabulary.tokenizer_ids)
    return dict(sorted((row, kind) for kind in UNTRAINED for row in kinds.get(kind, ())))


def _tokenizer(source: Source) -> Tokenizer | None:
    """None: there is none, or it is one that cannot be run here."""
    try:
        return open_tokenizer(source.checkpoint)
    except UnreadableInput:
        return None


def _request(
    source: Source,
    texts: list[str],
    special: bool,
    chat: str | None,
    rows: int | None,
    multiple: int | None,
    tokenizer: Tokenizer | None,
) -> _Request:
    vocabulary, model = source.report.vocabulary, source.report.model
    old, ids = vocabulary.rows or 0, vocabulary.tokenizer_ids
    if chat is not None and chat not in CHAT:
        raise BadRequest(f"chat must be one of {', '.join(CHAT)}, not {chat!r}")
    for name, number in (("rows", rows), ("pad_to_multiple_of", multiple)):
        if number is not None and not 0 < number <= _MOST_ROWS:
            raise BadRequest(f"{name} must be between 1 and {_MOST_ROWS:,}, not {number}")
    wanted = [(text, special) for text in texts]
    notes = []
    for text in CHAT[chat] if chat else ():
        if _id_of(source, text, tokenizer) is not None:
            notes.append(f"{text} exists already (id {_id_of(source, text, tokenizer):,})")
        elif text not in texts:
            wanted.append((text, True))
    if not wanted and rows is None and multiple is None and not chat:
        raise BadRequest("there is nothing to add; give tokens, rows=N or pad_to_multiple_of=M")
    if wanted:
        if ids is None:
            raise BadRequest(f"{model} has no tokenizer that tokens could be added to; add its tokenizer.json first")
        if ids > old:
            raise BadRequest(
                f"the tokenizer of {model} has {ids:,} ids and the table {old:,} rows; give these tokens rows first, "
                f"with rows={ids}"
            )
        if not source.is_gguf and not is_directory(source.checkpoint):
            raise BadRequest(f"{model} is a single file; name the directory, so that its tokenizer is changed too")
        _refuse_existing(source, [text for text, _ in wanted], tokenizer)
    free = free_ids(source.checkpoint, len(wanted), ids or old)
    tokens = tuple(NewToken(text, i, kind) for (text, kind), i in zip(wanted, free, strict=True))
    needed = max([old, *(token.id + 1 for token in tokens)])
    if rows is not None and rows < needed:
        raise BadRequest(f"rows={rows} is less than the {needed:,} rows that the model needs; rows are only added")
    size = max(needed, rows or 0)
    if multiple:
        size = -(-size // multiple) * multiple
    return _Request(tokens, size, tuple(notes))


def _id_of(source: Source, text: str, tokenizer: Tokenizer | None) -> int | None:
    """The id of a text that is one token already."""
    if tokenizer is not None:
        known = tokenizer.backend.token_to_id(text)
        if known is not None:
            return int(known)
        pieces = tokenizer.backend.encode(text, add_special_tokens=False).ids
        return int(pieces[0]) if len(pieces) == 1 and tokenizer.decode(pieces) == text else None
    return _ids_by_text(source).get(text)


def _ids_by_text(source: Source) -> dict[str, int]:
    tokens = source.report.vocabulary.tokens
    texts = ((tokens.text(i), i) for i in range(tokens.size)) if tokens else ()
    return {text: i for text, i in texts if text is not None}


def _refuse_existing(source: Source, texts: Sequence[str], tokenizer: Tokenizer | None) -> None:
    listed = _ids_by_text(source) if tokenizer is None else {}
    for text in texts:
        known = _id_of(source, text, tokenizer) if tokenizer is not None else listed.get(text)
        if known is not None:
            raise BadRequest(f"the token {text!r} exists already (id {known:,}); leave it out")


def _nothing_to_do(source: Source, request: _Request, old: int) -> str:
    listed = source.report.vocabulary.tokenizer_ids
    short = source.is_gguf and listed is not None and listed < request.size  # llama.cpp needs a token for each row
    if request.tokens or request.size > old or short:
        return ""
    why = f"; {'; '.join(request.notes)}" if request.notes else ""
    return f"{source.report.model} has {old:,} rows already{why}"


def _documents(source: Source, request: _Request) -> Mapping[str, bytes]:
    return {} if source.is_gguf or not request.tokens else add_to_files(source.checkpoint, request.tokens)


def _listed(tokens: Sequence[NewToken]) -> str:
    shown = ", ".join(f"{token.text} = {token.id}" for token in tokens[:4])
    return f"+ {shown}" + (f" and {len(tokens) - 4:,} more" if len(tokens) > 4 else "")


def _metadata(source: Source, request: _Request) -> dict[str, Any]:
    if not source.is_gguf or "tokenizer.ggml.tokens" not in source.checkpoint.metadata:
        return {}
    return add_to_gguf(source.checkpoint.metadata, request.tokens, request.size)


def _changed_tokenizer(
    source: Source, tokens: Sequence[NewToken], documents: Mapping[str, bytes], metadata: Mapping[str, Any]
) -> Tokenizer | None:
    """The tokenizer with the new tokens, if it can be run; refuses if it does not take them."""
    if not tokens:
        return None
    try:
        changed = with_changes(source.checkpoint, documents, metadata)
    except UnreadableInput:
        if source.is_gguf:
            return None  # a kind of tokenizer that is not run here; its list of tokens still grows
        raise
    problem = tokenizer_problem(changed, tokens)
    if problem:
        raise BadRequest(f"the tokenizer of {source.report.model} cannot take this token: {problem}")
    return changed


def _texts_without_rows(source: Source, old: int) -> dict[int, str]:
    """The tokens of the source whose ids are beyond the table."""
    tokens = source.report.vocabulary.tokens
    if tokens is None:
        return {}
    return {i: text for i in range(old, tokens.size) if (text := tokens.text(i)) is not None}


def _splitter(
    source: Source, tokenizer: Tokenizer | None, named: Mapping[int, str], added: Sequence[NewToken], init: Init
) -> Tokenizer | None:
    """The tokenizer that splits the new tokens into pieces: without those that the source already lists."""
    listed = [text for i, text in named.items() if i not in {token.id for token in added}]
    if not listed or init.kind == "mean" or source.is_gguf or tokenizer is None:
        return tokenizer
    return without_tokens(source.checkpoint, listed)


def _values(
    source: Source, tables: Sequence[VocabularyTable], fill: Sequence[NewRow]
) -> dict[str, NDArray[np.float32]]:
    """table: the values of its new rows. The rows of a bias follow those of the head, or of the embedding."""
    checkpoint, ids = source.checkpoint, source.report.vocabulary.tokenizer_ids
    untied = source.report.tie is Tie.UNTIED
    trained = {table.name: trained_rows(checkpoint, table, ids) for table in tables if table.role != "bias"}
    scores = next((table.name for table in tables if table.role == "head"), next(iter(trained), ""))
    streams = {"head": "head" if untied else "", "per-layer": "per-layer"}
    return {
        table.name: initial_rows(
            checkpoint, table, fill, trained.get(table.name) or trained[scores], streams.get(table.role, "")
        )
        for table in tables
    }


def _problem(source: Source, request: _Request, before: Tokenizer | None, report: Report) -> str | None:
    """What is wrong with the written model; None if it is as planned. `before` is the old tokenizer."""
    from tiebeam.checkpoint import open_checkpoint

    vocabulary = report.vocabulary
    if report.tie is not source.report.tie:
        return f"its pair is {report.tie}, not {source.report.tie}"
    if vocabulary.rows != request.size:
        return f"its table has {vocabulary.rows} rows, not {request.size}"
    if vocabulary.vocab_size not in (None, request.size):
        return f"its vocab_size is {vocabulary.vocab_size}, not {request.size}"
    if not request.tokens or before is None:
        return None
    try:
        after = open_tokenizer(open_checkpoint(report.model))
    except TiebeamError as error:
        return f"its tokenizer cannot be read ({error})"
    assert after is not None
    return tokenizer_problem(after, request.tokens, before)

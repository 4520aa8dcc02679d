"""The vocabulary tensors of a model whose rows are to change: checked, and each storage once."""

from __future__ import annotations

from tiebeam.errors import BadRequest
from tiebeam.pair import Tie
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.pair_edits import drop_followers, drop_head
from tiebeam.surgery.source import Source
from tiebeam.surgery.vocabulary_rows import VocabularyTable, vocabulary_tables


def tables_to_change(source: Source, converting: bool = False) -> tuple[tuple[VocabularyTable, ...], Edit]:
    """The tables without second names of one storage (a PyTorch file of a tied model), and the edit that drops them.

    Refuses a model whose files and config disagree. `converting` as in `vocabulary_tables`.
    """
    report = source.report
    if report.tie in (Tie.TORN, Tie.HEADLESS, Tie.SWAPPED):
        raise BadRequest(
            f"{report.model} is {report.tie}: its files and its config disagree about the head; repair that first: "
            f"tiebeam doctor {report.model}"
        )
    tables, vocabulary = vocabulary_tables(source, converting), report.vocabulary
    declared = vocabulary.vocab_size
    if declared is not None and declared != vocabulary.rows:
        raise BadRequest(
            f"vocab_size is {declared:,} and the table has {vocabulary.rows or 0:,} rows; repair that first: "
            f"tiebeam doctor {report.model} --fix --out DST"
        )
    if source.head is None or not report.pair.one_storage:
        return tables, Edit()
    edit = drop_head(source) | drop_followers(source)
    return tuple(table for table in tables if table.name not in edit.drop), edit

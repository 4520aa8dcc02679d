"""Embedding and head of a model by rows, without its layers.

Rows are read from the file when needed, so a table of any size costs one block of memory. The final norm and the
scales come from the model's family. For a family that the numpy engine does not have, the final norm comes from
transformers; without that, the tables are used as stored, with a note.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiebeam.checkpoint import Checkpoint
from tiebeam.decode.numpy.blocks import load_norm
from tiebeam.decode.numpy.load_weights import Weights
from tiebeam.decode.numpy.runnable import model_config, names_for, spec_of
from tiebeam.decode.numpy.vocab_tables import open_tables as open_vocab_tables
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput
from tiebeam.families import Scales, lookup, scales
from tiebeam.inspection import inspect
from tiebeam.pair import Tie
from tiebeam.tokenizer.load import Tokenizer, open_tokenizer

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
NO_SCALES = Scales()
Reader = Callable[[Ids], Rows]  # [n] -> [n, D]


@dataclass(frozen=True)
class VocabTables:
    """Both tables by rows, and what the model applies between them besides its layers."""

    vocab: int
    embed_rows: Reader
    head_rows: Reader
    scales: Scales = NO_SCALES
    final_norm: Callable[[Rows], Rows] = lambda x: x
    tokenizer: Tokenizer | None = None
    notes: tuple[str, ...] = ()

    def spell(self, token: int) -> str | None:
        """The token's text with its leading space, which SentencePiece decoders drop; None without a tokenizer."""
        if self.tokenizer is None or token >= self.tokenizer.size:
            return None
        text, stored = self.tokenizer.decode([token]), self.tokenizer.backend.id_to_token(token)
        return " " + text if stored and stored.startswith("▁") and not text.startswith(" ") else text

    def encode(self, text: str) -> list[int]:
        """Text -> token ids, without start tokens and without the space that SentencePiece puts before a text."""
        if self.tokenizer is None:
            raise BadRequest("this model has no tokenizer; give tokens as ids, #123")
        backend = self.tokenizer.backend
        for mark in ("▁", "Ġ"):
            whole = backend.token_to_id(text.replace(" ", mark))
            if whole is not None:
                return [int(whole)]
        return list(backend.encode(text, add_special_tokens=False).ids)


def open_tables(
    checkpoint: Checkpoint, embed: str | None = None, head: str | None = None, *, with_norm: bool = True
) -> VocabTables:
    """The tables of an open checkpoint; `embed` and `head` name the tensors where they cannot be found.

    Without `with_norm`, transformers is not used for a final norm that the numpy engine does not have.
    """
    notes = []
    factors = _table_scales(checkpoint)
    norm: Callable[[Rows], Rows] = no_norm
    readers: tuple[Reader, Reader] | None = None
    vocab = 0
    try:
        config, where = model_config(checkpoint)
        spec = spec_of(config, where)
        names = names_for(spec.family, checkpoint.format, checkpoint.tensors)
        weights = Weights(checkpoint, "float32")
        norm = load_norm(weights, spec, names, names.prefix + names.final_norm)
        factors = spec.scales
        if spec.table_maps or "tiebeam" in config:  # rows pass through a map: small models, read whole
            one, two, _ = open_vocab_tables(weights, spec, names, config, embed, head)
            readers, vocab = (one.lookup, two.lookup), two.vocab
    except TiebeamError as error:
        reason = str(error)
        try:
            if with_norm:
                norm = _norm_by_transformers(checkpoint)
        except TiebeamError as also:
            reason = f"{error}; {also}"
        if norm is no_norm:
            without = "without a final norm" if factors is not None else "without a final norm or scales"
            notes.append(f"the tables are used as stored, {without}: {reason}")
    if readers is None:
        pair = inspect(checkpoint, embed=embed, head=head).pair
        if pair.tie is Tie.NONE or pair.tie is Tie.HEADLESS:
            raise UnreadableInput(f"{checkpoint.source} is {pair.tie}: {pair.tie.meaning}; it has no direct path")
        one_name = (pair.embed or pair.head).name  # type: ignore[union-attr]
        two_name = (pair.head or pair.embed).name  # type: ignore[union-attr]
        readers = _reader(checkpoint, one_name), _reader(checkpoint, two_name)
        vocab = min(checkpoint.tensors[name].shape[0] for name in (one_name, two_name))
    return VocabTables(vocab, *readers, factors or NO_SCALES, norm, _tokenizer(checkpoint), tuple(notes))


def _table_scales(checkpoint: Checkpoint) -> Scales | None:
    """The scales of an architecture that the decoder may not run; None where they are not known."""
    config = checkpoint.config or {}
    model_type = config.get("model_type")
    architecture = lookup(model_type) if isinstance(model_type, str) else None
    try:
        return None if architecture is None else scales(config, architecture)
    except UnreadableInput:
        return None


def _norm_by_transformers(checkpoint: Checkpoint) -> Callable[[Rows], Rows]:
    from tiebeam.decode.transformers import final_norm

    return final_norm(checkpoint)


def no_norm(x: Rows) -> Rows:
    """Placeholder for an unknown final norm."""
    return x


def _reader(checkpoint: Checkpoint, name: str) -> Reader:
    """A function that reads rows by id; neighbouring rows are read together."""

    def read(ids: Ids) -> Rows:
        out = np.empty((len(ids), checkpoint.tensors[name].shape[1]), np.float32)
        cuts = np.flatnonzero(np.diff(ids) != 1) + 1
        for run in np.split(np.arange(len(ids)), cuts):
            if len(run):
                first = int(ids[run[0]])
                out[run] = checkpoint.rows(name, first, first + len(run))
        return out

    return read


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    try:
        return open_tokenizer(checkpoint)
    except TiebeamError:
        return None

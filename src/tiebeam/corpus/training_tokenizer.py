"""Text <-> tokens, and how many bytes of text each token stands for.

The default is a byte-level BPE trained on the corpus itself: all 256 bytes are in its alphabet, so any text comes
back exactly. A tokenizer.json (byte-level, or sentencepiece's kind with its "▁") or a sentencepiece model can be
given instead. Others (WordPiece) are refused: their tokens do not say which bytes they stand for, and then a loss
per token is no loss per byte.

Text that looks like a special token stays text: only the boundary between documents is ever written as one.

Tokenizers with a dummy prefix put a space before every text. The space that opens a document is not in the text, so
it is not counted (parameter-golf counts the same way); where a later piece of a document begins with a space, that
space is left to the prefix, so that the pieces of a document have the tokens of the whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tiebeam.corpus.shards import Tokens, token_dtype
from tiebeam.corpus.text_sources import BOUNDARY, Piece
from tiebeam.errors import BadRequest, MissingExtra, UnreadableInput

LARGEST_FILE = 256 << 20
SMALLEST_VOCAB = 257  # every byte and the boundary
_BOUNDARIES = (BOUNDARY, "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>", "<s>", "<bos>")
_BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f]{2}>\Z")


class Tokenizer(Protocol):
    """What the rest of the room needs of a tokenizer."""

    kind: str
    filename: str
    raw: bytes  # the file itself
    vocab: int
    boundary: int
    boundary_text: str
    bytes_per_token: npt.NDArray[np.int64]  # [V]; 0 for tokens that stand for no text
    leading_space: npt.NDArray[np.bool_]  # [V]; tokens whose first byte is the dummy prefix when they open a document

    def encode(self, pieces: Sequence[Piece]) -> list[Tokens]: ...

    def decode(self, tokens: Iterable[int]) -> str: ...


def bytes_of(tokenizer: Tokenizer, targets: Tokens, previous: Tokens) -> int:  # [N], [N] -> bytes
    """How many bytes of text the targets stand for, each after its previous token."""
    table = tokenizer.bytes_per_token
    unwritten = tokenizer.leading_space[targets] & (table[previous] == 0)
    return int(table[targets].sum() - unwritten.sum())


def train_bpe(texts: Iterable[str], vocab: int) -> JsonTokenizer:
    """A byte-level BPE with at most `vocab` tokens (fewer when the text has no more pairs to merge)."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    assert vocab >= SMALLEST_VOCAB
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[BOUNDARY],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return JsonTokenizer(tokenizer.to_str(pretty=True).encode(), BOUNDARY)


def open_tokenizer(path: str | os.PathLike[str], boundary: str | None = None) -> Tokenizer:
    """A tokenizer.json, a sentencepiece .model, or a directory that holds one of them."""
    place = Path(path).expanduser()
    if place.is_dir():
        found = [place / name for name in ("tokenizer.json", "tokenizer.model") if (place / name).is_file()]
        if not found:
            raise UnreadableInput(f"{place} holds neither tokenizer.json nor tokenizer.model")
        place = found[0]
    try:
        size = place.stat().st_size
        if size > LARGEST_FILE:
            raise UnreadableInput(f"{place} is {size:,} bytes; a tokenizer above {LARGEST_FILE:,} is not believed")
        raw = place.read_bytes()
    except OSError as error:
        raise UnreadableInput(f"the tokenizer {place} cannot be read: {error.strerror or error}") from None
    if raw.lstrip()[:1] == b"{":
        return JsonTokenizer(raw, boundary, str(place))
    return SentencePieceTokenizer(raw, boundary, str(place))


class JsonTokenizer:
    """A tokenizer.json, run by `tokenizers`."""

    filename = "tokenizer.json"

    def __init__(self, raw: bytes, boundary: str | None = None, where: str = "tokenizer.json") -> None:
        import tokenizers

        try:
            spec = json.loads(raw)
            self._tokenizer = tokenizers.Tokenizer.from_str(raw.decode())
        except Exception as error:  # the library raises Exception itself
            raise UnreadableInput(f"{where} is not a tokenizer that `tokenizers` can read: {error}") from None
        self.raw = raw
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # text that looks like a special token stays text
        texts = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab = max(texts.values()) + 1
        self.kind, marker = _spelling(spec, where)
        self.boundary = _boundary(boundary, texts, where)
        self.boundary_text = str(self._tokenizer.id_to_token(self.boundary))

        silent = {token["content"] for token in spec.get("added_tokens", []) if token.get("special")}
        silent.add(spec["model"].get("unk_token"))
        added = {token["content"] for token in spec.get("added_tokens", [])}
        self.bytes_per_token = np.zeros(self.vocab, np.int64)
        self.leading_space = np.zeros(self.vocab, bool)
        opening = self._tokenizer.encode("a", add_special_tokens=False).tokens
        self._prefix = bool(opening) and opening[0].startswith(marker)
        for text, token in texts.items():
            if text in silent:
                continue
            if text in added:
                self.bytes_per_token[token] = len(text.encode())
            elif self.kind == "byte-level":
                self.bytes_per_token[token] = len(text)  # one character for each byte
            else:
                self.bytes_per_token[token] = 1 if _BYTE_PIECE.match(text) else len(text.replace("▁", " ").encode())
            self.leading_space[token] = self._prefix and text not in added and text.startswith(marker)

    def encode(self, pieces: Sequence[Piece]) -> list[Tokens]:
        """Tokens of each piece, all cores at work."""
        texts = _without_prefixed_space(pieces) if self._prefix else [piece.text for piece in pieces]
        dtype = token_dtype(self.vocab)
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=dtype) for encoding in encoded]

    def decode(self, tokens: Iterable[int]) -> str:
        return self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False)


class SentencePieceTokenizer:
    """A sentencepiece model, run by `sentencepiece`."""

    kind = "sentencepiece"
    filename = "tokenizer.model"

    def __init__(self, raw: bytes, boundary: str | None = None, where: str = "tokenizer.model") -> None:
        try:
            import sentencepiece
        except ImportError:
            raise MissingExtra(f"{where} (a sentencepiece model)", "corpus") from None
        self.raw = raw
        self._model: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(raw)
            self.vocab = int(self._model.vocab_size())
        except (RuntimeError, TypeError, ValueError) as error:
            raise UnreadableInput(f"{where} is not a sentencepiece model: {str(error).splitlines()[0]}") from None
        texts = [self._model.id_to_piece(token) for token in range(self.vocab)]
        own = self._model.bos_id() if self._model.bos_id() >= 0 else self._model.eos_id()
        if boundary is None and own >= 0:
            self.boundary = int(own)
        else:
            self.boundary = _boundary(boundary, {text: token for token, text in enumerate(texts)}, where)
        self.boundary_text = texts[self.boundary]
        self.bytes_per_token = np.zeros(self.vocab, np.int64)
        self.leading_space = np.zeros(self.vocab, bool)
        self._prefix = (self._model.encode("a", out_type=str) or [""])[0].startswith("▁")
        for token, text in enumerate(texts):
            model = self._model
            if model.is_control(token) or model.is_unknown(token) or model.is_unused(token):
                continue
            self.bytes_per_token[token] = 1 if model.is_byte(token) else len(text.replace("▁", " ").encode())
            self.leading_space[token] = self._prefix and text.startswith("▁")

    def encode(self, pieces: Sequence[Piece]) -> list[Tokens]:
        texts = _without_prefixed_space(pieces) if self._prefix else [piece.text for piece in pieces]
        dtype = token_dtype(self.vocab)
        return [np.array(tokens, dtype=dtype) for tokens in self._model.encode(texts, out_type=int, num_threads=-1)]

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self._model.decode([int(token) for token in tokens]))


def _without_prefixed_space(pieces: Sequence[Piece]) -> list[str]:
    return [piece.text if piece.first else piece.text.removeprefix(" ") for piece in pieces]


def _spelling(spec: dict[str, Any], where: str) -> tuple[str, str]:
    """How a tokenizer.json writes bytes down, and the character it writes for a space."""
    parts = json.dumps([spec.get("decoder"), spec.get("pre_tokenizer"), spec.get("normalizer")], ensure_ascii=False)
    if '"ByteLevel"' in parts:
        return "byte-level", "Ġ"
    if "▁" in parts:
        return "metaspace", "▁"
    kind = spec.get("model", {}).get("type", "unknown")
    raise UnreadableInput(
        f"{where} is a {kind} tokenizer whose tokens do not say which bytes they stand for; "
        "give a byte-level BPE or a sentencepiece tokenizer"
    )


def _boundary(asked: str | None, texts: dict[str, int], where: str) -> int:
    for name in (asked,) if asked is not None else _BOUNDARIES:
        if name in texts:
            return texts[name]
    tried = repr(asked) if asked is not None else ", ".join(_BOUNDARIES)
    raise BadRequest(f"{where} has no token {tried} to stand between documents; name one that it has")

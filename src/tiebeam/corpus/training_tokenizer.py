"""Tokenizers of a corpus: encode, decode, and the number of text bytes of each token.

The default is a byte-level BPE trained on the corpus itself. Its alphabet has all 256 bytes, so decoding restores any
text exactly. A tokenizer.json (byte-level, or the metaspace kind with "▁") or a sentencepiece model can be given
instead. Others (WordPiece) are refused: their tokens have no fixed byte count, so a loss per token cannot be converted
to a loss per byte.

Text that looks like a special token is encoded as text: only the boundary between documents becomes a special token.

Tokenizers with a dummy prefix put a space before every text. The space that starts a document is not in the text, so
it is not counted (parameter-golf counts the same way). If a later chunk of a document begins with a space, that space
is left to the prefix, so that the chunks of a document have the tokens of the whole.
"""

from __future__ import annotations

import array
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tiebeam.corpus.shards import Tokens, token_dtype
from tiebeam.corpus.text_chunks import BOUNDARY, TextChunk
from tiebeam.errors import BadRequest, MissingExtra, UnreadableInput
from tiebeam.limits import MAX_TOKEN_IDS
from tiebeam.tokenizer.load import explaining_failure

MAX_FILE = 256 << 20
MIN_VOCAB = 257  # 256 bytes and the boundary token
_BOUNDARIES = (BOUNDARY, "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>", "<s>", "<bos>")
_BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f]{2}>\Z")


class Tokenizer(Protocol):
    """Interface of a corpus tokenizer."""

    kind: str
    filename: str
    raw: bytes  # content of the tokenizer file
    vocab: int
    boundary: int
    boundary_text: str
    bytes_per_token: npt.NDArray[np.int64]  # [V]; 0 for special tokens
    leading_space: npt.NDArray[np.bool_]  # [V]; tokens whose first byte is the dummy prefix at the start of a document

    def encode(self, chunks: Sequence[TextChunk]) -> list[Tokens]: ...

    def decode(self, tokens: Iterable[int]) -> str: ...


def bytes_of(tokenizer: Tokenizer, targets: Tokens, previous: Tokens) -> int:  # [N], [N] -> bytes
    """Number of text bytes of the targets, given the token before each."""
    table = tokenizer.bytes_per_token
    not_in_text = tokenizer.leading_space[targets] & (table[previous] == 0)
    return int(table[targets].sum() - not_in_text.sum())


def train_bpe(texts: Iterable[str], vocab: int) -> JsonTokenizer:
    """Train a byte-level BPE with at most `vocab` tokens (fewer if the text has no more pairs to merge).

    >>> train_bpe(["the beam ties the roof"] * 9, 260).vocab
    260
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    assert vocab >= MIN_VOCAB
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
    """Open a tokenizer.json, a sentencepiece .model, or a directory that holds one of them."""
    file = Path(path).expanduser()
    if file.is_dir():
        found = [file / name for name in ("tokenizer.json", "tokenizer.model") if (file / name).is_file()]
        if not found:
            raise UnreadableInput(f"{file} has neither tokenizer.json nor tokenizer.model")
        file = found[0]
    try:
        size = file.stat().st_size
        if size > MAX_FILE:
            raise UnreadableInput(
                f"{file} has {size:,} bytes, which exceeds the limit of {MAX_FILE:,}; refusing to read"
            )
        raw = file.read_bytes()
    except OSError as error:
        raise UnreadableInput(f"the tokenizer {file} cannot be read: {error.strerror or error}") from None
    if raw.lstrip()[:1] == b"{":
        return JsonTokenizer(raw, boundary, str(file))
    return SentencePieceTokenizer(raw, boundary, str(file))


class JsonTokenizer:
    """A tokenizer.json, run by `tokenizers`."""

    filename = "tokenizer.json"

    def __init__(self, raw: bytes, boundary: str | None = None, where: str = "tokenizer.json") -> None:
        import tokenizers

        with explaining_failure(f"{where} is not a tokenizer that `tokenizers` can read"):
            spec = json.loads(raw)
            self._tokenizer = tokenizers.Tokenizer.from_str(raw.decode())
        self.raw = raw
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # text that looks like a special token is encoded as text
        texts = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab = max(texts.values(), default=0) + 1
        if self.vocab > MAX_TOKEN_IDS:
            raise UnreadableInput(
                f"{where} has the token id {self.vocab - 1:,}, which exceeds the limit of {MAX_TOKEN_IDS:,}"
            )
        self.kind, marker = _byte_encoding(spec, where)
        self.boundary = _boundary(boundary, texts, where)
        self.boundary_text = str(self._tokenizer.id_to_token(self.boundary))

        special = {token["content"] for token in spec.get("added_tokens", []) if token.get("special")}
        special.add(spec["model"].get("unk_token"))
        added = {token["content"] for token in spec.get("added_tokens", [])}
        self.bytes_per_token = np.zeros(self.vocab, np.int64)
        self.leading_space = np.zeros(self.vocab, bool)
        with explaining_failure(f"{where} cannot encode text"):
            opening = self._tokenizer.encode("a", add_special_tokens=False).tokens
        self._prefix = bool(opening) and opening[0].startswith(marker)
        byte_level = self.kind == "byte-level"
        sizes: dict[int, int] = {}  # one assignment of all is faster than one per token
        for text, token in texts.items():
            if text in special:
                continue
            if text in added:
                sizes[token] = len(text.encode())
            elif byte_level:
                sizes[token] = len(text)  # one character for each byte
            else:
                sizes[token] = 1 if _BYTE_PIECE.match(text) else len(text.replace("▁", " ").encode())
            if self._prefix and text not in added and text.startswith(marker):
                self.leading_space[token] = True
        self.bytes_per_token[list(sizes)] = list(sizes.values())

    def encode(self, chunks: Sequence[TextChunk]) -> list[Tokens]:
        """Tokens of each chunk, encoded in parallel."""
        texts = _without_prefixed_space(chunks) if self._prefix else [chunk.text for chunk in chunks]
        dtype = token_dtype(self.vocab)
        with explaining_failure("the text cannot be turned into tokens"):
            encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [_as_array(encoding.ids, dtype) for encoding in encoded]

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

    def encode(self, chunks: Sequence[TextChunk]) -> list[Tokens]:
        texts = _without_prefixed_space(chunks) if self._prefix else [chunk.text for chunk in chunks]
        dtype = token_dtype(self.vocab)
        return [_as_array(tokens, dtype) for tokens in self._model.encode(texts, out_type=int, num_threads=-1)]

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self._model.decode([int(token) for token in tokens]))


def _as_array(ids: list[int], dtype: np.dtype[Any]) -> Tokens:  # [N]
    """np.array(ids, dtype); NumPy alone takes eight times as long for a list."""
    return np.array(array.array("I", ids), dtype=dtype)


def _without_prefixed_space(chunks: Sequence[TextChunk]) -> list[str]:
    return [chunk.text if chunk.starts_document else chunk.text.removeprefix(" ") for chunk in chunks]


def _byte_encoding(spec: dict[str, Any], where: str) -> tuple[str, str]:
    """The byte encoding of a tokenizer.json, and its character for a space."""
    parts = json.dumps([spec.get("decoder"), spec.get("pre_tokenizer"), spec.get("normalizer")], ensure_ascii=False)
    if '"ByteLevel"' in parts:
        return "byte-level", "Ġ"
    if "▁" in parts:
        return "metaspace", "▁"
    kind = spec.get("model", {}).get("type", "unknown")
    raise UnreadableInput(
        f"{where} is a {kind} tokenizer whose tokens have no fixed byte count; "
        "use a byte-level BPE or a sentencepiece tokenizer"
    )


def _boundary(asked: str | None, texts: dict[str, int], where: str) -> int:
    for name in (asked,) if asked is not None else _BOUNDARIES:
        if name in texts:
            return texts[name]
    tried = repr(asked) if asked is not None else ", ".join(_BOUNDARIES)
    raise BadRequest(f"{where} has no document boundary token ({tried}); set boundary to a token that it has")

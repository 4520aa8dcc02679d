"""The tokens of a tokenizer.json as a vocabulary that can be cut: which must stay, and what each is built from.

Text that encodes to kept tokens only must encode to the same tokens afterwards, and no text may become unknown:

BPE        A token is built by merges. The last merge that builds it needs its two parts, those need theirs, and so on.
           With all of them the merges are applied in the old order, so the result is the same. The bytes stay, or,
           without bytes, every single character.
Unigram    The best segmentation stays the best among fewer. Single characters stay, and pieces with a character that
           is no piece of its own.
WordPiece  The longest match stays the longest among fewer. The same characters stay, at the start of a word and after
           it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tiebeam.errors import BadRequest, UnreadableInput

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
Merge = tuple[str, str]


@dataclass(frozen=True)
class Pieces:
    """A vocabulary.

    kind     "BPE", "Unigram" or "WordPiece"
    ids      text: id, of the model and of the added tokens
    always   ids that must stay
    unknown  id of the unknown token, if there is one
    order    ids by how useful they are on any text, as far as the tokenizer knows
    """

    kind: str
    ids: Mapping[str, int] = field(repr=False)
    always: frozenset[int] = field(repr=False)
    unknown: int | None
    order: Sequence[int] = field(repr=False)
    _merges: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict, repr=False)
    _ranks: Mapping[Merge, int] = field(default_factory=dict, repr=False)
    _affixes: tuple[str, str] = ("", "")
    _parts: dict[int, tuple[int, ...]] = field(default_factory=dict, repr=False)
    _texts: dict[int, str] = field(default_factory=dict, repr=False)

    def parts(self, token: int) -> tuple[int, ...]:
        """The two tokens that the last merge joins to build `token`; () if it is not built by merges."""
        if token not in self._parts:
            known = self._merges.get(token, ())
            self._parts[token] = known[0] if len(known) == 1 else self._last_merge(token) if known else ()
        return self._parts[token]

    def needed(self, token: int, have: set[int]) -> set[int]:
        """`token` and every token that it is built from, without those in `have`."""
        need: set[int] = set()
        open_ = [token]
        while open_:
            one = open_.pop()
            if one not in have and one not in need:
                need.add(one)
                open_ += self.parts(one)
        return need

    def _last_merge(self, token: int) -> tuple[int, ...]:
        """Several merges give this token: which of them is applied shows in how the text alone is merged."""
        symbols = list(initial_symbols(self._texts[token], *self._affixes))
        last: tuple[int, ...] = ()
        while len(symbols) > 1:
            ranked = [(self._ranks.get((a, b)), i) for i, (a, b) in enumerate(pairwise(symbols))]
            found = min(((rank, i) for rank, i in ranked if rank is not None), default=None)
            if found is None:
                return ()  # the merges never reach it
            i = found[1]
            left, right = symbols[i : i + 2]
            last = (self.ids[left], self.ids[right])
            symbols[i : i + 2] = [joined(left, right, self._affixes[0])]
        return last


def read_pieces(document: Mapping[str, Any], where: str = "tokenizer.json") -> Pieces:
    """The vocabulary of a parsed tokenizer.json; raises BadRequest for a kind that cannot be cut."""
    model = document.get("model")
    if not isinstance(model, Mapping):
        raise UnreadableInput(f"{where} has no model")
    kind = model_kind(model)
    if kind not in _READERS:
        raise BadRequest(
            f"{where} is a {kind} tokenizer, in which every word that is dropped becomes unknown; BPE, Unigram and "
            "WordPiece can be trimmed"
        )
    added = {entry["content"]: entry["id"] for entry in document.get("added_tokens") or ()}
    try:
        return _READERS[kind](model, added)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UnreadableInput(f"{where} has a damaged {kind} model: {error!r:.100}") from None


def model_kind(model: Mapping[str, Any]) -> str:
    """The type of a tokenizer's model; old files do not name it."""
    if isinstance(model.get("type"), str):
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"


def split_merge(merge: str | Sequence[str]) -> Merge:
    """A merge is written "a b" or ["a", "b"]."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def joined(left: str, right: str, prefix: str = "") -> str:
    """The token that a merge makes; a continuing piece loses its prefix."""
    return left + (right.removeprefix(prefix) if prefix else right)


def initial_symbols(text: str, prefix: str, suffix: str) -> Iterator[str]:
    """What BPE starts from to build a token: its characters, with the marks of a continuation and of a word's end."""
    inside = bool(prefix) and text.startswith(prefix) and len(text) > len(prefix)
    ends = bool(suffix) and text.endswith(suffix) and len(text) > len(suffix)
    characters = text[len(prefix) if inside else 0 : len(text) - len(suffix) if ends else len(text)]
    for i, character in enumerate(characters):
        yield (prefix if inside or i else "") + character + (suffix if ends and i == len(characters) - 1 else "")


def _bpe(model: Mapping[str, Any], added: Mapping[str, int]) -> Pieces:
    vocab: dict[str, int] = dict(model["vocab"])
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    ranks: dict[Merge, int] = {}
    merges: dict[int, list[tuple[int, int]]] = {}
    for merge in model["merges"]:
        left, right = split_merge(merge)
        made = vocab.get(joined(left, right, prefix))
        if left in vocab and right in vocab and made is not None and (left, right) not in ranks:
            ranks[left, right] = len(ranks)
            merges.setdefault(made, []).append((vocab[left], vocab[right]))
    single = (
        i for text, i in vocab.items() if len(list(initial_symbols(text, prefix, suffix))) == 1 and i not in merges
    )
    always = _bytes(vocab) | (set() if _falls_back(model, vocab) else set(single))
    return _pieces("BPE", vocab, added, always, vocab.get(model.get("unk_token") or ""), sorted(vocab.values()),
                   _merges=merges, _ranks=ranks, _affixes=(prefix, suffix))  # fmt: skip


def _unigram(model: Mapping[str, Any], added: Mapping[str, int]) -> Pieces:
    vocab = {str(piece): i for i, (piece, _) in enumerate(model["vocab"])}
    scores = [float(score) for _, score in model["vocab"]]
    always = _bytes(vocab)
    if not _falls_back(model, vocab):
        # A character that is no piece is covered only by the pieces that it is part of.
        always |= {i for text, i in vocab.items() if len(text) == 1 or any(one not in vocab for one in text)}
    order = sorted(vocab.values(), key=lambda i: (-scores[i], i))
    return _pieces("Unigram", vocab, added, always, model.get("unk_id"), order)


def _wordpiece(model: Mapping[str, Any], added: Mapping[str, int]) -> Pieces:
    vocab: dict[str, int] = dict(model["vocab"])
    prefix = str(model.get("continuing_subword_prefix", "##"))
    always = set()
    for text, i in vocab.items():
        single = list(initial_symbols(text, prefix, ""))
        if len(single) == 1 or any(one not in vocab for one in single):
            always.add(i)
    unknown = vocab.get(model.get("unk_token") or "[UNK]")
    return _pieces("WordPiece", vocab, added, always, unknown, sorted(vocab.values()))


def _pieces(
    kind: str,
    vocab: dict[str, int],
    added: Mapping[str, int],
    always: set[int],
    unknown: int | None,
    order: list[int],
    **merges: Any,
) -> Pieces:
    ids = {**vocab, **added}
    if len(ids) and not all(type(i) is int and i >= 0 for i in ids.values()):
        raise ValueError("an id is not a whole number")
    kept = always | set(added.values()) | ({unknown} if unknown is not None else set())
    texts = {i: text for text, i in ids.items()}
    return Pieces(kind, ids, frozenset(kept), unknown, order, **merges, _texts=texts)


def _bytes(vocab: Mapping[str, int]) -> set[int]:
    return {i for text, i in vocab.items() if BYTE.fullmatch(text)}


def _falls_back(model: Mapping[str, Any], vocab: Mapping[str, int]) -> bool:
    """Whether any text can be written as bytes."""
    return bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in vocab for byte in range(256))


_READERS = {"BPE": _bpe, "Unigram": _unigram, "WordPiece": _wordpiece}

"""What a token is built from, what must stay, and a vocabulary cut to that: against the real tokenizers package."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from helpers.trimmable_models import prose, tokenizer_json
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.tokenizer.keep_tokens import keep_in_json, new_ids
from tiebeam.tokenizer.vocabulary_pieces import initial_symbols, read_pieces


def bpe(vocab: list[str], merges: list[str], **options: Any) -> dict[str, Any]:
    ids = {text: i for i, text in enumerate(vocab)}
    return {"model": {"type": "BPE", "vocab": ids, "merges": merges, **options}, "added_tokens": []}


def test_the_merge_that_is_applied_first_decides_what_a_token_is_built_from() -> None:
    document = bpe(["a", "b", "c", "ab", "bc", "abc"], ["b c", "a b", "ab c", "a bc"])
    pieces = read_pieces(document)
    assert pieces.parts(5) == (0, 4), "b c comes first, so abc is a + bc"
    assert pieces.needed(5, set()) == {0, 1, 2, 4, 5}
    without_ab = keep_in_json(document, new_ids([0, 1, 2, 4, 5]))
    assert without_ab["model"]["merges"] == ["b c", "a bc"]
    assert Tokenizer.from_str(json.dumps({**_EMPTY, **without_ab})).encode("abc").tokens == ["abc"]


def test_a_token_that_no_merge_reaches_needs_nothing() -> None:
    pieces = read_pieces(bpe(["a", "b", "c", "ab", "bc", "abc"], ["b c", "ab c", "x y"]))
    assert pieces.parts(5) == (3, 2), "its only merge"
    assert pieces.parts(3) == ()


@pytest.mark.parametrize("affix", ["end_of_word_suffix", "continuing_subword_prefix"])
def test_marks_of_words_are_part_of_the_symbols(affix: str) -> None:
    mark = {"end_of_word_suffix": "</w>", "continuing_subword_prefix": "##"}[affix]
    options: dict[str, Any] = {affix: mark}
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **options))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False, **options)
    tokenizer.train_from_iterator([prose()], trainer)
    document = json.loads(tokenizer.to_str())
    pieces = read_pieces(document)
    kept: set[int] = set()
    for token in (*pieces.always, *range(200, 400)):
        kept |= pieces.needed(token, kept)
    new = Tokenizer.from_str(json.dumps(keep_in_json(document, new_ids(sorted(kept)))))
    olds = sorted(kept)
    same = 0
    for word in sorted(set(prose().split())):
        a, b = tokenizer.encode(word), new.encode(word)
        assert ("<unk>" in b.tokens) is ("<unk>" in a.tokens)
        if set(a.ids) <= kept:
            assert [olds[i] for i in b.ids] == a.ids
            same += 1
    assert same > 20


def test_symbols_carry_the_marks() -> None:
    assert list(initial_symbols("cat</w>", "", "</w>")) == ["c", "a", "t</w>"]
    assert list(initial_symbols("##at", "##", "")) == ["##a", "##t"]
    assert list(initial_symbols("cat", "##", "")) == ["c", "##a", "##t"]


def test_a_piece_whose_character_has_no_piece_of_its_own_stays() -> None:
    vocab = [["<unk>", 0.0], ["a", -1.0], ["b", -1.0], ["ab", -1.5], ["aé", -2.0]]
    pieces = read_pieces({"model": {"type": "Unigram", "vocab": vocab, "unk_id": 0}, "added_tokens": []})
    assert pieces.always == {0, 1, 2, 4}
    words = {"[UNK]": 0, "a": 1, "##b": 2, "ab": 3, "ac": 4}
    model = {"type": "WordPiece", "vocab": words, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    assert read_pieces({"model": model, "added_tokens": []}).always == {0, 1, 2, 4}


def test_byte_fallback_frees_the_characters() -> None:
    pieces = read_pieces(tokenizer_json("byte-fallback"))
    texts = {i: text for text, i in pieces.ids.items()}
    assert {texts[i] for i in pieces.always} == {"<unk>", "<s>", "</s>", "<pad>", *(f"<0x{b:02X}>" for b in range(256))}


def test_other_and_damaged_models_are_refused() -> None:
    with pytest.raises(BadRequest, match="WordLevel"):
        read_pieces({"model": {"type": "WordLevel", "vocab": {"a": 0}}})
    with pytest.raises(UnreadableInput, match="no model"):
        read_pieces({})
    no_ids = {"type": "BPE", "vocab": {"a": "b"}, "merges": []}
    for model in ({"type": "BPE"}, no_ids, {"type": "Unigram", "vocab": [[]]}):
        with pytest.raises(UnreadableInput, match="damaged"):
            read_pieces({"model": model})


_EMPTY: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None,
                          "pre_tokenizer": None, "post_processor": None, "decoder": None}  # fmt: skip

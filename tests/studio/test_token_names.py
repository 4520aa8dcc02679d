"""Tokens of any script are shown as text, and parts of characters as their bytes, in every view."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.building import write_model
from helpers.page_layout import layout_problems
from helpers.studio_files import tiny_llama
from tiebeam.checkpoint import open_checkpoint
from tiebeam.studio.model_list import ModelList
from tiebeam.studio.open_models import OpenModels
from tiebeam.studio.token_text import token_text
from tiebeam.tokenizer import Tokenizer, open_tokenizer

from .conftest import start

WORDS = ["東京", "Москва", "القاهرة", "서울", "कमल", "Αθήνα", "🙂"]
VOCAB = 600


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model with a byte-level BPE tokenizer in which each of WORDS is one token, and a row of it is zero."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(WORDS * 20, trainer)
    where = tiny_llama(
        tmp_path_factory.mktemp("world") / "モデル-with-a-long-name-that-has-no-place-to-break", vocab=VOCAB
    )
    tokenizer.save(str(where / "tokenizer.json"))
    checkpoint = open_checkpoint(where)
    tensors = {name: np.array(checkpoint.tensor(name)) for name in checkpoint.tensors}
    tensors["model.embed_tokens.weight"][tokenizer.token_to_id(tokenizer.encode("東京").tokens[0])] = 0
    write_model(where, tensors, checkpoint.config)
    return where


@pytest.fixture
def opened(world):
    models = ModelList((str(world),))
    return OpenModels().open(models.models()[0])


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_any_script_is_one_token_with_its_text(world, word):
    tokenizer = open_tokenizer(open_checkpoint(world))
    assert tokenizer is not None
    (id,) = tokenizer.encode(word)
    assert token_text(tokenizer, id) == word


def test_a_part_of_a_character_is_shown_as_bytes(world):
    tokenizer = open_tokenizer(open_checkpoint(world))
    assert tokenizer is not None
    byte = tokenizer.backend.token_to_id("æ")  # 0xE6, the first byte of 東
    assert byte is not None
    assert token_text(tokenizer, byte) == "<0xE6>"
    assert token_text(tokenizer, 10**6) is None


def test_the_byte_tokens_of_sentencepiece_are_shown_as_they_are_written():
    import tokenizers
    from tokenizers import decoders, models

    pieces = ["<unk>", "<0x20>", "<0xE6>", "▁the"]
    vocab = {piece: id for id, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = Tokenizer(backend)
    assert [token_text(tokenizer, id) for id in range(1, 4)] == [" ", "<0xE6>", " the"]


def test_the_api_gives_texts_and_not_the_spelling_of_the_vocabulary(opened):
    from tiebeam.studio.token_rows import suspicious_rows

    direct = opened.direct("東京Москва", None, 3)
    assert [token["text"] for token in direct["tokens"]] == ["東京", "Москва"]
    assert [token["text"] for token in opened.neighbours("서울", None, 3)["tokens"]] == ["서울"]
    groups = {group["kind"]: group for group in suspicious_rows(opened)["matrices"][0]["groups"]}
    assert groups["zero"]["rows"][0]["text"] == "東京"


@pytest.mark.xdist_group("browser")
def test_every_view_shows_the_texts(visit, world):
    process, address = start(str(world))
    try:
        one = visit(width=390, address=address)
        page = one.go("models.html")
        page.wait_for_selector("h2#name >> text=モデル")
        field = page.get_by_label("Text, or token ids")
        field.click()
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type("東京القاهرة")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=highest direct-path logits")
        names = page.locator("section[aria-labelledby=direct] table.grid thead th").all_inner_texts()
        assert names == ["東京", "القاهرة"]
        assert layout_problems(page) == []
        page = one.go("index.html#real")
        page.locator("#real form").get_by_label("Your text").fill("कमलΑθήνα")
        page.get_by_role("button", name="Show it").click()
        page.wait_for_selector("#real strong >> text=モデル")
        assert page.locator("#real table.grid thead th").all_inner_texts() == ["कमल", "Αθήνα"]
        page = one.go("generate.html")
        page.get_by_label("Prompt").fill("東京Москва")
        page.get_by_label("New tokens").fill("8")
        page.get_by_role("button", name="Generate").click()
        page.wait_for_selector("text=8 tokens")
        assert page.locator(".said .prompt").inner_text() == "東京Москва"
        shown = page.locator("section[aria-labelledby=behind] .hbar .name").all_inner_texts()
        assert not [name for name in shown if "�" in name]
    finally:
        process.terminate()
        process.wait(10)

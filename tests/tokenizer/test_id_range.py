"""The highest id of a tokenizer, read without building it, against the tokenizers and transformers packages."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from helpers.tiny_tokenizers import TEXT, write_tokenizer
from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import UnreadableInput
from tiebeam.tokenizer import TokenIds, token_ids


def read(where: Path) -> TokenIds | None:
    save_file({"x": np.zeros(1, np.float32)}, where / "model.safetensors")
    return token_ids(open_checkpoint(where))


def test_added_tokens_count(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    write_tokenizer(tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    tokenizer.add_tokens(["<new>", "<newer>"])
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(tmp_path)
    found = read(tmp_path)
    assert found is not None
    assert found.size == len(tokenizer) == max(tokenizer.get_vocab().values()) + 1
    assert found.added == set(tokenizer.convert_tokens_to_ids(["<new>", "<newer>", "<pad>"]))
    for text, i in tokenizer.get_vocab().items():
        assert found.text(i) == text
    assert found.text(found.size) is None


def test_a_unigram_vocabulary_counts_by_position(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.train_from_iterator(TEXT, trainers.UnigramTrainer(vocab_size=60, show_progress=False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = read(tmp_path)
    assert found is not None
    assert found.size == tokenizer.get_vocab_size()
    assert {found.text(i): i for i in range(found.size)} == tokenizer.get_vocab()


def test_tokens_that_are_spelled_like_keys_of_the_file_do_not_confuse(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    vocab = {"vocab": 0, "added_tokens": 1, '"vocab": {': 2, "merges": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="merges"))
    tokenizer.add_tokens(["added_tokens: [", '"vocab": ['])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = read(tmp_path)
    assert found is not None
    assert found.size == tokenizer.get_vocab_size(with_added_tokens=True) == 6


def test_the_older_files_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 7}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<x>": 9}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {"11": {"content": "<y>"}, "no": {"content": "<z>"}, "12": 3}})
    )
    found = read(tmp_path)
    assert found is not None
    assert (found.size, found.added) == (12, {9, 11})
    assert found.sources == ("vocab.json", "added_tokens.json", "tokenizer_config.json")


def test_without_a_vocabulary_there_is_no_count(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<x>": 9}))
    (tmp_path / "tokenizer.model").write_bytes(b"a SentencePiece model")
    assert read(tmp_path) is None


def test_a_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0,')
    with pytest.raises(UnreadableInput, match=r"tokenizer\.json is not valid JSON"):
        read(tmp_path)


def test_a_gguf_has_one_id_per_token(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(2000)])
    writer.add_tensor("token_embd.weight", np.zeros((2000, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = token_ids(open_checkpoint(path))
    assert found is not None
    assert (found.size, found.text(1999), found.text(2000)) == (2000, "t1999", None)

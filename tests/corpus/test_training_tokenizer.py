"""Corpus tokenizers: lossless, exact byte counts, and text never becomes a special token."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tiebeam.corpus import text_chunks
from tiebeam.corpus.text_chunks import TextChunk, split_text
from tiebeam.corpus.training_tokenizer import (
    JsonTokenizer,
    SentencePieceTokenizer,
    _as_array,
    bytes_of,
    open_tokenizer,
    train_bpe,
)
from tiebeam.errors import BadRequest, MissingExtra, UnreadableInput

TEXT = [
    "The tie beam holds both ends of a roof together.\n\n    def tie(self):\n        return self.beam\n",
    "ein Dach, 日本の屋根 🏠\n",
] * 20
ANY_TEXT = st.text() | st.text(alphabet=" \n\t\rabé<|endoftx>▁Ġ's1\x85\x1c\u3000")


@pytest.fixture(scope="module")
def bpe() -> JsonTokenizer:
    return train_bpe(TEXT, 320)


@pytest.fixture(scope="module")
def sentencepiece_model() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, vocab_size=330, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


@pytest.fixture(scope="module")
def metaspace() -> bytes:
    """The kind that Llama 2 ships: "▁" for a space, one before every text, bytes for what is not in the vocabulary."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # while it learns: no token crosses a space
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(TEXT[:1] * 9, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["pre_tokenizer"] = None
    spec["added_tokens"] = spec["added_tokens"][:3]  # the byte tokens are ordinary ones
    return json.dumps(spec).encode()


def encode(tokenizer, text: str) -> np.ndarray:
    """All tokens of a document, encoded chunk by chunk."""
    chunks = [TextChunk(part, number == 0) for number, part in enumerate(split_text(text))]
    return np.concatenate([np.empty(0, np.int64), *tokenizer.encode(chunks)]).astype(np.int64)


def bytes_counted(tokenizer, tokens: np.ndarray) -> int:
    return bytes_of(tokenizer, tokens, np.concatenate(([tokenizer.boundary], tokens[:-1]))) if len(tokens) else 0


@given(ANY_TEXT)
def test_decoding_restores_any_text_and_its_bytes_are_counted_exactly(bpe: JsonTokenizer, text: str) -> None:
    tokens = encode(bpe, text)
    assert bpe.decode(tokens) == text
    assert bpe.bytes_per_token[tokens].sum() == len(text.encode()) == bytes_counted(bpe, tokens)


@given(ANY_TEXT.filter(lambda text: len(text) > 8))
def test_the_chunks_of_a_document_have_the_tokens_of_the_whole(bpe: JsonTokenizer, text: str) -> None:
    with mock.patch.object(text_chunks, "MIN_CHUNK", 3), mock.patch.object(text_chunks, "MAX_CHUNK", 9):
        chunks = list(split_text(text))
        if any(len(chunk) == 9 for chunk in chunks[:-1]):  # nowhere to cut: then only the text must be restored
            assert bpe.decode(encode(bpe, text)) == text
            return
        tokens = encode(bpe, text)
    assert tokens.tolist() == bpe.encode([TextChunk(text, True)])[0].tolist()


def test_every_byte_and_the_boundary_are_in_the_vocabulary(bpe: JsonTokenizer) -> None:
    assert bpe.vocab == 320
    assert (bpe.bytes_per_token == 1).sum() == 256
    assert (bpe.bytes_per_token == 0).nonzero()[0].tolist() == [bpe.boundary] == [0]
    assert bpe.boundary_text == "<|endoftext|>"


def test_training_is_the_same_in_another_process(bpe: JsonTokenizer) -> None:
    program = "import sys; from tiebeam.corpus.training_tokenizer import train_bpe; "
    program += f"sys.stdout.buffer.write(train_bpe({TEXT!r}, 320).raw)"
    source = str(Path(text_chunks.__file__).parents[2])
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        assert (
            subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
            == bpe.raw
        )


def test_the_saved_file_opens_in_the_real_transformers(bpe: JsonTokenizer, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    (tmp_path / "tokenizer.json").write_bytes(bpe.raw)
    peer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert peer.encode(TEXT[0]) == encode(bpe, TEXT[0]).tolist()


def test_a_saved_tokenizer_equals_the_trained_one(bpe: JsonTokenizer, tmp_path: Path) -> None:
    spec = json.loads(bpe.raw)
    spec["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
    spec["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert encode(open_tokenizer(path), TEXT[0]).tolist() == encode(bpe, TEXT[0]).tolist()


@given(ANY_TEXT)
def test_a_metaspace_tokenizer_counts_bytes_without_the_prefix_it_adds(metaspace: bytes, text: str) -> None:
    tokenizer = JsonTokenizer(metaspace)
    if "▁" in text:  # it cannot tell this from a space
        return
    tokens = encode(tokenizer, text)
    assert bytes_counted(tokenizer, tokens) == len(text.encode())
    assert tokenizer.decode(tokens) == text


@pytest.mark.parametrize("kind", ["metaspace", "sentencepiece"])
def test_the_dummy_prefix_is_added_per_document_not_per_chunk(kind, metaspace, sentencepiece_model) -> None:
    tokenizer = JsonTokenizer(metaspace) if kind == "metaspace" else SentencePieceTokenizer(sentencepiece_model)
    text = "the tie beam holds both ends of a roof together " * 9
    whole = encode(tokenizer, text).tolist()
    with mock.patch.object(text_chunks, "MIN_CHUNK", 10), mock.patch.object(text_chunks, "MAX_CHUNK", 40):
        assert len(list(split_text(text))) > 5
        assert encode(tokenizer, text).tolist() == whole


@given(ANY_TEXT)
def test_a_sentencepiece_model_counts_bytes_as_parameter_golf_does(sentencepiece_model: bytes, text: str) -> None:
    tokenizer = SentencePieceTokenizer(sentencepiece_model)
    tokens = encode(tokenizer, text)
    model = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    total, previous = 0, model.bos_id()
    for token in tokens.tolist():  # one token at a time: a leading space counts unless a control token is before it
        piece = model.id_to_piece(token)
        if model.is_byte(token):
            total += 1
        elif not model.is_control(token):
            spaced = piece.startswith("▁")
            total += len(piece.removeprefix("▁").replace("▁", " ").encode())
            total += spaced and not model.is_control(previous)
        previous = token
    assert bytes_counted(tokenizer, tokens) == total
    if "▁" not in text and "\0" not in text:
        assert total == len(text.encode())
        assert tokenizer.decode(tokens) == text


def test_a_sentencepiece_model_starts_documents_with_its_bos_token(sentencepiece_model: bytes, tmp_path: Path) -> None:
    (tmp_path / "spm.model").write_bytes(sentencepiece_model)
    tokenizer = open_tokenizer(tmp_path / "spm.model")
    assert (tokenizer.boundary, tokenizer.boundary_text, tokenizer.vocab) == (1, "<s>", 330)
    assert open_tokenizer(tmp_path / "spm.model", "</s>").boundary == 2


def test_the_boundary_of_a_given_tokenizer_is_found_or_required(metaspace: bytes) -> None:
    assert JsonTokenizer(metaspace).boundary_text == "</s>"
    assert JsonTokenizer(metaspace, "<s>").boundary_text == "<s>"
    with pytest.raises(BadRequest, match=r"no document boundary token \('<end>'\); set boundary"):
        JsonTokenizer(metaspace, "<end>")


def test_a_tokenizer_without_byte_counts_is_an_error(tmp_path: Path) -> None:
    wordpiece = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "</s>": 1, "a": 2}, unk_token="[UNK]"))
    wordpiece.pre_tokenizer = pre_tokenizers.Whitespace()
    wordpiece.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnreadableInput, match="WordPiece tokenizer whose tokens have no fixed byte count"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "raw"), [("a.json", b"{}"), ("a.json", b'{"model": 1'), ("a.model", b"garbage"), ("a.model", b"")]
)
def test_a_file_that_is_not_a_tokenizer_is_an_error(tmp_path: Path, name: str, raw: bytes) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UnreadableInput, match=r"a\.(json|model) is not a"):
        open_tokenizer(tmp_path / name)
    with pytest.raises(UnreadableInput, match=r"has neither tokenizer\.json nor tokenizer\.model"):
        open_tokenizer(tmp_path)
    with pytest.raises(UnreadableInput, match="cannot be read: No such file"):
        open_tokenizer(tmp_path / "missing.json")


def test_missing_sentencepiece_is_reported_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "a.model").write_bytes(b"\n")
    with (
        mock.patch.dict("sys.modules", {"sentencepiece": None}),
        pytest.raises(MissingExtra, match=r"tiebeam\[corpus\]"),
    ):
        open_tokenizer(tmp_path / "a.model")


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@given(ids=st.lists(st.integers(0, 2**16 - 1), max_size=9))
def test_a_list_of_ids_becomes_the_array_that_numpy_makes(dtype, ids) -> None:
    found, expected = _as_array(ids, np.dtype(dtype)), np.array(ids, dtype)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)

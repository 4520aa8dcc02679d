"""tokenizer.json and both kinds of GGUF tokenizers, compared with the libraries that made them."""

from __future__ import annotations

import io
from typing import Any

import pytest

from helpers.building import llama_config, table, write_model
from helpers.tiny_tokenizers import TEXT, write_tokenizer
from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import UnreadableInput
from tiebeam.tokenizer import gguf
from tiebeam.tokenizer.load import Tokenizer, open_tokenizer

TRICKY = [
    "Hello world",
    " leading space",
    "  two  spaces   three",
    "tabs\tand\nnew\n\nlines \n ",
    "I'm sure we'll SEE THEY'RE 12345.678 times!",
    "snake_case camelCase HTTPServer x=3;y=4//comment",
    "Zwölf große Boxkämpfer",
    "漢字 かな 한국어 عربى",
    "emoji 🙂🏳️‍🌈 done",
    "unseen bytes \x00\x07 ﷺ",
    "ends with space ",
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    where = write_model(tmp_path_factory.mktemp("m"), {"x": table()}, {**llama_config(), "eos_token_id": [5, 7]})
    write_tokenizer(where, size=380)
    found = open_tokenizer(open_checkpoint(where))
    assert found is not None
    return found


def test_tokenizer_json_is_read_with_its_stop_ids(plain):
    assert plain.size == 380
    assert plain.stop_ids == {5, 7}


@pytest.mark.parametrize("text", TRICKY)
def test_decoding_inverts_encoding(plain, text):
    assert plain.decode(plain.encode(text)) == text


@pytest.mark.parametrize("text", TRICKY)
@pytest.mark.parametrize("split", [1, 3])
def test_streaming_gives_the_same_text_and_never_half_a_character(plain, text, split):
    ids = plain.encode(text)
    push = plain.stream(ids[:split])
    pieces = [push(token, last=i == len(ids) - 1) for i, token in enumerate(ids[split:], split)]
    assert all("\ufffd" not in piece for piece in pieces)
    starts = [plain.decode(ids[:shown]) for shown in range(split, -1, -1)]
    start = next(start for start in starts if not start.endswith("\ufffd"))  # whole characters of the prompt
    assert start + "".join(pieces) == text


def test_a_prompt_that_ends_inside_a_character_is_continued(plain):
    ids = plain.encode("🙂")
    assert len(ids) == 4
    push = plain.stream([*plain.encode("so "), *ids[:2]])
    assert push(ids[2]) == ""
    assert push(ids[3]) == "🙂"


def byte_level_metadata(tokenizer: Tokenizer, rule: str = "gpt-2", **more: Any) -> dict[str, Any]:
    """GGUF metadata of a tokenizer."""
    import json

    model = json.loads(tokenizer.backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.token_type": [3 if token == "<s>" else 1 for token in tokens],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 9,
        **more,
    }


@pytest.mark.parametrize("text", TRICKY + TEXT)
def test_a_byte_level_gguf_tokenizer_equals_the_original(plain, text):
    rebuilt = gguf.rebuild(byte_level_metadata(plain), "m.gguf")
    assert rebuilt.encode(text) == plain.encode(text)
    assert rebuilt.decode(rebuilt.encode(text)) == text


def test_special_tokens_are_matched_whole(plain):
    rebuilt = gguf.rebuild(byte_level_metadata(plain), "m.gguf")
    assert rebuilt.encode("a<s>b")[1] == 0


@pytest.mark.parametrize(("add", "first"), [(True, 0), (False, None), (None, None)])
def test_the_start_token_is_added_when_the_file_asks_for_it(plain, add, first):
    more = {} if add is None else {"tokenizer.ggml.add_bos_token": add}
    rebuilt = gguf.rebuild(byte_level_metadata(plain, **more), "m.gguf")
    expected = plain.encode("hello")
    assert rebuilt.encode("hello") == ([first, *expected] if first is not None else expected)
    assert rebuilt.stop_ids == {9}


def test_llama3_files_have_a_start_token_unless_they_declare_none(plain):
    assert gguf.rebuild(byte_level_metadata(plain, "llama-bpe"), "m.gguf").start == (0,)
    more = {"tokenizer.ggml.add_bos_token": False}
    assert gguf.rebuild(byte_level_metadata(plain, "llama-bpe", **more), "m.gguf").start == ()


def test_pre_tokenizers_equal_those_of_transformers():
    """Every rule that transformers knows by the same name splits every text the same way."""
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    from tokenizers import Regex, pre_tokenizers

    def pieces(patterns: tuple[str, ...], text: str) -> list[str]:
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
        return [piece for piece, _ in split.pre_tokenize_str(text)]

    common = gguf._SPLITS.keys() & mapping.GGUF_PRE_TOKENIZER_SPLITS.keys()
    assert {"llama-bpe", "qwen2", "tekken", "gpt-4o"} <= common
    for rule in sorted(common):
        for text in TRICKY + TEXT:
            ours = pieces(gguf._SPLITS[rule], text)
            assert ours == pieces((mapping.GGUF_PRE_TOKENIZER_SPLITS[rule],), text), rule


def test_smollm_splits_numbers_into_digits(plain):
    rebuilt = gguf.rebuild(byte_level_metadata(plain, "smollm"), "m.gguf")
    digits = [rebuilt.decode([token]) for token in rebuilt.encode("6789")]
    assert digits == ["6", "7", "8", "9"]


@pytest.fixture(scope="module", params=[True, False], ids=["llama", "gemma"])
def sentencepiece(request) -> tuple[Any, dict[str, Any]]:
    """A sentencepiece model as llama (a space before the text) and gemma (none) train theirs, and its metadata."""
    spm = pytest.importorskip("sentencepiece")
    stored = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 4), model_writer=stored, model_type="bpe", vocab_size=420, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=request.param,
        split_digits=True, allow_whitespace_only_pieces=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model = spm.SentencePieceProcessor(model_proto=stored.getvalue())
    kinds = [
        3 if model.is_control(i) else 2 if model.is_unknown(i) else 6 if model.is_byte(i) else 1
        for i in range(len(model))
    ]
    return model, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(len(model))],
        "tokenizer.ggml.scores": [model.get_score(i) for i in range(len(model))],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.add_space_prefix": request.param,
    }


@pytest.mark.parametrize("text", TRICKY + TEXT)
def test_a_sentencepiece_gguf_tokenizer_equals_sentencepiece(sentencepiece, text):
    model, metadata = sentencepiece
    rebuilt = gguf.rebuild(metadata, "m.gguf")
    assert rebuilt.encode(text) == [model.bos_id(), *model.encode(text)]
    assert rebuilt.decode(rebuilt.encode(text)[1:]) == text


def test_a_sentencepiece_model_has_a_start_token_unless_it_declares_none(sentencepiece):
    model, metadata = sentencepiece
    assert gguf.rebuild(metadata, "m.gguf").start == (model.bos_id(),)
    without = {**metadata, "tokenizer.ggml.add_bos_token": False}
    assert gguf.rebuild(without, "m.gguf").start == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, "has the unknown pre-tokenizer 'klingon'"),
        ({"tokenizer.ggml.model": "bert"}, "has a 'bert' tokenizer"),
        ({"tokenizer.ggml.tokens": []}, "has no tokens"),
        ({"tokenizer.ggml.model": "llama"}, "380 tokens but 0 scores"),
        ({"tokenizer.ggml.tokens": [1, 2, 3]}, r"cannot be rebuilt \(give token ids\)"),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0] * 380, "tokenizer.ggml.token_type": [1]},
            r"cannot be rebuilt \(give token ids\)",
        ),
    ],
)
def test_tokenizers_that_cannot_be_rebuilt_are_refused(plain, changes, message):
    with pytest.raises(UnreadableInput, match=message) as caught:
        gguf.rebuild({**byte_level_metadata(plain), **changes}, "m.gguf")
    assert "give token ids" in str(caught.value)


def test_a_model_without_a_tokenizer_has_none(tmp_path):
    assert open_tokenizer(open_checkpoint(write_model(tmp_path, {"x": table()}, llama_config()))) is None

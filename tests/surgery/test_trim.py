"""`trim` with the real transformers, tokenizers, torch and gguf: every kind of tokenizer, tied and untied, and GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import tiebeam
from helpers.tiny_ggufs import write_gguf
from helpers.tiny_models import auto_class
from helpers.trimmable_models import OUTSIDE, prose, save_trimmable, spm_metadata, tokenizer_json, write_prose
from tiebeam.decode import open_engine
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.pair import Tie
from tiebeam.surgery import open_source, trim
from tiebeam.surgery.trim import prepare

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
MODELS = [
    ("byte-level", "llama", {"tie_word_embeddings": True}),
    ("byte-level", "gpt2", {}),
    ("byte-fallback", "llama", {"tie_word_embeddings": False}),
    ("unigram", "gemma3_text", {}),
    ("wordpiece", "bert", {}),
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [write_prose(tmp_path_factory.mktemp("text"))]


def id_map(where: Path) -> np.ndarray:
    listed = json.loads((where / "id_map.json").read_text())
    assert [int(new) for new in listed] == list(range(len(listed)))
    return np.array(list(listed.values()))


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.float()(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize(("kind", "model_type", "options"), MODELS)
def test_kept_text_has_the_same_tokens_and_logits_in_transformers(
    kind: str, model_type: str, options: dict[str, Any], text: list[Path], tmp_path: Path
) -> None:
    before = save_trimmable(tmp_path / "m", kind, model_type, padding=3, **options)
    outcome = trim(tmp_path / "m", tmp_path / "x", text=text, keep=500)
    assert outcome.after.tie is outcome.before.tie
    assert outcome.after.vocabulary.rows == outcome.after.vocabulary.tokenizer_ids == 500
    assert outcome.after.params.total == outcome.facts["parameters"]["after"]
    assert outcome.proof is not None
    if model_type != "bert":  # which no engine runs as a language model
        assert (outcome.proof.ran, outcome.proof.largest) == (True, 0.0)
    old = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    new = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    olds = id_map(tmp_path / "x")
    kept = set(olds.tolist())
    assert len(new) == 500
    same = other = 0
    run: list[int] = []
    for line in [*prose().split("\n"), *prose().split(), OUTSIDE]:
        a, b = old(line)["input_ids"], new(line)["input_ids"]
        if set(a) <= kept:
            assert olds[b].tolist() == a
            same += len(a)
            run = b if len(run) < len(b) < 60 else run
        else:
            other += 1
            assert new.decode(b) == old.decode(a)
            assert (new.unk_token_id in b) is (old.unk_token_id in a)
    assert same > 300
    assert other > 100
    assert new.all_special_tokens == old.all_special_tokens
    after, info = auto_class(model_type).from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert after.config.vocab_size == 500
    assert len(run) > 8
    assert torch.allclose(logits(after, run), logits(before, olds[run].tolist())[:, olds], atol=1e-5)


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback", "unigram", "wordpiece"])
def test_any_text_of_kept_tokens_keeps_its_tokens(kind: str) -> None:
    """The slow twin of the closure: every token that is kept is built as before, in any context."""
    from tokenizers import Tokenizer

    from tiebeam.surgery.trim.select_tokens import Chooser
    from tiebeam.tokenizer.keep_tokens import keep_in_json, new_ids
    from tiebeam.tokenizer.vocabulary_pieces import read_pieces

    document = tokenizer_json(kind)
    old = Tokenizer.from_str(json.dumps(document))
    size = old.get_vocab_size()
    random = np.random.default_rng(0)
    words = [*prose().split(), *prose().split("\n")]
    glued = ["".join(random.choice(words, 3)) for _ in range(200)]  # tokens in contexts that no one trained on
    olds = old.encode_batch_fast([*words, *glued], add_special_tokens=False)
    for seed in range(3):
        counts = random.integers(0, 1000, size) * (random.random(size) < 0.3)
        selection = Chooser(read_pieces(document), counts, frozenset()).keep(400 + 40 * seed)
        assert selection.rows == 400 + 40 * seed
        kept = set(selection.kept.tolist())
        new = Tokenizer.from_str(json.dumps(keep_in_json(document, new_ids(selection.kept.tolist()))))
        news = new.encode_batch_fast([*words, *glued], add_special_tokens=False)
        found = 0
        for a, b in zip(olds, news, strict=True):
            if set(a.ids) <= kept:
                assert selection.kept[b.ids].tolist() == a.ids
                found += 1
        assert found > 200


def test_every_id_in_every_config_is_renumbered(text: list[Path], tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", tie_word_embeddings=True)
    document = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    top = max(document["model"]["vocab"].values())
    dropped = list(range(300, 700))
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config |= {"eos_token_id": [1, 650], "image_token_id": 640}
    config["text_config"] = {"boi_token_index": 641, "vocab_size": 701}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config, indent=2))
    ids = {
        "bos_token_id": 700, "eos_token_id": [1, 650], "pad_token_id": 0, "decoder_start_token_id": 630,
        "forced_bos_token_id": 631, "forced_decoder_ids": [[1, 632]], "suppress_tokens": [*dropped, 0],
        "begin_suppress_tokens": [650, -1], "bad_words_ids": [[650, 0], dropped],
        "sequence_bias": [[[650], 3], [dropped, 2.0]], "lang_to_id": {"<en>": 633}, "temperature": 0.7,
    }  # fmt: skip
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(ids))
    added = {str(e["id"]): {k: v for k, v in e.items() if k != "id"} for e in document["added_tokens"]}
    about = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({**about, "added_tokens_decoder": added}))
    (tmp_path / "m" / "added_tokens.json").write_text(json.dumps({"<s>": 700}))
    assert top == 699
    trim(tmp_path / "m", tmp_path / "x", text=text, keep=330, proof=False)
    olds = id_map(tmp_path / "x").tolist()
    new = {old: i for i, old in enumerate(olds)}
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert config["eos_token_id"] == [1, new[650]]
    assert config["image_token_id"] == new[640]
    assert config["text_config"] == {"boi_token_index": new[641], "vocab_size": 330}
    generation = json.loads((tmp_path / "x" / "generation_config.json").read_text())
    assert generation == {
        "bos_token_id": new[700], "eos_token_id": [1, new[650]], "pad_token_id": 0, "decoder_start_token_id": new[630],
        "forced_bos_token_id": new[631], "forced_decoder_ids": [[1, new[632]]],
        "suppress_tokens": [new[i] for i in [*dropped, 0] if i in new], "begin_suppress_tokens": [new[650], -1],
        "bad_words_ids": [[new[650], 0]],
        "sequence_bias": [[[new[650]], 3]], "lang_to_id": {"<en>": new[633]}, "temperature": 0.7,
    }  # fmt: skip
    about = json.loads((tmp_path / "x" / "tokenizer_config.json").read_text())
    assert {i: entry["content"] for i, entry in about["added_tokens_decoder"].items()} == {
        str(new[int(i)]): entry["content"] for i, entry in added.items()
    }
    assert json.loads((tmp_path / "x" / "added_tokens.json").read_text()) == {"<s>": new[700]}
    tokenizer = json.loads((tmp_path / "x" / "tokenizer.json").read_text())
    assert tokenizer["post_processor"]["special_tokens"]["<s>"]["ids"] == [new[700]]


def test_files_of_slow_tokenizers_are_rewritten_or_left_behind(text: list[Path], tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", tie_word_embeddings=True)
    model = json.loads((tmp_path / "m" / "tokenizer.json").read_text())["model"]
    (tmp_path / "m" / "vocab.json").write_text(json.dumps(model["vocab"]))
    pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "m" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    (tmp_path / "m" / "tokenizer.model").write_bytes(b"a SentencePiece model")
    outcome = trim(tmp_path / "m", tmp_path / "x", text=text, keep=400)
    assert not (tmp_path / "x" / "tokenizer.model").exists()
    assert "tokenizer.model: is not copied: it has the old tokens; tokenizer.json takes its place" in map(
        str, outcome.changes
    )
    vocab = json.loads((tmp_path / "x" / "vocab.json").read_text())
    new = json.loads((tmp_path / "x" / "tokenizer.json").read_text())["model"]
    assert vocab == new["vocab"]
    lines = (tmp_path / "x" / "merges.txt").read_text().split("\n")
    assert lines[0] == "#version: 0.2"
    assert lines[1:-1] == [merge if isinstance(merge, str) else " ".join(merge) for merge in new["merges"]]
    assert 0 < len(new["merges"]) < len(pairs)


@pytest.mark.parametrize("as_text", [True, False])
def test_merges_stay_in_the_form_they_were_written_in(as_text: bool, text: list[Path], tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", tie_word_embeddings=True)
    document = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    merges = document["model"]["merges"]
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    document["model"]["merges"] = [" ".join(pair) if as_text else list(pair) for pair in pairs]
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(document))
    trim(tmp_path / "m", tmp_path / "x", text=text, keep=400)
    merges = json.loads((tmp_path / "x" / "tokenizer.json").read_text())["model"]["merges"]
    assert {type(merge) for merge in merges} == {str if as_text else list}


def test_coverage_keeps_the_fewest_rows_that_cover_the_text(text: list[Path], tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", "unigram", tie_word_embeddings=True, padding=8)
    trimming = prepare(open_source(tmp_path / "m", target=tmp_path / "x"), text)
    for share in (0.5, 0.9, 0.999, 1.0):
        selection = trimming.select(coverage=share)
        assert selection.coverage >= share
        rarest = min(i for i in selection.kept.tolist() if i not in trimming.chooser.always)
        assert rarest >= 0
    fewer = trimming.select(coverage=0.9)
    used = fewer.kept[~np.isin(fewer.kept, sorted(trimming.chooser.always))]
    least = trimming.text.counts[used].min()
    assert fewer.coverage - least / trimming.text.tokens < 0.9, "without the rarest it would cover less"
    assert trimming.select(coverage=0.9, pad_to_multiple_of=64).rows % 64 == 0
    outcome = trim(tmp_path / "m", tmp_path / "x", text=text, coverage=0.9, pad_to_multiple_of=64)
    assert outcome.after.vocabulary.rows == trimming.select(coverage=0.9, pad_to_multiple_of=64).rows
    everything = trim(tmp_path / "m", tmp_path / "y", text=text, keep=10_000)
    assert everything.facts["rows"]["before"] - everything.facts["rows"]["after"] == 8, "only padding was dropped"


def test_asked_tokens_stay_with_all_their_pieces(text: list[Path], tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", tie_word_embeddings=True)
    trimming = prepare(open_source(tmp_path / "m", target=tmp_path / "x"), text)
    old = trimming.tokenizer.backend
    rare = int(trimming.text.counts.argmin()) if (trimming.text.counts == 0).any() else 650
    asked = [str(old.id_to_token(rare)), " attribute references"]
    trim(tmp_path / "m", tmp_path / "x", text=text, keep=330, keep_tokens=asked)
    olds = set(id_map(tmp_path / "x").tolist())
    assert {rare, *old.encode(asked[1], add_special_tokens=False).ids} <= olds


def test_bits_per_byte_of_the_table_are_those_of_the_written_model(text: list[Path], tmp_path: Path) -> None:
    from tiebeam.surgery.trim.ladder import measured_text

    save_trimmable(tmp_path / "m", tie_word_embeddings=False)
    outcome = trim(tmp_path / "m", tmp_path / "x", text=text, keep=400, ladder=[400, 512], tokens=200)
    first, *others = outcome.facts["ladder"]["rungs"]
    assert [rung["rows"] for rung in others] == [512, 400]
    trimming = prepare(open_source(tmp_path / "m", target=tmp_path / "y"), text)
    measured = measured_text(trimming.tokenizer, trimming.text.held_out, 200)
    for where, rung in (("m", first), ("x", others[-1])):
        found = open_engine(tmp_path / where).perplexity(measured)
        assert rung["bits_per_byte"] == pytest.approx(found.bits_per_byte, rel=1e-5)
        assert rung["parameters"] == tiebeam.inspect(tmp_path / where).params.total
    assert first["tokens_per_byte"] < others[0]["tokens_per_byte"] < others[1]["tokens_per_byte"]
    assert others[1]["bytes_saved"] == sum(
        (a.nbytes - b.nbytes)
        for a, b in zip(*(load_file(tmp_path / w / "model.safetensors").values() for w in ("m", "x")), strict=True)
    )


def test_held_out_text_is_not_counted(tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", tie_word_embeddings=True)
    (tmp_path / "t.txt").write_text(prose())
    trimming = prepare(open_source(tmp_path / "m", target=tmp_path / "x"), [tmp_path / "t.txt"])
    held = "".join(trimming.text.held_out)
    assert 0.05 < len(held) / len(prose()) < 0.2
    assert trimming.text.nbytes + trimming.text.held_out_bytes == len(prose().encode())
    assert all(chunk in prose() for chunk in trimming.text.held_out)


def test_hot_rows_are_read_by_torch_as_sglang_does(text: list[Path], tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", tie_word_embeddings=True)
    trim(tmp_path / "m", tmp_path / "x", text=text, keep=400, hot_rows=tmp_path / "map.pt")
    listed = torch.load(tmp_path / "map.pt", weights_only=True)
    hot = torch.tensor(listed, dtype=torch.int64)  # what SGLang's load_token_map returns
    assert sorted(hot.tolist()) == sorted(id_map(tmp_path / "x").tolist()), "ids of the source"
    trimming = prepare(open_source(tmp_path / "m", target=tmp_path / "y"), text)
    counts = trimming.text.counts[hot.numpy()]
    assert (np.diff(counts) <= 0).all()
    with pytest.raises(BadRequest, match="exists"):
        trim(tmp_path / "m", tmp_path / "y", text=text, keep=400, hot_rows=tmp_path / "map.pt")
    assert not (tmp_path / "y").exists()


def write_spm_gguf(where: Path, store: str = "Q8_0", size: int = 700) -> Path:
    """An untied llama with a SentencePiece tokenizer in the file."""
    from helpers.lively_models import lively

    metadata = spm_metadata(size)
    rows = len(metadata["tokenizer.ggml.tokens"])
    path = write_gguf(
        lively("llama", vocab_size=rows, tie_word_embeddings=False, intermediate_size=64), where / "plain.gguf", store
    )
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(where / "m.gguf", "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0])
    writer.add_tokenizer_model("llama")
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_scores(metadata["tokenizer.ggml.scores"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(3)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return where / "m.gguf"


def test_a_gguf_keeps_its_blocks_and_its_tokenizer(text: list[Path], tmp_path: Path) -> None:
    source = write_spm_gguf(tmp_path)
    outcome = trim(source, tmp_path / "x.gguf", text=text, keep=450)
    assert outcome.proof is not None
    assert (outcome.proof.ran, outcome.proof.largest) == (True, 0.0)
    assert outcome.after.tie is Tie.UNTIED
    old, new = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "x.gguf")
    kept = new.fields["tiebeam.id_map"].contents()
    assert len(kept) == 450
    for name in ("tokens", "scores", "token_type"):
        before = old.fields[f"tokenizer.ggml.{name}"].contents()
        assert new.fields[f"tokenizer.ggml.{name}"].contents() == [before[i] for i in kept]
    for a, b in zip(old.tensors, new.tensors, strict=True):
        rows = kept if a.name in ("token_embd.weight", "output.weight") else slice(None)
        assert a.tensor_type == b.tensor_type
        assert np.array_equal(a.data[rows], b.data)
    before, after = open_engine(source), open_engine(tmp_path / "x.gguf")
    assert before.tokenizer is not None
    assert after.tokenizer is not None
    for line in prose().split("\n"):
        a, b = before.tokenizer.encode(line), after.tokenizer.encode(line)
        assert after.tokenizer.decode(b) == before.tokenizer.decode(a)
        if set(a) <= set(kept):
            assert [kept[i] for i in b] == a


def test_a_gguf_becomes_a_directory_that_transformers_loads(text: list[Path], tmp_path: Path) -> None:
    source = write_spm_gguf(tmp_path, "F32")
    outcome = trim(source, tmp_path / "x", text=text, keep=450)
    assert outcome.proof is not None
    assert outcome.proof.ran
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    assert len(tokenizer) == model.config.vocab_size == 450
    olds = id_map(tmp_path / "x")
    ids = tokenizer("the value of the attribute")["input_ids"]
    expected = open_engine(source).logits(olds[ids])[:, olds]
    assert np.allclose(logits(model, ids).numpy(), expected, atol=1e-4)
    assert (model.config.eos_token_id, model.generation_config.bos_token_id) == (2, 1)


def test_many_scattered_rows_are_streamed(tmp_path: Path, text: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """More runs of rows than are copied as spans, in windows of a few rows."""
    from tiebeam.surgery import vocabulary_rows

    save_trimmable(tmp_path / "m", tie_word_embeddings=False, dtype="bfloat16")
    trim(tmp_path / "m", tmp_path / "x", text=text, keep=450)
    monkeypatch.setattr(vocabulary_rows, "_SPANS", 1)
    monkeypatch.setattr(vocabulary_rows, "_WINDOW", 700)
    trim(tmp_path / "m", tmp_path / "y", text=text, keep=450)
    x, y = (load_file(tmp_path / name / "model.safetensors") for name in ("x", "y"))
    whole = load_file(tmp_path / "m" / "model.safetensors")
    olds = id_map(tmp_path / "y")
    for name in (EMBED, HEAD):
        assert torch.equal(x[name], y[name])
        assert torch.equal(y[name], whole[name][torch.from_numpy(olds)])


def test_a_trimmed_model_can_be_trimmed_and_extended(text: list[Path], tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", tie_word_embeddings=True)
    trim(tmp_path / "m", tmp_path / "x", text=text, keep=500)
    trim(tmp_path / "x", tmp_path / "y", text=text, keep=400)
    assert trim(tmp_path / "x", tmp_path / "y", text=text, keep=350, force=True).after.vocabulary.rows == 350
    outcome = tiebeam.extend(tmp_path / "y", tmp_path / "z", tokens=["<think>"])
    assert outcome.facts["tokens"][0]["id"] == 350


def test_what_cannot_be_trimmed_is_refused(text: list[Path], tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", tie_word_embeddings=True)
    target = tmp_path / "x"
    for options, said in (
        ({"keep": 100}, "259 tokens that must stay"),
        ({}, "keep=N"),
        ({"keep": 400, "coverage": 0.9}, "keep=N"),
        ({"coverage": 1.5}, "at most 1"),
        ({"keep": 690, "pad_to_multiple_of": 64}, "more rows than the 701 tokens"),
        ({"keep": 400, "ladder": [100]}, "259 tokens must stay"),
    ):
        with pytest.raises(BadRequest, match=said):
            trim(tmp_path / "m", target, text=text, **options)
    (tmp_path / "short.txt").write_text("a few words")
    with pytest.raises(BadRequest, match="too few"):
        trim(tmp_path / "m", target, text=[tmp_path / "short.txt"], keep=400)
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 9000)
    with pytest.raises(UnreadableInput, match="not UTF-8"):
        trim(tmp_path / "m", target, text=[tmp_path / "latin.txt"], keep=400)
    with pytest.raises(UnreadableInput, match="cannot be read"):
        trim(tmp_path / "m", target, text=[tmp_path / "absent.txt"], keep=400)
    with pytest.raises(BadRequest, match="name its directory"):
        trim(tmp_path / "m" / "model.safetensors", target, text=text, keep=400)
    document = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    words = {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps({**document, "model": words, "added_tokens": []}))
    with pytest.raises(BadRequest, match="WordLevel"):
        trim(tmp_path / "m", target, text=text, keep=400)
    (tmp_path / "m" / "tokenizer.json").unlink()
    with pytest.raises(BadRequest, match=r"no tokenizer\.json"):
        trim(tmp_path / "m", target, text=text, keep=400)
    assert not target.exists()


def test_tokens_that_are_not_utf8_keep_their_bytes_at_another_place() -> None:
    import struct

    from tiebeam.checkpoint.write.gguf import _strings

    def stored(*texts: bytes) -> bytes:
        return b"".join(struct.pack("<Q", len(text)) + text for text in texts)

    old = stored(b"a", b"\xff", b"b", "\ufffd".encode() + b"x")
    assert b"".join(_strings(["\ufffd", "b", "\ufffdx"], old)) == stored(b"\xff", b"b", "\ufffd".encode() + b"x")


def test_a_table_that_is_addressed_by_hashes_of_ids_is_refused(tmp_path):
    save_trimmable(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "bigram_rows": 64}))
    with pytest.raises(BadRequest, match="hashes of token ids"):
        trim(tmp_path / "model", tmp_path / "small", text=[write_prose(tmp_path)], keep=500)
    assert not (tmp_path / "small").exists()

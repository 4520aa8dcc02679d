"""`extend` with the real transformers and peft: tied, untied, biases, further tables, shards, GGUF."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiebeam
from helpers.lively_models import lively
from helpers.models_with_tokenizers import TOKENS, as_transformers_4, save_with_tokenizer
from helpers.tiny_ggufs import write_gguf
from helpers.tiny_models import auto_class, build
from tiebeam.errors import BadRequest, ProofFailed, TiebeamError
from tiebeam.pair import Tie
from tiebeam.surgery import extend
from tiebeam.tokenizer import open_tokenizer, rebuild
from tiebeam.tokenizer.add_tokens import NewToken, add_to_gguf

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TEXT = "hello world, hello there; It was a dark and stormy night; café"


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.float()(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_old_tokens_keep_their_logits_and_ids_in_transformers(tied: bool, model_type: str, tmp_path: Path) -> None:
    before = save_with_tokenizer(tmp_path / "m", model_type, tie_word_embeddings=tied)
    outcome = extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    assert outcome.proof is not None
    assert outcome.proof.ran
    assert outcome.proof.largest == 0
    assert outcome.after.tie is (Tie.SHARED if tied else Tie.UNTIED)
    assert outcome.facts["tokens"] == [
        {"text": "<think>", "id": 300, "special": False, "row": "new"},
        {"text": "</think>", "id": 301, "special": False, "row": "new"},
    ]
    assert 0 < outcome.measured["probability"] < 0.2
    old = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    new = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    assert len(new) == 302
    assert new(TEXT)["input_ids"] == old(TEXT)["input_ids"]
    mixed = new("hello<think>world</think>")["input_ids"]
    assert mixed == [*old("hello")["input_ids"], 300, *old("world")["input_ids"], 301]
    assert new.decode(mixed) == "hello<think>world</think>"
    after, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert after.config.vocab_size == 302
    ids = old(TEXT)["input_ids"]
    assert torch.allclose(logits(after, ids)[:, :300], logits(before, ids), atol=1e-5)
    assert logits(after, [*ids, 300, 301]).isfinite().all()


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_have_the_median_norm_and_differ_from_each_other(tied: bool, tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=tied, dtype="bfloat16")
    for init in ("mean", "subwords", "like:hello", "describe:dark and stormy"):
        target = tmp_path / f"x {init[:4]}"
        extend(tmp_path / "m", target, tokens=TOKENS, init=init, proof=False)
        tensors = load_file(target / "model.safetensors")
        assert (HEAD in tensors) is not tied
        for name in (EMBED, HEAD) if not tied else (EMBED,):
            assert tensors[name].dtype == torch.bfloat16
            norms = tensors[name].float().norm(dim=1)
            assert norms[300:] == pytest.approx(float(norms[:300].median()), rel=0.02), (init, name)
            assert not torch.equal(tensors[name][300], tensors[name][301])


def test_subwords_are_the_mean_of_the_pieces_that_the_old_tokenizer_makes(tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=False)
    extend(tmp_path / "m", tmp_path / "x", tokens=["helloworld"], init="subwords")
    pieces = tokenizers.Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json")).encode("helloworld").ids
    assert len(pieces) > 1
    tensors = load_file(tmp_path / "x" / "model.safetensors")
    for name in (EMBED, HEAD):
        expected = tensors[name][pieces].mean(0)
        assert torch.cosine_similarity(expected, tensors[name][300], dim=0) == pytest.approx(1, abs=1e-5)
    extend(tmp_path / "m", tmp_path / "y", tokens=["<a>"], init="like:hello")
    tensors = load_file(tmp_path / "y" / "model.safetensors")
    (like,) = tokenizers.Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json")).encode("hello").ids
    assert torch.cosine_similarity(tensors[HEAD][like], tensors[HEAD][300], dim=0) == pytest.approx(1, abs=1e-5)


def test_untrained_rows_are_left_out_of_means_and_norms(tmp_path: Path) -> None:
    model = save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight[:] = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) + 0.5
        weight[250:] = 0
        weight[240:250] = 77.0
        weight[239] = float("nan")
    model.save_pretrained(tmp_path / "m")
    extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    rows = load_file(tmp_path / "x" / "model.safetensors")[EMBED]
    norm = rows[:239].norm(dim=1).median()
    assert rows[300:].norm(dim=1) == pytest.approx(float(norm), rel=1e-3)
    mean = rows[:239].mean(0)
    along = rows[300:] @ mean / mean.norm()
    assert along == pytest.approx(float(mean.norm()), rel=1e-3), "the mean has its own length in each new row"


def test_padding_rows_are_used_before_new_ones_are_made(tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", rows=301, tie_word_embeddings=True)
    outcome = extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    assert [token["row"] for token in outcome.facts["tokens"]] == ["padding", "new"]
    assert outcome.facts["rows"] == {"before": 301, "after": 302}
    before, after = (load_file(tmp_path / name / "model.safetensors")[EMBED] for name in ("m", "x"))
    assert torch.equal(after[:300], before[:300])
    assert not torch.equal(after[300], before[300])
    assert outcome.proof is not None
    assert outcome.proof.largest == 0


def test_rows_and_multiples_make_padding(tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    extend(tmp_path / "m", tmp_path / "x", tokens=["<a>"], pad_to_multiple_of=64)
    rows = load_file(tmp_path / "x" / "model.safetensors")[EMBED]
    assert len(rows) == 320
    assert torch.equal(rows[301], rows[319]), "padding is recognisable: all rows are the mean"
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "x")) == 301
    outcome = extend(tmp_path / "x", tmp_path / "y", tokens=TOKENS)
    assert [token["id"] for token in outcome.facts["tokens"]] == [301, 302]
    assert outcome.after.vocabulary.rows == 320
    assert extend(tmp_path / "m", tmp_path / "z", rows=333).after.vocabulary.rows == 333


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("bart", {}),
        ("marian", {}),
        ("bert", {}),
        ("t5", {}),
        ("phi", {"tie_word_embeddings": False}),
        ("gpt_neox", {"tie_word_embeddings": False}),
        ("gemma3_text", {}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_every_family_loads_without_missing_or_mismatched_tensors(
    model_type: str, options: dict[str, Any], tmp_path: Path
) -> None:
    if model_type == "marian":
        options = {"pad_token_id": 0, "decoder_start_token_id": 1}
        config = transformers.MarianConfig(
            vocab_size=300, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=48, decoder_ffn_dim=48,
            encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64, eos_token_id=2, **options,
        )  # fmt: skip
        model = transformers.MarianMTModel(config)
        save_with_tokenizer(tmp_path / "m")
        (tmp_path / "m" / "config.json").unlink()
        model.save_pretrained(tmp_path / "m")
        auto: Any = transformers.MarianMTModel
    else:
        model = save_with_tokenizer(tmp_path / "m", model_type, **options)
        auto = auto_class(model_type)
    outcome = extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    assert outcome.after.tie is outcome.before.tie
    loaded, info = auto.from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.get_input_embeddings().weight.shape[0] == 302
    head = loaded.get_output_embeddings()
    assert head.weight.shape[0] == 302
    assert head.bias is None or len(head.bias) == 302
    if hasattr(loaded, "final_logits_bias"):
        assert loaded.final_logits_bias.shape[-1] == 302
    if getattr(loaded.config, "decoder_vocab_size", None):
        assert loaded.config.decoder_vocab_size == 302


def tiny_gemma3n(rows: int, per_layer: int) -> Any:
    config = transformers.Gemma3nTextConfig(
        vocab_size=rows, vocab_size_per_layer_input=per_layer, hidden_size=32, intermediate_size=48,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, hidden_size_per_layer_input=8,
        laurel_rank=4, num_kv_shared_layers=0, altup_num_inputs=2, max_position_embeddings=64,
        layer_types=["full_attention", "full_attention"], activation_sparsity_pattern=[0.0, 0.0],
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Gemma3nForCausalLM(config).eval()


@pytest.mark.parametrize("per_layer", [300, 290])
def test_per_layer_embeddings_grow_too(per_layer: int, tmp_path: Path) -> None:
    """Ids beyond a shorter per-layer table read its row 0, and still do."""
    save_with_tokenizer(tmp_path / "m")
    (tmp_path / "m" / "config.json").unlink()
    model = tiny_gemma3n(300, per_layer)
    model.save_pretrained(tmp_path / "m")
    extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    after, info = transformers.Gemma3nForCausalLM.from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (after.config.vocab_size, after.config.vocab_size_per_layer_input) == (302, 302)
    ids = [5, 289, 295, 299, 17]
    assert torch.allclose(logits(after, ids)[:, :300], logits(model, ids), atol=1e-5)
    per_layer_table = after.model.embed_tokens_per_layer.weight
    assert not torch.equal(per_layer_table[300], per_layer_table[301])


def test_a_multimodal_model_changes_at_every_config_level(tmp_path: Path) -> None:
    text = build("llama", vocab_size=300).config
    vision = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=299)
    model = transformers.LlavaForConditionalGeneration(config)
    save_with_tokenizer(tmp_path / "m")
    (tmp_path / "m" / "config.json").unlink()
    model.save_pretrained(tmp_path / "m")
    document = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**document, "vocab_size": 300}, indent=2))
    extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    changed = json.loads((tmp_path / "x" / "config.json").read_text())
    assert changed["vocab_size"] == changed["text_config"]["vocab_size"] == 302
    loaded, info = transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.get_input_embeddings().weight.shape[0] == 302


def test_every_file_of_a_transformers_4_tokenizer_lists_the_tokens(tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    as_transformers_4(tmp_path / "m")
    extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS, special=True)
    read = {path.name: json.loads(path.read_text()) for path in (tmp_path / "x").glob("*.json")}
    assert read["tokenizer_config.json"]["added_tokens_decoder"]["301"] == {
        "content": "</think>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
        "special": True,
    }  # fmt: skip
    assert read["tokenizer_config.json"]["additional_special_tokens"] == TOKENS
    assert read["special_tokens_map.json"]["additional_special_tokens"] == TOKENS
    assert read["added_tokens.json"] == {"<think>": 300, "</think>": 301}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    ids = tokenizer("<think>hello</think>")["input_ids"]
    assert (ids[0], ids[-1]) == (300, 301)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello"


def test_transformers_5_lists_special_tokens_under_its_own_key(tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    extend(tmp_path / "m", tmp_path / "x", chat="chatml")
    document = json.loads((tmp_path / "x" / "tokenizer_config.json").read_text())
    assert document["extra_special_tokens"] == ["<|im_start|>", "<|im_end|>"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    assert {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.all_special_tokens)
    with pytest.raises(BadRequest, match=r"has 302 rows already; <\|im_start\|> exists already"):
        extend(tmp_path / "x", tmp_path / "y", chat="chatml")


def test_other_bytes_of_tokenizer_json_stay(tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    old, new = ((tmp_path / name / "tokenizer.json").read_text() for name in ("m", "x"))
    tail = old[old.index('"normalizer"') :]
    assert new.endswith(tail)
    assert json.loads(new)["added_tokens"][:-2] == json.loads(old)["added_tokens"]
    rewritten = tokenizers.Tokenizer.from_str(new).to_str(pretty=True)
    assert new.rstrip() == rewritten.rstrip(), "as the tokenizers package writes it"


def test_a_sharded_model_gets_its_index_and_one_new_shard(tmp_path: Path) -> None:
    model = save_with_tokenizer(tmp_path / "m", tie_word_embeddings=False)
    (tmp_path / "m" / "model.safetensors").unlink()
    model.save_pretrained(tmp_path / "m", max_shard_size="40KB")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    outcome = extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS, link=True)
    index = json.loads((tmp_path / "x" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(load_size(path) for path in (tmp_path / "x").glob("*.safetensors"))
    assert outcome.proof is not None
    assert outcome.proof.largest == 0
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.lm_head.weight.shape == (302, 32)


def load_size(path: Path) -> int:
    return sum(tensor.nbytes for tensor in load_file(path).values())


@pytest.mark.parametrize("flag", [True, False])
def test_a_matrix_that_is_stored_twice_stays_equal(flag: bool, tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    save_file({**tensors, HEAD: tensors[EMBED].clone()}, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": flag}))
    outcome = extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    assert outcome.after.tie is Tie.TWIN
    assert outcome.after.pair.equal


def test_a_pytorch_file_is_extended_as_safetensors(tmp_path: Path) -> None:
    model = save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    (tmp_path / "m" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "m" / "pytorch_model.bin")
    extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x")
    assert torch.equal(loaded.get_input_embeddings().weight[:300], model.get_input_embeddings().weight)


@pytest.mark.parametrize("tied", [True, False])
def test_the_printed_peft_lines_train_only_the_new_rows(tied: bool, tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=tied)
    outcome = extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x")
    scope: dict[str, Any] = {"model": model}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec("\n".join(outcome.facts["peft"]), scope)
    adapted = scope["model"]
    before = {name: load_file(tmp_path / "x" / "model.safetensors").get(name) for name in (EMBED, HEAD)}
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    ids = torch.tensor([[5, 300, 7, 301, 9]])
    adapted(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    merged = adapted.merge_and_unload()
    E, W = merged.get_input_embeddings().weight, merged.get_output_embeddings().weight
    assert (E.data_ptr() == W.data_ptr()) is tied
    for weight, old in ((E, before[EMBED]), (W, before[EMBED] if tied else before[HEAD])):
        assert old is not None
        changed = (weight != old).any(dim=1).nonzero().flatten().tolist()
        assert changed == [300, 301]


def write_gguf_with_tokenizer(where: Path, store: str = "F32", padding: int = 0) -> Path:
    """A llama with 300 byte-level tokens and some placeholders, as llama.cpp's converter pads them."""
    from helpers.tiny_tokenizers import write_tokenizer

    write_tokenizer(where.parent, 300)
    document = json.loads((where.parent / "tokenizer.json").read_text())
    (where.parent / "tokenizer.json").unlink()
    texts = [text for text, _ in sorted(document["model"]["vocab"].items(), key=lambda item: item[1])]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in document["model"]["merges"]]
    model = lively("llama", tie_word_embeddings=False, vocab_size=300 + padding, intermediate_size=64)
    plain = write_gguf(model, where.with_name("plain.gguf"), store)
    reader, writer = gguf.GGUFReader(plain), gguf.GGUFWriter(where, "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            value = field.contents()
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(field.name, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*texts, *(f"[PAD{i}]" for i in range(300, 300 + padding))])
    writer.add_token_types([3, *([1] * 299), *([5] * padding)])
    writer.add_token_merges(merges)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return where


@pytest.mark.parametrize(("store", "padding"), [("F32", 0), ("F16", 1), ("Q8_0", 3)])
def test_a_gguf_gets_tokens_types_and_rows(store: str, padding: int, tmp_path: Path) -> None:
    path = write_gguf_with_tokenizer(tmp_path / "m.gguf", store, padding)
    outcome = extend(path, tmp_path / "x.gguf", tokens=["<think>"], special=True)
    outcome = extend(tmp_path / "x.gguf", tmp_path / "y.gguf", tokens=["</think>", "new token"])
    assert outcome.proof is not None
    assert outcome.proof.largest == 0
    reader = gguf.GGUFReader(tmp_path / "y.gguf")
    texts = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    assert texts[300:303] == ["<think>", "</think>", "new token"]
    assert types[300:303] == [3, 4, 4]
    assert len(texts) == len(types) == max(303, 300 + padding)
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes["token_embd.weight"] == shapes["output.weight"] == [32, len(texts)]
    tokenizer = open_tokenizer(tiebeam.open_checkpoint(tmp_path / "y.gguf"))
    assert tokenizer is not None
    assert tokenizer.encode("<think>new token</think>") == [300, 302, 301]
    # transformers 5.22 matches an added token of a GGUF whole if it has the form <...>
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="y.gguf")
    assert loaded("<think>hello</think>")["input_ids"] == tokenizer.encode("<think>hello</think>")
    assert loaded(TEXT)["input_ids"] == tokenizer.encode(TEXT)


def test_a_sentencepiece_gguf_gets_scores_and_a_short_list_of_tokens_is_filled() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁", "a", "▁a"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0, -0.5],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1],
    }
    changed = add_to_gguf(metadata, [NewToken("<think>", 6)], 8)
    assert changed["tokenizer.ggml.tokens"][6:] == ["<think>", "[PAD7]"]
    assert changed["tokenizer.ggml.token_type"][6:] == [4, 5]
    assert changed["tokenizer.ggml.scores"][6:] == [-1000.0, -1000.0]
    tokenizer = rebuild({**metadata, **changed}, "m.gguf")
    assert tokenizer.backend.encode("<think>", add_special_tokens=False).ids == [6]
    assert tokenizer.decode([6]) == "<think>"


def test_repair_changes_untrained_rows_and_nothing_else(tmp_path: Path) -> None:
    model = save_with_tokenizer(tmp_path / "m", tie_word_embeddings=False, initializer_range=0.02)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for matrix in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            matrix[:] = torch.randn(matrix.shape, generator=generator)
        model.get_input_embeddings().weight[[7, 9]] = 0
        model.get_output_embeddings().weight[11] = float("nan")
        model.get_output_embeddings().weight[12] = torch.randn(32, generator=generator) * 0.02
    model.save_pretrained(tmp_path / "m")
    outcome = extend(tmp_path / "m", tmp_path / "x", repair=True)
    assert outcome.facts["repaired"] == [7, 9, 11, 12]
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("m", "x"))
    changed = {
        name: [i for i, (a, b) in enumerate(zip(before[name], after[name], strict=True)) if not torch.equal(a, b)]
        for name in (EMBED, HEAD)
    }
    assert changed == {EMBED: [7, 9], HEAD: [11, 12]}
    assert all(torch.equal(before[name], after[name]) for name in before if name not in changed)
    codes = {finding.code for finding in tiebeam.diagnose(tmp_path / "x", rows=True).findings}
    assert not codes & {"TB706", "TB707"}
    with pytest.raises(BadRequest, match="no untrained rows to repair"):
        extend(tmp_path / "x", tmp_path / "y", repair=True)


def test_added_tokens_without_rows_get_them(tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    tokenizer.add_tokens(TOKENS)
    tokenizer.save_pretrained(tmp_path / "m")
    with pytest.raises(BadRequest, match=r"has 302 ids and the table 300 rows; .* rows=302"):
        extend(tmp_path / "m", tmp_path / "x", tokens=["<more>"])
    outcome = extend(tmp_path / "m", tmp_path / "x", rows=302, init="subwords")
    assert outcome.after.vocabulary.rows == 302
    rows = load_file(tmp_path / "x" / "model.safetensors")[EMBED]
    pieces = tokenizers.Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    assert not torch.equal(rows[300], rows[301])
    ids = [i for i in range(300) if pieces.id_to_token(i) in ("<", ">", "t", "h", "i", "n", "k")]
    assert torch.cosine_similarity(rows[ids].mean(0), rows[300], dim=0) > 0.8
    assert not {f.code for f in tiebeam.diagnose(tmp_path / "x").findings} & {"TB701", "TB702"}


def refused(source: Path, match: str, **arguments: Any) -> None:
    target = source.parent / "refused"
    with pytest.raises(TiebeamError, match=match):
        extend(source, target, **arguments)
    assert not target.exists()


def test_bad_requests_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    m = tmp_path / "m"
    save_with_tokenizer(m, tie_word_embeddings=True)
    refused(m, "'hello' exists already", tokens=["hello"])
    refused(m, "' hello' exists already", tokens=[" hello"])
    refused(m, "'' is empty or only white space", tokens=[""])
    refused(m, "is empty or only white space", tokens=[" \n"])
    refused(m, "'<a>' is given twice", tokens=["<a>", "<a>"])
    refused(m, "'ÃŁ' decodes to", tokens=["ÃŁ"])
    refused(m, "not valid Unicode", tokens=["\udc80"])
    refused(m, "nothing to add")
    refused(m, "rows=299 is less than the 300 rows", rows=299)
    refused(m, 'init must be "mean"', tokens=["<a>"], init="zeros")
    refused(m, "'hello world' is 2 tokens", tokens=["<a>"], init="like:hello world")
    refused(m, "chat must be one of chatml", chat="llama")
    refused(m, "repair=True changes untrained rows only", repair=True, tokens=["<a>"])
    refused(m / "model.safetensors", "is a single file; name the directory", tokens=["<a>"])
    config = json.loads((m / "config.json").read_text())
    (m / "config.json").write_text(json.dumps({**config, "vocab_size": 296}))
    refused(m, "vocab_size is 296 and the table has 300 rows; repair that first", tokens=["<a>"])
    (m / "config.json").write_text(json.dumps(config))
    (m / "tokenizer.json").rename(m / "tokenizer.model")
    refused(m, "has no tokenizer that tokens could be added to", tokens=["<a>"])
    tensors = load_file(m / "model.safetensors")
    save_file({**tensors, HEAD: tensors[EMBED] * 2}, m / "model.safetensors", {"format": "pt"})
    refused(m, "torn", rows=302)


def test_a_written_model_that_is_not_as_planned_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    module = importlib.import_module("tiebeam.surgery.extend.plan_extend")
    real = module.add_to_files

    def spoilt(*arguments: Any) -> dict[str, bytes]:
        files = real(*arguments)
        return {
            name: raw.replace(b'"add_prefix_space": false', b'"add_prefix_space": true') for name, raw in files.items()
        }

    monkeypatch.setattr(module, "add_to_files", spoilt)
    with pytest.raises(ProofFailed, match="encodes to other ids"):
        extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    assert not (tmp_path / "x").exists()

"""GGUF to GGUF with a tensor added or dropped, and GGUF to a directory that transformers loads."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from helpers.lively_models import lively
from helpers.tiny_ggufs import FAMILIES, options, write_gguf
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.inspection import inspect
from tiebeam.pair import Tie
from tiebeam.surgery import tie, untie

QUICK: dict[str, Any] = {"durable": False}


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(4, 40)[None]).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_a_converted_gguf(family, tmp_path):
    from transformers import AutoModelForCausalLM

    model = lively(family, tie_word_embeddings=True, **options(family))
    source = write_gguf(model, tmp_path / "m.gguf")
    outcome = untie(source, tmp_path / "u", **QUICK)
    loaded, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "u", attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert loaded.get_input_embeddings().weight is not loaded.get_output_embeddings().weight
    assert torch.allclose(logits(loaded), logits(model), atol=2e-4)
    assert outcome.proof.ran
    tie(source, tmp_path / "t", **QUICK)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "t", attn_implementation="eager")
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert torch.allclose(logits(loaded), logits(model), atol=2e-4)


def test_an_untied_gguf_keeps_its_head(tmp_path):
    from transformers import AutoModelForCausalLM

    model = lively("llama", tie_word_embeddings=False)
    source = write_gguf(model, tmp_path / "m.gguf")
    untie(source, tmp_path / "u", **QUICK)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "u", attn_implementation="eager")
    assert torch.allclose(logits(loaded), logits(model), atol=2e-4)
    with pytest.raises(BadRequest, match="differ"):
        tie(source, tmp_path / "t", **QUICK)


@pytest.mark.parametrize(("dtype", "kind"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_weights_are_dequantized_to_dtype(dtype, kind, tmp_path):
    from transformers import AutoModelForCausalLM

    model = lively("llama", tie_word_embeddings=True, hidden_size=64, intermediate_size=96)
    outcome = untie(write_gguf(model, tmp_path / "m.gguf", "Q8_0"), tmp_path / "u", **QUICK, dtype=dtype)
    assert outcome.proof.ran
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "u").dtype == kind
    assert outcome.after.pair.head.dtype == dtype


@pytest.mark.parametrize("store", ["F32", "Q8_0", "Q4_0"])
def test_gguf_to_gguf_and_back_is_the_same_file(store, tmp_path):
    model = lively("llama", tie_word_embeddings=True, hidden_size=64, intermediate_size=96)
    source = write_gguf(model, tmp_path / "m.gguf", store)
    outcome = untie(source, tmp_path / "u.gguf", **QUICK)
    assert outcome.after.tie is Tie.TWIN
    assert outcome.proof.largest == 0
    tie(tmp_path / "u.gguf", tmp_path / "b.gguf", **QUICK)
    assert (tmp_path / "b.gguf").read_bytes() == source.read_bytes()
    with pytest.raises(BadRequest, match="already tied: one matrix is stored;"):
        tie(source, tmp_path / "c.gguf", **QUICK)
    with pytest.raises(BadRequest, match="already untied: two tensors are stored;"):
        untie(tmp_path / "u.gguf", tmp_path / "c.gguf", **QUICK)


def test_the_gguf_package_reads_the_result(tmp_path):
    import gguf

    model = lively("llama", tie_word_embeddings=True, hidden_size=64, intermediate_size=96)
    source = write_gguf(model, tmp_path / "m.gguf", "Q8_0", note="kept")
    untie(source, tmp_path / "u.gguf", **QUICK)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "u.gguf")
    assert [f.name for f in after.fields.values()] == [f.name for f in before.fields.values()]
    kept, found = ({t.name: t for t in reader.tensors} for reader in (before, after))
    assert found.keys() - kept.keys() == {"output.weight"}
    assert all(np.array_equal(found[name].data, kept[name].data) for name in kept)
    assert np.array_equal(found["output.weight"].data, kept["token_embd.weight"].data)


def test_two_roundings_of_one_matrix_need_keep(tmp_path):
    import gguf

    from tiebeam.checkpoint import open_checkpoint

    model = lively("llama", tie_word_embeddings=True, hidden_size=64, intermediate_size=96)
    whole = write_gguf(model, tmp_path / "m.gguf")
    writer = gguf.GGUFWriter(tmp_path / "two.gguf", "llama")
    reader = gguf.GGUFReader(whole)
    for field in reader.fields.values():
        if field.name.startswith("llama."):
            value = field.contents()
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(field.name, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    table = open_checkpoint(whole).tensor("token_embd.weight")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("output.weight", gguf.quants.quantize(np.array(table), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert inspect(tmp_path / "two.gguf").tie is Tie.TWIN
    with pytest.raises(BadRequest, match="only up to rounding"):
        tie(tmp_path / "two.gguf", tmp_path / "t.gguf", **QUICK)
    outcome = tie(tmp_path / "two.gguf", tmp_path / "t.gguf", **QUICK, keep="head")
    assert outcome.after.pair.embed.dtype == "Q8_0"


def test_a_family_that_cannot_be_converted_lists_those_that_can(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.ones((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadRequest, match=r"cannot be written for transformers; .*gpt2, .*llama, .*qwen2"):
        untie(tmp_path / "m.gguf", tmp_path / "u", **QUICK)
    untie(tmp_path / "m.gguf", tmp_path / "u.gguf", **QUICK)
    assert inspect(tmp_path / "u.gguf").tie is Tie.TWIN


def test_the_config_has_short_numbers_and_no_defaults(tmp_path):
    model = lively("llama", tie_word_embeddings=True, rms_norm_eps=1e-5)
    untie(write_gguf(model, tmp_path / "m.gguf"), tmp_path / "u", **QUICK)
    config = json.loads((tmp_path / "u" / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"] is False
    assert "partial_rotary_factor" not in config


@pytest.mark.parametrize("missing", ["block_count", "embedding_length", "attention.head_count"])
def test_a_gguf_without_a_size_is_refused_in_one_sentence(missing, tmp_path):
    """The family's default would be another model's size."""
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key, value in (("block_count", 1), ("embedding_length", 64), ("attention.head_count", 2)):
        if key != missing:
            writer.add_uint32(f"llama.{key}", value)
    writer.add_tensor("token_embd.weight", np.ones((40, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnreadableInput, match=f"has no llama.{missing}, which config.json needs"):
        untie(tmp_path / "m.gguf", tmp_path / "u", **QUICK)
    assert untie(tmp_path / "m.gguf", tmp_path / "u.gguf", **QUICK).after.tie is Tie.TWIN

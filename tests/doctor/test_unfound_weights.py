"""TB801-TB808 against the real transformers: what it does before the fix, and that the fixed model loads whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from helpers.tiny_models import build
from tiebeam.doctor import diagnose
from tiebeam.doctor.fix import plan_fix

Tensors = dict[str, torch.Tensor]
SHARD = "model-00001-of-00001.safetensors"


def saved(where: Path, model_type: str = "llama", tied: bool = True) -> Any:
    model = build(model_type, tie_word_embeddings=tied)
    model.save_pretrained(where)
    return model


def change(where: Path, edit: Callable[[Tensors], Tensors], file: str = "model.safetensors") -> None:
    tensors = edit(load_file(where / "model.safetensors"))
    (where / "model.safetensors").unlink()
    save_file(tensors, where / file, {"format": "pt"})


def set_flag(where: Path, value: Any) -> None:
    config = json.loads((where / "config.json").read_text())
    config["tie_word_embeddings"] = value
    (where / "config.json").write_text(json.dumps(config))


def codes(where: Path) -> list[str]:
    return [finding.code for finding in diagnose(where).findings]


def load(where: Path) -> tuple[Any, dict[str, Any]]:
    return AutoModelForCausalLM.from_pretrained(where, output_loading_info=True)


def assert_fixed(where: Path, model: Any) -> None:
    """`--fix` writes a model without findings, which transformers loads whole, with the original's logits."""
    target = where.with_name("fixed")
    plan_fix(where).write(target)
    assert codes(target) == []
    loaded, info = load(target)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = torch.arange(4, 24)[None]
    with torch.no_grad():
        assert torch.equal(loaded.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "base_model.model.", "module._orig_mod.", "_forward_module."]
)
@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_a_wrapper_prefix_is_found_and_stripped(prefix: str, model_type: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "m", model_type)
    stored = set(load_file(tmp_path / "m" / "model.safetensors"))
    change(tmp_path / "m", lambda t: {f"{prefix}{name}": value for name, value in t.items()})
    assert codes(tmp_path / "m") == ["TB801"]
    assert set(load(tmp_path / "m")[1]["missing_keys"]) >= stored, "transformers takes nothing"
    assert_fixed(tmp_path / "m", model)


def test_a_prefix_inside_the_names_of_compiled_layers_is_stripped(tmp_path: Path) -> None:
    model = saved(tmp_path / "m")
    change(tmp_path / "m", lambda t: {name.replace("layers.0.", "layers.0._orig_mod."): v for name, v in t.items()})
    assert codes(tmp_path / "m") == ["TB801"]
    assert load(tmp_path / "m")[1]["missing_keys"]
    assert_fixed(tmp_path / "m", model)


def test_a_prefix_over_lora_factors_is_left_to_a_merge(tmp_path: Path) -> None:
    saved(tmp_path / "m")
    lora = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight": torch.ones(2, 32)}
    change(tmp_path / "m", lambda t: {f"base_model.model.{name}": value for name, value in t.items()} | lora)
    planned = plan_fix(tmp_path / "m")
    assert planned.plan is None
    assert [finding.code for finding in planned.left] == ["TB801"]


def test_a_prefix_over_a_torn_pair_is_stripped_together_with_its_fix(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", tied=False)
    set_flag(tmp_path / "m", True)
    change(tmp_path / "m", lambda t: {f"module.{name}": value for name, value in t.items()})
    assert codes(tmp_path / "m") == ["TB101", "TB801"]
    assert_fixed(tmp_path / "m", model)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("old", ["", "model."])
def test_a_doubled_prefix_is_read_by_transformers_5_and_found_for_the_others(
    old: str, tied: bool, tmp_path: Path
) -> None:
    """`model.` before every name, or only before the body's; tests/peers shows what the others do with it."""
    model = saved(tmp_path / "m", tied=tied)
    change(tmp_path / "m", lambda t: {f"model.{n}" if n.startswith(old) else n: value for n, value in t.items()})
    assert load(tmp_path / "m")[1]["missing_keys"] == set()
    diagnosis = diagnose(tmp_path / "m")
    assert [finding.code for finding in diagnosis.findings] == ["TB801"]
    outcomes = {found.loader: found.outcome for found in diagnosis.loaders}
    assert outcomes["transformers 5"] == ("ties" if tied else "keeps both")
    assert outcomes["mlx-lm"] == outcomes["llama.cpp converter"] == "refuses"
    assert_fixed(tmp_path / "m", model)


def test_names_without_the_base_prefix_are_no_finding(tmp_path: Path) -> None:
    """transformers loads them."""
    saved(tmp_path / "m")
    change(tmp_path / "m", lambda t: {n.removeprefix("model."): v for n, v in t.items()})
    assert "TB801" not in codes(tmp_path / "m")
    assert not load(tmp_path / "m")[1]["missing_keys"]


@pytest.mark.parametrize(
    ("stored", "foreign"), [("lm_head.weight", "output.weight"), ("lm_head.weight", "embed_out.weight")]
)
def test_a_foreign_head_name_is_found_and_renamed(stored: str, foreign: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "m", tied=False)
    change(tmp_path / "m", lambda t: {foreign if name == stored else name: value for name, value in t.items()})
    assert codes(tmp_path / "m") == ["TB802"]
    info = load(tmp_path / "m")[1]
    assert set(info["missing_keys"]) == {stored}, "a random head"
    assert_fixed(tmp_path / "m", model)


@pytest.mark.parametrize("file", ["weights.safetensors", "consolidated.safetensors", SHARD, "model.fp16.safetensors"])
def test_a_file_that_loaders_do_not_look_for_is_found_and_renamed(file: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "m")
    change(tmp_path / "m", dict, file)
    assert codes(tmp_path / "m") == ["TB803"]
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        load(tmp_path / "m")
    assert_fixed(tmp_path / "m", model)


def test_shards_without_an_index_get_one(tmp_path: Path) -> None:
    model = build("llama", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "m", max_shard_size="20kB")
    (tmp_path / "m" / "model.safetensors.index.json").unlink()
    assert codes(tmp_path / "m") == ["TB803"]
    with pytest.raises(OSError, match="no file named"):
        load(tmp_path / "m")
    assert_fixed(tmp_path / "m", model)


def test_a_pytorch_file_under_another_name_becomes_safetensors(tmp_path: Path) -> None:
    model = saved(tmp_path / "m")
    torch.save(load_file(tmp_path / "m" / "model.safetensors"), tmp_path / "m" / "model.pt")
    (tmp_path / "m" / "model.safetensors").unlink()
    assert codes(tmp_path / "m") == ["TB803"]
    assert_fixed(tmp_path / "m", model)


def test_a_file_that_a_person_named_is_no_finding(tmp_path: Path) -> None:
    saved(tmp_path / "m")
    change(tmp_path / "m", dict, "weights.safetensors")
    assert codes(tmp_path / "m" / "weights.safetensors") == []


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("value", [None, "true", "false", 1])
def test_a_flag_that_is_no_boolean_is_found_and_written(value: Any, tied: bool, tmp_path: Path) -> None:
    """The weights decide: one matrix is tied, two different ones are not."""
    model = saved(tmp_path / "m", tied=tied)
    set_flag(tmp_path / "m", value)
    assert codes(tmp_path / "m") == ["TB804"]
    with pytest.raises(Exception, match="expected bool"):
        load(tmp_path / "m")
    assert_fixed(tmp_path / "m", model)


def test_a_stale_index_entry_is_a_note_and_dropped(tmp_path: Path) -> None:
    model = saved(tmp_path / "m")
    change(tmp_path / "m", dict, SHARD)
    names = [*load_file(tmp_path / "m" / SHARD), "lm_head.weight"]
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, SHARD)}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert codes(tmp_path / "m") == ["TB807"]
    assert str(diagnose(tmp_path / "m").worst) == "note"
    assert not load(tmp_path / "m")[1]["missing_keys"], "transformers loads it"
    assert_fixed(tmp_path / "m", model)
    written = json.loads((tmp_path / "fixed" / "model.safetensors.index.json").read_text())
    assert "lm_head.weight" not in written["weight_map"]


def test_a_directory_that_mlx_quantized_is_refused_by_transformers(tmp_path: Path) -> None:
    """Packed by the real mlx, with the config that mlx-lm 0.32 writes."""
    mx = pytest.importorskip("mlx.core")
    saved(tmp_path / "m")
    tensors: dict[str, Any] = {}
    for name, value in load_file(tmp_path / "m" / "model.safetensors").items():
        if value.ndim == 2 and value.shape[1] % 32 == 0:
            stem = name.removesuffix("weight")
            packed = mx.quantize(mx.array(value.numpy()), group_size=32, bits=4)
            tensors |= dict(zip((name, f"{stem}scales", f"{stem}biases"), packed, strict=True))
        else:
            tensors[name] = mx.array(value.numpy())
    mx.save_safetensors(str(tmp_path / "m" / "model.safetensors"), tensors, {"format": "mlx"})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["quantization"] = config["quantization_config"] = {"group_size": 32, "bits": 4, "mode": "affine"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    assert codes(tmp_path / "m") == ["TB805"]
    with pytest.raises(ValueError, match="quant_method"):
        load(tmp_path / "m")


def test_a_bin_beside_the_safetensors_is_a_note_only_if_its_tensors_differ(tmp_path: Path) -> None:
    """Two names of one storage, as torch saves a tied model, are the same tensors."""
    model = saved(tmp_path / "m")
    torch.save(model.state_dict(), tmp_path / "m" / "pytorch_model.bin")
    assert codes(tmp_path / "m") == []
    torch.save({**model.state_dict(), "score.weight": torch.ones(2, 32)}, tmp_path / "m" / "pytorch_model.bin")
    (finding,) = diagnose(tmp_path / "m").findings
    assert finding.code == "TB808"
    assert finding.evidence == "loaders read model.safetensors; only the PyTorch copy has score.weight"
    _, info = load(tmp_path / "m")
    assert not info["unexpected_keys"], "transformers reads the safetensors"


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox", "bloom", "opt", "t5", "bart", "bert", "mamba"])
def test_a_model_as_transformers_saves_it_has_none_of_these(model_type: str, tmp_path: Path) -> None:
    build(model_type).save_pretrained(tmp_path / "m")
    assert not [code for code in codes(tmp_path / "m") if code.startswith("TB8")]

"""Adapters that do not fit: one sentence each, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.lively_models import lively
from helpers.tiny_models import build
from helpers.trained_adapters import Trained, train_adapter
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput
from tiebeam.surgery.merge import merge

Tensors = dict[str, torch.Tensor]
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return train_adapter(tmp_path, target_modules=["q_proj"], modules_to_save=["lm_head"])


def refused(trained: Trained, match: str, kind: type[TiebeamError] = BadRequest, **options: Any) -> None:
    where = trained.base.parent
    before = {path: path.stat().st_mtime_ns for path in where.rglob("*")}
    with pytest.raises(kind, match=match) as caught:
        merge(trained.base, trained.adapter, where / "merged", **options)
    assert "\n" not in str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in where.rglob("*")} == before, "nothing was written"


def configure(trained: Trained, **changes: Any) -> None:
    path = trained.adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite(trained: Trained, change: Callable[[Tensors], Tensors]) -> None:
    path = trained.adapter / "adapter_model.safetensors"
    save_file({name: value.contiguous() for name, value in change(load_file(path)).items()}, path)


@pytest.mark.parametrize("kind", ["LOHA", "IA3", "PROMPT_TUNING", "ADALORA", ["LORA"]])
def test_kinds_that_are_not_known_are_named(trained: Trained, kind: Any) -> None:
    configure(trained, peft_type=kind)
    refused(trained, "is an adapter of type .*only LORA and TRAINABLE_TOKENS")


def test_a_real_loha_adapter_is_refused(tmp_path: Path) -> None:
    config = peft.LoHaConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    refused(train_adapter(tmp_path, config=config), "type LOHA")


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("alora_invocation_tokens", [1], "invocation tokens"),
        ("layer_replication", [[0, 2]], "layer replication"),
        ("use_qalora", True, "QA-LoRA"),
        ("target_parameters", ["mlp.experts.down_proj"], "target_parameters"),
        ("init_lora_weights", "pissa_niter_4", "path_initial_model_for_weight_conversion"),
    ],
)
def test_settings_that_change_what_factors_mean_are_refused(trained: Trained, key: str, value: Any, named: str) -> None:
    configure(trained, **{key: value})
    refused(trained, named)


def test_an_adapter_for_another_base_names_what_is_missing(trained: Trained) -> None:
    rewrite(trained, lambda t: {n.replace("layers.1.", "layers.9."): v for n, v in t.items()})
    refused(trained, r"changes model\.layers\.9\.self_attn\.q_proj, which .* does not have \(1 of 3 targets")


def test_an_adapter_for_a_wider_base_is_refused(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, target_modules=["down_proj"])
    wide = lively("llama", intermediate_size=64)
    wide.save_pretrained(trained.base)
    refused(trained, r"make a matrix \[32, 48\] but .*down_proj.weight of .* is \[32, 64\]; the adapter was trained on")


def test_another_recorded_base_is_a_note_because_names_differ_legitimately(trained: Trained) -> None:
    configure(trained, base_model_name_or_path="org/some-other-model")
    outcome = merge(trained.base, trained.adapter, trained.base.parent / "merged", durable=False)
    assert any("was trained on org/some-other-model" in note for note in outcome.notes)


def test_fewer_rows_than_the_base_are_refused_with_the_way_out(trained: Trained) -> None:
    rewrite(trained, lambda t: {n: v[:90] if "lm_head" in n else v for n, v in t.items()})
    refused(trained, "has 90 rows and the base 96.*merge it into the base that it was trained on")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [f"{Q}.lora_A.weight", "base_model.model.lm_head.weight"])
def test_nan_in_the_adapter_is_refused(trained: Trained, where: str, value: float) -> None:
    def spoil(tensors: Tensors) -> Tensors:
        tensors[where][-1, -1] = value
        return tensors

    rewrite(trained, spoil)
    refused(trained, "holds a NaN or an infinity", UnreadableInput)


def test_missing_files_are_named(trained: Trained) -> None:
    (trained.adapter / "adapter_model.safetensors").unlink()
    refused(trained, "no adapter_model.safetensors or .bin", UnreadableInput)
    (trained.adapter / "adapter_config.json").unlink()
    refused(trained, "has no adapter_config.json", UnreadableInput)
    with pytest.raises(UnreadableInput, match="hf download org/adapter"):
        merge(trained.base, "org/adapter", trained.base.parent / "merged")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"r": 8}, "the rank of .* is 8 by adapter_config.json and 4 in its factors"),
        ({"rank_pattern": {"q_proj": 2}}, "is 2 by adapter_config.json and 4"),
        ({"rank_pattern": {"(": 2}}, "is not valid"),
        ({"rank_pattern": {"(a+)+$": 2}}, "too costly to match"),
        ({"lora_alpha": None}, "lora_alpha is None, not a number"),
        ({"lora_alpha": "8"}, "lora_alpha is '8', not a number"),
    ],
)
def test_ranks_and_alphas_that_do_not_fit_are_refused(trained: Trained, changes: dict[str, Any], match: str) -> None:
    configure(trained, **changes)
    refused(trained, match, UnreadableInput)


def test_incomplete_factors_are_refused(trained: Trained) -> None:
    rewrite(trained, lambda t: {n: v for n, v in t.items() if n != f"{Q}.lora_B.weight"})
    refused(trained, r"has no lora_B for model\.layers\.0\.self_attn\.q_proj", UnreadableInput)


def test_rows_without_their_ids_are_refused(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, target_modules=["q_proj"], trainable_token_indices=[3, 4])
    configure(trained, trainable_token_indices=[3])
    refused(trained, "lists 1 token ids", UnreadableInput)
    configure(trained, trainable_token_indices=None)
    refused(trained, "no list of token ids", UnreadableInput)


def test_a_bias_of_lora_b_needs_one_in_the_base(tmp_path: Path) -> None:
    refused(train_adapter(tmp_path, target_modules=["q_proj"], lora_bias=True), "trained a bias .* the base has none")


def test_a_packed_base_is_refused_with_the_way_out(trained: Trained) -> None:
    file = trained.base / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.self_attn.q_proj"
    tensors[f"{name}.qweight"] = torch.zeros((4, 64), dtype=torch.int32)
    tensors[f"{name}.scales"] = torch.ones((1, 64))
    del tensors[f"{name}.weight"]
    save_file(tensors, file, {"format": "pt"})
    refused(trained, "GPTQ or AWQ.*before it was quantized")


def test_dora_is_not_added_to_another_adapter_or_scaled(tmp_path: Path) -> None:
    one, two = (train_adapter(tmp_path, target_modules=["q_proj"], use_dora=True, name=n) for n in ("one", "two"))
    with pytest.raises(BadRequest, match=r"DoRA on .* cannot be combined"):
        merge(one.base, [one.adapter, two.adapter], tmp_path / "merged")
    with pytest.raises(BadRequest, match=r"cannot be scaled by weight=0\.5"):
        merge(one.base, one.adapter, tmp_path / "merged", weight=0.5)


def test_two_full_copies_need_weights(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "tied": False}
    pair = [train_adapter(tmp_path, name=name, **options) for name in ("one", "two")]
    with pytest.raises(BadRequest, match="both hold a full copy of the head"):
        merge(pair[0].base, [t.adapter for t in pair], tmp_path / "merged")


@pytest.mark.parametrize("weight", [[0.5, 0.5], [], float("nan")])
def test_weights_must_be_numbers_one_per_adapter(trained: Trained, weight: Any) -> None:
    refused(trained, "weight", weight=weight)


def test_a_failed_proof_leaves_nothing(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer computes something else than the proof: here, half of every change."""
    from tiebeam.errors import ProofFailed
    from tiebeam.surgery.merge import tensor_update

    original = tensor_update.add_product
    monkeypatch.setattr(tensor_update, "add_product", lambda x, left, right: original(x, left * np.float32(0.5), right))
    refused(trained, "from the base with the adapter on the probe tokens", ProofFailed)


def test_an_overflow_of_f16_is_refused(tmp_path: Path) -> None:
    from tiebeam.errors import ProofFailed

    trained = train_adapter(tmp_path, dtype=torch.float16, target_modules=["q_proj"], lora_alpha=10_000_000)
    refused(trained, "leaves the range of its type F16", ProofFailed)


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 64, b'{"peft_type": "LORA", "r": [[[]]]}', b"[]", b"{"])
def test_a_garbage_config_is_one_sentence(trained: Trained, garbage: bytes) -> None:
    (trained.adapter / "adapter_config.json").write_bytes(garbage)
    refused(trained, ".", TiebeamError)


def test_an_encoder_without_a_pair_is_still_merged(tmp_path: Path) -> None:
    """No LM head, nothing to prove with an engine: said, not hidden."""
    trained = train_adapter(tmp_path, built=lambda: build("llama"), target_modules=["q_proj"])
    path = trained.base / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "no_such_type"}))
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    assert outcome.proof is not None
    assert not outcome.proof.ran
    assert "no_such_type" in outcome.proof.why

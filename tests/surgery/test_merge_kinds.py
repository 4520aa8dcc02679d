"""Every kind of adapter that PEFT writes, merged: the result computes what PEFT's live model computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch

from helpers.trained_adapters import Trained, live_logits, loaded_logits, train_adapter
from tiebeam.errors import ProofFailed
from tiebeam.pair import Tie
from tiebeam.surgery.merge import merge

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ROWS = [5, 90, 91]
ON_LAYERS: dict[str, dict[str, Any]] = {
    "LoRA": {"target_modules": LINEAR},
    "rsLoRA": {"target_modules": LINEAR, "use_rslora": True},
    "rank and alpha patterns": {
        "target_modules": LINEAR,
        "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.up_proj": 6},
        "alpha_pattern": {"k_proj": 11},
    },
    "DoRA": {"target_modules": LINEAR, "use_dora": True},
    "a copy of the norm": {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
    "biases": {"target_modules": ["q_proj"], "bias": "all"},
}
ON_THE_PAIR: dict[str, dict[str, Any]] = {
    "LoRA on the head": {"target_modules": ["q_proj", "lm_head"]},
    "LoRA on the embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "LoRA on both": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "DoRA on the head": {"target_modules": ["lm_head"], "use_dora": True},
    "DoRA on the embedding": {"target_modules": ["embed_tokens"], "use_dora": True},
    "a copy of the head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "a copy of the embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "copies of both": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "rows of the embedding": {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": ROWS}},
    "rows of the head": {"target_modules": ["q_proj"], "trainable_token_indices": {"lm_head": ROWS}},
    "the same rows of both": {
        "target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": ROWS, "lm_head": ROWS},
    },
    "other rows of each": {
        "target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": ROWS, "lm_head": [5, 92]},
    },
    "a list of rows": {"target_modules": ["q_proj"], "trainable_token_indices": ROWS},
}  # fmt: skip
STAYS_TIED = {"rows of the embedding", "the same rows of both", "a list of rows"}
STAYS_TIED_WITH_ENSURE = {
    "LoRA on the head", "LoRA on the embedding", "LoRA on both", "a copy of the head", "a copy of the embedding",
    "copies of both", *STAYS_TIED,
}  # fmt: skip


def merged(trained: Trained, where: Path) -> Any:
    outcome = merge(trained.base, trained.adapter, where / "merged", durable=False)
    assert outcome.proof is not None
    assert outcome.proof.ran, outcome.proof.why
    assert np.abs(loaded_logits(where / "merged") - trained.logits).max() < 1e-5
    return outcome


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ON_LAYERS)
def test_changes_of_the_layers_leave_the_pair_as_it_is(kind: str, tied: bool, tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, "qwen2" if kind == "biases" else "llama", tied=tied, **ON_LAYERS[kind])
    outcome = merged(trained, tmp_path)
    assert outcome.after.tie is (Tie.SHARED if tied else Tie.UNTIED)
    assert np.abs(live_logits(trained.model.merge_and_unload()) - trained.logits).max() < 1e-4, "PEFT's merge agrees"


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_a_strongly_trained_adapter_is_merged_and_a_merge_with_another_strength_is_not(
    scale: float, tmp_path: Path
) -> None:
    """Large weights turn the last bits of the merged weights into visible differences of the logits."""
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.surgery.merge import open_adapters
    from tiebeam.surgery.merge.merge_proof import MergeProof
    from tiebeam.surgery.source import open_source

    trained = train_adapter(tmp_path, scale=scale, r=8, lora_alpha=32, target_modules=LINEAR)
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    assert outcome.proof is not None
    assert outcome.proof.ran
    proof = MergeProof(open_source(trained.base), tuple(open_adapters(trained.adapter, 1.0 + 1e-4)))
    with pytest.raises(ProofFailed, match=r"is [\d.e-]+ from the base with the adapter"):
        proof.prove(open_checkpoint(tmp_path / "merged"), "auto", None)


@pytest.mark.parametrize("kind", ON_THE_PAIR)
def test_an_untied_pair_gets_what_was_trained(kind: str, tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, tied=False, **ON_THE_PAIR[kind])
    assert merged(trained, tmp_path).after.tie is Tie.UNTIED
    assert np.abs(live_logits(trained.model.merge_and_unload()) - trained.logits).max() < 1e-4, "PEFT's merge agrees"


@pytest.mark.parametrize("kind", ON_THE_PAIR)
def test_a_tied_pair_is_untied_only_if_its_ends_differ(kind: str, tmp_path: Path) -> None:
    outcome = merged(train_adapter(tmp_path, tied=True, **ON_THE_PAIR[kind]), tmp_path)
    assert outcome.after.tie is (Tie.SHARED if kind in STAYS_TIED else Tie.UNTIED)
    assert ("stays tied" if kind in STAYS_TIED else "so the result is untied") in outcome.notes[0]


@pytest.mark.parametrize("kind", [kind for kind in ON_THE_PAIR if kind != "other rows of each"])
def test_ensure_weight_tying_keeps_what_peft_kept_equal(kind: str, tmp_path: Path) -> None:
    """With LoRA, PEFT's own merge adds the change twice; the live model has it once."""
    outcome = merged(train_adapter(tmp_path, tied=True, ensure_weight_tying=True, **ON_THE_PAIR[kind]), tmp_path)
    assert outcome.after.tie is (Tie.SHARED if kind in STAYS_TIED_WITH_ENSURE else Tie.UNTIED)


@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_of_rows_alone_is_merged(tied: bool, tmp_path: Path) -> None:
    """peft_type TRAINABLE_TOKENS."""
    config = peft.TrainableTokensConfig(token_indices=ROWS, target_modules=["embed_tokens"], task_type="CAUSAL_LM")
    outcome = merged(train_adapter(tmp_path, tied=tied, config=config), tmp_path)
    assert outcome.after.tie is (Tie.SHARED if tied else Tie.UNTIED)


def test_the_bias_of_lora_b_is_added_to_the_layers_own(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, "qwen2", target_modules=["q_proj"], lora_bias=True)
    merged(trained, tmp_path)


def test_several_adapters_add_up_and_are_weighted(tmp_path: Path) -> None:
    """As PEFT combines them: `cat` gives the sum of the weighted changes."""
    first = train_adapter(tmp_path, target_modules=["q_proj", "down_proj"], name="first")
    second = train_adapter(tmp_path, target_modules=["q_proj", "up_proj"], name="second", seed=7, r=2)
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(first.base).eval()
    model = peft.PeftModel.from_pretrained(base, first.adapter, "a")
    model.load_adapter(second.adapter, "b")
    model.add_weighted_adapter(["a", "b"], [0.7, 0.3], "both", combination_type="cat")
    model.set_adapter("both")
    merge(first.base, [first.adapter, second.adapter], tmp_path / "merged", weight=[0.7, 0.3], durable=False)
    assert np.abs(loaded_logits(tmp_path / "merged") - live_logits(model.eval())).max() < 1e-5
    model.base_model.set_adapter(["a", "b"])
    merge(first.base, [first.adapter, second.adapter], tmp_path / "sum", durable=False)
    assert np.abs(loaded_logits(tmp_path / "sum") - live_logits(model.eval())).max() < 1e-5


def test_full_copies_are_averaged_by_their_weights(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    trained = [
        train_adapter(
            tmp_path, tied=False, target_modules=["q_proj"], modules_to_save=["lm_head"], name=name, seed=seed
        )
        for name, seed in (("a", 1), ("b", 2))
    ]
    merge(trained[0].base, [t.adapter for t in trained], tmp_path / "mean", weight=[0.5, 0.5], durable=False)
    copies = [load_file(t.adapter / "adapter_model.safetensors")["base_model.model.lm_head.weight"] for t in trained]
    found = load_file(tmp_path / "mean" / "model.safetensors")["lm_head.weight"]
    assert np.allclose(found, (copies[0] + copies[1]) / 2, atol=1e-6)


@pytest.mark.parametrize("dora", [False, True])
def test_conv1d_layers_are_stored_the_other_way_round(dora: bool, tmp_path: Path) -> None:
    """GPT-2; c_proj of the attention is square, so its shape does not tell."""
    trained = train_adapter(tmp_path, "gpt2", target_modules=["c_attn", "c_proj", "wte", "lm_head"], use_dora=dora)
    merged(trained, tmp_path)


def test_an_adapter_in_a_bin_file_is_read(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, target_modules=["q_proj", "lm_head"])
    file = trained.adapter / "adapter_model.safetensors"
    from safetensors.torch import load_file

    torch.save(load_file(file), trained.adapter / "adapter_model.bin")
    file.unlink()
    merged(trained, tmp_path)


@pytest.mark.parametrize("spelling", ["with the adapter's name", "compiled", "unembed_tokens", "without base_model"])
def test_other_spellings_of_the_same_adapter_are_read(spelling: str, tmp_path: Path) -> None:
    """Trainers that save the state dict themselves keep names that PEFT removes; Tinker has its own for the head."""
    trained = train_adapter(tmp_path, target_modules=["q_proj", "lm_head"], modules_to_save=["embed_tokens"])
    from safetensors.torch import load_file, save_file

    file = trained.adapter / "adapter_model.safetensors"
    change = {
        "with the adapter's name": lambda n: re.sub(r"lora_([AB])\.", r"lora_\1.default.", n)
        .replace("embed_tokens.weight", "embed_tokens.modules_to_save.default.weight"),
        "compiled": lambda n: f"_orig_mod.{n}",
        "unembed_tokens": lambda n: n.replace("base_model.model.lm_head.", "base_model.model.model.unembed_tokens."),
        "without base_model": lambda n: n.removeprefix("base_model.model."),
    }[spelling]  # fmt: skip
    tensors = {change(name): value for name, value in load_file(file).items()}
    assert spelling == "compiled" or set(tensors) != set(load_file(file))
    save_file(tensors, file)
    merged(trained, tmp_path)

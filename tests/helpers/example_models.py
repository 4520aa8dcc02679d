"""The models and the text that the examples in README and docs are run on."""

from __future__ import annotations

import logging
from pathlib import Path

from helpers.tiny_models import build


def write_examples(where: Path) -> Path:
    """tied: a healthy model. adapter: LoRA on it. merged: declared tied, but with a different LM head. text: forty
    small files."""
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file

    logging.getLogger("transformers").setLevel(logging.ERROR)
    tied = build("qwen2", tie_word_embeddings=True)
    tied.save_pretrained(where / "tied")
    tied.name_or_path = "tied"
    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(tied, lora).save_pretrained(where / "adapter")
    build("llama", tie_word_embeddings=True).save_pretrained(where / "merged")
    tensors = load_file(where / "merged" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 1.5
    save_file(tensors, where / "merged" / "model.safetensors", {"format": "pt"})
    (where / "text").mkdir()
    for i in range(40):
        (where / "text" / f"{i}.txt").write_text(f"The {i}th cat sat on the mat, and the dog ran {i * 3} miles. " * 30)
    return where

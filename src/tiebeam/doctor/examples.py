"""Tiny real cases that the rules build their examples from: a llama, a PEFT adapter on it, a model in memory.

numpy, safetensors and torch are imported when an example is built: the rules are imported by every diagnosis.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch
    from torch import nn

    from tiebeam.doctor.rule import Finding

VOCAB, DIM = 40, 8
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Tensors = Mapping[str, "np.ndarray"]


def matrix(seed: int, rows: int = VOCAB) -> np.ndarray:  # -> [rows, DIM]
    """A random embedding or head; the same seed gives the same values."""
    import numpy as np

    return np.random.default_rng(seed).standard_normal((rows, DIM)).astype(np.float32)


def few_rows_changed() -> np.ndarray:
    """matrix(0) with three rows trained further."""
    changed = matrix(0)
    changed[-3:] += 1
    return changed


def write_llama(directory: Path, tensors: Tensors, metadata: dict[str, str] | None = None, /, **config: Any) -> Path:
    """A Hugging Face directory with `tensors` beside one norm; `config` overrides keys of a llama config."""
    import numpy as np
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    save_file({"model.norm.weight": np.ones(DIM, np.float32), **tensors}, directory / "model.safetensors", metadata)
    llama = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": DIM,
        "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps({**llama, **config}))
    return directory


def write_vocab(directory: Path, size: int, added: int = 0) -> Path:
    """A word-level tokenizer.json of `size` tokens, and `added` tokens beyond them, in the model's directory."""
    vocab = {f"w{i}": i for i in range(size)}
    extra = [{"id": size + i, "content": f"<new{i}>", "special": True} for i in range(added)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [{**e, **flags} for e in extra],
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(document))
    return directory


def write_adapter(directory: Path, tensors: Tensors, *, tied: bool, **config: Any) -> Path:
    """A PEFT adapter with `tensors`, in `directory`/adapter, on a llama in `directory`/base."""
    from safetensors.numpy import save_file

    stored = {EMBED: matrix(0)} if tied else {EMBED: matrix(0), HEAD: matrix(1)}
    base = write_llama(directory / "base", stored, tie_word_embeddings=tied)
    adapter = directory / "adapter"
    adapter.mkdir()
    save_file({f"base_model.model.{name}": values for name, values in tensors.items()},
              adapter / "adapter_model.safetensors")  # fmt: skip
    document = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": str(base), **config}
    (adapter / "adapter_config.json").write_text(json.dumps(document))
    return adapter


def head_lora() -> Tensors:
    """LoRA factors of the head, named as PEFT saves them."""
    import numpy as np

    return {
        "lm_head.lora_A.weight": np.ones((2, DIM), np.float32),
        "lm_head.lora_B.weight": np.ones((VOCAB, 2), np.float32),
    }


class LiveExample(NamedTuple):
    """A model in memory that has a finding; `tied` and `stage` are the arguments of `guard` and `check`. `change` is
    what the stage does, `twin` a copy of the model, `saved` a checkpoint of it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    tied: bool | None = None
    stage: str = ""
    change: Callable[[], None] | None = None
    twin: nn.Module | None = None
    saved: Path | None = None

    def findings(self) -> tuple[Finding, ...]:
        """What the guard finds here."""
        from tiebeam.doctor.guard import guard, saved_findings

        watched = guard(self.model, tied=self.tied)
        if self.optimizer is not None:
            watched.follow(self.optimizer)
        if self.saved is not None:
            return saved_findings(self.model, self.saved, self.stage)
        if self.twin is not None:
            return watched.check_copy(self.twin, self.stage)
        if self.change is None:
            return watched.check(self.stage)
        watched.remember()
        self.change()
        return watched.check(self.stage)


def live_model(tied: bool = True, std: float = 0.02) -> Any:
    """Embedding, one linear layer, LM head, with the accessors and the config that Hugging Face models have."""
    from types import SimpleNamespace

    from torch import nn

    class TinyModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = nn.Embedding(300, 16)
            self.middle = nn.Linear(16, 16)
            self.lm_head = nn.Linear(16, 300, bias=False)
            self.config = SimpleNamespace(tie_word_embeddings=tied, model_type="tiny")
            nn.init.normal_(self.embed_tokens.weight, std=std)
            if tied:
                self.lm_head.weight = self.embed_tokens.weight

        def get_input_embeddings(self) -> nn.Module:
            return self.embed_tokens

        def get_output_embeddings(self) -> nn.Module:
            return self.lm_head

    return TinyModel()

"""The model card of a run: what it is, what it was trained on, how well it does, how to open it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from tiebeam._version import __version__

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.train.result import Evaluation
    from tiebeam.train.settings import Settings


class Trained(Protocol):
    """What a card says of a model, whichever backend trained it."""

    @property
    def size(self) -> int: ...

    @property
    def tied(self) -> bool: ...


def card_of(settings: Settings, corpus: Corpus, model: Trained, final: Evaluation, steps: int) -> str:
    """README.md of the run directory."""
    tie = "one shared table" if model.tied else "two tables"
    opening = (
        "`AutoModelForCausalLM.from_pretrained(DIR)` opens it as a Qwen3 model.\n"
        if settings.arch == "standard"
        else "`tiebeam generate DIR` runs it; its architecture is parameter-golf's and has no class in transformers.\n"
    )
    return (
        "---\nlibrary_name: tiebeam\ntags:\n- tiebeam\n---\n\n"
        f"# A small GPT with {tie}\n\n"
        f"{model.size:,} parameters, {settings.layers} layers of width {settings.dim}, "
        f"a vocabulary of {corpus.vocab:,}. "
        f"Trained by tiebeam {__version__} for {steps:,} steps of {settings.batch_tokens:,} tokens.\n\n"
        f"| held-out | |\n|---|---:|\n| bits per byte | {final.bpb:.4f} |\n| nats per token | {final.nats:.4f} |\n"
        f"| tokens | {final.tokens:,} |\n\n{opening}\n"
        f"## Settings\n\n```json\n{json.dumps(settings.to_dict(), indent=2)}\n```\n"
    )

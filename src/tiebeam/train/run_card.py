"""The model card of a run: shape, held-out loss, settings, and how to open it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tiebeam._version import __version__

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.train.result import Result
    from tiebeam.train.settings import Settings

_OWN = {"golf": "its architecture is parameter-golf's", "standard": "it is Qwen3 with further options (config.json)"}


def run_card(settings: Settings, corpus: Corpus, result: Result) -> str:
    """README.md of the run directory."""
    tie = "tied embeddings" if result.tied else "untied embeddings"
    usage = (
        "`AutoModelForCausalLM.from_pretrained(DIR)` opens it as a Qwen3 model.\n"
        if settings.arch == "standard" and not settings.model(corpus.vocab).own_format
        else f"`tiebeam generate DIR` runs it; {_OWN[settings.arch]} and has no class in transformers.\n"
    )
    final = result.final
    return (
        "---\nlibrary_name: tiebeam\ntags:\n- tiebeam\n---\n\n"
        f"# A small GPT with {tie}\n\n"
        f"{result.params:,} parameters, {settings.layers} layers of width {settings.dim}, "
        f"a vocabulary of {corpus.vocab:,}. "
        f"Trained by tiebeam {__version__} for {result.steps:,} steps of {settings.batch_tokens:,} tokens.\n\n"
        f"| held-out | |\n|---|---:|\n| bits per byte | {final.bpb:.4f} |\n| nats per token | {final.nats:.4f} |\n"
        f"| tokens | {final.tokens:,} |\n\n{usage}\n"
        f"## Settings\n\n```json\n{json.dumps(settings.to_dict(), indent=2)}\n```\n"
    )

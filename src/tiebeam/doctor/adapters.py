"""Diagnose a PEFT adapter beside its base: what it does to the embedding and the head, and what a merge will do.

The tie of the base decides: an adapter that is harmless on an untied model breaks a tied one. Without a base, what the
adapter touches is still reported. With one, the merge is planned as `tiebeam merge` would, which reads the adapter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.adapter_files import is_adapter, open_adapter
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.url_files import is_url
from tiebeam.doctor.adapter_loaders import adapter_predictions, peft_merge
from tiebeam.doctor.diagnosis import run_rules
from tiebeam.doctor.examined_adapter import AdapterPart, ExaminedAdapter
from tiebeam.doctor.loaders import Prediction
from tiebeam.doctor.merge_advice import MergeAdvice, merge_advice
from tiebeam.doctor.rule import Finding, Names
from tiebeam.errors import UnreadableInput, reader
from tiebeam.inspection import Report, inspect

__all__ = ["AdapterDiagnosis", "Touched", "diagnose_adapter", "is_adapter"]


@dataclass(frozen=True, slots=True)
class Touched:
    """What an adapter changes, by the last module names: LoRA factors, full copies (modules_to_save), single tokens."""

    kind: str
    rank: int | None
    lora: tuple[str, ...]
    copies: tuple[str, ...]
    tokens: tuple[str, ...]

    def __str__(self) -> str:
        rank = f" of rank {self.rank}" if self.rank else ""
        parts = [
            f"{self.kind}{rank} on {', '.join(self.lora)}" if self.lora else "",
            f"full copies of {', '.join(self.copies)}" if self.copies else "",
            f"single tokens of {', '.join(self.tokens)}" if self.tokens else "",
        ]
        return " · ".join(filter(None, parts)) or "no tensor of the model"

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "rank": self.rank,
            "lora": list(self.lora),
            "modules_to_save": list(self.copies),
            "trainable_tokens": list(self.tokens),
        }


@dataclass(frozen=True, slots=True)
class AdapterDiagnosis:
    """`merge` is one sentence: what merging this adapter into its base does to the pair. `base` is None if the base is
    not named or cannot be read; `merge` says so. `loaders`: what programs do with it, if it changes the pair.
    `advice`: what `tiebeam merge` will do, and its command."""

    adapter: str
    base: Report | None
    merge: str
    findings: tuple[Finding, ...]
    touched: Touched
    loaders: tuple[Prediction, ...] = ()
    advice: MergeAdvice | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "adapter": self.adapter,
            "base": self.base.to_dict() if self.base else None,
            "merge": self.merge,
            "findings": [finding.to_dict() for finding in self.findings],
            "touched": self.touched.to_dict(),
            "loaders": [prediction.to_dict() for prediction in self.loaders],
            "tiebeam_merge": self.advice.to_dict() if self.advice else None,
        }


@reader
def diagnose_adapter(path: str | os.PathLike[str], base: str | os.PathLike[str] | None = None) -> AdapterDiagnosis:
    """Diagnose the adapter at `path`. Its base is the one in adapter_config.json unless `base` is given; a base that
    is only named there and cannot be read is reported, and the findings are then empty."""
    adapter = open_adapter(path)
    config, weights = adapter.config, adapter.weights
    touched = _touched(weights, config)
    named = base if base is not None else config.get("base_model_name_or_path")
    if not named or not isinstance(named, str | os.PathLike):
        unknown = "not known: the adapter does not name its base model; pass base=MODEL"
        return AdapterDiagnosis(str(path), None, unknown, (), touched)
    try:
        if base is None and is_url(str(named)):  # an adapter is untrusted: it may not choose the servers that are asked
            raise UnreadableInput("it is a URL, which is read only if a person names it")
        checkpoint = open_checkpoint(named)
        report = inspect(checkpoint)
        if report.pair.embed is None and report.pair.head is None:
            raise UnreadableInput(f"{named} has no embedding and no LM head")
    except UnreadableInput as error:
        if base is not None:
            raise UnreadableInput(f"the base of {path} cannot be read ({error}); pass base=MODEL") from None
        unknown = f"not known: the base {named} cannot be read ({error}); pass base=MODEL"
        return AdapterDiagnosis(str(path), None, unknown, (), touched)
    embed, head = (_part(weights, config, module) for module in _module_names(report))
    examined = ExaminedAdapter(weights, config, report, embed, head)
    names = Names.of(str(path), base=report.model, remote=not isinstance(checkpoint.files, LocalFiles))
    advice = merge_advice(adapter, checkpoint, names)
    findings = run_rules("adapter", examined, names._replace(merge=advice.command))
    loaders = adapter_predictions(examined)
    return AdapterDiagnosis(str(path), report, _merge(examined), findings, touched, loaders, advice)


def _touched(weights: Checkpoint, config: Mapping[str, Any]) -> Touched:
    """What the adapter changes, from its tensors: target_modules may be a pattern."""
    lora: dict[str, None] = {}
    copies: dict[str, None] = {}
    tokens: dict[str, None] = {}
    for name in weights.tensors:
        parts = name.split(".")
        factor = next((i for i, part in enumerate(parts) if part.startswith("lora_")), None)
        if factor:
            lora[parts[factor - 1]] = None
        elif "token_adapter" in parts[1:]:
            tokens[parts[parts.index("token_adapter", 1) - 1]] = None
        elif "trainable_tokens" in parts[-1] and len(parts) > 1:
            tokens[parts[-2]] = None
        elif parts[-1] == "weight" and "base_layer" not in parts and len(parts) > 1:
            copies[parts[-2]] = None
    rank = config.get("r")
    return Touched(
        str(config.get("peft_type") or "adapter").replace("LORA", "LoRA"), rank if isinstance(rank, int) else None,
        tuple(lora), tuple(copies), tuple(tokens),
    )  # fmt: skip


def _module_names(report: Report) -> tuple[str, str]:
    """The last module names of embedding and head, as PEFT's target_modules spell them."""
    embed, head = report.pair.embed, report.pair.head
    return (
        (embed.name if embed else "embed_tokens.weight").removesuffix(".weight").split(".")[-1],
        (head.name if head else "lm_head.weight").removesuffix(".weight").split(".")[-1],
    )


def _part(weights: Checkpoint, config: Mapping[str, Any], module: str) -> AdapterPart:
    """What the adapter holds for the module of that name."""
    lora, copy, rows = False, None, None
    for name, info in weights.tensors.items():
        parts = name.split(".")
        if module not in parts:
            continue
        rest = parts[parts.index(module) + 1 :]
        if not rest or not info.shape:  # PEFT writes neither: a tensor named like the module itself, or a scalar
            continue
        if "base_layer" in rest:  # the weight of the base, saved with the LoRA on it
            rows = info.shape[0]
        elif rest[-1] == "weight" and "lora" not in name:  # modules_to_save, or the whole embedding
            copy, rows = name, info.shape[0]
        elif any(part.startswith("lora_") for part in rest):
            lora = True
            if "lora_B" in rest and len(info.shape) == 2:
                rows = info.shape[0]
            elif any(part.startswith("lora_embedding_A") for part in rest):
                rows = info.shape[-1]
    tokens = config.get("trainable_token_indices")
    named = tokens.keys() if isinstance(tokens, dict) else {"embed_tokens"} if tokens else set()
    return AdapterPart(lora, copy, any(str(key).split(".")[-1] == module for key in named), rows)


def _merge(adapter: ExaminedAdapter) -> str:
    if not (adapter.embed.touched or adapter.head.touched):
        return f"merging does not change the pair: {adapter.base.tie} before and after"
    return peft_merge(adapter)[1]

"""Diagnose a PEFT adapter beside its base: what it does to the embedding and the head, and what a merge will do.

Only adapter_config.json and the header of the adapter are read (values only if it holds a copy of both
matrices). The tie of the base decides: an adapter that is harmless on an untied model breaks a tied one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.json_files import read_json
from tiebeam.checkpoint.open import open_shards
from tiebeam.doctor.adapter_loaders import adapter_predictions, peft_merge
from tiebeam.doctor.diagnosis import run_rules
from tiebeam.doctor.examined import AdapterPart, ExaminedAdapter
from tiebeam.doctor.loaders import Prediction
from tiebeam.doctor.rule import Finding, Names
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.inspection import Report, inspect


@dataclass(frozen=True, slots=True)
class AdapterDiagnosis:
    """`merge` is one sentence: what merging this adapter into its base does to the pair. `loaders`: what programs do
    with it, if it changes the pair."""

    adapter: str
    base: Report
    merge: str
    findings: tuple[Finding, ...]
    loaders: tuple[Prediction, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "adapter": self.adapter,
            "base": self.base.to_dict(),
            "merge": self.merge,
            "findings": [finding.to_dict() for finding in self.findings],
            "loaders": [prediction.to_dict() for prediction in self.loaders],
        }


def is_adapter(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is the directory of a PEFT adapter."""
    return Path(path).is_dir() and (Path(path) / "adapter_config.json").is_file()


def diagnose_adapter(path: str | os.PathLike[str], base: str | os.PathLike[str] | None = None) -> AdapterDiagnosis:
    """Diagnose the adapter at `path`. Its base is the one in adapter_config.json unless `base` is given."""
    files = LocalFiles(Path(path))
    config = read_json(files, "adapter_config.json", str(path))
    weights = _open_weights(str(path), files)
    report = _open_base(str(path), config, base)
    embed, head = (_part(weights, config, module) for module in _module_names(report))
    examined = ExaminedAdapter(weights, config, report, embed, head)
    findings = run_rules("adapter", examined, Names.of(str(path), base=report.model))
    return AdapterDiagnosis(str(path), report, _merge(examined), findings, adapter_predictions(examined))


def _open_weights(source: str, files: LocalFiles) -> Checkpoint:
    names = files.names()
    for name, format in (("adapter_model.safetensors", "safetensors"), ("adapter_model.bin", "pytorch")):
        if name in names:
            return open_shards(source, format, files, [name], None)
    raise UnreadableInput(f"{source} has an adapter_config.json but no adapter_model.safetensors or .bin")


def _open_base(source: str, config: dict[str, Any], base: str | os.PathLike[str] | None) -> Report:
    name = base if base is not None else config.get("base_model_name_or_path")
    if not name or not isinstance(name, str | os.PathLike):
        raise BadRequest(f"{source} does not name its base model; pass base=MODEL")
    try:
        report = inspect(open_checkpoint(name))
    except UnreadableInput as error:
        raise UnreadableInput(f"the base of {source} cannot be read ({error}); pass base=MODEL") from None
    if report.pair.embed is None and report.pair.head is None:
        raise UnreadableInput(f"the base {name} has no embedding and no LM head; pass base=MODEL")
    return report


def _module_names(report: Report) -> tuple[str, str]:
    """The last module names of embedding and head, as PEFT's target_modules spell them."""
    embed, head = report.pair.embed, report.pair.head
    return (
        (embed.name if embed else "embed_tokens.weight").removesuffix(".weight").split(".")[-1],
        (head.name if head else "lm_head.weight").removesuffix(".weight").split(".")[-1],
    )


def _part(weights: Checkpoint, config: dict[str, Any], module: str) -> AdapterPart:
    """What the adapter holds for the module of that name."""
    lora, copy, rows = False, None, None
    for name, info in weights.tensors.items():
        parts = name.split(".")
        if module not in parts:
            continue
        rest = parts[parts.index(module) + 1 :]
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

"""A PEFT adapter beside its base -> findings: what it does to either end, and what a merge will do.

Only adapter_config.json and the adapter's header are read (values only where both ends are carried). The
base's tie decides: an adapter that is harmless on an untied model tears a tied one.
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
from tiebeam.doctor.findings import Finding
from tiebeam.equality import compare
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.inspection import Report, inspect
from tiebeam.pair import Tie


@dataclass(frozen=True, slots=True)
class AdapterDiagnosis:
    """`merge` says in one sentence what merging this adapter into its base does to the pair."""

    adapter: str
    base: Report
    merge: str
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "adapter": self.adapter,
            "base": self.base.to_dict(),
            "merge": self.merge,
            "findings": [f.to_dict() for f in self.findings],
        }


@dataclass(frozen=True, slots=True)
class _End:
    """What the adapter holds for one end: LoRA factors, a full copy, single tokens, and its row count."""

    lora: bool = False
    copy: str | None = None
    tokens: bool = False
    rows: int | None = None

    @property
    def touched(self) -> bool:
        return self.lora or self.copy is not None or self.tokens


def is_adapter(path: str | os.PathLike[str]) -> bool:
    return Path(path).is_dir() and (Path(path) / "adapter_config.json").is_file()


def examine_adapter(path: str | os.PathLike[str], base: str | os.PathLike[str] | None = None) -> AdapterDiagnosis:
    """Findings on the adapter at `path`; its base is read from adapter_config.json unless given."""
    files = LocalFiles(Path(path))
    config = read_json(files, "adapter_config.json", str(path))
    weights = _open_weights(str(path), files)
    report = _open_base(str(path), config, base)
    embed_leaf, head_leaf = _leaves(report)
    embed = _end(weights, config, embed_leaf)
    head = _end(weights, config, head_leaf)
    findings = tuple(_findings(weights, config, report, embed, head))
    return AdapterDiagnosis(str(path), report, _merge(report, embed, head), findings)


def _open_weights(source: str, files: LocalFiles) -> Checkpoint:
    names = files.names()
    for name, format in (("adapter_model.safetensors", "safetensors"), ("adapter_model.bin", "pytorch")):
        if name in names:
            return open_shards(source, format, files, [name], None)
    raise UnreadableInput(f"{source} has an adapter_config.json but no adapter_model.safetensors or .bin")


def _open_base(source: str, config: dict[str, Any], base: str | os.PathLike[str] | None) -> Report:
    name = base if base is not None else config.get("base_model_name_or_path")
    if not name or not isinstance(name, str | os.PathLike):
        raise BadRequest(f"{source} does not name its base model; pass --base MODEL")
    try:
        report = inspect(open_checkpoint(name))
    except UnreadableInput as error:
        raise UnreadableInput(f"the base of {source} cannot be read ({error}); pass --base MODEL") from None
    if report.pair.embed is None and report.pair.head is None:
        raise UnreadableInput(f"the base {name} has no vocabulary pair")
    return report


def _leaves(report: Report) -> tuple[str, str]:
    """Module names of the two ends, as PEFT's target_modules spell them."""
    embed, head = report.pair.embed, report.pair.head
    return (
        (embed.name if embed else "embed_tokens.weight").removesuffix(".weight").split(".")[-1],
        (head.name if head else "lm_head.weight").removesuffix(".weight").split(".")[-1],
    )


def _end(weights: Checkpoint, config: dict[str, Any], leaf: str) -> _End:
    lora, copy, rows = False, None, None
    for name, info in weights.tensors.items():
        parts = name.split(".")
        if leaf not in parts:
            continue
        rest = parts[parts.index(leaf) + 1 :]
        if "base_layer" in rest:  # the base's own weight, saved along with the LoRA on it
            rows = info.shape[0]
        elif rest[-1] == "weight" and "lora" not in name:  # modules_to_save, or the embedding saved whole
            copy, rows = name, info.shape[0]
        elif any(part.startswith("lora_") for part in rest):
            lora = True
            if "lora_B" in rest and len(info.shape) == 2:
                rows = info.shape[0]
            elif any(part.startswith("lora_embedding_A") for part in rest):
                rows = info.shape[-1]
    tokens = config.get("trainable_token_indices")
    named = tokens.keys() if isinstance(tokens, dict) else {"embed_tokens"} if tokens else set()
    return _End(lora, copy, any(str(key).split(".")[-1] == leaf for key in named), rows)


def _findings(weights: Checkpoint, config: dict[str, Any], base: Report, embed: _End, head: _End) -> list[Finding]:
    found = []
    tied = base.tie in (Tie.SHARED, Tie.TWIN, Tie.SWAPPED)
    kept_tied = config.get("ensure_weight_tying") is True
    table = base.pair.embed or base.pair.head
    assert table is not None
    if tied and not kept_tied:
        if embed.lora or head.lora:
            which = "both ends" if embed.lora and head.lora else "the head" if head.lora else "the embedding"
            found.append(Finding("TB401", f"LoRA on {which}; the base is {base.tie} ({base.pair.declared_by})"))
        copies = [end.copy for end in (embed, head) if end.copy]
        if len(copies) == 1:
            found.append(Finding("TB402", f"{copies[0]} is a full copy; the base is {base.tie}"))
        elif len(copies) == 2:
            verdict = compare(weights, copies[0], copies[1])
            if not verdict.equal:
                found.append(Finding("TB402", f"{copies[0]} and {copies[1]} are two copies: {verdict.how}"))
        if head.lora or (head.copy and not embed.copy):
            found.append(Finding("TB403", f"the adapter's part for the head; the base stores only {table.name}"))
    for end, name in ((embed, "embedding"), (head, "head")):
        if end.rows is not None and end.rows != table.rows:
            found.append(Finding("TB404", f"the adapter's {name} has {end.rows:,} rows, the base has {table.rows:,}"))
    if not tied and embed.touched != head.touched:
        grown = any(end.rows is not None and end.rows > table.rows for end in (embed, head))
        if grown or embed.tokens != head.tokens:
            found.append(Finding("TB405", f"only the {'embedding' if embed.touched else 'head'} is trained"))
    return found


def _merge(base: Report, embed: _End, head: _End) -> str:
    """What merging does to the pair, in one sentence."""
    if not (embed.touched or head.touched):
        return f"merging leaves the pair alone: {base.tie} before and after"
    if base.tie is Tie.UNTIED:
        return "merging changes each end by its own part; the pair stays untied"
    if embed.copy or head.copy:
        return "merging puts a full copy beside a shared table: the result is torn unless the flag is set to false"
    if embed.lora and head.lora:
        return "merging adds both parts to the one shared table: each end gets the other's change as well"
    return "merging adds the change to the one shared table: the other end gets it as well"

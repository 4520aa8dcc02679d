"""TB808: a .bin copy beside the safetensors holds other tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam._pattern import pattern
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.model_files import indexed
from tiebeam.checkpoint.open import open_shards
from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.errors import UnreadableInput

if TYPE_CHECKING:
    from pathlib import Path

_BIN, _INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Buffers that older versions of transformers saved and newer ones compute.
_BUFFER = pattern(r"\.(position_ids|inv_freq|masked_bias|attn\.bias|attention\.bias)$")


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    files, ours = model.checkpoint.files, model.checkpoint.tensors
    if model.checkpoint.format != "safetensors" or not isinstance(files, LocalFiles) or model.unfound_files:
        return
    names = files.names()
    if not {_BIN, _INDEX} & set(names) or model.checkpoint.source.endswith(".safetensors"):
        return
    read = "model.safetensors" if "model.safetensors" in names else "the safetensors shards"
    try:
        shards = [_BIN] if _BIN in names else indexed(model.checkpoint.source, files, names, _INDEX).shards
        theirs = open_shards(model.checkpoint.source, "pytorch", files, shards, None).tensors
    except UnreadableInput as error:
        yield Evidence(f"loaders read {read}; the PyTorch copy cannot be read ({error})")
        return
    both = {theirs[name].storage for name in theirs.keys() & ours.keys()}
    extra = [name for name in theirs if name not in ours and theirs[name].storage not in both]
    missing = [name for name in ours if name not in theirs]
    for only, where in ((extra, "PyTorch"), (missing, "safetensors")):
        only = [name for name in only if not _BUFFER.search(name)]
        if only:
            more = f" and {len(only) - 1:,} more" if len(only) > 1 else ""
            yield Evidence(f"loaders read {read}; only the {where} copy has {only[0]}{more}")
            return


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("If the safetensors are right, delete the PyTorch copy by hand, or write the model without it"),
        Step("If the PyTorch copy is right, delete the safetensors by hand: then loaders read the other"),
    )


def example(directory: Path) -> Path:
    """The head is in the .bin only: it was changed after the .safetensors were made."""
    import torch

    where = write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=True)
    state = {EMBED: matrix(0), HEAD: matrix(1), "model.norm.weight": matrix(0)[0]}
    torch.save({name: torch.tensor(values) for name, values in state.items()}, where / _BIN)
    return where


RULE = Rule(
    code="TB808",
    severity=Severity.NOTE,
    title="a PyTorch copy beside the safetensors holds other tensors",
    symptoms="One program has a head, or added tokens, that another does not have.",
    cause="The model was saved twice, and only one copy was changed later. transformers, vLLM, mlx-lm and llama.cpp's "
    "converter read the safetensors if both are there.",
    detection="The tensor names of pytorch_model.bin are compared with those of the safetensors. Two names of one "
    "storage, and buffers that are computed, do not count.",
    check=check,
    steps=steps,
    example=example,
)

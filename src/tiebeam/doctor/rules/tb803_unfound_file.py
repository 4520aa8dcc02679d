"""TB803: the weights are in a file that loaders do not look for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, matrix, write_llama
from tiebeam.doctor.fix import RENAME_FILES, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.inspection import is_joint

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    names = model.unfound_files
    if names and not is_joint(model.checkpoint):  # a joint tie has such a name so that others do not load it
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Evidence(
            f"the weights are in {names[0]}{more}; there is no model.safetensors, pytorch_model.bin or index"
        )


def fix(model: ExaminedCheckpoint) -> Repair:
    return RENAME_FILES


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Write them as model.safetensors, or as shards with an index; no value changes", at.fix),)


def example(directory: Path) -> Path:
    where = write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=True)
    (where / "model.safetensors").rename(where / "weights.safetensors")
    return where


RULE = Rule(
    code="TB803",
    severity=Severity.ERROR,
    title="the weights are in a file that loaders do not look for",
    symptoms="transformers: OSError, no file named model.safetensors, or pytorch_model.bin, found in directory. "
    "mlx-lm: No safetensors found.",
    cause="The file was saved under another name (weights.safetensors, consolidated.safetensors, model.pt), or the "
    "index of a set of shards is missing.",
    detection="A directory has a config.json with a model_type and weights, but neither model.safetensors, "
    "pytorch_model.bin nor an index of shards. mlx-lm also reads shards called model*.safetensors without an index.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
)

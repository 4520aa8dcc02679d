"""Pack a run into one small file, unpack it again, and measure what quantization cost."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam._fs import Kind, check_target, explaining, reading, staging
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train.artifact import BITS, MAGIC, MAGIC_2, PRECISIONS, pack
from tiebeam.train.evaluation import evaluate
from tiebeam.train.result import Evaluation
from tiebeam.train.run_directory import MODEL, RunDirectory
from tiebeam.train.table_rounding import FEWEST_BITS, MOST_BITS, round_tables, text_statistics
from tiebeam.train.unpack_artifact import open_artifact, unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT

DEFAULT_LIMIT = 16_000_000
_FILES = ("config.json", "tokenizer.json", "README.md")
ARTIFACT = Kind("an artifact of tiebeam pack", lambda path: path.is_file() and _head(path, 8) in (MAGIC, MAGIC_2))
UNPACKED = Kind(
    "a checkpoint of tiebeam unpack",
    lambda path: (path / MODEL).is_file() and b"library_name: tiebeam" in _head(path / "README.md", 4096),
    lambda name: name in (MODEL, *_FILES),
)


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed run: its size, and the held-out loss before and after. `nearest`: the loss if the vocabulary matrices
    are rounded to nearest; None if they are, or are not rounded. `bits`: of a code in them, on average."""

    path: str
    bytes: int
    limit: int
    params: int
    before: Evaluation
    after: Evaluation
    nearest: Evaluation | None = None
    bits: float | None = None

    @property
    def gained(self) -> float | None:
        """Bits per byte that error compensation saves over rounding to nearest; below 0 if it costs."""
        return None if self.nearest is None else self.nearest.bpb - self.after.bpb

    @property
    def lost(self) -> float:
        """Bits per byte lost to quantization."""
        return self.after.bpb - self.before.bpb

    @property
    def fits(self) -> bool:
        return self.bytes <= self.limit

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "bytes": self.bytes,
            "limit": self.limit,
            "fits": self.fits,
            "params": self.params,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "lost_bpb": self.lost,
            "nearest": self.nearest.to_dict() if self.nearest else None,
            "gained_bpb": self.gained,
            "embed_bits": self.bits,
        }


def open_run(path: str | os.PathLike[str]) -> tuple[GPT, Corpus]:
    """The model of a finished run and the corpus it was trained on."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from tiebeam.corpus import build_corpus
    from tiebeam.nn import GPT, GPTConfig

    run = RunDirectory.open(path)
    if not (run.path / MODEL).is_file():
        raise UnreadableInput(f"{run.path} is not finished; finish it with: tiebeam train --resume --out {run.path}")
    try:
        with reading(run.path / MODEL):
            model = GPT(GPTConfig.from_hf(json.loads((run.path / "config.json").read_text("utf-8"))))
            model.load_state_dict(load_file(run.path / MODEL))
    except (SafetensorError, RuntimeError, ValueError) as error:  # ValueError: JSON
        raise UnreadableInput(f"the model in {run.path} is damaged: {str(error).splitlines()[0]}") from None
    return model, build_corpus([run.read_run()["corpus"]["path"]])


def pack_run(
    path: str | os.PathLike[str], target: Path, *, weights: str = "int8", embed: str = "fp16",
    bits: float | None = None, rounding: str = "compensated", limit: int = DEFAULT_LIMIT,
    before: Evaluation | None = None, force: bool = False,
) -> Packed:  # fmt: skip
    """Pack a run's model into the file `target`, read it back, and evaluate both on the held-out split.

    Args:
        path: a finished run directory.
        target: the artifact to write.
        weights: precision of the matrices: "int8", "int7", "int6", "fp16" or "fp32".
        embed: precision of the embedding and the head: the same, or "int5", "int4", "int3".
        bits: in place of `embed`, bits per row of the embedding and the head, on average; frequent tokens get more.
        rounding: "compensated" chooses the head's codes so that the logits change least, or "nearest".
        limit: the size in bytes that `Packed.fits` compares with.
        before: the evaluation of the unpacked model, if it is already known.
        force: replace the artifact at `target`.
    """
    import torch

    if rounding not in ("compensated", "nearest"):
        raise BadRequest(f'rounding must be "compensated" or "nearest", not {rounding!r}')
    if bits is not None and not FEWEST_BITS <= bits <= MOST_BITS:
        raise BadRequest(f"bits={bits:g} must be between {FEWEST_BITS} and {MOST_BITS}")
    for precision in (weights, embed):
        if precision not in PRECISIONS or precision == "mixed":
            known = ", ".join(name for name in PRECISIONS if name != "mixed")
            raise BadRequest(f"precision {precision!r} is not supported; use one of {known}")
    check_target(Path(path), target, force, ARTIFACT)
    model, corpus = open_run(path)
    before = before or evaluate(model, corpus)
    state, tables, files = _parts(Path(path), model)
    integer = bits if bits is not None else BITS.get(embed)
    nearest = None
    if integer is None:
        raw = pack(state, files, tables, weights, embed)
    else:
        embed = "mixed" if bits is not None and not float(bits).is_integer() else f"int{int(integer)}"
        arrays, statistics = {name: state[name] for name in sorted(tables)}, text_statistics(model, corpus)
        choices = ("nearest", "compensated") if rounding == "compensated" else ("nearest",)
        packed = {
            choice: pack(state, files, tables, weights, embed,
                         round_tables(arrays, integer, statistics, choice == "compensated"))
            for choice in choices
        }  # fmt: skip
        raw = packed[rounding]
    with explaining(target), staging(target, force) as stage:
        made = stage.path / "artifact"

        def measured(artifact: bytes) -> Evaluation:
            made.write_bytes(artifact)
            model.load_state_dict({name: torch.from_numpy(np.array(t)) for name, t in unpack(made).tensors.items()})
            return evaluate(model, corpus)

        if integer is not None and rounding == "compensated":
            nearest = measured(packed["nearest"])
        after = measured(raw)
        stage.commit("artifact")
    return Packed(str(target), len(raw), limit, model.size, before, after, nearest, integer)


def packed_size(
    path: str | os.PathLike[str], *, model: GPT | None = None, weights: str = "int8", embed: str = "fp16"
) -> int:
    """The size in bytes that `pack_run` would give, without writing and evaluating it.

    `model` is packed in place of the checkpoint's: a bridge or a factorized embedding counts as trained, and not as the
    untied pair that it is folded into for other loaders.
    """
    state, tables, files = _parts(Path(path), model or open_run(path)[0])
    return len(pack(state, files, tables, weights, embed))


def _parts(path: Path, model: GPT) -> tuple[dict[str, NDArray[Any]], frozenset[str], dict[str, str]]:
    """What a run is packed from: its tensors, the names of its vocabulary tables, its small files."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tables = frozenset(name for name in state if name.split(".")[-2:-1] in (["tok_emb"], ["embed_tokens"], ["lm_head"]))
    with reading(path):
        files = {n: (path / n).read_text("utf-8") for n in _FILES if (path / n).is_file()}
    return state, tables, files


def unpack_run(artifact: str | os.PathLike[str], target: str | os.PathLike[str], *, force: bool = False) -> int:
    """Write the checkpoint in an artifact to a directory; returns the number of tensors."""
    source, where = Path(artifact), Path(target)
    contents = open_artifact(source)
    check_target(source, where, force, UNPACKED)
    with explaining(where), staging(where, force) as stage:
        contents.write_safetensors(stage.path / MODEL)
        for name, text in contents.files.items():
            if name not in _FILES:  # the artifact is untrusted: only the names that we write
                raise UnreadableInput(f"{source} contains an unexpected file {name!r}; refusing to write it")
            (stage.path / name).write_text(text, "utf-8")
        stage.commit()
    return len(contents.tensors)


def _head(path: Path, count: int) -> bytes:
    """The first bytes of a file; empty if there is none."""
    try:
        with open(path, "rb") as handle:
            return handle.read(count)
    except OSError:
        return b""

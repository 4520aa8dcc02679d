"""Measure what tying two different matrices does to the loss, before anything is written.

The layers run unchanged with the new tables in place of the old (`Engine.with_tables`), on the given text or on a short
passage that is part of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput
from tiebeam.pair import Pair

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tiebeam.decode import Divergence, Engine, Table

_TEXT_LIMIT = 64 << 20
MEASURED_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class LossEffect:
    """The model before and after, measured on `on`. `divergence` is None when no engine can run the model; `why` has
    the reason."""

    divergence: Divergence | None
    on: str
    why: str = ""

    @property
    def sentence(self) -> str:
        if self.divergence is None:
            return f"the effect on the loss was not measured: {self.why}"
        d = self.divergence
        return (
            f"{d.before.nats_per_token:.3f} -> {d.after.nats_per_token:.3f} nats per token on {self.on} "
            f"({d.before.tokens:,} tokens), KL {d.kl:.3f}, the same next token {d.agreement:.0%} of the time"
        )

    def to_dict(self) -> dict[str, Any]:
        measured = self.divergence.to_dict() if self.divergence else None
        return {"on": self.on, "divergence": measured, "why": self.why}


def read_texts(paths: Sequence[str | Path]) -> str:
    """The contents of UTF-8 text files, joined by newlines."""
    return "\n".join(read_documents(paths))


def read_documents(paths: Sequence[str | Path]) -> list[str]:
    """The contents of UTF-8 text files, one text per file."""
    parts, total = [], 0
    for path in map(Path, paths):
        try:
            total += path.stat().st_size
            if total > _TEXT_LIMIT:
                raise BadRequest(f"with {path} the text exceeds the limit of {_TEXT_LIMIT:,} bytes; give less text")
            parts.append(path.read_bytes().decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UnreadableInput(f"{path} is not UTF-8 text (byte {error.start:,})") from None
        except OSError as error:
            raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}") from None
    if not any(part.strip() for part in parts):
        raise BadRequest(f"there is no text in {', '.join(str(path) for path in paths)}")
    return parts


def built_in_passage() -> str:
    return resources.files("tiebeam.surgery").joinpath("passage.txt").read_text(encoding="utf-8")


def measure_keep(
    checkpoint: Checkpoint,
    pair: Pair,
    keep: str,
    text: str | None = None,
    *,
    engine: str = "auto",
    device: str | None = None,
) -> LossEffect:
    """The effect of using one matrix as embedding and head of an untied `pair`: `keep` is "embed", "head" or "mean"."""
    assert pair.embed
    assert pair.head
    embed, head = pair.embed.name, pair.head.name

    def tables(model: Engine) -> tuple[Table, Table]:
        from tiebeam.decode import Table

        table = Table(_kept(checkpoint, embed, head, keep))
        return table, table

    return measure_tables(checkpoint, tables, text, embed=embed, head=head, engine=engine, device=device)


def measure_tables(
    checkpoint: Checkpoint,
    tables: Callable[[Engine], tuple[Table, Table]],
    text: str | None = None,
    *,
    embed: str | None = None,
    head: str | None = None,
    most: int = MEASURED_TOKENS,
    engine: str = "auto",
    device: str | None = None,
) -> LossEffect:
    """The effect of another embedding and head, which `tables` makes, on at most `most` tokens; `embed` and `head`
    name the present ones."""
    on = "the text given" if text is not None else "a built-in passage"
    try:
        from tiebeam.decode import divergence, open_engine

        model = open_engine(checkpoint, embed=embed, head=head, engine=engine, device=device)
        tokens = model.encode(text if text is not None else built_in_passage())[:most]
        return LossEffect(divergence(model, model.with_tables(*tables(model)), tokens), on)
    except TiebeamError as error:
        return LossEffect(None, on, str(error))


def _kept(checkpoint: Checkpoint, embed: str, head: str, keep: str) -> NDArray[np.float32]:  # -> [V, D]
    import numpy as np

    if keep != "mean":
        return checkpoint.tensor(embed if keep == "embed" else head).astype(np.float32)
    mean: NDArray[np.float32] = checkpoint.tensor(embed).astype(np.float32) + checkpoint.tensor(head).astype(np.float32)
    mean /= 2
    return mean

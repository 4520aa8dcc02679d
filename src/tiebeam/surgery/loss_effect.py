"""What tying two different matrices does to a model, measured before anything is written.

The trunk runs as it is between the tables that would take the place of its own (`Decoder.with_ends`), on the
text given or on a short passage that comes with this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput
from tiebeam.surgery.source import Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tiebeam.decode import Decoder, Divergence, Table

_MOST_TEXT = 64 << 20
MEASURED_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Damage:
    """Before and after on `text`; `divergence` is None when it could not be measured, and `why` says why."""

    divergence: Divergence | None
    on: str
    why: str = ""

    @property
    def sentence(self) -> str:
        if self.divergence is None:
            return f"what is lost could not be measured: {self.why}"
        d = self.divergence
        return (
            f"{d.before.nats_per_token:.3f} -> {d.after.nats_per_token:.3f} nats per token on {self.on} "
            f"({d.before.tokens:,} tokens), KL {d.kl:.3f}, the same next token {d.agreement:.0%} of the time"
        )

    def to_dict(self) -> dict[str, Any]:
        measured = self.divergence.to_dict() if self.divergence else None
        return {"on": self.on, "divergence": measured, "why": self.why}


def read_texts(paths: Sequence[str | Path]) -> str:
    """The text files, one after the other."""
    parts, total = [], 0
    for path in map(Path, paths):
        try:
            total += path.stat().st_size
            if total > _MOST_TEXT:
                raise BadRequest(f"the text is larger than {_MOST_TEXT:,} bytes with {path}; give less of it")
            parts.append(path.read_bytes().decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UnreadableInput(f"{path} is not UTF-8 text (byte {error.start:,})") from None
        except OSError as error:
            raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}") from None
    text = "\n".join(parts)
    if not text.strip():
        raise BadRequest(f"there is no text in {', '.join(str(path) for path in paths)}")
    return text


def built_in_passage() -> str:
    return resources.files("tiebeam.surgery").joinpath("passage.txt").read_text(encoding="utf-8")


def keep_damage(source: Source, keep: str, text: str | None = None) -> Damage:
    """The damage of `--keep embed|head|mean`."""
    on = "the text given" if text is not None else "a built-in passage"
    embed, head = source.report.pair.embed, source.report.pair.head
    assert embed
    assert head
    try:
        from tiebeam.decode import Decoder, Table

        decoder = Decoder.open(source.checkpoint, embed=embed.name, head=head.name)
        tokens = decoder.encode(text if text is not None else built_in_passage())[:MEASURED_TOKENS]
        table = Table(_kept(source.checkpoint, embed.name, head.name, keep))
        return measure(decoder, table, table, tokens, on)
    except TiebeamError as error:
        return Damage(None, on, str(error))


def measure(decoder: Decoder, embed: Table, head: Table, tokens: Sequence[int], on: str) -> Damage:
    """The same trunk between other tables."""
    from tiebeam.decode import divergence

    return Damage(divergence(decoder, decoder.with_ends(embed, head), tokens), on)


def _kept(checkpoint: Checkpoint, embed: str, head: str, keep: str) -> NDArray[np.float32]:
    import numpy as np

    if keep != "mean":
        return checkpoint.tensor(embed if keep == "embed" else head).astype(np.float32)
    mean: NDArray[np.float32] = checkpoint.tensor(embed).astype(np.float32) + checkpoint.tensor(head).astype(np.float32)
    mean /= 2
    return mean

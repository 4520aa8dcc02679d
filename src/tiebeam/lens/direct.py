"""The direct path of a model: token -> E -> W -> logits, with nothing in between.

M = F W^T [V, V] is what the model would say if its layers said nothing; F is E as it meets the head: scaled and
through the final norm where asked, which acts on each row by itself. Everything about all of M follows from the
Gram matrix G = [F | W]^T [F | W] [2D, 2D], so no V x V matrix is ever made:

  |M|^2 = tr(F'F W'W),  <M, M^T> = tr((W'F)^2), and the nonzero eigenvalues of (M + M^T)/2 are those of
  G^(1/2) K G^(1/2) with K = [[0, I], [I, 0]] / 2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.errors import BadRequest
from tiebeam.lens.ends import Ends, open_model_ends

Array = NDArray[np.floating[Any]]
Progress = Callable[[str, int, int], None]
_BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Energy:
    """Of a square matrix: the parts of its squared norm, and what its eigenvalues say about definiteness."""

    norm: float
    symmetric: float
    antisymmetric: float
    negative: float
    """Of the symmetric part's energy, the share in negative eigenvalues: 0 for E.E^T, whatever E is."""
    rank: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DirectPath:
    """The path between chosen tokens: `matrix[i, j]` is the logit that token i gives token j."""

    ids: tuple[int, ...]
    labels: tuple[str, ...]
    matrix: Array = field(repr=False)  # [n, n]

    @property
    def energy(self) -> Energy:
        return energy_of(self.matrix)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ids": list(self.ids),
            "labels": list(self.labels),
            "matrix": [[round(float(x), 6) for x in row] for row in self.matrix],
            "self_logits": [round(float(x), 6) for x in np.diag(self.matrix)],
            "energy": self.energy.to_dict(),
        }


def energy_of(matrix: Array) -> Energy:  # [n, n]
    """The same figures as `Lens.energy`, straight from a small matrix."""
    half = (matrix + matrix.T) / 2
    return _energy(float((matrix**2).sum()), np.linalg.eigvalsh(half), np.linalg.svd(matrix, compute_uv=False))


def _energy(norm: float, eigenvalues: Array, singular: Array) -> Energy:
    squares = eigenvalues**2
    symmetric = float(squares.sum())
    tiny = singular.max(initial=0.0) * 1e-7
    return Energy(
        norm=norm**0.5,
        symmetric=symmetric / norm if norm else 1.0,
        antisymmetric=max(0.0, 1 - symmetric / norm) if norm else 0.0,
        negative=float(squares[eigenvalues < 0].sum()) / symmetric if symmetric else 0.0,
        rank=int((singular > tiny).sum()),
    )


class Lens:
    """The two ends of a model, looked at without its layers. Rows are streamed; Gram matrices are kept."""

    def __init__(self, ends: Ends, *, norm: bool = True, scales: bool = True, progress: Progress | None = None) -> None:
        self.ends, self.norm, self.scales = ends, norm, scales
        self._report = progress or (lambda stage, done, total: None)

    @classmethod
    def open(
        cls, source: str | os.PathLike[str] | Checkpoint, *, norm: bool = True, scales: bool = True,
        embed: str | None = None, head: str | None = None, progress: Progress | None = None,
    ) -> Lens:  # fmt: skip
        """`norm` and `scales` say whether the embedding meets the head through the final norm and scaled."""
        checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
        return cls(open_model_ends(checkpoint, embed=embed, head=head), norm=norm, scales=scales, progress=progress)

    @property
    def vocab(self) -> int:
        return self.ends.vocab

    def inputs(self, ids: NDArray[np.int64]) -> Array:  # [n] -> [n, D], as they meet the head
        x = self.ends.embed_rows(ids)
        if self.scales:
            x = x * self.ends.input_scale
        return (self.ends.final_norm(x) if self.norm else x).astype(np.float64)

    def outputs(self, ids: NDArray[np.int64]) -> Array:  # [n] -> [n, D]
        return self.ends.head_rows(ids).astype(np.float64)

    def direct(self, ids: Sequence[int], labels: Sequence[str] = ()) -> DirectPath:
        """The path between a few tokens."""
        places = self._checked(ids)
        matrix = self.inputs(places) @ self.outputs(places).T
        names = tuple(labels) or tuple(self.label(int(i)) for i in places)
        return DirectPath(tuple(map(int, places)), names, matrix)

    def continuations(self, token: int, count: int = 10) -> list[tuple[int, float]]:
        """The tokens that the direct path alone would say next."""
        x = self.inputs(self._checked([token]))[0]
        return self._best(lambda rows: rows @ x, self.outputs, count, "scoring")

    def neighbours(self, token: int, table: str = "embed", count: int = 10) -> list[tuple[int, float]]:
        """The nearest rows of one table by cosine, the token itself left out."""
        read = {"embed": lambda ids: self.ends.embed_rows(ids).astype(np.float64), "head": self.outputs}.get(table)
        if read is None:
            raise BadRequest(f"a table is 'embed' or 'head', not {table!r}")
        x = read(self._checked([token]))[0]
        x = x / max(float(np.linalg.norm(x)), 1e-30)
        near = self._best(
            lambda rows: rows @ x / np.maximum(np.linalg.norm(rows, axis=1), 1e-30), read, count + 1, "comparing"
        )
        return [(i, c) for i, c in near if i != token][:count]

    @cached_property
    def norms(self) -> tuple[Array, Array]:  # [V], [V]
        """Row norms of the two tables."""
        found = [
            (np.linalg.norm(self.ends.embed_rows(ids), axis=1), np.linalg.norm(self.outputs(ids), axis=1))
            for ids in self._blocks("norms")
        ]
        return np.concatenate([e for e, _ in found]).astype(np.float64), np.concatenate([w for _, w in found])

    @cached_property
    def gram(self) -> Array:  # [2D, 2D]
        """[F | W]^T [F | W], summed over the vocabulary."""
        total: Array = np.zeros(())
        for ids in self._blocks("reading both tables"):
            both = np.concatenate([self.inputs(ids), self.outputs(ids)], axis=1)  # [n, 2D]
            total = total + both.T @ both
        return total

    @cached_property
    def energy(self) -> Energy:
        """Symmetry and definiteness of the whole [V, V] path, in closed form."""
        D = self.gram.shape[0] // 2
        norm = float((self.gram[:D, :D] * self.gram[D:, D:]).sum())
        root = _square_root(self.gram)  # [2D, 2D]
        swapped = np.concatenate([root[D:], root[:D]]) / 2  # K G^(1/2)
        eigenvalues = np.linalg.eigvalsh(root @ swapped)
        return _energy(norm, eigenvalues, self.spectrum)

    @cached_property
    def spectrum(self) -> Array:  # [D], descending
        """Singular values of the whole path F W^T."""
        D = self.gram.shape[0] // 2
        inner = _square_root(self.gram[:D, :D]) @ _square_root(self.gram[D:, D:])
        values: Array = np.linalg.svd(inner, compute_uv=False)
        return values

    @cached_property
    def joint_spectrum(self) -> Array:  # [2D], descending, sums to 1
        """Energy of [F | W] by rank, both sides of equal norm: what one shared table could keep of the pair."""
        D = self.gram.shape[0] // 2
        scale = np.concatenate([np.full(D, np.trace(self.gram[:D, :D])), np.full(D, np.trace(self.gram[D:, D:]))])
        scale = 1 / np.sqrt(np.maximum(scale, 1e-300))
        values = np.linalg.eigvalsh(self.gram * scale[:, None] * scale[None])[::-1]
        share: Array = np.maximum(values, 0) / max(float(values.sum()), 1e-300)
        return share

    @cached_property
    def angles(self) -> Array:  # [D] radians, ascending
        """Principal angles between the column spaces of the two tables in the space of tokens."""
        D = self.gram.shape[0] // 2
        inner = _inverse_root(self.gram[:D, :D]) @ self.gram[:D, D:] @ _inverse_root(self.gram[D:, D:])
        angles: Array = np.arccos(np.clip(np.linalg.svd(inner, compute_uv=False), -1, 1))
        return angles

    def label(self, token: int) -> str:
        text = self.ends.spell(token)
        return f"#{token}" if text is None else text

    def find(self, text: str) -> int:
        """The one token that spells `text`."""
        ids = self.ends.encode(text)
        if len(ids) != 1:
            pieces = ", ".join(repr(self.label(i)) for i in ids)
            raise BadRequest(f"{text!r} is {len(ids)} tokens ({pieces}); name one token, or its id")
        return ids[0]

    def _checked(self, ids: Sequence[int]) -> NDArray[np.int64]:
        places = np.asarray(ids, np.int64)
        if places.size == 0:
            raise BadRequest("name at least one token")
        if places.min() < 0 or places.max() >= self.vocab:
            raise BadRequest(f"a token id lies in 0 .. {self.vocab - 1:,}; {int(places.max()):,} does not")
        return places

    def _blocks(self, stage: str) -> Iterator[NDArray[np.int64]]:
        for start in range(0, self.vocab, _BLOCK_ROWS):
            self._report(stage, start, self.vocab)
            yield np.arange(start, min(start + _BLOCK_ROWS, self.vocab))
        self._report(stage, self.vocab, self.vocab)

    def _best(
        self, score: Callable[[Array], Array], read: Callable[[NDArray[np.int64]], Array], count: int, stage: str
    ) -> list[tuple[int, float]]:
        kept: list[tuple[int, float]] = []
        for ids in self._blocks(stage):
            values = score(read(ids))
            top = np.argsort(values)[::-1][:count]
            kept = sorted(kept + [(int(ids[i]), float(values[i])) for i in top], key=lambda p: -p[1])[:count]
        return kept


def _square_root(G: Array) -> Array:
    values, vectors = np.linalg.eigh(G)
    root: Array = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    return root


def _inverse_root(G: Array) -> Array:
    values, vectors = np.linalg.eigh(G)
    kept = values > values.max(initial=0.0) * 1e-12
    root: Array = (vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T
    return root

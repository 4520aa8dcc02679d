"""The direct path of a model: token -> E -> W -> logits, without the layers.

M = F W^T [V, V] are the logits of the direct path. F [V, D] are the rows of E as the head sees them: scaled, and
through the final norm, where the model does so. Everything about M follows from the Gram matrix
G = [F | W]^T [F | W] [2D, 2D], so no V x V matrix is ever made:

  |M|^2 = tr(F'F W'W),  <M, M^T> = tr((W'F)^2), and the nonzero eigenvalues of (M + M^T)/2 are those of
  R^T K R with G = R R^T and K = [[0, I], [I, 0]] / 2.

What compares the two tables (their angles, what one table could keep of both) uses the Gram matrix of E and W as
stored.

Solving for all 2D eigenvalues takes minutes for the widest models. From 2D > 4096 on, the two results that need them
(the negative share, the joint spectrum) are estimated with a stated error (spectral_density.py), and the sums over the
rows are products in float32 where these are enough (gram_sums.py); exact=True solves, and sums in float64.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.lens.embed_and_head import VocabTables, no_norm, open_tables
from tiebeam.lens.gram_factors import cholesky_, factor, multiply_, roots, whitening
from tiebeam.lens.gram_sums import GramSums
from tiebeam.lens.large_spectra import JointEstimate, estimate_joint, estimate_negative
from tiebeam.lens.matrix_energy import Energy, energy_of, from_spectra

Array = NDArray[np.floating[Any]]
Progress = Callable[[str, int, int], None]
_WIDE = 2048  # size of the Gram matrix from which solving takes long enough to report progress
_EXACT = 4096  # size of the Gram matrix up to which every eigenvalue is solved for unless asked otherwise
_BLOCK_BYTES = 1 << 26  # of [F | W] at a time


@dataclass(frozen=True, slots=True)
class DirectPath:
    """The path between chosen tokens: `matrix[i, j]` is the direct-path logit of token j after token i."""

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


class Lens:
    """The direct path of a model. Rows are streamed, so a table of any size fits in memory; only sums are kept.

    lens = tiebeam.Lens.open("model")
    lens.energy.symmetric                    # share of the path that is symmetric
    lens.neighbours([42], "embed", 5)        # nearest rows of the embedding by cosine
    print(lens)
    """

    def __init__(
        self, tables: VocabTables, *, norm: bool = True, scales: bool = True, progress: Progress | None = None,
        source: str = "", exact: bool | None = None,
    ) -> None:  # fmt: skip
        self.tables, self.norm, self.scales, self.source = tables, norm, scales, source
        self._exact = exact
        self._report = progress or (lambda stage, done, total: None)

    @classmethod
    def open(
        cls, source: str | os.PathLike[str] | Checkpoint, *, norm: bool = True, scales: bool = True,
        embed: str | None = None, head: str | None = None, progress: Progress | None = None,
        exact: bool | None = None,
    ) -> Lens:  # fmt: skip
        """Open a model. `norm`: apply the final norm. `scales`: apply the family's embedding scale. `embed` and
        `head` name the tensors where they cannot be found. `exact`: solve for every eigenvalue; None does so up to a
        width of 2,048, beyond which it takes minutes. No layer is loaded or run.
        """
        checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
        tables = open_tables(checkpoint, embed=embed, head=head, with_norm=norm)
        norm = norm and tables.final_norm is not no_norm
        return cls(tables, norm=norm, scales=scales, progress=progress, source=checkpoint.source, exact=exact)

    def __repr__(self) -> str:
        return f"<Lens of {self.source}: {self.vocab:,} x {self.dim:,}>"

    def __str__(self) -> str:
        """The headline and the figures of the whole path, as `tiebeam lens` prints them."""
        from tiebeam.lens.lens_report import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from tiebeam.lens.lens_report import as_html

        return as_html(self)

    @property
    def vocab(self) -> int:
        return self.tables.vocab

    @cached_property
    def dim(self) -> int:
        return int(self.tables.embed_rows(np.zeros(1, np.int64)).shape[1])

    @cached_property
    def exact(self) -> bool:
        """Whether every eigenvalue is solved for; if not, two results are estimates with an error (`errors`)."""
        return 2 * self.dim <= _EXACT if self._exact is None else self._exact

    @property
    def errors(self) -> dict[str, float]:
        """Three standard errors of what is estimated; empty if everything is exact."""
        if self.exact:
            return {}
        joint = {} if self._joint is None else {"joint": self._joint.error}
        return {"negative": self._energy[1], **joint}

    def inputs(self, ids: NDArray[np.int64]) -> Array:  # [n] -> [n, D], as the head sees them
        return self._seen_by_head(self.tables.embed_rows(ids), np.float64)

    def _seen_by_head(self, x: Array, dtype: type[np.floating[Any]]) -> Array:  # [n, D] -> [n, D]
        before, after = (self.tables.scales.input, self.tables.scales.logits) if self.scales else (1.0, 1.0)
        x = x if before == 1.0 else x * before
        x = (self.tables.final_norm(x) if self.norm else x).astype(dtype, copy=False)
        return x if after == 1.0 else x * after

    def embeds(self, ids: NDArray[np.int64]) -> Array:  # [n] -> [n, D], as stored
        return self.tables.embed_rows(ids).astype(np.float64)

    def outputs(self, ids: NDArray[np.int64]) -> Array:  # [n] -> [n, D]
        return self.tables.head_rows(ids).astype(np.float64)

    def direct(self, ids: Sequence[int], labels: Sequence[str] = ()) -> DirectPath:
        """The path between a few tokens."""
        places = self._checked(ids)
        matrix = self.inputs(places) @ self.outputs(places).T
        names = tuple(labels) or tuple(self.label(int(i)) for i in places)
        return DirectPath(tuple(map(int, places)), names, matrix)

    def continuations(self, tokens: Sequence[int], count: int = 10) -> list[list[tuple[int, float]]]:
        """For each token, the likeliest next tokens on the direct path, with their logits."""
        x = self.inputs(self._checked(tokens))
        return self._best(lambda rows: x @ rows.T, self.outputs, len(x), count, "likeliest next tokens")

    def neighbours(self, tokens: Sequence[int], table: str, count: int = 10) -> list[list[tuple[int, float]]]:
        """For each token, the nearest rows of one table by cosine, without the token itself."""
        read = {"embed": self.embeds, "head": self.outputs}.get(table)
        if read is None:
            raise BadRequest(f"table={table!r} is neither 'embed' nor 'head'")
        x = _unit(read(self._checked(tokens)))
        near = self._best(lambda rows: x @ _unit(rows).T, read, len(x), count + 1, f"nearest rows of the {table}")
        return [[(i, c) for i, c in row if i != token][:count] for token, row in zip(tokens, near, strict=True)]

    @cached_property
    def norms(self) -> tuple[Array, Array]:  # [V], [V]
        """Row norms of embedding and head."""
        return self._totals.norms

    @cached_property
    def self_logits(self) -> Array:  # [V]
        """The logit of each token after itself: the diagonal of the path."""
        return self._totals.diagonal

    @cached_property
    def gram(self) -> Array:  # [2D, 2D]
        """[F | W]^T [F | W], summed over the vocabulary."""
        return self._joined("FF", "FW")

    @cached_property
    def table_gram(self) -> Array:  # [2D, 2D]
        """The same for the two tables as stored, [E | W]."""
        return self._joined("EE", "EW")

    def _joined(self, square: str, cross: str) -> Array:
        products = self._products
        return np.block([[products[square], products[cross]], [products[cross].T, products["WW"]]])

    @property
    def one_table(self) -> bool:
        """Whether embedding and head hold the same numbers."""
        return self._totals.one_table

    @property
    def _products(self) -> dict[str, Array]:  # [D, D] each
        """F'F, F'W, E'E, E'W and W'W. Kept apart: two joined Gram matrices would hold W'W twice, and both triangles."""
        return self._totals.products

    @cached_property
    def _totals(self) -> GramSums:
        """One pass over both tables computes everything that needs all rows; an ill-conditioned wide pair takes two."""
        if self.exact:
            return self._summed(np.float64, "reading both tables")
        found = self._summed(np.float32, "reading both tables")
        self._solving("the condition of both tables")
        if found.full_rank:
            return found
        del found  # before as much is allocated again
        return self._summed(np.float64, "reading both tables again, for products in float64")

    def _summed(self, dtype: type[np.floating[Any]], stage: str) -> GramSums:
        totals = GramSums(self.dim, dtype, sketched=not self.exact)
        with np.errstate(all="ignore"):  # numbers that are not finite are reported below
            for ids in self._blocks(stage, np.dtype(dtype).itemsize):
                E = self.tables.embed_rows(ids)
                totals.add(E, self._seen_by_head(E, dtype), self.tables.head_rows(ids))
        totals.finish()
        if not all(np.isfinite(block).all() for block in totals.products.values()):
            raise UnreadableInput(
                f"a table of {self.source or 'the model'} holds NaN or infinite values, so its direct path has no "
                "spectrum; `tiebeam doctor --rows` lists such rows"
            )
        return totals

    @property
    def energy(self) -> Energy:
        """Symmetry, definiteness and rank of the whole [V, V] path."""
        return self._energy[0]

    @cached_property
    def _energy(self) -> tuple[Energy, float]:
        """The energy, and three standard errors of its negative share."""
        D, spectrum, products = self.dim, self.spectrum, self._products
        self._solving("symmetry and definiteness")
        norm = float(np.vdot(products["FF"], products["WW"]))
        if not self.exact:
            return estimate_negative(products, self._totals.sketch, norm, spectrum)
        root = factor(self.gram)  # [2D, 2D]
        half = root[:D].T @ root[D:] / 2  # root^T K root = half + half^T
        half += half.T.copy()
        return from_spectra(norm, np.linalg.eigvalsh(half), spectrum), 0.0

    @cached_property
    def spectrum(self) -> Array:  # [D], descending
        """Singular values of the whole path F W^T."""
        F, W = self._products["FF"], self._products["WW"]
        self._solving("the path's spectrum")
        if not self.exact and self._totals.full_rank:  # their squares as eigenvalues, at a quarter of the cost
            root = cholesky_(W.copy())
            path = multiply_(root.T @ F, root)
            del root  # as large as the path, and the solver copies that
            return roots(np.linalg.eigvalsh(path))
        values: Array = np.linalg.svd(factor(F).T @ factor(W), compute_uv=False)
        return values

    @property
    def joint_spectrum(self) -> Array:  # [2D], descending, sums to 1
        """Energy of [E | W] by rank, both scaled to equal norm: what one table of that rank could keep of the pair."""
        return self._joint_values if self._joint is None else self._joint.spectrum

    @cached_property
    def _joint(self) -> JointEstimate | None:
        """The estimate of the joint spectrum; None where it is solved for."""
        if self.exact or self.one_table:
            return None
        self._solving("the joint spectrum")
        return estimate_joint(self._products)

    @cached_property
    def _joint_values(self) -> Array:
        D, products = self.dim, self._products
        self._solving("the joint spectrum")
        if self.one_table:
            values = np.concatenate([np.linalg.eigvalsh(products["EE"])[::-1], np.zeros(D)])
        else:
            scale = np.concatenate([np.full(D, np.trace(products["EE"])), np.full(D, np.trace(products["WW"]))])
            scale = 1 / np.sqrt(np.maximum(scale, 1e-300))
            values = np.linalg.eigvalsh(self.table_gram * scale[:, None] * scale[None])[::-1]
        values = np.maximum(values, 0)
        share: Array = values / max(float(values.sum()), 1e-300)
        return share

    @cached_property
    def angles(self) -> Array:  # [the smaller rank] radians, ascending
        """Principal angles between the column spaces of the two tables; all 0 when they are tied."""
        products = self._products
        self._solving("principal angles")
        inverse, one = whitening(products["EE"])
        whitened = inverse @ products["EW"]
        del inverse  # as large as a product
        inverse, two = whitening(products["WW"])
        multiply_(whitened, inverse.T)
        del inverse
        if self.exact:
            cosines: Array = np.linalg.svd(whitened, compute_uv=False)
        else:  # their squares as eigenvalues: a quarter of the cost, good to about 1e-7
            squares = whitened @ whitened.T
            del whitened  # the solver copies the squares
            cosines = roots(np.linalg.eigvalsh(squares))
        cosines = cosines[: min(one, two)]
        angles: Array = np.arccos(np.clip(cosines, -1, 1))
        return angles

    def _solving(self, what: str) -> None:
        """Report progress: solving costs the cube of the width."""
        if 2 * self.dim >= _WIDE:
            self._report(f"solving for {what}", 0, 0)

    def label(self, token: int) -> str:
        text = self.tables.spell(token)
        return f"#{token}" if text is None else text

    def find(self, text: str) -> int:
        """The id of the one token with this text, or of an id written as #123."""
        if text.startswith("#") and text[1:].isdigit():
            return int(self._checked([int(text[1:])])[0])
        ids = self.tables.encode(text)
        if len(ids) != 1:
            pieces = ", ".join(f"{self.label(i)!r} #{i}" for i in ids) or "none"
            raise BadRequest(
                f"{text!r} is {len(ids)} tokens, not one ({pieces}); give one of them, or its id as #{(*ids, 0)[0]}"
            )
        return ids[0]

    def _checked(self, ids: Sequence[int]) -> NDArray[np.int64]:
        places = np.asarray(ids, np.int64)
        if places.size == 0:
            raise BadRequest("give at least one token id")
        wrong = places[(places < 0) | (places >= self.vocab)]
        if wrong.size:
            raise BadRequest(f"token id {int(wrong[0]):,} is outside 0 to {self.vocab - 1:,}")
        return places

    def _blocks(self, stage: str, itemsize: int = 8) -> Iterator[NDArray[np.int64]]:
        size = max(64, _BLOCK_BYTES // (2 * self.dim * itemsize))
        for start in range(0, self.vocab, size):
            self._report(stage, start, self.vocab)
            yield np.arange(start, min(start + size, self.vocab))
        self._report(stage, self.vocab, self.vocab)

    def _best(
        self, score: Callable[[Array], Array], read: Callable[[NDArray[np.int64]], Array], rows: int, count: int,
        stage: str,
    ) -> list[list[tuple[int, float]]]:  # fmt: skip
        """The `count` best ids in each of `rows` rows of scores, over the whole vocabulary."""
        kept: list[list[tuple[int, float]]] = [[] for _ in range(rows)]
        for ids in self._blocks(stage):
            values = score(read(ids))  # [rows, n]
            few = min(count, values.shape[1])
            top = np.argpartition(-values, few - 1, axis=1)[:, :few]
            for i in range(rows):
                merged = kept[i] + [(int(ids[j]), float(values[i, j])) for j in top[i]]
                kept[i] = sorted(merged, key=lambda pair: (-pair[1], pair[0]))[:count]
        return kept


def _unit(x: Array) -> Array:  # [n, D] -> [n, D]
    unit: Array = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)
    return unit

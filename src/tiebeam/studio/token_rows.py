"""The rows of a model for its page: what a token's rows look like, and which rows look untrained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiebeam.errors import TiebeamError

if TYPE_CHECKING:
    from tiebeam.studio.open_models import OpenModel

MOST_ROWS = 200  # listed of each kind


def suspicious_rows(model: OpenModel) -> dict[str, Any]:
    """Rows that look untrained or unusual, by kind, with their texts. Reads both matrices once."""
    from tiebeam.inspection.row_health import UNTRAINED, row_health

    found = row_health(model.checkpoint, model.diagnosis.report)

    def text(row: int) -> str | None:
        try:
            return model.token_text(row)
        except TiebeamError:  # the matrices can be read, the direct path cannot
            return found.texts.get(row)

    matrices = []
    for matrix in found.matrices:
        groups = [
            {
                "kind": group.kind,
                "count": len(group.rows),
                "trained": group.kind not in UNTRAINED,
                "rows": [{"id": row, "text": text(row)} for row in group.rows[:MOST_ROWS]],
            }
            for group in matrix.groups
        ]
        matrices.append({"role": matrix.role, "name": matrix.name, "rows": matrix.rows,
                         "median_norm": matrix.median_norm, "groups": groups})  # fmt: skip
    return {"matrices": matrices, "skipped": list(found.skipped)}


def token_norms(model: OpenModel, ids: list[int]) -> list[dict[str, Any]]:
    """Norms of the rows of some tokens in both matrices."""
    import numpy as np

    places = np.asarray(ids, np.int64)
    norms = {"embed": np.linalg.norm(model.lens.embeds(places), axis=1)}
    if not model.single_matrix:
        norms["head"] = np.linalg.norm(model.lens.outputs(places), axis=1)
    return [{end: float(values[n]) for end, values in norms.items()} for n in range(len(ids))]

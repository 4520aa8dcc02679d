"""The table of a packed run: bits per row by frequency, codes that keep the logits."""

from __future__ import annotations

import numpy as np
import pytest

from tiebeam.errors import BadRequest
from tiebeam.surgery.quantize.precisions import Precision
from tiebeam.surgery.quantize.rounding import round_nearest
from tiebeam.train.table_rounding import TextStatistics, round_tables


def statistics(rows: int = 500, columns: int = 48) -> tuple[np.ndarray, TextStatistics]:
    random = np.random.default_rng(0)
    h = random.standard_normal((2000, 8)) @ random.standard_normal((8, columns)) + random.standard_normal(
        (2000, columns)
    )
    counts = 1e5 / np.arange(1, rows + 1) ** 1.2
    return random.standard_normal((rows, columns)).astype(np.float32), TextStatistics(h.T @ h / len(h), counts)


@pytest.mark.parametrize("mean", [3.5, 4.0, 6.25])
def test_bits_per_row_have_the_mean_asked_for_and_follow_the_frequency(mean: float) -> None:
    table, text = statistics()
    bits = text.row_bits(table, mean)
    assert mean - 0.2 <= bits.mean() <= mean
    assert bits.min() >= 2
    assert bits.max() <= 8
    assert bits[:10].mean() > bits[-10:].mean()


def test_bits_per_row_cost_less_than_the_same_bits_for_all() -> None:
    """Weighted by how often a row is used, which is what counts."""
    table, text = statistics()
    weight = text.counts / text.counts.sum()

    def error(values: np.ndarray) -> float:
        return float((weight * ((values - table) ** 2).sum(axis=1)).sum())

    mixed = round_tables({"tok_emb.weight": table}, 3.999, text, False)["tok_emb.weight"].values()
    assert error(mixed) < 0.5 * error(round_nearest(table, Precision(4)).values())


def test_only_the_head_is_compensated_where_there_are_two_tables() -> None:
    table, text = statistics()
    both = {"lm_head.weight": table, "model.embed_tokens.weight": table}
    found = round_tables(both, 4, text, True)
    nearest = round_nearest(table, Precision(4))
    np.testing.assert_array_equal(found["model.embed_tokens.weight"].codes, nearest.codes)

    def change(values: np.ndarray) -> float:
        return float(np.einsum("rd,de,re->", values - table, text.second_moment, values - table))

    assert change(found["lm_head.weight"].values()) < 0.7 * change(nearest.values())


def test_wrong_precisions_are_refused_before_anything_is_read(tmp_path) -> None:
    from tiebeam.train.pack_run import pack_run

    for options, message in (
        ({"embed": "int2"}, "int2"), ({"embed": "mixed"}, "mixed"), ({"bits": 9}, "between 2 and 8"),
        ({"rounding": "up"}, "rounding must be"),
    ):  # fmt: skip
        with pytest.raises(BadRequest, match=message):
            pack_run(tmp_path / "no", tmp_path / "x.tbp", **options)

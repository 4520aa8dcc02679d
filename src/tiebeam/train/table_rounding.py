"""Round the vocabulary matrices of a run for its artifact, with the code of `tiebeam quantize`.

One scale per row. `compensated`: the codes of the head (of the table, if tied) are chosen so that the logits on the
training text change least (surgery/quantize/error_compensation.py). With a mean number of bits that is not one of the
integer precisions, each row gets its own: a row counts by how often its token is read or predicted, and for minimal
squared error in total each bit more must be worth the same, so that bits = mean + log4(weight of the row), bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.corpus.batches import every_target
from tiebeam.surgery.quantize.error_compensation import RIDGE_OF_HEAD, RIDGE_OF_TIED, Compensation
from tiebeam.surgery.quantize.precisions import Precision
from tiebeam.surgery.quantize.rounding import Rounded, round_nearest

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT

Array = NDArray[Any]
FEWEST_BITS, MOST_BITS = 2, 8
_TOKENS = 1 << 15  # of the training text
_UNSEEN = 0.1  # share of the weight that all rows have alike, seen or not


@dataclass(frozen=True, slots=True)
class TextStatistics:
    """`second_moment` [D, D] of what the head multiplies, and how often each token is read, `counts` [V]."""

    second_moment: Array
    counts: Array

    def row_bits(self, table: Array, mean: float) -> NDArray[np.int64]:  # [V, D] -> [V]
        """Bits of each row, `mean` on average.

        >>> counts = np.array([900.0, 90, 9, 1])
        >>> TextStatistics(np.eye(2), counts).row_bits(np.ones((4, 2)), 4).tolist()
        [5, 4, 4, 3]
        """
        weight = (1 - _UNSEEN) * self.counts / max(1.0, self.counts.sum()) + _UNSEEN / len(self.counts)
        energy = weight * np.square(table, dtype=np.float64).sum(axis=1)
        wanted = 0.5 * np.log2(np.maximum(energy, 1e-300))
        low, high = -1100.0, 1100.0  # the offset for which the mean is right
        for _ in range(64):
            middle = (low + high) / 2
            bits = np.clip(np.rint(wanted + middle), FEWEST_BITS, MOST_BITS)
            low, high = (low, middle) if bits.mean() > mean else (middle, high)
        return np.asarray(np.clip(np.rint(wanted + low), FEWEST_BITS, MOST_BITS), np.int64)


def text_statistics(model: GPT, corpus: Corpus) -> TextStatistics:
    """From the first tokens of the training text."""
    import torch

    from tiebeam.train.backends.torch import evaluating

    device, width = model.table.weight.device, model.table.weight.shape[1]
    C, counts, tokens = np.zeros((width, width)), np.zeros(model.table.weight.shape[0]), 0
    with evaluating(model):
        for x, _ in every_target(corpus.train, 16, model.config.context):
            h = model._before_head(model.hidden(torch.from_numpy(x).to(device)))
            flat = h.reshape(-1, width).float().cpu().numpy().astype(np.float64)
            C += flat.T @ flat
            np.add.at(counts, x.reshape(-1), 1.0)
            tokens += x.size
            if tokens >= _TOKENS:
                break
    return TextStatistics(C / max(1, tokens), counts)


def round_tables(
    tables: dict[str, Array], bits: float, statistics: TextStatistics, compensated: bool
) -> dict[str, Rounded]:
    """Each table in `bits` bits; a fraction gives each row its own number. One table is tied: it is the head too."""
    rounded = {}
    for name, table in tables.items():
        by = None
        if compensated and (len(tables) == 1 or name.startswith("lm_head")):
            by = Compensation(statistics.second_moment, RIDGE_OF_TIED if len(tables) == 1 else RIDGE_OF_HEAD)
        each = np.full(len(table), int(bits)) if float(bits).is_integer() else statistics.row_bits(table, bits)
        rounded[name] = _by_bits(table, each, by)
    return rounded


def _by_bits(table: Array, bits: Array, by: Compensation | None) -> Rounded:
    codes, scales = np.zeros(table.shape, np.int8), np.ones((len(table), 1), np.float32)
    for count in np.unique(bits):
        rows, precision = bits == count, Precision(int(count))
        part = by.round(table[rows], precision) if by else round_nearest(table[rows], precision)
        codes[rows], scales[rows] = part.codes, part.scales
    return Rounded(codes, scales)

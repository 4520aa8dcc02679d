"""A hashed bigram table: x[t] += B[hash(ids[t - 1], ids[t])].

The pair of a token and the one before it is hashed to a row, so the table costs `rows` x dim parameters and no matrix
product. It is used at the input only: the head stays what it was. Bigrams that share a row share its vector.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.families.bigram_hash import FIRST, bigram_row


class BigramTable(nn.Module):
    """`weight` [rows, dim], zero at the start, so the model starts as it would without the table.

    >>> table = BigramTable(rows=64, dim=8)
    >>> table(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.rows = rows
        self.weight = nn.Parameter(torch.zeros(rows, dim))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def hashed(self, ids: Tensor) -> Tensor:  # [B, T] -> [B, T], rows of the table
        rows = torch.full_like(ids, FIRST)
        rows[:, 1:] = bigram_row(ids[:, :-1], ids[:, 1:], self.rows)
        return rows

    def forward(self, ids: Tensor) -> Tensor:  # [B, T] -> [B, T, D]
        return F.embedding(self.hashed(ids.long()), self.weight)

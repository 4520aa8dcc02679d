"""Pseudo-inverse tying (arXiv 2602.04556): an orthonormal table Z and one symmetric positive definite map T.

    embedding E = Z T^-1    LM head W = Z T    so that E^T W = T^-1 Z^T Z T = I: each is the other's pseudo-inverse

T = L L^T with a lower triangular L whose diagonal is exp of a parameter, so T is positive definite whatever the
optimizer does. T^-1 is applied by two triangular solves and never formed. Z starts as random orthonormal columns.

The paper says that Z is kept orthonormal and not, in what we could read of it, how. Here Z is trained like any table
and projected after every optimizer step to the nearest matrix with orthonormal columns (`orthonormalize_`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SPDMap(nn.Module):
    """T = L L^T, [dim, dim]; it starts as the identity.

    >>> T = SPDMap(8)
    >>> h = torch.randn(2, 8)
    >>> torch.allclose(T.inverse(T(h)), h, atol=1e-5)
    True
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim))  # strictly lower part of L; the diagonal is log diag(L)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def factor(self) -> Tensor:  # [D, D], lower triangular
        """L."""
        return torch.tril(self.weight, -1) + torch.diag(self.weight.diagonal().exp())

    def forward(self, h: Tensor) -> Tensor:  # [..., D] -> [..., D]
        """T h."""
        L = self.factor().to(h.dtype)
        return (h @ L) @ L.t()

    def inverse(self, z: Tensor) -> Tensor:  # [..., D] -> [..., D]
        """T^-1 z, by two triangular solves."""
        L = self.factor()
        flat = z.reshape(-1, z.shape[-1]).to(L.dtype).t()  # [D, N]
        half: Tensor = torch.linalg.solve_triangular(L, flat, upper=False)
        solved: Tensor = torch.linalg.solve_triangular(L.t(), half, upper=True)
        return solved.t().reshape(z.shape).to(z.dtype)


@torch.no_grad()
def orthonormalize_(Z: Tensor) -> Tensor:  # [V, D] with V >= D
    """Replace Z by the nearest matrix with orthonormal columns: its polar factor Z (Z^T Z)^-1/2."""
    wide = Z.double()
    values, vectors = torch.linalg.eigh(wide.t() @ wide)
    floor = values[-1] * 1e-12  # a direction that is lost stays small instead of becoming infinite
    inverse_root = (vectors * values.clamp_min(floor).rsqrt()) @ vectors.t()
    return Z.copy_(wide @ inverse_root)

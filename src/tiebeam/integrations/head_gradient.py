"""Measure how much of the gradient of a live pair comes from the head, in one backward pass of any model.

A tied matrix gets one gradient: the lookup's rows plus the head's. The rows are recorded at the output of the embedding
layer, and the rest is the head's (nn/gradient_share.py). It is measured where autograd hands the gradient over, before
accumulation, averaging over ranks and clipping change it. Without a plain embedding layer, or where the parameters are
sharded, nothing is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiebeam.doctor.row_samples import is_partitioned
from tiebeam.nn.provenance import Provenance

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tiebeam.surgery.module import Slot


class HeadGradient:
    """`arm(E, W)` before a backward pass; `result` after it, None if nothing could be measured."""

    def __init__(self) -> None:
        self.result: Provenance | None = None
        self._hooks: list[Any] = []
        self._rows: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._squares: dict[str, float] = {}

    def arm(self, E: Slot, W: Slot | None) -> None:
        from torch import nn

        self.disarm()
        embed = E.parameter
        tied = W is None or W.parameter is embed
        pair = [embed] if tied or W is None else [embed, W.parameter]
        if not isinstance(E.module, nn.Embedding) or any(is_partitioned(p) or not p.requires_grad for p in pair):
            return
        if tied:
            self._hooks = [E.module.register_forward_hook(self._record), _hook(embed, self._tied)]
        else:
            self._hooks = [_hook(p, self._part(i)) for i, p in enumerate(pair)]

    def disarm(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._rows, self._squares = [], [], {}

    def _record(self, layer: Any, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Keep the ids of a lookup, and the gradients of its rows when they come."""
        import torch

        if not out.requires_grad:
            return
        ids, weight = args[0], layer.weight.detach()[args[0]]
        scale = float((out.detach() * weight).sum() / weight.square().sum().clamp_min(1e-30))  # Gemma's sqrt(dim)
        if not torch.allclose(out.detach(), weight * scale, rtol=1e-2, atol=1e-6):
            self.disarm()  # a hook changed the rows (noise, a prompt): they are not the lookup's alone
            return

        def keep(gradient: torch.Tensor) -> None:
            if layer.padding_idx is not None:
                gradient = gradient.masked_fill((ids == layer.padding_idx).unsqueeze(-1), 0)
            self._rows.append((ids, gradient.detach() * scale))

        _hook(out, keep)

    def _tied(self, gradient: torch.Tensor) -> None:
        from tiebeam.nn.gradient_share import squared_parts

        if self._rows:
            self.result = Provenance.of(*squared_parts(gradient.detach(), self._rows).tolist())
        self.disarm()

    def _part(self, index: int) -> Any:
        def keep(gradient: torch.Tensor) -> None:
            self._squares[str(index)] = float(gradient.detach().double().square().sum())
            if len(self._squares) == 2:
                self.result = Provenance.of(self._squares["0"], self._squares["1"], 0.0)
                self.disarm()

        return keep


def _hook(tensor: torch.Tensor, function: Callable[[torch.Tensor], None]) -> Any:
    return tensor.register_hook(function)  # type: ignore[no-untyped-call]

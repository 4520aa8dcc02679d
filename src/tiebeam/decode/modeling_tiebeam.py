"""A causal language model of transformers whose embedding and LM head are one table with two maps.

The table S [V, R] and the maps A, B [R, D] are stored as `tiebeam.table`, `tiebeam.embed_map` and `tiebeam.head_map`.
The embedding of token v is S[v] A; the logits of a hidden state h are (h B') S'. The embeddings of some tokens are
stored as they are (`tiebeam.exact_rows`, `tiebeam.exact_embed`). Everything else is the model class of transformers.

`tiebeam tie --joint` writes this file beside the weights. It needs only torch and transformers:

    AutoModelForCausalLM.from_pretrained(DIRECTORY, trust_remote_code=True)

The class is made from its name: JointLlamaForCausalLM is LlamaForCausalLM with such a table. The weights are files of
the variant "tiebeam" (model.tiebeam.safetensors), so that a loader that does not know the table finds no weights
instead of starting two matrices with random numbers.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

VARIANT = "tiebeam"
PREFIX = "Joint"


class JointTable(nn.Module):
    """The table, its two maps, and the embeddings that are stored exactly."""

    def __init__(self, rows: int, rank: int, width: int, exact: int = 0) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(rows, rank))  # [V, R]
        self.embed_map = nn.Parameter(torch.zeros(rank, width))  # [R, D]
        self.head_map = nn.Parameter(torch.zeros(rank, width))  # [R, D]
        if exact:
            self.exact_rows = nn.Parameter(torch.zeros(exact, dtype=torch.int64), requires_grad=False)  # ascending
            self.exact_embed = nn.Parameter(torch.zeros(exact, width))  # [N, D]
        self.exact_count = exact

    def lookup(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        x = nn.functional.embedding(ids, self.table) @ self.embed_map
        if self.exact_count:
            at = torch.searchsorted(self.exact_rows, ids).clamp(max=self.exact_count - 1)
            exact = nn.functional.embedding(at, self.exact_embed)
            x = torch.where((self.exact_rows[at] == ids)[..., None], exact, x)
        return x

    def score(self, h: Tensor) -> Tensor:  # [..., D] -> [..., V]
        return nn.functional.linear(nn.functional.linear(h, self.head_map), self.table)

    def matrix(self, role: str) -> Tensor:  # "embed" or "head" -> [V, D]
        whole: Tensor = self.table @ getattr(self, f"{role}_map")
        if role == "embed" and self.exact_count:
            whole = whole.index_copy(0, self.exact_rows, self.exact_embed.to(whole.dtype))
        return whole


class _Part(nn.Module):
    """One use of the table. The table belongs to the model, so it is not a submodule here and is saved once."""

    role = ""
    joint: Any

    def __init__(self, joint: JointTable) -> None:
        super().__init__()
        object.__setattr__(self, "joint", joint)

    @property
    def weight(self) -> Tensor:  # -> [V, D], computed
        found: Tensor = self.joint.matrix(self.role)
        return found


class JointEmbedding(_Part):
    """Token ids -> embeddings; Gemma's scale is kept."""

    role = "embed"

    def __init__(self, joint: JointTable, replaced: Any) -> None:
        super().__init__(joint)
        self.scale = getattr(replaced, "scalar_embed_scale", None)
        if self.scale is None and getattr(replaced, "embed_scale", None) is not None:
            self.scale = float(replaced.embed_scale)

    def forward(self, input_ids: Tensor) -> Tensor:  # [...] -> [..., D]
        x: Tensor = self.joint.lookup(input_ids)
        return x if self.scale is None else x * torch.tensor(self.scale, dtype=x.dtype, device=x.device)


class JointHead(_Part):
    """Hidden states -> logits; the head's bias is kept."""

    role = "head"
    bias: Tensor | None

    def __init__(self, joint: JointTable, replaced: Any) -> None:
        super().__init__(joint)
        self.register_parameter("bias", getattr(replaced, "bias", None))

    def forward(self, hidden_states: Tensor) -> Tensor:  # [..., D] -> [..., V]
        logits: Tensor = self.joint.score(hidden_states)
        return logits if self.bias is None else logits + self.bias


@cache
def joint_class(base: Any) -> Any:
    """The class `base` of transformers with one table for embedding and head."""

    class Joint(base):  # type: ignore[misc]
        _tied_weights_keys = None

        def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(config, *arguments, **options)
            embed, head = self.get_input_embeddings(), self.get_output_embeddings()
            rows, width = embed.weight.shape
            joint = config.tiebeam["joint"]
            self.tiebeam = JointTable(joint.get("rows", rows), joint["rank"], width, joint.get("exact_embed", 0))
            self.set_input_embeddings(JointEmbedding(self.tiebeam, embed))
            self.set_output_embeddings(JointHead(self.tiebeam, head))

        @classmethod
        def from_pretrained(cls, name_or_path: Any, *arguments: Any, **options: Any) -> Any:
            if name_or_path is not None:
                options.setdefault("variant", VARIANT)
            return super().from_pretrained(name_or_path, *arguments, **options)

        def save_pretrained(self, save_directory: Any, *arguments: Any, **options: Any) -> None:
            options.setdefault("variant", VARIANT)
            own = Path(__file__)
            self.config.auto_map = {"AutoModelForCausalLM": f"{own.stem}.{type(self).__name__}"}
            super().save_pretrained(save_directory, *arguments, **options)
            copy = Path(save_directory) / own.name
            if not (copy.exists() and copy.samefile(own)):
                shutil.copyfile(own, copy)

        def tie_weights(self, *arguments: Any, **options: Any) -> None:
            """Nothing to do: one table is both."""

        def resize_token_embeddings(self, *arguments: Any, **options: Any) -> None:
            raise NotImplementedError("a joint table is not resized; add tokens before `tiebeam tie --joint`")

    Joint.__name__ = Joint.__qualname__ = PREFIX + base.__name__
    return Joint


def __getattr__(name: str) -> Any:
    """The class that a directory's `auto_map` names, made on first use."""
    base = getattr(transformers, name.removeprefix(PREFIX), None) if name.startswith(PREFIX) else None
    if base is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return joint_class(base)

"""Run a checkpoint with NumPy: tokens -> hidden states, logits, text.

decoder = Decoder.open("SmolLM2-135M-Instruct.Q4_1.gguf")
decoder.logits([1, 2, 3])                       # [3, V]
decoder.hidden([1, 2, 3])                       # [3, D], what the head sees
for token in decoder.generate("Once upon a time", 32):
    print(token.text, end="")
decoder.perplexity("It was a dark and stormy night.").bits_per_byte
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.decode.engine import EngineBase, Tokens
from tiebeam.decode.numpy.blocks import Block, Cache, Norm, load_block, load_norm, run
from tiebeam.decode.numpy.load_weights import UnreadWeights, Weights
from tiebeam.decode.numpy.ops import Array, Ids, all_finite, rms_norm, softcap
from tiebeam.decode.numpy.runnable import model_config, names_for, spec_of
from tiebeam.decode.numpy.vocab_tables import Scorer, Table, open_tables
from tiebeam.decode.sampling import Sampling
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.families.bigram_hash import FIRST, bigram_row
from tiebeam.families.spec import Spec

CHUNK = 512
"""Positions per forward pass: enough for BLAS to be fast, few enough to need little memory."""

_NOT_RUN = re.compile(
    r"(^|\.)(inv_freq|masked_bias|attn\.bias|attention\.bias|rope_freqs\.weight|rope_factors_\w+\.weight)$"
    r"|(^|\.)(vision_tower|multi_modal_projector|vision_model)\."
)


class Token(NamedTuple):
    """One generated token. `text` is empty until the bytes of a character are complete, or without a tokenizer."""

    id: int
    text: str


@dataclass(frozen=True, eq=False, repr=False)
class Decoder(EngineBase):
    """Embedding, layers and LM head of a checkpoint. Make one with `Decoder.open`.

    `with_tables` replaces embedding and head; everything else is read-only.
    """

    source: str
    spec: Spec
    embed: Table
    head: Table
    blocks: list[Block]
    final_norm: Norm
    dtype: np.dtype[Any]
    positions: Array | None = None  # [context, D]
    skip_weights: Array | None = None  # [L // 2, D], golf
    bigrams: Array | None = None  # [R, D], added to the embedding
    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def open(
        cls,
        source: str | os.PathLike[str] | Checkpoint,
        *,
        embed: str | None = None,
        head: str | None = None,
        dtype: str = "float32",
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Decoder:
        """Open a model to run it. `embed` and `head` name the tensors where they cannot be found.

        `dtype` of the weights in memory: float32, float64, or float32 rounded to float16 or bfloat16. `progress` is
        called with (layers read, layers); what it raises ends the opening.
        """
        checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
        return cls._read(Weights(checkpoint, dtype), embed, head, progress)

    @classmethod
    def check_runnable(cls, source: str | os.PathLike[str] | Checkpoint) -> None:
        """Raise what `open` would raise if the model cannot be run, without reading its matrices."""
        checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
        cls._read(UnreadWeights(checkpoint), None, None, lambda done, total: None)

    @classmethod
    def _read(
        cls, weights: Weights, embed: str | None, head: str | None, progress: Callable[[int, int], None]
    ) -> Decoder:
        checkpoint = weights.checkpoint
        config, where = model_config(checkpoint)
        spec = spec_of(config, where)
        names = names_for(spec.family, checkpoint.format, checkpoint.tensors)
        positions = skips = bigrams = None
        if spec.positions:
            positions = weights.matrix(names.prefix + names.positions, (spec.context, spec.dim))
        if spec.golf:
            skips = weights.vector("skip_weights", (len(spec.layers) // 2, spec.dim))
        if spec.bigram_rows:
            bigrams = weights.matrix("bigram.weight", (spec.bigram_rows, spec.dim))
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as readers:  # converting weights releases the GIL
            opening = readers.submit(open_tables, weights, spec, names, config, embed, head)
            blocks = []
            progress(0, len(spec.layers))
            for block in readers.map(lambda i: load_block(weights, spec, names, i), range(len(spec.layers))):
                blocks.append(block)
                progress(len(blocks), len(spec.layers))
            tables = opening.result()
        final_norm = load_norm(weights, spec, names, names.prefix + names.final_norm)
        return cls(
            source=checkpoint.source,
            spec=spec,
            embed=tables[0],
            head=tables[1],
            blocks=blocks,
            final_norm=final_norm,
            dtype=weights.dtype,
            positions=positions,
            skip_weights=skips,
            bigrams=bigrams,
            checkpoint=checkpoint,
            notes=(*tables[2], *_unused(weights)),
        )

    def __repr__(self) -> str:
        spec = self.spec
        return f"<Decoder of {self.source}: {spec.family}, {len(spec.layers)} layers, {self.vocab:,} x {spec.dim}>"

    def with_tables(self, embed: Table, head: Table) -> Decoder:
        """The same layers with another embedding and head: the effect of a change, before anything is written."""
        return replace(self, embed=embed, head=head)

    @property
    def vocab(self) -> int:
        return self.head.vocab

    @cached_property
    def _scorer(self) -> Scorer:
        return self.head.scorer()

    def cache(self, capacity: int | None = None) -> Cache:
        """An empty KV cache for `capacity` positions (by default, the whole context)."""
        return Cache(self.spec, self.spec.context if capacity is None else capacity, self.dtype)

    def forward(self, tokens: Tokens, cache: Cache, states: list[Array] | None = None) -> Array:  # [T] -> [T, D]
        """Run new tokens after those in the cache; the final hidden states, after the final norm.

        `states` is replaced by the residual stream at the last position, [D] each: after the embedding, and after
        every layer."""
        ids = self.check(tokens)
        if cache.length + len(ids) > cache.capacity:
            raise BadRequest(
                f"the cache has capacity for {cache.capacity:,} positions and holds {cache.length:,}; "
                f"{len(ids):,} more do not fit"
            )
        parts = []
        with np.errstate(all="ignore"):  # an overflow shows in the result and is explained then
            for start in range(0, len(ids), CHUNK):
                x = self._embed(ids[start : start + CHUNK], cache)  # [t, D]
                if states is not None:
                    states.clear()  # of the last chunk only
                parts.append(self.final_norm(run(self.blocks, self.skip_weights, x, cache, states)))
        h = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if not all_finite(h):
            self._explain_nan()
        return h

    def _embed(self, ids: Ids, cache: Cache) -> Array:  # [t] -> [t, D]
        x = self.embed.lookup(ids)
        if self.spec.scales.input != 1.0:
            x = x * self.spec.scales.input
        if self.positions is not None:
            x = x + self.positions[cache.length : cache.length + len(ids)]
        if self.bigrams is not None:
            x = x + self.bigrams[_bigram_rows(ids, cache.last_token, len(self.bigrams))]
            cache.last_token = int(ids[-1])
        if self.spec.golf or self.spec.embed_norm:
            x = rms_norm(x, None, self.spec.eps)
        return x

    def unembed(self, h: Array) -> Array:  # [T, D] -> [T, V]
        """Logits of hidden states."""
        with np.errstate(all="ignore"):
            logits = self._scorer(h)
            if self.spec.scales.logits != 1.0:
                logits *= self.spec.scales.logits
            if self.spec.scales.softcap is not None:
                logits = softcap(logits, self.spec.scales.softcap)
        if not all_finite(logits[-1]):
            self._explain_nan()
        return logits

    def generate(
        self,
        prompt: str | Tokens,
        n: int = 64,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        sampling: Sampling | None = None,
        stop: bool = True,
    ) -> Iterator[Token]:
        """Up to `n` tokens after the prompt. `stop`: end at the model's end-of-text token."""
        return super().generate(prompt, n, sampling=sampling or Sampling(temperature, top_k, top_p, seed), stop=stop)

    def _explain_nan(self) -> None:
        """Raise an error that names the tensor with the NaN. Searched only now: a scan costs as much as a token."""
        names = [] if self.checkpoint is None else list(self.checkpoint.tensors)
        for name in names:
            assert self.checkpoint is not None
            values = self.checkpoint.tensor(name)
            if values.dtype.kind != "f":
                continue
            bad = np.argwhere(~np.isfinite(values.astype(np.float64)))
            if len(bad):
                at = ", ".join(str(i) for i in bad[0])
                raise UnreadableInput(
                    f"{name} holds {len(bad):,} values that are not finite, the first at [{at}]; "
                    "the file is damaged, or its training diverged"
                )
        raise UnreadableInput(f"{self.source} overflows on this input: the weights are finite, the activations are not")


def _bigram_rows(ids: Ids, before: int | None, rows: int) -> Ids:  # [t] -> [t]
    """The rows of the bigram table; `before` is the token before the first id, None at the start of the text."""
    previous = np.concatenate([[0 if before is None else before], ids[:-1]]).astype(np.int64)
    found: Ids = bigram_row(previous, ids.astype(np.int64), rows)
    if before is None:
        found[0] = FIRST
    return found


def _unused(weights: Weights) -> tuple[str, ...]:
    """A note on stored tensors that the decoder does not use."""
    tensors = weights.checkpoint.tensors
    rest = [name for name in tensors if name not in weights.used and not _NOT_RUN.search(name)]
    if not rest:
        return ()
    count = f"{len(rest):,} stored tensors are" if len(rest) > 1 else "one stored tensor is"
    return (f"{count} not used: {', '.join(rest[:3])}{' …' if len(rest) > 3 else ''}",)

"""Prove a merge: run the base with the adapters applied as it is read, and the merged files, on the same tokens.

The expected model is made from the base's own files, names and flags, with dense float64 arithmetic, so it has nothing
in common with the writer but the reading of the adapter. It runs twice: with unrounded weights, and with weights
rounded to the types of the result. The distance of the two is what rounding costs. The merged files must be at most a
tenth of it from the second (a sum that float32 and float64 round differently may change the last bit of a weight).
In float32 that is no distance at all, and a model with large weights turns last bits into visible differences. So where
the files are further away, the expected model runs once more with its last bits moved at random: that is what the
writer's arithmetic may cost this model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint, dtypes
from tiebeam.errors import ProofFailed, TiebeamError
from tiebeam.surgery.merge.adapter_parts import AdapterParts
from tiebeam.surgery.merge.adapter_targets import Targets
from tiebeam.surgery.merge.collect_changes import EndChange, collect
from tiebeam.surgery.merge.stored_rows import CheckpointRows, GrownRows
from tiebeam.surgery.merge.tensor_update import Update
from tiebeam.surgery.proof import ENGINE_DTYPES, Proof, probe_tokens, too_large_to_run
from tiebeam.surgery.source import Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tiebeam.decode.engine import Engine

    Numbers = NDArray[np.float32]

_MEASURED_TOKENS = 512
_LAST_BITS = 4  # one random draw of the last bits may be some way below the writer's


@dataclass(frozen=True)
class AdaptedCheckpoint(Checkpoint):
    """A checkpoint of which some tensors are read with an adapter's change. `rounded`: then rounded to `types`."""

    updates: Mapping[str, Update] = None  # type: ignore[assignment]
    types: Mapping[str, str] | None = None
    moved: bool = False

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        if name not in self.updates:
            return super().rows(name, start, stop)
        return self.tensor(name)[start:stop]

    def tensor(self, name: str) -> NDArray[np.generic]:
        if name not in self.updates:
            return super().tensor(name)
        return dense(self.updates[name], self.types[name] if self.types else None, self.moved)


def adapted(
    base: Checkpoint, updates: Mapping[str, Update], types: Mapping[str, str] | None, moved: bool = False
) -> AdaptedCheckpoint:
    """`base` with `updates` applied when a tensor is read; `types`: rounded to these; `moved`: see `dense`."""
    # A packing keeps readers from mapping the file, and F32 is what `tensor` gives.
    tensors = {
        name: info._replace(dtype="F32", packing="adapted") if name in updates else info
        for name, info in base.tensors.items()
    }
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    return AdaptedCheckpoint(**{**fields, "tensors": tensors}, updates=updates, types=types, moved=moved)


def dense(update: Update, dtype: str | None = None, moved: bool = False) -> Numbers:
    """The tensor with its changes, in float64 and whole: the plain form of what `Prepared` computes in blocks.

    `moved`: each number up or down at random, by the last float32 bit of the largest sum on its way.
    """
    import numpy as np

    x = update.base.rows(0, update.base.shape[0]).astype(np.float64)
    if update.copies:
        start = x.copy()
        for copy in update.copies:
            x += copy.parts.weight * (copy.rows(0, len(start)) - start)
    for delta in update.biases:
        x += delta.load()
    for part in update.low_rank:
        left, right = (side.astype(np.float64) for side in part.load())
        x += left @ right
    if moved:
        x += np.random.default_rng(0).choice((-1.0, 1.0), x.shape) * _last_bit(update)
    if update.low_rank and update.low_rank[0].lora.magnitude is not None:
        part = update.low_rank[0]
        outputs = x.T if part.flipped else x  # [out, in]
        scaled = outputs * (part.magnitude() / np.linalg.norm(outputs, axis=1))[:, None]
        x = scaled.T if part.flipped else scaled
    for rows in update.rows:
        ids = list(rows.trained.ids)
        x[ids] += rows.parts.weight * (rows.load() - x[ids])
    found = np.ascontiguousarray(x, np.float32)
    return found if dtype is None else dtypes.decode(dtype, dtypes.encode(dtype, found), found.shape).astype(np.float32)


def _last_bit(update: Update) -> NDArray[np.float64]:
    """The last float32 bit of the sum of the sizes of all that is added up, for each number of the tensor."""
    import numpy as np

    sizes = np.abs(update.base.rows(0, update.base.shape[0]).astype(np.float64))
    for copy in update.copies:
        sizes += abs(copy.parts.weight) * (np.abs(copy.rows(0, len(sizes))) + sizes)
    for delta in update.biases:
        sizes += np.abs(delta.load())
    for part in update.low_rank:
        left, right = (np.abs(side.astype(np.float64)) for side in part.load())
        sizes += left @ right
    return sizes * np.finfo(np.float32).eps


@dataclass(frozen=True)
class MergeProof:
    """Runs the base with `adapters` against the result. `keeps`: the end whose change both ends of a tied pair get."""

    source: Source
    adapters: tuple[AdapterParts, ...]
    keeps: str | None = None

    def prove(self, result: Checkpoint, engine: str, device: str | None) -> Proof:
        """Compare the logits; raises ProofFailed if the result differs by more than rounding."""
        import numpy as np

        from tiebeam.decode import engine_name, open_engine

        why = too_large_to_run(result)
        if why:
            return Proof(False, why=why)
        try:
            exact = self._expected(result, None, engine, device)
        except TiebeamError as error:
            return Proof(False, why=str(error))
        name, tokens = engine_name(exact), probe_tokens(exact.vocab)
        unrounded = exact.logits(tokens)
        del exact
        rounded = self._expected(result, self._types(result), name, device).logits(tokens)
        try:
            found = open_engine(result, engine=name, device=device).logits(tokens)
        except TiebeamError as error:
            raise ProofFailed(f"the base runs but the result does not ({error}); the target was not written") from None
        if found.shape != rounded.shape:
            raise ProofFailed(f"the logits are {found.shape} instead of {rounded.shape}; the target was not written")
        cost = float(np.abs(unrounded - rounded).max())
        allowed = 0.1 * cost + 2e-6 * max(1.0, float(np.abs(rounded).max()))
        off = float(np.abs(found - rounded).max())
        if off > allowed:
            moved = self._expected(result, self._types(result), name, device, moved=True).logits(tokens)
            last_bits = float(np.abs(moved - rounded).max())
            cost, allowed = max(cost, last_bits), allowed + _LAST_BITS * last_bits
        if not off <= allowed:
            raise ProofFailed(
                f"the merged model is {off:.3g} from the base with the adapter on the probe tokens, and rounding "
                f"explains {cost:.3g}; the target was not written"
            )
        return Proof(True, len(tokens), float(np.abs(found - unrounded).max()), engine=name)

    def measure(self, result: Checkpoint) -> Mapping[str, Any]:
        """What it costs to keep one matrix (`pair=`): the model that was trained against the result."""
        from tiebeam.decode import divergence, open_engine
        from tiebeam.surgery.loss_effect import LossEffect, built_in_passage

        on = "a built-in passage"
        try:
            trained = replace(self, keeps=None)._expected(result, None, "auto", None)
            try:
                tokens = trained.encode(built_in_passage())[:_MEASURED_TOKENS]
            except TiebeamError:
                on, tokens = "probe tokens", probe_tokens(trained.vocab)
            effect = LossEffect(divergence(trained, open_engine(result), tokens), on)
        except TiebeamError as error:
            effect = LossEffect(None, on, str(error))
        return {**effect.to_dict(), "sentence": effect.sentence}

    def _expected(
        self,
        result: Checkpoint,
        types: Mapping[str, str] | None,
        engine: str,
        device: str | None,
        moved: bool = False,
    ) -> Engine:
        """The base with the adapters; embedding and head of its own each, whatever its flag says."""
        from tiebeam.decode import Table, open_engine
        from tiebeam.surgery.merge.merge_plan import decide_pair

        source, base = self.source, self.source.checkpoint
        targets = replace(Targets.of_checkpoint(source), written=False)
        found = collect(self.adapters, targets, lambda name: CheckpointRows(base, name), base.source)
        whole = ENGINE_DTYPES[next(iter(types.values()))] if types and self._dequantized else "float32"
        opened = open_engine(adapted(base, found.updates, types, moved), engine=engine, device=device, dtype=whole)
        decision = decide_pair(source, self.adapters, found, self.keeps)
        pair = source.report.pair
        names = [matrix.name for matrix in (pair.embed or pair.head, pair.head or pair.embed) if matrix]
        if not any(end.touched or end.base for end in (decision.embed, decision.head)):
            return opened
        rows = max(decision.embed.needs_rows, decision.head.needs_rows)
        tables = [
            Table(dense(_whole(end, name, base, rows), types["embed" if i == 0 else "head"] if types else None, moved))
            for i, (end, name) in enumerate(zip((decision.embed, decision.head), names, strict=True))
        ]
        return opened.with_tables(*tables)

    @property
    def _dequantized(self) -> bool:
        """Whether the result is a directory made from a GGUF: then every tensor is rounded, not only those that
        change."""
        return self.source.converted and self.source.checkpoint.format == "gguf"

    def _types(self, result: Checkpoint) -> dict[str, str]:
        """The element types of the result, by the base's names, and those of embedding and head."""
        from tiebeam.inspection import inspect

        pair = inspect(result).pair
        stored = self.source.checkpoint.tensors
        if self._dequantized:
            types = dict.fromkeys(stored, next(iter(result.tensors.values())).dtype)
        else:
            types = {name: result.tensors[name].dtype for name in stored if name in result.tensors}
        embed, head = pair.embed or pair.head, pair.head or pair.embed
        return {**types, **({"embed": embed.dtype, "head": head.dtype} if embed and head else {})}


def _whole(end: EndChange, name: str, base: Checkpoint, rows: int) -> Update:
    stored = CheckpointRows(base, name)
    if end.base:
        return end.update(name, CheckpointRows(end.base.parts.adapter.weights, end.base.tensor))
    return end.update(name, GrownRows(stored, rows) if rows > stored.shape[0] else stored)

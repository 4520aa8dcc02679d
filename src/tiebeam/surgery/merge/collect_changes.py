"""Collect what all adapters change, by stored tensor; the embedding and the LM head apart, because of their tie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tiebeam.errors import BadRequest
from tiebeam.surgery.merge.adapter_parts import AdapterParts, Lora
from tiebeam.surgery.merge.adapter_targets import Target, Targets, names_of
from tiebeam.surgery.merge.stored_rows import StoredRows
from tiebeam.surgery.merge.tensor_update import BiasDelta, FullCopy, LowRank, TrainedRows, Update

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLOATS = ("F64", "F32", "F16", "BF16")
Opener = Callable[[str], StoredRows]


@dataclass(frozen=True, eq=False)
class EndChange:
    """What is done to the embedding or to the head, in the layout [V, D]. `base`: the weight that the adapter saved in
    place of the base's own."""

    low_rank: tuple[LowRank, ...] = ()
    copies: tuple[FullCopy, ...] = ()
    rows: tuple[TrainedRows, ...] = ()
    base: FullCopy | None = None

    @property
    def touched(self) -> bool:
        return bool(self.low_rank or self.copies or self.rows)

    @property
    def needs_rows(self) -> int:
        """The rows that the matrix must have."""
        counts = [shape_of(part)[0] for part in self.low_rank]
        counts += [copy.parts.adapter.weights.tensors[copy.tensor].shape[0] for copy in self._whole]
        return max([*counts, *(max(part.trained.ids, default=-1) + 1 for part in self.rows)], default=0)

    @property
    def has_rows(self) -> int | None:
        """The rows of whole matrices and factors, which must all be the same; None without any."""
        counts = {shape_of(part)[0] for part in self.low_rank}
        counts |= {copy.parts.adapter.weights.tensors[copy.tensor].shape[0] for copy in self._whole}
        return max(counts) if counts else None

    @property
    def _whole(self) -> tuple[FullCopy, ...]:
        return (*self.copies, *((self.base,) if self.base else ()))

    def __or__(self, other: EndChange) -> EndChange:
        return EndChange(
            self.low_rank + other.low_rank, self.copies + other.copies, self.rows + other.rows, other.base or self.base
        )

    def update(self, name: str, base: StoredRows) -> Update:
        return Update(name, base, self.low_rank, self.copies, self.rows)

    def same_as(self, other: EndChange) -> bool:
        """Whether both do the same to a matrix [V, D]."""
        if [len(x) for x in self._lists] != [len(x) for x in other._lists]:
            return False
        factors = zip(self.low_rank, other.low_rank, strict=True)
        rows = zip(self.rows, other.rows, strict=True)
        return (
            all(_same_factors(mine, theirs) for mine, theirs in factors)
            and all(a.trained.ids == b.trained.ids and _equal(a.load(), b.load()) for a, b in rows)
            and all(_same_copy(a, b) for a, b in zip(self.copies, other.copies, strict=True))
        )

    @property
    def _lists(self) -> tuple[tuple[object, ...], ...]:
        return self.low_rank, self.copies, self.rows


@dataclass(frozen=True, eq=False)
class Collected:
    """`updates` by stored tensor, without the pair; `ends` of the pair, one of each for every adapter."""

    updates: dict[str, Update] = field(default_factory=dict)
    ends: tuple[dict[str, EndChange], ...] = ()


def collect(adapters: Sequence[AdapterParts], targets: Targets, open_rows: Opener, base: str) -> Collected:
    """Every change of `adapters` to the tensors of `targets`. Raises BadRequest if a target is missing or unfit."""
    found = Collected(ends=tuple({"embed": EndChange(), "head": EndChange()} for _ in adapters))
    for parts, ends in zip(adapters, found.ends, strict=True):
        missing = []
        for module, lora in parts.lora.items():
            role = targets.role(module)
            target = None if role else targets.find(f"{module}.weight")
            if role:
                flipped = lora.embedding or (role == "embed" and _is_embedding(parts, lora))
                ends[role] |= EndChange(low_rank=(LowRank(parts, lora, flipped),))
            elif target is None:
                missing.append(module)
            else:
                _check_type(target, module, targets, base)
                part = LowRank(parts, lora, _flipped(parts, lora, target, base), target.order)
                _add(found.updates, target, open_rows, low_rank=part)
                _add_bias(found.updates, module, part, targets, open_rows)
        for module, rows in parts.rows.items():
            role = targets.role(module)
            if role is None:
                missing.append(module)
            else:
                ends[role] |= EndChange(rows=(TrainedRows(parts, rows),))
        for name, copy in parts.copies.items():
            module, _, leaf = name.rpartition(".")
            role = targets.role(module) if leaf == "weight" else None
            target = None if role else targets.find(name)
            if role:
                whole = FullCopy(parts, copy.tensor)
                ends[role] |= EndChange(copies=(whole,)) if copy.trained else EndChange(base=whole)
            elif target is None:
                missing.append(name)
            else:
                _check_type(target, module, targets, base)
                _check_copy(parts, copy.tensor, target, base)
                _add(found.updates, target, open_rows, copy=FullCopy(parts, copy.tensor, target.order))
        if missing:
            _refuse_missing(parts, missing, targets, base)
    for update in found.updates.values():
        check_combination(update.name, update.low_rank, update.copies)
    return found


def check_combination(name: str, low_rank: Sequence[LowRank], copies: Sequence[FullCopy]) -> None:
    """DoRA is not a sum, and two full copies only are one with weights."""
    dora = next((part for part in low_rank if part.lora.magnitude), None)
    if dora is not None and (len(low_rank) > 1 or copies):
        raise BadRequest(f"DoRA on {name} cannot be combined with another adapter; merge one after the other")
    if dora is not None and dora.parts.weight != 1.0:
        raise BadRequest(f"DoRA on {name} cannot be scaled by weight={dora.parts.weight:g}; merge it without a weight")
    if len(copies) > 1 and all(copy.parts.weight == 1.0 for copy in copies):
        sources = " and ".join(copy.parts.adapter.source for copy in copies)
        raise BadRequest(f"{sources} both hold a full copy of {name}; say how much of each: weight=0.5 for both")


def _add(
    updates: dict[str, Update], target: Target, open_rows: Opener, *, low_rank: LowRank | None = None,
    copy: FullCopy | None = None, bias: BiasDelta | None = None,
) -> None:  # fmt: skip
    old = updates.get(target.name) or Update(target.name, open_rows(target.name))
    updates[target.name] = replace(
        old,
        low_rank=old.low_rank + ((low_rank,) if low_rank else ()),
        copies=old.copies + ((copy,) if copy else ()),
        biases=old.biases + ((bias,) if bias else ()),
    )


def _add_bias(
    updates: dict[str, Update], module: str, part: LowRank, targets: Targets, open_rows: Opener
) -> None:  # lora_bias
    if part.lora.bias is None:
        return
    target = targets.find(f"{module}.bias")
    if target is None:
        raise BadRequest(
            f"{part.parts.adapter.source} trained a bias for {module} (lora_bias), and the base has none to add it to; "
            "the adapter can only be used unmerged"
        )
    _add(updates, target, open_rows, bias=BiasDelta(part.parts, part.lora, target.order))


def _check_type(target: Target, module: str, targets: Targets, base: str) -> None:
    if target.dtype in FLOATS or not targets.written:
        return
    method = targets.packed(module)
    packed = f"{target.name} of {base} is stored as {target.dtype}" + (f" ({method})" if method else "")
    way = (
        "name a directory as the target (the GGUF is then dequantized)"
        if targets.hf_names is not None
        else "merge into the model before it was quantized, and quantize the result"
    )
    raise BadRequest(f"{packed}, which a merge would have to round again; {way}")


def _check_copy(parts: AdapterParts, tensor: str, target: Target, base: str) -> None:
    shape = parts.adapter.weights.tensors[tensor].shape
    if target.fixed:
        raise BadRequest(f"{tensor} cannot be written into {base}: {target.fixed}; name a directory as the target")
    if shape != target.shape:
        raise BadRequest(f"{tensor} is {list(shape)} but {target.name} of {base} is {list(target.shape)}; {_OTHER}")


_OTHER = "the adapter was trained on another base"


def _flipped(parts: AdapterParts, lora: Lora, target: Target, base: str) -> bool:
    """Whether the matrix is stored [in, out]: by the family, else by its shape, else by what the adapter says."""
    weights = parts.adapter.weights.tensors
    out, into = (weights[lora.a].shape[1], weights[lora.b].shape[0])[::-1]
    if target.fixed.startswith("GGUF stores it with"):
        raise BadRequest(f"the adapter changes single experts, and {target.fixed}; name a directory as the target")
    fits = {flipped for flipped in (False, True) if target.shape == ((into, out) if flipped else (out, into))}
    if not fits:
        raise BadRequest(
            f"the factors of {lora.a.rpartition('.lora_')[0]} make a matrix [{out}, {into}] but {target.name} of "
            f"{base} is {list(target.shape)}; {_OTHER}"
        )
    if len(fits) == 1:
        return fits.pop()
    return parts.stored_transposed if target.flipped is None else target.flipped


def _is_embedding(parts: AdapterParts, lora: Lora) -> bool:
    """Factors of an embedding under the names of a linear layer's: A [r, V], B [D, r]."""
    weights = parts.adapter.weights.tensors
    return weights[lora.a].shape[1] > weights[lora.b].shape[0]


def _refuse_missing(parts: AdapterParts, missing: Sequence[str], targets: Targets, base: str) -> None:
    total = len(parts.lora) + len(parts.copies) + len(parts.rows)
    method = next((method for module in missing if (method := targets.packed(module))), None)
    if method:
        raise BadRequest(
            f"{missing[0]} of {base} is packed ({method}); merge into the model before it was quantized, and "
            "quantize the result"
        )
    named = f"; it names {parts.adapter.base} as its base" if parts.adapter.base else ""
    raise BadRequest(
        f"{parts.adapter.source} changes {names_of(missing)}, which {base} does not have ({len(missing):,} of "
        f"{total:,} targets are missing){named}"
    )


def shape_of(part: LowRank) -> tuple[int, int]:
    """The shape of the matrix that the factors make, as stored."""
    weights = part.parts.adapter.weights.tensors
    out, into = weights[part.lora.b].shape[0], weights[part.lora.a].shape[1]
    return (into, out) if part.flipped else (out, into)


def _same_factors(a: LowRank, b: LowRank) -> bool:
    if (a.lora.magnitude is None) != (b.lora.magnitude is None):
        return False
    dora = a.lora.magnitude is None or (a.flipped == b.flipped and _equal(a.magnitude(), b.magnitude()))
    return dora and all(_equal(mine, theirs) for mine, theirs in zip(a.load(), b.load(), strict=True))


def _same_copy(a: FullCopy, b: FullCopy) -> bool:
    first, second = (copy.parts.adapter.weights.tensors[copy.tensor] for copy in (a, b))
    if first.shape != second.shape:
        return False
    step = max(1, (1 << 20) // first.shape[1])
    return all(_equal(a.rows(at, at + step), b.rows(at, at + step)) for at in range(0, first.shape[0], step))


def _equal(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    import numpy as np

    return np.array_equal(a, b)


def joined(ends: Iterable[dict[str, EndChange]]) -> dict[str, EndChange]:
    """The changes of all adapters to each end."""
    found = {"embed": EndChange(), "head": EndChange()}
    for each in ends:
        found = {role: found[role] | each[role] for role in found}
    return found

"""Plan a GGUF with other types for `token_embd` and `output`; every other tensor is copied byte for byte.

A tied model whose two types differ gets an `output.weight`. Two tensors that are roundings of one matrix
(same_matrix.py) become one if their types may be equal, made from the finer of the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam.budget import human_bytes
from tiebeam.checkpoint import Checkpoint, dtypes, open_checkpoint
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.errors import BadRequest, ProofFailed, TiebeamError
from tiebeam.families.gguf_output import output_weight
from tiebeam.inspection import Report
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.plan import Plan
from tiebeam.surgery.proof import Proof, probe_tokens, too_large_to_run
from tiebeam.surgery.quantize.cost_table import COMPENSATED, NEAREST
from tiebeam.surgery.quantize.error_compensation import RIDGE_OF_HEAD, RIDGE_OF_TIED, Compensation
from tiebeam.surgery.quantize.gguf_codes import packed_blocks
from tiebeam.surgery.quantize.precisions import BY_GGUF
from tiebeam.surgery.quantize.rounding import Array
from tiebeam.surgery.quantize.same_matrix import rounding_error, same_up_to_rounding
from tiebeam.surgery.source import Source, open_source
from tiebeam.surgery.untie import refuse_always_tied

if TYPE_CHECKING:
    from tiebeam.decode import Engine, Table
    from tiebeam.surgery.loss_effect import LossEffect

_ROWS = 2048
_CALIBRATION_TOKENS = 4096
_MEASURED_TOKENS = 1024
_SUGGESTED = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")


@dataclass(frozen=True)
class Role:
    """What one end of the model will be: the stored tensor `base`, as `dtype`; unchanged if that is its type."""

    checkpoint: Checkpoint
    base: str
    dtype: str
    before: str
    """The tensor that has this role now."""
    by: Compensation | None = None

    @property
    def unchanged(self) -> bool:
        return self.checkpoint.tensors[self.base].dtype == self.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.checkpoint.tensors[self.base].shape

    def _source(self, start: int, stop: int) -> Array:
        return self.checkpoint.rows(self.base, start, stop).astype(np.float32)

    def _blocks(self) -> Iterator[bytes]:
        for start in range(0, self.shape[0], _ROWS):
            rows = self._source(start, start + _ROWS)
            if self.by is not None:
                yield packed_blocks(self.by.round(rows, BY_GGUF[self.dtype]), BY_GGUF[self.dtype])
            else:
                yield dtypes.encode(self.dtype, rows)

    def entry(self, name: str) -> Entry:
        total = dtypes.nbytes(self.dtype, self.shape)
        if total is None:
            raise BadRequest(f"a width of {self.shape[1]} is not a whole number of {self.dtype} blocks; choose F16")
        return Entry(name, self.dtype, self.shape, Made(total, self._blocks))

    def predicted(self, start: int, stop: int) -> Array:  # -> [rows, D]
        """The numbers that the result will have."""
        rows = self._source(start, stop)
        if self.unchanged:
            return rows
        if self.by is not None:
            return self.by.round(rows, BY_GGUF[self.dtype]).values()
        found = dtypes.decode(self.dtype, dtypes.encode(self.dtype, rows), rows.shape)
        return found.astype(np.float32, copy=False)

    def whole(self) -> Array:  # -> [V, D]
        return np.concatenate([self.predicted(at, at + _ROWS) for at in range(0, self.shape[0], _ROWS)])

    @cached_property
    def lossless(self) -> bool:
        """Whether no row moves further than rounding to the type that it has now, or to float16, moves it."""
        if self.unchanged and self.base == self.before:
            return True
        now = self.checkpoint.tensors[self.before].dtype
        for start in range(0, self.shape[0], _ROWS):
            old = self.checkpoint.rows(self.before, start, start + _ROWS).astype(np.float32)
            moved = np.linalg.norm(self.predicted(start, start + _ROWS) - old, axis=1)
            allowed = rounding_error("F16", old)
            assert allowed is not None
            own = rounding_error(now, old)
            if not (moved <= np.maximum(allowed, own if own is not None else 0.0) + 1e-30).all():
                return False
        return True


@dataclass(frozen=True)
class Quantization:
    """A plan, with what it does to both ends. `one`: the result has one matrix."""

    plan: Plan
    embed: Role
    head: Role
    one: bool
    twin: bool

    @cached_property
    def lossless(self) -> bool:
        """Exact, or within the rounding errors that the file already has: needs no consent."""
        if self.twin and self.embed.unchanged and self.head.unchanged:
            return True  # the finer of two roundings replaces the coarser
        return self.embed.lossless and self.head.lossless

    @property
    def saved(self) -> str:
        before = sum(shard.nbytes for shard in self.plan.source.layout.shards)
        less = before - sum(shard.nbytes for shard in self.plan.shards)
        return f"{human_bytes(abs(less))} {'saved' if less >= 0 else 'more'} of {human_bytes(before)}"

    def tables(self, engine: Engine | None = None) -> tuple[Table, Table]:
        """Embedding and head as the result will have them."""
        from tiebeam.decode import Table

        embed = Table(self.embed.whole())
        return embed, (embed if self.one else Table(self.head.whole()))

    def effect(self, text: str | None, *, engine: str = "auto", device: str | None = None) -> LossEffect:
        """The loss before and after, on `text` or a built-in passage."""
        from tiebeam.surgery.loss_effect import measure_tables

        return measure_tables(
            self.plan.checkpoint, self.tables, text, most=_MEASURED_TOKENS, engine=engine, device=device
        )

    def prove(self, result: Checkpoint, engine: str, device: str | None) -> Proof:
        """The logits of the written file are those of the layers with the predicted matrices."""
        from tiebeam.decode import engine_name, open_engine

        why = too_large_to_run(result)
        if why:
            return Proof(False, why=why)
        try:
            model = open_engine(self.plan.checkpoint, engine=engine, device=device)
        except TiebeamError as error:
            return Proof(False, why=str(error))
        name, tokens = engine_name(model), probe_tokens(model.vocab)
        expected = model.with_tables(*self.tables()).logits(tokens)
        del model
        try:
            found = open_engine(result, engine=name, device=device).logits(tokens)
        except TiebeamError as error:
            raise ProofFailed(f"the source runs but the result does not ({error}); nothing was written") from None
        largest = float(np.abs(found - expected).max()) if found.shape == expected.shape else float("inf")
        if not largest <= 1e-6 * max(1.0, float(np.abs(expected).max())):
            raise ProofFailed(f"the logits are up to {largest:.3g} from those of the planned matrices")
        return Proof(True, len(tokens), largest, engine=name)


def open_gguf(source: str | os.PathLike[str] | Checkpoint, target: str | os.PathLike[str] | None = None) -> Source:
    """Open a GGUF file to change the types of its vocabulary matrices."""
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    if checkpoint.format != "gguf":
        raise BadRequest(
            f"{checkpoint.source} is {checkpoint.format}; the types are GGUF's, so convert it first with llama.cpp's "
            "convert_hf_to_gguf.py --outtype f16, then quantize that file"
        )
    if target is not None and not os.fspath(target).endswith(".gguf"):
        raise BadRequest(f"the target {os.fspath(target)} must end in .gguf: only GGUF has these types")
    return open_source(checkpoint, target=target or "result.gguf")


def plan_quantize(
    source: Source,
    *,
    embed: str | None = None,
    head: str | None = None,
    rounding: str = NEAREST,
    text: str | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> Quantization:
    """Plan `embed` and `head` as the types of the two matrices; None keeps a type. With neither, one matrix that is
    stored under two types becomes one."""
    checkpoint, pair = source.checkpoint, source.report.pair
    if pair.embed is None:
        raise BadRequest(f"{checkpoint.source} stores no token_embd.weight; rename its matrix first: tiebeam tie")
    if rounding not in (NEAREST, COMPENSATED):
        raise BadRequest(f'rounding must be "{NEAREST}" or "{COMPENSATED}", not {rounding!r}')
    types = {"embed": _type(embed), "head": _type(head)}
    found = same_up_to_rounding(checkpoint, pair)
    twin = found is not None and found.same
    stored = {"embed": pair.embed.name, "head": (pair.head or pair.embed).name}
    base = dict.fromkeys(stored, found.finer) if found and twin else dict(stored)
    one_asked = not embed and not head
    if one_asked and not twin:
        differ = f" ({found})" if found else ""
        raise BadRequest(
            f"{checkpoint.source} does not store one matrix twice{differ}: name the types to write, "
            'such as embed="Q8_0", head="Q8_0"'
        )
    dtype = {
        role: types[role] or checkpoint.tensors[base[role] if one_asked else stored[role]].dtype for role in stored
    }
    for role, name in stored.items():
        if not one_asked and checkpoint.tensors[name].dtype == dtype[role]:
            base[role] = name  # the type that it has already: its own numbers stay
    one = (pair.head is None or twin) and dtype["embed"] == dtype["head"]
    if one and twin and output_weight(checkpoint.architecture) == "required":
        one = False
        if one_asked:
            raise BadRequest(f"llama.cpp does not load {checkpoint.architecture} without output.weight; both must stay")
    if one and twin:
        assert found
        base = dict.fromkeys(stored, found.finer)
    by = _compensation(source, dtype, base, one, rounding, text, engine, device)
    roles = {
        role: Role(checkpoint, base[role], dtype[role], stored[role], by if one or role == "head" else None)
        for role in stored
    }
    edit = _edit(source, roles, one)
    plan = Plan(
        "quantize", source, edit, _expected(dtype, one), exact=False,
        notes=(f"{stored['embed']} and {stored['head']} are one matrix: {found}",) if found and twin else (),
        nothing_to_do="" if edit else f"{checkpoint.source} already has these types",
        prove=lambda result, name, where: planned.prove(result, name, where),
        facts={"types": dtype, "rounding": rounding, "one_matrix": one},
    )  # fmt: skip
    planned = Quantization(plan, roles["embed"], roles["head"], one, twin)
    return planned


def _type(name: str | None) -> str | None:
    """A GGUF type that can be written, in capitals."""
    if name is None:
        return None
    dtype = name.upper()
    try:
        dtypes.encode(dtype, np.zeros((1, 256), np.float32))
    except TiebeamError:
        from gguf.constants import GGMLQuantizationType

        known = dtype in GGMLQuantizationType.__members__
        what = "cannot be written by the gguf package" if known else "is not a GGUF type"
        raise BadRequest(f"{name} {what}; choose one of {', '.join(_SUGGESTED)}") from None
    return dtype


def _compensation(
    source: Source, dtype: dict[str, str], base: dict[str, str], one: bool, rounding: str, text: str | None,
    engine: str, device: str | None,
) -> Compensation | None:  # fmt: skip
    """The second moment of the hidden states on `text`; None where the head is not rounded anew."""
    if rounding == NEAREST or source.checkpoint.tensors[base["head"]].dtype == dtype["head"]:
        return None
    if dtype["head"] not in BY_GGUF or BY_GGUF[dtype["head"]].bits == 16:
        raise BadRequest(
            f'{dtype["head"]} cannot be error-compensated; choose head="Q8_0", "Q5_0" or "Q4_0", or rounding="nearest"'
        )
    if text is None:
        raise BadRequest('rounding="compensated" needs text="FILE": it keeps the logits on that text')
    from tiebeam.decode import open_engine
    from tiebeam.surgery.joint.calibration import calibrate

    model = open_engine(source.checkpoint, engine=engine, device=device)
    calibration = calibrate(model, text, most=_CALIBRATION_TOKENS, held_out_most=1)
    return Compensation(calibration.C, RIDGE_OF_TIED if one else RIDGE_OF_HEAD)


def _edit(source: Source, roles: dict[str, Role], one: bool) -> Edit:
    embed, head = roles["embed"], roles["head"]
    output = source.tensor_name("head")
    stored = source.head is not None
    if one:
        edit = Edit(drop=frozenset({output})) if stored else Edit()
        if not embed.unchanged:
            return edit | Edit(rewrite={embed.before: embed.entry(embed.before)})
        if embed.base != embed.before:  # the head is the finer of the two
            return Edit(drop=frozenset({embed.before}), rename={embed.base: embed.before})
        return edit
    if not stored:
        refuse_always_tied(source)
    edit = Edit()
    for role, name in ((embed, embed.before), (head, output)):
        if role is head and not stored:
            edit |= Edit(copy={name: head.base}) if head.unchanged else Edit(add=(head.entry(name),))
        elif not role.unchanged or role.base != role.before:
            edit |= Edit(rewrite={name: role.entry(name)})
    return edit


def _expected(dtype: dict[str, str], one: bool) -> Callable[[Report], str | None]:
    def expect(report: Report) -> str | None:
        embed, head = report.pair.embed, report.pair.head
        found: dict[str, Any] = {"embed": embed and embed.dtype, "head": head.dtype if head else None}
        wanted = {**dtype, "head": None} if one else dtype
        return None if found == wanted else f"its types are {found}, not {wanted}"

    return expect

"""A plan -> a new checkpoint: written beside the target, compared, inspected, run, and only then put in place.

Nothing here decides what to change; `Plan` says it, and can say it to a person first (`plan.changes`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam._fs import (
    Fingerprints,
    Stage,
    check_space,
    check_target,
    explaining,
    flushing,
    staging,
)
from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.json_files import read_json
from tiebeam.checkpoint.write.copy_bytes import Content, Span, check_same, clone, copy_files, write_files
from tiebeam.checkpoint.write.safetensors import INDEX, index_json
from tiebeam.errors import BadRequest, ProofFailed, UnreadableInput
from tiebeam.inspection import Report, inspect
from tiebeam.surgery import model_card
from tiebeam.surgery.cases import Case
from tiebeam.surgery.edits import Change, Edit, Shard, apply, describe, parameters_added
from tiebeam.surgery.json_edit import set_value
from tiebeam.surgery.output_shards import Material, companions, is_directory, local_files, real_path

if TYPE_CHECKING:
    from tiebeam.surgery.proof import Proof

_END = 4096
Watch = Callable[[str, int, int], None]


def unwatched(stage: str, done: int, total: int) -> None:
    """Nobody is looking."""


@dataclass(frozen=True)
class Plan:
    """Everything that will change, before anything does. `expect` checks the reopened result's report; it returns
    a sentence when the result is not what was meant. `exact` promises the same logits to the bit."""

    verb: str
    case: Case
    edit: Edit
    expect: Callable[[Report], str | None]
    exact: bool = True
    notes: tuple[str, ...] = ()
    trial: Callable[[Checkpoint], Mapping[str, Any]] | None = None
    """Where the logits are meant to change: runs the result before it is put in place, and returns what it measured."""

    @property
    def checkpoint(self) -> Checkpoint:
        return self.case.checkpoint

    @property
    def report(self) -> Report:
        return self.case.report

    @property
    def material(self) -> Material:
        return self.case.material

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        before = self.material.shards
        changes = describe(self.edit, before, apply(self.edit, before), self.material.config or {})
        if self.case.converted:
            name = Path(self.checkpoint.source).name
            changes.insert(0, Change(name, f"{self.checkpoint.format} becomes safetensors"))
        return tuple(changes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "source": self.checkpoint.source,
            "tie": str(self.report.tie),
            "exact": self.exact,
            "changes": [change.to_dict() for change in self.changes],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Outcome:
    """What a surgery left behind."""

    verb: str
    source: str
    target: str
    before: Report
    after: Report
    changes: tuple[Change, ...]
    digests: tuple[str, str]
    proof: Proof | None = None
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "source": self.source,
            "target": self.target,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
            "digest_before": self.digests[0],
            "digest_after": self.digests[1],
            "proof": self.proof.to_dict() if self.proof else None,
            "left_behind": list(self.left),
            "notes": list(self.notes),
            **({"measured": dict(self.measured)} if self.measured else {}),
        }


@dataclass(frozen=True, slots=True)
class How:
    """The options of carrying out: `link` hard-links weight files that do not change, `prove` compares logits,
    `durable` flushes to the disk before the rename."""

    force: bool = False
    link: bool = False
    prove: bool = True
    durable: bool = True
    watch: Watch = unwatched
    engine: str = "auto"
    device: str | None = None


DEFAULT = How()


def carry_out(plan: Plan, target: str | os.PathLike[str], how: How = DEFAULT) -> Outcome:
    """Write the target, prove it, put it in place."""
    where = Path(target)
    as_file = _wants_file(plan, where)
    check_target(Path(plan.checkpoint.source), where, how.force)
    before = plan.material.shards
    after = apply(plan.edit, before)
    if as_file and len(after) > 1:
        raise BadRequest(f"{plan.checkpoint.source} has {len(after)} weight files; name a directory as the target")
    others = companions(plan.checkpoint, {shard.name for shard in after})
    sources = Fingerprints({path for shard in before for path in _source_paths(shard)} | {p for _, p in others.kept})
    with ThreadPoolExecutor(1) as beside, staging(where, how.force, how.durable) as stage:
        hashing = beside.submit(_source_hashes, plan)  # while the disk is busy
        with explaining(where):
            needed = sum(s.nbytes for s in after if not (how.link and s.original))
            check_space(where, needed)
            linked = _write_shards(stage, after, how)
            _write_documents(stage, plan, before, after, others.kept)
        result = open_checkpoint(stage.path)
        _verify(stage, result, after, linked, how.watch)
        report = inspect(result, **_names(plan, result))
        trouble = plan.expect(report)
        if trouble:
            raise ProofFailed(f"the result was not put in place: {trouble}")
        digests = _digests(plan, result, report, after, hashing.result())
        if not as_file:
            with explaining(where):
                _write_card(stage, plan, digests)
        proof = _prove(plan, result, how)
        measured = plan.trial(result) if plan.trial and how.prove else {}
        changed = sources.changed()
        if changed is not None:
            raise UnreadableInput(f"{changed} changed while it was being read; nothing was written, run it again")
        how.watch("flushing to the disk", 0, 1)
        stage.commit(after[0].name if as_file else None)
        how.watch("flushing to the disk", 1, 1)
    notes = list(plan.notes)
    if as_file and plan.edit.config:
        wanted = ", ".join(f"{'.'.join(path)} {value}".lower() for path, value in plan.edit.config.items())
        notes.append(f"a single file carries no config.json; the one beside {where} must say {wanted}")
    return Outcome(
        verb=plan.verb,
        source=plan.checkpoint.source,
        target=str(where),
        before=plan.report,
        after=_moved(report, where),
        changes=plan.changes,
        digests=digests,
        proof=proof,
        left=others.left if not as_file else (),
        notes=tuple(notes),
        measured=measured,
    )


def _wants_file(plan: Plan, target: Path) -> bool:
    """A bare file in, named as a file out, stays a file."""
    if plan.case.is_gguf:
        return True
    if target.suffix != ".safetensors" or target.is_dir():
        return False
    if is_directory(plan.checkpoint) or plan.case.converted:
        raise BadRequest(f"the target must be a directory: {target} names a file, and the model is more than one")
    return True


def _source_paths(shard: Shard) -> set[Path]:
    return {entry.content.path for entry in shard.entries if isinstance(entry.content, Span)}


def _names(plan: Plan, result: Checkpoint) -> dict[str, str]:
    """Where the pair was named by hand, it must be named again."""
    case = plan.case
    if not (plan.report.guessed or case.by_hand) and result.architecture:
        return {}
    named = {end: case.wanted.get(end, name) for end, name in (("embed", case.embed), ("head", case.head))}
    return {end: name for end, name in named.items() if name is not None and name in result.tensors}


def _write_shards(stage: Stage, shards: list[Shard], how: How) -> set[str]:
    """Write, copy or link every weights file; returns the names of those linked."""
    total = sum(shard.nbytes for shard in shards)
    done = 0

    def progress(n: int) -> None:
        nonlocal done
        done += n
        how.watch("writing and comparing", min(done, total), total)

    linked: set[str] = set()
    files: list[tuple[Path, list[Content]]] = []
    for shard in shards:
        path = stage.path / shard.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if shard.original is None:
            files.append((path, shard.contents))
        elif how.link and _link(shard.original, path):
            linked.add(shard.name)
            progress(shard.nbytes)
        elif clone(shard.original, path):
            progress(shard.nbytes)
        else:
            files.append((path, [Span(shard.original, 0, shard.original.stat().st_size)]))
    with flushing(path for path, _ in files) if how.durable else nullcontext():
        write_files(files, progress)
    return linked


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another disk, or a file system without hard links: copy instead
        return False
    return True


def _write_documents(
    stage: Stage, plan: Plan, before: Sequence[Shard], after: list[Shard], others: Collection[tuple[str, Path]]
) -> None:
    """config.json, the index, and everything that comes along unchanged."""
    files, material = local_files(plan.checkpoint), plan.material
    copies = []
    for name, path in others:
        if name != "config.json":
            (stage.path / name).parent.mkdir(parents=True, exist_ok=True)
            copies.append((path, stage.path / name))
    copy_files(copies)
    for name, raw in material.documents.items():
        (stage.path / name).write_bytes(raw)
    if material.config_text is not None:
        text = material.config_text
        for keys, value in plan.edit.config.items():
            text = set_value(text, keys, value)
        (stage.path / "config.json").write_bytes(text.encode())
    has_index = plan.checkpoint.format == "safetensors" and INDEX in files.names()
    if len(after) > 1 or (has_index and is_directory(plan.checkpoint)):
        old = read_json(files, INDEX) if has_index else None
        weight_map = {entry.name: shard.name for shard in after for entry in shard.entries}
        total = sum(shard.nbytes for shard in after)
        text = index_json(old, weight_map, total, parameters_added(plan.edit, before))
        (stage.path / INDEX).write_bytes(text.encode())


def _verify(stage: Stage, result: Checkpoint, shards: list[Shard], linked: set[str], watch: Watch) -> None:
    """That the reopened headers lead to the right bytes. Every block was compared as it was copied; here each tensor's
    first and last bytes are compared with the source's once more, where its header now says that it lies."""
    ranges: list[tuple[Span, Path, int]] = []
    for shard in shards:
        path = stage.path / shard.name
        for entry in shard.entries:
            info = result.tensors.get(entry.name)
            if info is None or (info.file, info.dtype, info.shape) != (shard.name, entry.dtype, entry.shape):
                raise ProofFailed(f"{entry.name} was not found again in {shard.name}; nothing was put in place")
            span = entry.content
            if isinstance(span, Span) and shard.name not in linked:
                ends = {(span.begin, min(span.begin + _END, span.end)), (max(span.end - _END, span.begin), span.end)}
                ranges += [(Span(span.path, *end), path, info.begin + end[0] - span.begin) for end in ends]
    expected = {entry.name for shard in shards for entry in shard.entries}
    extra = result.tensors.keys() - expected
    if extra:
        raise ProofFailed(f"the result holds {min(extra)!r}, which nobody asked for; nothing was put in place")
    watch("verifying", 0, 1)
    check_same(ranges)
    watch("verifying", 1, 1)


def _source_hashes(plan: Plan) -> dict[str, str]:
    pair, source = plan.report.pair, plan.checkpoint
    whole = {matrix.name for matrix in (pair.embed, pair.head) if matrix}
    if pair.equal and pair.embed and pair.head and plan.report.how == "every byte was compared":
        hashes = model_card.content_hashes(source, {pair.embed.name}, {pair.head.name: ""})
        return {**hashes, pair.head.name: hashes[pair.embed.name]}
    return model_card.content_hashes(source, whole)


def _digests(
    plan: Plan, result: Checkpoint, report: Report, after: list[Shard], hashes: Mapping[str, str]
) -> tuple[str, str]:
    """Both digests; what was just compared byte for byte is not hashed twice."""
    pair, source = plan.report.pair, plan.checkpoint
    by_span = {
        Span(real_path(local_files(source), source.tensors[name].file), *source.tensors[name][4:6]): hashes[name]
        for name in (matrix.name for matrix in (pair.embed, pair.head) if matrix)
    }
    after_whole = {matrix.name for matrix in (report.pair.embed, report.pair.head) if matrix}
    known = {
        entry.name: by_span[entry.content]
        for shard in after
        for entry in shard.entries
        if entry.name in after_whole and isinstance(entry.content, Span) and entry.content in by_span
    }
    after_hashes = model_card.content_hashes(result, after_whole, known)
    return model_card.table_digest(source, hashes), model_card.table_digest(result, after_hashes)


def _write_card(stage: Stage, plan: Plan, digests: tuple[str, str]) -> None:
    path = stage.path / model_card.CARD
    card = path.read_bytes() if path.exists() else b""
    source = plan.checkpoint.source
    source = Path(source).name if Path(source).exists() else source  # a name on the Hub stays whole
    path.write_bytes(model_card.add_to_card(card, plan.verb, source, plan.changes, *digests))


def _prove(plan: Plan, result: Checkpoint, how: How) -> Proof | None:
    if not how.prove or not plan.exact:
        return None
    from tiebeam.surgery.proof import prove

    how.watch("comparing logits", 0, 1)
    from_gguf = plan.case.converted and plan.checkpoint.format == "gguf"
    rounded = plan.material.shards[0].entries[0].dtype if from_gguf else "F32"
    proof = prove(
        plan.checkpoint, result, exact=not plan.case.converted, rounded=rounded, engine=how.engine, device=how.device
    )
    how.watch("comparing logits", 1, 1)
    return proof


def _moved(report: Report, target: Path) -> Report:
    from dataclasses import replace

    return replace(report, model=str(target))

"""Execute a plan: write the new checkpoint beside the target, verify it, then rename it to the target.

The checks, in order: every copied block is read back and compared, the headers of the result point at the right
bytes, the report of the result is as planned, and the logits are those of the source. If one fails nothing is left.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam._fs import Fingerprints, Stage, check_space, check_target, explaining, staging
from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.json_files import read_json
from tiebeam.checkpoint.write.copy_bytes import Content, Span, check_same, clone, copy_files, pieces, write_files
from tiebeam.checkpoint.write.json_edit import set_value
from tiebeam.checkpoint.write.safetensors import INDEX, index_json
from tiebeam.errors import BadRequest, ProofFailed, UnreadableInput
from tiebeam.inspection import inspect
from tiebeam.surgery import model_card
from tiebeam.surgery.edits import Shard, parameters_added
from tiebeam.surgery.output_shards import companions, is_directory, local_files
from tiebeam.surgery.own_output import own_output
from tiebeam.surgery.plan import Outcome, Plan, Progress, no_progress
from tiebeam.surgery.source import Source, check_path

if TYPE_CHECKING:
    from tiebeam.surgery.proof import Proof

_CHECKED = 4096  # bytes at each end of a tensor that are compared again through the new header


@dataclass(frozen=True, slots=True)
class Target:
    """An output path that `checked_target` accepted; `force`: replace the model that tiebeam wrote there."""

    path: Path
    force: bool


def checked_target(source: Source, target: str | os.PathLike[str], force: bool = False) -> Target:
    """Check `target` before minutes of measuring; pass the result to `execute`, which then does not check again."""
    path = Path(check_path(target))
    check_target(Path(source.checkpoint.source), path, force, own_output(source))
    return Target(path, force)


def execute(
    plan: Plan,
    target: str | os.PathLike[str] | Target,
    *,
    force: bool = False,
    link: bool = False,
    proof: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> Outcome:
    """Write what `plan` describes to `target`, verified.

        plan = plan_tie(open_source("./merged"))
        for change in plan.changes:
            print(change)
        execute(plan, "./tied", link=True)

    force      replace `target` if tiebeam wrote it
    link       hard-link weight files that do not change instead of copying them
    proof      run source and result and compare their logits
    durable    flush to disk before the final rename
    progress   called with (stage, done, total)
    engine     what runs the models for the proof: "auto", "numpy" or "transformers"; see `tiebeam.decode`
    device     the torch device of the transformers engine

    Raises BadRequest if there is nothing to do, ProofFailed if a check fails.
    """
    if plan.nothing_to_do:
        raise BadRequest(f"{plan.nothing_to_do}; nothing was written")
    where = target if isinstance(target, Target) else checked_target(plan.source, target, force)
    show = progress or no_progress
    as_file = _is_file_target(plan, where.path)
    before, after = plan.source.layout.shards, plan.shards
    if as_file and len(after) > 1:
        raise BadRequest(f"{plan.checkpoint.source} has {len(after)} weight files; the target must be a directory")
    written = {shard.name for shard in after} | ({plan.source.layout.index} if _writes_index(plan) else set())
    others = companions(plan.checkpoint, written)
    read = {path for shard in before for path in _source_paths(shard)} | {path for _, path in others.kept}
    sources = Fingerprints(read | set(plan.inputs))
    path = where.path
    with explaining(path), ThreadPoolExecutor(1) as thread, staging(path, where.force, durable) as stage:
        hashing = thread.submit(model_card.source_hashes, plan)  # hash while the disk is busy
        check_space(path, sum(shard.nbytes for shard in after if not (link and shard.original)))
        linked = _write_shards(stage, after, link, durable, show)
        _write_documents(stage, plan, others.kept)
        result = open_checkpoint(stage.path)
        _verify(stage, result, after, linked, show)
        names = _pair_names(plan, result)
        report = inspect(result, embed=names.get("embed"), head=names.get("head"))
        problem = plan.expect(report)
        if problem:
            raise ProofFailed(f"the result is not as planned: {problem}; nothing was written")
        digests = model_card.digests(plan, result, report, hashing.result())
        if not as_file:
            model_card.add_to(stage.path, plan, digests)
        proved = _prove(plan, result, show, engine, device) if proof and (plan.exact or plan.prove) else None
        measured: Mapping[str, Any] = {}
        if plan.measure and proof:
            show("running the result", 0, 1)
            measured = plan.measure(result)
            show("running the result", 1, 1)
        changed = sources.changed()
        if changed is not None:
            raise UnreadableInput(f"{changed} changed while it was read; nothing was written, run the command again")
        show("flushing to disk", 0, 1)
        stage.commit(after[0].name if as_file else None)
        show("flushing to disk", 1, 1)
    notes = list(plan.notes)
    if as_file and plan.edit.config:
        flags = ", ".join(f"{'.'.join(path)}: {value}".lower() for path, value in plan.edit.config.items())
        notes.append(f"a single file has no config.json; set {flags} in the config.json beside {where.path}")
    return Outcome(
        verb=plan.verb,
        source=plan.checkpoint.source,
        target=str(where.path),
        before=plan.report,
        after=replace(report, model=str(where.path)),
        changes=plan.changes,
        digests=digests,
        proof=proved,
        left=others.left if not as_file else (),
        notes=tuple(notes),
        measured=measured,
        facts=plan.facts,
    )


def _is_file_target(plan: Plan, target: Path) -> bool:
    """Whether the target is a single file: GGUF, or a .safetensors file made from a single file."""
    if plan.source.is_gguf:
        return True
    if target.suffix != ".safetensors" or target.is_dir():
        return False
    if is_directory(plan.checkpoint) or plan.source.converted:
        raise BadRequest(f"{target} names a file, but the model has several files; the target must be a directory")
    return True


def _source_paths(shard: Shard) -> set[Path]:
    held = (piece for entry in shard.entries for piece in pieces(entry.content))
    return {piece.path for piece in held if isinstance(piece, Span)}


def _pair_names(plan: Plan, result: Checkpoint) -> dict[str, str]:
    """The names to inspect the result with: those the user gave, or that were guessed for an unknown architecture."""
    source = plan.source
    if not (plan.report.guessed or source.named_by_user) and result.architecture:
        return {}
    names = {role: source.new_names.get(role, name) for role, name in (("embed", source.embed), ("head", source.head))}
    renamed = {role: plan.edit.rename.get(name, name) for role, name in names.items() if name is not None}
    return {role: name for role, name in renamed.items() if name in result.tensors}


def _write_shards(stage: Stage, shards: list[Shard], link: bool, durable: bool, progress: Progress) -> set[str]:
    """Write, copy or link every weight file; returns the names of the linked ones."""
    total = sum(shard.nbytes for shard in shards)
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        progress("writing and comparing", min(done, total), total)

    linked: set[str] = set()
    files: list[tuple[Path, list[Content]]] = []
    for shard in shards:
        path = stage.path / shard.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if shard.original is None:
            files.append((path, shard.contents))
        elif link and _link(shard.original, path):
            linked.add(shard.name)
            advance(shard.nbytes)
        elif clone(shard.original, path):
            advance(shard.nbytes)
        else:
            files.append((path, [Span(shard.original, 0, shard.original.stat().st_size)]))
    write_files(files, advance, durable)
    return linked


def _link(source: Path, target: Path) -> bool:
    if not hasattr(os, "link"):
        return False
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another disk, or a file system without hard links: copy instead
        return False
    return True


def _write_documents(stage: Stage, plan: Plan, others: Collection[tuple[str, Path]]) -> None:
    """config.json, the index, and the files that are copied unchanged."""
    files, layout = local_files(plan.checkpoint), plan.source.layout
    copies = []
    for name, path in others:
        if name != "config.json" and name not in plan.edit.documents and name not in plan.edit.leave:
            (stage.path / name).parent.mkdir(parents=True, exist_ok=True)
            copies.append((path, stage.path / name))
    copy_files(copies)
    for name, raw in {**layout.documents, **plan.edit.documents}.items():
        (stage.path / name).write_bytes(raw)
    if layout.config_text is not None:
        text = layout.config_text
        for keys, value in plan.edit.config.items():
            text = set_value(text, keys, value)
        (stage.path / "config.json").write_bytes(text.encode())
    if _writes_index(plan):
        old = read_json(files, INDEX) if _has_index(plan) else None
        weight_map = {entry.name: shard.name for shard in plan.shards for entry in shard.entries}
        total = sum(shard.nbytes for shard in plan.shards)
        text = index_json(old, weight_map, total, parameters_added(plan.edit, layout.shards))
        (stage.path / layout.index).write_bytes(text.encode())


def _has_index(plan: Plan) -> bool:
    return plan.checkpoint.format == "safetensors" and INDEX in local_files(plan.checkpoint).names()


def _writes_index(plan: Plan) -> bool:
    """Whether the target gets an index: several files, or a source that had one."""
    return len(plan.shards) > 1 or (_has_index(plan) and is_directory(plan.checkpoint))


def _verify(stage: Stage, result: Checkpoint, shards: list[Shard], linked: set[str], progress: Progress) -> None:
    """Check that the reopened headers point at the right bytes.

    Every block was compared as it was copied. Here the first and last bytes of each tensor, at the place that the new
    header gives, are compared with the source again.
    """
    ranges: list[tuple[Span, Path, int]] = []
    for shard in shards:
        path = stage.path / shard.name
        for entry in shard.entries:
            info = result.tensors.get(entry.name)
            if info is None or (info.file, info.dtype, info.shape) != (shard.name, entry.dtype, entry.shape):
                raise ProofFailed(f"{entry.name} is missing or changed in {shard.name}; nothing was written")
            at = info.begin
            for span in pieces(entry.content):
                if isinstance(span, Span) and shard.name not in linked:
                    first = span.begin, min(span.begin + _CHECKED, span.end)
                    last = max(span.end - _CHECKED, span.begin), span.end
                    ranges += [(Span(span.path, *part), path, at + part[0] - span.begin) for part in {first, last}]
                at += span.nbytes
    expected = {entry.name for shard in shards for entry in shard.entries}
    extra = result.tensors.keys() - expected
    if extra:
        raise ProofFailed(f"the result has a tensor that was not planned, {min(extra)!r}; nothing was written")
    progress("verifying", 0, 1)
    check_same(ranges)
    progress("verifying", 1, 1)


def _prove(plan: Plan, result: Checkpoint, progress: Progress, engine: str, device: str | None) -> Proof:
    from tiebeam.surgery.proof import prove

    source = plan.source
    progress("comparing logits", 0, 1)
    if plan.prove is not None:
        proved = plan.prove(result, engine, device)
        progress("comparing logits", 1, 1)
        return proved
    from_gguf = source.converted and source.checkpoint.format == "gguf"
    rounded = source.layout.shards[0].entries[0].dtype if from_gguf else "F32"
    proof = prove(
        source.checkpoint, result, exact=not source.converted, rounded=rounded, engine=engine, device=device,
        kept=plan.kept,
    )  # fmt: skip
    progress("comparing logits", 1, 1)
    return proof

"""A checkpoint -> findings: what its declaration, its storage and its numbers say against each other.

Healthy models raise nothing above a note. Each check reads the Report; only copies of the table (TB303)
are compared here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.distributed.detect import FORMATS as TREES
from tiebeam.doctor.codes import Severity
from tiebeam.doctor.findings import Finding
from tiebeam.doctor.loaders import FLAG, LoaderVerdict, mlx_default, what_loaders_do
from tiebeam.equality import compare
from tiebeam.families.config_levels import flag_levels
from tiebeam.inspection import Report, inspect
from tiebeam.pair import Tie

_PACKED = re.compile(
    r"\.(qweight|weight_packed|weight_scale|scales|qzeros|weight\.absmax|weight\.quant_state\..*|SCB)$"
)
# GGUF types coarser than Q6_K; a table in one of them is too rough for logits
_LOW_BIT = re.compile(r"^(IQ[1-4]_\w+|Q[2345]_\w+|TQ\d_\w+|MXFP4|NVFP4)$")
_T5_FAMILY = frozenset({"t5", "mt5", "umt5", "udop", "pop2piano", "longt5", "switch_transformers"})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The report, the findings on it, and what each loader will do."""

    report: Report
    findings: tuple[Finding, ...]
    loaders: tuple[LoaderVerdict, ...]

    @property
    def worst(self) -> Severity | None:
        order = [Severity.ERROR, Severity.WARNING, Severity.NOTE]
        return min((f.level for f in self.findings), key=order.index, default=None)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.report.to_dict(),
            "findings": [f.to_dict() for f in self.findings],
            "loaders": [v.to_dict() for v in self.loaders],
        }


def examine(
    source: str | os.PathLike[str] | Checkpoint, *, embed: str | None = None, head: str | None = None
) -> Diagnosis:
    """Everything the doctor can say about a checkpoint."""
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    report = inspect(checkpoint, embed=embed, head=head)
    return Diagnosis(report, findings_of(checkpoint, report), what_loaders_do(report, checkpoint.config))


def findings_of(checkpoint: Checkpoint, report: Report) -> tuple[Finding, ...]:
    """The findings, worst first."""
    found = [
        *_declaration(checkpoint, report),
        *_storage(checkpoint, report),
        *_numbers(checkpoint, report),
        *_quantisation(checkpoint, report),
    ]
    order = [Severity.ERROR, Severity.WARNING, Severity.NOTE]
    return tuple(sorted(found, key=lambda f: (order.index(f.level), f.code)))


def _declaration(checkpoint: Checkpoint, report: Report) -> Iterator[Finding]:
    pair, config = report.pair, checkpoint.config
    if checkpoint.format == "gguf" or config is None or report.tie is Tie.NONE:
        return
    levels = flag_levels(config)
    if report.tie is Tie.HEADLESS:
        assert pair.embed is not None
        evidence = f"{pair.declared_by} says untied; {pair.embed.name} is stored and no head is"
        yield Finding("TB102", evidence, repair="declare tied")
    values = {bool(value) for value in levels.values()}
    if len(values) > 1:
        said = ", ".join(f"{'.'.join(key)} = {str(v).lower()}" for key, v in levels.items())
        yield Finding("TB103", f"{said}; {pair.declared_by} decides here", repair="agree at every level")
    elif levels and (FLAG,) not in levels and pair.declared is not next(iter(values)):
        (key,) = list(levels)[:1]
        evidence = f"{'.'.join(key)} = {str(levels[key]).lower()}, but {pair.declared_by} decides here"
        yield Finding("TB103", evidence, repair="agree at every level")
    elif not levels and mlx_default(report.architecture) not in (None, pair.declared):
        other = "tied" if mlx_default(report.architecture) else "untied"
        evidence = f"{report.architecture}: transformers takes {'tied' if pair.declared else 'untied'}, mlx-lm {other}"
        yield Finding("TB104", evidence, repair="write the flag out")
    if report.architecture in _T5_FAMILY and levels.get((FLAG,)) is False:
        yield Finding("TB105", f"config.json says {FLAG} = false; {report.architecture} is declared tied all the same")


def _storage(checkpoint: Checkpoint, report: Report) -> Iterator[Finding]:
    pair = report.pair
    if checkpoint.format in TREES:
        yield Finding("TB207", checkpoint.notes[0])
    if pair.embed and pair.head and not report.packed and pair.embed.shape[0] != pair.head.shape[0]:
        yield Finding("TB204", f"{pair.embed.name} has {pair.embed.rows:,} rows, {pair.head.name} {pair.head.rows:,}")
    if report.tie is Tie.TWIN:
        assert pair.head is not None
        assert pair.embed is not None
        evidence = f"{pair.head.name} repeats {pair.embed.name}: {pair.head.nbytes:,} bytes ({report.how})"
        if pair.declared is False:
            yield Finding("TB202", evidence)
        else:
            yield Finding("TB201", evidence, repair="drop the head" if pair.declared else None)
    if report.tie is Tie.SWAPPED:
        assert pair.head is not None
        repair = "rename the head" if pair.declared else None
        severity = None if pair.declared else Severity.ERROR
        yield Finding("TB203", f"{pair.head.name} is stored, the embedding is not", repair, severity)
    elif checkpoint.aliases:
        dropped, kept = next(iter(checkpoint.aliases.items()))
        if pair.embed is not None and kept == pair.embed.name and pair.head is None:
            yield Finding("TB206", f"__metadata__ says {dropped} = {kept}", repair="drop the alias notes")
    if report.tie is Tie.NONE and not pair.encoder and pair.embed is None and _expects_a_pair(checkpoint):
        evidence = (
            f"{report.architecture} has a vocabulary pair; the files hold {len(checkpoint.tensors):,} other tensors"
        )
        yield Finding("TB205", evidence)


def _expects_a_pair(checkpoint: Checkpoint) -> bool:
    classes = (checkpoint.config or {}).get("architectures")
    return isinstance(classes, list) and any(re.search(r"LM|ConditionalGeneration", str(name)) for name in classes)


def _numbers(checkpoint: Checkpoint, report: Report) -> Iterator[Finding]:
    pair, difference = report.pair, report.difference
    if pair.embed is None:
        return
    if pair.head is not None and not pair.equal and pair.embed.shape == pair.head.shape:
        few = difference is not None and difference.few_rows
        evidence = f"{pair.embed.name} and {pair.head.name}: {report.how}"
        if report.tie is Tie.TORN and not report.packed:
            yield Finding("TB301" if few else "TB101", evidence, None if few else "declare untied")
        elif report.tie is Tie.UNTIED and few:
            yield Finding("TB302", evidence)
    yield from _drifted_copies(checkpoint, report)


def _drifted_copies(checkpoint: Checkpoint, report: Report) -> Iterator[Finding]:
    """Other tensors named and shaped like the embedding: pipeline stages, encoder and decoder, extra layers."""
    embed = report.pair.embed
    assert embed is not None
    leaf = embed.name.split(".")[-2:]
    known = {embed.name, report.pair.head.name if report.pair.head else None}
    for name, info in checkpoint.tensors.items():
        alike = name.split(".")[-2:] == leaf or re.search(r"word_embeddings_for_head\.weight$", name)
        if alike and name not in known and info.shape == embed.shape and info.dtype == embed.dtype:
            verdict = compare(checkpoint, embed.name, name)
            if not verdict.equal and (verdict.difference is None or verdict.difference.median_cosine > 0.5):
                yield Finding("TB303", f"{embed.name} and {name}: {verdict.how}")


def _quantisation(checkpoint: Checkpoint, report: Report) -> Iterator[Finding]:
    pair = report.pair
    if checkpoint.format == "gguf":
        if pair.embed is not None and pair.head is None and _LOW_BIT.match(pair.embed.dtype):
            yield Finding("TB602", f"{pair.embed.name} is {pair.embed.dtype} and there is no output.weight")
        return
    if pair.declared and len(report.packed) == 1 and pair.embed is not None and pair.head is not None:
        which = "head" if "head" in report.packed else "embedding"
        yield Finding("TB601", f"only the {which} is packed; {pair.declared_by} says tied")

"""From the state of a pair to the plan that ties or unties it.

Exact plans keep every logit. Where tying would change the model, nothing is chosen silently: `plan_tie` refuses
and names the choices, `plan_keep` takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tiebeam.checkpoint import Checkpoint, dtypes
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.errors import BadRequest
from tiebeam.inspection import Report
from tiebeam.pair import Tie
from tiebeam.surgery.cases import Case
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.execute import Plan
from tiebeam.surgery.repairs import (
    drop_aliases,
    drop_followers,
    drop_head,
    rename_head,
    set_flag,
    write_followers,
    write_head,
)

KEEP = ("embed", "head", "mean")
_BLOCK_ROWS = 2048
_NOW_TWO = (
    "a twin until one of the two is trained; the final norm may now be folded into the head (as rotation-based "
    "quantisers do), which in a tied matrix would corrupt the lookup"
)


def plan_untie(case: Case) -> Plan:
    """The head becomes its own tensor, the same numbers, and every config level says so. Exact."""
    report, tie = case.report, case.report.tie
    refuse_fixed(case, tied=False)
    flags = set_flag(case, False)
    notes = []
    if tie is Tie.NONE:
        raise BadRequest(f"{report.model} has no vocabulary pair to untie")
    if case.head is None:
        edit = write_head(case) | write_followers(case) | flags
    elif case.embed is None:
        edit = Edit(copy={case.name_of("embed"): case.head}) | drop_aliases(case) | flags
    else:
        edit = flags  # both are stored (an alias of PyTorch becomes two tensors by being written)
        if tie is Tie.TORN:
            notes.append("both matrices were stored and differ; both are kept, and the flag now says so")
        if tie is not Tie.TORN and not flags and not case.converted:
            raise BadRequest(f"{report.model} is untied already: two tensors are stored and the config says so")
    if tie not in (Tie.TORN, Tie.UNTIED):
        notes.append(_NOW_TWO)
    return Plan("untie", case, edit, is_untied(case), exact=tie is not Tie.HEADLESS, notes=tuple(notes))


def plan_tie(case: Case) -> Plan:
    """One matrix for both ends, where that loses nothing; refuses where it would, naming the choices. Exact."""
    report, pair, tie = case.report, case.report.pair, case.report.tie
    if tie is Tie.NONE:
        raise BadRequest(f"{report.model} has no vocabulary pair to tie")
    refuse_fixed(case, tied=True)
    if tie in (Tie.UNTIED, Tie.TORN):
        raise BadRequest(
            f"the two matrices of {report.model} are different ({report.how}); tying them changes the model, so choose "
            "how: --joint --text FILES (one table, two small maps), or --keep embed|head|mean (usually ruinous)"
        )
    flags = set_flag(case, True)
    if case.embed is None:
        edit = rename_head(case) | flags
    elif case.head is not None:
        assert pair.embed
        assert pair.head
        if pair.embed.dtype != pair.head.dtype or "rounding" in report.how:
            raise BadRequest(
                f"the two matrices of {report.model} are equal only up to rounding ({report.how}); say which "
                "one stays: --keep embed or --keep head"
            )
        edit = drop_head(case) | drop_followers(case) | flags
    else:
        edit = flags
        if not edit and not case.converted:
            raise BadRequest(f"{report.model} is tied already: one matrix is stored and the config says so")
    return Plan("tie", case, edit | drop_aliases(case), is_tied(case), exact=tie is not Tie.HEADLESS)


def plan_keep(case: Case, keep: str) -> Plan:
    """One of two different matrices, or their mean, for both ends. Loadable anywhere, usually ruinous."""
    report, pair = case.report, case.report.pair
    if keep not in KEEP:
        raise BadRequest(f"--keep takes {', '.join(KEEP)}, not {keep!r}")
    refuse_fixed(case, tied=True)
    if case.embed is None or case.head is None or pair.one_storage:
        raise BadRequest(f"{report.model} is {report.tie}: there are no two matrices to choose from")
    assert pair.embed
    assert pair.head
    E, W = pair.embed, pair.head
    if E.shape != W.shape:
        raise BadRequest(f"embed is {list(E.shape)} but head is {list(W.shape)}; one matrix cannot serve both ends")
    if keep == "embed":
        edit = Edit(drop=frozenset({case.head}))
    elif keep == "head":
        edit = Edit(drop=frozenset({case.embed}), rename={case.head: case.embed})
    else:
        edit = Edit(drop=frozenset({case.embed, case.head}), add=(_mean(case),))
    edit = edit | drop_followers(case) | set_flag(case, True) | drop_aliases(case)
    return Plan(f"tie --keep {keep}", case, edit, is_tied(case), exact=False)


def _mean(case: Case) -> Entry:
    assert case.report.pair.embed
    assert case.report.pair.head
    names = case.report.pair.embed.name, case.report.pair.head.name
    stored = next(entry for shard in case.material.shards for entry in shard.entries if entry.name == case.embed)
    if stored.dtype not in ("F64", "F32", "F16", "BF16"):
        raise BadRequest(f"a mean cannot be written as {stored.dtype}; keep embed or head, or write safetensors")
    content = Made(stored.nbytes, lambda: _mean_blocks(case.checkpoint, *names, stored.dtype))
    return Entry(stored.name, stored.dtype, stored.shape, content)


def _mean_blocks(checkpoint: Checkpoint, embed: str, head: str, dtype: str) -> Iterator[bytes]:
    import numpy as np

    rows = checkpoint.tensors[embed].shape[0]
    for start in range(0, rows, _BLOCK_ROWS):
        e, w = (checkpoint.rows(n, start, start + _BLOCK_ROWS).astype(np.float64) for n in (embed, head))
        yield dtypes.encode(dtype, (e + w) / 2)


def refuse_fixed(case: Case, tied: bool) -> None:
    """Some architectures are tied, or untied, by their code; a file cannot change that."""
    architecture = case.architecture
    if architecture is None or case.is_gguf:
        return
    if not tied and architecture.flag == "forced":
        raise BadRequest(
            f"transformers ties {architecture.model_type} whatever its config says, so it cannot be untied in a file; "
            "in memory it can: tiebeam.untie_(model)"
        )
    if tied and not architecture.decides:
        raise BadRequest(
            f"transformers never ties {architecture.model_type}, so a file without a head would get a random one"
        )


def is_untied(case: Case) -> Callable[[Report], str | None]:
    def expect(report: Report) -> str | None:
        if report.pair.head is None or report.pair.embed is None:
            return "it does not hold both matrices"
        if report.pair.declared is not False and case.material.config is not None:
            return f"it does not say untied ({report.pair.declared_by})"
        return None

    return expect


def is_tied(case: Case) -> Callable[[Report], str | None]:
    def expect(report: Report) -> str | None:
        if report.tie is not Tie.SHARED:
            return f"its pair is {report.tie}, not shared"
        if report.pair.declared is not True and case.material.config is not None:
            return f"it does not say tied ({report.pair.declared_by})"
        return None

    return expect

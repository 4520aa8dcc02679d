"""What `tiebeam merge` will do with an adapter and its base, and the exact command: the plan of that merge."""

from __future__ import annotations

from dataclasses import dataclass

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.adapter_files import Adapter
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.doctor.rule import Names
from tiebeam.errors import TiebeamError


@dataclass(frozen=True, slots=True)
class MergeAdvice:
    """`command` is empty where the merge is refused; `sentence` then says why."""

    sentence: str
    command: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"sentence": self.sentence, "command": self.command}


def merge_advice(adapter: Adapter, base: Checkpoint, names: Names) -> MergeAdvice:
    """The plan of merging `adapter` into `base`, in one sentence, and the command that does it."""
    from tiebeam.surgery.merge import plan_merge, read_parts
    from tiebeam.surgery.source import open_source

    command = f"tiebeam merge {names.base} {names.model} {names.merged}"
    if not isinstance(base.files, LocalFiles):
        return MergeAdvice(f"not checked, because the base is not on this disk; download it: {names.download}", command)
    try:
        target = "merged.gguf" if base.format == "gguf" else None
        plan = plan_merge(open_source(base, target=target), [read_parts(adapter)])
    except TiebeamError as error:
        return MergeAdvice(f"refused: {error}")
    count = len(plan.edit.rewrite) + len(plan.edit.add)
    changed = f"{count:,} tensor{'s' if count != 1 else ''} get{'s' if count == 1 else ''} new values"
    return MergeAdvice("; ".join([changed, *plan.notes]), command)

"""Whether `tiebeam extend` can give this model rows, or repair some; the findings print its command only then."""

from __future__ import annotations

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.rule import Names, Step
from tiebeam.inspection import is_joint
from tiebeam.inspection.vocabulary_tensors import SCALES
from tiebeam.pair import Tie

_WRITABLE = ("F64", "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # by the gguf package


def can_extend(model: ExaminedCheckpoint) -> bool:
    """What `vocabulary_tables` and `plan_extend` accept."""
    report, vocabulary = model.report, model.report.vocabulary
    if report.tie in (Tie.TORN, Tie.HEADLESS, Tie.SWAPPED) or report.draft or is_joint(model.checkpoint):
        return False
    if vocabulary.rows is None or vocabulary.extra_rows or vocabulary.vocab_size not in (None, vocabulary.rows):
        return False
    pair = [matrix for matrix in (report.pair.embed, report.pair.head) if matrix]
    if report.packed or any(tensor.kind == SCALES for tensor in report.vocabulary_tensors):
        return False
    return all(matrix.dtype in _WRITABLE and matrix.rows == vocabulary.rows for matrix in pair)


def can_repair(model: ExaminedCheckpoint) -> bool:
    """Whether more than half of the rows of each matrix are left to repair the others from."""
    from tiebeam.inspection.row_health import UNTRAINED

    matrices = model.rows.matrices if model.rows else ()
    return can_extend(model) and all(part.count(*UNTRAINED) <= part.rows // 2 for part in matrices)


def extend_steps(at: Names, text: str, options: str) -> tuple[Step, ...]:
    """The step with the command, unless `extend` would refuse the model."""
    return (Step(text, f"tiebeam extend {at.model} {at.out} {options}"),) if at.extend else ()

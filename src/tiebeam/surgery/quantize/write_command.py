"""The command that writes what a cost table recommends."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from tiebeam.surgery.quantize.cost_table import COMPENSATED, CostTable


def write_commands(table: CostTable, texts: Sequence[str]) -> list[str]:
    """One command line, or none if nothing that GGUF can store is recommended. `texts` are the files measured on."""
    row, model = table.recommended_gguf, table.report.model
    if row is None:
        return []
    if table.report.format != "gguf":
        return ["convert it to GGUF first, with llama.cpp's convert_hf_to_gguf.py; then quantize that file"]
    path = Path(model)
    words = ["tiebeam", "quantize", model, str(path.with_name(f"{path.stem}.small.gguf"))]
    for side, precision in (("--embed", row.embed), ("--head", row.head)):
        if precision is not None and precision.gguf is not None:
            words += [side, precision.gguf]
    if row.rounding == COMPENSATED:
        words += ["--rounding", "compensated"]
    for text in texts:
        words += ["--text", text]
    return [shlex.join([*words, "--yes"])]

"""What must hold before any rule of a loader applies: it must find the weights, under the names and shapes it expects.

A prediction about the tie is only made if all of these hold. Otherwise a loader's file says what it does then, if that
is known. The kinds: `prefix` (a wrapper's prefix on every name), `doubled` (`model.` is there once too often), `names`
(a matrix under another architecture's name), `file` (weights in a file that no loader looks for), `packed` (a quantiser
packed the pair), `rows` (vocab_size is not the number of rows), `flag` (the flag is neither true nor false).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tiebeam.families.config_levels import flag_levels
from tiebeam.families.registry import Architecture, lookup, vocabulary
from tiebeam.families.tensor_names import plain, wrapper_before
from tiebeam.inspection import Report

KINDS = ("prefix", "doubled", "names", "file", "packed", "flag", "rows")
_WRAPPER = re.compile(r"^(module|_orig_mod|base_model\.model|_fsdp_wrapped_module|_forward_module)\.")
_FOUND = re.compile(
    r"(model|consolidated)([-.]\d+)?(-of-\d+)?\.safetensors|pytorch_model([-.]\d+)?(-of-\d+)?\.bin|.*\.gguf"
)


@dataclass(frozen=True, slots=True)
class Unmet:
    """A precondition that does not hold: its kind, and one phrase that says what is there instead."""

    kind: str
    text: str


def preconditions(report: Report, config: Mapping[str, Any] | None) -> tuple[Unmet, ...]:
    """The preconditions that fail, in the order in which a loader meets them.

    >>> import tiebeam
    >>> preconditions(tiebeam.inspect("tied"), {"model_type": "qwen3", "tie_word_embeddings": True})
    ()
    """
    if report.format == "gguf":
        return ()
    return tuple(_failing(report, config, lookup(report.architecture)))


def _failing(report: Report, config: Mapping[str, Any] | None, architecture: Architecture | None) -> Iterator[Unmet]:
    stored = [matrix for matrix in (report.pair.embed, report.pair.head) if matrix is not None]
    for matrix in stored:
        name = PurePosixPath(matrix.file).name
        if report.format in ("safetensors", "pytorch") and name and not _FOUND.fullmatch(name):
            yield Unmet("file", f"the weights are in {name}")
            break
    for value in flag_levels(config).values():
        if not isinstance(value, bool) and (architecture is None or architecture.flag_type == "bool"):
            yield Unmet("flag", f"the flag is {value!r}" if value is not None else "the flag is null")
            break
    yield from _names(report, architecture, [matrix.name for matrix in stored])
    if report.packed:
        yield Unmet("packed", f"a quantiser packed the {' and the '.join(report.packed)}")
    size = vocabulary(config, architecture)
    rows = {matrix.rows for matrix in stored}
    if size is not None and rows and size not in rows and not report.packed:
        yield Unmet("rows", f"vocab_size is {size:,} but {stored[0].name} has {stored[0].rows:,} rows")


def _names(report: Report, architecture: Architecture | None, stored: list[str]) -> Iterator[Unmet]:
    """Names that no loader of this architecture looks for. One that is nearly right counts as a wrapper's prefix."""
    wrapped = next((found.group(0) for name in stored if (found := _WRAPPER.match(name))), "")
    if not wrapped and architecture is not None and not report.packed:
        known = (*architecture.embed, *architecture.head)
        for name in stored:
            before = [b for k in known if (b := wrapper_before(plain(name), k)) is not None]
            if not before:
                yield Unmet("names", f"{name} is not a name of {architecture.model_type}")
                return
            wrapped = wrapped or min(before, key=len)
    if wrapped == "model.":
        yield Unmet("doubled", "the prefix model. is doubled")
    elif wrapped:
        yield Unmet("prefix", f"names start with {wrapped}")

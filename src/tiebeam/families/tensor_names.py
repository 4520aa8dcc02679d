"""Map tensor names changed by trainers, wrappers and quantisers back to the names in the model.

A wrapper adds a level to every name (`module.`, `_orig_mod.`) or inserts one (`base_layer`); a quantiser renames the
tensor (`lm_head.qweight`) or packs it under its old name and stores helper tensors with it
(`lm_head.weight.absmax`). It remains the same matrix.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from tiebeam._pattern import pattern

WRAPPERS = frozenset(
    {
        *("module", "model", "base_model", "pretrained_model", "_orig_mod", "_forward_module", "_fsdp_wrapped_module"),
        *("language_model", "llm", "lm", "net", "network", "policy", "actor", "state_dict", "model_state_dict"),
    }
)
"""Levels that may precede a whole model."""

_TRAINERS = WRAPPERS - {"model", "language_model", "llm", "lm"}
"""Those that no model has as a level of its own."""
_COMPILERS = ("_orig_mod.", "_wrapped_module.")  # texts that every name has which _COMPILED changes
_COMPILED = pattern(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_INSERTERS = (*_COMPILERS, "base_layer.", "original_module.", "modules_to_save.")
_INSERTED = pattern(
    r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer|original_module"
    r"|modules_to_save\.[^.]+)\."
)
_RENAMED = pattern(
    r"\.(?:qweight|weight_packed|weight_q|W_q|Qidxs|codes|_?weight_qdata|parametrizations\.weight\.original)$"
)
_HELPERS = (".weight.absmax", ".scales", ".weight.quant_map")
# The last level of a tensor's name, and the level before it where a wrapper inserted one.
_TENSORS = frozenset(
    {"weight", "qweight", "weight_packed", "weight_q", "W_q", "Qidxs", "codes", "weight_qdata", "_weight_qdata"}
)
_INNERMOST = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer", "original_module", "original"}
)


def plain(name: str) -> str:
    """The name without wrappers and quantisers: `x.lm_head.qweight` -> `x.lm_head.weight`."""
    if "/" in name:
        name = name.replace("/", ".")
    if any(part in name for part in _INSERTERS):
        name = _INSERTED.sub("", name)
    return name if name.endswith(".weight") else _RENAMED.sub(".weight", name)


def wrapper_prefix(names: Iterable[str]) -> str:
    """The levels that a trainer or a wrapper put in front of every name; "" if there are none.

    >>> wrapper_prefix(["module.model.norm.weight", "module.lm_head.weight"])
    'module.'
    """
    stored, prefix = list(names), ""
    while stored:
        level = stored[0][len(prefix) :].partition(".")[0]
        wraps = level in _TRAINERS or (level == "model" and prefix.endswith("base_model."))
        if not wraps or not all(name.startswith(f"{prefix}{level}.") for name in stored):
            break
        prefix += f"{level}."
    return prefix


def unwrapped(names: Iterable[str]) -> dict[str, str]:
    """stored name: the model's own name, for every name that a wrapper changed (`module.`, `layers.0._orig_mod.`)."""
    stored = list(names)
    prefix = wrapper_prefix(stored)
    compiled = any(part in name for name in stored for part in _COMPILERS)
    if not prefix and not compiled:
        return {}
    own = {name: _COMPILED.sub("", name.removeprefix(prefix)) for name in stored}
    return {name: new for name, new in own.items() if new != name}


def with_leaf(names: Iterable[str], leaves: Container[str]) -> list[tuple[str, str]]:
    """The names whose module is called one of `leaves`, each with its plain form.

    A model can have fifty thousand tensors, so only the last levels of most names are examined.
    """
    found = []
    for name in names:
        stem, _, leaf = name.rpartition(".")
        if leaf in _TENSORS:
            stem, _, leaf = stem.rpartition(".")
        if leaf in leaves:
            found.append((name, plain(name)))
        elif leaf in _INNERMOST or stem.endswith(".modules_to_save") or "/" in name:
            path = plain(name)
            if path.removesuffix(".weight").rpartition(".")[2] in leaves:
                found.append((name, path))
    return found


def is_packed(name: str, names: Container[str]) -> bool:
    """Whether a quantiser packed this tensor, so that its shape is not the matrix's."""
    if not name.endswith(".weight") and _RENAMED.search(name):
        return not name.endswith(".original")
    stem = name.removesuffix(".weight")
    return any(f"{stem}{helper}" in names for helper in _HELPERS)


def is_active(name: str) -> bool:
    """False for the frozen original of a module that an adapter has replaced."""
    return ".original_module." not in name


def wrapper_before(name: str, wanted: str) -> str | None:
    """The wrapper levels in front of `wanted` in a plain name: "" for none, None when it is not `wanted` at all.

    The first level of `wanted` itself counts as one: `transformer.transformer.wte.weight`.
    """
    if not name.endswith(wanted):
        return None
    lead = name[: -len(wanted)]
    if lead and wanted.startswith(lead) and lead.count(".") == 1:
        return lead
    if lead and (lead[-1] != "." or not all(level in WRAPPERS for level in lead[:-1].split("."))):
        return None
    return lead

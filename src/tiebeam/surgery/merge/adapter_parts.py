"""What a PEFT adapter changes, read from its tensor names and its config: LoRA factors, full copies, single rows.

Module names are those of the model that was trained, without `base_model.model.`. Anything that is not known is
refused here, before the base is opened for writing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Any

from tiebeam.checkpoint.adapter_files import Adapter
from tiebeam.errors import BadRequest, UnreadableInput

_NAME = r"(?:\.(?!weight$|bias$)[^.]+)?"  # the adapter's own name, which PEFT's files leave out and others keep
_LORA = re.compile(rf"^(?P<module>.+)\.lora_(?P<factor>A|B){_NAME}\.(?P<leaf>weight|bias)$")
_LORA_EMBEDDING = re.compile(rf"^(?P<module>.+)\.lora_embedding_(?P<factor>A|B){_NAME}(?:\.weight)?$")
_MAGNITUDE = re.compile(rf"^(?P<module>.+)\.lora_magnitude_vector{_NAME}(?:\.weight)?$")
_TOKENS = re.compile(r"^(?P<module>.+?)\.(?:token_adapter\.)?trainable_tokens_delta(?:\.[^.]+)?$")
_SAVED = re.compile(rf"\.modules_to_save{_NAME}(?=\.)")
_BASE_LAYER = re.compile(r"(?:\.token_adapter)?\.base_layer(?=\.)")
_LEVELS = re.compile(r"^(?:_orig_mod\.|module\.)*(?:base_model\.model\.)?(?:_orig_mod\.)*")
_UNKNOWN = re.compile(r"\.(?:lora_|hada_|lokr_|ia3_|oft_|boft_|vera_|prompt_)")
_REPEATED_GROUP = re.compile(r"\([^)]*[*+}][^)]*\)[*+{]")  # a pattern that can take exponential time

_TURNED_ON = {
    "alora_invocation_tokens": "activated LoRA, which changes the model only after its invocation tokens",
    "arrow_config": "Arrow, which routes between adapters",
    "kasa_config": "KaSA",
    "layer_replication": "layer replication",
    "monteclora_config": "MonteCLoRA",
    "target_parameters": "LoRA on parameters (target_parameters)",
    "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QA-LoRA",
    "velora_config": "VeLoRA",
}
"""Settings of a LoraConfig that change what the factors mean."""
_CHANGED_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")
"""Initialisations that also change the weights of the base."""


@dataclass(frozen=True, slots=True)
class Lora:
    """The factors of one module: tensor names in the adapter. `magnitude` is DoRA's, `bias` is that of lora_B."""

    a: str
    b: str
    scale: float
    embedding: bool = False
    magnitude: str | None = None
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """A whole tensor. `trained`: from modules_to_save; otherwise the weight of the base, saved with the adapter."""

    tensor: str
    trained: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """Trained rows (trainable_token_indices), which replace those of the base."""

    tensor: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class AdapterParts:
    """Everything that one adapter changes. `lora` and `rows` by module, `copies` by the tensor's name."""

    adapter: Adapter
    weight: float = 1.0
    lora: Mapping[str, Lora] = field(default_factory=dict)
    copies: Mapping[str, Copy] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)

    @property
    def keeps_tie(self) -> bool:
        """Whether it was trained with both uses of a tied matrix kept equal."""
        return self.adapter.config.get("ensure_weight_tying") is True

    @property
    def stored_transposed(self) -> bool:
        """What the adapter says about the layers it changes: matrices stored [in, out]."""
        return self.adapter.config.get("fan_in_fan_out") is True

    def describe(self) -> str:
        config = self.adapter.config
        kinds = [f"LoRA of rank {config.get('r')}{' with DoRA' if self._dora else ''} on {len(self.lora):,} modules"]
        kinds = kinds if self.lora else []
        copies = [name for name, copy in self.copies.items() if copy.trained]
        kinds += [f"full copies of {', '.join(copies[:3])}{' …' if len(copies) > 3 else ''}"] if copies else []
        kinds += [f"{len(rows.ids):,} rows of {module}" for module, rows in self.rows.items()]
        return " · ".join(kinds)

    @property
    def _dora(self) -> bool:
        return any(lora.magnitude for lora in self.lora.values())


def read_parts(adapter: Adapter, weight: float = 1.0) -> AdapterParts:
    """Sort the adapter's tensors; raises BadRequest for what cannot be merged, UnreadableInput for a damaged "
    "adapter."""
    if not isfinite(weight):
        raise BadRequest(f"weight={weight} is not a number to scale an adapter by; give one such as 0.5")
    _refuse_unknown(adapter)
    factors: dict[str, dict[str, str]] = {}
    copies: dict[str, Copy] = {}
    rows: dict[str, str] = {}
    for name in adapter.weights.tensors:
        path = _LEVELS.sub("", name)
        if ".original_module." in path:
            continue  # the frozen original of a trained copy
        if found := _LORA.match(path):
            kind = found["factor"] if found["leaf"] == "weight" else "bias"
            _put(factors.setdefault(_module(found), {}), kind, name, adapter)
        elif found := _LORA_EMBEDDING.match(path):
            _put(factors.setdefault(_module(found), {}), f"embedding_{found['factor']}", name, adapter)
        elif found := _MAGNITUDE.match(path):
            _put(factors.setdefault(_module(found), {}), "magnitude", name, adapter)
        elif found := _TOKENS.match(path):
            _put(rows, _module(found), name, adapter)
        elif _UNKNOWN.search(path):
            raise BadRequest(
                f"{adapter.source} holds {name}, a kind of tensor that cannot be merged here; {_WITH_PEFT}"
            )
        else:
            # After a resize PEFT saves a trained copy twice: as X.weight, and as X.modules_to_save.weight.
            plain, wrapped = _BASE_LAYER.sub("", _SAVED.sub("", path)), bool(_SAVED.search(path))
            trained = wrapped or (plain == path and _is_saved(path, adapter.config))
            if plain in copies and not (trained and copies[plain].trained):
                raise UnreadableInput(f"{adapter.source} holds {plain} twice; save the adapter again")
            if plain not in copies or not wrapped:
                copies[plain] = Copy(name, trained)
    lora = {module: _lora(module, found, adapter) for module, found in factors.items()}
    tokens = {module: Rows(name, _ids(module, name, adapter)) for module, name in rows.items()}
    both = next((module for module in tokens if module in lora), None)
    if both:
        raise BadRequest(
            f"{adapter.source} has LoRA and single rows for {both}, which merge does not combine; {_WITH_PEFT}"
        )
    if not (lora or copies or tokens):
        raise UnreadableInput(f"{adapter.source} changes no tensor; its adapter_model is empty")
    return AdapterParts(adapter, weight, lora, copies, tokens)


_WITH_PEFT = "merge it with PEFT: model.merge_and_unload()"


def _refuse_unknown(adapter: Adapter) -> None:
    config = adapter.config
    kind = config.get("peft_type", "LORA")
    if kind not in ("LORA", "TRAINABLE_TOKENS"):
        raise BadRequest(
            f"{adapter.source} is an adapter of type {kind}; only LORA and TRAINABLE_TOKENS can be merged here"
        )
    for key, what in _TURNED_ON.items():
        if config.get(key):
            raise BadRequest(f"{adapter.source} uses {what}, which cannot be merged here; {_WITH_PEFT}")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        raise BadRequest(
            f"{adapter.source} started from init_lora_weights={start!r}, which also changed the weights of its base; "
            "save it as a plain LoRA first: save_pretrained(..., path_initial_model_for_weight_conversion=...)"
        )


def _module(found: re.Match[str]) -> str:
    return _BASE_LAYER.sub("", f"{found['module']}.").rstrip(".")


def _put(into: dict[str, str], key: str, name: str, adapter: Adapter) -> None:
    if key in into:
        raise UnreadableInput(f"{adapter.source} holds both {into[key]} and {name}; it has the same factor twice")
    into[key] = name


def _is_saved(path: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor belongs to a module of modules_to_save, which PEFT matches by the end of the module's name."""
    listed = config.get("modules_to_save")
    if not isinstance(listed, list):
        return False
    levels = path.split(".")[:-1]
    modules = [".".join(levels[: i + 1]) for i in range(len(levels))]
    return any(module.endswith(str(target)) for target in listed for module in modules)


def _lora(module: str, found: Mapping[str, str], adapter: Adapter) -> Lora:
    embedding = any(key.startswith("embedding_") for key in found)
    keys = ("embedding_A", "embedding_B") if embedding else ("A", "B")
    missing = next((key for key in keys if key not in found), None)
    if missing is not None or (embedding and ("A" in found or "B" in found)):
        raise UnreadableInput(
            f"{adapter.source} has no lora_{missing or keys[0]} for {module}; the adapter is incomplete"
        )
    a, b = (found[key] for key in keys)
    shapes = adapter.weights.tensors[a].shape, adapter.weights.tensors[b].shape
    if len(shapes[0]) != 2 or len(shapes[1]) != 2:
        raise BadRequest(
            f"the factors of {module} are {list(shapes[0])} and {list(shapes[1])}; only matrices can be merged"
        )
    rank = shapes[0][0]
    if shapes[1][1] != rank or not rank:
        raise UnreadableInput(
            f"the factors of {module} are {list(shapes[0])} and {list(shapes[1])}; their ranks differ"
        )
    return Lora(a, b, _scale(module, rank, adapter), embedding, found.get("magnitude"), found.get("bias"))


def _scale(module: str, rank: int, adapter: Adapter) -> float:
    """lora_alpha / r, or / sqrt(r) with rsLoRA, by the patterns of the config; the rank must be that of the factors."""
    config = adapter.config
    r = _by_pattern(module, "rank_pattern", config, config.get("r", 8))
    alpha = _by_pattern(module, "alpha_pattern", config, config.get("lora_alpha", 8))
    for name, value in (("r", r), ("lora_alpha", alpha)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise UnreadableInput(f"{adapter.source}: {name} is {value!r}, not a number; repair adapter_config.json")
    if r != rank:
        raise UnreadableInput(
            f"{adapter.source}: the rank of {module} is {r} by adapter_config.json and {rank} in its factors; config "
            "and "
            "weights are of two adapters, or rank_pattern is wrong"
        )
    return float(alpha / sqrt(rank) if config.get("use_rslora") is True else alpha / rank)


def _by_pattern(module: str, key: str, config: Mapping[str, Any], default: Any) -> Any:
    """The value for a module; a pattern is a regular expression for the end of its name, as in PEFT."""
    patterns = config.get(key)
    for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
        if len(pattern) > 512 or _REPEATED_GROUP.search(pattern):
            raise UnreadableInput(
                f"{key} has the pattern {pattern[:60]!r}, which is too costly to match; refusing to read"
            )
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error as error:
            raise UnreadableInput(f"{key} has the pattern {pattern!r}, which is not valid: {error}") from None
    return default


def _ids(module: str, tensor: str, adapter: Adapter) -> tuple[int, ...]:
    """The token ids of trained rows, from the config; as many as there are rows."""
    config = adapter.config
    listed = config.get("token_indices", config.get("trainable_token_indices"))
    if isinstance(listed, Mapping):
        named = [ids for key, ids in listed.items() if module == key or module.endswith(f".{key}")]
        listed = (
            (named or [*listed.values()])[0] if named or len(listed) == 1 else None
        )  # a tied head has the embedding's
    shape = adapter.weights.tensors[tensor].shape
    if not isinstance(listed, list) or not all(type(i) is int and i >= 0 for i in listed):
        raise UnreadableInput(
            f"{adapter.source}: adapter_config.json has no list of token ids for the rows of {module}"
        )
    if len(shape) != 2 or len(listed) != shape[0] or len(set(listed)) != len(listed):
        raise UnreadableInput(
            f"{adapter.source}: {tensor} is {list(shape)} but adapter_config.json lists {len(set(listed)):,} token "
            "ids for it"
        )
    return tuple(listed)

"""Tie and untie a torch model in memory: one Parameter or two, with optimizer state and config flags.

For Hugging Face models the embedding, the head, the config and everything else that the flag ties (an encoder's
embedding, a bias under two names) are found automatically. For another nn.Module give the two parameter names, or let
them be found by name and shape as in a checkpoint.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tiebeam import families
from tiebeam.errors import BadRequest
from tiebeam.families.config_levels import FLAG, TEXT_KEYS
from tiebeam.surgery.split_parameter import holding_groups, merge_parameters, split_parameter

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tiebeam.surgery.split_parameter import Optimizers

    Model = TypeVar("Model", bound=nn.Module)

_NAME_BOTH = 'name both parameters, for example embed="wte.weight", head="lm_head.weight"'
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")


@dataclass(frozen=True)
class Slot:
    """A parameter that can be replaced: `module.attribute`. `name` is its full name in the model, if known."""

    module: nn.Module
    attribute: str
    name: str = ""

    @property
    def parameter(self) -> nn.Parameter:
        parameter: nn.Parameter = getattr(self.module, self.attribute)
        return parameter

    def put(self, value: nn.Parameter) -> None:
        setattr(self.module, self.attribute, value)


def tie_(
    model: Model,
    *,
    embed: str | None = None,
    head: str | None = None,
    keep: str | None = None,
    optimizer: Optimizers = None,
) -> Model:
    """Make embedding and head one Parameter, in place; returns `model`.

        >>> import tiebeam
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
        >>> model = tiebeam.tie_(model, embed="0.weight", head="1.weight", keep="embed")
        >>> model[0].weight is model[1].weight
        True

        tiebeam.tie_(model, optimizer=optimizer)
        tiebeam.tie_(model, embed="wte.weight", head="lm_head.weight", keep="head")

    keep        which values to use if the two differ: "embed", "head" or "mean"
    optimizer   merges the moments of both parameters; see `split_parameter`
    """
    import torch

    inner = unwrap(model)
    if keep not in (None, "embed", "head", "mean"):
        raise BadRequest(f'keep must be "embed", "head" or "mean", not {keep!r}')
    E, W = _both_parameters(inner, embed, head)
    one, two = E.parameter, W.parameter
    _refuse_sharded(one, two)
    if one.shape != two.shape:
        raise BadRequest(
            f"embed is {list(one.shape)} but head is {list(two.shape)}; matrices of different shapes cannot be tied"
        )
    if one is not two and keep is None and not torch.equal(one, two):
        raise BadRequest(
            f"{E.name} and {W.name} differ, so tying them changes the model; choose which values to keep: "
            'keep="embed", keep="head" or keep="mean"'
        )
    _refuse_untieable(inner)
    also_tied = [] if one is two else _also_tied(inner, W)
    holding_groups(one, optimizer, E.name)
    with torch.no_grad():
        if one is not two and keep in ("head", "mean"):
            one.copy_(two if keep == "head" else (one + two) / 2)
    _set_flags(inner, True)
    for slot, original in [(W, one), *also_tied]:
        merge_parameters(slot.parameter, original, optimizer)
        slot.put(original)
    _refresh_tied_keys(inner, [W.name])
    return model


def untie_(model: Model, *, embed: str | None = None, head: str | None = None, optimizer: Optimizers = None) -> Model:
    """Give the head its own Parameter with the same values, in place; returns `model`.

        >>> import tiebeam
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
        >>> model[1].weight = model[0].weight
        >>> model = tiebeam.untie_(model, embed="0.weight", head="1.weight")
        >>> model[0].weight is model[1].weight, bool((model[0].weight == model[1].weight).all())
        (False, True)

    optimizer   adds the new parameter, with a copy of the state; see `split_parameter`
    """
    inner = unwrap(model)
    E, W = _both_parameters(inner, embed, head)
    _refuse_sharded(E.parameter, W.parameter)
    tied = [slot for slot in [W, *_tied_by_flag(inner)] if _same_storage(slot.parameter, _original(inner, slot, E))]
    for slot in tied:
        holding_groups(slot.parameter, optimizer, slot.name)
    _set_flags(inner, False)
    for slot in tied:
        slot.put(split_parameter(slot.parameter, optimizer))
    _refresh_tied_keys(inner, [])
    return model


def count_parameters(model: nn.Module, trainable: bool = False) -> int:
    """The number of parameters of a torch model; each storage counts once, however many names it has.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    >>> count_parameters(model)
    80
    >>> model[1].weight = model[0].weight
    >>> count_parameters(model)
    40
    """
    spans: dict[Any, list[tuple[int, int]]] = {}
    total, seen = 0, set()
    for parameter in _module(model).parameters():
        if id(parameter) in seen or (trainable and not parameter.requires_grad):
            continue
        seen.add(id(parameter))
        pointer = _storage(parameter)
        if pointer is None or not parameter.is_contiguous():
            total += parameter.numel()
            continue
        begin = int(parameter.storage_offset())
        spans.setdefault((parameter.device, parameter.dtype, pointer), []).append((begin, begin + parameter.numel()))
    for ranges in spans.values():
        reached = 0
        for begin, end in sorted(ranges):
            total += max(0, end - max(begin, reached))
            reached = max(reached, end)
    return total


def is_tied(model: nn.Module, *, embed: str | None = None, head: str | None = None) -> bool:
    """Whether embedding and head are one matrix in memory: one Parameter, or two over the same storage.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    >>> is_tied(model, embed="0.weight", head="1.weight")
    False
    """
    E, W = _both_parameters(unwrap(model), embed, head)
    return _same_storage(E.parameter, W.parameter)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP, FSDP, DeepSpeed or torch.compile."""
    model = _module(model)
    while (inner := _wrapped(model)) is not None:
        model = inner
    return model


def _wrapped(model: nn.Module) -> nn.Module | None:
    """The one child of a wrapper; None for a model."""
    if type(model).__name__ == "DeepSpeedEngine":  # it registers modules of its own beside the model
        return model._modules.get("module")
    name = next(iter(model._modules)) if len(model._modules) == 1 else ""
    return model._modules[name] if name in _WRAPPERS else None


def find_parameters(model: nn.Module, embed: str | None = None, head: str | None = None) -> tuple[Slot, Slot | None]:
    """The embedding and head parameters: by name, by the Hugging Face accessors, or by name and shape.

    The head is None if the model has none of its own. Cheap enough to call before every step.
    """
    found = _accessors(model)
    if found[0] is None and (embed is None or head is None):
        found = _guessed(model)
    E, W = (_named(model, name) if name is not None else slot for name, slot in zip((embed, head), found, strict=True))
    if E is None:
        raise BadRequest(f"no embedding was found in {type(model).__name__}; {_NAME_BOTH}")
    return E, W


def _both_parameters(model: nn.Module, embed: str | None, head: str | None) -> tuple[Slot, Slot]:
    """`find_parameters`, where both must exist and get their full names."""
    E, W = find_parameters(model, embed, head)
    if W is None:
        raise BadRequest(f"no head was found in {type(model).__name__}; {_NAME_BOTH}")
    paths = {id(module): path for path, module in model.named_modules()}
    E, W = (slot if slot.name else _named(model, f"{paths[id(slot.module)]}.{slot.attribute}") for slot in (E, W))
    return E, W


def _module(model: Any) -> nn.Module:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise BadRequest(f"model must be a torch.nn.Module, not {type(model).__name__}; for files use tiebeam.inspect")
    return model


def _named(model: nn.Module, name: str) -> Slot:
    path, _, attribute = name.rpartition(".")
    try:
        module = model.get_submodule(path)
    except AttributeError:
        module = None
    if module is None or module._parameters.get(attribute) is None:
        known = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        raise BadRequest(f"the model has no parameter {name!r}; it has {', '.join(known[:5])} …")
    return Slot(module, attribute, name)


def _accessors(model: Any) -> tuple[Slot | None, Slot | None]:
    """The parameters by the Hugging Face accessors. An adapter layer returns the weight of the layer it wraps."""
    if not hasattr(model, "get_input_embeddings"):
        return None, None
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    E, W = (Slot(layer, "weight") if getattr(layer, "weight", None) is not None else None for layer in layers)
    return E, W


def _guessed(model: nn.Module) -> tuple[Slot | None, Slot | None]:
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    found = families.find_pair(shapes, None, None)
    E, W = (_named(model, name) if name else None for name in (found.embed, found.head))
    return E, W


def _tied_by_flag(model: Any) -> Iterator[Slot]:
    """Every parameter that a Hugging Face model ties while its flag is true."""
    keys = getattr(model, "all_tied_weights_keys", None)
    for name in keys if isinstance(keys, dict) else ():
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        if attribute in module._parameters:
            yield Slot(module, attribute, name)


def _original(model: Any, slot: Slot, E: Slot) -> nn.Parameter:
    """The parameter that `slot` is tied to."""
    keys = getattr(model, "all_tied_weights_keys", None)
    if isinstance(keys, dict) and slot.name in keys:
        original: nn.Parameter = model.get_parameter(keys[slot.name])
        return original
    return E.parameter


def _also_tied(model: Any, W: Slot) -> list[tuple[Slot, nn.Parameter]]:
    """The parameters that the flag will tie besides the head, each with its original; both must be equal."""
    import torch

    if not isinstance(getattr(model, "_tied_weights_keys", None), dict):
        return []
    flags = [(config, getattr(config, FLAG, None)) for config in _configs(model)]
    _set_flags(model, True)
    keys = model.get_expanded_tied_weights_keys(all_submodels=True)
    for config, value in flags:
        setattr(config, FLAG, value)
    found = []
    for name, original_name in keys.items():
        path, _, attribute = name.rpartition(".")
        slot, original = Slot(model.get_submodule(path), attribute, name), model.get_parameter(original_name)
        if slot.parameter is W.parameter or slot.parameter is original or attribute not in slot.module._parameters:
            continue
        if not torch.equal(slot.parameter, original):
            raise BadRequest(f"{name} would be tied to {original_name} too, but the two differ; make them equal first")
        found.append((slot, original))
    return found


def _configs(model: Any) -> Iterator[Any]:
    """The config, and every text config nested in it."""
    config = getattr(model, "config", None)
    seen: set[int] = set()
    while config is not None and not isinstance(config, dict) and id(config) not in seen:
        seen.add(id(config))
        yield config
        inner = getattr(config, "get_text_config", lambda: None)()
        if inner is config or inner is None:
            nested = (getattr(config, key, None) for key in TEXT_KEYS)
            inner = next((level for level in nested if hasattr(level, "__dict__")), None)
        config = inner


def _forced(model: Any) -> bool:
    architecture = families.lookup(getattr(getattr(model, "config", None), "model_type", None))
    return architecture is not None and architecture.flag == "forced"


def _set_flags(model: Any, value: bool) -> None:
    if not value and _forced(model):
        warnings.warn(
            f"transformers ties {model.config.model_type} whatever its config says: they are untied in memory, "
            "and after save and load only if their values differ by then",
            stacklevel=3,
        )
        return
    for config in _configs(model):
        setattr(config, FLAG, value)
        architecture = families.lookup(getattr(config, "model_type", None))
        if architecture is not None and architecture.legacy_flag and hasattr(config, architecture.legacy_flag):
            setattr(config, architecture.legacy_flag, value)


def _refuse_untieable(model: Any) -> None:
    """A class that never ties would initialise a random head when it is loaded again."""
    if hasattr(model, "save_pretrained") and not getattr(model, "_tied_weights_keys", None):
        raise BadRequest(
            f"{type(model).__name__} has no _tied_weights_keys, so the tie would be lost at the next save and load"
        )


def _refresh_tied_keys(model: Any, tied: list[str]) -> None:
    """Update what transformers treats as tied: recomputed from the flag (version 5), or a list read by save (4)."""
    keys = getattr(model, "_tied_weights_keys", None)
    if isinstance(keys, dict) and hasattr(model, "get_expanded_tied_weights_keys"):
        model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
    elif isinstance(keys, list):
        model._tied_weights_keys = [*keys, *(name for name in tied if name not in keys)]


def _refuse_sharded(*parameters: nn.Parameter) -> None:
    if any(hasattr(parameter, "device_mesh") for parameter in parameters):
        raise BadRequest("the parameters are sharded; tie or untie before fully_shard")
    if any(parameter.is_meta for parameter in parameters):
        raise BadRequest("the parameters are on the meta device and have no values; load the weights first")


def _same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b:
        return True
    return _storage(a) is not None and a.data_ptr() == b.data_ptr() and a.shape == b.shape


def _storage(tensor: torch.Tensor) -> int | None:
    """The address of its storage; None if it has none (meta device, wrapper subclass)."""
    if tensor.is_meta:
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None

"""Tie and untie a model in memory: real parameter identity, optimizer state carried along, flags that survive saving.

For Hugging Face models the two ends, the config and everything else that the flag ties (an encoder's table, a
bias under two names) are found by themselves; a plain nn.Module is asked for its two parameter names, or they
are found as in a checkpoint.

Adam's moments are averages of the gradient and of its square. A tied table's gradient is the sum of what both
ends send, so on `tie_` the first moments add; the second add too, which is right as far as the two gradients
are uncorrelated. On `untie_` both ends start from a copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tiebeam import families
from tiebeam.errors import BadRequest
from tiebeam.families.config_levels import FLAG, TEXT_KEYS

if TYPE_CHECKING:
    import torch
    from torch import nn

    Model = TypeVar("Model", bound=nn.Module)

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")
_SUMMED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum")


@dataclass(frozen=True)
class Slot:
    """Where a parameter hangs: `module.attribute`, known to the whole model as `name` where that was asked for."""

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
    optimizer: torch.optim.Optimizer | None = None,
) -> Model:
    """Make the two ends one Parameter, in place; returns `model`.

    Two different matrices need a choice, `keep` = "embed", "head" or "mean". Give the optimizer to merge its state.
    """
    import torch

    inner = unwrap(model)
    E, W = _ends(inner, embed, head)
    if keep not in (None, "embed", "head", "mean"):
        raise BadRequest(f"keep is 'embed', 'head' or 'mean', not {keep!r}")
    one, two = E.parameter, W.parameter
    _refuse_sharded(one, two)
    if one.shape != two.shape:
        raise BadRequest(f"embed is {list(one.shape)} but head is {list(two.shape)}; one matrix cannot serve both")
    if one is not two and keep is None and not torch.equal(one, two):
        raise BadRequest(
            f"{E.name} and {W.name} are different; tying them changes the model, so say what stays: keep='embed', "
            "'head' or 'mean'"
        )
    _refuse_untieable(inner)
    followers = [] if one is two else _followers(inner, W)
    _check_held(optimizer, E)
    with torch.no_grad():
        if one is not two and keep in ("head", "mean"):
            one.copy_(two if keep == "head" else (one + two) / 2)
    _set_flags(inner, True)
    for slot, leader in [(W, one), *followers]:
        _merge(optimizer, slot.parameter, leader)
        slot.put(leader)
    _refresh_tied_keys(inner, {W.name: E.name})
    return model


def untie_(
    model: Model,
    *,
    embed: str | None = None,
    head: str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Model:
    """Give the head a Parameter of its own with the same numbers, in place; returns `model`.

    Give the optimizer to put the new parameter beside the old one, with a copy of its state.
    """
    inner = unwrap(model)
    E, W = _ends(inner, embed, head)
    _refuse_sharded(E.parameter, W.parameter)
    tied = [slot for slot in [W, *_tied_by_flag(inner)] if _shares(slot.parameter, _leader(inner, slot, E))]
    for slot in tied:
        _check_held(optimizer, slot)
    _set_flags(inner, False)
    for slot in tied:
        _split(slot, optimizer)
    _refresh_tied_keys(inner, {})
    return model


def count(model: nn.Module, trainable: bool = False) -> int:
    """Parameters of a model, each storage counted once however many names it has."""
    spans: dict[Any, list[tuple[int, int]]] = {}
    total, seen = 0, set()
    for parameter in model.parameters():
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


def share_storage(model: nn.Module, *, embed: str | None = None, head: str | None = None) -> bool:
    """Whether the two ends are one table in memory, as one Parameter or as two that look at the same numbers."""
    E, W = _ends(unwrap(model), embed, head)
    return _shares(E.parameter, W.parameter)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP, torch.compile and the like."""
    while len(model._modules) == 1 and (name := next(iter(model._modules))) in _WRAPPERS:
        inner = model._modules[name]
        assert inner is not None
        model = inner
    return model


def find_ends(model: nn.Module, embed: str | None = None, head: str | None = None) -> tuple[Slot, Slot | None]:
    """Where the two ends hang: by name, by the Hugging Face accessors, or as the anatomy finds them.

    The head is None where the model has none of its own. Cheap enough to ask before every step.
    """
    found = _accessors(model)
    if found[0] is None and (embed is None or head is None):
        found = _guessed(model)
    E, W = (_named(model, name) if name is not None else slot for name, slot in zip((embed, head), found, strict=True))
    if E is None:
        raise BadRequest("the model's embed was not found; name it: embed='wte.weight', head='lm_head.weight'")
    return E, W


def _ends(model: nn.Module, embed: str | None, head: str | None) -> tuple[Slot, Slot]:
    """Both of them, each a parameter that can be replaced, with its name."""
    E, W = find_ends(model, embed, head)
    if W is None:
        raise BadRequest(
            "the model's head was not found; name both parameters: embed='wte.weight', head='lm_head.weight'"
        )
    paths = {id(module): path for path, module in model.named_modules()}
    E, W = (slot if slot.name else _named(model, f"{paths[id(slot.module)]}.{slot.attribute}") for slot in (E, W))
    return E, W


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
    """The ends of a Hugging Face model. An adapter may stand there, whose weight belongs to what it wraps."""
    if not hasattr(model, "get_input_embeddings"):
        return None, None
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    E, W = (Slot(end, "weight") if getattr(end, "weight", None) is not None else None for end in ends)
    return E, W


def _guessed(model: nn.Module) -> tuple[Slot | None, Slot | None]:
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    found = families.find_pair(shapes, None, None)
    E, W = (_named(model, name) if name else None for name in (found.embed, found.head))
    return E, W


def _tied_by_flag(model: Any) -> Iterator[Slot]:
    """Everything that a Hugging Face model ties while its flag is on."""
    keys = getattr(model, "all_tied_weights_keys", None)
    for name in keys if isinstance(keys, dict) else ():
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        if attribute in module._parameters:
            yield Slot(module, attribute, name)


def _leader(model: Any, slot: Slot, E: Slot) -> nn.Parameter:
    keys = getattr(model, "all_tied_weights_keys", None)
    if isinstance(keys, dict) and slot.name in keys:
        leader: nn.Parameter = model.get_parameter(keys[slot.name])
        return leader
    return E.parameter


def _followers(model: Any, W: Slot) -> list[tuple[Slot, nn.Parameter]]:
    """What the flag will tie beside the pair, each with what it will follow; they must be equal."""
    import torch

    if not isinstance(getattr(model, "_tied_weights_keys", None), dict):
        return []
    flags = [(config, getattr(config, FLAG, None)) for config in _configs(model)]
    _set_flags(model, True)
    keys = model.get_expanded_tied_weights_keys(all_submodels=True)
    for config, value in flags:
        setattr(config, FLAG, value)
    followers = []
    for name, leader_name in keys.items():
        path, _, attribute = name.rpartition(".")
        slot, leader = Slot(model.get_submodule(path), attribute, name), model.get_parameter(leader_name)
        if slot.parameter is W.parameter or slot.parameter is leader or attribute not in slot.module._parameters:
            continue
        if not torch.equal(slot.parameter, leader):
            raise BadRequest(f"{name} would be tied to {leader_name} too, and they differ; make them equal first")
        followers.append((slot, leader))
    return followers


def _configs(model: Any) -> Iterator[Any]:
    """The config, and each text part inside it."""
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
            f"transformers ties {model.config.model_type} whatever its config says: the two stay apart in memory, and "
            "after loading only if their numbers differ by then",
            stacklevel=3,
        )
        return
    for config in _configs(model):
        setattr(config, FLAG, value)
        architecture = families.lookup(getattr(config, "model_type", None))
        if architecture is not None and architecture.legacy_flag and hasattr(config, architecture.legacy_flag):
            setattr(config, architecture.legacy_flag, value)


def _refuse_untieable(model: Any) -> None:
    """A class that never ties would start a random head when it is loaded again."""
    if hasattr(model, "save_pretrained") and not getattr(model, "_tied_weights_keys", None):
        raise BadRequest(
            f"{type(model).__name__} cannot be loaded tied (it has no _tied_weights_keys): the tie would be lost at "
            "the next save and load"
        )


def _refresh_tied_keys(model: Any, wanted: dict[str, str]) -> None:
    """What transformers believes to be tied: recomputed from the flag (5), or the list that saving reads (4)."""
    keys = getattr(model, "_tied_weights_keys", None)
    if isinstance(keys, dict) and hasattr(model, "get_expanded_tied_weights_keys"):
        model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
    elif isinstance(keys, list):
        model._tied_weights_keys = [*keys, *(name for name in wanted if name not in keys)]


def _split(slot: Slot, optimizer: torch.optim.Optimizer | None) -> None:
    from torch import nn

    old = slot.parameter
    new = nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad)
    slot.put(new)
    if optimizer is None:
        return
    group = _group(optimizer, old)
    assert group is not None
    group["params"].append(new)
    if old in optimizer.state:
        optimizer.state[new] = {key: _copied(value) for key, value in optimizer.state[old].items()}


def _merge(optimizer: torch.optim.Optimizer | None, gone: nn.Parameter, stays: nn.Parameter) -> None:
    """Take `gone` out of the optimizer and add its moments to those of `stays`."""
    import torch

    if gone is stays:
        return
    if gone.grad is not None:
        stays.grad = gone.grad if stays.grad is None else stays.grad + gone.grad
    if optimizer is None:
        return
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter is not gone]
    theirs = optimizer.state.pop(gone, None)
    if not theirs:
        return
    ours = optimizer.state[stays]
    for key, value in theirs.items():
        if key not in ours:
            ours[key] = _copied(value)
        elif key in _SUMMED:
            ours[key] = ours[key] + value
        elif key == "step":
            ours[key] = torch.maximum(ours[key], value) if torch.is_tensor(value) else max(ours[key], value)


def _check_held(optimizer: torch.optim.Optimizer | None, slot: Slot) -> None:
    if optimizer is not None and _group(optimizer, slot.parameter) is None:
        raise BadRequest(f"the optimizer does not hold {slot.name}; give the one that trains it")


def _group(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any] | None:
    for group in optimizer.param_groups:
        if any(held is parameter for held in group["params"]):
            return group
    return None


def _copied(value: Any) -> Any:
    import torch

    return value.clone() if torch.is_tensor(value) else value


def _refuse_sharded(*parameters: nn.Parameter) -> None:
    if any(hasattr(parameter, "device_mesh") for parameter in parameters):
        raise BadRequest("the tables are sharded already; tie or untie before fully_shard")
    if any(parameter.is_meta for parameter in parameters):
        raise BadRequest("the tables are on the meta device and hold no numbers yet; load the weights first")


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b:
        return True
    return _storage(a) is not None and a.data_ptr() == b.data_ptr() and a.shape == b.shape


def _storage(tensor: torch.Tensor) -> int | None:
    """Where its storage begins; None where it has none of its own (meta, or a wrapper)."""
    if tensor.is_meta:
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None

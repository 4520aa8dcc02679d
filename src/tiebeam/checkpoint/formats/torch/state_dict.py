"""Find the weights among everything that a training run saved with them.

The value of a pickle is a tree of dictionaries, lists and objects. Starting at the top, the search enters a child whose
name says that it holds a model (`state_dict`, `model` ...), or the only child with matrices. If several children have
matrices, they are the parts of one model, and names are joined with dots as in PyTorch. A pickled module is such a tree
too: its `_parameters`, `_buffers` and `_modules` were recorded, not rebuilt. Optimizer state is never entered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tiebeam.checkpoint.formats.torch.pickle_reader import Global, PickledObject
from tiebeam.checkpoint.formats.torch.rebuild import Tensor
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_PICKLE_VISITS, MAX_TORCH_TENSORS

_MODELS = (
    "state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "params", "weights",
    "generator", "student",
)  # fmt: skip
_SURELY_MODELS = _MODELS[:3]
_AVERAGES = re.compile(r"(^|_)(ema|shadow|swa|averaged?|teacher)(_|$)")
_OPTIMIZERS = re.compile(
    r"(^|_)(optimi[sz]er|optim($|_)|(lr_)?schedulers?($|_)|(grad_)?scaler($|_))|^opt(_state(_dict)?)?$"
)
_MAX_DEPTH = 48


class StateDict(NamedTuple):
    """The tensors by name, the dotted path where they were found, and other models that were not chosen."""

    tensors: dict[str, Tensor]
    path: str
    others: tuple[str, ...]


def find_state_dict(root: object, label: str) -> StateDict:
    """The model's tensors inside `root`."""
    search = _Search(label)
    node, path, others = root, list[str](), list[str]()
    if type(root) is Tensor:
        return StateDict({"tensor": root}, "", ())
    for _ in range(_MAX_DEPTH):
        step = search.step_down(node, inside_model=bool(path) and _names_model(path[-1]))
        if step is None:
            break
        key, node, rejected = step
        others += [".".join([*path, name]) for name in rejected]
        path.append(key)
    tensors: dict[str, Tensor] = {}
    for name, tensor in search.tensors(node):
        if name in tensors:
            raise UnreadableInput(f"{label} holds two tensors that are both called {name!r}")
        tensors[name] = tensor
        if len(tensors) > MAX_TORCH_TENSORS:
            raise UnreadableInput(
                f"{label} holds more tensors than the limit of {MAX_TORCH_TENSORS:,}; refusing to read"
            )
    return StateDict(tensors, ".".join(path), tuple(others))


class _Search:
    """Iterates over values and counts them, because a small file can describe a tree of exponential size."""

    def __init__(self, label: str) -> None:
        self.label, self._left = label, MAX_PICKLE_VISITS

    def step_down(self, node: object, inside_model: bool) -> tuple[str, object, list[str]] | None:
        """The child that holds the model, if any, and the names of the other models beside it."""
        if _is_module(node):
            return None
        sizes: dict[str, int] = {}  # elements in matrices, for the children that have any
        children: dict[str, object] = {}
        own_matrices = False
        for key, value in self.entries(node):
            if type(value) is Tensor:
                own_matrices = own_matrices or _matrix_size(value) > 0
            elif size := sum(_matrix_size(tensor) for _, tensor in self.tensors(value)):
                children[key], sizes[key] = value, size
        alone = len(children) == 1 and not own_matrices
        models = [
            key
            for key, child in children.items()
            if _names_model(key) and (alone or key in _SURELY_MODELS or self._is_model(child))
        ]
        if models:
            largest = max(sizes[key] for key in models)
            # An average of the weights is chosen only if the weights themselves are missing.
            first, *rejected = sorted(
                models,
                key=lambda key: (
                    sizes[key] * 2 < largest,
                    bool(_AVERAGES.search(key)),
                    -sizes[key],
                    _MODELS.index(key) if key in _MODELS else len(_MODELS),
                ),
            )
            return first, children[first], rejected
        if alone and not inside_model:  # inside a model, the only child's name is part of every weight's name
            ((key, child),) = children.items()
            return key, child, []
        return None

    def _is_model(self, node: object) -> bool:
        """Whether a node is a whole model and not a part: a module, or a flat dictionary with dotted names."""
        return _is_module(node) or any("." in key for key, value in self.entries(node) if type(value) is Tensor)

    def tensors(self, node: object) -> Iterator[tuple[str, Tensor]]:
        """Every tensor below `node`, by its dotted name."""
        yield from self._tensors(node, "", (), set())

    def _tensors(
        self, node: object, prefix: str, above: tuple[int, ...], seen: set[int]
    ) -> Iterator[tuple[str, Tensor]]:
        # A module may have two names, as a tied layer does; anything else is visited once.
        if len(above) > _MAX_DEPTH or id(node) in (above if _is_module(node) else seen):
            return
        seen.add(id(node))
        for key, value in self.entries(node):
            self._left -= (len(prefix) + len(key)) >> 3  # long names multiply too
            if type(value) is Tensor:
                yield prefix + key, value
            else:
                yield from self._tensors(value, f"{prefix}{key}.", (*above, id(node)), seen)

    def entries(self, node: object) -> Iterator[tuple[str, object]]:
        """The tensors and containers directly inside a dictionary, list, module or other object."""
        whole_module = _is_module(node)
        for key, value in self._items(node):
            if type(value) is PickledObject and value.kind is not None and _is_rebuild(value.kind):
                yield key, Tensor(None, 0, (), (), None, f"made by {'.'.join(value.kind)!r}")
            elif type(value) is Tensor or (
                type(value) in _CONTAINERS and (whole_module or not (_OPTIMIZERS.search(key) or _is_optimizer(value)))
            ):
                yield key, value

    def _items(self, node: object) -> Iterator[tuple[str, object]]:
        if type(node) is dict:
            self._count(len(node))
            yield from node.items()
        elif type(node) is list or type(node) is tuple:
            self._count(len(node))
            yield from ((str(i), value) for i, value in enumerate(node) if type(value) in _CONTAINERS_AND_TENSORS)
        elif type(node) is PickledObject:
            state = _state(node)
            parts = [state]
            if type(state.get("_parameters")) is dict and type(state.get("_modules")) is dict:
                transient, buffers = state.get("_non_persistent_buffers_set"), state.get("_buffers")
                transient = transient if type(transient) is list else []
                buffers = buffers if type(buffers) is dict else {}
                self._count(len(transient) + len(buffers))
                skipped = {name for name in transient if type(name) is str}
                kept = {key: value for key, value in buffers.items() if key not in skipped}
                parts = [state["_parameters"], kept, state["_modules"]]
            for part in (node.items or {}, *parts):
                self._count(len(part))
                yield from part.items()

    def _count(self, entries: int) -> None:
        self._left -= 8 + entries  # opening a container costs about as much as eight entries
        if self._left < 0:
            raise UnreadableInput(
                f"{self.label} nests more entries in its pickle than the limit of {MAX_PICKLE_VISITS:,}; "
                "refusing to read"
            )


def _names_model(key: str) -> bool:
    return key in _MODELS or bool(_AVERAGES.search(key))


def _state(node: PickledObject) -> dict[str, Any]:
    state = node.state
    if type(state) is tuple and state:  # (attributes, slots)
        state = state[0]
    return state if type(state) is dict else {}


def _is_module(node: object) -> bool:
    """A pickled torch.nn.Module, or one that TorchScript saved."""
    if type(node) is not PickledObject:
        return False
    state = _state(node)
    scripted = node.kind is not None and node.kind.module.startswith("__torch__")
    return scripted or (type(state.get("_parameters")) is dict and type(state.get("_modules")) is dict)


def _is_optimizer(node: object) -> bool:
    state = node if type(node) is dict else _state(node) if type(node) is PickledObject else {}
    return "param_groups" in state


def _is_rebuild(kind: Global) -> bool:
    return kind.module.startswith("torch.") and kind.name.startswith("_rebuild_")


def _matrix_size(tensor: Tensor) -> int:
    """Elements of a tensor with at least two dimensions; counters, random states and biases do not identify a model."""
    shape = tensor.shape
    if type(shape) is not tuple or not 2 <= len(shape) <= 32:
        return 0
    size = 1
    for n in shape:
        if type(n) is not int or not 0 <= n <= 1 << 48:
            return 0
        size = min(size * n, 1 << 62)
    return size


_CONTAINERS: frozenset[type] = frozenset({dict, list, tuple, PickledObject})
_CONTAINERS_AND_TENSORS = _CONTAINERS | {Tensor}

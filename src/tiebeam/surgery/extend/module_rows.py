"""Add tokens to a transformers model and its tokenizer in memory: rows at both ends, optimizer state, config.

transformers resizes (it knows which biases and further tables go along), the new rows get the values that
`initial_rows` computes, and the optimizer keeps the moments of the old rows. The old rows are compared afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tiebeam.checkpoint import Checkpoint, TensorInfo
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.errors import BadRequest, ProofFailed
from tiebeam.surgery.extend.initial_rows import NewRow, initial_rows, read_init, rows_to_fill, trained_rows
from tiebeam.surgery.extend.requested_tokens import check_tokens
from tiebeam.surgery.module import find_parameters, unwrap
from tiebeam.surgery.split_parameter import holding_groups
from tiebeam.surgery.vocabulary_rows import VocabularyTable
from tiebeam.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tiebeam.surgery.split_parameter import Optimizers

    Model = TypeVar("Model", bound=nn.Module)

_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_ITEM = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def extend_(
    model: Model,
    tokenizer: Any,
    tokens: Sequence[str],
    *,
    special: bool = False,
    init: str = "mean",
    pad_to_multiple_of: int | None = None,
    optimizer: Optimizers = None,
) -> Model:
    """Add `tokens` to a transformers model and its tokenizer, in place; returns `model`. The tie stays as it is.

        tiebeam.extend_(model, tokenizer, ["<think>", "</think>"], init="subwords", optimizer=optimizer)
        tokenizer.convert_tokens_to_ids("<think>")

    init        "mean", "subwords", "like:TOKEN" or "describe:some words", as in `tiebeam extend`
    optimizer   its moments are kept for the old rows and start at 0 for the new ones
    """
    import torch

    inner: Any = unwrap(model)
    how, texts = read_init(init), check_tokens(tokens)
    if not texts:
        raise BadRequest("there is nothing to add; give tokens")
    if not hasattr(inner, "resize_token_embeddings") or not hasattr(tokenizer, "add_tokens"):
        raise BadRequest("extend_ needs a model and a tokenizer of transformers; for files use tiebeam.extend")
    old = int(inner.get_input_embeddings().weight.shape[0])
    if len(tokenizer) > old:
        raise BadRequest(
            f"the tokenizer has {len(tokenizer):,} ids and the table {old:,} rows; resize the model first: "
            f"model.resize_token_embeddings({len(tokenizer)})"
        )
    _refuse_existing(tokenizer, texts)
    E, W = find_parameters(inner)
    for slot in (E, W) if W else (E,):
        _refuse_unreadable(slot.parameter)
        holding_groups(slot.parameter, optimizer if slot.parameter.requires_grad else None, slot.attribute)
    fill = rows_to_fill(how, texts, _splitter(tokenizer) if how.kind != "mean" else None)
    before = dict(_vocabulary(inner, old))
    roles = _roles(inner, before)
    size = max(old, len(tokenizer) + len(texts))
    if pad_to_multiple_of:
        size = -(-size // pad_to_multiple_of) * pad_to_multiple_of
    fill += [NewRow(None)] * (size - max(old, len(tokenizer) + len(texts)))
    first = len(tokenizer)
    kept = torch.arange(min(first, old))
    values = {name: _values(inner, name, before, roles, fill, first) for name in before}
    copies = {name: tensor.detach().clone() for name, tensor in before.items()}
    _add(tokenizer, texts, special, first)
    if size > old:
        inner.resize_token_embeddings(size, mean_resizing=False)
    after = dict(_vocabulary(inner, size)) if size > old else before
    ids = torch.tensor([*range(first, first + len(texts)), *range(max(old, first + len(texts)), size)])
    with torch.no_grad():
        for name, tensor in after.items():
            if name not in copies:
                raise BadRequest(f"{name} has {size:,} rows after the resize and had none before; use tiebeam.extend")
            axis = 0 if roles[name] != "bias" else tensor.dim() - 1
            tensor.index_copy_(
                axis, ids.to(tensor.device), values[name].reshape(_shape(tensor, axis, len(ids))).to(tensor)
            )
            rows = kept.to(tensor.device)
            if not _same(tensor.index_select(axis, rows), copies[name].index_select(axis, rows)):
                raise ProofFailed(f"the old rows of {name} changed")
    for name, tensor in after.items():
        _move_state(before[name], copies[name].shape, tensor, optimizer)
    return model


def _refuse_existing(tokenizer: Any, texts: Iterable[str]) -> None:
    vocabulary = tokenizer.get_vocab()
    for text in texts:
        if text in vocabulary:
            raise BadRequest(f"the token {text!r} exists already (id {vocabulary[text]:,}); leave it out")


def _refuse_unreadable(parameter: nn.Parameter) -> None:
    if hasattr(parameter, "device_mesh") or not parameter.numel():
        raise BadRequest("the parameters are sharded; add tokens before fully_shard or deepspeed.initialize")
    if parameter.is_meta:
        raise BadRequest("the parameters are on the meta device and have no values; load the weights first")


def _splitter(tokenizer: Any) -> Tokenizer:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise BadRequest('this tokenizer has no backend of the tokenizers package; use init="mean"')
    return Tokenizer(backend)


def _add(tokenizer: Any, texts: Sequence[str], special: bool, first: int) -> None:
    from tokenizers import AddedToken

    new = [AddedToken(text, normalized=False, special=special) for text in texts]
    tokenizer.add_tokens(new, special_tokens=special)
    for i, text in enumerate(texts, first):
        if tokenizer.convert_tokens_to_ids(text) != i or tokenizer(text, add_special_tokens=False)["input_ids"] != [i]:
            raise ProofFailed(f"{text!r} does not encode to [{i}]; this tokenizer does not take new tokens")


def _vocabulary(model: Any, rows: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Embedding, head, and every bias or buffer with `rows` values; each storage once."""
    E, W = find_parameters(model)
    pair = {id(slot.parameter) for slot in (E, W) if slot is not None}
    per_layer = {id(p) for n, p in model.named_parameters() if "per_layer" in n and p.dim() == 2 and len(p) == rows}
    head = W.module if W is not None else None
    biases = {id(getattr(head, "bias", None))}
    seen: set[int] = set()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        known = id(tensor) in pair or id(tensor) in per_layer or id(tensor) in biases
        if (known or name.endswith("final_logits_bias")) and rows in tensor.shape and id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _roles(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    E, W = find_parameters(model)
    untied = W is not None and W.parameter is not E.parameter
    roles = {}
    for name, tensor in tensors.items():
        is_head = untied and W is not None and tensor is W.parameter
        matrix = "head" if is_head else "embed" if tensor is E.parameter else "per-layer"
        roles[name] = "bias" if min(tensor.shape) == 1 or tensor.dim() == 1 else matrix
    return roles


def _values(
    model: Any, name: str, tensors: dict[str, torch.Tensor], roles: dict[str, str], fill: list[NewRow], ids: int
) -> torch.Tensor:
    """The values of the new rows of one table, in float32."""
    import torch

    checkpoint = _as_checkpoint(model, tensors)
    matrix = (
        name if roles[name] != "bias" else next(n for role in ("head", "embed") for n in tensors if roles[n] == role)
    )
    trained = trained_rows(checkpoint, _table(checkpoint, matrix, roles[matrix]), ids)
    stream = {"head": "head", "per-layer": "per-layer"}.get(roles[name], "")
    return torch.from_numpy(initial_rows(checkpoint, _table(checkpoint, name, roles[name]), fill, trained, stream))


def _table(checkpoint: Checkpoint, name: str, role: str) -> VocabularyTable:
    info = checkpoint.tensors[name]
    entry = Entry(name, info.dtype, info.shape, Made(info.nbytes, lambda: ()))
    return VocabularyTable(name, name, role, info.shape[-1 if role == "bias" else 0], entry)


class _Tensors:
    """The `Files` of tensors in memory: a file for each."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> list[str]:
        return sorted(self._tensors)

    def folders(self) -> list[str]:
        return []

    def size(self, name: str) -> int:
        return self._tensors[name].nbytes

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        return self.size(name), self.read(name, 0, min(count, self.size(name)))

    def read(self, name: str, begin: int, end: int) -> bytes:
        import torch

        flat = self._tensors[name].detach().contiguous().view(-1).view(torch.uint8)
        return bytes(flat[begin:end].cpu().numpy().tobytes())


def _as_checkpoint(model: Any, tensors: dict[str, torch.Tensor]) -> Checkpoint:
    infos = {}
    for name, tensor in tensors.items():
        dtype = _DTYPES.get(str(tensor.dtype).removeprefix("torch."))
        if dtype is None:
            raise BadRequest(f"{name} is {tensor.dtype}; add tokens before the model is quantized")
        infos[name] = TensorInfo(name, tuple(tensor.shape), dtype, name, 0, tensor.numel() * _ITEM[dtype])
    return Checkpoint(type(model).__name__, "module", _Tensors(tensors), infos, model.config.to_dict())


def _shape(tensor: torch.Tensor, axis: int, count: int) -> tuple[int, ...]:
    return (*tensor.shape[:axis], count, *tensor.shape[axis + 1 :])


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    return bool(torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num()))


def _move_state(old: torch.Tensor, shape: Any, new: torch.Tensor, optimizer: Optimizers) -> None:
    """Give the optimizer the new Parameter in place of the old; moments [V, ...] grow by rows of zeros."""
    import torch

    holders = holding_groups(old, optimizer) if _is_held(old, optimizer) else []  # type: ignore[arg-type]
    for holder, group in holders:
        group["params"] = [new if p is old else p for p in group["params"]]
        state = holder.state.pop(old, None)
        if state is None:
            continue
        for key, value in state.items():
            if torch.is_tensor(value) and value.shape == shape and value.shape != new.shape:
                grown = value.new_zeros(new.shape)
                grown[tuple(slice(0, n) for n in value.shape)] = value
                state[key] = grown
        holder.state[new] = state


def _is_held(tensor: torch.Tensor, optimizer: Optimizers) -> bool:
    optimizers = optimizer if isinstance(optimizer, Iterable) else [optimizer] if optimizer is not None else []
    return any(p is tensor for o in optimizers for group in o.param_groups for p in group["params"])

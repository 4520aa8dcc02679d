"""Give a Hugging Face causal LM the fused loss, in place: `patch(model)`, undone by `unpatch(model)`.

The class keeps its own forward. While it runs with labels in training mode, the LM head receives none of its rows, and
`loss_function`, which every causal LM of transformers calls with the logits, computes the loss from the hidden states
that the head would have received. So auxiliary losses, caches and outputs stay the class's own, and the [N, V] logits
never exist.

What the class does to its logits between head and loss (a scale, a softcap) is known from the model's family. The first
call proves it: the head gives the logits of a few rows, and the class's result must be ours.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from tiebeam import families
from tiebeam.errors import BadRequest
from tiebeam.families.scales import scales
from tiebeam.families.spec import Scales
from tiebeam.nn.loss import softcapped, tied_cross_entropy
from tiebeam.surgery.module import unwrap

if TYPE_CHECKING:
    Model = TypeVar("Model", bound=nn.Module)

_STATE = "_tiebeam_patch"
_PROBED = 8  # rows of logits that the first call compares
_KEEP = ("logits_to_keep", "num_logits_to_keep")


def patch(model: Model, *, evaluation: bool = False, chunk: int | None = None) -> Model:
    """Compute the loss of a Hugging Face causal LM without its logits, in place; returns `model`.

        model = tiebeam.nn.patch(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B"))
        model.train()
        model(input_ids=ids, labels=ids).loss.backward()

    Loss and gradients are those of the unpatched model up to rounding, with a tied or an untied head, with
    `num_items_in_batch` as the Trainer passes it, and inside PEFT, DDP or torch.compile. `logits` is then None. Calls
    without labels, and calls in evaluation mode, are not changed.

    Args:
        model: a causal LM of transformers, also wrapped; patch before `accelerator.prepare`.
        evaluation: also do it in evaluation mode. The Trainer's compute_metrics then gets no logits.
        chunk: tokens per chunk of logits; see `tied_cross_entropy`.

    Raises:
        BadRequest: the class does not compute its loss by `loss_function`, or uses another loss; at the first call, if
            its logits are not what is known of its family.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=96, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                      num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True)
    >>> model = LlamaForCausalLM(config).train()
    >>> ids = torch.randint(0, 96, (2, 8))
    >>> plain = model(input_ids=ids, labels=ids).loss
    >>> fused = patch(model)(input_ids=ids, labels=ids)
    >>> torch.allclose(fused.loss, plain, atol=1e-5), fused.logits is None
    (True, True)
    >>> unpatch(model)(input_ids=ids, labels=ids).logits.shape
    torch.Size([2, 8, 96])
    """
    inner = _causal_lm(model)
    if (state := inner.__dict__.get(_STATE)) is not None:
        state.evaluation, state.chunk = evaluation, chunk
        return model
    _refuse_other_losses(inner)
    replaced = inner.__dict__.get("forward")
    inner.__dict__[_STATE] = _Patch(_known_scales(inner), evaluation, chunk, replaced)
    inner.__dict__["forward"] = types.MethodType(_patched(inner.forward), inner)
    return model


def unpatch(model: Model) -> Model:
    """Undo `patch`, in place; returns `model`. A model that is not patched is left alone."""
    inner = _causal_lm(model)
    state = inner.__dict__.pop(_STATE, None)
    if state is None:
        return model
    if getattr(inner.__dict__["forward"], _STATE, False):
        del inner.__dict__["forward"]
        if state.replaced is not None:
            inner.__dict__["forward"] = state.replaced
    return model  # else something wrapped our forward (Accelerate's autocast): without its state it changes nothing


@dataclass
class _Patch:
    """What is known of a patched model: its scales, the options, and whether the first call has proved the scales."""

    scales: Scales
    evaluation: bool
    chunk: int | None
    replaced: Any
    """The forward that another patch had put on the model, None for the class's own."""
    proved: bool = False
    warned: bool = False


@dataclass
class _Call:
    """One call: what the head was given, and what it gave for the rows that the proof compares."""

    h: Tensor | None = None  # [B, T, D]
    probed: Tensor | None = None  # [P, D]
    done: bool = False


def _patched(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    function = getattr(original, "__func__", original)

    @functools.wraps(function)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        state: _Patch | None = self.__dict__.get(_STATE)
        # A deep copy of the model has a copy of this method: the original must be called on that copy.
        run = functools.partial(function, self) if function is not original else original
        if state is None or not _wants_loss(self, state, signature.bind_partial(*args, **kwargs).arguments):
            return run(*args, **kwargs)
        head = _plain_head(self)
        if head is None:
            if not state.warned:
                state.warned = True
                warnings.warn(
                    f"the LM head is a {type(self.get_output_embeddings()).__name__} and not one matrix, so the loss "
                    "is computed from the logits",
                    stacklevel=3,
                )
            return run(*args, **kwargs)
        call = _Call()
        with _without_logits(self, head, state, call):
            out = run(*args, **kwargs)
        if not call.done:
            raise BadRequest(
                f"{type(self).__name__} did not compute its loss by loss_function; call tiebeam.nn.unpatch"
            )
        return _without(out, "logits")

    setattr(forward, _STATE, True)
    return forward


@contextmanager
def _without_logits(model: Any, head: nn.Linear, state: _Patch, call: _Call) -> Iterator[None]:
    """Inside, the head sees no rows (in the first call a few), and the model's loss function is the fused one."""

    def keep_hidden(_: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        call.h = args[0]
        few = 0 if state.proved else max(1, _PROBED // max(1, args[0].shape[0]))
        rows = args[0].detach()[..., :few, :]
        call.probed = rows.reshape(-1, rows.shape[-1])
        return (rows,)

    def fused(logits: Tensor, labels: Tensor | None, vocab_size: int, *more: Any, **options: Any) -> Tensor:
        if call.h is None:
            raise BadRequest(
                f"{type(model).__name__} did not call its LM head, so it cannot be patched; call tiebeam.nn.unpatch"
            )
        if not state.proved:
            _prove(model, head, state, call, logits)
        call.done = True
        return _loss(call.h, head, state, labels, vocab_size, *more, **options)

    held = model.__dict__.get("_loss_function")
    hook = head.register_forward_pre_hook(keep_hidden)
    model._loss_function = fused
    try:
        yield
    finally:
        hook.remove()
        del model._loss_function
        if held is not None:
            model._loss_function = held


def _loss(
    h: Tensor,  # [B, T, D]
    head: nn.Linear,
    state: _Patch,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """transformers' ForCausalLMLoss, from hidden states."""
    if shift_labels is None:
        assert labels is not None
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    scale = state.scales.logits
    loss = tied_cross_entropy(
        (h if scale == 1 else h * scale).reshape(-1, h.shape[-1]),
        head.weight,
        shift_labels.reshape(-1).to(h.device),
        bias=None if head.bias is None else head.bias * scale,
        softcap=state.scales.softcap,
        ignore_index=ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum",
        chunk=state.chunk,
    )
    if num_items_in_batch is None:
        return loss
    items = num_items_in_batch
    return loss / (items.to(loss.device) if isinstance(items, Tensor) else items)


def _prove(model: Any, head: nn.Linear, state: _Patch, call: _Call, logits: Tensor) -> None:
    """Compare what the class made of the head's output with our scale and softcap of it."""
    assert call.probed is not None
    with torch.no_grad():
        z = nn.functional.linear(call.probed.to(head.weight.dtype), head.weight, head.bias).float()  # [P, V]
        ours = softcapped(state.scales.logits * z, state.scales.softcap)
        theirs = logits.detach().float().reshape(ours.shape)
        near = 1e-4 if logits.dtype in (torch.float32, torch.float64) else 3e-2
        if not torch.allclose(ours, theirs, rtol=near, atol=near * float(theirs.abs().amax().clamp_min(1e-6))):
            raise BadRequest(
                f"{type(model).__name__} computes its logits in a way that is not known of "
                f"{model.config.model_type!r} (scale {state.scales.logits:g}, softcap {state.scales.softcap}); "
                "call tiebeam.nn.unpatch"
            )
    state.proved = True


def _wants_loss(model: nn.Module, state: _Patch, given: dict[str, Any]) -> bool:
    given = {**given, **given.get("kwargs", {})}
    if given.get("labels") is None or not (model.training or state.evaluation):
        return False
    return all(isinstance(keep := given.get(key, 0), int) and keep == 0 for key in _KEEP)


def _plain_head(model: Any) -> nn.Linear | None:
    """The head if it is one whole matrix with a bias or without: also the trained copy that PEFT keeps of it.

    FSDP2 changes the class of a layer that it shards in a group of its own: such a head is not whole at the loss.
    """
    head = model.get_output_embeddings()
    copies, active = getattr(head, "modules_to_save", None), list(getattr(head, "active_adapters", ()))
    if copies is not None and len(active) == 1 and active[0] in copies:
        head = copies[active[0]]
    return head if type(head) is nn.Linear else None


def _causal_lm(model: Any) -> Any:
    """The Hugging Face model inside DDP, torch.compile and PEFT."""
    inner: Any = unwrap(model)
    while hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    if not hasattr(inner, "get_output_embeddings") or not hasattr(inner, "config"):
        raise BadRequest(
            f"{type(inner).__name__} is not a Hugging Face model; call tiebeam.nn.tied_cross_entropy in its forward"
        )
    return inner


def _refuse_other_losses(model: Any) -> None:
    name = type(model).__name__
    if "loss_function" not in inspect.unwrap(type(model).forward).__code__.co_names:
        raise BadRequest(f"{name}.forward does not call loss_function, so its loss cannot be replaced")
    loss = getattr(model.loss_function, "__name__", type(model.loss_function).__name__)
    if loss != "ForCausalLMLoss":
        raise BadRequest(f"{name} is trained with {loss}, and only ForCausalLMLoss has a fused form here")


def _known_scales(model: Any) -> Scales:
    architecture = families.lookup(model.config.model_type)
    return Scales() if architecture is None else scales(model.config.to_dict(), architecture)


def _without(out: Any, key: str) -> Any:
    """The output without its logits: the second entry of a tuple, whose first is the loss."""
    if isinstance(out, tuple):
        return (out[0], *out[2:])
    return type(out)(**{name: value for name, value in out.items() if name != key})

"""The transformers engine: every architecture that transformers has as a causal language model (extra [hf]).

The model class comes from `model_type` and the installed transformers; code in the repository never runs. A jointly
tied model (`tiebeam tie --joint`) runs on `modeling_tiebeam.py`, tiebeam's own copy of it. Weights are read by
tiebeam's own reader, so every format and every file name works and nothing is unpickled. GGUF files are refused:
transformers ignores some sizes when it converts them (head_dim), so some models would run wrong.

Families differ in what they do around the head: soft caps, multipliers, projections. A hook on the head's input gives
the hidden states [T, D]; to turn hidden states into logits, the model runs one token while the hook puts the hidden
states in place of its own. Where that shows that the logits are the head's output alone, the head is called itself.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.decode.engine import Array, EngineBase, Tokens
from tiebeam.decode.numpy.vocab_tables import JOINT, Table, exact_ids, joint_entry
from tiebeam.errors import BadRequest, MissingExtra, TiebeamError, UnreadableInput
from tiebeam.families import Scales, lookup, scales
from tiebeam.inspection import is_joint

if TYPE_CHECKING:
    import torch

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_UNLIMITED = 1 << 31  # recurrent models and ALiBi have no limit of their own


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What `Engine.spec` holds for a model that transformers runs."""

    context: int
    dim: int
    scales: Scales


@dataclass(frozen=True)
class Converted:
    """A checkpoint of another format as transformers takes it: config.json, and its tensors by their names there."""

    config: Mapping[str, Any]
    tensors: Callable[[], Iterator[tuple[str, Array]]]


def _scales(config: Mapping[str, Any] | None) -> Scales:
    """The family's scales; 1 where the architecture is not in the table."""
    config = config or {}
    architecture = lookup(config.get("model_type"))
    return Scales() if architecture is None else scales(config, architecture)


@dataclass(eq=False)
class KVCache:
    """The positions seen so far. `keys_values` is None until the first call, and for models without such a cache,
    where every call runs all of `tokens` again."""

    capacity: int
    tokens: list[int]
    keys_values: Any = None


@dataclass(frozen=True, eq=False, repr=False)
class TransformersEngine(EngineBase):
    """A causal language model of transformers. Open one with `open_engine(source, engine="transformers")`."""

    source: str
    spec: ModelSizes
    model: Any
    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()
    embed_table: Table | None = None  # in place of the model's own
    head_weight: torch.Tensor | None = None  # [V, R], in place of the model's own
    head_map: torch.Tensor | None = None  # [R, D], applied before `head_weight`

    @classmethod
    def open(
        cls,
        source: str | os.PathLike[str] | Checkpoint,
        *,
        device: str = "cpu",
        embed: str | None = None,
        head: str | None = None,
        dtype: str = "float32",
        converted: Converted | None = None,
        lookup: Table | None = None,
    ) -> TransformersEngine:
        """`lookup` takes the place of the model's embedding, which is then not held in memory."""
        torch, _ = _import()
        checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
        if converted is not None:
            embed = head = None  # the pair has its usual names after the conversion
        for name in (embed, head):
            if name is not None and name not in checkpoint.tensors:
                raise BadRequest(f"{name!r} is not in this checkpoint")
        model = load(checkpoint, dtype=dtype, device=device, given=bool(embed or head), converted=converted)
        config = model.config.get_text_config()
        limits = [value for key in _CONTEXT_KEYS if type(value := getattr(config, key, None)) is int and value > 0]
        sizes = ModelSizes(
            context=limits[0] if limits else _UNLIMITED,
            dim=_width(model.get_output_embeddings()),
            scales=_scales(checkpoint.config if converted is None else converted.config),
        )
        engine = cls(checkpoint.source, sizes, model, checkpoint)
        given = [Table(checkpoint.tensor(name).astype(np.float32)) if name else None for name in (embed, head)]
        if lookup is not None:
            part = model.get_input_embeddings()
            empty = torch.zeros((), dtype=part.weight.dtype, device=part.weight.device).expand(part.weight.shape)
            part.weight = torch.nn.Parameter(empty, requires_grad=False)
        return engine._replaced(lookup or given[0], given[1])

    def __repr__(self) -> str:
        name = type(self.model).__name__
        return f"<TransformersEngine of {self.source}: {name}, {self.vocab:,} x {self.spec.dim}>"

    def with_tables(self, embed: Table, head: Table) -> TransformersEngine:
        """The same layers with another embedding and head; the model itself is not changed."""
        return self._replaced(embed, head)

    def _replaced(self, embed: Table | None, head: Table | None) -> TransformersEngine:
        """Nothing is expanded: embeddings are looked up for the tokens of a run, and the head's map is applied to the
        hidden states."""
        if (embed or head) and getattr(self.model, JOINT, None) is not None:
            raise BadRequest('the transformers engine cannot replace the table of a joint tie; use engine="numpy"')
        weight = through = None
        if head is not None:
            assert isinstance(head.rows, np.ndarray)
            weight = _tensor(head.rows, self._stored)
            through = None if head.map is None else _tensor(head.map, self._stored)
        return replace(self, embed_table=embed, head_weight=weight, head_map=through)

    @cached_property
    def embed(self) -> Table:
        return self.embed_table or _table(self.model.get_input_embeddings())

    @cached_property
    def head(self) -> Table:
        if self.head_weight is None:
            return _table(self.model.get_output_embeddings())
        return Table(_numpy(self.head_weight), None if self.head_map is None else _numpy(self.head_map))

    @property
    def vocab(self) -> int:
        return int((self._stored if self.head_weight is None else self.head_weight).shape[0])

    @property
    def _stored(self) -> torch.Tensor:  # [V, ...]
        """The head's matrix, or the joint table."""
        head = self.model.get_output_embeddings()
        found: torch.Tensor = head.joint.table if hasattr(head, "joint") else head.weight
        return found

    def cache(self, capacity: int | None = None) -> KVCache:
        return KVCache(self.spec.context if capacity is None else capacity, [])

    def forward(self, tokens: Tokens, cache: KVCache) -> Array:  # [T] -> [T, D]
        ids = self.check(tokens)
        if len(cache.tokens) + len(ids) > cache.capacity:
            raise BadRequest(
                f"the cache takes {cache.capacity:,} positions and holds {len(cache.tokens):,}; "
                f"{len(ids):,} more do not fit"
            )
        before = {"past_key_values": cache.keys_values} if cache.keys_values is not None else {}
        new = ids.tolist() if before else [*cache.tokens, *ids.tolist()]
        states, output = self._states(new, use_cache=True, **before)
        cache.tokens += ids.tolist()
        cache.keys_values = output.get("past_key_values")
        return states[-len(ids) :]

    def hidden(self, tokens: Tokens) -> Array:  # [T] -> [T, D]
        """Without a cache, which holds two rows of every layer for each token."""
        self._check_length(len(tokens))
        return self._states(self.check(tokens).tolist(), use_cache=False)[0]

    def _states(self, ids: list[int], **options: Any) -> tuple[Array, Any]:  # [T] -> [T, D], the model's output
        """The hidden states that the head gets for `ids`."""
        seen: list[torch.Tensor] = []

        def keep(h: torch.Tensor) -> torch.Tensor:  # [1, T, D] -> [1, 1, D]
            seen.append(h)
            return h[:, -1:]  # logits of one position; all of them would be [T, V]

        output = self._run(ids, keep, **options)
        h = _numpy(seen[0][0])
        if not np.isfinite(h).all():
            raise UnreadableInput(f"{self.source} gives hidden states that are not finite numbers on this input")
        return h, output

    def unembed(self, h: Array) -> Array:  # [T, D] -> [T, V]
        states = _tensor(h, self._stored)[None]  # [1, T, D]
        if self._bare_head:
            return _numpy(self._score(states)[0])
        output = self._run([0], lambda _: states, use_cache=False)
        return _numpy(output.logits[0])

    @cached_property
    def _bare_head(self) -> bool:
        """Whether the logits are the head's output and nothing else. One run of the model tells; then no further run is
        needed to turn hidden states into logits."""
        import torch

        probe = 8 * torch.randn(2, self.spec.dim, generator=torch.Generator().manual_seed(0)).to(self._stored)[None]
        logits = self._run([0], lambda _: probe, use_cache=False).logits
        return torch.equal(logits, self._score(probe))

    def _score(self, states: torch.Tensor) -> torch.Tensor:  # [..., D] -> [..., V]
        import torch

        head = self.model.get_output_embeddings()
        weights = {} if self.head_weight is None else {"weight": self.head_weight}
        with torch.no_grad():
            logits: torch.Tensor = torch.func.functional_call(head, weights, (self._mapped(states),))
        return logits

    def _mapped(self, states: torch.Tensor) -> torch.Tensor:  # [..., D] -> [..., R]
        return states if self.head_map is None else states @ self.head_map.T

    def _run(self, ids: list[int], at_head: Callable[[torch.Tensor], torch.Tensor], **options: Any) -> Any:
        """One call of the model; `at_head` sees the input of the head and returns what the head gets instead."""
        import torch

        head, calls = self.model.get_output_embeddings(), 0

        def hook(module: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            nonlocal calls
            calls += 1
            return (self._mapped(at_head(arguments[0])), *arguments[1:])

        weights = {}
        embed = None if self.embed_table is None else _sparse(self.embed_table, ids, self._stored)
        for module, weight in ((self.model.get_input_embeddings(), embed), (head, self.head_weight)):
            if weight is not None:
                name = next(name for name, found in self.model.named_modules() if found is module)
                weights[f"{name}.weight"] = weight
        inputs = {"input_ids": torch.tensor([ids], device=self._stored.device), **options}
        handle = head.register_forward_pre_hook(hook)
        try:
            with torch.no_grad():
                output = torch.func.functional_call(self.model, weights, (), inputs, tie_weights=False)
        finally:
            handle.remove()
        if calls != 1:
            raise UnreadableInput(f"{type(self.model).__name__} does not call its head once; it cannot be run here")
        return output


def load(
    source: str | os.PathLike[str] | Checkpoint,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    given: bool = False,
    converted: Converted | None = None,
) -> Any:
    """The transformers model of a checkpoint, in evaluation mode (extra [hf]).

    A jointly tied model (`tiebeam tie --joint`) has the table and both maps as parameters of its module `tiebeam`:
    it generates, trains and saves in this form. Any other checkpoint that tiebeam opens becomes the ordinary model
    of transformers, whatever its files are called; code in it never runs.

        model = tiebeam.load("./joint", dtype="bfloat16", device="cuda")
        model.generate(**tokenizer("Once upon a time", return_tensors="pt").to("cuda"))
        model.save_pretrained("./trained")

    `given`: the head may be missing, because the caller has one. `converted`: the weights to use in place of those of
    the checkpoint.
    """
    torch, transformers = _import()
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    with _quiet(transformers):
        model = _load(transformers, checkpoint, getattr(torch, dtype), given, converted)
    try:
        return model.eval().to(device)
    except (RuntimeError, AssertionError) as error:
        raise BadRequest(f"device {device!r} cannot be used: {_first_line(error)}") from None


def final_norm(checkpoint: Checkpoint) -> Callable[[Array], Array]:
    """The norm before the head as a function [n, D] -> [n, D], without loading any layer.

    It is the last norm of the model class outside the list of layers.
    """
    torch, transformers = _import()
    with _quiet(transformers), _as_unreadable(checkpoint):
        config = _config(transformers, checkpoint, checkpoint.config)
        with torch.device("meta"):
            model = _causal_class(transformers, config, checkpoint.config or {})(config)
    norms = [
        (name, module)
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
        and not any(part.isdigit() for part in name.split("."))
        and not list(module.children())
    ]
    if not norms:
        raise UnreadableInput(f"{type(model).__name__} has no final norm")
    name, norm = norms[-1]
    stored = [f"{name}.{key}" for key in norm.state_dict()]
    bare = name.partition(".")[2]  # some checkpoints leave out the name of the base model
    if any(key not in checkpoint.tensors for key in stored):
        stored = [f"{bare}.{key}" for key in norm.state_dict()]
    missing = next((key for key in stored if key not in checkpoint.tensors), None)
    if missing is not None:
        raise UnreadableInput(f"{checkpoint.source} stores no {name}")
    weights = [_typed(checkpoint.tensor(key), torch.float32) for key in stored]
    norm.load_state_dict(dict(zip(norm.state_dict(), weights, strict=True)), assign=True)

    def apply(x: Array) -> Array:  # [n, D] -> [n, D]
        with torch.no_grad():
            return _numpy(norm(torch.from_numpy(np.ascontiguousarray(x, np.float32))))

    return apply


def _import() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError:
        raise MissingExtra("the transformers engine", "hf") from None
    return torch, transformers


def _load(
    transformers: Any, checkpoint: Checkpoint, dtype: Any, given: bool, converted: Converted | None = None
) -> Any:
    """The model with the checkpoint's weights. `given`: embed and head were given, so the head may be missing."""
    with _as_unreadable(checkpoint):
        stored = checkpoint.config if converted is None else converted.config
        config = _config(transformers, checkpoint, stored)
        kind = _causal_class(transformers, config, stored or {})
        if is_joint(checkpoint):
            kind = _joint_class(kind, config, checkpoint)
        read = ((name, checkpoint.tensor(name)) for name in checkpoint.tensors)
        weights = {name: _typed(x, dtype) for name, x in (read if converted is None else converted.tensors())}
        model, report = kind.from_pretrained(None, config=config, state_dict=weights, output_loading_info=True)
    if model.get_output_embeddings() is None or model.get_input_embeddings() is None:
        raise UnreadableInput(f"{type(model).__name__} has no embedding or no LM head")
    parts = (model.get_input_embeddings(), model.get_output_embeddings()) if given else ()
    pair = {id(part.weight) for part in parts}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    missing = sorted(n for n in report["missing_keys"] if n not in parameters or id(parameters[n]) not in pair)
    if missing:
        raise UnreadableInput(
            f"{checkpoint.source} stores no {missing[0]}"
            + (f" and {len(missing) - 1} more of its weights" if len(missing) > 1 else "")
            + "; transformers would start them with random numbers"
        )
    return model.to(dtype)


def _config(transformers: Any, checkpoint: Checkpoint, config: Mapping[str, Any] | None) -> Any:
    if checkpoint.format == "gguf" and config is None:
        raise UnreadableInput("the transformers engine does not run GGUF files")
    if config is None or not isinstance(config.get("model_type"), str):
        raise UnreadableInput(f"{checkpoint.source} has no config.json with a model_type")
    if config["model_type"] not in transformers.CONFIG_MAPPING:
        raise UnreadableInput(
            f"transformers {transformers.__version__} does not know the model_type {config['model_type']!r}"
        )
    if config.get("quantization_config"):
        raise UnreadableInput("the weights are quantised; the transformers engine runs unquantised models")
    # Without its own dtype the model takes that of the given weights.
    return transformers.AutoConfig.for_model(
        **{key: value for key, value in config.items() if key not in ("dtype", "torch_dtype", "auto_map")}
    )


def _causal_class(transformers: Any, config: Any, stored: Mapping[str, Any]) -> Any:
    """The class that runs it; a model saved as something else (masked, encoder-decoder) is refused."""
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    saved_as = stored.get("architectures") or []
    fits = not saved_as or any(str(n).endswith(("ForCausalLM", "LMHeadModel")) for n in saved_as)
    if kind is None or config.is_encoder_decoder or not (fits or kind.__name__ in saved_as):
        name = saved_as[0] if saved_as else config.model_type
        raise UnreadableInput(f"{name} is not a causal language model in transformers")
    return kind


def _joint_class(kind: Any, config: Any, checkpoint: Checkpoint) -> Any:
    """`kind` with one table and two maps; their sizes, which old files do not record, are set in `config`."""
    from tiebeam.decode.modeling_tiebeam import joint_class

    joint = joint_entry(config.tiebeam)
    rows = checkpoint.tensors[f"{JOINT}.table"].shape[0]
    exact = exact_ids(checkpoint, rows)
    config.tiebeam = {"joint": {**joint, "rows": rows, "exact_embed": 0 if exact is None else len(exact)}}
    return joint_class(kind)


def _width(head: Any) -> int:
    return int((head.joint.head_map if hasattr(head, "joint") else head.weight).shape[1])


def _table(part: Any) -> Table:
    """The embedding or the head of the model for the numpy code."""
    if not hasattr(part, "joint"):
        return Table(_numpy(part.weight))
    joint, ids, exact = part.joint, None, None
    if part.role == "embed" and joint.exact_count:
        ids, exact = joint.exact_rows.detach().cpu().numpy(), _numpy(joint.exact_embed)
    return Table(_numpy(joint.table), _numpy(getattr(joint, f"{part.role}_map")), ids, exact)


def _typed(stored: Array, dtype: torch.dtype) -> torch.Tensor:
    import torch

    values = torch.from_numpy(np.array(stored))
    return values.to(dtype) if values.is_floating_point() else values


def _sparse(table: Table, ids: list[int], like: torch.Tensor) -> torch.Tensor:  # -> [V, D]
    """A matrix that has only the rows `ids`. The other pages take no memory, because nothing touches them; NumPy's own
    zeros would be in huge pages, and every row would take 2 MB."""
    used = np.unique(np.asarray(ids, np.int64))
    found = table.lookup(used).astype(np.float32, copy=False)
    shape = table.vocab, found.shape[1]
    rows = np.frombuffer(mmap.mmap(-1, shape[0] * shape[1] * found.itemsize), np.float32).reshape(shape)
    rows[used] = found
    return _tensor(rows, like)


def _tensor(values: Array, like: torch.Tensor) -> torch.Tensor:
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing writes to it
        return torch.from_numpy(np.ascontiguousarray(values)).to(like.device, like.dtype)


def _numpy(values: torch.Tensor) -> Array:
    import torch

    values = values.detach().cpu()
    found: Array = (values if values.dtype == torch.float64 else values.float()).numpy()
    return found


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


@contextmanager
def _as_unreadable(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn whatever transformers raises for a config or its weights into one sentence."""
    try:
        yield
    except TiebeamError:
        raise
    except Exception as error:
        raise UnreadableInput(f"transformers cannot load {checkpoint.source}: {_first_line(error)}") from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no warnings of transformers on standard error while a model loads."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()

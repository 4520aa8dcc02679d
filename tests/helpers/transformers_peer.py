"""Every language model of the real transformers: names, shapes, and which flag ties them.

Each architecture is built once on the meta device (no memory, a few milliseconds) with few layers and every
tie flag on. That gives the names of embedding and head in memory and in a saved file, and the config levels
whose flag ties them. How a given config.json resolves is read from the config class alone.
"""

from __future__ import annotations

import copy
import functools
import os
import warnings
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import PreTrainedConfig, PreTrainedModel  # noqa: E402
from transformers.core_model_loading import revert_weight_conversion  # noqa: E402
from transformers.initialization import no_init_weights  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

TASKS = (
    "CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "MASKED_LM",
    "SPEECH_SEQ_2_SEQ",
    "MULTIMODAL_LM",
    "PRETRAINING",
)
_LAYER_COUNTS = {
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"),
    *("num_decoder_layers", "num_encoder_layers", "depth", "num_hidden_groups"),
}
_PER_LAYER = {"layer_types", "layers_block_type", "block_types", "attention_types", "mlp_layer_types"}
_EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}
_ROPE = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}

# Configs whose bare defaults build no model.
_NEEDED: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "chameleon": {"vocabulary_map": {"<image>": 8711}},
    "cohere_compass": {"text_config": {"num_hidden_layers": 4, "rope_parameters": _ROPE}},
    "cohere_compass_text": {"num_hidden_layers": 4, "rope_parameters": _ROPE},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 8}, "n_layers": 2},
    "deepseek_ocr2": {"text_config": {"num_hidden_layers": 2, "mlp_layer_types": ["dense", "dense"]}},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_hidden_layers": 2},
    "emu3": {"vocabulary_map": {"<|extra_0|>": 1}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_hidden_layers": 2,
            "num_kv_shared_layers": 2,
        }
    },
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "downsample_rate": "4/8"},
    "hunyuan_v1_dense": {"head_dim": 128, "num_hidden_layers": 2},
    "hunyuan_v1_moe": {"head_dim": 128, "num_hidden_layers": 2},
    "hunyuan_vl": {"text_config": {"head_dim": 128, "num_hidden_layers": 2}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "ministral": {"head_dim": 128, "num_hidden_layers": 2},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 2},
    "qwen4_exp_text": {"token_budget": 1024, "compress_ratio": 4, "num_hidden_layers": 2},
}
CANNOT_BUILD = {
    "diffusion_gemma": "no default for num_global_key_value_heads",
    "fast_vlm": "its vision tower needs timm",
    "gemma3n": "its vision tower needs timm",
    "perception_lm": "its vision tower needs timm",
    "qwen3_omni_moe": "its default talker config is incomplete",
    "qwen4_exp": "its default text config is incomplete",
}
# Their default config class does not fit the class that the auto-mapping names for it.
_OTHER_CLASS = {
    *(("emu3", "CAUSAL_LM"), ("llama4", "CAUSAL_LM"), ("qwen3_5", "CAUSAL_LM"), ("qwen3_5_moe", "CAUSAL_LM")),
    *(("reformer", "CAUSAL_LM"), ("mllama", "CAUSAL_LM")),
}


@dataclass(frozen=True)
class Surveyed:
    """One model class as transformers builds it, every flag on."""

    model_type: str
    class_name: str
    embed: frozenset[str]
    """Every in-memory name of the input embedding; with the flags on, those of the head too when they tie."""
    head: frozenset[str]
    deciders: frozenset[str]
    """Config paths whose flag ties head to embedding."""
    in_memory: dict[str, tuple[int, ...]]
    on_disk: dict[str, tuple[int, ...]]
    disk_names: dict[str, str]
    """In-memory name of embedding or head -> its name in a saved file."""
    embed_shape: tuple[int, ...]
    head_bias: bool
    config: dict[str, Any]


def config_class(model_type: str) -> type[PreTrainedConfig]:
    return CONFIG_MAPPING[model_type]


def from_json(model_type: str, document: dict[str, Any]) -> PreTrainedConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return config_class(model_type).from_dict(copy.deepcopy(document))


def few_layers(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    shrunk = {}
    for key, value in document.items():
        if key in _PER_LAYER:
            continue
        if key in _LAYER_COUNTS and isinstance(value, int):
            shrunk[key] = min(value, 2)
        elif key in _EXPERTS and isinstance(value, int):
            shrunk[key] = min(value, 8)
        else:
            shrunk[key] = few_layers(value)
    return shrunk


def classes(model_type: str) -> list[str]:
    """The language-model classes of a type, without repeats."""
    found: list[str] = []
    for task in TASKS:
        name = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").get(model_type)
        name = name[0] if isinstance(name, (tuple, list)) else name
        if name and name not in found and (model_type, task) not in _OTHER_CLASS:
            found.append(name)
    return found


def _turn_on(config: PreTrainedConfig) -> None:
    config.tie_word_embeddings = True
    for inner in list(vars(config).values()):
        if isinstance(inner, PreTrainedConfig):
            _turn_on(inner)


def _path(root: PreTrainedConfig, wanted: PreTrainedConfig, path: str = "") -> str | None:
    if root is wanted:
        return path
    for key, value in vars(root).items():
        if isinstance(value, PreTrainedConfig):
            found = _path(value, wanted, f"{path}.{key}" if path else key)
            if found is not None:
                return found
    return None


def _build(model_type: str, class_name: str) -> PreTrainedModel:
    cls = config_class(model_type)
    error: Exception | None = None
    for shrink in (few_layers, lambda document: document):
        try:
            if model_type in _NEEDED:
                config = from_json(model_type, {"model_type": model_type, **_NEEDED[model_type]})
            else:
                config = from_json(model_type, shrink(cls().to_dict()))
            _turn_on(config)
            with torch.device("meta"), no_init_weights():
                model = getattr(transformers, class_name)._from_config(config)
            model.tie_weights(recompute_mapping=False)
            return model
        except Exception as problem:
            error = problem
    assert error is not None
    raise error


def _survey_one(model_type: str, class_name: str) -> Surveyed:
    model = _build(model_type, class_name)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    by_identity: dict[int, set[str]] = {}
    for name, parameter in parameters.items():
        by_identity.setdefault(id(parameter), set()).add(name)

    def weight_names(getter: str) -> tuple[frozenset[str], Any]:
        try:
            module = getattr(model, getter)()
        except NotImplementedError:
            return frozenset(), None
        weight = getattr(module, "weight", None)
        return frozenset(by_identity.get(id(weight), ())), module

    embed, embed_module = weight_names("get_input_embeddings")
    head, head_module = weight_names("get_output_embeddings")
    deciders = set()
    for module_name, module in model.named_modules():
        if isinstance(module, PreTrainedModel) and module._tied_weights_keys:
            where = f"{module_name}." if module_name else ""
            tied = {f"{where}{name}" for pair in module.get_expanded_tied_weights_keys().items() for name in pair}
            path = _path(model.config, module.config)
            if path is not None and head and tied & head & _heads(head) and tied & (head - _heads(head)):
                deciders.add(path)
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    vocabulary = {name: parameters[name] for name in embed | head}
    disk_names = {}
    on_disk = {name: shape for name, shape in shapes.items() if name not in vocabulary}
    for name, parameter in vocabulary.items():
        saved = revert_weight_conversion(model, {name: parameter})
        on_disk.update({saved_name: tuple(tensor.shape) for saved_name, tensor in saved.items()})
        disk_names[name] = min(saved)  # one, except for molmo2, which stores its added rows separately
    return Surveyed(
        model_type=model_type,
        class_name=class_name,
        embed=embed,
        head=head,
        deciders=frozenset(deciders),
        in_memory=shapes,
        on_disk=on_disk,
        disk_names=disk_names,
        embed_shape=tuple(embed_module.weight.shape) if embed else (),
        head_bias=getattr(head_module, "bias", None) is not None,
        config=model.config.to_dict(),
    )


_HEAD_PARTS = (
    "lm_head",
    "proj_out",
    "output",
    "cls.",
    "predictions",
    "head",
    "embed_out",
    "vocab_projector",
    "lm_loss",
)


def _heads(names: frozenset[str]) -> frozenset[str]:
    """The head's names among all names of one tied matrix."""
    return frozenset(
        name
        for name in names
        if any(part in name for part in (*_HEAD_PARTS, "pred_layer", "decoder.weight")) and "embed_tokens" not in name
    )


@functools.cache
def survey() -> tuple[dict[str, list[Surveyed]], dict[str, str]]:
    """Every language model of the installed transformers, and why the rest cannot be built."""
    from tiebeam.families.registry import lookup

    transformers.logging.set_verbosity_error()
    found: dict[str, list[Surveyed]] = {}
    failed: dict[str, str] = {}
    types = {
        model_type
        for task in TASKS
        for model_type in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
        if lookup(model_type) is not None
    }
    for model_type in sorted(types):
        for class_name in classes(model_type):
            try:
                found.setdefault(model_type, []).append(_survey_one(model_type, class_name))
            except Exception as problem:
                failed[model_type] = f"{class_name}: {type(problem).__name__}: {problem}"
    return found, failed

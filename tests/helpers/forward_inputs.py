"""Fixed inputs for the forward pass of any tiny language model of transformers: token ids, pixels, sound."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

IDS = [11, 12, 13, 14, 15, 16, 17, 18]


def forward_inputs(model: Any) -> dict[str, Any]:
    """What `model(**inputs)` needs, the same on every call."""
    import torch

    takes = inspect.signature(model.forward).parameters
    ids = torch.tensor([IDS])
    inputs: dict[str, Any] = {}
    torch.manual_seed(1)
    if model.main_input_name == "input_features":
        mels = getattr(model.config, "num_mel_bins", None) or getattr(model.config, "input_feat_per_channel", 8)
        shape = (1, mels, 128) if "whisper" in model.config.model_type else (1, 128, mels)
        inputs["input_features"] = torch.randn(shape)
    elif model.main_input_name == "pixel_values" and "input_ids" not in takes:
        inputs["pixel_values"] = torch.randn(1, 3, 28, 28)
    elif model.config.model_type != "moonshine":
        inputs["input_ids"] = ids
    if "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = ids
    if "use_cache" in takes:
        inputs["use_cache"] = False
    if model.config.model_type in _OWN:
        inputs |= _OWN[model.config.model_type](model.config)
    return inputs


def _pixels(config: Any) -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(1, 3, 28, 28)}


def _idefics(config: Any) -> dict[str, Any]:
    import torch

    return {
        "pixel_values": torch.randn(1, 1, 3, 28, 28),
        "image_attention_mask": torch.ones(1, len(IDS), 1, dtype=torch.long),
    }


def _q_former(config: Any) -> dict[str, Any]:
    """The prompt starts with a placeholder for every query token; InstructBLIP's Q-Former reads a prompt as well."""
    import torch

    video = config.model_type == "instructblipvideo"
    frames = 4 if video else 1
    placeholder = config.video_token_id if video else config.image_token_id
    ids = torch.tensor([[placeholder] * (config.num_query_tokens * frames) + IDS])
    found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found["pixel_values"] = torch.randn((1, frames, 3, 28, 28) if video else (1, 3, 28, 28))
    if config.model_type != "blip-2":
        prompt = torch.tensor([[3, 4, 5, 6]])
        found |= {"qformer_input_ids": prompt, "qformer_attention_mask": torch.ones_like(prompt)}
    return found


def _kosmos(config: Any) -> dict[str, Any]:
    import torch

    pictured = torch.zeros(1, len(IDS) + config.latent_query_num, dtype=torch.long)
    pictured[:, 1 : 1 + config.latent_query_num] = 1
    ids = torch.tensor([[IDS[0]] + [7] * config.latent_query_num + IDS[1:]])
    return {"input_ids": ids, "image_embeds_position_mask": pictured, **_pixels(config)}


def _patches(config: Any) -> dict[str, Any]:
    import torch

    size = config.vision_config.patch_embed_hidden_size
    patches = torch.randn(1, 4, 2 + size)
    patches[:, :, :2] = torch.tensor([[1, 1], [1, 2], [2, 1], [2, 2]])  # row and column
    return {"flattened_patches": patches}


def _sound(config: Any) -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(1, 4096)}


def _realtime(config: Any) -> dict[str, Any]:
    import torch

    encoder = config.audio_config
    frames = len(IDS) * config.downsample_factor * 2
    return {"input_features": torch.randn(1, encoder.num_mel_bins, frames), "num_delay_tokens": 1}


_OWN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "blip": _pixels,
    "blip-2": _q_former,
    "idefics": _idefics,
    "instructblip": _q_former,
    "instructblipvideo": _q_former,
    "kosmos-2": _kosmos,
    "moonshine": _sound,
    "pix2struct": _patches,
    "voxtral_realtime": _realtime,
}

"""Whether a model class has a language-modelling head at all, stored or tied.

An encoder without a head is not a model whose head is missing. Evidence, in this order: tensors that only a head
has, the class that config.json names, and last the task of the architecture.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tiebeam.families.registry import Architecture
from tiebeam.families.tensor_names import plain, wrapper_before

_WITH_HEAD = (
    r"For(?:CausalLM|ConditionalGeneration|MaskedLM|PreTraining|TextToText|SpeechToText|Vision2Seq|ImageTextToText"
    r"|BlockDiffusion|ProteinText2Text|SeqToSeqLM)|LMHead|DoubleHeads|MTModel$|EncoderDecoderModel$|ChatModel$"
    r"|^SeamlessM4T|Omni(?:Moe)?Model$"
)
_WITHOUT_HEAD = (
    r"Classification|QuestionAnswering|MultipleChoice|NextSentencePrediction|Retrieval|Reward|ForScore|ForCTC"
    r"|Embedding|FeatureExtraction|Encoder(?:Model)?$|Model$"
)
# Pre-trained as discriminators: their "pre-training head" predicts real or fake, not a token.
_DISCRIMINATORS = ("ElectraForPreTraining", "FunnelForPreTraining", "SplinterForPreTraining")
_ENCODER_ROLES = ("masked_lm", "pretraining", "retrieval")
_POOLER = ("pooler.dense.weight", "text_projection", "text_projection.weight")


def head_by_design(
    names: Collection[str], config: Mapping[str, Any] | None, architecture: Architecture | None
) -> bool | None:
    """For a checkpoint that stores no head matrix: whether its class has one; None when unknown."""
    if architecture is not None and not architecture.head:
        return False
    encoder = architecture is not None and architecture.role in _ENCODER_ROLES
    if architecture is not None and encoder and _parts_of_head(names, architecture):
        return True
    verdict = class_has_head(config or {})
    if verdict is not None:
        return verdict
    if architecture is not None and not encoder:
        return True
    pooled = any(name.endswith(_POOLER) for name in names)
    return False if pooled or (encoder and "token_embd.weight" in names) else None


def _parts_of_head(names: Iterable[str], architecture: Architecture) -> bool:
    """Whether there are biases, norms or transforms of a head, such as `cls.predictions.bias`."""
    stems = [name.removesuffix(".weight") for name in architecture.head]
    parts = {f"{stem}." for stem in stems} | {f"{stem.rpartition('.')[0]}." for stem in stems if "." in stem}
    return any(
        wrapper_before(name[: name.index(part) + len(part)], part) is not None
        for name in map(plain, names)
        for part in parts
        if part in name
    )


def class_has_head(config: Mapping[str, Any]) -> bool | None:
    """Whether the class that config.json names has a head, by its name; None when the name does not show it."""
    auto_map = config.get("auto_map")
    if isinstance(auto_map, Mapping) and any(re.search(r"For(?:CausalLM|Seq2SeqLM|MaskedLM)", key) for key in auto_map):
        return True
    classes = config.get("architectures")
    if not isinstance(classes, list) or not classes or not isinstance(classes[0], str):
        return None
    if classes[0] in _DISCRIMINATORS:
        return False
    if "ForCausalLM" in classes[0] or re.search(_WITH_HEAD, classes[0]):  # nearly all, without compiling
        return True
    return False if re.search(_WITHOUT_HEAD, classes[0]) else None

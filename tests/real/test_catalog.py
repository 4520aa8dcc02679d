"""The catalogue's totals and ties, compared with models that transformers builds on the meta device."""

import pytest

from helpers.published_configs import CONFIGS
from tiebeam.catalog import known_models

pytestmark = pytest.mark.real

MODELS = {model.name: model for model in known_models()}
# transformers 5 ties these whatever the config says, and unties them on load when the stored values differ
TIED_BY_FORCE = {"T5 v1.1 base", "T5 v1.1 large", "Flan-T5 base", "mT5 small", "mT5 base"}


def build(model_type, keys):
    import torch
    import transformers
    from transformers.models.auto import modeling_auto as auto

    config = transformers.CONFIG_MAPPING[model_type](**keys)
    for mapping in (
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_MASKED_LM_MAPPING,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    ):
        # BART and NLLB are listed among the masked LMs, too, and BERT among the causal ones: the order decides.
        if type(config) in mapping:
            with torch.device("meta"):
                model = mapping[type(config)](config)
            model.tie_weights()
            return model
    raise AssertionError(f"no class with a head for {model_type}")


def test_every_recomputed_total_has_its_configuration():
    assert set(CONFIGS) == {model.name for model in known_models() if model.audit}


@pytest.mark.parametrize("name", CONFIGS)
def test_catalogue_agrees_with_transformers(name):
    known, model = MODELS[name], build(*CONFIGS[name])
    embed, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    total = sum(parameter.numel() for parameter in model.parameters())  # shared ones come once
    trunk = total - embed.numel() - (0 if head is embed else head.numel())
    assert tuple(embed.shape) == (known.vocab, known.dim)
    assert tuple(head.shape) == (known.vocab, known.head_dim)
    assert (head is embed) == (known.tied or name in TIED_BY_FORCE)
    assert trunk == known.trunk
    if name not in TIED_BY_FORCE:
        assert total == known.total

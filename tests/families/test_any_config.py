"""Any config.json and any tensor names give a result or a one-sentence error."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from tiebeam.errors import TiebeamError
from tiebeam.families import count_from_config, find_pair, known_types, lookup, named_pair, resolve_declared, scales

PIECES = [
    *("model", "module", "language_model", "embed_tokens", "wte", "lm_head", "output", "shared", "encoder", "decoder"),
    *("cls", "predictions", "embeddings", "word_embeddings", "layers", "0", "weight", "qweight", "scales", "bias", ""),
    *("token_embd", "base_layer", "modules_to_save", "default", "original_module", "absmax", "emb", "head", "W_E", "/"),
]
names = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map(".".join)
shapes = st.dictionaries(names, st.lists(st.integers(0, 2000), max_size=3).map(tuple), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["llama", "t5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(
    [
        *("tie_word_embeddings", "text_config", "vocab_size", "hidden_size", "num_hidden_layers", "architectures"),
        *("num_attention_heads", "intermediate_size", "model_type", "auto_map", "tie_embedding", "thinker_config"),
        *("logit_scale", "final_logit_softcapping", "mlp_only_layers", "head_dim", "decoder", "time_step_rank"),
    ]
)
configs = st.dictionaries(keys, values | st.dictionaries(keys, values, max_size=4), max_size=8)
types = st.none() | st.sampled_from(known_types())


@settings(max_examples=400, deadline=None)
@given(shapes, configs, types)
def test_any_tensor_names_and_any_config_give_a_result(shapes, config, model_type):
    architecture = lookup(model_type)
    found = find_pair(shapes, config, architecture)
    assert {found.embed, found.head} <= {None, *shapes}
    assert found.embed is None or found.embed != found.head
    assert set(found.candidates) <= set(shapes)
    assert found.why
    declared = resolve_declared(config, architecture)
    assert declared.value in (True, False, None)
    assert declared.by
    counted = count_from_config({**config, "model_type": model_type})
    assert counted is None or counted.total_untied == counted.total_tied + counted.matrix
    if architecture is not None:
        with contextlib.suppress(TiebeamError):
            assert scales(config, architecture).input


@settings(max_examples=200, deadline=None)
@given(shapes, names | st.none(), names | st.none())
def test_any_given_embed_and_head_names_are_used_or_refused_in_one_sentence(shapes, embed, head):
    with contextlib.suppress(TiebeamError):
        found = named_pair(shapes, embed, head)
        assert {found.embed, found.head} - {None} <= set(shapes)

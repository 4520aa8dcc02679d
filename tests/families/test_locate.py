"""Locating embedding and head: by architecture, behind wrappers and quantisers, and by heuristics."""

from __future__ import annotations

import pytest

from helpers.transformers_peer import survey
from tiebeam.errors import BadRequest
from tiebeam.families import find_pair, lookup, named_pair, vocabulary, width

pytestmark = pytest.mark.xdist_group("transformers survey")
V, D = 1000, 64
# Their input has rows that the head has not (prompts, an image token, special tokens), or no key for the width.
EXTRA_ROWS = {"cpmant": 1024, "mllama": 8, "molmo2": 128, "moshi": 1}


def with_both_ends():
    for classes in survey()[0].values():
        for one in classes:
            if one.embed and one.head:
                yield one


def test_embedding_and_head_are_found_for_every_architecture_in_memory_and_on_disk():
    wrong, checked = [], 0
    for one in with_both_ends():
        architecture = lookup(one.model_type)
        for shapes, stored_as in ((one.in_memory, {}), (one.on_disk, one.disk_names)):
            names = tuple({stored_as.get(name, name) for name in names} for names in (one.embed, one.head))
            found = find_pair(shapes, one.config, architecture)
            checked += 1
            good = found.embed in names[0] | names[1] and found.head in names[1] and found.embed != found.head
            if not good or found.guessed or found.candidates:
                wrong.append((one.class_name, found))
    assert not wrong
    assert checked > 600


def test_a_tied_file_stores_no_head_but_its_class_has_one_for_every_architecture():
    wrong = []
    for one in with_both_ends():
        architecture = lookup(one.model_type)
        config = {**one.config, "architectures": [one.class_name]}
        both = find_pair(one.on_disk, config, architecture)
        tied = {name: shape for name, shape in one.on_disk.items() if name != both.head}
        found = find_pair(tied, config, architecture)
        if (found.embed, found.head) != (both.embed, None) or found.guessed or found.candidates:
            wrong.append((one.class_name, found))
        if found.has_head_by_design is not True:
            wrong.append((one.class_name, found))
    assert not wrong


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model.", "module._orig_mod."])
def test_wrappers_change_nothing_for_every_architecture(prefix):
    for one in with_both_ends():
        architecture = lookup(one.model_type)
        plain = find_pair(one.on_disk, one.config, architecture)
        wrapped = find_pair({f"{prefix}{n}": s for n, s in one.on_disk.items()}, one.config, architecture)
        assert (wrapped.embed, wrapped.head) == (f"{prefix}{plain.embed}", f"{prefix}{plain.head}"), one.class_name
        assert not wrapped.guessed


def test_heuristics_alone_find_the_same_pair_for_nearly_every_architecture_and_never_a_wrong_one():
    missed = set()
    for one in with_both_ends():
        truth = find_pair(one.in_memory, one.config, lookup(one.model_type))
        guess = find_pair(one.in_memory)
        assert guess.guessed
        assert guess.embed in {None, truth.embed, *one.embed}, one.class_name
        assert guess.head in {None, truth.head}, one.class_name
        if None in (guess.embed, guess.head):
            assert guess.candidates, one.class_name
            missed.add(one.model_type)
    assert missed <= {"ctrl"}


def test_vocabulary_and_width_come_from_the_right_keys_for_every_architecture():
    for one in with_both_ends():
        architecture = lookup(one.model_type)
        embed = find_pair(one.in_memory, one.config, architecture).embed
        rows, dim = one.in_memory[embed]
        assert vocabulary(one.config, architecture) == rows - EXTRA_ROWS.get(one.model_type, 0), one.class_name
        assert width(one.config, architecture) == (None if one.model_type == "blt" else dim), one.class_name


def llama(*names, rows=V):
    return {"model.layers.0.self_attn.q_proj.weight": (D, D), **dict.fromkeys(names, (rows, D))}


@pytest.mark.parametrize(
    ("embed", "head"),
    [
        ("model.embed_tokens.weight", "lm_head.qweight"),
        ("model.embed_tokens.weight", "lm_head.weight_packed"),
        ("model.embed_tokens.base_layer.weight", "lm_head.base_layer.weight"),
        ("base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.modules_to_save.default.weight"),
        (
            "_fsdp_wrapped_module.model._fsdp_wrapped_module.embed_tokens.weight",
            "_fsdp_wrapped_module.lm_head._fsdp_wrapped_module.weight",
        ),
        ("module.module.model.embed_tokens.weight", "module.module.lm_head.weight"),
        ("model.model.embed_tokens.weight", "model.lm_head.weight"),
        ("embed_tokens.weight", "lm_head.weight"),
    ],
)
def test_names_changed_by_wrappers_and_quantisers_are_found(embed, head):
    found = find_pair(llama(embed, head), {}, lookup("llama"))
    assert (found.embed, found.head, found.guessed) == (embed, head, False)


def test_a_packed_matrix_is_found_and_marked():
    shapes = llama("model.embed_tokens.weight") | {"lm_head.qweight": (D // 8, V), "lm_head.scales": (1, V)}
    found = find_pair(shapes, {}, lookup("llama"))
    assert found.head == "lm_head.qweight"
    assert found.packed == ("head",)
    assert "lm_head.qweight packed by a quantiser" in found.why
    bnb = llama("model.embed_tokens.weight") | {"lm_head.weight": (V * D // 2, 1), "lm_head.weight.absmax": (V,)}
    assert find_pair(bnb, {}, lookup("llama")).packed == ("head",)
    assert find_pair(bnb).packed == ("head",)


def test_the_trained_copy_of_a_peft_head_is_used_and_not_the_frozen_original():
    stem = "base_model.model.lm_head"
    shapes = llama("base_model.model.model.embed_tokens.weight", f"{stem}.original_module.weight")
    shapes[f"{stem}.modules_to_save.default.weight"] = (V, D)
    for architecture in (lookup("llama"), None):
        found = find_pair(shapes, {}, architecture)
        assert found.head == f"{stem}.modules_to_save.default.weight"


def test_a_head_with_an_unusual_name_is_not_reported_missing():
    found = find_pair(llama("model.embed_tokens.weight", "output.weight"), {"vocab_size": V}, lookup("llama"))
    assert found.head == "output.weight"
    assert found.guessed
    assert "only one matrix is named as llama names it" in found.why


def test_a_head_alone_is_found_as_the_head():
    found = find_pair(llama("lm_head.weight"), {}, lookup("llama"))
    assert (found.embed, found.head) == (None, "lm_head.weight")


@pytest.mark.parametrize("architecture", [None, "llama", "qwen2", "falcon"])
def test_gguf_names_are_found_for_any_architecture(architecture):
    shapes = {"token_embd.weight": (V, D), "blk.0.attn_output.weight": (D, D), "output_norm.weight": (D,)}
    found = find_pair(shapes, None, lookup(architecture))
    assert (found.embed, found.head, found.guessed) == ("token_embd.weight", None, False)
    both = find_pair(shapes | {"output.weight": (V, D)}, None, lookup(architecture))
    assert both.head == "output.weight"


@pytest.mark.parametrize(
    ("embed", "head"),
    [
        ("tok_embeddings.weight", "output.weight"),
        ("transformer.wte.weight", "lm_head.weight"),
        ("emb.weight", "head.weight"),
        ("encoder.weight", "decoder.weight"),
        ("embedding.word_embeddings.weight", "output_layer.weight"),
        ("language_model.embedding.word_embeddings.weight", "language_model.output_layer.weight"),
        ("decoder.embed_tokens.weight", "decoder.output_projection.weight"),
        ("token_emb.emb.weight", "to_logits.weight"),
        ("tok_emb.weight", "out_head.weight"),
        ("token_embedding_table.weight", "lm_head.weight"),
        ("my_model.embed_tokens.weight", "my_model.lm_head.weight"),
        ("wte", "lm_head"),
        ("params/transformer/wte/embedding", "params/lm_head"),
    ],
)
def test_well_known_names_are_guessed_and_reported_as_a_guess(embed, head):
    found = find_pair({embed: (V, D), head: (V, D), "blocks.0.attn.proj.weight": (D, D), "wpe.weight": (V, D)})
    assert (found.embed, found.head, found.guessed) == (embed, head, True)
    assert "there is no config.json" in found.why


@pytest.mark.parametrize(
    "other",
    [
        *("wpe.weight", "model.embed_positions.weight", "embeddings.token_type_embeddings.weight"),
        *("model.embed_tokens_per_layer.weight", "vision_tower.patch_embedding.weight", "score.weight"),
        *("classifier.weight", "visual.embed.weight", "model.layers.3.embed_tokens.weight", "pos_emb.weight"),
        *("model.layers.61.shared_head.head.weight", "mtp.embed_tokens.weight", "model.layers.0.mlp.gate.weight"),
        *("embeddings.position_embeddings.weight", "decoder.positional_embedding", "router.weight", "v_head.weight"),
    ],
)
def test_other_tensors_are_never_taken_for_a_vocabulary_matrix(other):
    alone = find_pair({other: (V, D)}, {"vocab_size": V, "hidden_size": D})
    assert (alone.embed, alone.head) == (None, None)
    beside = find_pair({other: (V, D), "model.embed_tokens.weight": (V, D)}, {"vocab_size": V})
    assert (beside.embed, beside.head) == ("model.embed_tokens.weight", None)


def test_two_equally_good_candidates_are_listed_and_none_is_chosen():
    shapes = {"a.embed_tokens.weight": (V, D), "b.embed_tokens.weight": (V, D), "lm_head.weight": (V, D)}
    found = find_pair(shapes)
    assert (found.embed, found.head) == (None, None)
    assert found.candidates == ("a.embed_tokens.weight", "b.embed_tokens.weight")
    assert "a.embed_tokens.weight or b.embed_tokens.weight could be the embedding" in found.why
    assert "pass their names as embed and head" in found.why


def test_the_config_decides_between_candidates():
    shapes = {"a.embed_tokens.weight": (V, D), "b.embed_tokens.weight": (7, D), "b.lm_head.weight": (7, D)}
    assert find_pair(shapes, {"vocab_size": V - 24}).embed == "a.embed_tokens.weight"
    assert find_pair(shapes, {"vocab_size": 7}).embed == "b.embed_tokens.weight"


def test_a_matching_shape_alone_is_not_chosen_but_the_head_is_not_reported_missing():
    found = find_pair({"tok_embeddings.weight": (V, D), "mystery.weight": (V, D)})
    assert (found.embed, found.head) == ("tok_embeddings.weight", None)
    assert found.candidates == ("mystery.weight",)
    assert "mystery.weight could be the head" in found.why


def test_a_transposed_head_is_listed_as_a_candidate_and_not_chosen():
    found = find_pair({"embed.W_E": (V, D), "unembed.W_U": (D, V)})
    assert (found.embed, found.head, found.candidates) == ("embed.W_E", None, ("unembed.W_U",))


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("lm_head.weight", (32, 768), ["Wav2Vec2ForCTC"]),
        ("lm_head.weight", (32, 768), None),
        ("lm_head.weight", (1000, 768), ["HubertForCTC"]),
        ("proj_out.weight", (64, 3072), ["FluxTransformer2DModel"]),
        ("down_blocks.1.attentions.0.proj_out.weight", (640, 640), None),
        ("head.weight", (1000, 768), None),
        ("fc.weight", (1000, 512), None),
    ],
)
def test_heads_of_models_without_a_vocabulary_are_not_taken_for_a_lone_head(name, shape, classes):
    found = find_pair({name: shape}, {"architectures": classes} if classes else None)
    assert (found.embed, found.head) == (None, None)


def test_the_head_of_a_submodel_is_not_the_head_of_the_model():
    shapes = {"model.embed_tokens.weight": (V, D), "talker.lm_head.weight": (V, D), "a.b.output.weight": (V, D)}
    found = find_pair(shapes, {"vocab_size": V}, lookup("llama"))
    assert (found.embed, found.head, found.guessed) == ("model.embed_tokens.weight", None, False)


def test_uninformative_names_are_listed_as_candidates():
    found = find_pair({"enc_emb": (29, D), "dec_emb": (74, D), "fc_w": (74, D), "fc_b": (74,)})
    assert (found.embed, found.head) == (None, None)
    assert found.candidates == ("enc_emb", "dec_emb")


def test_an_encoder_decoder_shares_one_table_or_uses_the_decoders():
    t5, three = lookup("t5"), ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    assert find_pair(llama(*three, "lm_head.weight"), {}, t5).embed == "shared.weight"
    assert find_pair(llama(*three[1:], "lm_head.weight"), {}, t5).embed == "encoder.embed_tokens.weight"
    assert find_pair(llama(*three, "lm_head.weight")).embed == "shared.weight"
    assert find_pair(llama(*three[1:], "decoder.output_projection.weight")).embed == "decoder.embed_tokens.weight"


def test_openai_whisper_has_a_decoder_table_and_no_head():
    shapes = {
        "decoder.token_embedding.weight": (51864, 384),
        "decoder.positional_embedding": (448, 384),
        "encoder.positional_embedding": (1500, 384),
        "decoder.blocks.0.attn.query.weight": (384, 384),
    }
    for architecture in (None, lookup("whisper")):
        found = find_pair(shapes, None, architecture)
        assert (found.embed, found.head, found.candidates) == ("decoder.token_embedding.weight", None, ())


BERT = {"embeddings.word_embeddings.weight": (V, D), "pooler.dense.weight": (D, D)}
BERT_LM = {"bert.embeddings.word_embeddings.weight": (V, D), "cls.predictions.bias": (V,)}


@pytest.mark.parametrize(
    ("model_type", "classes", "shapes", "expected"),
    [
        ("bert", ["BertModel"], BERT, False),
        ("bert", None, BERT, False),
        ("bert", None, BERT_LM, True),
        ("bert", None, {f"module.{name}": shape for name, shape in BERT_LM.items()}, True),
        ("bert", ["BertForMaskedLM"], BERT, True),
        ("bert", ["BertForSequenceClassification"], BERT, False),
        (None, None, BERT, False),
        ("llama", ["LlamaForCausalLM"], llama("model.embed_tokens.weight"), True),
        ("llama", None, llama("model.embed_tokens.weight"), True),
        ("llama", ["LlamaForSequenceClassification"], llama("model.embed_tokens.weight", "score.weight"), False),
        ("mistral", ["MistralModel"], llama("embed_tokens.weight"), False),
        ("t5", ["T5EncoderModel"], llama("shared.weight"), False),
        ("electra", ["ElectraForPreTraining"], {"electra.embeddings.word_embeddings.weight": (V, D)}, False),
        ("gpt2", ["GPT2LMHeadModel"], {"wte.weight": (V, D)}, True),
        ("colpali", ["ColPaliForRetrieval"], {"vlm.language_model.embed_tokens.weight": (V, D)}, False),
        ("nomic-bert", None, {"token_embd.weight": (V, D)}, False),
        (None, None, llama("model.embed_tokens.weight"), None),
    ],
)
def test_no_head_by_design_is_distinguished_from_a_missing_head(model_type, classes, shapes, expected):
    found = find_pair(shapes, {"architectures": classes} if classes else {}, lookup(model_type))
    assert found.embed is not None
    assert found.head is None
    assert found.has_head_by_design is expected


def test_remote_code_mapped_to_a_causal_lm_has_a_head_whatever_its_class_name():
    config = {"architectures": ["ChatGLMModel"], "auto_map": {"AutoModelForCausalLM": "modeling_chatglm.X"}}
    shapes = {"transformer.embedding.word_embeddings.weight": (V, D)}
    assert find_pair(shapes, config, lookup("chatglm")).has_head_by_design is True


@pytest.mark.parametrize("architectures", [[], [None], "LlamaForCausalLM", {"a": 1}, None])
def test_a_malformed_architectures_list_is_ignored(architectures):
    assert find_pair(llama("model.embed_tokens.weight"), {"architectures": architectures}, None).embed


def test_given_embed_and_head_names_are_used():
    shapes = {"dec_emb": (74, 256), "fc_w": (74, 256), "model.wte.weight": (74, 256)}
    found = named_pair(shapes, "dec_emb", "fc_w")
    assert (found.embed, found.head, found.guessed, found.why) == ("dec_emb", "fc_w", False, "named by you")
    assert named_pair(shapes, "model.wte", None).embed == "model.wte.weight"


@pytest.mark.parametrize(
    ("embed", "head", "message"),
    [
        ("dec_em", None, r"embed=\"dec_em\" is not in this checkpoint; did you mean 'dec_emb'"),
        ("dec_emb", "head", r"head=\"head\" is not in this checkpoint; its matrices are dec_emb, fc_w, turned"),
        ("fc_b", None, r"embed=\"fc_b\" is \[74\]; a vocabulary matrix is \[vocabulary, width\]"),
        (
            "dec_emb",
            "wide",
            r"'dec_emb' is \[74, 256\] but 'wide' is \[74, 512\]; embedding and head must have",
        ),
        ("dec_emb", "turned", r"'turned' is \[256, 74\], transposed against 'dec_emb'; store it as \[74, 256\]"),
        ("dec_emb", "dec_emb", r"both name 'dec_emb'; leave out head"),
        (None, None, r"name at least one matrix"),
    ],
)
def test_a_wrong_name_is_an_error_that_lists_alternatives(embed, head, message):
    shapes = {"dec_emb": (74, 256), "fc_w": (74, 256), "turned": (256, 74), "wide": (74, 512), "fc_b": (74,)}
    with pytest.raises(BadRequest, match=message):
        named_pair(shapes, embed, head)

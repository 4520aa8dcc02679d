"""inspect: state, names and counts of tiny real checkpoints in all seven states, and of torch modules."""

import json

import numpy as np
import pytest
import torch

import tiebeam
from helpers.building import DIM, VOCAB, llama_config, table, write_model, write_sharded
from tiebeam import Tie
from tiebeam.errors import BadRequest, UnreadableInput

TRUNK = {"model.norm.weight": np.ones(DIM, np.float32), "model.layers.0.mlp.up_proj.weight": table(9, 16, DIM)}
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TRUNK_PARAMS = DIM + 16 * DIM
MATRIX = VOCAB * DIM


@pytest.mark.parametrize(
    ("declared", "embed", "head", "tie", "total"),
    [
        (True, 0, None, Tie.SHARED, TRUNK_PARAMS + MATRIX),
        (False, 0, 1, Tie.UNTIED, TRUNK_PARAMS + 2 * MATRIX),
        (True, 0, 0, Tie.TWIN, TRUNK_PARAMS + MATRIX),
        (False, 0, 0, Tie.TWIN, TRUNK_PARAMS + 2 * MATRIX),
        (True, 0, 1, Tie.TORN, TRUNK_PARAMS + 2 * MATRIX),
        (False, 0, None, Tie.HEADLESS, TRUNK_PARAMS + 2 * MATRIX),
        (True, None, 0, Tie.SWAPPED, TRUNK_PARAMS + MATRIX),
    ],
)
def test_tie_and_counts_in_every_state(tmp_path, declared, embed, head, tie, total):
    tensors = dict(TRUNK)
    if embed is not None:
        tensors[EMBED] = table(embed)
    if head is not None:
        tensors[HEAD] = table(head)
    report = tiebeam.inspect(write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=declared)))
    assert report.tie is tie
    assert report.pair.declared is report.declared is declared
    assert report.tied is (total == TRUNK_PARAMS + MATRIX)
    assert report.pair.declared_by == "config.json: tie_word_embeddings"
    params = report.params
    assert params.total == total
    assert params.stored == sum(t.size for t in tensors.values())
    assert params.trunk == TRUNK_PARAMS
    assert params.tied_total == TRUNK_PARAMS + MATRIX
    assert params.untied_total == TRUNK_PARAMS + 2 * MATRIX
    assert params.saved_by_tying == MATRIX
    assert params.head_share == pytest.approx(MATRIX / (TRUNK_PARAMS + 2 * MATRIX))


def test_a_model_without_a_vocabulary_has_no_pair(tmp_path):
    report = tiebeam.inspect(write_model(tmp_path / "m", {"conv.weight": table(0, 3, 3)}, None))
    assert report.tie is Tie.NONE
    assert report.params.total == 9


def test_an_encoder_is_not_headless(tmp_path):
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": VOCAB, "hidden_size": DIM}
    report = tiebeam.inspect(write_model(tmp_path / "m", {"embeddings.word_embeddings.weight": table()}, config))
    assert report.tie is Tie.NONE


def test_the_default_of_the_architecture_counts_when_the_flag_is_absent(tmp_path):
    report = tiebeam.inspect(write_model(tmp_path / "m", {EMBED: table(), **TRUNK}, llama_config()))
    assert report.pair.declared is False
    assert "default" in report.pair.declared_by
    assert report.tie is Tie.HEADLESS


def test_shards_are_one_model(tmp_path):
    shards = [{EMBED: table(0), **TRUNK}, {HEAD: table(1)}]
    report = tiebeam.inspect(write_sharded(tmp_path / "m", shards, llama_config(tie_word_embeddings=False)))
    assert report.tie is Tie.UNTIED
    assert report.pair.head.file == "model-00002-of-00002.safetensors"


def test_naming_one_shard_opens_the_whole_set(tmp_path):
    shards = [{EMBED: table(0), **TRUNK}, {HEAD: table(1)}]
    where = write_sharded(tmp_path / "m", shards, llama_config(tie_word_embeddings=False))
    assert tiebeam.inspect(where / "model-00001-of-00002.safetensors").tie is Tie.UNTIED


def test_aliases_written_by_save_model_are_noted(tmp_path):
    import torch
    from safetensors.torch import save_model

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(VOCAB, DIM)
            self.lm_head = torch.nn.Linear(DIM, VOCAB, bias=False)
            self.lm_head.weight = self.embed_tokens.weight

    save_model(Tied(), tmp_path / "m.safetensors")
    report = tiebeam.inspect(tmp_path / "m.safetensors")
    assert report.tie in (Tie.SWAPPED, Tie.SHARED)
    assert any("same tensor" in note for note in report.notes)
    assert report.params.total == MATRIX


def test_causal_masks_and_rotary_tables_are_not_parameters(tmp_path):
    tensors = {
        "wte.weight": table(),
        "h.0.attn.bias": np.ones((1, 1, 16, 16), np.float32),
        "h.0.attn.masked_bias": np.array([-1e4], np.float32),
        "h.0.attn.c_attn.bias": np.ones(24, np.float32),
    }
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB, "n_embd": DIM}
    assert tiebeam.inspect(write_model(tmp_path / "m", tensors, config)).params.total == MATRIX + 24


def test_matching_shapes_are_not_a_tie(tmp_path):
    report = tiebeam.inspect(write_model(tmp_path / "m", {"left.table": table(0), "right.table": table(1)}, None))
    assert report.tie is Tie.NONE


def test_one_matrix_with_several_candidates_for_the_other_gives_no_verdict(tmp_path):
    tensors = {"enc_emb": table(0), "dec_emb": table(1), "fc_w": table(2)}
    report = tiebeam.inspect(write_model(tmp_path / "m", tensors, None))
    assert report.tie is Tie.NONE
    assert any("embed and head" in note for note in report.notes)


def test_embed_and_head_can_be_named(tmp_path):
    where = write_model(tmp_path / "m", {"left.table": table(0), "right.table": table(1)}, None)
    report = tiebeam.inspect(where, embed="left.table", head="right.table")
    assert report.tie is Tie.UNTIED
    assert not report.guessed


def test_wrong_name_suggests_similar_ones(tmp_path):
    where = write_model(tmp_path / "m", {"left.table": table(0)}, None)
    with pytest.raises(BadRequest, match=r"left\.table"):
        tiebeam.inspect(where, embed="left.tabel")


@pytest.mark.parametrize("declared", [5000, VOCAB - 3])
def test_vocab_size_that_contradicts_the_rows_is_reported_and_not_refused(tmp_path, declared):
    where = write_model(
        tmp_path / "m", {EMBED: table(), **TRUNK}, llama_config(vocab_size=declared, tie_word_embeddings=True)
    )
    report = tiebeam.inspect(where)
    assert report.tie is Tie.SHARED
    assert (report.vocabulary.vocab_size, report.vocabulary.embed_rows) == (declared, VOCAB)


def test_the_report_is_one_json_document(tmp_path):
    where = write_model(tmp_path / "m", {EMBED: table(0), HEAD: table(1)}, llama_config(tie_word_embeddings=True))
    document = json.loads(json.dumps(tiebeam.inspect(where).to_dict(), allow_nan=False))
    assert document["tie"] == "torn"
    assert document["stored"] == ["embed", "head"]
    assert document["embed"] == {
        "name": EMBED, "shape": [VOCAB, DIM], "dtype": "F32", "bytes": MATRIX * 4, "file": "model.safetensors",
    }  # fmt: skip
    assert document["difference"]["rows_differing"] == VOCAB


def test_empty_matrices_do_not_divide_by_zero(tmp_path):
    empty = np.zeros((0, DIM), np.float32)
    report = tiebeam.inspect(write_model(tmp_path / "m", {EMBED: empty, HEAD: empty}, None), embed=EMBED, head=HEAD)
    assert report.params.head_share == 0


class LanguageModel(torch.nn.Module):
    def __init__(self, tied: bool, config: object = None, device: str = "cpu") -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(VOCAB, DIM, device=device)
        self.model.norm = torch.nn.LayerNorm(DIM, bias=False, device=device)
        self.lm_head = torch.nn.Linear(DIM, VOCAB, bias=False, device=device)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.config = config


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tied_module_is_shared(device):
    report = tiebeam.inspect(LanguageModel(tied=True, device=device))
    assert (report.tie, report.tied, report.declared, report.format) == (Tie.SHARED, True, None, "module")
    assert (report.params.total, report.params.stored, report.nbytes) == (
        MATRIX + DIM,
        MATRIX + DIM,
        4 * (MATRIX + DIM),
    )
    assert (report.pair.embed.name, report.pair.head.name) == (EMBED, HEAD)


def test_untied_module_and_its_difference():
    report = tiebeam.inspect(LanguageModel(tied=False, config=llama_config(tie_word_embeddings=False)))
    assert (report.tie, report.tied, report.declared) == (Tie.UNTIED, False, False)
    assert (report.difference.rows, report.difference.rows_differing) == (VOCAB, VOCAB)
    assert report.params.total == 2 * MATRIX + DIM


def test_module_with_equal_copies_is_a_twin_and_one_changed_row_makes_it_torn():
    model = LanguageModel(tied=False, config=llama_config(tie_word_embeddings=True))
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        assert tiebeam.inspect(model).tie is Tie.TWIN
        model.lm_head.weight[3] += 0.5
    report = tiebeam.inspect(model)
    assert report.tie is Tie.TORN
    assert report.difference.rows_differing == 1
    assert report.difference.largest == pytest.approx(0.5)


def test_two_parameters_over_one_storage_are_shared():
    model = LanguageModel(tied=False)
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.data)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    report = tiebeam.inspect(model)
    assert (report.tie, report.params.total) == (Tie.SHARED, MATRIX + DIM)


def test_wrapped_module_is_reported_under_its_own_names():
    model = LanguageModel(tied=True, config=llama_config(tie_word_embeddings=True))
    report = tiebeam.inspect(torch.compile(model))
    assert (report.pair.embed.name, report.declared, report.architecture) == (EMBED, True, "llama")


def test_module_report_matches_its_checkpoint(tmp_path):
    for tied in (True, False):
        config = llama_config(tie_word_embeddings=tied)
        model = LanguageModel(tied, config)
        arrays = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
        stored = tiebeam.inspect(write_model(tmp_path / str(tied), arrays, config))
        assert tiebeam.inspect(model).params == stored.params


def test_untied_meta_module_cannot_be_compared():
    with pytest.raises(BadRequest, match="is on the meta device"):
        tiebeam.inspect(LanguageModel(tied=False, device="meta"))


@pytest.mark.parametrize("source", [5, None, ["a"], b"path"])
def test_wrong_source_type_is_a_sentence(source):
    with pytest.raises(BadRequest, match=r"source must be a path, a Hub id, a Checkpoint or a torch nn\.Module, not "):
        tiebeam.inspect(source)


def test_str_of_a_report(tmp_path):
    where = write_model(tmp_path / "m", {EMBED: table(), **TRUNK}, llama_config(tie_word_embeddings=True))
    assert str(tiebeam.inspect(where)).splitlines() == [
        "● shared  m · llama · safetensors · 2.1 kB",
        "  declared tied (config.json: tie_word_embeddings) · stored once",
        "  embedding      model.embed_tokens.weight  40 x 8  F32  1.3 kB",
        "  LM head        the same tensor",
        "  ids and rows   tokenizer - · vocab_size 40 · embedding 40 · head 40",
        "  non-embedding     136  █████████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░",
        "  vocabulary        320, shared (640 if untied)",
        "  total             456, tying saves 320 (41.2% of the untied model)",
    ]


def test_html_of_a_report_is_escaped(tmp_path):
    name = "<script>alert(1)</script>"
    where = write_model(tmp_path / "m", {name: table(0), "b": table(1)}, None)
    html = tiebeam.inspect(where, embed=name, head="b")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<table>" in html


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 3)], ids=["scalar", "vector", "three dimensions"])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_matrix_of_another_number_of_dimensions_is_refused(tmp_path, name, shape):
    from safetensors.numpy import save_file

    matrix = np.zeros((8, 3), np.float32)
    tensors = {"model.embed_tokens.weight": matrix, "lm_head.weight": matrix + 1, name: np.zeros(shape, np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnreadableInput, match=f"{name} has the shape .* two dimensions"):
        tiebeam.inspect(tmp_path)

"""Which matrix the decoder uses as embedding and as head for each tie, and the factorised forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from helpers.building import write_model
from helpers.lively_models import lively, reference, save, sentence
from tiebeam.decode import Decoder, Table
from tiebeam.errors import UnreadableInput
from tiebeam.inspection import inspect
from tiebeam.pair import Tie

pytest.importorskip("transformers")

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TOKENS = sentence(12)


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(lively("llama", tie_word_embeddings=False), tmp_path_factory.mktemp("untied"))


def changed(source: Path, where: Path, drop: tuple[str, ...] = (), more: Any = None, **flags: Any) -> Path:
    """A copy of a checkpoint with tensors and config entries changed."""
    tensors = {name: value for name, value in load_file(source / "model.safetensors").items() if name not in drop}
    config = {**json.loads((source / "config.json").read_text()), **flags}
    return write_model(where, {**tensors, **(more or {})}, config)


def test_a_shared_pair_runs_on_one_matrix(untied, tmp_path):
    shared = Decoder.open(changed(untied, tmp_path, drop=(HEAD,), tie_word_embeddings=True))
    assert shared.embed is shared.head


def test_a_twin_runs_on_one_matrix_and_gives_the_same(untied, tmp_path):
    table = load_file(untied / "model.safetensors")[EMBED]
    twin = Decoder.open(changed(untied, tmp_path / "twin", more={HEAD: table}, tie_word_embeddings=False))
    shared = Decoder.open(changed(untied, tmp_path / "shared", drop=(HEAD,), tie_word_embeddings=True))
    assert twin.embed is twin.head
    assert np.array_equal(twin.logits(TOKENS), shared.logits(TOKENS))


def test_a_twin_in_two_precisions_keeps_both(untied, tmp_path):
    """Equal up to rounding: `inspect` sees one matrix, but embedding and head still use their stored numbers."""
    import torch
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    where = changed(untied, tmp_path, tie_word_embeddings=False)
    tensors = load_torch(where / "model.safetensors")
    tensors[EMBED] = tensors[HEAD].to(torch.bfloat16)
    save_torch(tensors, where / "model.safetensors")
    assert inspect(where).tie is Tie.TWIN
    decoder = Decoder.open(where)
    np.testing.assert_array_equal(decoder.head.rows, tensors[HEAD].numpy())
    np.testing.assert_array_equal(decoder.embed.lookup(TOKENS), tensors[EMBED].float().numpy()[TOKENS])


def test_a_torn_pair_runs_with_the_stored_head_and_a_note(untied, tmp_path):
    torn = Decoder.open(changed(untied, tmp_path, tie_word_embeddings=True))
    assert torn.notes == (
        "declared tied, but lm_head.weight differs from model.embed_tokens.weight: "
        "runs with the stored head, as in transformers",
    )
    assert np.array_equal(torn.logits(TOKENS), Decoder.open(untied).logits(TOKENS))


def test_a_headless_model_is_refused(untied, tmp_path):
    headless = changed(untied, tmp_path, drop=(HEAD,), tie_word_embeddings=False)
    with pytest.raises(UnreadableInput, match=rf"declares an untied head .* and stores none.*pass head=.{EMBED}"):
        Decoder.open(headless)
    shared = changed(untied, tmp_path / "shared", drop=(HEAD,), tie_word_embeddings=True)
    as_told = Decoder.open(headless, head=EMBED)
    assert np.array_equal(as_told.logits(TOKENS), Decoder.open(shared).logits(TOKENS))


def test_a_model_saved_without_a_head_runs_when_the_head_is_named(tmp_path):
    model = lively("gpt2")
    expected = reference(model, TOKENS)
    save(model.transformer, tmp_path)
    with pytest.raises(UnreadableInput, match=r"saved without a head; .*pass head=.wte\.weight"):
        Decoder.open(tmp_path)
    np.testing.assert_allclose(Decoder.open(tmp_path, head="wte.weight").logits(TOKENS), expected, rtol=0, atol=2e-4)


def test_a_swapped_pair_runs_on_the_one_matrix(untied, tmp_path):
    tensors = load_file(untied / "model.safetensors")
    swapped = changed(untied, tmp_path / "a", drop=(EMBED,), tie_word_embeddings=True)
    shared = changed(untied, tmp_path / "b", drop=(HEAD,), more={EMBED: tensors[HEAD]}, tie_word_embeddings=True)
    assert np.array_equal(Decoder.open(swapped).logits(TOKENS), Decoder.open(shared).logits(TOKENS))


def test_the_names_of_the_pair_may_be_given(untied, tmp_path):
    tensors = load_file(untied / "model.safetensors")
    renamed = changed(untied, tmp_path, drop=(HEAD,), more={"strange": tensors[HEAD]})
    decoder = Decoder.open(renamed, head="strange")
    assert np.array_equal(decoder.logits(TOKENS), Decoder.open(untied).logits(TOKENS))


def test_untying_changes_no_bit(untied, tmp_path):
    """What surgery promises: the same numbers under two names give the same logits."""
    table = load_file(untied / "model.safetensors")[EMBED]
    before = Decoder.open(changed(untied, tmp_path / "a", drop=(HEAD,), tie_word_embeddings=True))
    after = Decoder.open(changed(untied, tmp_path / "b", more={HEAD: table.copy()}, tie_word_embeddings=False))
    assert before.logits(TOKENS).tobytes() == after.logits(TOKENS).tobytes()


def joint(source: Path, where: Path, rank: int, exact: list[int] | None = None) -> Path:
    """The jointly tied form of an untied checkpoint: [E | W] = S [A | B] by SVD."""
    tensors = load_file(source / "model.safetensors")
    E, W = tensors[EMBED].astype(np.float64), tensors[HEAD].astype(np.float64)
    U, s, Vt = np.linalg.svd(np.hstack([E, W]), full_matrices=False)
    S, maps = U[:, :rank] * s[:rank], Vt[:rank]
    more = {
        "tiebeam.table": S.astype(np.float32),
        "tiebeam.embed_map": maps[:, : E.shape[1]].astype(np.float32),
        "tiebeam.head_map": maps[:, E.shape[1] :].astype(np.float32),
    }
    if exact is not None:
        more["tiebeam.exact_rows"] = np.array(exact, np.int32)
        more["tiebeam.exact_embed"] = tensors[EMBED][exact]
    return changed(source, where, drop=(EMBED, HEAD), more=more, tiebeam={"joint": {"rank": rank}})


def test_a_joint_table_of_full_rank_gives_the_same_logits(untied, tmp_path):
    decoder = Decoder.open(joint(untied, tmp_path, rank=64))
    assert decoder.notes == ()
    assert decoder.embed.rows is decoder.head.rows
    np.testing.assert_allclose(decoder.logits(TOKENS), Decoder.open(untied).logits(TOKENS), rtol=0, atol=1e-4)


def test_exact_embeddings_are_exact(untied, tmp_path):
    exact = [0, 7, 95]
    low = Decoder.open(joint(untied, tmp_path, rank=5, exact=exact))
    original = Decoder.open(untied)
    tokens = np.array([7, 95, 0, 7])
    np.testing.assert_array_equal(low.hidden(tokens), original.hidden(tokens))
    others = np.array([1, 2])
    assert np.abs(low.hidden(others) - original.hidden(others)).max() > 0.01  # the others are not


def test_a_low_rank_joint_table_equals_its_product(untied, tmp_path):
    decoder = Decoder.open(joint(untied, tmp_path, rank=6, exact=[3]))
    assert decoder.embed.map is not None
    E, W = decoder.embed.rows @ decoder.embed.map, decoder.head.rows @ decoder.head.map
    assert decoder.embed.exact is not None
    E[3] = decoder.embed.exact[0]
    expanded = changed(untied, tmp_path / "expanded", more={EMBED: E, HEAD: W})
    np.testing.assert_allclose(decoder.logits(TOKENS), Decoder.open(expanded).logits(TOKENS), rtol=0, atol=1e-4)


def test_exact_rows_of_both_matrices_are_refused(untied, tmp_path):
    where = joint(untied, tmp_path, rank=5, exact=[1])
    tensors = load_file(where / "model.safetensors")
    save_file({**tensors, "tiebeam.exact_head": tensors["tiebeam.exact_embed"]}, where / "model.safetensors")
    with pytest.raises(UnreadableInput, match=r"joint tie of version 0\.1"):
        Decoder.open(where)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([3, 1], np.int32), "must ascend within 0 .. 95"),
        (np.array([96], np.int32), "must ascend within 0 .. 95"),
        (np.array([0.5], np.float32), "must be a list of whole numbers"),
    ],
)
def test_bad_exact_rows_are_refused(untied, tmp_path, rows, message):
    where = joint(untied, tmp_path, rank=5, exact=[1])
    tensors = {**load_file(where / "model.safetensors"), "tiebeam.exact_rows": rows}
    save_file(tensors, where / "model.safetensors")
    with pytest.raises(UnreadableInput, match=message):
        Decoder.open(where)


def test_embedding_and_head_can_be_replaced_on_the_same_layers(untied, tmp_path):
    decoder = Decoder.open(untied)
    W = load_file(untied / "model.safetensors")[HEAD]
    both = decoder.with_tables(Table(W), Table(W))
    written = changed(untied, tmp_path, drop=(HEAD,), more={EMBED: W}, tie_word_embeddings=True)
    assert np.array_equal(both.logits(TOKENS), Decoder.open(written).logits(TOKENS))
    assert np.array_equal(decoder.logits(TOKENS), Decoder.open(untied).logits(TOKENS)), "the first is unchanged"


def test_padding_rows_beyond_the_vocabulary_are_scored(untied, tmp_path):
    tensors = load_file(untied / "model.safetensors")
    more = {name: np.vstack([tensors[name], np.zeros((32, 32), np.float32)]) for name in (EMBED, HEAD)}
    padded = Decoder.open(changed(untied, tmp_path, more=more))
    assert padded.vocab == 128
    model = lively("llama", tie_word_embeddings=False)
    np.testing.assert_allclose(padded.logits(TOKENS)[:, :96], reference(model, TOKENS), rtol=0, atol=2e-4)

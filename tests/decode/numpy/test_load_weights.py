"""Reading weights: exactly, in blocks, and never from a map of the file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.building import write_sharded
from helpers.lively_models import lively, reference, save, sentence
from tiebeam.checkpoint import open_checkpoint
from tiebeam.decode import Decoder
from tiebeam.decode.numpy import load_weights
from tiebeam.decode.numpy.load_weights import LazyRows, Linear, Slabs, Weights
from tiebeam.errors import BadRequest, UnreadableInput

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TOKENS = sentence(12)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(lively("llama", tie_word_embeddings=False), tmp_path_factory.mktemp("llama"))


def test_truncating_a_file_in_place_is_an_error_and_does_not_kill_the_process(llama, tmp_path):
    """A memory-mapped file that is truncated ends the process with SIGBUS, which no `except` catches."""
    where = shutil.copytree(llama, tmp_path / "llama")
    decoder = Decoder.open(where)
    expected = decoder.unembed(np.ones((1, 32), np.float32))
    checkpoint = open_checkpoint(where)
    os.truncate(where / "model.safetensors", 4096)
    np.testing.assert_array_equal(decoder.unembed(np.ones((1, 32), np.float32)), expected)  # it was read when opened
    with pytest.raises(UnreadableInput, match="ends at byte"):
        decoder.logits(TOKENS)  # the rows of an embedding that is only looked up are read when needed
    with pytest.raises(UnreadableInput, match="ends at byte"):
        Decoder.open(checkpoint)


def test_the_head_is_the_table_itself_never_a_copy(llama):
    decoder = Decoder.open(llama)
    scorer = decoder.head.scorer()
    assert all(np.shares_memory(piece, decoder.head.rows) for piece in scorer.rows.pieces)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tables_that_are_only_looked_up_stay_in_the_file(tmp_path, dtype):
    save(lively("llama", tie_word_embeddings=False), tmp_path, dtype)
    decoder = Decoder.open(tmp_path)
    assert isinstance(decoder.embed.rows, LazyRows)
    checkpoint = open_checkpoint(tmp_path)
    whole = checkpoint.tensor("model.embed_tokens.weight")
    np.testing.assert_array_equal(decoder.embed.lookup(TOKENS), whole[TOKENS])


def test_conversion_in_small_blocks_equals_conversion_at_once(tmp_path, monkeypatch):
    save(lively("gpt_neox"), tmp_path, torch.float16)
    expected = Decoder.open(tmp_path).logits(TOKENS)
    monkeypatch.setattr(load_weights, "_BLOCK", 100)  # a few rows at a time
    np.testing.assert_array_equal(Decoder.open(tmp_path).logits(TOKENS), expected)


def test_shards_are_one_model(llama, tmp_path):
    from safetensors.numpy import load_file

    tensors = load_file(llama / "model.safetensors")
    names = sorted(tensors)
    parts = [{name: tensors[name] for name in names[i::3]} for i in range(3)]
    write_sharded(tmp_path, parts, None)
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    assert np.array_equal(Decoder.open(tmp_path).logits(TOKENS), Decoder.open(llama).logits(TOKENS))


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_both_code_paths_for_one_token_agree(family, by_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(load_weights, "BY_ROWS", by_rows and hasattr(np, "vecdot"))
    model = lively(family)
    decoder = Decoder.open(save(model, tmp_path))
    cache = decoder.cache(len(TOKENS))
    steps = [decoder.unembed(decoder.forward([int(token)], cache)) for token in TOKENS]
    np.testing.assert_allclose(np.concatenate(steps), reference(model, TOKENS), rtol=0, atol=2e-4)


@pytest.mark.parametrize("T", [1, 3])
def test_linear_stacks_its_pieces_and_adds_its_bias(T):
    random = np.random.default_rng(0)
    A = random.standard_normal((4, 6)).astype(np.float32)
    B = random.standard_normal((6, 3)).astype(np.float32).T  # [3, 6], a transposed view
    bias = random.standard_normal(7).astype(np.float32)
    x = random.standard_normal((T, 6)).astype(np.float32)
    np.testing.assert_allclose(Linear([A, B], bias)(x), x @ np.vstack([A, B]).T + bias, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtype_rounds_as_torch_does(llama, dtype):
    name = "model.layers.0.mlp.down_proj.weight"
    checkpoint = open_checkpoint(llama)
    exact = torch.from_numpy(checkpoint.tensor(name).copy())
    expected = exact.to(getattr(torch, dtype)).float().numpy()
    found = Weights(checkpoint, dtype).matrix(name, (32, 48))
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, exact.numpy())


def test_an_unknown_dtype_is_refused(llama):
    with pytest.raises(BadRequest, match="'int8' is not one of float32, float64, float16, bfloat16"):
        Decoder.open(llama, dtype="int8")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_pytorch_files_run_the_same(family, dtype, tmp_path):
    model = lively(family).to(dtype)
    model.config.save_pretrained(tmp_path)
    state = model.state_dict()
    name = next(name for name in state if name.endswith(("mlp.c_fc.weight", "mlp.down_proj.weight")))
    state[name] = state[name].T.contiguous().T  # a view with strides, as a fine-tune may leave behind
    torch.save(state, tmp_path / "pytorch_model.bin")
    decoder = Decoder.open(tmp_path)
    save(model, tmp_path / "other")
    assert decoder.notes == ()
    np.testing.assert_array_equal(decoder.logits(TOKENS), Decoder.open(tmp_path / "other").logits(TOKENS))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_cut_from_slabs_hold_what_arrays_of_their_own_hold(monkeypatch, dtype):
    """They do not overlap, and those of a quarter of a slab and more are allocated alone."""
    monkeypatch.setattr(load_weights, "_SLAB", 4096)
    shapes = [(3, 5), (1,), (0, 7), (40, 6), (7, 9), (2, 3, 4), (11, 11), (64, 64), (5, 8)] * 4
    kind = np.dtype(dtype)
    slabs = Slabs(kind, sum(int(np.prod(shape)) for shape in shapes))
    arrays = [slabs.empty(shape) for shape in shapes]
    for value, array in enumerate(arrays):
        array[...] = value
    for value, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        np.testing.assert_array_equal(array, np.full(shape, value, kind), strict=True)
        assert array.flags.c_contiguous
        alone = array.base.nbytes <= array.nbytes + load_weights._ALIGNMENT
        assert alone == (4 * array.nbytes >= 4096)
        assert array.ctypes.data % load_weights._ALIGNMENT == 0


def test_a_small_model_gets_a_slab_of_its_own_size():
    array = Slabs(np.dtype(np.float32), 1000).empty((10, 10))
    assert array.base is not None
    assert array.base.nbytes == 4000 + load_weights._ALIGNMENT


def test_a_slab_and_an_array_that_is_allocated_alone_begin_with_a_huge_page():
    slabs = Slabs(np.dtype(np.float32), 1 << 26)
    for shape in ((1024, 1024), (4096, 1024)):
        assert slabs.empty(shape).ctypes.data % load_weights._HUGE_PAGE == 0


def test_arrays_beyond_the_announced_number_are_allocated_too():
    slabs = Slabs(np.dtype(np.float32), 16)
    arrays = [slabs.empty((4, 4)) for _ in range(3)]
    assert not any(np.shares_memory(a, b) for a in arrays for b in arrays if a is not b)

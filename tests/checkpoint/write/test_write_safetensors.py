"""Written files equal those of the safetensors library, which reads them."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tiebeam.checkpoint import open_checkpoint
from tiebeam.checkpoint.write.copy_bytes import Made, Span, write_files
from tiebeam.checkpoint.write.safetensors import Entry, arrange, index_json, insert, layout
from tiebeam.errors import BadRequest


def made(name: str, dtype: str, array: np.ndarray) -> Entry:
    return Entry(name, dtype, array.shape, Made.of(array.tobytes()))


def test_bytes_equal_those_of_the_safetensors_library(tmp_path):
    tensors: dict[str, np.ndarray] = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "é": np.ones(3, np.float16),
        "z": np.zeros((), np.int8),
    }
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    info = open_checkpoint(tmp_path / "theirs").tensors
    entries = [
        Entry(t.name, t.dtype, t.shape, Span(tmp_path / "theirs", t.begin, t.end))
        for t in sorted(info.values(), key=lambda t: t.begin)
    ]
    contents = layout(entries, {"format": "pt"})
    write_files([(tmp_path / "ours", contents)])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert len(contents) == 2, "neighbouring spans are copied in one go"


def test_safetensors_library_reads_the_result(tmp_path):
    values = {"w": np.arange(4, dtype=np.float32), "n": np.array(["x"] * 0, dtype=np.float32).reshape(0, 3)}
    write_files([(tmp_path / "f", layout([made(name, "F32", array) for name, array in values.items()], {}))])
    loaded = load_file(tmp_path / "f")
    assert all(np.array_equal(loaded[name], array) for name, array in values.items())
    with safe_open(tmp_path / "f", "np") as handle:
        assert handle.metadata() is None


def test_new_tensor_goes_after_those_of_the_same_width():
    entries = [
        made("a", "F32", np.ones(1, "f4")),
        made("b", "F16", np.ones(3, "f2")),
        made("c", "U8", np.ones(1, "u1")),
    ]
    names = [e.name for e in insert(entries, made("new", "BF16", np.ones(2, "u2")))]
    assert names == ["a", "b", "new", "c"]
    assert insert(entries, made("new", "I64", np.ones(2, "i8")))[0].name == "new"


def test_misaligned_tensors_are_reordered():
    odd = [made("half", "F16", np.ones(3, "f2")), made("single", "F32", np.ones(1, "f4"))]
    assert [e.name for e in arrange(odd)] == ["single", "half"]
    even = [made("half", "F16", np.ones(4, "f2")), made("single", "F32", np.ones(1, "f4"))]
    assert [e.name for e in arrange(even)] == ["half", "single"]


def test_two_tensors_of_one_name_are_refused():
    entry = made("w", "F32", np.ones(1, "f4"))
    with pytest.raises(BadRequest, match="'w'"):
        layout([entry, entry], {})


def test_index_keeps_other_keys_and_updates_totals():
    old = {"metadata": {"total_size": 1, "total_parameters": 100, "note": "x"}, "weight_map": {"a": "1"}}
    new = json.loads(index_json(old, {"b": "1", "a": "1"}, 42, params=-10))
    assert new == {
        "metadata": {"note": "x", "total_size": 42, "total_parameters": 90},
        "weight_map": {"a": "1", "b": "1"},
    }
